/* am/am.h - the door of the room, for src/open.c and the rooms above. */
#ifndef WEFTI_AM_H
#define WEFTI_AM_H

#include "conn/conn.h"

weft_status_t wefti_am_attach(weft_runtime_t *rt);

/* Handlers of the library's own ids (from WEFT_AM_RESERVED on) are given copies: header and data of a message are memory of
 * ours, which its sender cannot change while they are checked and used. Valid until the handler returns, as for any. */

/* Send a header without a payload, on the driver, if that can be done now: the endpoint is up, nobody waits before it, there
 * is credit and space. False: nothing happened; weft_am_send() would have to wait, or fails. */
bool wefti_am_send_now(weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len);

#endif
