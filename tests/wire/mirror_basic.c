/* A mirror on three servers: what is written is read, by the writer and by readers; who may do what; closing, opening again,
 * taking over; copies that were changed behind its back are found and mended; many threads at once. Every runtime has its own
 * thread. ctest: timeout=300 label=thread shards */
#include <pthread.h>

#include "base/rng.h"
#include "store/mirror_layout.h"
#include "store/state.h"
#include "ports.h"
#include "test.h"
#include "weft/elements.h"
#include "weft/weft.h"

enum { N = 3, LEN = 100 * 1000 + 7 };

typedef struct place {
    weft_runtime_t *rt[N], *client;
    weft_store_server_t *server[N];
    weft_ep_t *ep[N];
    weft_store_t *store[N];
} place_t;

static place_t p;
static uint8_t shadow[LEN], got[LEN];

static weft_runtime_t *runtime(const char *transport)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = transport;
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void on_accept(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l;
    (void)ep;
    (void)user;
}

static weft_status_t ended(weft_op_t *op)
{
    weft_status_t st = weft_op_wait(op, 30 * WEFT_SECOND);
    CHECK(weft_op_done(op));
    return st;
}

static void open_all(const char *transport)
{
    memset(&p, 0, sizeof p);
    p.client = runtime(transport);
    for (int i = 0; i < N; i++) {
        weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
        weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
        weft_listener_t *l;
        weft_op_t op = WEFT_OP_INIT;
        p.rt[i] = runtime(transport);
        so.bytes = 16 << 20;
        lo.accept = on_accept;
        CHECK_OK(weft_store_serve(p.rt[i], &so, &p.server[i]));
        CHECK_OK(weft_listen(p.rt[i], ports_tcp(), &lo, &l));
        CHECK_OK(weft_ep_open(p.client, weft_listener_uri(l), NULL, NULL, &p.ep[i]));
        CHECK_OK(weft_store_open(p.ep[i], NULL, &op));
        CHECK_OK(ended(&op));
        p.store[i] = op.buf;
    }
}

static void close_all(void)
{
    for (int i = 0; i < N; i++)
        weft_store_leave(p.store[i]);
    CHECK_OK(weft_runtime_close(p.client));
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_runtime_close(p.rt[i]));
}

static weft_status_t try_open(size_t n, uint64_t len, bool write, bool checksums, weft_mirror_t **m_out)
{
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.name = "a mirror";
    o.stores = p.store;
    o.n_stores = n;
    o.len = len;
    o.write = write;
    o.checksums = checksums;
    o.lease_ns = 600 * WEFT_MILLISECOND;
    weft_status_t st = weft_mirror_open(p.client, &o, &op);
    if (!st)
        st = ended(&op);
    if (!st)
        *m_out = op.buf;
    return st;
}

static weft_mirror_t *open_mirror(size_t n, uint64_t len, bool write, bool checksums)
{
    weft_mirror_t *m = NULL;
    CHECK_OK(try_open(n, len, write, checksums, &m));
    return m;
}

static weft_status_t read_at(weft_mirror_t *m, uint64_t offset, void *buf, size_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_mirror_read(m, offset, buf, len, &op);
    if (!st)
        st = ended(&op);
    CHECK(st || op.len == len);
    return st;
}

static weft_status_t write_at(weft_mirror_t *m, uint64_t offset, const void *buf, size_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_mirror_write(m, offset, buf, len, &op);
    if (!st)
        st = ended(&op);
    CHECK(st || op.len == len);
    return st;
}

static void close_mirror(weft_mirror_t *m)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_mirror_close(m, &op));
    CHECK_OK(ended(&op));
}

static void same(weft_mirror_t *m)
{
    memset(got, 0xaa, sizeof got);
    CHECK_OK(read_at(m, 0, got, LEN));
    CHECK(!memcmp(got, shadow, LEN));
}

