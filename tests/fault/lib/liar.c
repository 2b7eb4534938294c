/* tests/fault/lib/liar.c - see liar.h. */
#include "liar.h"

#include <stdarg.h>
#include <string.h>

#include "must.h"
#include "ports.h"

enum { VICTIM, HOSTILE, WITNESS, PARTIES };
const char *const liar_sigs[LIAR_FUNCTIONS] = {"add(a: i32, b: i32) -> i32",         "keep(a: i32) -> i32",
                                               "take(v: [u64], s: string) -> [u64]", "count(n: u64) -> stream u64",
                                               "total(v: stream u64) -> u64",        "tell(a: i32) -> void oneway"};
liar_t liar;

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static void ensure(bool fact, const char *what)
{
    if (!fact)
        die("it does not hold: %s", what);
}

static weft_runtime_t *rt[PARTIES];
static weft_listener_t *listener;
static weft_service_t *service;
static weft_ep_t *witness_ep, *victim_ep, *hostile_ep;
static weft_client_t *witness;
static weft_method_t *witness_add;
static weft_request_t *kept[64];
static unsigned n_kept;

rpc_head_t *liar_head(void)
{
    return (rpc_head_t *)(void *)liar.msg;
}

void liar_drive(void)
{
    for (unsigned i = 0; i < PARTIES; i++)
        weft_runtime_progress(rt[i]);
}

weft_status_t liar_finish(weft_op_t *op)
{
    for (double end = now() + 20; !weft_op_done(op);) {
        liar_drive();
        if (now() > end)
            die("an operation did not end");
    }
    return op->status;
}

/* --- the victim ---------------------------------------------------------------------------------------------------- */

static void add(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_i32((int32_t)((uint32_t)request->args[0].i32 + (uint32_t)request->args[1].i32));
    weft_request_reply(request, &sum, 1);
}

static void let_go(void)
{
    for (unsigned i = 0; i < n_kept; i++)
        weft_request_release(kept[i]);
    n_kept = 0;
}

static void keep(weft_request_t *request, void *user)
{
    (void)user;
    if (n_kept < 64)
        kept[n_kept++] = weft_request_keep(request);
}

static void take(weft_request_t *request, void *user)
{
    (void)user;
    volatile uint64_t sum = 0;
    for (size_t i = 0; i < request->args[0].view.n; i++)
        sum += ((const uint64_t *)request->args[0].view.data)[i];
    for (size_t i = 0; i < request->args[1].view.n; i++)
        sum += ((const uint8_t *)request->args[1].view.data)[i];
    weft_request_reply(request, request->args, 1);
}

static void tell(weft_request_t *request, void *user)
{
    (void)request, (void)user;
}

static weft_on_failure_t on_failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)user;
    if (ep == victim_ep) {
        liar.failed = true;
        liar.failed_why = why;
    }
    return WEFT_GIVE_UP;
}

/* --- the hostile one ----------------------------------------------------------------------------------------------- */

static void heard_as_client(weft_am_t *am, void *user)
{
    rpc_head_t head;
    rpc_bound_t bound;
    (void)user;
    ensure(am->header_len >= sizeof head, "am->header_len >= sizeof head");
    memcpy(&head, am->header, sizeof head);
    if (rpc_kind(&head) != RPC_BOUND || head.call < 1000 || head.call >= 1000 + LIAR_FUNCTIONS)
        return;
    memcpy(&bound, (const uint8_t *)am->header + sizeof head, sizeof bound);
    ensure(bound.code == 0, "bound.code is 0");
    liar.bounds[head.call - 1000] = head;
    liar.epochs[head.call - 1000] = bound.epoch;
    liar.n_bounds++;
}

static void heard_as_server(weft_am_t *am, void *user)
{
    rpc_head_t head;
    (void)user;
    ensure(am->header_len >= sizeof head, "am->header_len >= sizeof head");
    memcpy(&head, am->header, sizeof head);
    if (rpc_kind(&head) == RPC_BIND) {
        liar.asked = head;
        liar.n_asked++;
    } else if (rpc_kind(&head) == RPC_CALL || rpc_kind(&head) == RPC_CALL_EXT) {
        liar.called = head;
        liar.n_called++;
    }
}

void liar_begin(unsigned kind, uint64_t call, unsigned function)
{
    rpc_head_t head = rpc_head(kind, call);
    if (function < LIAR_FUNCTIONS) {
        head.slot = liar.bounds[function].slot;
        head.check = liar.bounds[function].check;
    }
    memcpy(liar.msg, &head, sizeof head);
    liar.msg_len = sizeof head;
    liar.payload_len = 0;
}

void liar_put(const void *p, size_t n)
{
    memcpy(liar.msg + liar.msg_len, p, n);
    liar.msg_len += n;
}

void liar_ext(unsigned flags, unsigned zero, uint32_t bytes_len)
{
    rpc_ext_t ext = {(uint16_t)flags, (uint16_t)zero, bytes_len};
    liar_put(&ext, sizeof ext);
}

void liar_u64(uint64_t v)
{
    liar_put(&v, sizeof v);
}

void liar_failure(uint32_t code, size_t text)
{
    rpc_failure_t f = {.code = code};
    liar_put(&f, sizeof f);
    memset(liar.msg + liar.msg_len, 'x', text);
    liar.msg_len += text;
}

void liar_say(uint32_t id)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st =
        weft_am_send(hostile_ep, id, liar.msg, liar.msg_len, liar.payload_len ? liar.payload : NULL, liar.payload_len, &op);
    if (!st)
        st = liar_finish(&op); /* it may be lost by now: that is an answer */
    (void)st;
}

