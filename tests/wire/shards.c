/* Runtimes with several shards: connections are spread, handlers and services are on all of them, what the program made once ends
 * once. ctest: tls timeout=240 label=thread */
#define TEST_SECONDS 200
#include "ports.h"
#include "test.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <weft/weft.h>

enum { SHARDS = 4, PEERS = 12 };
#define ADD "add(a: i32, b: i32) -> i32"

static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_ep_t *eps[PEERS];
static const char *scheme = "tcp", *key; /* what begin() uses */

static weft_runtime_t *opens(uint32_t shards, const char *transports)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.shards = shards;
    opts.progress = WEFT_PROGRESS_THREAD;
    opts.transports = transports;
    opts.key = key;
    opts.key_len = key ? strlen(key) : 0;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    return rt;
}

static void begin(const char *transports, const weft_listen_opts_t *lo)
{
    server = opens(SHARDS, transports);
    client = opens(1, transports);
    CHECK_EQ(weft_runtime_shards(server), SHARDS);
    char uri[32];
    snprintf(uri, sizeof uri, "%s://127.0.0.1:0", scheme);
    CHECK_OK(weft_listen(server, uri, lo, &listener));
}

static void connect_all(void)
{
    for (int i = 0; i < PEERS; i++)
        CHECK_OK(weft_ep_connect(client, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &eps[i]));
}

static void end(void)
{
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

static const char *const ways[] = {"tcp", "shm"};
#define each_way(way) for (const char *const *way = ways; way < ways + 2; way++)

/* --- connections ------------------------------------------------------------------------------------------------------------ */

static _Atomic unsigned by_shard[SHARDS], accepted_n;

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    CHECK(l == listener);
    CHECK(user == &accepted_n);
    CHECK(weft_ep_runtime(ep) == server);
    uint32_t shard = weft_runtime_shard(server);
    CHECK(shard < SHARDS);
    CHECK(weft_ep_find(server, weft_ep_id(ep)) == ep);
    atomic_fetch_add(&by_shard[shard], 1);
    atomic_fetch_add(&accepted_n, 1);
}

TEST(connections_are_spread_evenly_over_the_shards)
{
    each_way(way) {
        weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
        lo.accept = accepted;
        lo.user = &accepted_n;
        atomic_store(&accepted_n, 0);
        memset((void *)by_shard, 0, sizeof by_shard);
        begin(*way, &lo);
        connect_all();
        TEST_UNTIL(atomic_load(&accepted_n) == PEERS, 30);
        weft_runtime_stats_t all = WEFT_RUNTIME_STATS_INIT;
        CHECK_OK(weft_runtime_get_stats(server, &all));
        CHECK_EQ(all.shards, SHARDS);
        CHECK_EQ(all.endpoints, PEERS);
        CHECK_EQ(all.connections, PEERS);
        uint64_t sum = 0;
        for (uint32_t k = 0; k < SHARDS; k++) {
            weft_runtime_stats_t one = WEFT_RUNTIME_STATS_INIT;
            CHECK_OK(weft_runtime_get_shard_stats(server, k, &one));
            CHECK_EQ(one.shards, 1);
            CHECK_EQ(one.endpoints, atomic_load(&by_shard[k]));
            CHECK(one.endpoints > 0); /* how evenly depends on how busy each thread was meanwhile */
            sum += one.endpoints;
        }
        CHECK_EQ(sum, PEERS);
        weft_runtime_stats_t none = WEFT_RUNTIME_STATS_INIT;
        CHECK_EQ(weft_runtime_get_shard_stats(server, SHARDS, &none), WEFT_ERR_RANGE);
        end();
    }
}

TEST(accept_operations_get_the_endpoints_of_all_shards)
{
    each_way(way) {
        weft_op_t ops[PEERS];
        uint32_t seen = 0;
        begin(*way, NULL);
        for (int i = 0; i < PEERS / 2; i++) { /* some before the peers come, some after */
            ops[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_listener_accept(listener, &ops[i]));
        }
        connect_all();
        for (int i = PEERS / 2; i < PEERS; i++) {
            ops[i] = (weft_op_t)WEFT_OP_INIT;
            CHECK_OK(weft_listener_accept(listener, &ops[i]));
        }
        for (int i = 0; i < PEERS; i++) {
            CHECK_OK(weft_op_wait(&ops[i], 30 * WEFT_SECOND));
            weft_ep_t *ep = (weft_ep_t *)ops[i].buf;
            weft_op_t send = WEFT_OP_INIT;
            seen |= 1u << ((weft_ep_id(ep) >> 24) & 0xff);
            CHECK_OK(weft_msg_send(ep, &i, sizeof i, 7, &send));
            CHECK_OK(weft_op_wait(&send, 30 * WEFT_SECOND));
        }
        CHECK(seen & ~1u);
        for (int i = 0; i < PEERS; i++) {
            int got;
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_msg_recv_any(client, &got, sizeof got, 7, UINT64_MAX, &op));
            CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        }
        end();
    }
}

