/* Memory runs out at every single allocation of a server and its client, one after the other. Each time every operation ends
 * with a status that is true, nothing is lost that was promised, and afterwards the same two do all of it; at the end
 * everything is accounted for.
 *
 * ctest: timeout=600 */
#define TEST_SECONDS 280
#include "core/core.h"
#include "lib/nomem.h"
#include "ports.h"
#include "test.h"
#include "weft/elements.h"
#include "weft/weft.h"

static weft_runtime_t *server_rt, *client_rt;
static weft_listener_t *listener;
static weft_store_server_t *server;
static weft_ep_t *ep;
static unsigned listed;

static void drive(void)
{
    weft_runtime_progress(server_rt);
    weft_runtime_progress(client_rt);
}

static weft_status_t done(weft_status_t st, weft_op_t *op)
{
    return nomem_end(st, op, drive);
}

static void on_block(const weft_block_info_t *info, void *user)
{
    (void)info, (void)user;
    listed++;
}

static void take(weft_listener_t *l, weft_ep_t *accepted, void *user)
{
    (void)l, (void)accepted, (void)user;
}

static weft_store_stats_t stats(void)
{
    weft_store_stats_t s = WEFT_STORE_STATS_INIT;
    CHECK_OK(weft_store_server_get_stats(server, &s));
    return s;
}

static void open_all(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    o.transports = transports;
    o.progress = WEFT_PROGRESS_CALLER;
    so.bytes = 1 << 20;
    so.lease_ns = 300 * WEFT_MILLISECOND;
    lo.accept = take;
    CHECK_OK(weft_runtime_open(&o, &server_rt));
    CHECK_OK(weft_runtime_open(&o, &client_rt));
    CHECK_OK(weft_listen(server_rt, ports_tcp(), &lo, &listener));
    CHECK_OK(weft_store_serve(server_rt, &so, &server));
}

static void connect_again(void)
{
    weft_op_t op = WEFT_OP_INIT;
    if (ep && weft_ep_get_state(ep) == WEFT_EP_UP)
        return;
    if (ep)
        weft_ep_abort(ep, NULL);
    CHECK_OK(done(weft_ep_open(client_rt, weft_listener_uri(listener), NULL, &op, &ep), &op));
}

/* What may come of an operation while memory runs out: the connection may be lost too, where there was none to say so. */
static bool excused(weft_status_t st)
{
    return st == WEFT_ERR_NOMEM || st == WEFT_ERR_LIMIT || st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED ||
           st == WEFT_ERR_PROTOCOL || st == WEFT_ERR_STALE || st == WEFT_ERR_STATE || st == WEFT_ERR_NOTFOUND;
}

/* All of it, as far as it goes: true if everything succeeded. */
static bool life(bool strict)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_store_stats_t s = WEFT_STORE_STATS_INIT;
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    weft_block_t *block = NULL, *again = NULL;
    bool all = true;
    weft_store_t *store = NULL;
#define STEP(call) \
    do { \
        weft_status_t step = done((call), &op); \
        if (step && (strict || !excused(step))) { \
            nomem_off(); \
            FAIL("%s: %s (%s)", #call, weft_status_name(step), weft_last_error()); \
        } \
        all = all && !step; \
        if (step) \
            goto end; \
    } while (0)
    STEP(weft_store_open(ep, NULL, &op));
    store = (weft_store_t *)op.buf;
    o.len = 5000;
    o.name = "a block";
    STEP(weft_block_alloc(store, &o, &op));
    block = (weft_block_t *)op.buf;
    STEP(weft_rma_write(weft_block_remote(block), 0, "value", 6, &op));
    STEP(weft_block_extend(block, 20000, &op));
    STEP(weft_block_open(store, "a block", &op));
    again = (weft_block_t *)op.buf;
    char in[6] = "";
    STEP(weft_rma_read(weft_block_remote(again), 0, in, 6, &op));
    CHECK_STR(in, "value");
    listed = 0;
    STEP(weft_store_list(store, NULL, on_block, NULL, &op));
    CHECK_EQ(listed, 1);
    STEP(weft_store_query(store, &s, &op));
    STEP(weft_store_renew(store, &op));
    STEP(weft_store_remove(store, "a block", &op));
    o.name = NULL;
    weft_block_drop(block);
    block = NULL;
    STEP(weft_block_alloc(store, &o, &op));
    block = (weft_block_t *)op.buf;
    if (!weft_block_free(block, NULL))
        block = NULL;
    else if (strict)
        FAIL("a block cannot be freed: %s", weft_last_error());
end:
    weft_block_drop(block);
    weft_block_drop(again);
    if (store) {
        weft_status_t st = weft_store_close(store, &op); /* needs no memory */
        if (st) {
            nomem_off();
            FAIL("a store cannot be closed: %s", weft_last_error());
        }
        done(st, &op);
    }
    return all;
}

