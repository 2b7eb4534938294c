/* A memory server on a runtime with several shards: peers of all shards allocate, find, extend and free at the same time, and die
 * at the same time; leases follow a client from shard to shard; what waits for memory gets it from another shard; a mirror has
 * stores of several shards; memory elements have guests on all of them; the server and the runtime close while all ask.
 * ctest: tls-long timeout=300 label=thread */
#define TEST_SECONDS 240
#include "ports.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/elements.h>
#include <weft/weft.h>

enum { SHARDS = 4, PEERS = 12, ROUNDS = 20, PAGE = 4096 };
#define LEASE (300 * WEFT_MILLISECOND)

static const char *const ways[] = {"tcp", "shm"};
#define each_way(w) for (const char *const *w = ways; w < ways + sizeof ways / sizeof *ways; w++)

typedef struct peer {
    unsigned i;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_store_t *store;
    pthread_t thread;
    weft_status_t ended;
} peer_t;

static weft_runtime_t *rt;
static weft_listener_t *listener;
static weft_store_server_t *server;
static peer_t peers[PEERS];
static _Atomic unsigned asking;
static _Atomic bool stop;

static weft_runtime_t *opens(const char *transports, uint32_t shards)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *made;
    o.transports = transports;
    o.progress = WEFT_PROGRESS_THREAD;
    o.shards = shards;
    CHECK_OK(weft_runtime_open(&o, &made));
    return made;
}

static weft_status_t done(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : weft_op_wait(op, 60 * WEFT_SECOND);
}

static void serve(const char *transports, uint64_t bytes)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    rt = opens(transports, SHARDS);
    o.bytes = bytes;
    CHECK_OK(weft_store_serve(rt, &o, &server));
    CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &listener));
}

static void connect_peer(peer_t *p)
{
    CHECK_OK(weft_ep_connect(p->rt, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &p->ep));
}

static weft_status_t open_store(peer_t *p, const uint8_t *id, uint64_t lease_ns)
{
    weft_store_opts_t o = WEFT_STORE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.id = id;
    o.lease_ns = lease_ns;
    weft_status_t st = done(weft_store_open(p->ep, &o, &op), &op);
    p->store = st ? NULL : weft_op_store(&op);
    return st;
}

/* Peers 0 to n-1, each with a runtime of its own and one shard; every shard of the server has some of them. */
static void connect_peers(const char *transports, unsigned n, uint64_t lease_ns)
{
    for (unsigned i = 0; i < n; i++) {
        peers[i] = (peer_t){.i = i, .rt = opens(transports, 1)};
        connect_peer(&peers[i]);
        CHECK_OK(open_store(&peers[i], NULL, lease_ns));
    }
    for (uint32_t k = 0; k < SHARDS && n >= SHARDS; k++) {
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        CHECK_OK(weft_runtime_get_shard_stats(rt, k, &s));
        CHECK(s.connections >= n / SHARDS);
    }
}

static weft_status_t alloc(peer_t *p, const char *name, uint64_t len, bool shared, weft_block_t **block_out)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.len = len;
    o.name = name;
    o.shared = shared;
    weft_status_t st = done(weft_block_alloc(p->store, &o, &op), &op);
    *block_out = st ? NULL : weft_op_block(&op);
    return st;
}

static weft_status_t find(peer_t *p, const char *name, weft_block_t **block_out)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = done(weft_block_open(p->store, name, &op), &op);
    *block_out = st ? NULL : weft_op_block(&op);
    return st;
}

static weft_status_t release(weft_block_t *block)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_block_free(block, &op);
    if (st)
        weft_block_drop(block);
    return done(st, &op);
}

/* It stays at the server. */
static weft_status_t leave(peer_t *p, const char *name, bool shared)
{
    weft_block_t *b;
    weft_status_t st = alloc(p, name, PAGE, shared, &b);
    weft_block_drop(b);
    return st;
}

static weft_status_t look(peer_t *p, const char *name)
{
    weft_block_t *b;
    weft_status_t st = find(p, name, &b);
    weft_block_drop(b);
    return st;
}

