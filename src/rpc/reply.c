/* rpc/reply.c - what a server answers: replies and their payloads, and the caller's weft_reply_t.
 *
 * Up to two small results are in the reply itself, without an allocation. Everything else is an rpc_in_t, which the caller gives
 * back.
 *
 * Everything read here was written by the peer: what breaks the rules fails the endpoint, and the calls on it end with that.
 * tests/fuzz/rpc_records.c */
#include "rpc/client.h"

enum { HOLDS_NOTHING, HOLDS_VALUES, HOLDS_TEXT }; /* weft_reply_t.holds */

const char *weft_code_name(weft_code_t code)
{
    switch (code) {
#define NAME(name, value, text) \
    case name: \
        return text;
        WEFT_CODE_LIST(NAME)
#undef NAME
    default:
        return "?";
    }
}

void weft_reply_release(weft_reply_t *r)
{
    if (!r || !r->more)
        return;
    if (r->holds == HOLDS_VALUES)
        wefti_rpc_in_free((rpc_in_t *)r->more);
    else
        wefti_free(r->more);
    r->more = NULL;
    r->holds = HOLDS_NOTHING;
    r->message = "";
    r->values = NULL;
    r->n = 0;
}

void wefti_rpc_reply_fail(weft_reply_t *r, weft_code_t code, weft_ran_t ran, const char *message, size_t len)
{
    char *copy = (char *)wefti_malloc(len + 1);
    r->code = code;
    r->ran = ran;
    r->message = "";
    if (!copy)
        return; /* the code says enough */
    memcpy(copy, message, len);
    copy[len] = 0;
    r->message = copy;
    r->more = copy;
    r->holds = HOLDS_TEXT;
}

uint32_t wefti_rpc_code_told(uint32_t code)
{
    return code <= WEFT_CODE_UNAUTHENTICATED ? code : WEFT_CODE_UNKNOWN;
}

/* --- results ---------------------------------------------------------------------------------------------------------------- */

static void give(weft_op_t *op, rpc_in_t *in)
{
    rpc_call_t *c = rpc_call(op);
    weft_reply_t *r = c->reply;
    r->values = in->values;
    r->n = in->codec->n;
    r->more = in;
    r->holds = HOLDS_VALUES;
    wefti_rpc_call_end(op, WEFT_OK, NULL);
}

static void fetched(void *user, weft_status_t status)
{
    weft_op_t *op = (weft_op_t *)user;
    rpc_call_t *c = rpc_call(op);
    rpc_in_t *in = c->in;
    c->in = NULL;
    c->state = CALL_NEW;
    if (!status) {
        give(op, in);
        return;
    }
    wefti_rpc_in_free(in);
    wefti_rpc_call_end(op, status, status == WEFT_ERR_PROTOCOL ? "the server's results are not what the signature says" : NULL);
}

/* Can results that nobody wants be decoded? Without memory to try, yes. */
static bool sound(const weft_am_t *am, const rpc_where_t *where)
{
    weft_value_t values[WEFT_SIG_PARAMS];
    wefti_decoded_t d;
    d.more = NULL;
    if (am->len && !am->data)
        return true;
    weft_status_t st = wefti_rpc_values_here(am, where, values, &d);
    if (!st)
        wefti_decoded_free(&d);
    return !st || st == WEFT_ERR_NOMEM;
}

/* The call was answered with results. They are checked before anything else happens; those in a payload that is still at the
 * server when it is here. False: they break the rules. */
static bool succeed(weft_op_t *op, weft_am_t *am, const rpc_where_t *where)
{
    rpc_call_t *c = rpc_call(op);
    weft_status_t st = WEFT_OK;
    rpc_in_t *in = NULL;
    if (c->reply && where->codec->n)
        in = wefti_rpc_in_new(c->method->client->rs, am, where, NULL, &st);
    else if (!sound(am, where))
        st = WEFT_ERR_PROTOCOL;
    if (__builtin_expect(st == WEFT_ERR_PROTOCOL, 0))
        return false;
    wefti_rpc_unsend(op);
    c->ran = WEFT_RAN;
    if (in && in->missing) {
        weft_call_opts_t o = WEFT_CALL_OPTS_INIT;
        c->state = CALL_FETCHING;
        c->in = in;
        if (c->into)
            st = wefti_opts_read(c->opts, &o, sizeof o, "weft_call_opts_t");
        if (!st)
            st = wefti_rpc_in_fetch(in, o.into, o.into_cap, o.into_kind, c->method->client->stall_ns, fetched, op);
        if (!st)
            return true;
        c->state = CALL_NEW;
        c->in = NULL;
        wefti_rpc_in_free(in);
        in = NULL;
    }
    if (in)
        give(op, in);
    else
        wefti_rpc_call_end(op, st, NULL);
    return true;
}

