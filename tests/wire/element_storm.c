/* Threads that read, write, batch, count and allocate through the same transports while others release, add and configure
 * these, and while an element comes and goes: whatever ends well did what it says, and everything ends. Seeded; how threads
 * meet is the machine's.
 *
 * ctest: long label=thread timeout=120 shards */
#define TEST_SECONDS 100
#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "lib/elements.h"
#include "test.h"

enum { WORKERS = 3, SLOTS = 512, SLOT = 1024, SPAN = SLOTS * SLOT, NAMES = 4, ITEMS = 6, MOST_SECONDS = 12 };
#define COUNTER (WORKERS * SPAN)
#define WAIT (20 * WEFT_SECOND) /* far more than any bound here */

static elements_t e;
static _Atomic int over;
static _Atomic uint64_t added_least, added_most, moved;
static uint64_t seed;

typedef struct worker {
    size_t me;
    wefti_rng_t rng;
    uint64_t version[SLOTS]; /* of what is there; 0: zero, or not known any more */
    bool lost[SLOTS];        /* a write did not end well, and may come to pass whenever it likes */
} worker_t;

/* What an operation on a transport that is being pulled about may end with. */
static bool allowed(weft_status_t st)
{
    return !st || st == WEFT_ERR_CLOSED || st == WEFT_ERR_PEER || st == WEFT_ERR_STATE || st == WEFT_ERR_CANCELLED ||
           st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_REFUSED || st == WEFT_ERR_STALE || st == WEFT_ERR_RANGE ||
           st == WEFT_ERR_UNSUPPORTED || /* these two: the small element, which has no room and no spare */
           st == WEFT_ERR_UNREACHABLE;   /* the element went while the lane to it was made */
}

static weft_status_t end(worker_t *w, weft_status_t posted, weft_op_t *op, const char *what)
{
    if (!posted && wefti_rng_below(&w->rng, 16) == 0)
        weft_op_cancel(op);
    weft_status_t st = posted ? posted : weft_op_wait(op, WAIT);
    if (!posted && !weft_op_done(op))
        FAIL("seed %llu: a %s does not end", (unsigned long long)seed, what);
    if (!allowed(st))
        FAIL("seed %llu: a %s ended with %s (%s)", (unsigned long long)seed, what, weft_status_name(st), weft_last_error());
    if (!st)
        atomic_fetch_add(&moved, 1);
    return st;
}

static weft_transport_t *any(worker_t *w)
{
    char name[8];
    weft_transport_t *t;
    snprintf(name, sizeof name, "t%u", (unsigned)wefti_rng_below(&w->rng, NAMES));
    return weft_action_get(e.action, name, "rdma", &t) ? NULL : t;
}

static uint64_t mark(const worker_t *w, size_t slot, uint64_t version)
{
    return version * 1000003 + w->me * 1009 + slot;
}

static size_t at(const worker_t *w, size_t slot)
{
    return w->me * SPAN + slot * SLOT;
}

/* Some slots that are known, and one item for each; how many. */
static size_t choose(worker_t *w, weft_rma_what_t what, uint8_t *buf, uint64_t version, weft_transport_item_t items[ITEMS])
{
    size_t n = 0, most = 1 + wefti_rng_below(&w->rng, ITEMS), first = wefti_rng_below(&w->rng, SLOTS);
    for (size_t i = 0; i < SLOTS && n < most; i++) {
        size_t slot = (first + i) % SLOTS;
        if (w->lost[slot] || (what == WEFT_RMA_DO_READ && !w->version[slot]))
            continue;
        if (what == WEFT_RMA_DO_WRITE)
            pattern_fill(buf + at(w, slot), SLOT, mark(w, slot, version));
        else
            memset(buf + at(w, slot), 0xee, SLOT);
        items[n++] = (weft_transport_item_t){.what = what, .size = SLOT, .addr = at(w, slot), .offset = at(w, slot)};
    }
    return n;
}

