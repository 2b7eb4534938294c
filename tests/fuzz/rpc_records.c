/* tests/fuzz/rpc_records.c - a peer that has passed the hello says anything, as calls and as answers to calls.
 *
 * Two runtimes on a simulated network. One has a service, with functions that answer, keep, read vectors, strings and
 * tensors, send and receive streams, and calls of its own under way to the other. What the other says is the input, a
 * message after the other, each
 *
 *     a byte   bits 0-3 kind; 4 an extension follows the head; 5-6 payload: none, 8, 300, 20000 bytes; 7 to the client
 *     a byte   which function (to the service), or which of the calls it was asked for (to the client); 255 none of them
 *     a byte   the number of the call (to the service); of the item, or what is left of its check
 *     with an extension: two bytes flags, one byte its length field (255: 32 bits of ones)
 *     a byte n, and n bytes that follow
 *
 * so that what is made of any input gets past the head. Whatever is said, the endpoint is up or failed with
 * WEFT_ERR_PROTOCOL, every call ends, nothing is left at the service, and both can be closed. */
#include <stdlib.h>
#include <string.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/alloc.h"
#include "simnet/simnet.h"
#include "open.h"
#include "rpc/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROUNDS = 3000, PAYLOAD = 20000, KEPT = 32, MESSAGES = 60 };
enum { ADD, KEEP, TAKE, IMAGE, COUNT, TOTAL, TELL, FUNCTIONS };
static const char *const sigs[FUNCTIONS] = {
    "add(a: i32, b: i32) -> i32",
    "keep(a: i32) -> i32",
    "take(v: [u64], s: string) -> ([u64], string)",
    "image(t: tensor, ts: [tensor]) -> ([tensor], tensor)",
    "count(n: u64) -> stream string",
    "total(v: stream [u8]) -> u64",
    "tell(a: i32) -> void oneway",
};
#define CALLS (FUNCTIONS + 1) /* and one whose signature is not known */

static void must(int fact)
{
    if (!fact)
        abort();
}

/* This machine has so much memory. */
static int too_much(size_t n)
{
    return n > 64u << 20;
}

static weft_runtime_t *open_on(wefti_sim_t *world, const char *name)
{
    static const char text[] = "am_window = 64k\nam_messages = 64\nam_hold = 1s\n";
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    wefti_config_t config;
    wefti_fabric_t *fabric;
    weft_runtime_t *rt;
    opts.progress = WEFT_PROGRESS_CALLER;
    must(!wefti_sim_host(world, name, &fabric));
    must(!wefti_config_parse("fuzz", text, sizeof text - 1, &config));
    must(!wefti_open_on_fabric(&opts, &config, fabric, &rt));
    return rt;
}

#define QUIET_NS (100 * WEFT_MILLISECOND)

static void run(wefti_sim_t *world, weft_runtime_t **rt, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        unsigned n = weft_runtime_progress(rt[0]) + weft_runtime_progress(rt[1]);
        if (!n && wefti_sim_next(world) > wefti_sim_now(world) + QUIET_NS) /* only heartbeats are left, or nothing */
            return;
        if (!n)
            wefti_sim_step(world);
    }
}

/* --- the service --------------------------------------------------------------------------------------------------- */

static weft_request_t *kept[KEPT];
static weft_op_t stream_ops[KEPT];
static weft_item_t items[KEPT];
static unsigned n_kept;

static void read_value(const weft_value_t *v);

static void read_bytes(const void *at, uint64_t n)
{
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; at && i < n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)at)[i]);
}

/* What a value claims to view can be read. */
static void read_value(const weft_value_t *v)
{
    if (v->type == WEFT_T_STRING)
        read_bytes(v->view.data, v->view.n);
    else if (v->type == WEFT_T_TENSOR || v->type == (WEFT_T_VECTOR | WEFT_T_TENSOR))
        for (uint64_t i = 0; i < v->tensors.n; i++)
            read_bytes(v->tensors.at[i].shape, (uint64_t)v->tensors.at[i].ndim * sizeof(int64_t));
    else if (v->type & WEFT_T_VECTOR)
        read_bytes(v->view.data, v->view.n * weft_type_size(v->type & ~(uint32_t)WEFT_T_VECTOR));
}

