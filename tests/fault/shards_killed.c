/* Peers of a server with four shards are killed and stopped at any moment: what waited for them ends within the bound of silence,
 * the others go on, and nothing of the dead is left on any shard.
 * ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 240
#include "ports.h"
#include "test.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <weft/weft.h>

#include "base/rng.h"

enum { SHARDS = 4, LIVING = 5, LIVES = 14, EPS = 2, NEVER = 999 };
#define ADD "add(a: i32, b: i32) -> i32"
#define HEARTBEAT WEFT_SECOND
#define SLACK 20.0 /* seconds: a busy machine takes its time */

/* What all processes see. */
typedef struct board {
    char uri[128];
    _Atomic unsigned calls[LIVES]; /* answered */
} board_t;

/* An endpoint of the server, and the operations that wait for its peer. */
typedef struct theirs {
    weft_op_t wait;
    char byte;
    int life;
    _Atomic bool there, ended;
} theirs_t;

static board_t *board;
static weft_runtime_t *server;
static pid_t pids[LIVES];
static int go[LIVES];
static theirs_t theirs[LIVES * EPS];
static _Atomic unsigned n_theirs;

/* --- a peer's process ------------------------------------------------------------------------------------------------------- */

static void live(int i, const char *transports, int wait)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_ep_t *eps[EPS];
    weft_method_t *methods[EPS];
    char name[16], byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(wait, &byte, 1) != 1)
        _exit(0);
    snprintf(name, sizeof name, "%d", i);
    o.name = name;
    o.transports = transports;
    o.progress = WEFT_PROGRESS_THREAD;
    o.heartbeat_ns = HEARTBEAT;
    o.shards = 1 + (uint32_t)i % 2;
    CHECK_OK(weft_runtime_open(&o, &rt));
    for (int k = 0; k < EPS; k++) {
        weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
        weft_client_t *client;
        co.service = "calc";
        CHECK_OK(weft_ep_connect(rt, board->uri, NULL, 60 * WEFT_SECOND, &eps[k]));
        CHECK_OK(weft_client_on(eps[k], &co, &client));
        CHECK_OK(weft_client_method(client, ADD, &methods[k]));
    }
    for (int32_t n = 0;; n++) {
        static char large[300000];
        weft_value_t args[2] = {weft_i32(n), weft_i32(i)};
        weft_reply_t reply = {0};
        weft_op_t send = WEFT_OP_INIT, am = WEFT_OP_INIT, call = WEFT_OP_INIT;
        CHECK_OK(weft_msg_send(eps[n % EPS], large, n % 50 ? 100 : sizeof large, 1, &send));
        CHECK_OK(weft_am_send(eps[n % EPS], 5, &n, sizeof n, large, n % 3 ? 0 : 500, &am));
        CHECK_OK(weft_call(methods[n % EPS], args, 2, &reply, &call));
        CHECK_OK(weft_op_wait(&call, 60 * WEFT_SECOND));
        CHECK_EQ(reply.values[0].i32, n + i);
        weft_reply_release(&reply);
        CHECK_OK(weft_op_wait(&am, 60 * WEFT_SECOND));
        CHECK_OK(weft_op_wait(&send, 60 * WEFT_SECOND));
        atomic_fetch_add(&board->calls[i], 1);
    }
}

static void fork_all(const char *transports)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (int i = 0; i < LIVES; i++) {
        int fds[2];
        CHECK(!pipe(fds));
        pids[i] = fork();
        if (!pids[i])
            live(i, transports, fds[0]);
        CHECK(pids[i] > 0);
        close(fds[0]);
        go[i] = fds[1];
    }
}

/* --- the server ------------------------------------------------------------------------------------------------------------- */

static void add(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    weft_status_t st = weft_request_reply(request, &sum, 1);
    if (st && st != WEFT_ERR_CANCELLED)
        FAIL("an answer: %s (%s)", weft_status_name(st), weft_last_error());
}

static void on_am(weft_am_t *am, void *user)
{
    (void)user;
    CHECK_EQ(am->header_len, sizeof(int32_t));
}

static char into[SHARDS][300000]; /* nobody reads what came */

static void received(weft_op_t *op, void *user)
{
    weft_ep_t *ep = user;
    if (op->status || weft_msg_recv(ep, into[weft_runtime_shard(server)], sizeof into[0], 1, WEFT_TAG_FULL, op))
        free(op);
}

