/* msg/wait.c - sending and receiving in one call that waits. tests/wire/waiting.c. */
#include "core/core.h"
#include "weft/msg.h"

weft_status_t weft_msg_send_wait(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, uint64_t timeout_ns)
{
    weft_op_t op;
    weft_status_t st = wefti_block_begin(&op, timeout_ns);
    return st ? st : wefti_block_end(&op, weft_msg_send(ep, buf, len, tag, &op));
}

weft_status_t weft_msg_recv_wait(weft_ep_t *ep, void *buf, size_t cap, uint64_t tag, uint64_t mask, uint64_t timeout_ns,
                                 size_t *len_out)
{
    weft_op_t op;
    weft_status_t st = wefti_block_begin(&op, timeout_ns);
    if (!st)
        st = wefti_block_end(&op, weft_msg_recv(ep, buf, cap, tag, mask, &op));
    if ((!st || st == WEFT_ERR_TRUNCATED) && len_out)
        *len_out = op.len;
    return st;
}
