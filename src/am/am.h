/* am/am.h - the door of the room, for src/open.c and the rooms above. */
#ifndef WEFTI_AM_H
#define WEFTI_AM_H

#include <weft/am.h>

#include "conn/conn.h"

weft_status_t wefti_am_attach(weft_runtime_t *rt);

/* weft_am_handle() for one shard. */
weft_status_t wefti_am_handle(weft_runtime_t *rt, uint32_t id, weft_am_fn fn, void *user, weft_op_t *done);

/* Handlers of the library's own ids (from WEFT_AM_RESERVED on) are given copies: header and data of a message are memory of
 * ours, which its sender cannot change while they are checked and used. Valid until the handler returns, as for any. */

/* Send a header without a payload, on the driver, if that can be done now: the endpoint is up, nobody waits before it, there
 * is credit and space. False: nothing happened; weft_am_send() would have to wait, or fails. */
bool wefti_am_send_now(weft_ep_t *ep, uint32_t id, const void *header, uint32_t header_len);
/* The same in two steps. begin: where the header goes, aligned to 8; NULL: not now. The caller writes all of it, with zeroes
 * up to the next multiple of 8, and reads nothing there: the peer can change it. end follows, before anything else is done
 * with the endpoint. */
void *wefti_am_begin_now(weft_ep_t *ep, uint32_t id, uint32_t header_len);
void wefti_am_end_now(weft_ep_t *ep, uint32_t header_len);

#endif
