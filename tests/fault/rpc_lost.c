/* Functions that end their server in the middle of their call: killed, aborted, stopped, exited; while 1, 100 and 10000
 * calls of every kind are under way: answered at once, kept, on threads, with large arguments and results half of the way,
 * with streams. Every call ends with a status, within the heartbeat bound; what its caller is told of it (`ran`) is what the
 * server, as far as it lived, wrote down; and nothing is left.
 *
 * ctest: timeout=600 */
#define TEST_SECONDS 280
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "lib/peer.h"
#include "test.h"

#define BOUND_NS (700 * WEFT_MILLISECOND)
#define BOUND_S (0.7 * 2.6 + 2.5) /* as in am_kill.c */
enum { MOST = 10000, BIG = 1 << 20, BIGS = 48, STREAMS = 48 };

enum { NOW, AGAIN, KEEP, THREAD, TAKE, GIVE, FLOOD, DIE, KINDS };
static const char *const sigs[KINDS] = {
    [NOW] = "now(i: u64) -> u64",
    [AGAIN] = "again(i: u64) -> u64 idempotent",
    [KEEP] = "keep(i: u64) -> u64",
    [THREAD] = "thread(i: u64) -> u64",
    [TAKE] = "take(i: u64, v: [u8]) -> u64",
    [GIVE] = "give(i: u64) -> [u8]",
    [FLOOD] = "flood(i: u64) -> stream u64",
    [DIE] = "die(i: u64, how: i32) -> u64",
};
enum { KILLED, ABORTED, STOPPED, EXITED, WAYS };
static const char *const ways[WAYS] = {"killed", "aborted", "stopped", "exited"};
static const char *const transports[] = {"shm", "tcp"};

static _Atomic uint8_t *runs; /* of each call, shared with the server */
static uint8_t bytes[BIG];

/* --- the server ---------------------------------------------------------------------------------------------------- */

static void ran(const weft_request_t *request)
{
    atomic_fetch_add(&runs[request->args[0].u64], 1);
}

static void now(weft_request_t *request, void *user)
{
    (void)user;
    ran(request);
    weft_value_t v = weft_u64(request->args[0].u64 + 1);
    weft_request_reply(request, &v, 1);
}

static void keep(weft_request_t *request, void *user)
{
    (void)user;
    ran(request);
    weft_request_keep(request);
}

static void on_thread(weft_request_t *request, void *user)
{
    ran(request);
    if (request->args[0].u64 % 3 == 0)
        usleep(1000);
    if (request->args[0].u64 % 7 == 0) /* this one runs when the end comes */
        for (unsigned i = 0; i < 10000 && !weft_request_cancelled(request); i++)
            usleep(1000);
    (void)user;
    weft_value_t v = weft_u64(request->args[0].u64 + 1);
    weft_request_reply(request, &v, 1);
}

static void give(weft_request_t *request, void *user)
{
    (void)user;
    ran(request);
    weft_value_t v = weft_vector(WEFT_T_U8, bytes, sizeof bytes);
    weft_request_reply(request, &v, 1);
}

typedef struct flooding {
    weft_op_t op;
    weft_request_t *request;
    uint64_t at;
} flooding_t;

static void flood_on(weft_op_t *op, void *user)
{
    flooding_t *f = (flooding_t *)user;
    weft_value_t v = weft_u64(f->at++);
    if (op->status || weft_stream_send(f->request->stream, &v, &f->op)) {
        weft_request_release(f->request);
        free(f);
    }
}

static void flood(weft_request_t *request, void *user)
{
    (void)user;
    ran(request);
    flooding_t *f = (flooding_t *)calloc(1, sizeof *f);
    f->request = weft_request_keep(request);
    f->op.fn = flood_on;
    f->op.user = f;
    weft_op_t first = WEFT_OP_INIT;
    flood_on(&first, f);
}