/* The same for results that fit the reply itself. False: they do not, or are not such values. */
static inline bool succeed_quickly(weft_op_t *op, const weft_am_t *am, const rpc_where_t *where)
{
    weft_reply_t *r = rpc_call(op)->reply;
    const wefti_codec_t *codec = where->codec;
    const uint8_t *bytes = (const uint8_t *)am->header + where->at;
    size_t len = am->header_len - where->at;
    if (__builtin_expect(!r || codec->n > sizeof r->small / sizeof r->small[0] || am->len || len > sizeof r->bytes, 0))
        return false;
    if (!codec->fixed) /* what is viewed stays with the reply */
        bytes = (const uint8_t *)memcpy(r->bytes, bytes, len);
    if (!wefti_decode_small(codec, bytes, len, r->small))
        return false;
    r->values = r->small;
    r->n = codec->n;
    wefti_rpc_call_ok(op);
    return true;
}

/* --- failures --------------------------------------------------------------------------------------------------------------- */

static weft_status_t status_of(weft_code_t code)
{
    return code == WEFT_CODE_DEADLINE_EXCEEDED ? WEFT_ERR_TIMEOUT
           : code == WEFT_CODE_CANCELLED       ? WEFT_ERR_CANCELLED
                                               : WEFT_ERR_CALL;
}

/* Is there another server that may take it, or may one come? */
static bool elsewhere(const weft_client_t *client, const rpc_server_t *s, weft_code_t code)
{
    if (code == WEFT_CODE_UNAVAILABLE && wefti_rpc_reach_by_name(client))
        return true;
    const rpc_server_t *other = wefti_rpc_pick((weft_client_t *)(uintptr_t)client, s);
    return other && other != s;
}

static void fail(weft_op_t *op, const rpc_failure_t *f, unsigned flags, const char *message, size_t len)
{
    rpc_call_t *c = rpc_call(op);
    rpc_server_t *s = c->server;
    weft_client_t *client = c->method->client;
    wefti_rpc_unsend(op);
    c->ran = flags & RPC_F_MAYBE        ? WEFT_MAY_HAVE_RUN
             : !(flags & RPC_F_NOT_RUN) ? WEFT_RAN
             : c->left_open             ? WEFT_MAY_HAVE_RUN
                                        : WEFT_NOT_RUN;
    if (flags & RPC_F_UNBOUND && c->tries < RPC_REBINDS && !(c->stream && wefti_stream_used(c->stream))) {
        rpc_binding_t *b = wefti_rpc_binding(s, c->method);
        if (b && b->state == BINDING_BOUND)
            b->state = BINDING_NONE;
        wefti_rpc_call_again(op, WEFT_ERR_CALL, NULL); /* when the payload, which the server did not take, is free again */
        return;
    }
    if (flags & RPC_F_NOT_RUN && (f->code == WEFT_CODE_UNAVAILABLE || f->code == WEFT_CODE_RESOURCE_EXHAUSTED)) {
        if (f->code == WEFT_CODE_UNAVAILABLE)
            wefti_rpc_reach_turned_away(s);
        if (c->tries < client->tries && elsewhere(client, s, (weft_code_t)f->code)) {
            wefti_rpc_call_again(op, WEFT_ERR_CALL, s);
            return;
        }
    }
    if (c->reply) {
        wefti_rpc_reply_fail(c->reply, (weft_code_t)f->code, (weft_ran_t)c->ran, message, len);
        c->reply->category = f->category;
        c->reply->value = f->value;
        c->reply->tries = c->tries;
    }
    wefti_rpc_finish(op, status_of((weft_code_t)f->code));
}

