/* Threads open, use, cancel, close and abort endpoints, listeners, services, functions and handlers of one runtime with four
 * shards, all at once: every operation completes, what was handed over is handed back once, and nothing is left.
 * TEST_WEFT_SECONDS says how long; TEST_WEFT_SEED makes the same choices.
 * ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 280
#include "ports.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <weft/weft.h>

#include "base/rng.h"

enum { SHARDS = 4, THREADS = 6, FLIGHT = 8 };
#define ADD "add(a: i32, b: i32) -> i32"
#define PATIENCE (60 * WEFT_SECOND)

static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_service_t *service;
static double end_at;
static _Atomic unsigned long added, released, opened, closed, answered, failed, taken;
static _Atomic unsigned next_name;

typedef struct storm {
    pthread_t thread;
    wefti_rng_t rng;
    int number;
} storm_t;

static uint64_t below(storm_t *s, uint64_t n)
{
    return wefti_rng_below(&s->rng, n);
}

/* It ends, well or not. */
static weft_status_t ends(weft_op_t *op)
{
    weft_status_t st = weft_op_wait(op, PATIENCE);
    if (!weft_op_done(op))
        FAIL("an operation does not end: %s (%s)", weft_status_name(st), weft_last_error());
    return st;
}

/* What a program that races with itself may be told. */
static bool went(weft_status_t st)
{
    switch (st) {
    case WEFT_OK:
        return true;
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_STATE:
    case WEFT_ERR_PEER:
    case WEFT_ERR_NOTFOUND:
    case WEFT_ERR_AGAIN:
    case WEFT_ERR_REFUSED:
        return false;
    default:
        FAIL("%s (%s)", weft_status_name(st), weft_last_error());
    }
}

/* --- the server's callbacks ------------------------------------------------------------------------------------------------- */

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l;
    (void)ep;
    (void)user;
    atomic_fetch_add(&taken, 1);
}

static void gone(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    (void)weft_ep_close(ep, NULL);
}

static void add(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    (void)weft_request_reply(request, &sum, 1); /* its caller may be gone */
}

static void release(void *buf, void *user)
{
    (void)user;
    CHECK_EQ(atomic_fetch_add((_Atomic int *)buf, 1), 0);
    atomic_fetch_add(&released, 1);
}

static void ignore(weft_am_t *am, void *user)
{
    (void)am;
    (void)user;
}

/* --- what a thread does ----------------------------------------------------------------------------------------------------- */

static void call_some(storm_t *s, weft_method_t *m)
{
    weft_op_t ops[FLIGHT];
    weft_reply_t replies[FLIGHT];
    weft_value_t args[FLIGHT][2];
    int n = 0;
    memset(ops, 0, sizeof ops);
    memset(replies, 0, sizeof replies);
    for (; n < FLIGHT; n++) {
        args[n][0] = weft_i32(n);
        args[n][1] = weft_i32(s->number);
        ops[n].timeout_ns = below(s, 4) ? 0 : 1 + below(s, 2 * WEFT_MILLISECOND);
        if (!went(weft_call(m, args[n], 2, &replies[n], &ops[n])))
            break;
    }
    for (int i = 0; i < n; i++)
        if (!below(s, 4))
            weft_op_cancel(&ops[i]);
    for (int i = 0; i < n; i++) {
        bool ok = !ends(&ops[i]) && !replies[i].code;
        if (ok)
            CHECK_EQ(replies[i].values[0].i32, i + s->number);
        atomic_fetch_add(ok ? &answered : &failed, 1);
        weft_reply_release(&replies[i]);
    }
}

static void use_endpoint(storm_t *s)
{
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    weft_op_t connect = WEFT_OP_INIT, recv = WEFT_OP_INIT, send = WEFT_OP_INIT, am = WEFT_OP_INIT, end = WEFT_OP_INIT;
    weft_client_t *c = NULL;
    weft_method_t *m;
    weft_ep_t *ep;
    char byte, text[64] = "storm";
    bool waits = below(s, 3), receives, sends, ams;
    if (!went(weft_ep_open(client, weft_listener_uri(listener), NULL, &connect, &ep)))
        return;
    atomic_fetch_add(&opened, 1);
    if (waits)
        (void)ends(&connect);
    else if (!below(s, 4))
        weft_op_cancel(&connect);
    receives = went(weft_msg_recv(ep, &byte, 1, 3, WEFT_TAG_FULL, &recv));
    sends = went(weft_msg_send(ep, text, sizeof text, 1, &send));
    ams = went(weft_am_send(ep, 20 + (uint32_t)below(s, 4), text, sizeof text, NULL, 0, &am));
    co.service = "calc";
    if (went(weft_client_on(ep, &co, &c)) && went(weft_client_method(c, ADD, &m)))
        call_some(s, m);
    if (c)
        (void)weft_client_close(c, NULL);
    if (receives && below(s, 2))
        weft_op_cancel(&recv);
    bool closes = went(below(s, 2) ? weft_ep_close(ep, &end) : weft_ep_abort(ep, &end));
    if (!waits)
        (void)ends(&connect);
    if (receives)
        (void)ends(&recv);
    if (sends)
        (void)ends(&send);
    if (ams)
        (void)ends(&am);
    CHECK(closes);
    (void)ends(&end);
    atomic_fetch_add(&closed, 1);
}