static weft_store_stats_t stats(void)
{
    weft_store_stats_t s = WEFT_STORE_STATS_INIT;
    CHECK_OK(weft_store_server_get_stats(server, &s));
    return s;
}

/* What goes with leases and connections goes soon. */
#define UNTIL(cond) \
    do { \
        double until_end = test_now() + 20; \
        while (!(cond)) { \
            if (test_now() > until_end) \
                FAIL("%s did not come true", #cond); \
            usleep(2000); \
        } \
    } while (0)

static void end(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        CHECK_OK(weft_runtime_close(peers[i].rt));
    CHECK_OK(weft_runtime_close(rt));
}

/* --- all at once ---------------------------------------------------------------------------------------------------------- */

static void *works(void *arg)
{
    peer_t *p = (peer_t *)arg;
    char own[32], other[32];
    snprintf(own, sizeof own, "block %u", p->i);
    snprintf(other, sizeof other, "block %u", (p->i + 1) % PEERS);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_block_t *b, *unnamed, *theirs;
        uint64_t word = p->i * 1000 + round, back = 0;
        CHECK_OK(alloc(p, own, PAGE, false, &b));
        CHECK_OK(alloc(p, NULL, 3 * PAGE, false, &unnamed));
        CHECK_OK(done(weft_rma_write(weft_block_remote(b), 0, &word, sizeof word, &op), &op));
        CHECK_OK(done(weft_block_extend(b, 2 * PAGE, &op), &op));
        CHECK_OK(done(weft_rma_read(weft_block_remote(b), 0, &back, sizeof back, &op), &op));
        CHECK_EQ(back, word);
        weft_status_t st = find(p, other, &theirs); /* it is there, or not, or goes between the reply and the attachment */
        if (!st) {
            st = done(weft_rma_read(weft_block_remote(theirs), 0, &back, sizeof back, &op), &op);
            CHECK(st == WEFT_ERR_STALE || (!st && (!back || back / 1000 == (p->i + 1) % PEERS)));
            weft_block_drop(theirs);
        } else {
            CHECK(st == WEFT_ERR_NOTFOUND || st == WEFT_ERR_STALE);
        }
        CHECK_OK(release(unnamed));
        CHECK_OK(release(b));
    }
    return NULL;
}

TEST(peers_of_all_shards_allocate_find_extend_and_free_at_the_same_time)
{
    each_way(way) {
        serve(*way, UINT64_C(64) << 20);
        connect_peers(*way, PEERS, 0);
        for (unsigned i = 0; i < PEERS; i++)
            pthread_create(&peers[i].thread, NULL, works, &peers[i]);
        for (unsigned i = 0; i < PEERS; i++)
            pthread_join(peers[i].thread, NULL);
        weft_store_stats_t s = stats();
        CHECK_EQ(s.allocs, 2 * PEERS * ROUNDS);
        CHECK_EQ(s.frees, s.allocs);
        CHECK_EQ(s.extends, PEERS * ROUNDS);
        CHECK(!s.blocks && !s.used_bytes && s.clients == PEERS);
        end(PEERS);
    }
}

/* One name, many who want it: one has it at a time. */
static _Atomic unsigned holders, got;

static void *wants(void *arg)
{
    peer_t *p = (peer_t *)arg;
    for (int round = 0; round < ROUNDS; round++) {
        weft_block_t *b;
        weft_status_t st = alloc(p, "the one", PAGE, round % 2, &b);
        if (st) {
            CHECK_EQ(st, WEFT_ERR_STATE);
            continue;
        }
        CHECK_EQ(atomic_fetch_add(&holders, 1), 0);
        atomic_fetch_add(&got, 1);
        atomic_fetch_sub(&holders, 1); /* before the free: the next may have it before that is complete */
        CHECK_OK(release(b));
    }
    return NULL;
}

