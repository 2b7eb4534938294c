/* Regions of a runtime with several shards: peers of all shards read, write and count at the same time, over each path; a revoke
 * and a free wait for all of them; names, lengths, times and notifications reach all; the runtime closes while all access.
 * ctest: long timeout=400 label=thread */
#define TEST_SECONDS 360
#include "ports.h"
#include "test.h"
#include "lib/spread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>
#include <weft/weft.h>

enum { SHARDS = 4, PEERS = 12, EACH = 60, PART = 1 << 16, WORDS = 4, BLOCK = 4096, SHARED = 2 * BLOCK };
enum { LEN = SHARED + PEERS * PART };

typedef struct way {
    const char *transports;
    weft_rma_path_t path;
} way_t;
static const way_t ways[] = {
    {"tcp", WEFT_RMA_CHECKED}, {"shm", WEFT_RMA_CHECKED}, {"shm", WEFT_RMA_MAPPED}, {"ucx_tcp", WEFT_RMA_NATIVE}};
#define each_way(w) \
    for (const way_t *w = ways; w < ways + sizeof ways / sizeof ways[0]; w++) \
        if (has(w))

typedef struct peer {
    unsigned i;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_remote_t *remote;
    pthread_t thread;
    weft_status_t ended; /* what its first access that failed ended with */
} peer_t;

static weft_runtime_t *server;
static weft_listener_t *listener;
static weft_region_t *region;
static peer_t peers[PEERS];
static const uint8_t zero[LEN];
static _Atomic bool stop;
static _Atomic unsigned told, told_on[SHARDS], working;
static _Atomic uint64_t told_sum;

static void on_notify(weft_region_t *r, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    CHECK(r == region && user == &told && from && offset >= SHARED && len);
    atomic_fetch_add(&told, 1);
    atomic_fetch_add(&told_sum, value);
    atomic_fetch_add(&told_on[weft_runtime_shard(server)], 1);
}

static weft_region_t *make(const char *name, bool unmapped)
{
    weft_region_opts_t o = {.size = sizeof o, .len = LEN, .max_len = 2 * LEN, .name = name, .unmapped = unmapped};
    weft_region_t *r;
    o.notify = on_notify;
    o.user = &told;
    CHECK_OK(weft_region_new(server, &o, &r));
    return r;
}

static weft_runtime_opts_t opts_of(const char *transports)
{
    setenv("WEFT_TRUSTED", "emulated", 1);
    return (weft_runtime_opts_t){
        .size = sizeof(weft_runtime_opts_t), .transports = transports, .key = "0123456789abcdef", .key_len = 16};
}

static weft_runtime_t *opens(uint32_t shards, const char *transports, weft_progress_mode_t progress)
{
    weft_runtime_opts_t opts = opts_of(transports);
    weft_runtime_t *rt;
    opts.shards = shards;
    opts.progress = progress;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    return rt;
}

/* UCX may not be built in, and is not made for the thread sanitizer. */
static bool has(const way_t *way)
{
    if (strcmp(way->transports, "ucx_tcp") != 0)
        return true;
#ifdef __SANITIZE_THREAD__
    return false;
#else
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = opts_of(way->transports);
    return !weft_runtime_open(&opts, &rt) && !weft_runtime_close(rt);
#endif
}

static void begin(const way_t *way)
{
    server = opens(SHARDS, way->transports, WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_listen(server, ports_tcp(), NULL, &listener));
    region = make("mem", false);
    atomic_store(&told, 0);
    atomic_store(&told_sum, 0);
    memset((void *)told_on, 0, sizeof told_on);
    atomic_store(&stop, false);
    atomic_store(&working, 0);
    /* one that has a fabric key answers when it is taken back */
    weft_progress_mode_t progress = way->path == WEFT_RMA_NATIVE ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER;
    for (unsigned i = 0; i < PEERS; i++) {
        peer_t *p = &peers[i];
        *p = (peer_t){.i = i, .rt = opens(1, way->transports, progress)};
        CHECK_OK(weft_ep_connect(p->rt, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &p->ep));
        CHECK_OK(spread_attach(p->ep, "mem", way->path, &p->remote));
    }
}