/* A connection that says nothing. */
static int silent(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(weft_listener_port(listener))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(!connect(fd, (struct sockaddr *)&a, sizeof a));
    return fd;
}

TEST(a_backlog_counts_the_newcomers_of_all_shards)
{
    enum { BACKLOG = 64, SILENT = 200 };
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    int fds[SILENT], left = SILENT;
    lo.backlog = BACKLOG;
    setenv("WEFT_CONNECT_TIMEOUT", "100s", 1); /* it is not what ends them */
    begin("tcp", &lo);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = silent();
        usleep(1000); /* the kernel has a backlog, too, and forgets what is too much for that */
    }
    for (double end = test_now() + 30; left > BACKLOG; usleep(1000)) {
        left = 0;
        for (int i = 0; i < SILENT; i++) {
            char bytes[512];
            ssize_t n;
            while ((n = recv(fds[i], bytes, sizeof bytes, MSG_DONTWAIT)) > 0) /* it is told why */
                ;
            left += n < 0 && errno == EAGAIN;
        }
        if (test_now() > end)
            FAIL("%d newcomers have a place, in a backlog of %d", left, BACKLOG);
    }
    weft_ep_t *ep; /* and one who speaks gets through */
    CHECK_OK(weft_ep_connect(client, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &ep));
    end();
}