static weft_mirror_info_t info_of(weft_mirror_t *m)
{
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    CHECK_OK(weft_mirror_get_info(m, &info));
    return info;
}

/* The bytes of a block, as a server has them. Over TCP only: a sanitizer does not see that what goes over shared memory comes
 * one after the other. */
static uint8_t *memory_of(int server, uint64_t block, bool checksums)
{
    weft_store_server_t *s = p.server[server];
    pthread_mutex_lock(&s->ss->lock);
    store_held_t *b = wefti_store_names_find(&s->names, "a mirror", 8);
    CHECK(b);
    uint8_t *at = (uint8_t *)weft_region_base(b->region) + block * mir_stride(checksums);
    pthread_mutex_unlock(&s->ss->lock);
    return at;
}

static const char *const transports[] = {"shm", "tcp"};

TEST(what_is_written_anywhere_is_read_everywhere)
{
    for (int k = 0; k < 4; k++) {
        wefti_rng_t rng = {(uint64_t)k};
        bool checksums = k & 1;
        open_all(transports[k / 2]);
        memset(shadow, 0, sizeof shadow);
        weft_mirror_t *w = open_mirror(N, LEN, true, checksums), *r = open_mirror(N, 0, false, false);
        same(w);
        same(r);
        for (int i = 0; i < 150; i++) {
            uint64_t at = wefti_rng_below(&rng, LEN), n = 1 + wefti_rng_below(&rng, i % 3 ? 300 : 20000);
            n = n < LEN - at ? n : LEN - at;
            for (uint64_t b = 0; b < n; b++)
                shadow[at + b] = (uint8_t)wefti_rng_next(&rng);
            CHECK_OK(write_at(w, at, shadow + at, n));
            at = wefti_rng_below(&rng, LEN);
            n = wefti_rng_below(&rng, LEN - at);
            CHECK_OK(read_at(i & 1 ? r : w, at, got, n));
            CHECK(!memcmp(got, shadow + at, n));
        }
        same(w);
        same(r);
        for (int i = 1; k / 2 && i < N; i++) /* every copy, to the byte */
            CHECK(!memcmp(memory_of(0, 0, checksums), memory_of(i, 0, checksums), mir_bytes(LEN, checksums)));
        weft_mirror_info_t info = info_of(w);
        CHECK(info.writer && info.checksums == checksums && info.len == LEN && info.members == N && !info.state &&
              info.epoch == 1);
        CHECK(!info_of(r).writer && info_of(r).checksums == checksums && info_of(r).len == LEN);
        close_mirror(r);
        close_mirror(w);
        close_all();
    }
}

