/* Memory runs out at every single allocation of a memory element and its user, one after the other. Each time every operation
 * ends with a status that is true, and afterwards the same two do all of it; at the end everything is accounted for.
 *
 * ctest: timeout=600 long */
#define TEST_SECONDS 280
#include "lib/nomem.h"
#include "test.h"
#include "weft/elements.h"
#include "weft/weft.h"

static weft_runtime_t *memory_rt, *second_rt, *user_rt;

static void drive(void)
{
    weft_runtime_progress(memory_rt);
    weft_runtime_progress(second_rt);
    weft_runtime_progress(user_rt);
}

static weft_status_t done(weft_status_t st, weft_op_t *op)
{
    return nomem_end(st, op, drive);
}

static void open_all(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = transports;
    o.progress = WEFT_PROGRESS_CALLER;
    weft_log_set_level(WEFT_LOG_NONE);
    CHECK_OK(weft_runtime_open(&o, &memory_rt));
    CHECK_OK(weft_runtime_open(&o, &second_rt));
    CHECK_OK(weft_runtime_open(&o, &user_rt));
}

/* What may come of an operation while memory runs out: the connection may be lost too, where there was none to say so. */
static bool excused(weft_status_t st)
{
    return st == WEFT_ERR_NOMEM || st == WEFT_ERR_LIMIT || st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED ||
           st == WEFT_ERR_PROTOCOL || st == WEFT_ERR_STALE || st == WEFT_ERR_REFUSED || st == WEFT_ERR_TIMEOUT ||
           st == WEFT_ERR_NOTFOUND || st == WEFT_ERR_UNREACHABLE;
}

/* All of it, as far as it goes: true if everything succeeded. */
static bool life(bool strict)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_memory_opts_t m = WEFT_MEMORY_OPTS_INIT;
    weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
    weft_memory_t *memory = NULL;
    weft_action_t *action = NULL;
    weft_transport_t *t, *local;
    weft_block_t *block = NULL;
    char durl[WEFT_DURL_MAX + 1];
    size_t len = sizeof durl;
    bool all = true;
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
#define CALL(call) STEP((memset(&op, 0, sizeof op), call))
    m.name = "mem";
    m.bytes = 8192;
    m.spare = 1 << 20;
    a.connect_ns = 2 * WEFT_SECOND;
    a.retry_ns = WEFT_MILLISECOND;
    CALL(weft_memory_open(memory_rt, &m, &memory));
    CALL(weft_memory_durl(memory, durl, &len));
    CALL(weft_action_open(user_rt, "nomem", &a, &action));
    CALL(weft_action_add(action, "mem;rdma_tcp;timeout_ms,5000;"));
    CALL(weft_action_get(action, "mem", "rdma", &t));
    CALL(weft_transport_reg(t, 8192, NULL));
    op.timeout_ns = 5 * WEFT_SECOND;
    weft_status_t posted = weft_transport_write(t, 8192, 0, 0, &op); /* it waits */
    weft_status_t configured = weft_action_configure(action, "mem", durl);
    if (!posted && configured)
        weft_op_cancel(&op);
    posted = done(posted, &op);
    STEP(configured ? configured : posted);
    weft_transport_item_t items[2] = {{.what = WEFT_RMA_DO_READ, .size = 100},
                                      {.what = WEFT_RMA_DO_WRITE, .size = 100, .addr = 200}};
    STEP(weft_transport_batch(t, items, 2, &op));
    STEP(weft_transport_fetch_add(t, 0, 1, &op));
    STEP(weft_transport_read(t, 100, 0, 0, &op));
    STEP(weft_transport_flush(t, &op));
    STEP(weft_transport_alloc(t, 5000, NULL, &op));
    block = (weft_block_t *)op.buf;
    STEP(weft_rma_write(weft_block_remote(block), 0, "value", 6, &op));
    memset(&op, 0, sizeof op);
    CALL(weft_action_add(action, "local;rdma_local;size,4096;"));
    CALL(weft_action_get(action, "local", "rdma", &local));
    CALL(weft_transport_reg(local, 100, t));
    op.timeout_ns = 5 * WEFT_SECOND;
    STEP(weft_transport_write(local, 100, 0, 0, &op));
    memset(&op, 0, sizeof op);
    CALL(weft_action_release(action, "local"));
    snprintf(durl, sizeof durl, "server;rdma_shared_server;size,4096;shm_id,nomem-%d;", (int)getpid());
    CALL(weft_action_add(action, durl));
    CALL(weft_action_get(action, "server", "rdma_server", &t));
    STEP(weft_transport_ready(t, &op));
    snprintf(durl, sizeof durl, "by_place;rdma_shared;shm_id,nomem-%d;", (int)getpid());
    CALL(weft_action_add(action, durl));
    CALL(weft_action_get(action, "by_place", "rdma", &local));
    op.timeout_ns = 5 * WEFT_SECOND;
    STEP(weft_transport_ready(local, &op));
    weft_buffer_drop(weft_transport_buffer(t)); /* NULL, where there is none to be had */
