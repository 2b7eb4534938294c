/* msg/wait.c - sending and receiving in one call that waits. tests/wire/waiting.c. */
#include "conn/conn.h"
#include "weft/msg.h"

weft_status_t weft_msg_send_wait(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, uint64_t timeout_ns)
{
    weft_op_t op;
    weft_status_t st = wefti_sync_begin(&op, timeout_ns);
    if (!st)
        st = wefti_sync_end(&op, weft_msg_send(ep, buf, len, tag, &op));
    if (!st && wefti_mode(ep->rt) != WEFT_PROGRESS_THREAD)
        weft_runtime_progress(ep->rt); /* records that were committed together wait for the next progress: this one leaves now */
    return st;
}

weft_status_t weft_msg_recv_wait(weft_ep_t *ep, void *buf, size_t cap, uint64_t tag, uint64_t mask, uint64_t timeout_ns,
                                 size_t *len_out)
{
    weft_op_t op;
    weft_status_t st = wefti_sync_begin(&op, timeout_ns);
    if (!st)
        st = wefti_sync_end(&op, weft_msg_recv(ep, buf, cap, tag, mask, &op));
    if ((!st || st == WEFT_ERR_TRUNCATED) && len_out)
        *len_out = op.len;
    return st;
}