static void every_allocation(const char *transports, long times)
{
    open_all(transports);
    connect_again();
    CHECK(life(true));
    bool last = false;
    long at = 0;
    for (; !last; at++) {
        connect_again();
        nomem_at(at, times);
        life(false);
        last = nomem_still_ahead();
        nomem_off();
        connect_again();
        /* what could not be given back at once goes with the lease */
        for (double end = test_now() + 20; stats().used_bytes || stats().clients;) {
            drive();
            if (test_now() > end)
                FAIL("allocation %ld: %llu bytes and %llu clients are left", at, (unsigned long long)stats().used_bytes,
                     (unsigned long long)stats().clients);
        }
        if (at % 8 == 0 || last)
            CHECK(life(true));
        if (at > 2000)
            FAIL("there is no end of allocations");
    }
    CHECK(at > 20); /* that many there are */
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(done(weft_store_server_close(server, &op), &op));
    CHECK_OK(weft_ep_abort(ep, NULL));
    CHECK_OK(weft_listener_close(listener, NULL));
    CHECK_OK(weft_runtime_close(client_rt));
    CHECK_OK(weft_runtime_close(server_rt));
    ep = NULL;
}

TEST(a_server_and_its_client_survive_the_failure_of_any_one_allocation)
{
    every_allocation("shm", 1);
    every_allocation("tcp", 1);
}

TEST(a_server_and_its_client_survive_runs_of_failures)
{
    every_allocation("tcp", 4);
}

/* --- closing -------------------------------------------------------------------------------------------------------------- */

static weft_op_t timers[4096];

/* One more timer needs memory. */
static unsigned use_up_timers(const weft_runtime_t *rt)
{
    unsigned n = 0;
    for (; rt->timers.n < rt->timers.cap; n++) {
        CHECK(n < sizeof timers / sizeof *timers);
        timers[n] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_timer_start((weft_runtime_t *)(uintptr_t)rt, 1000 * WEFT_SECOND, &timers[n]));
    }
    return n;
}

static void let_timers_go(unsigned n)
{
    while (n--) {
        weft_op_cancel(&timers[n]);
        done(WEFT_OK, &timers[n]);
    }
}

TEST(a_server_and_a_mirror_close_without_memory_for_a_deadline)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_mirror_opts_t mo = WEFT_MIRROR_OPTS_INIT;
    open_all("tcp");
    connect_again();
    CHECK_OK(done(weft_store_open(ep, NULL, &op), &op));
    weft_store_t *store = weft_op_store(&op);
    mo.name = "a mirror";
    mo.stores = &store;
    mo.n_stores = 1;
    mo.len = 10000;
    mo.write = true;
    CHECK_OK(done(weft_mirror_open(client_rt, &mo, &op), &op));
    weft_mirror_t *mirror = weft_op_mirror(&op);

    op.timeout_ns = 10 * WEFT_SECOND;
    unsigned n = use_up_timers(client_rt);
    nomem_at(0, 1);
    weft_status_t st = weft_mirror_close(mirror, &op);
    bool there = nomem_still_ahead();
    nomem_off();
    CHECK(!there);
    CHECK_OK(done(st, &op));
    let_timers_go(n);
    weft_store_leave(store);

    n = use_up_timers(server_rt);
    nomem_at(0, 1);
    st = weft_store_server_close(server, &op);
    there = nomem_still_ahead();
    nomem_off();
    CHECK(!there);
    CHECK_OK(done(st, &op));
    let_timers_go(n);
    CHECK_OK(weft_ep_abort(ep, NULL));
    CHECK_OK(weft_listener_close(listener, NULL));
    CHECK_OK(weft_runtime_close(client_rt));
    CHECK_OK(weft_runtime_close(server_rt));
    ep = NULL;
}