static void judge(worker_t *w, const uint8_t *buf, uint64_t version, const weft_transport_item_t *item, weft_status_t st)
{
    size_t slot = (item->addr - w->me * SPAN) / SLOT;
    if (st == WEFT_ERR_RANGE) { /* nothing was touched */
        ;
    } else if (item->what == WEFT_RMA_DO_WRITE) {
        w->version[slot] = st ? 0 : version;
        w->lost[slot] = st != WEFT_OK;
    } else if (!st && pattern_check(buf + at(w, slot), SLOT, mark(w, slot, w->version[slot])) != SLOT) {
        FAIL("seed %llu: slot %zu of %zu is not what was written", (unsigned long long)seed, slot, w->me);
    }
}

static void move(worker_t *w, weft_transport_t *t, uint8_t *buf, uint64_t version)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_transport_item_t items[ITEMS];
    weft_rma_what_t what = wefti_rng_below(&w->rng, 2) ? WEFT_RMA_DO_READ : WEFT_RMA_DO_WRITE;
    size_t n = choose(w, what, buf, version, items);
    if (n > 1) {
        weft_status_t posted = weft_transport_batch(t, items, n, &op), st = end(w, posted, &op, "batch");
        for (size_t i = 0; i < n; i++) {
            if (!st && items[i].status)
                FAIL("seed %llu: a batch is well, and item %zu of it is not", (unsigned long long)seed, i);
            if (!posted)
                judge(w, buf, version, &items[i], items[i].status);
        }
    } else if (n) {
        weft_status_t posted = what == WEFT_RMA_DO_READ ? weft_transport_read(t, SLOT, items[0].addr, items[0].offset, &op)
                                                        : weft_transport_write(t, SLOT, items[0].addr, items[0].offset, &op);
        weft_status_t st = end(w, posted, &op, "transfer");
        if (!posted)
            judge(w, buf, version, &items[0], st);
    }
}

static void count(worker_t *w, weft_transport_t *t)
{
    weft_op_t op = WEFT_OP_INIT;
    atomic_fetch_add(&added_most, 1);
    if (!end(w, weft_transport_fetch_add(t, COUNTER, 1, &op), &op, "count"))
        atomic_fetch_add(&added_least, 1);
}

static void allocate(worker_t *w, weft_transport_t *t)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_transport_alloc_opts_t o = WEFT_TRANSPORT_ALLOC_OPTS_INIT;
    o.lease_ns = wefti_rng_below(&w->rng, 3) * WEFT_SECOND;
    if (end(w, weft_transport_alloc(t, 5000, &o, &op), &op, "allocation"))
        CHECK(!op.buf);
    else
        weft_block_free((weft_block_t *)op.buf, NULL);
}

static void *work(void *arg)
{
    worker_t *w = (worker_t *)arg;
    weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
    uint8_t *buf = weft_transport_buf(elements_get(&e, "base", "rdma"), NULL);
    weft_op_t op = WEFT_OP_INIT;
    for (uint64_t version = 1; !atomic_load(&over); version++) {
        weft_transport_t *t = any(w);
        uint64_t dice = wefti_rng_below(&w->rng, 16);
        if (!t)
            sched_yield();
        else if (dice == 0)
            allocate(w, t);
        else if (dice == 1)
            (void)end(w, weft_transport_flush(t, &op), &op, "flush");
        else if (dice == 2)
            CHECK_OK(weft_transport_get_stats(t, &s));
        else if (dice < 6)
            count(w, t);
        else
            move(w, t, buf, version);
    }
    return NULL;
}

static void *drive_memory(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        weft_runtime_progress(e.pair.rt[0]);
        sched_yield();
    }
    return NULL;
}

static weft_memory_t *open_small(char durl[WEFT_DURL_MAX + 1])
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    weft_memory_t *m;
    size_t len = WEFT_DURL_MAX + 1;
    o.name = "small";
    o.bytes = 8;
    CHECK_OK(weft_memory_open(e.pair.rt[0], &o, &m));
    CHECK_OK(weft_memory_durl(m, durl, &len));
    return m;
}