static void end(void)
{
    for (unsigned i = 0; i < PEERS; i++) {
        weft_remote_drop(peers[i].remote);
        CHECK_OK(weft_runtime_close(peers[i].rt));
    }
    if (server)
        CHECK_OK(weft_runtime_close(server));
}

static void all_do(void *(*fn)(void *arg))
{
    for (unsigned i = 0; i < PEERS; i++)
        CHECK(!pthread_create(&peers[i].thread, NULL, fn, &peers[i]));
}

static void join_all(void)
{
    for (unsigned i = 0; i < PEERS; i++)
        pthread_join(peers[i].thread, NULL);
}

static weft_region_info_t info(void)
{
    weft_region_info_t in = WEFT_REGION_INFO_INIT;
    CHECK_OK(weft_region_get_info(region, &in));
    return in;
}

static weft_status_t ends(weft_status_t (*call)(weft_region_t *, weft_op_t *), weft_region_t *r)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call(r, &op));
    return weft_op_wait(&op, 60 * WEFT_SECOND);
}

/* --- reads, writes, atomics ---------------------------------------------------------------------------------------------- */

static size_t size_of(unsigned i)
{
    return i % 29 == 28 ? 60000 : i % 9 == 8 ? 6000 : 1 + i % 700;
}

static void *everything(void *arg)
{
    peer_t *p = arg;
    uint8_t *out = malloc(PART), *in = malloc(PART);
    uint64_t base = SHARED + (uint64_t)p->i * PART;
    for (unsigned i = 0; i < EACH; i++) {
        weft_op_t op = WEFT_OP_INIT;
        size_t n = size_of(i);
        memset(out, (int)(p->i * 16 + i), n);
        CHECK_OK(spread_done(weft_rma_atomic(p->remote, WEFT_RMA_ADD, 8 * (i % WORDS), i % WORDS == 3 ? 4 : 8, p->i + 1, 0, &op),
                             &op));
        CHECK_OK(spread_done(i % 5 ? weft_rma_write(p->remote, base + i % 7, out, n, &op)
                                   : weft_rma_write_notify(p->remote, base + i % 7, out, n, p->i + 1, &op),
                             &op));
        CHECK_OK(spread_done(weft_rma_read(p->remote, base + i % 7, in, n, &op), &op));
        CHECK(!memcmp(in, out, n));
        for (uint64_t seen = 0, before = 1; seen != before; seen = op.value) { /* a counter by compare and swap */
            before = seen;
            CHECK_OK(spread_done(weft_rma_atomic(p->remote, WEFT_RMA_CAS, 64, 8, before + 1, before, &op), &op));
        }
    }
    free(out);
    free(in);
    return NULL;
}

TEST(peers_of_all_shards_use_a_region_at_the_same_time)
{
    each_way(w) {
        begin(w);
        CHECK_EQ(info().attached, PEERS);
        CHECK_EQ(info().mapped, w->path == WEFT_RMA_MAPPED ? PEERS : 0);
        all_do(everything);
        join_all();
        weft_region_info_t in = info();
        weft_remote_info_t ri = WEFT_REMOTE_INFO_INIT;
        CHECK_OK(weft_remote_get_info(peers[0].remote, &ri));
        CHECK_EQ(ri.path, w->path);
        CHECK_OK(ends(weft_region_revoke, region)); /* as a program does before it reads what others have written */
        const uint64_t *words = weft_region_base(region);
        for (unsigned k = 0; k < WORDS; k++)
            CHECK_EQ(words[k], (uint64_t)(EACH / WORDS) * PEERS * (PEERS + 1) / 2);
        CHECK_EQ(words[8], PEERS * EACH);
        const uint8_t *bytes = (const uint8_t *)words;
        for (unsigned i = 0; i < PEERS; i++)
            for (size_t k = 0, n = size_of(EACH - 1); k < n; k++)
                CHECK_EQ(bytes[SHARED + i * PART + (EACH - 1) % 7 + k], (uint8_t)(i * 16 + EACH - 1));
        for (unsigned k = 0; k < SHARDS; k++) /* there are peers on more than one */
            CHECK(atomic_load(&told_on[k]) < atomic_load(&told));
        CHECK_EQ(atomic_load(&told), PEERS * EACH / 5);
        CHECK_EQ(atomic_load(&told_sum), (uint64_t)EACH / 5 * PEERS * (PEERS + 1) / 2);
        if (w->path == WEFT_RMA_CHECKED) {
            CHECK_EQ(in.reads, PEERS * EACH);
            CHECK_EQ(in.writes, PEERS * EACH);
            CHECK(in.atomics >= 2 * PEERS * EACH);
        }
        end();
    }
}