void liar_bind_all(void)
{
    liar.n_bounds = 0;
    for (unsigned f = 0; f < LIAR_FUNCTIONS; f++) {
        weft_sig_t *sig;
        must(weft_sig_parse(liar_sigs[f], &sig), "weft_sig_parse");
        const char *text = weft_sig_text(sig);
        rpc_bind_t b = {.hash = weft_sig_hash(sig), .service_len = 4, .text_len = (uint16_t)strlen(text)};
        liar_begin(RPC_BIND, 1000 + f, LIAR_FUNCTIONS);
        liar_put(&b, sizeof b);
        liar_put("calc", 4);
        liar_put(text, strlen(text));
        liar_say(RPC_AM_TO_SERVER);
        weft_sig_free(sig);
    }
    for (double end = now() + 20; liar.n_bounds < LIAR_FUNCTIONS && now() < end;)
        liar_drive();
    ensure(liar.n_bounds == LIAR_FUNCTIONS, "liar.n_bounds is LIAR_FUNCTIONS");
}

void liar_join(void)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    must(weft_listener_accept(listener, &accept), "weft_listener_accept");
    must(weft_ep_open(rt[HOSTILE], weft_listener_uri(listener), NULL, &connect, &hostile_ep), "weft_ep_open");
    must(liar_finish(&connect), "liar_finish");
    must(liar_finish(&accept), "liar_finish");
    victim_ep = (weft_ep_t *)accept.buf;
    liar.failed = false;
    liar.n_asked = liar.n_called = 0;
    must(weft_client_on(victim_ep, NULL, &liar.client), "weft_client_on");
}

void liar_part(void)
{
    weft_op_t op = WEFT_OP_INIT, ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    let_go();
    must(weft_client_close(liar.client, &op), "weft_client_close");
    must(liar_finish(&op), "liar_finish");
    weft_ep_t *mine = victim_ep;
    victim_ep = NULL;
    must(weft_ep_abort(mine, &ops[0]), "weft_ep_abort");
    liar_finish(&ops[0]);
    must(weft_ep_abort(hostile_ep, &ops[1]), "weft_ep_abort");
    liar_finish(&ops[1]);
}

/* The third party is served, whatever was said. */
void liar_judge(const char *what, liar_verdict_t verdict)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t args[2] = {weft_i32(40), weft_i32(2)};
    double end = now() + (verdict == FAILS ? 20 : 0.003);
    while (!liar.failed && now() < end)
        liar_drive();
    if (verdict == FAILS && !liar.failed)
        die("%s: the endpoint stands", what);
    if (verdict == STANDS && liar.failed)
        die("%s: the endpoint failed with %s", what, weft_status_name(liar.failed_why));
    if (liar.failed && liar.failed_why != WEFT_ERR_PROTOCOL)
        die("%s: the endpoint failed with %s", what, weft_status_name(liar.failed_why));
    must(weft_call(witness_add, args, 2, &reply, &op), "weft_call");
    must(liar_finish(&op), "liar_finish");
    ensure(reply.values[0].i32 == 42, "reply.values[0].i32 is 42");
}

void liar_open(void)
{
    static const weft_function_fn fns[LIAR_FUNCTIONS] = {add, keep, take, keep, keep, tell};
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    static const weft_ep_hooks_t hooks = {on_failed, NULL, NULL};
    weft_op_t op = WEFT_OP_INIT;
    weft_log_set_level(WEFT_LOG_NONE);
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = "shm";
    for (unsigned i = 0; i < PARTIES; i++)
        must(weft_runtime_open(&o, &rt[i]), "weft_runtime_open");
    lo.hooks = &hooks;
    must(weft_listen(rt[VICTIM], ports_tcp(), &lo, &listener), "weft_listen");
    must(weft_service_open(rt[VICTIM], "calc", NULL, &service), "weft_service_open");
    for (unsigned f = 0; f < LIAR_FUNCTIONS; f++)
        must(weft_service_add(service, liar_sigs[f], fns[f], NULL, NULL), "weft_service_add");
    weft_op_t accept = WEFT_OP_INIT;
    must(weft_listener_accept(listener, &accept), "weft_listener_accept");
    must(weft_ep_open(rt[WITNESS], weft_listener_uri(listener), NULL, &op, &witness_ep), "weft_ep_open");
    must(liar_finish(&op), "liar_finish");
    must(liar_finish(&accept), "liar_finish");
    must(weft_client_on(witness_ep, NULL, &witness), "weft_client_on");
    must(weft_client_method(witness, liar_sigs[LIAR_ADD], &witness_add), "weft_client_method");
    static const struct {
        uint32_t id;
        weft_am_fn fn;
    } ears[2] = {{RPC_AM_TO_CLIENT, heard_as_client}, {RPC_AM_TO_SERVER, heard_as_server}};
    for (unsigned i = 0; i < 2; i++) {
        must(weft_am_handle(rt[HOSTILE], ears[i].id, NULL, NULL, &op), "weft_am_handle");
        must(liar_finish(&op), "liar_finish");
        must(weft_am_handle(rt[HOSTILE], ears[i].id, ears[i].fn, NULL, &op), "weft_am_handle");
        must(liar_finish(&op), "liar_finish");
    }
}

void liar_close(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    must(weft_service_get_stats(service, &s), "weft_service_get_stats");
    ensure(s.under_way == 0, "s.under_way is 0"); /* nothing is left of anybody */
    must(weft_client_close(witness, &op), "weft_client_close");
    must(liar_finish(&op), "liar_finish");
    must(weft_service_close(service, &op), "weft_service_close");
    must(liar_finish(&op), "liar_finish");
    for (unsigned i = PARTIES; i-- > 0;)
        must(weft_runtime_close(rt[i]), "weft_runtime_close");
}
