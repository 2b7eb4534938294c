/* rpc/stream.c - the life of one side of a stream. stream_out.c sends, stream_in.c receives.
 *
 *     made --connect--> connected --over--> over
 *       ^----connect(NULL)---|                       a request that is sent again, while nothing was sent or received
 *
 * It is held by its owner (the call, the request), by the program (at a client), by each operation in the inbox and by each
 * message under way; the last of them frees it. So weft_stream_release() may come while operations are under way: they end, and
 * touch nothing after that.
 *
 * Promise: the program never gets more values than the other side sent, nor an end that the other side did not reach: if anything
 * is lost, receives end with a status. tests/wire/rpc_stream.c, tests/fault/rpc_stream_lost.c. */
#include "rpc/stream.h"

static void release_on_driver(wefti_call_t *call)
{
    weft_stream_t *s = wefti_container_of(call, weft_stream_t, release);
    weft_op_t *owner = (weft_op_t *)s->owner;
    if (owner)
        weft_op_cancel(owner);
    /* the call may end later, when its buffers are free; the stream ends now */
    wefti_stream_out_fail(s, WEFT_ERR_CANCELLED);
    wefti_stream_in_fail(s, WEFT_ERR_CANCELLED);
    wefti_stream_unref(s);
}

weft_status_t wefti_stream_new(rpc_state_t *rs, const weft_sig_t *sig, bool at_server, uint64_t stall_ns,
                               weft_stream_t **stream_out)
{
    const wefti_codec_t *args = wefti_sig_codec(sig, WEFTI_SIG_ARG_ITEM), *results = wefti_sig_codec(sig, WEFTI_SIG_RESULT_ITEM);
    weft_stream_t *s = (weft_stream_t *)wefti_malloc(sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a stream");
    memset(s, 0, offsetof(weft_stream_t, in.slots));
    s->rt = rs->rt;
    s->rs = rs;
    s->at_server = at_server;
    s->to_peer = at_server ? RPC_AM_TO_CLIENT : RPC_AM_TO_SERVER;
    s->release.fn = release_on_driver;
    atomic_init(&s->refs, at_server ? 1 : 2);
    s->out.codec = at_server ? *results : *args; /* copies: a client's stream may outlive the signature */
    s->in.codec = at_server ? *args : *results;
    wefti_list_init(&s->out.waiting);
    wefti_list_init(&s->out.flying);
    wefti_list_init(&s->in.receives);
    s->out.may_items = s->in.may_items = RPC_STREAM_ITEMS;
    s->out.may_bytes = s->in.may_bytes = RPC_STREAM_BYTES;
    s->in.item_max = STREAM_ITEM_MAX;
    s->in.stall_ns = stall_ns;
    *stream_out = s;
    return WEFT_OK;
}

void wefti_stream_unref(weft_stream_t *s)
{
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1)
        return;
    wefti_stream_in_fail(s, WEFT_ERR_CLOSED);
    wefti_free(s);
}

void wefti_stream_connect(weft_stream_t *s, weft_ep_t *ep, uint64_t call, void *owner)
{
    s->ep = ep;
    s->call = call;
    s->owner = owner;
    if (!ep)
        return;
    s->peer = ep->id;
    wefti_stream_out_kick(s);
}

bool wefti_stream_used(const weft_stream_t *s)
{
    return s->out.items || s->in.items || s->out.end_sent || s->in.ended;
}

void wefti_stream_record(weft_stream_t *s, unsigned kind, weft_am_t *am, const rpc_head_t *head)
{
    if (s->over || !s->ep)
        return; /* it was sent before the other side knew that the stream is over */
    if (head->slot)
        wefti_ep_protocol_error(s->ep, "a record of a stream has a slot");
    else if (kind == RPC_ITEM)
        wefti_stream_in_item(s, am, head);
    else if (kind == RPC_END)
        wefti_stream_in_end(s, am, head);
    else
        wefti_stream_out_credit(s, am);
}

void wefti_stream_over(weft_stream_t *s, weft_status_t status)
{
    if (s->over)
        return;
    s->over = true;
    s->why = status;
    s->owner = NULL;
    s->ep = NULL;
    wefti_stream_out_over(s, status);
    wefti_stream_in_over(s, status);
}

void wefti_stream_drop(weft_stream_t *s)
{
    wefti_stream_over(s, WEFT_ERR_CLOSED);
    wefti_stream_unref(s);
}

void weft_stream_release(weft_stream_t *stream)
{
    if (stream && !stream->at_server && !wefti_call_on_driver(stream->rt, &stream->release))
        wefti_stream_unref(stream); /* the runtime is closed, and all calls are over */
}