TEST(what_cannot_be_is_refused)
{
    weft_mirror_t *m = NULL;
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_store_t *twice[2];
    open_all("shm");
    twice[0] = twice[1] = p.store[0];
    CHECK_EQ(try_open(2, 0, true, false, &m), WEFT_ERR_NOTFOUND);
    CHECK_EQ(try_open(2, 0, false, false, &m), WEFT_ERR_NOTFOUND);
    CHECK_EQ(try_open(2, LEN, false, false, &m), WEFT_ERR_INVALID);
    CHECK_EQ(try_open(0, LEN, true, false, &m), WEFT_ERR_INVALID);
    CHECK_EQ(try_open(4, LEN, true, false, &m), WEFT_ERR_INVALID);
    CHECK_EQ(weft_mirror_open(p.client, &o, &op), WEFT_ERR_INVALID); /* no name */
    o.name = "a mirror";
    CHECK_EQ(weft_mirror_open(p.client, &o, &op), WEFT_ERR_INVALID); /* no stores */
    o.stores = twice;
    o.n_stores = 2;
    o.write = true;
    o.len = LEN;
    CHECK_EQ(weft_mirror_open(p.client, &o, &op), WEFT_ERR_INVALID); /* one server */
    o.stores = p.store;
    o.lease_ns = 1;
    CHECK_EQ(weft_mirror_open(p.client, &o, &op), WEFT_ERR_INVALID);
    CHECK_EQ(try_open(2, UINT64_C(64) << 20, true, false, &m), WEFT_ERR_LIMIT); /* more than a server has */
    CHECK_EQ(try_open(2, 0, true, false, &m), WEFT_ERR_NOTFOUND);               /* and nothing is left of it */

    weft_mirror_t *w = open_mirror(2, LEN, true, false), *r = open_mirror(2, 0, false, false);
    CHECK_EQ(try_open(2, LEN, true, false, &m), WEFT_ERR_STATE); /* it is there */
    CHECK_EQ(write_at(r, 0, "x", 1), WEFT_ERR_RIGHTS);
    CHECK_EQ(weft_mirror_add(r, p.store[2], &op), WEFT_ERR_RIGHTS);
    CHECK_EQ(write_at(w, LEN, "x", 1), WEFT_ERR_RANGE);
    CHECK_EQ(write_at(w, UINT64_MAX, "x", 1), WEFT_ERR_RANGE);
    CHECK_EQ(read_at(r, LEN - 3, got, 4), WEFT_ERR_RANGE);
    CHECK_EQ(read_at(r, 1, got, SIZE_MAX), WEFT_ERR_RANGE);
    CHECK_EQ(weft_mirror_read(r, 0, NULL, 4, &op), WEFT_ERR_INVALID);
    CHECK_OK(read_at(r, LEN, got, 0));
    CHECK_OK(write_at(w, 5, NULL, 0));
    CHECK_EQ(weft_mirror_add(w, p.store[1], &op) ? WEFT_ERR_STATE : ended(&op), WEFT_ERR_STATE); /* a member already */
    close_mirror(r);
    close_mirror(w);
    close_all();
}

/* Its maker got as far as one of two servers. */
TEST(what_is_left_of_a_making_is_opened_by_nobody_and_can_be_removed)
{
    weft_mirror_t *m = NULL;
    weft_op_t op = WEFT_OP_INIT;
    wefti_replica_answer_t out;
    wefti_replica_t rec = {.epoch = 1, .len = LEN, .origin = 1, .lease_ns = WEFT_SECOND, .n_members = 2, .writer = {1}};
    open_all("shm");
    memcpy(rec.members[0], p.store[0]->server, WEFT_STORE_ID);
    memset(rec.members[1], 0xdd, WEFT_STORE_ID);
    store_request_t q = {.kind = STORE_R_MAKE, .len = mir_bytes(LEN, false), .rec = rec};
    CHECK_OK(wefti_store_replica_ask(p.store[0], "a mirror", &q, &out, &op));
    CHECK_OK(ended(&op));
    for (int force = 0; force < 2; force++) {
        weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
        o.name = "a mirror";
        o.stores = p.store;
        o.n_stores = 2;
        o.write = true;
        o.force = force;
        CHECK_OK(weft_mirror_open(p.client, &o, &op));
        CHECK_EQ(ended(&op), WEFT_ERR_STALE);
    }
    CHECK_EQ(try_open(2, LEN, true, false, &m), WEFT_ERR_STATE);
    CHECK_OK(weft_store_remove(p.store[0], "a mirror", &op));
    CHECK_OK(ended(&op));
    close_mirror(open_mirror(2, LEN, true, false));
    close_all();
}