/* --- arrival ---------------------------------------------------------------------------------------------------------------- */

/* Flags of a failure that may be together: it did not run, or may have run, not both; and what is not there cannot have run. */
static bool flags_agree(unsigned flags)
{
    bool not_run = flags & RPC_F_NOT_RUN;
    return !(flags & ~(RPC_F_FAILED | RPC_F_NOT_RUN | RPC_F_UNBOUND | RPC_F_MAYBE)) && !(not_run && flags & RPC_F_MAYBE) &&
           (not_run || !(flags & RPC_F_UNBOUND));
}

/* False: it breaks the rules. */
static bool read_failure(const weft_am_t *am, weft_op_t *op, unsigned flags)
{
    const size_t at = sizeof(rpc_head_t) + sizeof(rpc_ext_t), len = am->header_len - at;
    const uint8_t *h = (const uint8_t *)am->header + at;
    rpc_failure_t f;
    if (!flags_agree(flags) || am->len || len < sizeof f || len > sizeof f + RPC_MESSAGE_MAX)
        return false;
    memcpy(&f, h, sizeof f);
    if (!f.code)
        return false;
    f.code = wefti_rpc_code_told(f.code);
    fail(op, &f, flags, (const char *)h + sizeof f, len - sizeof f);
    return true;
}

static bool reply_ext(weft_am_t *am, weft_op_t *op)
{
    rpc_ext_t ext;
    size_t at = sizeof(rpc_head_t) + sizeof ext;
    if (am->header_len < at)
        return false;
    memcpy(&ext, (const uint8_t *)am->header + sizeof(rpc_head_t), sizeof ext);
    if (ext.zero || (ext.bytes_len && !(ext.flags & RPC_F_BYTES)))
        return false;
    if (ext.flags & RPC_F_FAILED)
        return read_failure(am, op, ext.flags);
    rpc_where_t where = {rpc_call(op)->method->results, at, &ext};
    return !(ext.flags & ~RPC_F_BYTES) && succeed(op, am, &where);
}

/* A message to a call that nobody waits for: it was cancelled, or belongs to a connection before this one. */
static bool to_nobody(weft_ep_t *ep, const rpc_head_t *head, unsigned kind)
{
    if (kind < RPC_REPLY || kind > RPC_CREDIT || kind == RPC_CANCEL)
        return false;
    if (kind == RPC_REPLY_EXT && head->check)
        wefti_rpc_unbound(ep, head);
    return true;
}

static inline bool to_call(weft_am_t *am, weft_op_t *op, const rpc_head_t *head, unsigned kind)
{
    rpc_call_t *c = rpc_call(op);
    if (__builtin_expect(kind == RPC_REPLY, 1)) {
        rpc_where_t where = {c->method->results, sizeof *head, NULL};
        return succeed_quickly(op, am, &where) || succeed(op, am, &where);
    }
    if (kind == RPC_REPLY_EXT)
        return reply_ext(am, op);
    if ((kind != RPC_ITEM && kind != RPC_END && kind != RPC_CREDIT) || !c->stream)
        return false;
    wefti_stream_record(c->stream, kind, am, head);
    return true;
}

void wefti_rpc_to_client(weft_am_t *am, void *user)
{
    weft_ep_t *ep = am->ep;
    rpc_head_t head;
    bool ok = am->header_len >= sizeof head;
    (void)user;
    if (__builtin_expect(ok, 1)) {
        memcpy(&head, am->header, sizeof head);
        unsigned kind = rpc_kind(&head);
        if (kind == RPC_BOUND) {
            wefti_rpc_bound(ep, am, &head);
            return;
        }
        weft_op_t *op = (weft_op_t *)wefti_slots_get(&rpc_ep(ep)->calls, head.call);
        ok = __builtin_expect(op != NULL, 1) ? to_call(am, op, &head, kind) : to_nobody(ep, &head, kind);
    }
    if (__builtin_expect(!ok, 0))
        wefti_ep_protocol_error(ep, "a reply to a call of an unknown kind, length or flags");
}