TEST(a_name_belongs_to_one_of_all_shards)
{
    serve("tcp", UINT64_C(64) << 20);
    connect_peers("tcp", PEERS, 0);
    for (unsigned i = 0; i < PEERS; i++)
        pthread_create(&peers[i].thread, NULL, wants, &peers[i]);
    for (unsigned i = 0; i < PEERS; i++)
        pthread_join(peers[i].thread, NULL);
    CHECK(got); /* whoever comes when nobody has it gets it */
    CHECK_EQ(stats().allocs, got);
    CHECK_EQ(stats().blocks, 0);
    end(PEERS);
}

/* --- dying ---------------------------------------------------------------------------------------------------------------- */

static void *dies(void *arg)
{
    weft_ep_abort(((peer_t *)arg)->ep, NULL);
    return NULL;
}

TEST(what_peers_of_all_shards_had_goes_when_they_die_at_once)
{
    each_way(way) {
        serve(*way, UINT64_C(64) << 20);
        connect_peers(*way, PEERS, LEASE);
        for (unsigned i = 0; i < PEERS; i++) {
            char name[32];
            snprintf(name, sizeof name, "shared %u", i);
            for (int k = 0; k < 3; k++)
                CHECK_OK(leave(&peers[i], NULL, false));
            CHECK_OK(leave(&peers[i], name, true));
        }
        CHECK_EQ(stats().blocks, 4 * PEERS);
        for (unsigned i = 0; i < PEERS - 1; i++)
            pthread_create(&peers[i].thread, NULL, dies, &peers[i]);
        for (unsigned i = 0; i < PEERS - 1; i++)
            pthread_join(peers[i].thread, NULL);
        UNTIL(stats().expired_clients == PEERS - 1);
        UNTIL(stats().used_bytes == (PEERS + 3) * PAGE); /* the shared ones, and those of the one that lives */
        weft_store_stats_t s = stats();
        CHECK(s.expired_blocks == 3 * (PEERS - 1) && s.clients == 1 && s.shared_blocks == PEERS);
        CHECK_OK(look(&peers[PEERS - 1], "shared 0")); /* at another shard than it was made */
        end(PEERS);
    }
}

/* A process: it connects to the address that it reads, allocates, says so, and sleeps until it is killed. */
static void lives(int from, int to)
{
    char uri[128] = "";
    peer_t p = {0};
    if (read(from, uri, sizeof uri - 1) <= 0)
        _exit(2);
    p.rt = opens("shm,tcp", 1);
    if (weft_ep_connect(p.rt, uri, NULL, 20 * WEFT_SECOND, &p.ep) || open_store(&p, NULL, LEASE))
        _exit(3);
    for (int k = 0; k < 3; k++)
        if (leave(&p, NULL, false))
            _exit(4);
    if (write(to, "x", 1) == 1)
        pause();
    _exit(5);
}