/* All write and read the same block, many at a time: what is read was written by one of them. With the thread sanitizer an access
 * that is not whole is also a data race. */
static void *whole(void *arg)
{
    enum { WINDOW = 16 };
    peer_t *p = arg;
    static _Thread_local uint8_t blocks[WINDOW][BLOCK], mine[BLOCK];
    static _Thread_local weft_op_t ops[WINDOW];
    memset(mine, (int)(p->i + 1), sizeof mine);
    for (unsigned i = 0; i < EACH / 2; i++) {
        memset(ops, 0, sizeof ops);
        for (unsigned k = 0; k < WINDOW; k++)
            CHECK_OK(k % 2 ? weft_rma_read(p->remote, BLOCK / 2, blocks[k], BLOCK, &ops[k])
                           : weft_rma_write(p->remote, BLOCK / 2, mine, BLOCK, &ops[k]));
        for (unsigned k = 0; k < WINDOW; k++) {
            CHECK_OK(spread_done(WEFT_OK, &ops[k]));
            for (size_t n = 1; k % 2 && n < BLOCK; n++)
                if (blocks[k][n] != blocks[k][0])
                    FAIL("byte %zu is %u, and the first is %u", n, blocks[k][n], blocks[k][0]);
        }
    }
    return NULL;
}

TEST(a_checked_access_of_4_kib_is_whole_to_those_of_other_shards)
{
    for (unsigned k = 0; k < 2; k++) {
        begin(&ways[k]);
        all_do(whole);
        join_all();
        end();
    }
}

/* --- revoke, free, close: while all access ---------------------------------------------------------------------------------- */

/* Until it fails. Whatever touches the memory says so before. */
static void *until_it_fails(void *arg)
{
    peer_t *p = arg;
    uint8_t *buf = calloc(1, PART);
    uint64_t base = SHARED + (uint64_t)p->i * PART;
    atomic_fetch_add(&working, 1);
    for (unsigned i = 0; !p->ended && !atomic_load(&stop); i++) {
        weft_op_t op = WEFT_OP_INIT;
        size_t n = i % 7 == 6 ? PART : 1 + i % 4096;
        memset(buf, 1 + (int)(i % 255), n);
        weft_status_t st = i % 3 == 0   ? weft_rma_read(p->remote, base, buf, n, &op)
                           : i % 3 == 1 ? weft_rma_write(p->remote, base, buf, n, &op)
                                        : weft_rma_atomic(p->remote, WEFT_RMA_ADD, 0, 8, 1, 0, &op);
        p->ended = spread_done(st, &op);
    }
    free(buf);
    return NULL;
}

static void all_work(void)
{
    all_do(until_it_fails);
    while (atomic_load(&working) < PEERS)
        usleep((useconds_t)(0.001 * 1e6));
    usleep((useconds_t)(0.02 * 1e6));
}

TEST(after_a_revoke_nobody_of_any_shard_touches_the_memory)
{
    each_way(w) {
        begin(w);
        for (unsigned round = 0; round < 6; round++) {
            atomic_store(&working, 0);
            all_work();
            CHECK_OK(ends(weft_region_revoke, region));
            uint8_t *base = weft_region_base(region);
            memset(base, 0, LEN);
            usleep((useconds_t)(0.02 * 1e6));
            CHECK(!memcmp(base, zero, LEN));
            join_all();
            for (unsigned i = 0; i < PEERS; i++) {
                CHECK_EQ(peers[i].ended, WEFT_ERR_STALE);
                peers[i].ended = WEFT_OK;
                weft_remote_drop(peers[i].remote);
                CHECK_OK(spread_attach(peers[i].ep, "mem", w->path, &peers[i].remote));
            }
        }
        CHECK_EQ(info().generation, 7);
        end();
    }
}