static void use_listener(storm_t *s)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {NULL, gone, NULL};
    weft_op_t accept[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, connect[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, end = WEFT_OP_INIT;
    weft_ep_t *eps[2];
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_listener_t *l;
    eo.no_retry = true;
    lo.hooks = &hooks;
    if (!went(weft_listen(server, ports_tcp(), &lo, &l)))
        return;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(weft_listener_accept(l, &accept[i]));
        CHECK_OK(weft_ep_open(client, weft_listener_uri(l), &eo, &connect[i], &eps[i]));
    }
    if (below(s, 2))
        usleep((useconds_t)below(s, 2000));
    if (!below(s, 3))
        weft_op_cancel(&accept[1]);
    CHECK_OK(weft_listener_close(l, &end));
    CHECK_OK(ends(&end));
    for (int i = 0; i < 2; i++) {
        weft_op_t done = WEFT_OP_INIT;
        if (!ends(&accept[i])) /* the peer's closed hook may come before, or not at all */
            (void)weft_ep_abort(weft_op_ep(&accept[i]), NULL);
        (void)ends(&connect[i]);
        CHECK_OK(weft_ep_abort(eps[i], &done));
        (void)ends(&done);
    }
}

static void use_service(storm_t *s)
{
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_op_t drain = WEFT_OP_INIT, end = WEFT_OP_INIT, remove = WEFT_OP_INIT;
    weft_service_t *own;
    char name[32];
    snprintf(name, sizeof name, "storm%u", atomic_fetch_add(&next_name, 1) % 4); /* other threads have services of this name */
    if (!went(weft_service_open(server, name, NULL, &own)))
        return;
    fo.release = release;
    fo.serial = below(s, 2);
    for (unsigned i = 0, n = (unsigned)below(s, 3); i < n; i++) {
        _Atomic int *use = calloc(1, sizeof *use); /* kept, so that a second release is seen */
        char signature[64];
        snprintf(signature, sizeof signature, "f%u(a: i32, b: i32) -> i32", i);
        CHECK_OK(weft_service_add(own, signature, add, (void *)use, &fo));
        atomic_fetch_add(&added, 1);
    }
    bool removes = below(s, 2) && went(weft_service_remove(own, "f0", &remove));
    bool drains = below(s, 2) && went(weft_service_drain(own, &drain));
    CHECK_OK(weft_service_close(own, &end));
    if (removes)
        (void)ends(&remove);
    if (drains)
        (void)ends(&drain);
    CHECK_OK(ends(&end));
}

/* All threads change the functions and handlers of one service and one runtime. */
static void change_shared(storm_t *s)
{
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    fo.release = release;
    if (below(s, 2)) {
        _Atomic int *use = calloc(1, sizeof *use);
        if (went(weft_service_add(service, "shared(a: i32, b: i32) -> i32", add, (void *)use, &fo)))
            atomic_fetch_add(&added, 1);
        else
            free((void *)use); /* it is ours, and nobody has it */
        if (went(weft_service_remove(service, "shared", &op)))
            (void)ends(&op);
    } else if (went(weft_am_handle(server, 20 + (uint32_t)below(s, 4), below(s, 2) ? ignore : NULL, NULL, &op))) {
        (void)ends(&op);
    }
}

static void look(storm_t *s)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_service_stats_t calls = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(server, &stats));
    CHECK_OK(weft_runtime_get_shard_stats(server, (uint32_t)below(s, SHARDS), &stats));
    CHECK_OK(weft_service_get_stats(service, &calls));
}

static void *storm(void *arg)
{
    storm_t *s = arg;
    while (test_now() < end_at) {
        switch (below(s, 8)) {
        case 0:
            use_listener(s);
            break;
        case 1:
            use_service(s);
            break;
        case 2:
            change_shared(s);
            break;
        case 3:
            look(s);
            break;
        default:
            use_endpoint(s);
        }
    }
    return NULL;
}

static weft_runtime_t *opens(uint32_t shards, const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.shards = shards;
    o.progress = WEFT_PROGRESS_THREAD;
    o.transports = transports;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static uint64_t left(weft_runtime_t *rt)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(rt, &stats));
    return stats.endpoints + stats.connections;
}

static void storms(const char *transports)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {NULL, gone, NULL};
    storm_t all[THREADS];
    uint64_t seed = getenv("TEST_WEFT_SEED") ? strtoull(getenv("TEST_WEFT_SEED"), NULL, 0) : (uint64_t)(test_now() * 1e6);
    printf("# TEST_WEFT_SEED=%llu\n", (unsigned long long)seed);
    server = opens(SHARDS, transports);
    client = opens(2, transports);
    lo.accept = accepted;
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(server, ports_tcp(), &lo, &listener));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
    end_at = test_now() + (getenv("TEST_WEFT_SECONDS") ? atof(getenv("TEST_WEFT_SECONDS")) : 8);
    for (int i = 0; i < THREADS; i++) {
        all[i] = (storm_t){.number = i, .rng = {seed * 31 + (uint64_t)i}};
        CHECK(!pthread_create(&all[i].thread, NULL, storm, &all[i]));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i].thread, NULL);
    printf("# %lu endpoints, %lu calls answered, %lu not, %lu functions\n", atomic_load(&opened), atomic_load(&answered),
           atomic_load(&failed), atomic_load(&added));
    CHECK_EQ(atomic_load(&opened), atomic_load(&closed));
    CHECK(atomic_load(&answered) > 0);
    TEST_UNTIL(!left(client) && !left(server), 60);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
    CHECK_EQ(atomic_load(&released), atomic_load(&added));
}

TEST(everything_at_once_over_tcp)
{
    storms("tcp");
}

TEST(everything_at_once_over_shared_memory)
{
    storms("shm");
}
