/* examples/extend/ping.h - a library on top of libweft: an operation that measures how long a peer takes to answer. */
#ifndef PING_H
#define PING_H

#include <weft/conn.h>

#define CAN_PING (UINT64_C(1) << 32) /* of weft_ep_info_t.peer_capabilities */

/* Make it known, before weft_runtime_open(): every runtime of this process answers pings then. */
weft_status_t ping_register(void);

/* Ask the peer for an answer. op completes with WEFT_OK when it is here, op->len is how many nanoseconds it took; with
 * WEFT_ERR_UNSUPPORTED if the peer's program cannot answer; WEFT_ERR_PEER or WEFT_ERR_CLOSED if it is lost or closed. Its
 * timeout and weft_op_cancel() work as everywhere. Any thread. Fails: WEFT_ERR_INVALID, WEFT_ERR_NOMEM, WEFT_ERR_CLOSED. */
weft_status_t ping(weft_ep_t *ep, weft_op_t *op);

#endif