static void die(weft_request_t *request, void *user)
{
    (void)user;
    ran(request);
    switch (request->args[1].i32) {
    case KILLED:
        raise(SIGKILL);
        break;
    case ABORTED:
        signal(SIGABRT, SIG_DFL);
        abort();
    case STOPPED:
        raise(SIGSTOP);
        break;
    default:
        _exit(3);
    }
}

static void life(weft_runtime_t *rt, weft_ep_t *ep)
{
    static const weft_function_fn fns[KINDS] = {now, now, keep, on_thread, keep, give, flood, die};
    struct rlimit none = {0, 0};
    weft_service_opts_t o = WEFT_SERVICE_OPTS_INIT;
    weft_service_t *service;
    (void)ep;
    setrlimit(RLIMIT_CORE, &none);
    o.threads = 2;
    CHECK_OK(weft_service_open(rt, "doomed", &o, &service));
    for (unsigned k = 0; k < KINDS; k++) {
        weft_function_opts_t f = WEFT_FUNCTION_OPTS_INIT;
        f.threads = k == THREAD;
        CHECK_OK(weft_service_add(service, sigs[k], fns[k], NULL, &f));
    }
    peer_live(rt);
}

/* --- the caller ---------------------------------------------------------------------------------------------------- */

typedef struct one {
    weft_op_t op, recv;
    weft_reply_t reply;
    weft_value_t args[2];
    weft_stream_t *stream;
    weft_item_t item;
    unsigned kind;
    uint64_t got;
    bool posted, receives;
} one_t;

static one_t *ones;
static weft_method_t *methods[KINDS];

static void received(weft_op_t *op, void *user)
{
    one_t *o = (one_t *)user;
    o->receives = false;
    if (op->status || !op->len)
        return;
    CHECK_EQ(o->item.value.u64, o->got++);
    weft_item_release(&o->item);
    o->receives = !weft_stream_recv(o->stream, &o->item, &o->recv);
}

static unsigned kind_of(unsigned i, unsigned n)
{
    static const unsigned mix[] = {NOW, AGAIN, KEEP, THREAD};
    if (i % 100 == 7 && i / 100 < BIGS)
        return TAKE;
    if (i % 100 == 8 && i / 100 < BIGS)
        return GIVE;
    if (i % 100 == 9 && i / 100 < STREAMS)
        return FLOOD;
    return n == 1 ? KEEP : mix[i % 4];
}

static void post(unsigned i, unsigned kind, int how)
{
    one_t *o = &ones[i];
    o->kind = kind;
    o->args[0] = weft_u64(i);
    o->args[1] = kind == DIE ? weft_i32(how) : weft_vector(WEFT_T_U8, bytes, sizeof bytes);
    size_t n = kind == DIE || kind == TAKE ? 2 : 1;
    weft_status_t st;
    if (kind == FLOOD) {
        st = weft_call_stream(methods[kind], o->args, n, NULL, &o->reply, &o->op, &o->stream);
        o->recv.fn = received;
        o->recv.user = o;
        if (!st && i % 200 == 9)
            o->receives = !weft_stream_recv(o->stream, &o->item, &o->recv);
    } else {
        st = weft_call(methods[kind], o->args, n, &o->reply, &o->op);
    }
    o->posted = !st;
    CHECK(!st || st == WEFT_ERR_PEER); /* it is lost already */
}