TEST(what_processes_at_all_shards_had_goes_when_they_are_killed_at_once)
{
    int down[PEERS][2], up[2];
    pid_t pid[PEERS];
    char x;
    CHECK(!pipe(up));
    for (unsigned i = 0; i < PEERS; i++) { /* before there are threads */
        CHECK(!pipe(down[i]));
        pid[i] = fork();
        CHECK(pid[i] >= 0);
        if (!pid[i])
            lives(down[i][0], up[1]);
    }
    serve("shm,tcp", UINT64_C(64) << 20);
    const char *uri = weft_listener_uri(listener);
    for (unsigned i = 0; i < PEERS; i++)
        CHECK_EQ(write(down[i][1], uri, strlen(uri)), (ssize_t)strlen(uri));
    for (unsigned i = 0; i < PEERS; i++)
        CHECK_EQ(read(up[0], &x, 1), 1);
    CHECK(stats().blocks == 3 * PEERS && stats().clients == PEERS);
    for (unsigned i = 0; i < PEERS; i++)
        CHECK(!kill(pid[i], SIGKILL));
    UNTIL(stats().expired_clients == PEERS && !stats().used_bytes);
    CHECK(stats().expired_blocks == 3 * PEERS && !stats().clients);
    for (unsigned i = 0; i < PEERS; i++)
        CHECK_EQ(waitpid(pid[i], NULL, 0), pid[i]);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_lease_follows_its_client_to_another_shard)
{
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    serve("tcp", UINT64_C(64) << 20);
    connect_peers("tcp", SHARDS, 0);
    peer_t *p = &peers[0], mover = *p;
    CHECK_OK(weft_store_get_info(p->store, &info));
    CHECK_OK(leave(p, "mine", false));
    for (unsigned k = 0; k < 2 * SHARDS;
         k++) { /* a new connection each time, to whatever shard has the fewest; the old one stays */
        peer_t was = mover;
        connect_peer(&mover);
        CHECK_OK(open_store(&mover, info.id, LEASE));
        CHECK_EQ(leave(&was, NULL, false), WEFT_ERR_STALE); /* it is somewhere else */
        CHECK_OK(look(&mover, "mine"));
        CHECK_EQ(stats().clients, SHARDS);
        if (k % 2)
            usleep(LEASE / 2000); /* timers of the shards that it left go off later, and mean nothing */
    }
    usleep(2 * LEASE / 1000);
    CHECK_OK(look(&mover, "mine")); /* it is connected */
    weft_ep_abort(mover.ep, NULL);
    UNTIL(stats().expired_clients == 1);
    CHECK_EQ(look(&peers[1], "mine"), WEFT_ERR_NOTFOUND);
    end(SHARDS);
}

/* --- waiting -------------------------------------------------------------------------------------------------------------- */

TEST(memory_that_one_shard_gives_back_serves_who_waits_at_another)
{
    enum { LARGE = 24 << 20 };
    static uint8_t some[LARGE];
    memset(some, 7, sizeof some);
    serve("tcp", LARGE);
    connect_peers("tcp", SHARDS, 0);
    for (int round = 0; round < 12; round++) {
        peer_t *has = &peers[round % SHARDS], *next = &peers[(round + 1) % SHARDS];
        weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT, freed = WEFT_OP_INIT, waits = WEFT_OP_INIT;
        weft_block_t *b;
        CHECK_OK(alloc(has, NULL, LARGE, false, &b));
        CHECK_OK(done(weft_rma_write(weft_block_remote(b), 0, some, LARGE, &op), &op));
        o.len = LARGE;
        CHECK_OK(weft_block_free(b, &freed));
        weft_status_t st = WEFT_ERR_LIMIT; /* it came before the free did */
        for (double until = test_now() + 20; st == WEFT_ERR_LIMIT && test_now() < until;)
            st = done(weft_block_alloc(next->store, &o, &waits), &waits);
        CHECK_OK(st);
        CHECK_OK(weft_op_wait(&freed, 20 * WEFT_SECOND));
        CHECK_OK(release(weft_op_block(&waits)));
    }
    end(SHARDS);
}

/* --- clients with shards of their own -------------------------------------------------------------------------------------- */

/* Callbacks run on the shard of the endpoint. */
static _Atomic unsigned on_shard[SHARDS], callbacks;
static weft_runtime_t *client;

static void allocated(weft_op_t *op, void *user)
{
    uint32_t k = weft_runtime_shard(client);
    CHECK_OK(op->status);
    CHECK(k < SHARDS && user == &on_shard[k]);
    atomic_fetch_add(&on_shard[k], 1);
    weft_block_drop(weft_op_block(op));
    atomic_fetch_add(&callbacks, 1);
}

