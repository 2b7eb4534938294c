/* 24 clients at once, on threads of their own, with calls of every kind mixed: small, large, kept, on threads, `once`,
 * idempotent, oneway, streams, cancelled, with deadlines that pass; clients come and go, functions are replaced, one server
 * of two is closed and opened again. Every call ends with a result that is right or a status that may be; at the end nothing
 * is left anywhere.
 *
 * For as long as TEST_SECONDS says, 4 if it says nothing.
 *
 * ctest: tls timeout=600 label=thread shards */
#define TEST_SECONDS 590
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/rng.h"
#include "ports.h"
#include "test.h"

enum { SERVERS = 2, CLIENTS = 24, FLIGHT = 8, BIG = 40000, ITEMS = 90 };
enum { ADD, AGAIN, LATER, THREAD, ECHO, TELL, COUNT, TOTAL, KINDS };
static const char *const sigs[KINDS] = {
    [ADD] = "add(a: u64, b: u64) -> u64",
    [AGAIN] = "again(a: u64, b: u64) -> u64 idempotent",
    [LATER] = "later(a: u64, b: u64) -> u64",
    [THREAD] = "thread(a: u64, b: u64) -> u64",
    [ECHO] = "echo(v: [u8], s: string) -> (v: [u8], s: string)",
    [TELL] = "tell(a: u64, b: u64) -> void oneway",
    [COUNT] = "count(n: u64) -> stream u64",
    [TOTAL] = "total(v: stream u64) -> u64",
};
static const char *const names[KINDS] = {"add", "again", "later", "thread", "echo", "tell", "count", "total"};

typedef struct server {
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_service_t *service;
} server_t;
static server_t servers[SERVERS];
static atomic_bool over;
static _Atomic unsigned long ended[3]; /* well, by their own wish, otherwise */
static _Atomic unsigned long told;
static uint8_t bytes[BIG];

/* --- functions ----------------------------------------------------------------------------------------------------- */

static void adds(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_u64(request->args[0].u64 + request->args[1].u64);
    weft_request_reply(request, &sum, 1);
}

typedef struct waiting {
    weft_op_t op;
    weft_request_t *request;
    weft_item_t item;
    uint64_t at, sum;
} waiting_t;

static void answer_now(weft_op_t *op, void *user)
{
    waiting_t *w = (waiting_t *)user;
    if (!op->status)
        adds(w->request, NULL);
    weft_request_release(w->request);
    free(w);
}

static waiting_t *keep(weft_request_t *request, weft_op_fn fn)
{
    waiting_t *w = (waiting_t *)calloc(1, sizeof *w);
    w->request = weft_request_keep(request);
    CHECK(w->request);
    w->op.fn = fn;
    w->op.user = w;
    return w;
}

static void later(weft_request_t *request, void *user)
{
    server_t *s = (server_t *)user;
    waiting_t *w = keep(request, answer_now);
    CHECK_OK(weft_timer_start(s->rt, (1 + w->request->args[0].u64 % 20) * 100 * WEFT_MICROSECOND, &w->op));
}

static void echoes(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, request->args, request->n);
}

static void tells(weft_request_t *request, void *user)
{
    (void)request, (void)user;
    atomic_fetch_add(&told, 1);
}

static void count_on(weft_op_t *op, void *user)
{
    waiting_t *w = (waiting_t *)user;
    weft_status_t st = op->status;
    if (!st && w->at < w->request->args[0].u64) {
        weft_value_t v = weft_u64(w->at++);
        st = weft_stream_send(w->request->stream, &v, &w->op);
        if (!st)
            return;
    }
    if (!st)
        weft_request_reply(w->request, NULL, 0);
    weft_request_release(w->request);
    free(w);
}

static void counts(weft_request_t *request, void *user)
{
    weft_op_t first = WEFT_OP_INIT;
    (void)user;
    count_on(&first, keep(request, count_on));
}

static void total_on(weft_op_t *op, void *user)
{
    waiting_t *w = (waiting_t *)user;
    weft_status_t st = op->status;
    if (!st && w->at && op->len) {
        w->sum += w->item.value.u64;
        weft_item_release(&w->item);
    }
    if (!st && (!w->at || op->len)) {
        w->at = 1;
        st = weft_stream_recv(w->request->stream, &w->item, &w->op);
        if (!st)
            return;
    }
    if (!st) {
        weft_value_t v = weft_u64(w->sum);
        weft_request_reply(w->request, &v, 1);
    }
    weft_request_release(w->request);
    free(w);
}

static void totals(weft_request_t *request, void *user)
{
    weft_op_t first = WEFT_OP_INIT;
    (void)user;
    total_on(&first, keep(request, total_on));
}

static const weft_function_fn fns[KINDS] = {adds, adds, later, adds, echoes, tells, counts, totals};

static void add_function(server_t *s, unsigned k)
{
    weft_function_opts_t o = WEFT_FUNCTION_OPTS_INIT;
    o.threads = k == THREAD;
    CHECK_OK(weft_service_add(s->service, sigs[k], fns[k], s, &o));
}

