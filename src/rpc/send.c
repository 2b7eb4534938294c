/* rpc/send.c - messages that go out: values become bytes and pieces, and both are sent.
 *
 * A message without a payload is sent at once, from the stack, if there is space for it. Any other becomes an rpc_out_t, which
 * keeps it until active messages are done with it.
 *
 * Promise: done() is called once, and what the pieces view is not touched after that. tests/wire/rpc_call.c. */
#include "rpc/state.h"

static rpc_kept_t *kept_of(const rpc_out_t *out)
{
    return (rpc_kept_t *)(uintptr_t)(out + 1);
}

weft_status_t wefti_rpc_pack(rpc_msg_t *msg, const wefti_codec_t *codec, const weft_value_t *values, size_t n, rpc_ext_t *ext)
{
    wefti_encoded_t e;
    size_t space = RPC_HEADER_CAP - msg->len,
           small = wefti_encode_small(codec, values, n, RPC_OUT_OF_LINE, msg->header + msg->len, space);
    if (__builtin_expect(small != SIZE_MAX, 1)) {
        msg->len += (uint32_t)small;
        return WEFT_OK;
    }
    weft_iov_t *iov = msg->iov + (ext ? 2 : 0); /* space for the bytes in front */
    weft_status_t st = wefti_encode(codec, values, n, RPC_OUT_OF_LINE, msg->header + msg->len, space, iov, &e);
    if (__builtin_expect(!st, 1)) {
        if (ext && e.pieces)
            memmove(msg->iov, iov, e.pieces * sizeof *iov);
        msg->len += (uint32_t)e.len;
        msg->iov_n = (uint32_t)e.pieces;
        msg->payload = e.payload;
        return WEFT_OK;
    }
    if (st != WEFT_ERR_LIMIT || !ext)
        return st;
    size_t padded = (e.len + 7) & ~(size_t)7;
    if (padded > UINT32_MAX)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "there are too many values for one call; pass them as vectors or tensors");
    uint8_t *bytes = (uint8_t *)wefti_malloc(padded);
    if (!bytes)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu bytes of arguments", padded);
    st = wefti_encode(codec, values, n, RPC_OUT_OF_LINE, bytes, padded, iov, &e);
    if (!st && e.pieces && e.device_type != 1)
        st = wefti_fail(WEFT_ERR_UNSUPPORTED, "tensors of a device and %zu bytes of other values are too much for one call",
                        e.len);
    if (st) {
        wefti_free(bytes);
        return st;
    }
    memset(bytes + e.len, 0, padded - e.len);
    msg->bytes = bytes;
    msg->iov[0] = (weft_iov_t){bytes, padded};
    memmove(msg->iov + 1, iov, e.pieces * sizeof *iov);
    msg->iov_n = (uint32_t)e.pieces + 1;
    msg->payload = padded + e.payload;
    ext->flags |= RPC_F_BYTES;
    ext->bytes_len = (uint32_t)e.len;
    return WEFT_OK;
}

void wefti_rpc_msg_free(rpc_msg_t *msg)
{
    wefti_free(msg->bytes);
    msg->bytes = NULL;
}

/* --- messages that are kept ------------------------------------------------------------------------------------------------ */

/* Not if the message owns all that its pieces view. */
static bool copies(const rpc_msg_t *msg, unsigned how)
{
    return msg->iov_n && (how & RPC_KEEP_ALL || (how & RPC_SEND_COPY && !(msg->iov_n == 1 && msg->bytes)));
}

static size_t header_space(const rpc_msg_t *msg)
{
    return (msg->len + 7u) & ~7u;
}

size_t wefti_rpc_kept_size(const rpc_msg_t *msg, unsigned how)
{
    size_t pieces = copies(msg, how) ? sizeof *msg->iov + msg->payload : msg->iov_n * sizeof *msg->iov;
    return sizeof(rpc_kept_t) + header_space(msg) + pieces;
}

weft_status_t wefti_rpc_keep_at(rpc_kept_t *k, rpc_msg_t *msg, unsigned how)
{
    k->len = msg->len;
    k->iov_n = msg->iov_n;
    k->payload = msg->payload;
    k->bytes = NULL;
    k->lent = false;
    k->iov = (weft_iov_t *)(void *)(k->header + header_space(msg));
    k->copied = copies(msg, how);
    memcpy(k->header, msg->header, msg->len);
    if (k->copied) {
        wefti_pieces_t all;
        wefti_pieces_set(&all, NULL, 0, msg->iov, msg->iov_n, wefti_mem_device_of(msg->iov[msg->iov_n - 1].base, NULL));
        k->iov_n = 1;
        k->iov[0] = (weft_iov_t){k->iov + 1, msg->payload};
        weft_status_t st = wefti_pieces_gather(&all, (uint8_t *)(k->iov + 1));
        if (st || how & RPC_KEEP_ALL)
            return st;
        wefti_rpc_msg_free(msg);
        return WEFT_OK;
    }
    memcpy(k->iov, msg->iov, msg->iov_n * sizeof *msg->iov);
    k->bytes = msg->bytes;
    msg->bytes = NULL;
    return WEFT_OK;
}

weft_status_t wefti_rpc_keep(rpc_msg_t *msg, unsigned how, rpc_kept_t **kept_out)
{
    rpc_kept_t *k = (rpc_kept_t *)wefti_malloc(wefti_rpc_kept_size(msg, how));
    weft_status_t st = k ? wefti_rpc_keep_at(k, msg, how) : wefti_fail(WEFT_ERR_NOMEM, "no memory to keep a message");
    if (st)
        wefti_free(k);
    else
        *kept_out = k;
    return st;
}