/* Release, add, configure, at a distance that lets some of it work. */
static void meddle(wefti_rng_t *rng, weft_memory_t **small)
{
    static char others[WEFT_DURL_MAX + 1];
    char name[8], later[32], durl[WEFT_DURL_MAX + 32];
    weft_transport_t *t, *base = elements_get(&e, "base", "rdma");
    snprintf(name, sizeof name, "t%u", (unsigned)wefti_rng_below(rng, NAMES));
    snprintf(durl, sizeof durl, "%s%stimeout_ms,200;", name, strchr(e.durl, ';'));
    switch (wefti_rng_below(rng, 8)) {
    case 0:
        (void)!weft_action_release(e.action, name);
        break;
    case 1: /* nobody listens there */
        snprintf(durl, sizeof durl, "%s;rdma_tcp;url,tcp://127.0.0.1:1;timeout_ms,20;", name);
        (void)!weft_action_configure(e.action, name, durl);
        break;
    case 2: /* to an element that leaves */
        if (*small)
            weft_memory_close(*small, NULL);
        *small = wefti_rng_below(rng, 4) ? open_small(others) : NULL;
        (void)!weft_action_configure(e.action, name, others);
        break;
    default:
        snprintf(later, sizeof later, "%s;rdma_tcp;", name);
        if (!weft_action_add(e.action, wefti_rng_below(rng, 2) ? durl : later) && !weft_action_get(e.action, name, "rdma", &t))
            (void)!weft_transport_reg(t, WORKERS * SPAN, base);
        (void)!weft_action_configure(e.action, name, durl);
        if (!weft_action_get(e.action, name, "rdma", &t))
            (void)!weft_transport_remote(t);
    }
    usleep((useconds_t)wefti_rng_below(rng, 4000));
}

static void storm(const pair_way_t *way)
{
    static worker_t workers[WORKERS];
    pthread_t threads[WORKERS], driver;
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
    wefti_rng_t rng = {seed};
    uint64_t value = 0;
    weft_memory_t *small = NULL;
    a.connect_ns = 50 * WEFT_MILLISECOND; /* who leads nowhere says so soon, and work goes on */
    a.retry_ns = WEFT_MILLISECOND;
    o.spare = 64 << 20; /* blocks of connections that were lost stay until their lease is over */
    elements_open(&e, way, WORKERS * SPAN + 8, &o, &a);
    CHECK_OK(weft_action_add(e.action, "base;rdma_local;size,8;")); /* has the buffer that all share */
    CHECK_OK(weft_transport_reg(elements_get(&e, "base", "rdma"), WORKERS * SPAN, NULL));
    atomic_store(&over, 0);
    atomic_store(&added_least, 0);
    atomic_store(&added_most, 0);
    atomic_store(&moved, 0);
    memset(workers, 0, sizeof workers);
    if (way->mode != WEFT_PROGRESS_THREAD)
        CHECK(!pthread_create(&driver, NULL, drive_memory, NULL));
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i].me = i;
        workers[i].rng.state = seed * 31 + i;
        CHECK(!pthread_create(&threads[i], NULL, work, &workers[i]));
    }
    double until = test_now() + MOST_SECONDS; /* of a machine that has no time for us */
    for (int i = 0; (i < 300 || atomic_load(&moved) < 500) && test_now() < until; i++)
        meddle(&rng, &small);
    atomic_store(&over, 1);
    weft_action_terminate(e.action); /* who waits for a transport that leads nowhere */
    for (size_t i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    if (way->mode != WEFT_PROGRESS_THREAD)
        pthread_join(driver, NULL);
    CHECK(atomic_load(&moved) > 0);
    /* an atomic that did not end well may still be on its way: when the action is closed none is */
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_action_close(e.action, &op));
    CHECK_OK(pair_wait(&e.pair, &op, 20));
    e.action = NULL;
    PAIR_UNTIL(&e.pair, elements_memory_stats(&e).connections == 0, 20);
    memcpy(&value, (uint8_t *)weft_memory_base(e.memory) + COUNTER, 8);
    if (value < atomic_load(&added_least) || value > atomic_load(&added_most))
        FAIL("seed %llu: the counter is %llu, and that many were added: %llu to %llu", (unsigned long long)seed,
             (unsigned long long)value, (unsigned long long)atomic_load(&added_least),
             (unsigned long long)atomic_load(&added_most));
    if (small)
        weft_memory_close(small, NULL);
    elements_close(&e);
}

TEST(whatever_ends_well_did_what_it_says_and_everything_ends)
{
    for (seed = 1; seed <= 6; seed++)
        storm(&pair_ways[(seed + 1) % 4]);
}