static void check(unsigned i, const char *transport, int how)
{
    const one_t *o = &ones[i];
    const weft_reply_t *r = &o->reply;
    unsigned ran_times = atomic_load(&runs[i]);
    weft_status_t st = o->op.status;
    if (!o->posted) {
        CHECK_EQ(ran_times, 0);
        return;
    }
    bool ok = st ? st == WEFT_ERR_PEER && r->code == WEFT_CODE_UNAVAILABLE : r->ran == WEFT_RAN;
    ok = ok && (r->ran != WEFT_NOT_RUN || !ran_times) && (r->ran != WEFT_RAN || ran_times) && r->message;
    ok = ok && ran_times <= (o->kind == AGAIN ? 3u : 1u);
    if (!st && (o->kind == NOW || o->kind == AGAIN || o->kind == THREAD))
        ok = ok && r->n == 1 && r->values[0].u64 == i + 1;
    if (!st && o->kind == GIVE)
        ok = ok && r->n == 1 && r->values[0].view.n == sizeof bytes && !memcmp(r->values[0].view.data, bytes, sizeof bytes);
    if (o->kind == KEEP || o->kind == TAKE || o->kind == FLOOD || o->kind == DIE)
        ok = ok && st;
    if (!ok)
        FAIL("%s, %s: call %u of %s: status %s, code %s, ran %d, and it ran %u times", transport, ways[how], i, sigs[o->kind],
             weft_status_name(st), weft_code_name(r->code), (int)r->ran, ran_times);
}

static void lose(const char *transport, int how, unsigned n)
{
    peer_t peer;
    weft_client_t *client;
    weft_op_t op = WEFT_OP_INIT;
    memset((void *)runs, 0, MOST + 1);
    ones = (one_t *)calloc(n + 1, sizeof *ones);
    peer_start(&peer, transport, BOUND_NS, life);
    CHECK_OK(weft_client_on(peer.ep, NULL, &client));
    for (unsigned k = 0; k < KINDS; k++) {
        CHECK_OK(weft_client_method(client, sigs[k], &methods[k]));
        weft_status_t st = WEFT_ERR_CALL;
        for (double end = test_now() + 10; st == WEFT_ERR_CALL && test_now() < end;) { /* it may not offer it yet */
            CHECK_OK(weft_method_check(methods[k], NULL, &op));
            st = peer_wait(&peer, &op, 10);
        }
        CHECK_OK(st);
    }
    for (unsigned i = 0; i < n; i++) {
        post(i, kind_of(i, n), 0);
        if (i == n / 2)
            post(n, DIE, how);
        if (i % 16 == 0)
            weft_runtime_progress(peer.rt);
    }
    double begin = test_now();
    for (unsigned i = 0; i <= n; i++)
        peer_wait(&peer, &ones[i].op, BOUND_S + 10);
    double took = test_now() - begin;
    if (took > BOUND_S + 5)
        FAIL("%s, %s: %u calls took %.1f s to end", transport, ways[how], n, took);
    for (unsigned i = 0; i <= n; i++) {
        while (ones[i].receives && test_now() < begin + BOUND_S + 10)
            weft_runtime_progress(peer.rt);
        CHECK(!ones[i].receives);
        check(i, transport, how);
        weft_reply_release(&ones[i].reply);
        weft_stream_release(ones[i].stream);
    }
    CHECK_EQ(ones[n].reply.ran, WEFT_MAY_HAVE_RUN);
    weft_client_stats_t stats = WEFT_CLIENT_STATS_INIT;
    CHECK_OK(weft_client_get_stats(client, &stats));
    CHECK_EQ(stats.under_way, 0);
    CHECK_EQ(stats.ok + stats.failed + stats.cancelled + stats.timed_out, stats.calls);
    CHECK_OK(weft_client_close(client, &op));
    CHECK_OK(peer_wait(&peer, &op, 10));
    peer_end(&peer);
    free(ones);
}

static void lose_all(unsigned n)
{
    runs = (_Atomic uint8_t *)mmap(NULL, MOST + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)runs != MAP_FAILED);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    for (unsigned t = 0; t < 2; t++)
        for (int how = 0; how < WAYS; how++)
            lose(transports[t], how, n);
    munmap((void *)runs, MOST + 1);
}

TEST(a_server_is_lost_with_one_call)
{
    lose_all(1);
}

TEST(a_server_is_lost_with_a_hundred_calls)
{
    lose_all(100);
}

TEST(a_server_is_lost_with_ten_thousand_calls)
{
    lose_all(MOST);
}