void wefti_rpc_kept_view(const rpc_kept_t *k, rpc_msg_t *msg)
{
    msg->len = k->len;
    msg->iov_n = k->iov_n;
    msg->payload = k->payload;
    msg->bytes = NULL;
    memcpy(msg->header, k->header, k->len);
    memcpy(msg->iov, k->iov, k->iov_n * sizeof *k->iov);
}

void wefti_rpc_kept_take(rpc_kept_t *k, rpc_msg_t *msg)
{
    wefti_rpc_kept_view(k, msg);
    msg->bytes = k->copied ? k : k->bytes;
    if (!k->copied && !k->lent)
        wefti_free(k);
}

void wefti_rpc_kept_free(rpc_kept_t *k)
{
    if (k)
        wefti_free(k->bytes);
    if (k && !k->lent)
        wefti_free(k);
}

/* --- messages that go out -------------------------------------------------------------------------------------------------- */

static void out_free(rpc_out_t *out)
{
    wefti_free(kept_of(out)->bytes);
    wefti_free(out);
}

/* A reply waited and then could not leave: there was no memory to announce its payload, or it was cancelled. Tell its caller. The
 * id of active messages tells replies from requests, which have the same kinds, and whose numbers may be those of calls of the
 * peer. */
static void tell_caller(const rpc_out_t *out)
{
    rpc_head_t head;
    weft_ep_t *ep = weft_ep_find(out->rs->rt, out->op.from);
    memcpy(&head, kept_of(out)->header, sizeof head);
    bool reply = out->op.tag == RPC_AM_TO_CLIENT && (rpc_kind(&head) == RPC_REPLY || rpc_kind(&head) == RPC_REPLY_EXT);
    if (ep && ep->lane && reply)
        wefti_rpc_reply_unsent(ep, head.call, out->op.status);
}

static void out_done(weft_op_t *op, void *user)
{
    rpc_out_t *out = (rpc_out_t *)user;
    weft_status_t st = op->status;
    rpc_out_fn done = out->done;
    void *done_user = out->user;
    if (__builtin_expect(st != WEFT_OK, 0))
        tell_caller(out);
    rpc_end(out->rs);
    out_free(out);
    if (done)
        done(done_user, st);
}

static weft_status_t send_slow(weft_ep_t *ep, uint32_t am_id, rpc_msg_t *msg, unsigned how, rpc_out_fn done, void *user,
                               rpc_out_t **out_out)
{
    rpc_out_t *out = (rpc_out_t *)wefti_malloc(sizeof *out + wefti_rpc_kept_size(msg, how));
    if (!out) {
        wefti_rpc_msg_free(msg);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to send a call or a reply");
    }
    rpc_kept_t *kept = kept_of(out);
    weft_status_t st = wefti_rpc_keep_at(kept, msg, how);
    if (st)
        goto err;
    memset(out, 0, sizeof *out);
    out->rs = rpc_state(ep->rt);
    out->done = done;
    out->user = user;
    weft_am_send_opts_t o = {.size = sizeof o,
                             .id = am_id,
                             .header = kept->header,
                             .header_len = kept->len,
                             .iov = kept->iov_n ? kept->iov : NULL,
                             .iov_n = kept->iov_n,
                             .urgent = how & RPC_SEND_URGENT};
    out->op.fn = out_done;
    out->op.user = out;
    rpc_begin(out->rs);
    st = weft_am_send_with(ep, &o, &out->op);
    if (!st) {
        *out_out = out;
        return WEFT_OK;
    }
    rpc_end(out->rs);
err:
    wefti_rpc_msg_free(msg);
    out_free(out);
    return st;
}

weft_status_t wefti_rpc_send(weft_ep_t *ep, uint32_t am_id, rpc_msg_t *msg, unsigned how, rpc_out_fn done, void *user,
                             rpc_out_t **out_out)
{
    *out_out = NULL;
    if (__builtin_expect(!msg->iov_n && wefti_am_send_now(ep, am_id, msg->header, msg->len), 1))
        return WEFT_OK;
    return send_slow(ep, am_id, msg, how, done, user, out_out);
}

bool wefti_rpc_send_scalars(weft_ep_t *ep, uint32_t am_id, rpc_head_t head, const wefti_codec_t *codec,
                            const weft_value_t *values, size_t n)
{
    uint32_t len = (uint32_t)sizeof head + codec->len;
    if (!wefti_encode_fixed_ok(codec, values, n))
        return false;
    uint8_t *at = (uint8_t *)wefti_am_begin_now(ep, am_id, len);
    if (__builtin_expect(!at, 0))
        return false;
    memcpy(at, &head, sizeof head);
    wefti_encode_fixed(codec, values, at + sizeof head);
    wefti_am_end_now(ep, len);
    return true;
}

/* A header alone leaves as a whole or not at all. With a payload, the header may be with the peer while the payload waits. */
bool wefti_rpc_out_unsent(const rpc_out_t *out)
{
    weft_op_t *op = (weft_op_t *)(uintptr_t)&out->op;
    uint32_t state = atomic_load_explicit(&wefti_opx(op)->state, memory_order_relaxed) & WEFTI_OP_STATE;
    bool complete = state == WEFTI_OP_READY || state == WEFTI_OP_DONE;
    return !kept_of(out)->iov_n && (!complete || op->status != WEFT_OK);
}
