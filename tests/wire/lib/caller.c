/* tests/wire/lib/caller.c - see caller.h. */
#include "caller.h"

#include <stdatomic.h>
#include <string.h>
#include <weft/types.h>

#include "must.h"

static void copy_text(char *to, const uint8_t *from, size_t n)
{
    n = n < CALLER_MESSAGE - 1 ? n : CALLER_MESSAGE - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

static void came(weft_am_t *am, void *user)
{
    caller_t *c = (caller_t *)user;
    unsigned n = atomic_load(&c->n);
    const uint8_t *at = (const uint8_t *)am->header;
    size_t left = am->header_len;
    if (n >= CALLER_ANSWERS || left < sizeof(rpc_head_t))
        abort();
    caller_answer_t *a = &c->answers[n];
    memset(a, 0, sizeof *a);
    memcpy(&a->head, at, sizeof a->head);
    a->kind = rpc_kind(&a->head);
    a->len = am->len;
    at += sizeof a->head;
    left -= sizeof a->head;
    if (a->kind == RPC_BOUND) {
        memcpy(&a->bound, at, sizeof a->bound);
        a->code = a->bound.code;
        copy_text(a->text, at + sizeof a->bound, left - sizeof a->bound);
    } else {
        if (a->kind == RPC_REPLY_EXT) {
            rpc_ext_t ext;
            memcpy(&ext, at, sizeof ext);
            a->flags = ext.flags;
            at += sizeof ext;
            left -= sizeof ext;
        }
        if (a->flags & RPC_F_FAILED) {
            rpc_failure_t f;
            memcpy(&f, at, sizeof f);
            a->code = f.code;
            copy_text(a->text, at + sizeof f, left - sizeof f);
        } else if (left >= sizeof a->first) {
            memcpy(&a->first, at, sizeof a->first);
        }
    }
    if (atomic_load(&c->hold)) {
        c->held[atomic_load(&c->n_held)] = weft_am_keep(am);
        atomic_fetch_add(&c->n_held, 1);
    }
    atomic_store(&c->n, n + 1);
}

void caller_open(caller_t *c, pair_t *pair)
{
    weft_op_t op = WEFT_OP_INIT;
    memset(c, 0, sizeof *c);
    c->pair = pair;
    c->ep = pair->ep[1];
    must(weft_am_handle(pair->rt[1], RPC_AM_TO_CLIENT, NULL, NULL, &op), "weft_am_handle");
    must(pair_wait(pair, &op, 20), "the client's side goes");
    must(weft_am_handle(pair->rt[1], RPC_AM_TO_CLIENT, came, c, &op), "weft_am_handle");
    must(pair_wait(pair, &op, 20), "the caller is there");
}

void caller_let_go(caller_t *c)
{
    atomic_store(&c->hold, 0);
    for (unsigned i = 0; i < atomic_load(&c->n_held); i++)
        weft_am_release(c->held[i]);
    atomic_store(&c->n_held, 0);
}

void caller_send(caller_t *c, const void *header, size_t len, const void *payload, size_t payload_len)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_am_send(c->ep, RPC_AM_TO_SERVER, header, len, payload, payload_len, &op), "weft_am_send");
    weft_status_t st = pair_wait(c->pair, &op, 20);
    if (st != WEFT_ERR_REJECTED && st != WEFT_ERR_PROTOCOL && st != WEFT_ERR_PEER)
        must(st, "a call is sent");
}

caller_answer_t caller_bind(caller_t *c, const char *service, const char *signature)
{
    _Alignas(8) uint8_t header[1024];
    weft_sig_t *sig = NULL;
    unsigned n = atomic_load(&c->n);
    bool whole = strchr(signature, '(');
    if (whole)
        must(weft_sig_parse(signature, &sig), "weft_sig_parse");
    const char *text = whole ? weft_sig_text(sig) : signature;
    rpc_head_t head = rpc_head(RPC_BIND, 77);
    rpc_bind_t bind = {
        .hash = whole ? weft_sig_hash(sig) : 0, .service_len = (uint8_t)strlen(service), .text_len = (uint16_t)strlen(text)};
    memcpy(header, &head, sizeof head);
    memcpy(header + sizeof head, &bind, sizeof bind);
    memcpy(header + sizeof head + sizeof bind, service, bind.service_len);
    memcpy(header + sizeof head + sizeof bind + bind.service_len, text, bind.text_len);
    caller_send(c, header, sizeof head + sizeof bind + bind.service_len + bind.text_len, NULL, 0);
    weft_sig_free(sig);
    return *caller_answer(c, n);
}

void caller_call(caller_t *c, const caller_answer_t *bound, uint64_t call, uint64_t left_ns, const rpc_once_t *once,
                 const void *args, size_t n)
{
    _Alignas(8) uint8_t header[1024];
    size_t at = sizeof(rpc_head_t);
    bool ext = left_ns || once;
    rpc_head_t head = rpc_head(ext ? RPC_CALL_EXT : RPC_CALL, call);
    head.slot = bound->head.slot;
    head.check = bound->head.check;
    memcpy(header, &head, sizeof head);
    if (ext) {
        rpc_ext_t e = {.flags = (uint16_t)((left_ns ? RPC_F_DEADLINE : 0) | (once ? RPC_F_ONCE : 0))};
        memcpy(header + at, &e, sizeof e);
        at += sizeof e;
        if (left_ns)
            memcpy(header + at, &left_ns, sizeof left_ns);
        at += left_ns ? sizeof left_ns : 0;
        if (once)
            memcpy(header + at, once, sizeof *once);
        at += once ? sizeof *once : 0;
    }
    if (n)
        memcpy(header + at, args, n);
    caller_send(c, header, at + n, NULL, 0);
}

void caller_cancel(caller_t *c, uint64_t call)
{
    rpc_head_t head = rpc_head(RPC_CANCEL, call);
    caller_send(c, &head, sizeof head, NULL, 0);
}

const caller_answer_t *caller_answer(caller_t *c, unsigned n)
{
    double end = now() + 20;
    while (atomic_load(&c->n) <= n) {
        pair_drive(c->pair);
        if (now() > end) {
            fprintf(stderr, "answer %u did not come within 20 s\n", n);
            exit(1);
        }
    }
    return &c->answers[n];
}