TEST(a_store_is_on_the_shard_of_its_endpoint)
{
    static weft_op_t ops[SHARDS][8];
    weft_ep_t *eps[SHARDS];
    serve("tcp", UINT64_C(64) << 20);
    client = opens("tcp", SHARDS);
    for (uint32_t k = 0; k < SHARDS; k++) {
        weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        eo.shard = k + 1;
        CHECK_OK(weft_ep_connect(client, weft_listener_uri(listener), &eo, 20 * WEFT_SECOND, &eps[k]));
        CHECK_OK(done(weft_store_open(eps[k], NULL, &op), &op));
        for (int i = 0; i < 8; i++) {
            weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
            o.len = PAGE;
            ops[k][i] = (weft_op_t){.fn = allocated, .user = (void *)(uintptr_t)&on_shard[k]};
            CHECK_OK(weft_block_alloc(weft_op_store(&op), &o, &ops[k][i]));
        }
    }
    UNTIL(callbacks == 8 * SHARDS);
    for (uint32_t k = 0; k < SHARDS; k++)
        CHECK_EQ(on_shard[k], 8);
    CHECK_OK(weft_runtime_close(client));
    UNTIL(stats().clients == SHARDS); /* lost: they may come back */
    CHECK_OK(weft_runtime_close(rt));
}

static void *writes(void *arg)
{
    weft_mirror_t *m = (weft_mirror_t *)arg;
    static _Atomic unsigned nth;
    unsigned i = atomic_fetch_add(&nth, 1);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        weft_op_t op = WEFT_OP_INIT;
        uint64_t word[2] = {i, round}, back[2] = {0, 0};
        CHECK_OK(done(weft_mirror_write(m, i * 8192u, word, sizeof word, &op), &op));
        CHECK_OK(done(weft_mirror_read(m, i * 8192u, back, sizeof back, &op), &op));
        CHECK(back[0] == i && back[1] == round);
    }
    return NULL;
}

TEST(a_mirror_has_stores_of_several_shards_and_survives_one)
{
    enum { SERVERS = 3, THREADS = 4 };
    weft_runtime_t *servers[SERVERS];
    weft_store_t *stores[SERVERS];
    weft_mirror_opts_t mo = WEFT_MIRROR_OPTS_INIT;
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    pthread_t threads[THREADS];
    client = opens("tcp", SHARDS);
    for (uint32_t k = 0; k < SERVERS; k++) {
        weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
        weft_ep_t *ep;
        serve("tcp", UINT64_C(8) << 20);
        servers[k] = rt;
        eo.shard = k + 2; /* none on the first, whose driver the mirror has */
        eo.reconnect_ns = 1;
        CHECK_OK(weft_ep_connect(client, weft_listener_uri(listener), &eo, 20 * WEFT_SECOND, &ep));
        CHECK_OK(done(weft_store_open(ep, NULL, &op), &op));
        stores[k] = weft_op_store(&op);
    }
    mo.name = "mirror";
    mo.len = 1 << 20;
    mo.write = true;
    mo.lease_ns = LEASE;
    mo.stores = stores;
    mo.n_stores = SERVERS;
    CHECK_OK(done(weft_mirror_open(client, &mo, &op), &op));
    weft_mirror_t *m = weft_op_mirror(&op);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, writes, m);
    usleep(20000);
    CHECK_OK(weft_runtime_close(servers[0])); /* under their hands */
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t word = 7;
    CHECK_OK(done(weft_mirror_write(m, 0, &word, sizeof word, &op), &op)); /* complete: the lost one is fenced */
    CHECK_OK(weft_mirror_get_info(m, &info));
    CHECK(info.members == SERVERS && info.member[0] == WEFT_MEMBER_FENCED && info.member[1] == WEFT_MEMBER_UP);
    CHECK_OK(done(weft_mirror_close(m, &op), &op));
    mo.write = false;
    mo.len = 0;
    CHECK_OK(done(weft_mirror_open(client, &mo, &op), &op)); /* left open: it goes with its runtime */
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(servers[1]));
    CHECK_OK(weft_runtime_close(servers[2]));
}

/* --- closing -------------------------------------------------------------------------------------------------------------- */

static void *asks(void *arg)
{
    peer_t *p = (peer_t *)arg;
    weft_block_t *b;
    bool counted = false;
    while (!p->ended && !atomic_load(&stop)) {
        p->ended = alloc(p, NULL, PAGE, false, &b);
        if (!p->ended && p->i % 2)
            p->ended = release(b);
        else
            weft_block_drop(b);
        if (!counted)
            atomic_fetch_add(&asking, 1);
        counted = true;
    }
    return NULL;
}