end:
    weft_block_drop(block);
    memset(&op, 0, sizeof op);
    if (action) {
        weft_status_t st = done(weft_action_close(action, &op), &op); /* needs no memory */
        if (st) {
            nomem_off();
            FAIL("an action cannot be closed: %s", weft_status_name(st));
        }
    }
    if (memory) {
        weft_status_t st = done(weft_memory_close(memory, &op), &op);
        if (st) {
            nomem_off();
            FAIL("a memory element cannot be closed: %s", weft_status_name(st));
        }
    }
    return all;
}

/* The same with two elements that are replicas. */
static bool replicated_life(bool strict)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_memory_opts_t m = WEFT_MEMORY_OPTS_INIT;
    weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
    weft_memory_t *memory[2] = {NULL, NULL};
    weft_action_t *action = NULL;
    weft_transport_t *t;
    weft_block_t *block = NULL;
    char durl[2000];
    bool all = true;
    m.name = "mem";
    m.bytes = 8192;
    m.mirrored = true;
    m.spare = 1 << 20;
    a.connect_ns = 2 * WEFT_SECOND;
    a.retry_ns = WEFT_MILLISECOND;
    CALL(weft_memory_open(memory_rt, &m, &memory[0]));
    CALL(weft_memory_open(second_rt, &m, &memory[1]));
    CALL(weft_action_open(user_rt, "nomem", &a, &action));
    snprintf(durl, sizeof durl, "mem;rdma_tcp;size,8192;timeout_ms,5000;replicas,%s|%s;", weft_memory_uri(memory[0]),
             weft_memory_uri(memory[1]));
    CALL(weft_action_add(action, durl));
    CALL(weft_action_get(action, "mem", "rdma", &t));
    CALL(weft_transport_reg(t, 8192, NULL));
    memset(weft_transport_buf(t, NULL), 'w', 8192);
    op.timeout_ns = 5 * WEFT_SECOND;
    STEP(weft_transport_read(t, 100, 0, 0, &op));
    memset(weft_transport_buf(t, NULL), 'w', 8192);
    STEP(weft_transport_write(t, 8000, 100, 0, &op));
    weft_transport_item_t items[2] = {{.what = WEFT_RMA_DO_READ, .size = 100, .addr = 4000},
                                      {.what = WEFT_RMA_DO_WRITE, .size = 100, .addr = 200}};
    STEP(weft_transport_batch(t, items, 2, &op));
    memset(weft_transport_buf(t, NULL), 0, 8192);
    STEP(weft_transport_read(t, 8000, 100, 0, &op));
    for (int i = 0; i < 8000; i++)
        CHECK_EQ(((char *)weft_transport_buf(t, NULL))[i], 'w');
    STEP(weft_transport_alloc(t, 1000, NULL, &op));
    block = (weft_block_t *)op.buf;
end:
    weft_block_drop(block);
    memset(&op, 0, sizeof op);
    weft_status_t st = action ? done(weft_action_close(action, &op), &op) : WEFT_OK;
    for (int i = 0; i < 2 && !st; i++)
        st = memory[i] ? done(weft_memory_close(memory[i], &op), &op) : WEFT_OK;
    if (st) {
        nomem_off();
        FAIL("something cannot be closed: %s", weft_status_name(st));
    }
    return all;
}

static void every_allocation(const char *transports, long times, bool (*whole)(bool strict), long step)
{
    open_all(transports);
    CHECK(whole(true));
    bool last = false;
    long at = 0;
    for (; !last; at += step) {
        nomem_at(at, times);
        whole(false);
        last = nomem_still_ahead();
        nomem_off();
        for (int i = 0; i < 50; i++) /* what memory_open() could not finish ends by itself */
            drive();
        if (at / step % 8 == 0 || last)
            CHECK(whole(true));
        if (at > 2000)
            FAIL("there is no end of allocations");
    }
    CHECK(at > 20); /* that many there are */
    CHECK_OK(weft_runtime_close(user_rt));
    CHECK_OK(weft_runtime_close(memory_rt));
    CHECK_OK(weft_runtime_close(second_rt));
}

TEST(a_memory_element_and_its_user_survive_the_failure_of_any_one_allocation)
{
    every_allocation("shm", 1, life, 1);
    every_allocation("tcp", 1, life, 1);
}

TEST(a_memory_element_and_its_user_survive_runs_of_failures)
{
    every_allocation("tcp", 4, life, 1);
}

TEST(replicas_and_their_user_survive_the_failure_of_any_one_allocation)
{
    every_allocation("tcp", 1, replicated_life, 1);
}

TEST(replicas_and_their_user_survive_runs_of_failures)
{
    every_allocation("shm", 4, replicated_life, 5);
}