static void wait_ended(weft_op_t *op, void *user)
{
    theirs_t *t = user;
    CHECK_EQ(op->status, WEFT_ERR_PEER);
    CHECK(!atomic_exchange(&t->ended, true));
}

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    (void)l;
    (void)user;
    CHECK_OK(weft_ep_get_info(ep, &info));
    theirs_t *t = &theirs[atomic_fetch_add(&n_theirs, 1)];
    t->life = atoi(info.peer_name);
    t->wait.fn = wait_ended;
    t->wait.user = t;
    atomic_store(&t->there, true);
    CHECK_OK(weft_msg_recv(ep, &t->byte, 1, NEVER, WEFT_TAG_FULL, &t->wait));
    weft_op_t *op = calloc(1, sizeof *op);
    op->fn = received;
    op->user = ep;
    CHECK_OK(weft_msg_recv(ep, into[weft_runtime_shard(server)], sizeof into[0], 1, WEFT_TAG_FULL, op));
}

static void gone(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    (void)weft_ep_close(ep, NULL);
}

static void opens(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {NULL, gone, NULL};
    weft_listener_t *listener;
    weft_service_t *service;
    o.transports = transports;
    o.heartbeat_ns = HEARTBEAT;
    o.progress = WEFT_PROGRESS_THREAD;
    o.shards = SHARDS;
    CHECK_OK(weft_runtime_open(&o, &server));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, add, NULL, NULL));
    CHECK_OK(weft_am_handle(server, 5, on_am, NULL, NULL));
    lo.accept = accepted;
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(server, ports_tcp(), &lo, &listener));
    snprintf(board->uri, sizeof board->uri, "%s", weft_listener_uri(listener));
}

static unsigned ended_of(int life)
{
    unsigned n = 0;
    for (unsigned i = 0; i < atomic_load(&n_theirs); i++)
        n += atomic_load(&theirs[i].ended) && theirs[i].life == life;
    return n;
}

static unsigned accepted_of(int life)
{
    unsigned n = 0;
    for (unsigned i = 0; i < atomic_load(&n_theirs); i++)
        n += atomic_load(&theirs[i].there) && theirs[i].life == life;
    return n;
}

static void begin_life(int life)
{
    CHECK_EQ(write(go[life], "g", 1), 1);
    TEST_UNTIL(atomic_load(&board->calls[life]) > 0, SLACK);
}

static weft_runtime_stats_t stats(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_runtime_get_stats(server, &s));
    return s;
}

static void killed_and_stopped(const char *transports)
{
    wefti_rng_t rng = {getenv("TEST_WEFT_SEED") ? strtoull(getenv("TEST_WEFT_SEED"), NULL, 0) : (uint64_t)(test_now() * 1e6)};
    int living[LIVING], next = 0;
    printf("# TEST_WEFT_SEED=%llu\n", (unsigned long long)rng.state);
    fork_all(transports);
    opens(transports);
    for (int i = 0; i < LIVING; i++)
        begin_life(living[i] = next++);
    while (next < LIVES) {
        unsigned before[LIVING];
        int who = (int)wefti_rng_below(&rng, LIVING), life = living[who];
        bool stop = wefti_rng_below(&rng, 2);
        usleep((useconds_t)wefti_rng_below(&rng, 30000));
        CHECK_EQ(accepted_of(life), EPS);
        CHECK(!kill(pids[life], stop ? SIGSTOP : SIGKILL));
        double since = test_now();
        TEST_UNTIL(ended_of(life) == EPS, (double)HEARTBEAT * 2e-9 + SLACK);
        printf("# %s: its operations ended after %.2f s\n", stop ? "stopped" : "killed", test_now() - since);
        if (stop)
            CHECK(!kill(pids[life], SIGKILL));
        CHECK_EQ(waitpid(pids[life], NULL, 0), pids[life]);
        for (int i = 0; i < LIVING; i++) /* the others never noticed */
            before[i] = atomic_load(&board->calls[living[i]]);
        for (int i = 0; i < LIVING; i++)
            if (i != who)
                TEST_UNTIL(atomic_load(&board->calls[living[i]]) > before[i], SLACK);
        begin_life(living[who] = next++);
        TEST_UNTIL(stats().connections == LIVING * EPS && stats().endpoints == LIVING * EPS, SLACK);
    }
    for (int i = 0; i < LIVING; i++) {
        CHECK_EQ(ended_of(living[i]), 0);
        CHECK(!kill(pids[living[i]], SIGKILL));
        CHECK_EQ(waitpid(pids[living[i]], NULL, 0), pids[living[i]]);
    }
    TEST_UNTIL(!stats().connections && !stats().endpoints, SLACK);
    CHECK_OK(weft_runtime_close(server));
}

TEST(peers_that_die_at_any_moment_over_tcp)
{
    killed_and_stopped("tcp");
}

TEST(peers_that_die_at_any_moment_over_shared_memory)
{
    killed_and_stopped("shm");
}
