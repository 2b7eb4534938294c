/* Callers that are killed, or stopped, while their calls are kept, run on threads, wait for one, or are being fetched:
 * functions are told within the heartbeat bound, what waited is not begun, answers go nowhere, and the service has nothing left
 * of them.
 *
 * ctest: tls timeout=300 */
#define TEST_SECONDS 120
#include <signal.h>
#include <stdatomic.h>
#include <weft/msg.h>
#include <weft/service.h>

#include "lib/peer.h"
#include "test.h"

#define BOUND_NS (1500 * WEFT_MILLISECOND) /* on a busy machine a caller that lives is silent for some hundreds of them */
#define BOUND_S (1.5 * 2.6 + 2.5)          /* as in am_kill.c */
enum { KEPT = 20, ON_THREADS = 6, BIG = 32 << 20 };

#define KEEP "keep(v: i32) -> i32"
#define HOLD "hold(v: i32) -> i32"
#define TAKE "take(v: [u8]) -> u64"

static const char *const transports[] = {"shm", "tcp"};
static const int signals[] = {SIGKILL, SIGSTOP};

/* --- the caller ----------------------------------------------------------------------------------------------------------- */

static void call(weft_client_t *client, const char *signature, weft_value_t *arg, weft_op_t *op, weft_reply_t *reply)
{
    weft_method_t *method;
    CHECK_OK(weft_client_method(client, signature, &method));
    CHECK_OK(weft_call(method, arg, 1, reply, op));
}

static void life_calls(weft_runtime_t *rt, weft_ep_t *ep)
{
    static weft_op_t ops[KEPT + ON_THREADS + 4];
    static weft_reply_t replies[KEPT + ON_THREADS + 4];
    static weft_value_t one, big;
    weft_client_t *client;
    unsigned n = 0;
    weft_op_t served = WEFT_OP_INIT;
    char word;
    CHECK_OK(weft_msg_recv(ep, &word, 1, 1, WEFT_TAG_FULL, &served)); /* there is a service now */
    CHECK_OK(weft_op_wait(&served, WEFT_FOREVER));
    one = weft_i32(1);
    big = weft_vector(WEFT_T_U8, calloc(1, BIG), BIG);
    CHECK_OK(weft_client_on(ep, NULL, &client));
    for (unsigned i = 0; i < KEPT; i++, n++)
        call(client, KEEP, &one, &ops[n], &replies[n]);
    for (unsigned i = 0; i < ON_THREADS; i++, n++)
        call(client, HOLD, &one, &ops[n], &replies[n]);
    for (unsigned i = 0; i < 4; i++, n++)
        call(client, TAKE, &big, &ops[n], &replies[n]);
    peer_live(rt);
}

/* --- functions ------------------------------------------------------------------------------------------------------------ */

static weft_request_t *kept[KEPT];
static unsigned n_kept;
static _Atomic unsigned told, inside, open_gate, taken;

static void ended(weft_request_t *request, void *user)
{
    (void)user;
    CHECK(weft_request_cancelled(request));
    atomic_fetch_add(&told, 1);
}

static void keep(weft_request_t *request, void *user)
{
    (void)user;
    kept[n_kept] = weft_request_keep(request);
    weft_request_on_cancel(kept[n_kept++], ended, NULL);
}

static void hold(weft_request_t *request, void *user)
{
    (void)user;
    atomic_fetch_add(&inside, 1);
    while (!atomic_load(&open_gate))
        usleep(500);
    CHECK(weft_request_cancelled(request));
    CHECK_EQ(weft_request_reply(request, request->args, 1), WEFT_ERR_CANCELLED);
}

static void take(weft_request_t *request, void *user)
{
    weft_value_t n = weft_u64(request->args[0].view.n);
    (void)user;
    atomic_fetch_add(&taken, 1);
    weft_request_reply(request, &n, 1);
}

static weft_service_stats_t stats(weft_service_t *service)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    return s;
}

#define PEER_UNTIL(peer, cond, seconds) \
    do { \
        double peer_until = test_now() + (seconds); \
        while (!(cond)) { \
            peer_run(peer, 0.002); \
            if (test_now() > peer_until) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)

TEST(callers_that_are_lost)
{
    for (unsigned t = 0; t < 2; t++)
        for (unsigned s = 0; s < 2; s++) {
            peer_t peer;
            weft_service_t *service;
            weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
            weft_function_opts_t on_threads = WEFT_FUNCTION_OPTS_INIT;
            weft_op_t close = WEFT_OP_INIT;
            n_kept = 0;
            atomic_store(&told, 0);
            atomic_store(&inside, 0);
            atomic_store(&open_gate, 0);
            peer_start(&peer, transports[t], BOUND_NS, life_calls);
            opts.threads = 2;
            on_threads.threads = true;
            CHECK_OK(weft_service_open(peer.rt, "calc", &opts, &service));
            CHECK_OK(weft_service_add(service, KEEP, keep, NULL, NULL));
            CHECK_OK(weft_service_add(service, HOLD, hold, NULL, &on_threads));
            CHECK_OK(weft_service_add(service, TAKE, take, NULL, NULL));
            CHECK_OK(weft_msg_send(peer.ep, "x", 1, 1, NULL));
            PEER_UNTIL(&peer, n_kept == KEPT && atomic_load(&inside) == 2, 10);
            CHECK_EQ(stats(service).waiting, ON_THREADS - 2);
            peer_signal(&peer, signals[s]);
            PEER_UNTIL(&peer, atomic_load(&told) == KEPT, BOUND_S);
            PEER_UNTIL(&peer, stats(service).under_way == KEPT + 2, BOUND_S); /* what waited or was fetched is gone */
            CHECK_EQ(stats(service).waiting, 0);
            weft_value_t one = weft_i32(1);
            for (unsigned i = 0; i < KEPT; i++) {
                CHECK_EQ(weft_request_reply(kept[i], &one, 1), WEFT_ERR_CANCELLED);
                weft_request_release(kept[i]);
            }
            atomic_store(&open_gate, 1);
            PEER_UNTIL(&peer, stats(service).under_way == 0, 10);
            CHECK_EQ(stats(service).bytes, 0);
            CHECK_EQ(atomic_load(&inside), 2);
            CHECK_OK(weft_service_close(service, &close));
            CHECK_OK(peer_wait(&peer, &close, 10));
            peer_end(&peer);
        }
}