TEST(a_closed_mirror_is_read_and_opened_again)
{
    open_all("tcp");
    memset(shadow, 0, sizeof shadow);
    weft_mirror_t *w = open_mirror(2, LEN, true, true);
    memset(shadow + 4000, 7, 9000);
    CHECK_OK(write_at(w, 4000, shadow + 4000, 9000));
    close_mirror(w);
    usleep(1500 * 1000); /* longer than its lease: nobody renews it, and it is served all the same */
    weft_mirror_t *r = open_mirror(N, 0, false, false);
    same(r);
    w = open_mirror(N, 0, true, false);
    CHECK_EQ(info_of(w).members, 2); /* the third was never one */
    CHECK(info_of(w).checksums);
    CHECK_EQ(info_of(w).epoch, 2);
    shadow[0] = 1;
    CHECK_OK(write_at(w, 0, shadow, 1));
    same(r);
    CHECK_OK(weft_mirror_close(w, NULL)); /* and nobody waits for that */
    close_mirror(r);
    close_all();
}

TEST(who_takes_over_fences_the_writer_before)
{
    open_all("shm");
    memset(shadow, 0, sizeof shadow);
    weft_mirror_t *first = open_mirror(N, LEN, true, false), *r = open_mirror(N, 0, false, false);
    memset(shadow, 1, 5000);
    CHECK_OK(write_at(first, 0, shadow, 5000));
    weft_mirror_t *second = open_mirror(N, 0, true, false);
    CHECK_EQ(write_at(first, 0, got, 1), WEFT_ERR_STALE);
    CHECK_EQ(read_at(first, 0, got, 1), WEFT_ERR_STALE);
    CHECK_EQ(info_of(first).state, WEFT_ERR_STALE);
    memset(shadow + 100, 2, 5000);
    CHECK_OK(write_at(second, 100, shadow + 100, 5000));
    same(second);
    same(r);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_mirror_close(first, &op));
    CHECK_EQ(ended(&op), WEFT_ERR_STALE);
    close_mirror(r);
    close_mirror(second);
    close_all();
}

TEST(a_server_is_added_and_refilled)
{
    open_all("tcp");
    weft_op_t op = WEFT_OP_INIT;
    wefti_rng_t rng = {5};
    weft_mirror_t *w = open_mirror(1, LEN, true, true), *r = open_mirror(N, 0, false, false);
    for (size_t i = 0; i < LEN; i++)
        shadow[i] = (uint8_t)wefti_rng_next(&rng);
    CHECK_OK(write_at(w, 0, shadow, LEN));
    for (int i = 1; i < N; i++) {
        CHECK_OK(weft_mirror_add(w, p.store[i], &op));
        CHECK_OK(ended(&op));
        CHECK_EQ(info_of(w).members, i + 1);
        CHECK(!memcmp(memory_of(0, 0, true), memory_of(i, 0, true), mir_bytes(LEN, true)));
        same(r);
    }
    CHECK_EQ(weft_mirror_add(w, p.store[0], &op) ? WEFT_ERR_STATE : ended(&op), WEFT_ERR_STATE); /* it is one already */
    close_mirror(r);
    close_mirror(w);
    close_all();
}

static _Atomic unsigned warned;

static void count_warnings(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    warned += level == WEFT_LOG_WARN && strstr(line, "does not match its checksum");
}