static void answers(weft_request_t *request, void *user)
{
    unsigned f = (unsigned)(uintptr_t)user;
    weft_value_t sum = weft_i32(f == ADD ? request->args[0].i32 : 0), results[2];
    for (size_t i = 0; i < request->n; i++)
        read_value(&request->args[i]);
    if (f == ADD) {
        weft_request_reply(request, &sum, 1);
    } else if (f == TAKE) {
        weft_request_reply(request, request->args, 2);
    } else if (f == IMAGE) {
        results[0] = request->args[1];
        results[1] = request->args[0];
        weft_request_reply(request, results, 2);
    }
}

static void received(weft_op_t *op, void *user)
{
    unsigned i = (unsigned)(uintptr_t)user;
    if (op->status || !op->len)
        return;
    read_value(&items[i].value);
    weft_item_release(&items[i]);
    if (kept[i] && weft_stream_recv(kept[i]->stream, &items[i], &stream_ops[i]))
        return;
}

static void keeps(weft_request_t *request, void *user)
{
    unsigned f = (unsigned)(uintptr_t)user;
    if (n_kept == KEPT)
        return;
    weft_request_t *r = weft_request_keep(request);
    if (!r)
        return;
    unsigned i = n_kept++;
    kept[i] = r;
    memset(&stream_ops[i], 0, sizeof stream_ops[i]);
    stream_ops[i].fn = received;
    stream_ops[i].user = (void *)(uintptr_t)i;
    for (unsigned k = 0; f == COUNT && k < 70; k++) {
        weft_value_t v = weft_text("an item", 7);
        if (weft_stream_send(r->stream, &v, NULL))
            break;
    }
    if (f == TOTAL && i % 2 == 0 && weft_stream_recv(r->stream, &items[i], &stream_ops[i]))
        return;
}

static void let_go(void)
{
    for (unsigned i = 0; i < n_kept; i++) {
        weft_request_t *r = kept[i];
        kept[i] = NULL;
        weft_request_release(r);
    }
}

/* --- the other ----------------------------------------------------------------------------------------------------- */

static rpc_head_t bounds[FUNCTIONS];
static uint64_t asked[CALLS]; /* calls that came, by number */
static unsigned n_asked;
static uint64_t open_question; /* the one that is for the input to answer */
static weft_ep_t *other;

/* A message with a payload is borrowed from until it is over, so that a large one waits here to be fetched. */
typedef struct told {
    weft_op_t op;
    _Alignas(8) uint8_t header[512];
    uint8_t payload[PAYLOAD];
} told_t;
static told_t tolds[MESSAGES];
static unsigned n_tolds;

static void tell(uint32_t id, const void *header, size_t n, const void *payload, size_t payload_len)
{
    weft_status_t st;
    if (payload_len && n_tolds < MESSAGES) {
        told_t *t = &tolds[n_tolds];
        memset(&t->op, 0, sizeof t->op);
        memcpy(t->header, header, n);
        memcpy(t->payload, payload, payload_len);
        st = weft_am_send(other, id, t->header, n, t->payload, payload_len, &t->op);
        n_tolds += !st;
    } else {
        st = weft_am_send(other, id, header, n, NULL, 0, NULL);
    }
    if (st)
        return; /* too much of it, or the endpoint is gone */
}

static void hears_answers(weft_am_t *am, void *user)
{
    rpc_head_t head;
    (void)user;
    must(am->header_len >= sizeof head);
    memcpy(&head, am->header, sizeof head);
    if (rpc_kind(&head) == RPC_BOUND && head.call >= 1000 && head.call < 1000 + FUNCTIONS)
        bounds[head.call - 1000] = head;
}

static void hears_calls(weft_am_t *am, void *user)
{
    rpc_head_t head;
    (void)user;
    must(am->header_len >= sizeof head);
    memcpy(&head, am->header, sizeof head);
    unsigned kind = rpc_kind(&head);
    if (kind == RPC_CALL || kind == RPC_CALL_EXT) {
        if (n_asked < CALLS)
            asked[n_asked++] = head.call;
    } else if (kind == RPC_BIND) {
        struct {
            rpc_head_t head;
            rpc_bound_t bound;
        } answer = {rpc_head(RPC_BOUND, head.call), {.epoch = 1}};
        rpc_bind_t bind;
        memcpy(&bind, (const uint8_t *)am->header + sizeof head, sizeof bind);
        if (!bind.hash)
            open_question = head.call;
        else
            tell(RPC_AM_TO_CLIENT, &answer, sizeof answer, NULL, 0);
    }
}