TEST(a_listener_that_closes_leaves_the_connections_of_another_alone)
{
    weft_listener_t *other;
    weft_op_t op = WEFT_OP_INIT, sent = WEFT_OP_INIT;
    begin("tcp", NULL);
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &other));
    for (int i = 0; i < PEERS; i++) /* both have connections on every shard */
        CHECK_OK(weft_ep_connect(client, weft_listener_uri(i / SHARDS & 1 ? listener : other), NULL, 20 * WEFT_SECOND, &eps[i]));
    for (int i = 0; i < PEERS - SHARDS; i++) {
        weft_op_t taken = WEFT_OP_INIT;
        CHECK_OK(weft_listener_accept(other, &taken));
        CHECK_OK(weft_op_wait(&taken, 30 * WEFT_SECOND));
    }
    CHECK_OK(weft_listener_close(listener, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    for (int i = 0; i < SHARDS; i++) {
        CHECK_OK(weft_msg_send(eps[i], &i, sizeof i, 7, &sent));
        CHECK_OK(weft_op_wait(&sent, 30 * WEFT_SECOND));
        CHECK_EQ(weft_ep_get_state(eps[i]), WEFT_EP_UP);
    }
    end();
}

TEST(a_listener_that_closes_takes_its_untaken_endpoints_along)
{
    weft_op_t op = WEFT_OP_INIT;
    begin("tcp", NULL);
    connect_all();
    CHECK_OK(weft_listener_close(listener, &op));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    for (int i = 0; i < PEERS; i++)
        TEST_UNTIL(weft_ep_get_state(eps[i]) != WEFT_EP_UP, 30);
    weft_runtime_stats_t all = WEFT_RUNTIME_STATS_INIT;
    TEST_UNTIL(!weft_runtime_get_stats(server, &all) && !all.endpoints && !all.connections, 30);
    end();
}

/* --- active messages and messages ------------------------------------------------------------------------------------------- */

static _Atomic unsigned handled, handled_by[SHARDS];

static void handler(weft_am_t *am, void *user)
{
    uint32_t shard = weft_runtime_shard(server);
    CHECK(shard < SHARDS);
    CHECK(user == &handled);
    atomic_fetch_add(&handled_by[shard], 1);
    atomic_fetch_add(&handled, 1);
    (void)am;
}

TEST(a_handler_is_on_every_shard)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        atomic_store(&handled, 0);
        memset((void *)handled_by, 0, sizeof handled_by);
        begin(*way, NULL);
        CHECK_OK(weft_am_handle(server, 5, handler, &handled, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        connect_all();
        for (int round = 0; round < 50; round++)
            for (int i = 0; i < PEERS; i++) {
                weft_op_t sent = WEFT_OP_INIT;
                CHECK_OK(weft_am_send(eps[i], 5, &round, sizeof round, NULL, 0, &sent));
                CHECK_OK(weft_op_wait(&sent, 30 * WEFT_SECOND));
            }
        TEST_UNTIL(atomic_load(&handled) == 50 * PEERS, 30);
        for (int k = 0; k < SHARDS; k++)
            CHECK(atomic_load(&handled_by[k]) > 0);
        op = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_am_handle(server, 5, handler, &handled, &op));
        CHECK_EQ(weft_op_wait(&op, 20 * WEFT_SECOND), WEFT_ERR_STATE);
        CHECK_OK(weft_am_handle(server, 5, NULL, NULL, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        end();
    }
}

/* --- options ---------------------------------------------------------------------------------------------------------------- */

TEST(shards_need_threads)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.shards = 2;
    opts.progress = WEFT_PROGRESS_CALLER;
    CHECK_EQ(weft_runtime_open(&opts, &rt), WEFT_ERR_INVALID);
    opts.progress = WEFT_PROGRESS_LOOP;
    CHECK_EQ(weft_runtime_open(&opts, &rt), WEFT_ERR_INVALID);
    opts.progress = WEFT_PROGRESS_DEFAULT; /* which is by threads then */
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_EQ(weft_runtime_shards(rt), 2);
    CHECK_EQ(weft_runtime_shard(rt), UINT32_MAX);
    CHECK_OK(weft_runtime_close(rt));
    opts.shards = WEFT_SHARDS_MAX + 1;
    CHECK_EQ(weft_runtime_open(&opts, &rt), WEFT_ERR_INVALID);
    setenv("WEFT_SHARDS", "3", 1);
    opts.shards = 0;
    opts.progress = WEFT_PROGRESS_CALLER; /* the variable is for runtimes with threads */
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_EQ(weft_runtime_shards(rt), 1);
    CHECK_OK(weft_runtime_close(rt));
    opts.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_EQ(weft_runtime_shards(rt), 3);
    CHECK_OK(weft_runtime_close(rt));
    opts.shards = 1; /* options beat the environment */
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_EQ(weft_runtime_shards(rt), 1);
    CHECK_OK(weft_runtime_close(rt));
}

static void asks_for_stats(void *user)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_EQ(weft_runtime_get_stats(server, &stats), WEFT_ERR_STATE);
    CHECK_OK(weft_runtime_get_shard_stats(server, 0, &stats)); /* its own */
    CHECK_EQ(weft_runtime_get_shard_stats(server, 1, &stats), WEFT_ERR_STATE);
    CHECK_EQ(weft_runtime_shard(server), 0);
    *(bool *)user = true;
}

TEST(a_callback_does_not_wait_for_other_shards)
{
    weft_op_t op = WEFT_OP_INIT;
    bool ran = false;
    server = opens(SHARDS, "tcp");
    CHECK_OK(weft_runtime_call(server, asks_for_stats, &ran, &op));
    CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
    CHECK(ran);
    CHECK_OK(weft_runtime_close(server));
}

/* --- what a callback begins ------------------------------------------------------------------------------------------------- */

typedef struct later {
    weft_op_t timer;
    uint32_t shard; /* whose callback began it */
} later_t;

static _Atomic unsigned timers_over, turns_over;
static later_t laters[PEERS];

static void in_its_turn(void *user)
{
    CHECK_EQ(weft_runtime_shard(server), ((later_t *)user)->shard);
    atomic_fetch_add(&turns_over, 1);
}

static void timer_over(weft_op_t *op, void *user)
{
    CHECK_OK(op->status);
    CHECK_EQ(weft_runtime_shard(server), ((later_t *)user)->shard);
    CHECK_OK(weft_runtime_call(server, in_its_turn, user, NULL));
    atomic_fetch_add(&timers_over, 1);
}