static void ask_all(void)
{
    stop = false;
    asking = 0;
    for (unsigned i = 0; i < PEERS; i++)
        pthread_create(&peers[i].thread, NULL, asks, &peers[i]);
    UNTIL(asking == PEERS);
}

TEST(a_server_closes_while_peers_of_all_shards_ask)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        serve(*way, UINT64_C(1) << 30);
        connect_peers(*way, PEERS, 0);
        ask_all();
        CHECK_OK(done(weft_store_server_close(server, &op), &op));
        for (unsigned i = 0; i < PEERS; i++) {
            pthread_join(peers[i].thread, NULL);
            CHECK(peers[i].ended == WEFT_ERR_UNSUPPORTED || peers[i].ended == WEFT_ERR_STALE ||
                  peers[i].ended == WEFT_ERR_NOTFOUND || peers[i].ended == WEFT_ERR_LIMIT);
        }
        weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT; /* another one, with nothing of the first */
        o.bytes = 1 << 20;
        CHECK_OK(weft_store_serve(rt, &o, &server));
        CHECK_OK(open_store(&peers[1], NULL, 0));
        CHECK_OK(leave(&peers[1], "anew", false));
        CHECK_EQ(stats().blocks, 1);
        end(PEERS);
    }
}

TEST(a_runtime_closes_while_peers_of_all_shards_ask)
{
    each_way(way) {
        serve(*way, UINT64_C(1) << 30);
        connect_peers(*way, PEERS, 0);
        ask_all();
        CHECK_OK(weft_runtime_close(rt));
        stop = true;
        for (unsigned i = 0; i < PEERS; i++) {
            pthread_join(peers[i].thread, NULL);
            CHECK_OK(weft_runtime_close(peers[i].rt));
        }
    }
}

/* --- memory elements -------------------------------------------------------------------------------------------------------- */

static void *visits(void *arg)
{
    const char *durl = (const char *)arg;
    for (int round = 0; round < 3 && !atomic_load(&stop); round++) {
        weft_action_t *a;
        weft_transport_t *t;
        weft_op_t op = WEFT_OP_INIT;
        weft_runtime_t *own = opens("tcp", 1 + (uint32_t)round % 3);
        CHECK_OK(weft_action_open(own, "visitor", NULL, &a));
        CHECK_OK(weft_action_add(a, durl));
        CHECK_OK(weft_action_get(a, "mem", "rdma", &t));
        weft_status_t st = done(weft_transport_ready(t, &op), &op);
        CHECK(!st || atomic_load(&stop));
        CHECK_OK(weft_runtime_close(own)); /* with all that is open: its connection just ends */
        atomic_fetch_add(&asking, 1);
    }
    return NULL;
}

TEST(guests_of_a_memory_element_come_and_go_on_all_shards_while_it_closes)
{
    static char durl[4096];
    for (int round = 0; round < 2; round++) {
        weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
        weft_memory_stats_t s = WEFT_MEMORY_STATS_INIT;
        weft_memory_t *m;
        weft_op_t op = WEFT_OP_INIT;
        pthread_t threads[4];
        size_t len = sizeof durl;
        rt = opens("tcp", SHARDS);
        o.name = "mem";
        o.bytes = 1 << 16;
        o.spare = 1 << 16;
        CHECK_OK(weft_memory_open(rt, &o, &m));
        CHECK_OK(weft_memory_durl(m, durl, &len));
        stop = false;
        asking = 0;
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, visits, durl);
        UNTIL(asking >= (unsigned)(round % 2 ? 2 : 12));
        CHECK_OK(weft_memory_get_stats(m, &s));
        CHECK(s.accepted >= asking);
        stop = true;
        CHECK_OK(done(weft_memory_close(m, &op), &op));
        if (round % 2) /* the others are told meanwhile, and must not wait for it for ever */
            CHECK_OK(weft_runtime_close(rt));
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        if (!(round % 2))
            CHECK_OK(weft_runtime_close(rt));
    }
}