static void bind_all(void)
{
    for (unsigned f = 0; f < FUNCTIONS; f++) {
        uint8_t header[1024];
        weft_sig_t *sig;
        must(!weft_sig_parse(sigs[f], &sig));
        const char *text = weft_sig_text(sig);
        rpc_head_t head = rpc_head(RPC_BIND, 1000 + f);
        rpc_bind_t b = {.hash = weft_sig_hash(sig), .text_len = (uint16_t)strlen(text)};
        memcpy(header, &head, sizeof head);
        memcpy(header + sizeof head, &b, sizeof b);
        memcpy(header + sizeof head + sizeof b, text, b.text_len);
        tell(RPC_AM_TO_SERVER, header, sizeof head + sizeof b + b.text_len, NULL, 0);
        weft_sig_free(sig);
    }
}

/* The next message of the input; false: there is none. */
static bool say(const uint8_t **at, const uint8_t *end)
{
    static uint8_t payload[PAYLOAD];
    static const size_t lens[4] = {0, 8, 300, PAYLOAD};
    _Alignas(8) uint8_t header[sizeof(rpc_head_t) + sizeof(rpc_ext_t) + 256];
    const uint8_t *p = *at;
    if (end - p < 4)
        return false;
    uint8_t what = *p++, which = *p++, number = *p++;
    bool to_client = what & 0x80;
    rpc_head_t head = rpc_head(what & 15u, to_client ? 0 : number);
    size_t n = sizeof head;
    if (to_client) {
        head.call = which < n_asked ? asked[which] : which == 254 ? open_question : 77;
        head.check = number;
    } else if (which < FUNCTIONS) {
        head.slot = bounds[which].slot;
        head.check = bounds[which].check;
    }
    if (!to_client && (what & 15u) >= RPC_CANCEL) {
        head.slot = 0;
        head.check = (what & 15u) == RPC_CANCEL ? 0 : number >> 4; /* of items: how many there were */
        head.call = number & 15u;
    }
    if (what & 0x10 && end - p >= 4) {
        rpc_ext_t ext = {.flags = (uint16_t)(p[0] | p[1] << 8), .bytes_len = p[2] == 255 ? UINT32_MAX : p[2] * 8u};
        memcpy(header + n, &ext, sizeof ext);
        n += sizeof ext;
        p += 3;
    }
    size_t tail = p < end ? *p++ : 0;
    tail = tail < (size_t)(end - p) ? tail : (size_t)(end - p);
    memcpy(header, &head, sizeof head);
    memcpy(header + n, p, tail);
    memset(payload, 0, sizeof payload);
    memcpy(payload, p, tail); /* where the bytes are in the payload it has them too */
    *at = p + tail;
    bool moved = what & 0x10 && header[sizeof head] & RPC_F_BYTES;
    tell(to_client ? RPC_AM_TO_CLIENT : RPC_AM_TO_SERVER, header, moved ? n : n + tail, payload, lens[what >> 5 & 3]);
    return true;
}

/* --- our calls ----------------------------------------------------------------------------------------------------- */

typedef struct out {
    weft_op_t op, recv;
    weft_reply_t reply;
    weft_stream_t *stream;
    weft_item_t item;
    weft_value_t args[2];
} out_t;
static out_t outs[CALLS];

static void item_came(weft_op_t *op, void *user)
{
    out_t *o = user;
    if (op->status || !op->len)
        return;
    read_value(&o->item.value);
    weft_item_release(&o->item);
    if (weft_stream_recv(o->stream, &o->item, &o->recv))
        return;
}