static void open_service(server_t *s)
{
    weft_service_opts_t o = WEFT_SERVICE_OPTS_INIT;
    o.threads = 2;
    CHECK_OK(weft_service_open(s->rt, "soak", &o, &s->service));
    for (unsigned k = 0; k < KINDS; k++)
        add_function(s, k);
}

/* --- callers ------------------------------------------------------------------------------------------------------- */

typedef struct call {
    weft_op_t op;
    weft_reply_t reply;
    weft_value_t args[2];
    weft_call_opts_t opts;
    unsigned kind;
    uint64_t a, b;
    bool asked; /* cancelled, or with a deadline */
} call_t;

static void judge(const call_t *c, bool calm)
{
    weft_status_t st = c->op.status;
    const weft_reply_t *r = &c->reply;
    CHECK_EQ(!st, r->code == WEFT_CODE_OK);
    CHECK(r->message);
    if (st) {
        bool wish = c->asked && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT);
        bool told_so = st == WEFT_ERR_CALL &&
                       (r->code == WEFT_CODE_UNAVAILABLE || r->code == WEFT_CODE_UNIMPLEMENTED || r->code == WEFT_CODE_ABORTED);
        if (!wish && (calm || !(told_so || st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED)))
            FAIL("a call of %s ended with %s: %s", names[c->kind], weft_status_name(st), r->message);
        atomic_fetch_add(&ended[wish ? 1 : 2], 1);
        return;
    }
    atomic_fetch_add(&ended[0], 1);
    if (c->kind == TELL)
        return;
    CHECK_EQ(r->ran, WEFT_RAN);
    if (c->kind == ECHO) {
        CHECK_EQ(r->n, 2);
        CHECK_EQ(r->values[0].view.n, c->a);
        CHECK_EQ(r->values[1].view.n, c->b);
        CHECK(!c->a || !memcmp(r->values[0].view.data, bytes, c->a));
    } else {
        CHECK_EQ(r->n, 1);
        CHECK_EQ(r->values[0].u64, c->a + c->b);
    }
}

/* Some calls at a time, and wait for them. */
static void a_flight(weft_method_t **methods, wefti_rng_t *rng, bool calm)
{
    static const char text[2000] = "";
    call_t calls[FLIGHT];
    unsigned n = 0;
    for (unsigned i = 1 + (unsigned)wefti_rng_below(rng, FLIGHT); i; i--) {
        call_t *c = &calls[n];
        memset(c, 0, sizeof *c);
        c->kind = (unsigned)wefti_rng_below(rng, COUNT);
        c->a = c->kind == ECHO ? wefti_rng_below(rng, wefti_rng_below(rng, 2) ? 2000 : BIG) : wefti_rng_next(rng);
        c->b = c->kind == ECHO ? wefti_rng_below(rng, sizeof text) : wefti_rng_next(rng);
        c->args[0] = c->kind == ECHO ? weft_vector(WEFT_T_U8, bytes, c->a) : weft_u64(c->a);
        c->args[1] = c->kind == ECHO ? weft_text(text, c->b) : weft_u64(c->b);
        c->opts = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
        c->opts.once = c->kind != TELL && wefti_rng_below(rng, 4) == 0;
        c->asked = wefti_rng_below(rng, 8) == 0;
        c->op.timeout_ns = c->asked ? 1 + wefti_rng_below(rng, 3 * WEFT_MILLISECOND) : 60 * WEFT_SECOND;
        weft_status_t st = weft_call_with(methods[c->kind], c->args, 2, &c->opts, &c->reply, &c->op);
        CHECK_OK(st);
        n++;
        if (wefti_rng_below(rng, 12) == 0) {
            c->asked = true;
            weft_op_cancel(&c->op);
        }
    }
    for (unsigned i = 0; i < n; i++) {
        weft_op_wait(&calls[i].op, 100 * WEFT_SECOND);
        CHECK(weft_op_done(&calls[i].op));
        judge(&calls[i], calm);
        weft_reply_release(&calls[i].reply);
    }
}

static void a_stream(weft_method_t **methods, wefti_rng_t *rng, bool calm)
{
    weft_op_t op = WEFT_OP_INIT, one = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_item_t item = WEFT_ITEM_INIT;
    weft_stream_t *stream;
    bool total = wefti_rng_below(rng, 2);
    uint64_t n = wefti_rng_below(rng, ITEMS), sum = 0, got = 0;
    weft_value_t arg = weft_u64(n);
    bool leave = wefti_rng_below(rng, 6) == 0;
    weft_status_t st = WEFT_OK;
    op.timeout_ns = 60 * WEFT_SECOND;
    CHECK_OK(weft_call_stream(methods[total ? TOTAL : COUNT], &arg, total ? 0 : 1, NULL, &reply, &op, &stream));
    for (uint64_t i = 0; total && i < n && !st; i++) {
        weft_value_t v = weft_u64(i * i);
        sum += i * i;
        st = weft_stream_send(stream, &v, &one);
        if (!st)
            st = weft_op_wait(&one, 100 * WEFT_SECOND);
        if (leave && i == n / 2)
            break;
    }
    if (total && !st && !leave)
        st = weft_stream_end(stream, NULL);
    while (!total && !st) {
        st = weft_stream_recv(stream, &item, &one);
        if (!st)
            st = weft_op_wait(&one, 100 * WEFT_SECOND);
        if (st || !one.len)
            break;
        CHECK_EQ(item.value.u64, got++);
        weft_item_release(&item);
        if (leave && got > n / 2)
            break;
    }
    if (leave || st)
        weft_stream_release(stream);
    weft_status_t called = weft_op_wait(&op, 100 * WEFT_SECOND);
    CHECK(weft_op_done(&op));
    if (!leave && !st)
        weft_stream_release(stream);
    if (calm && !leave && (st || called))
        FAIL("a call of %s ended with %s, and its stream with %s", total ? "total" : "count", weft_status_name(called),
             weft_status_name(st));
    if (!called && !leave && total) {
        CHECK_EQ(reply.values[0].u64, sum);
    } else if (!called && !leave) {
        CHECK_EQ(got, n);
    }
    atomic_fetch_add(&ended[called ? (leave ? 1 : 2) : 0], 1);
    weft_reply_release(&reply);
}