TEST(a_copy_that_was_changed_is_passed_over_and_mended)
{
    open_all("tcp");
    weft_log_set_sink(count_warnings, NULL);
    wefti_rng_t rng = {6};
    weft_mirror_t *w = open_mirror(2, LEN, true, true), *r = open_mirror(2, 0, false, false);
    for (size_t i = 0; i < LEN; i++)
        shadow[i] = (uint8_t)wefti_rng_next(&rng);
    CHECK_OK(write_at(w, 0, shadow, LEN));
    for (uint64_t block = 0; block < 10; block++) /* in data and in trailers, at one server or the other */
        memory_of((int)(block & 1), block, true)[wefti_rng_below(&rng, MIR_STRIDE)] ^= 16;
    same(r); /* a reader finds the good ones */
    same(w); /* it reads from one of them, whose bad copies are then written anew */
    for (int i = 0; i < 5000 && info_of(w).mended < 5; i++)
        usleep(1000);
    CHECK_EQ(info_of(w).mended, 5);
    CHECK(warned >= 2 && warned <= 4); /* of each copy once, by reader and writer, and not of each block */
    for (uint64_t block = 0; block < 10;
         block++) /* a part of a block is put into a good copy of the rest, and all of it written to all */
        CHECK_OK(write_at(w, block * 4096 + 9, shadow + block * 4096 + 9, 100));
    same(w);
    weft_op_t op = WEFT_OP_INIT;
    for (int i = 0; i < 2; i++)
        for (uint64_t block = 0; block < mir_units(LEN); block++)
            CHECK(wefti_mirror_good(memory_of(i, block, true), block));
    memory_of(0, 3, true)[5] ^= 1;
    memory_of(1, 3, true)[6] ^= 1;
    CHECK_EQ(read_at(r, 3 * 4096, got, 1), WEFT_ERR_CORRUPT);
    CHECK_EQ(read_at(w, 3 * 4096, got, 1), WEFT_ERR_CORRUPT);
    CHECK_EQ(write_at(w, 3 * 4096, shadow, 1), WEFT_ERR_CORRUPT); /* what is beside it is not known */
    CHECK_OK(read_at(r, 4 * 4096, got, 4096));
    CHECK_OK(weft_mirror_add(w, p.store[2], &op)); /* it does not keep the others from being refilled */
    CHECK_OK(ended(&op));
    CHECK_OK(write_at(w, 3 * 4096, shadow + 3 * 4096, 4096)); /* a whole block needs nothing of the old one */
    same(w);
    same(r);
    close_mirror(r);
    close_mirror(w);
    close_all();
}

/* --- threads -------------------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 60, PART = 20000 };
static weft_mirror_t *shared;

static void *work(void *arg)
{
    uint64_t at = (uint64_t)(uintptr_t)arg * PART;
    static _Thread_local uint8_t out[PART], in[PART];
    for (int i = 0; i < ROUNDS; i++) {
        size_t n = 1 + (size_t)i * 331 % PART;
        memset(out, (int)(i + at), n);
        CHECK_OK(write_at(shared, at, out, n));
        CHECK_OK(read_at(shared, at, in, n));
        CHECK(!memcmp(in, out, n));
        weft_op_t op = WEFT_OP_INIT; /* and one that is not waited for to its end */
        CHECK_OK(weft_mirror_read(shared, at, in, n, &op));
        weft_op_cancel(&op);
        weft_status_t st = ended(&op);
        CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
        (void)info_of(shared);
    }
    return NULL;
}

TEST(a_reader_that_has_just_come_finds_the_copy_that_is_right)
{
    open_all("tcp");
    weft_log_set_level(WEFT_LOG_ERROR);
    weft_mirror_t *w = open_mirror(2, LEN, true, true);
    memset(shadow, 'r', LEN);
    CHECK_OK(write_at(w, 0, shadow, LEN));
    for (int i = 0; i < 100; i++) { /* whichever of the two it has attached first */
        memory_of(i & 1, 2, true)[i] ^= 1;
        weft_mirror_t *r = open_mirror(2, 0, false, false);
        CHECK_OK(read_at(r, 2 * 4096, got, 4096));
        CHECK(!memcmp(got, shadow, 4096));
        memory_of(i & 1, 2, true)[i] ^= 1;
        close_mirror(r);
    }
    close_mirror(w);
    close_all();
}

TEST(many_threads_use_one_mirror)
{
    pthread_t threads[THREADS];
    open_all("tcp");
    shared = open_mirror(2, LEN, true, true);
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    close_mirror(shared);
    close_all();
}

TEST(what_was_not_closed_goes_with_its_runtime)
{
    open_all("shm");
    (void)open_mirror(N, LEN, true, true);
    (void)open_mirror(N, 0, false, false);
    CHECK_OK(weft_runtime_close(p.client));
    for (int i = 0; i < N; i++)
        CHECK_OK(weft_runtime_close(p.rt[i]));
}