static void call_all(weft_client_t *client)
{
    static const uint64_t numbers[2] = {1, 2};
    static int64_t shape[1] = {2};
    static const weft_tensor_t tensor = {
        .data = (void *)(uintptr_t)numbers, .device_type = 1, .ndim = 1, .code = 1, .bits = 64, .lanes = 1, .shape = shape};
    memset(outs, 0, sizeof outs);
    for (unsigned f = 0; f < CALLS; f++) {
        weft_method_t *m;
        out_t *o = &outs[f];
        must(!weft_client_method(client, f < FUNCTIONS ? sigs[f] : "what", &m));
        o->recv.fn = item_came;
        o->recv.user = o;
        weft_status_t st;
        if (f == FUNCTIONS) {
            st = weft_method_check(m, &o->reply, &o->op);
        } else if (f == COUNT || f == TOTAL) {
            o->args[0] = weft_u64(9);
            st = weft_call_stream(m, o->args, f == COUNT, NULL, &o->reply, &o->op, &o->stream);
            if (!st && f == COUNT)
                must(!weft_stream_recv(o->stream, &o->item, &o->recv));
        } else {
            o->args[0] = f == TAKE ? weft_vector(WEFT_T_U64, numbers, 2) : f == IMAGE ? weft_tensor(&tensor) : weft_i32(1);
            o->args[1] = f == TAKE ? weft_text("text", 4) : f == IMAGE ? weft_tensors(&tensor, 1) : weft_i32(2);
            st = weft_call(m, o->args, f == KEEP || f == TELL ? 1 : 2, &o->reply, &o->op);
        }
        must(!st);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const weft_function_fn fns[FUNCTIONS] = {answers, keeps, answers, answers, keeps, keeps, answers};
    static const uint32_t ids[2] = {RPC_AM_TO_CLIENT, RPC_AM_TO_SERVER};
    static const weft_am_fn ears[2] = {hears_answers, hears_calls};
    wefti_sim_t *world;
    weft_runtime_t *rt[2];
    weft_listener_t *listener;
    weft_service_t *service;
    weft_client_t *client;
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT, close_client = WEFT_OP_INIT, close_service = WEFT_OP_INIT;
    const uint8_t *at = data, *end = data + size;
    weft_log_set_level(WEFT_LOG_NONE);
    n_kept = n_asked = n_tolds = 0;
    open_question = 0;
    must(!wefti_sim_new(7, &world));
    rt[0] = open_on(world, "a");
    rt[1] = open_on(world, "b");
    must(!weft_service_open(rt[0], "calc", NULL, &service));
    for (unsigned f = 0; f < FUNCTIONS; f++)
        must(!weft_service_add(service, sigs[f], fns[f], (void *)(uintptr_t)f, NULL));
    for (unsigned i = 0; i < 2; i++) {
        must(!weft_am_handle(rt[1], ids[i], NULL, NULL, NULL));
        must(!weft_am_handle(rt[1], ids[i], ears[i], NULL, NULL));
    }
    must(!weft_listen(rt[0], "tcp://a:0", NULL, &listener));
    must(!weft_listener_accept(listener, &accept));
    must(!weft_ep_open(rt[1], weft_listener_uri(listener), NULL, &connect, &other));
    run(world, rt, 300);
    must(weft_op_done(&accept) && !accept.status);
    must(!weft_client_on(accept.buf, NULL, &client));
    call_all(client);
    bind_all();
    run(world, rt, 300);
    must(n_asked == FUNCTIONS);

    wefti_alloc_fails = too_much;
    for (unsigned i = 0; i < MESSAGES && say(&at, end); i++)
        run(world, rt, 20);
    run(world, rt, ROUNDS);
    weft_ep_state_t state = weft_ep_get_state(accept.buf);
    must(state == WEFT_EP_UP || state == WEFT_EP_FAILED);
    let_go();
    run(world, rt, 300);
    for (unsigned i = 0; i < CALLS; i++) {
        weft_op_cancel(&outs[i].op);
        weft_stream_release(outs[i].stream);
    }
    run(world, rt, ROUNDS);
    for (unsigned i = 0; i < CALLS; i++) {
        must(weft_op_done(&outs[i].op));
        must(!outs[i].op.status == !outs[i].reply.code && outs[i].reply.message);
        for (size_t k = 0; !outs[i].op.status && k < outs[i].reply.n; k++)
            read_value(&outs[i].reply.values[k]);
        weft_reply_release(&outs[i].reply);
    }
    must(!weft_client_close(client, &close_client));
    must(!weft_service_close(service, &close_service));
    let_go();
    run(world, rt, ROUNDS);
    must(weft_op_done(&close_client));
    must(weft_op_done(&close_service));
    wefti_alloc_fails = NULL;
    must(!weft_runtime_close(rt[1]));
    must(!weft_runtime_close(rt[0]));
    wefti_sim_free(world);
    return 0;
}