static void *caller(void *user)
{
    unsigned number = (unsigned)(uintptr_t)user;
    server_t *s = &servers[number % SERVERS];
    bool calm = s == &servers[0]; /* nothing happens to the first server */
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    wefti_rng_t rng = {number + 1};
    o.progress = number % 3 ? WEFT_PROGRESS_CALLER : WEFT_PROGRESS_THREAD;
    o.transports = number % 4 < 2 ? "shm" : "tcp";
    CHECK_OK(weft_runtime_open(&o, &rt));
    while (!atomic_load(&over)) {
        weft_client_t *client;
        weft_method_t *methods[KINDS];
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_client_open(rt, weft_listener_uri(s->listener), NULL, &client));
        for (unsigned k = 0; k < KINDS; k++)
            CHECK_OK(weft_client_method(client, sigs[k], &methods[k]));
        for (unsigned i = 20 + (unsigned)wefti_rng_below(&rng, 200); i && !atomic_load(&over); i--) {
            if (wefti_rng_below(&rng, 5))
                a_flight(methods, &rng, calm);
            else
                a_stream(methods, &rng, calm);
        }
        weft_client_stats_t stats = WEFT_CLIENT_STATS_INIT;
        CHECK_OK(weft_client_get_stats(client, &stats));
        CHECK_EQ(stats.under_way, 0);
        CHECK_OK(weft_client_close(client, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    }
    CHECK_OK(weft_runtime_close(rt));
    return NULL;
}

/* --- both ---------------------------------------------------------------------------------------------------------- */

static void on_accept(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener, (void)ep, (void)user;
}

static void open_server(server_t *s)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    o.progress = WEFT_PROGRESS_THREAD;
    lo.accept = on_accept;
    CHECK_OK(weft_runtime_open(&o, &s->rt));
    CHECK_OK(weft_listen(s->rt, ports_tcp(), &lo, &s->listener));
    open_service(s);
}

static void trouble(server_t *s, wefti_rng_t *rng)
{
    weft_op_t op = WEFT_OP_INIT;
    if (wefti_rng_below(rng, 4)) {
        unsigned k = (unsigned)wefti_rng_below(rng, KINDS);
        CHECK_OK(weft_service_remove(s->service, names[k], &op));
        add_function(s, k);
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND)); /* the old one has no requests any more */
        return;
    }
    if (wefti_rng_below(rng, 2)) {
        CHECK_OK(weft_service_drain(s->service, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    }
    CHECK_OK(weft_service_close(s->service, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    open_service(s);
}

TEST(everything_at_once_for_a_while)
{
    pthread_t threads[CLIENTS];
    const char *say = getenv("TEST_SECONDS");
    double seconds = say ? atof(say) : 4;
    wefti_rng_t rng = {99};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 13 + i / 300);
    for (unsigned i = 0; i < SERVERS; i++)
        open_server(&servers[i]);
    for (unsigned i = 0; i < CLIENTS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, caller, (void *)(uintptr_t)i), 0);
    for (double end = test_now() + (seconds < 550 ? seconds : 550); test_now() < end;) {
        trouble(&servers[1], &rng);
        usleep(1000 * (unsigned)(1 + wefti_rng_below(&rng, 60)));
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < CLIENTS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    printf("%lu calls ended well, %lu as they wished, %lu otherwise; %lu were told\n", atomic_load(&ended[0]),
           atomic_load(&ended[1]), atomic_load(&ended[2]), atomic_load(&told));
    CHECK(atomic_load(&ended[0]) > 100);
    for (unsigned i = 0; i < SERVERS; i++) {
        weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        for (double end = test_now() + 20; test_now() < end; usleep(1000)) {
            CHECK_OK(weft_service_get_stats(servers[i].service, &s));
            if (!s.under_way)
                break;
        }
        CHECK_EQ(s.under_way, 0);
        CHECK_EQ(s.waiting, 0);
        CHECK_OK(weft_service_close(servers[i].service, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_OK(weft_runtime_close(servers[i].rt));
    }
}