TEST(revokes_that_nobody_waits_for_and_that_are_cancelled)
{
    each_way(w) {
        begin(w);
        all_work();
        weft_op_t ops[8];
        memset(ops, 0, sizeof ops);
        for (unsigned i = 0; i < 8; i++) {
            CHECK_OK(weft_region_revoke(region, NULL));
            CHECK_OK(weft_region_revoke(region, &ops[i]));
            weft_op_cancel(&ops[i]);
        }
        for (unsigned i = 0; i < 8; i++) {
            weft_status_t st = weft_op_wait(&ops[i], 60 * WEFT_SECOND);
            CHECK(!st || st == WEFT_ERR_CANCELLED);
        }
        join_all();
        for (unsigned i = 0; i < PEERS; i++)
            CHECK_EQ(peers[i].ended, WEFT_ERR_STALE);
        CHECK_EQ(info().generation, 17);
        end();
    }
}

TEST(a_free_waits_for_the_peers_of_all_shards)
{
    each_way(w) {
        for (unsigned own = 0; own < 2; own++) {
            begin(w);
            void *buf = own ? NULL : mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (!own && w->path == WEFT_RMA_CHECKED) { /* memory of the program: it can be unmapped afterwards */
                weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
                o.len = LEN;
                o.buf = buf;
                o.name = "buf";
                CHECK_OK(ends(weft_region_free, region));
                CHECK_OK(weft_region_new(server, &o, &region));
                for (unsigned i = 0; i < PEERS; i++) {
                    weft_remote_drop(peers[i].remote);
                    CHECK_OK(spread_attach(peers[i].ep, "buf", w->path, &peers[i].remote));
                }
            }
            all_work();
            CHECK_OK(ends(weft_region_free, region));
            if (buf)
                CHECK(!munmap(buf, LEN));
            join_all();
            for (unsigned i = 0; i < PEERS; i++) {
                weft_remote_t *none;
                CHECK_EQ(peers[i].ended, WEFT_ERR_STALE);
                CHECK_EQ(spread_attach(peers[i].ep, "mem", w->path, &none), WEFT_ERR_NOTFOUND);
            }
            end();
        }
    }
}

TEST(memory_that_is_kept_stays_when_the_peers_of_all_shards_are_gone)
{
    each_way(w) {
        begin(w);
        void *map;
        size_t n;
        CHECK_OK(weft_region_keep(region, &map, &n));
        uint8_t *base = weft_region_base(region);
        all_work();
        CHECK_OK(ends(weft_region_free, region));
        memset(base, 0, LEN);
        join_all();
        CHECK(!memcmp(base, zero, LEN));
        CHECK(!munmap(map, n));
        end();
    }
}

TEST(a_runtime_closes_while_all_access)
{
    each_way(w)
        for (unsigned round = 0; round < 10; round++) {
            begin(w);
            if (round % 3 == 1)
                CHECK_OK(weft_region_revoke(region, NULL));
            all_work();
            if (round % 3 == 2)
                CHECK_OK(weft_region_free(region, NULL));
            CHECK_OK(weft_runtime_close(server));
            server = NULL;
            atomic_store(&stop, w->path == WEFT_RMA_MAPPED); /* its pages are there as long as somebody has them */
            join_all();
            end();
        }
}

/* Peers come, attach, drop and go on all shards, while the region is revoked again and again. */
static void *come_and_go(void *arg)
{
    peer_t *p = arg;
    while (!atomic_load(&stop)) {
        weft_op_t op = WEFT_OP_INIT;
        weft_remote_t *r;
        uint64_t word;
        weft_status_t st = spread_attach(p->ep, "mem", WEFT_RMA_ANY, &r);
        CHECK(!st || st == WEFT_ERR_STALE || st == WEFT_ERR_NOTFOUND);
        st = r ? spread_done(weft_rma_read(r, 0, &word, sizeof word, &op), &op) : WEFT_OK;
        CHECK(!st || st == WEFT_ERR_STALE);
        weft_remote_drop(r);
    }
    return NULL;
}

