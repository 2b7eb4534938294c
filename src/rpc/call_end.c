/* rpc/call_end.c - how calls end: what their caller gets to know, and their completion.
 *
 * A call whose buffers are still with the fabric is ENDING: it completes when they are free.
 *
 * Promise: every call completes once, after its buffers are free. tests/wire/rpc_call.c, tests/fault/rpc_lost.c. */
#include "rpc/client.h"

weft_code_t wefti_rpc_code_of(weft_status_t status)
{
    static const struct {
        weft_status_t status;
        weft_code_t code;
    } codes[] = {
        {WEFT_OK, WEFT_CODE_OK},
        {WEFT_ERR_TIMEOUT, WEFT_CODE_DEADLINE_EXCEEDED},
        {WEFT_ERR_CANCELLED, WEFT_CODE_CANCELLED},
        {WEFT_ERR_INVALID, WEFT_CODE_INVALID_ARGUMENT},
        {WEFT_ERR_NOMEM, WEFT_CODE_RESOURCE_EXHAUSTED},
        {WEFT_ERR_LIMIT, WEFT_CODE_RESOURCE_EXHAUSTED},
        {WEFT_ERR_TRUNCATED, WEFT_CODE_RESOURCE_EXHAUSTED},
        {WEFT_ERR_UNSUPPORTED, WEFT_CODE_UNIMPLEMENTED},
        {WEFT_ERR_AUTH, WEFT_CODE_UNAUTHENTICATED},
        {WEFT_ERR_PROTOCOL, WEFT_CODE_INTERNAL},
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].status == status)
            return codes[i].code;
    return WEFT_CODE_UNAVAILABLE;
}

/* The sentence for weft_last_error(): the function, and the message of its reply. */
static uint64_t explain(weft_op_t *op, weft_status_t status)
{
    const rpc_call_t *c = rpc_call(op);
    const char *message = c->reply ? c->reply->message : NULL;
    if (wefti_opx(op)->rt->why) /* its endpoint ends, and says why */
        return 0;
    return wefti_detail_format("%.100s: %s", c->method->text, message && *message ? message : weft_status_text(status));
}

/* Its buffers are free. */
static void complete(weft_op_t *op, weft_status_t status)
{
    rpc_call_t *c = rpc_call(op);
    weft_client_t *client = c->method->client;
    weft_client_stats_t *s = &client->stats;
    rpc_count(status == WEFT_OK              ? &s->ok
              : status == WEFT_ERR_CANCELLED ? &s->cancelled
              : status == WEFT_ERR_TIMEOUT   ? &s->timed_out
                                             : &s->failed,
              1);
    rpc_count(&s->under_way, -1);
    if (c->seq)
        wefti_list_remove(&c->once_link);
    if (__builtin_expect(c->stream != NULL, 0)) {
        wefti_stream_over(c->stream, status);
        wefti_stream_drop(c->stream);
    }
    client->calls--;
    if (__builtin_expect(status != WEFT_OK, 0))
        wefti_op_complete_why(op, status, explain(op, status));
    else
        wefti_op_complete(op, status);
    if (__builtin_expect(client->closing, 0)) {
        wefti_rpc_client_hold(client);
        wefti_rpc_client_unhold(client);
    }
}

void wefti_rpc_finish(weft_op_t *op, weft_status_t status)
{
    rpc_call_t *c = rpc_call(op);
    if (__builtin_expect(c->out == NULL, 1)) {
        complete(op, status);
        return;
    }
    c->state = CALL_ENDING;
    c->why = status;
    if (status)
        wefti_rpc_out_cancel(c->out);
}

void wefti_rpc_fill_reply(weft_op_t *op, weft_status_t status, const char *message)
{
    const rpc_call_t *c = rpc_call(op);
    weft_reply_t *r = c->reply;
    if (!r)
        return;
    r->tries = c->tries;
    if (message) {
        wefti_rpc_reply_fail(r, wefti_rpc_code_of(status), (weft_ran_t)c->ran, message, strlen(message));
    } else {
        r->code = wefti_rpc_code_of(status);
        r->ran = (weft_ran_t)c->ran;
        r->message = status ? weft_status_text(status) : "";
    }
    if (status && status != WEFT_ERR_CALL) {
        r->category = WEFT_CATEGORY_WEFT;
        r->value = status;
    }
}

void wefti_rpc_call_end(weft_op_t *op, weft_status_t status, const char *message)
{
    const rpc_call_t *c = rpc_call(op);
    if (__builtin_expect(status || message || !c->reply, 0)) {
        wefti_rpc_fill_reply(op, status, message);
    } else { /* the rest of it was filled in when it was posted */
        c->reply->tries = c->tries;
        c->reply->ran = (weft_ran_t)c->ran;
    }
    wefti_rpc_finish(op, status);
}