static void starts_a_timer(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    later_t *later = &laters[atomic_fetch_add(&accepted_n, 1)];
    (void)l;
    (void)ep;
    (void)user;
    *later = (later_t){.timer = {.fn = timer_over, .user = later}, .shard = weft_runtime_shard(server)};
    atomic_fetch_add(&by_shard[later->shard], 1);
    CHECK_OK(weft_timer_start(server, WEFT_MILLISECOND, &later->timer));
}

TEST(timers_and_turns_that_a_callback_begins_are_on_its_shard)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    later_t first = {.shard = 0};
    lo.accept = starts_a_timer;
    atomic_store(&accepted_n, 0);
    memset((void *)by_shard, 0, sizeof by_shard);
    begin("tcp", &lo);
    connect_all();
    TEST_UNTIL(atomic_load(&turns_over) == PEERS, 30);
    CHECK_EQ(atomic_load(&timers_over), PEERS);
    for (int k = 0; k < SHARDS; k++)
        CHECK(atomic_load(&by_shard[k]) > 0);
    first.timer.fn = timer_over; /* of no callback: on the first */
    first.timer.user = &first;
    CHECK_OK(weft_timer_start(server, 0, &first.timer));
    TEST_UNTIL(atomic_load(&turns_over) == PEERS + 1, 30);
    end();
}

/* --- a runtime that calls itself -------------------------------------------------------------------------------------------- */

TEST(a_runtime_with_shards_connects_to_itself)
{
    each_way(way) {
        server = opens(SHARDS, *way);
        CHECK_OK(weft_listen(server, ports_tcp(), NULL, &listener));
        for (int i = 0; i < PEERS; i++) {
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_listener_accept(listener, &op));
            CHECK_OK(weft_ep_connect(server, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &eps[i]));
            CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        }
        CHECK_OK(weft_runtime_close(server));
    }
}

/* --- reconnect -------------------------------------------------------------------------------------------------------------- */

static _Atomic unsigned failed_n;

static weft_on_failure_t again(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep;
    (void)why;
    (void)user;
    atomic_fetch_add(&failed_n, 1);
    return WEFT_RECONNECT;
}

static void comes_back(void)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {0};
    weft_ep_id_t ids[PEERS];
    hooks.failed = again;
    lo.hooks = &hooks;
    begin("tcp", &lo);
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    eo.hooks.failed = again;
    weft_ep_t *theirs[PEERS];
    for (int i = 0; i < PEERS; i++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_listener_accept(listener, &op));
        CHECK_OK(weft_ep_connect(client, weft_listener_uri(listener), &eo, 20 * WEFT_SECOND, &eps[i]));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        theirs[i] = (weft_ep_t *)op.buf;
        ids[i] = weft_ep_id(theirs[i]);
    }
    /* every connection is cut: the descriptors of this process's sockets */
    for (int fd = 3; fd < 512; fd++) {
        int type;
        socklen_t n = sizeof type;
        struct sockaddr_storage peer;
        socklen_t peer_n = sizeof peer;
        if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) && type == SOCK_STREAM &&
            !getpeername(fd, (struct sockaddr *)&peer, &peer_n))
            shutdown(fd, SHUT_RDWR);
    }
    TEST_UNTIL(atomic_load(&failed_n) >= PEERS, 30);
    for (int i = 0; i < PEERS; i++) {
        TEST_UNTIL(weft_ep_get_state(eps[i]) == WEFT_EP_UP && weft_ep_get_state(theirs[i]) == WEFT_EP_UP, 40);
        CHECK_EQ(weft_ep_id(theirs[i]), ids[i]);
        CHECK(weft_ep_find(server, ids[i]) == theirs[i]);
        weft_op_t recv = WEFT_OP_INIT, send = WEFT_OP_INIT;
        int got = 0;
        CHECK_OK(weft_msg_recv(theirs[i], &got, sizeof got, 3, UINT64_MAX, &recv));
        CHECK_OK(weft_msg_send(eps[i], &i, sizeof i, 3, &send));
        CHECK_OK(weft_op_wait(&recv, 30 * WEFT_SECOND));
        CHECK_OK(weft_op_wait(&send, 30 * WEFT_SECOND));
        CHECK_EQ(got, i);
    }
    end();
}

TEST(a_peer_that_comes_back_gets_its_endpoint_on_its_shard)
{
    comes_back();
}

/* Its wire goes to that shard with the TLS that has begun on it. */
TEST(so_does_one_that_comes_over_tls)
{
    scheme = "tls";
    key = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
    comes_back();
}