TEST(regions_come_and_go_while_peers_attach)
{
    each_way(w) {
        begin(w);
        all_do(come_and_go);
        for (unsigned i = 0; i < 30; i++) {
            CHECK_OK(ends(weft_region_revoke, region));
            usleep((useconds_t)(0.001 * 1e6));
            if (i % 2)
                CHECK_OK(ends(weft_region_free, region));
            else
                CHECK_OK(weft_region_free(region, NULL));
            region = make("mem", i % 3 == 0);
            usleep((useconds_t)(0.002 * 1e6));
        }
        atomic_store(&stop, true);
        join_all();
        end();
    }
}

/* --- what the owner sets for all ----------------------------------------------------------------------------------------- */

TEST(keys_names_lengths_rights_and_times_are_the_same_on_all_shards)
{
    for (unsigned k = 0; k < 2; k++) {
        begin(&ways[k]);
        weft_region_t *other = make("one", true);
        CHECK_OK(weft_region_name(other, "two"));
        CHECK_OK(weft_region_extend(other, LEN + 8));
        uint8_t key[WEFT_REGION_KEY_MAX], forged[WEFT_REGION_KEY_MAX];
        size_t n = sizeof key;
        weft_region_key_opts_t ko = WEFT_REGION_KEY_OPTS_INIT;
        ko.rights = WEFT_RMA_READ;
        ko.offset = LEN;
        CHECK_OK(weft_region_key(other, &ko, key, &n));
        memcpy(forged, key, n);
        forged[n - 1] ^= 1;
        ((uint8_t *)weft_region_base(other))[LEN] = 77;
        for (unsigned i = 0; i < PEERS; i++) {
            weft_op_t op = WEFT_OP_INIT;
            weft_remote_t *two, *part;
            uint8_t byte = 0;
            CHECK_OK(spread_attach(peers[i].ep, "two", WEFT_RMA_ANY, &two));
            CHECK_EQ(spread_done(weft_remote_attach(peers[i].ep, forged, n, NULL, &op), &op), WEFT_ERR_AUTH);
            CHECK_OK(spread_done(weft_remote_attach(peers[i].ep, key, n, NULL, &op), &op));
            part = weft_op_remote(&op);
            CHECK_EQ(op.len, 8);
            CHECK_OK(spread_done(weft_rma_read(part, 0, &byte, 1, &op), &op));
            CHECK_EQ(byte, 77);
            CHECK_EQ(weft_rma_write(part, 0, &byte, 1, &op), WEFT_ERR_RIGHTS);
            CHECK_OK(weft_region_until(other, 1));
            CHECK_EQ(spread_done(weft_rma_read(two, LEN, &byte, 1, &op), &op), WEFT_ERR_STALE);
            CHECK_OK(weft_region_until(other, 0));
            weft_remote_drop(two);
            CHECK_OK(spread_attach(peers[i].ep, "two", WEFT_RMA_ANY, &two));
            CHECK_OK(spread_done(weft_rma_read(two, LEN, &byte, 1, &op), &op));
            weft_remote_drop(part);
            weft_remote_drop(two);
        }
        CHECK_OK(ends(weft_region_revoke, other));
        for (unsigned i = 0; i < PEERS; i++) {
            weft_op_t op = WEFT_OP_INIT;
            CHECK_EQ(spread_done(weft_remote_attach(peers[i].ep, key, n, NULL, &op), &op), WEFT_ERR_STALE);
        }
        weft_region_info_t in = WEFT_REGION_INFO_INIT;
        CHECK_OK(weft_region_get_info(other, &in));
        CHECK_EQ(in.refused, PEERS);
        CHECK_EQ(in.len, LEN + 8);
        end();
    }
}
