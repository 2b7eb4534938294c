/* Memory runs out at every single allocation of active messages on their way, one after the other: sends of every kind, keeps,
 * pulls, views, receives into memory made for them, handlers. Each time every operation ends with a status that is true, no
 * message is lost in silence (its sender is told, its receiver is told, or it is still there), and afterwards the same runtimes
 * do all of it.
 *
 * ctest: tls */
#define TEST_SECONDS 280
#include "lib/fakedev.h"
#include "lib/nomem.h"
#include "lib/raw.h"
#include "ports.h"
#include "test.h"

enum {
    PLAIN = 1, /* a handler that reads */
    KEEP,      /* a handler that keeps */
    PULL,      /* a handler that pulls */
    REJECT,    /* a handler that rejects */
    ANSWER,    /* a handler that answers on the endpoint it came over */
    TAKE,      /* taken header first, then viewed */
    RECV,      /* received into a buffer */
    MAKE,      /* received into host memory made for it */
    POOLED,    /* received into memory from a pool */
    DEVICE,    /* received into memory of a device */
    FAR = 100000,
    BACK = 200000, /* answers */
    REASON = 5
};
enum { LARGE = 70000, HEAD_MIN = 8 };

typedef enum form { PLAIN_OP, CONFIRM, OWNED, FORGOTTEN, PIECES, FROM_POOL, FROM_DEVICE } form_t;

static const struct plan {
    uint32_t id;
    size_t header_len, len;
    form_t form;
} plan[] = {
    {PLAIN, 8, 100, PLAIN_OP},     {PLAIN, 8, 0, FORGOTTEN},      {PLAIN, 8000, 50, PLAIN_OP},   {PLAIN, 8, 3000, CONFIRM},
    {KEEP, 8, 200, PLAIN_OP},      {KEEP, 8, LARGE, PLAIN_OP},    {KEEP, 8100, 1000, CONFIRM},   {PULL, 8, LARGE, PLAIN_OP},
    {PULL, 2500, LARGE, PIECES},   {PULL, 8, LARGE, FROM_POOL},   {PULL, 8, 500, CONFIRM},       {REJECT, 8, LARGE, PLAIN_OP},
    {REJECT, 8, 10, CONFIRM},      {ANSWER, 16, 30, PLAIN_OP},    {ANSWER, 8, 30, FORGOTTEN},    {TAKE, 8, 700, PLAIN_OP},
    {TAKE, 8, LARGE, PLAIN_OP},    {TAKE, 8, LARGE, FROM_POOL},   {RECV, 8, 300, OWNED},         {RECV, 3000, LARGE, OWNED},
    {MAKE, 8, 900, PLAIN_OP},      {MAKE, 8, LARGE, PLAIN_OP},    {MAKE, 8, 0, PLAIN_OP},        {POOLED, 8, LARGE, PLAIN_OP},
    {POOLED, 8, 20, PLAIN_OP},     {FAR, 8, 60, PLAIN_OP},        {FAR + 7, 8, LARGE, PLAIN_OP}, {FAR + 8, 8, 60, FORGOTTEN},
    {FAR + 9, 8, LARGE, OWNED},    {PLAIN, 8, 4000, PLAIN_OP},    {DEVICE, 8, LARGE, PLAIN_OP},  {DEVICE, 8, LARGE, FROM_DEVICE},
    {DEVICE, 8, 100, FROM_DEVICE}, {PULL, 8, LARGE, FROM_DEVICE},
};
enum { N = sizeof plan / sizeof *plan };

/* What became of each message of the plan. */
static struct fate {
    weft_op_t op;
    weft_iov_t iov[2];
    bool posted;    /* the send was started */
    bool kept_less; /* the handler could not keep or pull it, and knows */
    unsigned seen;  /* times it reached the program over there; a receive that had no memory leaves it for the next one */
    unsigned back;  /* answers that came */
    bool answered;  /* an answer was sent */
} fates[N];

static weft_runtime_t *server, *client;
static weft_listener_t *l;
static weft_ep_t *taken, *ep;
static weft_pool_t *send_pool, *recv_pool;
static void *device_bytes; /* the same in a device's memory */
static uint8_t bytes[LARGE], headers[N][WEFT_AM_HEADER_MAX], into[N][LARGE];
static unsigned owned_out; /* buffers given to the library and not yet released */

static weft_am_t *kept[N];
static unsigned n_kept;
static weft_op_t pulls[N];

static void take(weft_listener_t *at, weft_ep_t *e, void *user)
{
    (void)at, (void)user;
    taken = e;
}

static void drive(void)
{
    weft_runtime_progress(server);
    weft_runtime_progress(client);
}
#define UNTIL(cond, seconds) \
    for (double until_end = test_now() + (seconds); !(cond) && test_now() < until_end;) \
    drive()

static bool both_up(void)
{
    return weft_ep_get_state(ep) == WEFT_EP_UP && taken && weft_ep_get_state(taken) == WEFT_EP_UP;
}

/* --- what arrives --------------------------------------------------------------------------------------------------------- */

static bool is_bytes(const void *at, size_t n)
{
    return !n || !memcmp(at, bytes, n);
}

/* Which of the plan it is; its header is what was sent. */
static unsigned which(const void *header, size_t header_len, uint32_t id, uint64_t len)
{
    uint64_t i;
    CHECK(header_len >= HEAD_MIN);
    memcpy(&i, header, sizeof i);
    CHECK(i < N);
    CHECK_EQ(header_len, plan[i].header_len);
    CHECK(!memcmp(header, headers[i], header_len));
    CHECK_EQ(id, plan[i].id);
    CHECK_EQ(len, plan[i].len);
    return (unsigned)i;
}

static struct fate *see(const weft_am_t *am)
{
    struct fate *f = &fates[which(am->header, am->header_len, am->id, am->len)];
    if (am->data)
        CHECK(is_bytes(am->data, am->len));
    f->seen++;
    return f;
}

static void on_plain(weft_am_t *am, void *user)
{
    (void)user;
    see(am);
}

static void on_keep(weft_am_t *am, void *user)
{
    struct fate *f = see(am);
    weft_am_t *mine = weft_am_keep(am);
    (void)user;
    if (mine)
        kept[n_kept++] = mine;
    else
        f->kept_less = true;
}

static void on_pull(weft_am_t *am, void *user)
{
    struct fate *f = see(am);
    unsigned i = (unsigned)(f - fates);
    (void)user;
    pulls[i] = (weft_op_t)WEFT_OP_INIT;
    weft_status_t st = weft_am_pull(am, into[i], LARGE, &pulls[i]);
    CHECK(!st || st == WEFT_ERR_NOMEM);
    f->kept_less = st;
}

static void on_reject(weft_am_t *am, void *user)
{
    (void)user;
    see(am);
    CHECK_OK(weft_am_reject(am, REASON));
}

static void on_answer(weft_am_t *am, void *user)
{
    struct fate *f = see(am);
    (void)user;
    weft_status_t st = weft_am_send(am->ep, BACK, am->header, am->header_len, NULL, 0, NULL);
    CHECK(!st || st == WEFT_ERR_NOMEM || st == WEFT_ERR_AGAIN);
    f->answered = !st;
}

static void on_back(weft_am_t *am, void *user)
{
    uint64_t i;
    (void)user;
    CHECK(am->header_len >= HEAD_MIN);
    memcpy(&i, am->header, sizeof i);
    CHECK(i < N && plan[i].id == ANSWER && fates[i].answered);
    fates[i].back++;
}

static const struct {
    uint32_t id;
    weft_am_fn fn;
} handlers[] = {{PLAIN, on_plain}, {KEEP, on_keep}, {PULL, on_pull}, {REJECT, on_reject}, {ANSWER, on_answer}};
enum { HANDLERS = sizeof handlers / sizeof *handlers };

/* Memory may be short for any one of them, and is there at the next try. */
static void handle(weft_runtime_t *rt, uint32_t id, weft_am_fn fn)
{
    weft_status_t st;
    unsigned tries = 0;
    while ((st = weft_am_handle(rt, id, fn, NULL, NULL))) {
        CHECK_EQ(st, WEFT_ERR_NOMEM);
        CHECK(++tries < 20);
    }
}

/* --- one life ------------------------------------------------------------------------------------------------------------- */

static void on_release(void *buf, void *user)
{
    (void)user;
    free(buf);
    owned_out--;
}

static void send_one(unsigned i, void *pooled)
{
    struct fate *f = &fates[i];
    weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
    weft_status_t st;
    uint64_t number = i;
    memcpy(headers[i], &number, sizeof number);
    memset(headers[i] + sizeof number, (int)i, sizeof headers[i] - sizeof number);
    if (plan[i].form == FORGOTTEN) {
        st = weft_am_send(ep, plan[i].id, headers[i], plan[i].header_len, bytes, plan[i].len, NULL);
    } else {
        o.id = plan[i].id;
        o.header = headers[i];
        o.header_len = plan[i].header_len;
        o.buf = bytes;
        o.len = plan[i].len;
        o.confirm = plan[i].form == CONFIRM;
        if (plan[i].form == OWNED) {
            void *mine = malloc(plan[i].len);
            memcpy(mine, bytes, plan[i].len);
            o.buf = mine;
            o.release = on_release;
            owned_out++;
        } else if (plan[i].form == PIECES) {
            f->iov[0] = (weft_iov_t){bytes, 33333};
            f->iov[1] = (weft_iov_t){bytes + 33333, plan[i].len - 33333};
            o.buf = NULL;
            o.len = 0;
            o.iov = f->iov;
            o.iov_n = 2;
        } else if (plan[i].form == FROM_POOL && pooled) {
            o.buf = pooled;
        } else if (plan[i].form == FROM_DEVICE) {
            o.buf = device_bytes;
            o.kind = fakedev();
        }
        st = weft_am_send_with(ep, &o, &f->op);
        if (st && plan[i].form == OWNED)
            on_release((void *)o.buf, NULL);
    }
    if (st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED)
        CHECK(weft_ep_get_state(ep) != WEFT_EP_UP);
    else
        CHECK(!st || st == WEFT_ERR_NOMEM);
    f->posted = !st;
}

/* Of an operation on message i; N: of none in particular. */
static void check_status(weft_status_t st, unsigned i)
{
    /* In chunks: the side that has no memory in the middle says so; the other hears WEFT_ERR_PEER if that was its sender and
     * WEFT_ERR_CLOSED if it was its receiver, since conn refuses without a reason. */
    bool chunks = i < N && plan[i].len == LARGE && (plan[i].form == FROM_DEVICE || plan[i].id == DEVICE);
    if (chunks && (st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED))
        return;
    switch (st) {
    case WEFT_OK:
    case WEFT_ERR_NOMEM:
    case WEFT_ERR_SYSTEM: /* the peer had begun, and has no memory to go on */
        break;
    case WEFT_ERR_PEER:
    case WEFT_ERR_PROTOCOL:
    case WEFT_ERR_CLOSED:
        if (both_up())
            FAIL("an operation ended with %s while the connection stands", weft_status_name(st));
        break;
    default:
        FAIL("an operation ended with %s", weft_status_name(st));
    }
}

/* One of the ids that nobody handles, by a receive. */
static void receive_one(uint32_t id, bool required)
{
    weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
    static uint8_t head[WEFT_AM_HEADER_MAX], buf[LARGE];
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    o.id = id;
    o.ep = taken;
    o.header = head;
    o.header_cap = sizeof head;
    if (id == MAKE) {
        o.max_len = LARGE;
    } else if (id == POOLED) {
        o.kind = weft_pool_kind(recv_pool);
    } else if (id == DEVICE) {
        o.kind = fakedev();
    } else {
        o.buf = buf;
        o.cap = sizeof buf;
    }
    memset(head, 0xff, HEAD_MIN);
    st = weft_am_recv(server, &o, &op);
    if (st) {
        check_status(st, N);
        return; /* it is still there, or the endpoint is gone */
    }
    UNTIL(weft_op_done(&op) || !both_up(), 2);
    if (!weft_op_done(&op)) {
        weft_op_cancel(&op); /* its message was never sent */
        UNTIL(weft_op_done(&op), 2);
        CHECK(weft_op_done(&op));
        CHECK(!required || op.status != WEFT_ERR_CANCELLED);
        if (op.status == WEFT_ERR_CANCELLED)
            return;
    }
    if (id != DEVICE || op.status != WEFT_ERR_PEER) /* see check_status() */
        check_status(op.status, N);
    if (op.status)
        return;
    unsigned i = which(head, op.header_len, (uint32_t)op.tag, op.len);
    void *at = id == MAKE || id == POOLED ? op.buf : buf;
    if (id == DEVICE) {
        fakedev_peek(op.buf, buf, op.len);
        weft_mem_free(fakedev(), op.buf, op.len);
    }
    CHECK(is_bytes(at, op.len));
    if (id == MAKE)
        weft_mem_free(NULL, at, op.len);
    else if (id == POOLED)
        weft_mem_free(weft_pool_kind(recv_pool), at, op.len);
    fates[i].seen++;
}

/* Header first; `view`: and its payload. WEFT_AM_ANY_ID: whatever is left. False: nothing came. */
static bool take_one(uint32_t id, bool view, double seconds)
{
    weft_op_t op = WEFT_OP_INIT, seen = WEFT_OP_INIT;
    weft_status_t st = weft_am_take(server, taken, id, &op);
    if (st) {
        check_status(st, N);
        return false;
    }
    UNTIL(weft_op_done(&op) || !both_up(), seconds);
    if (!weft_op_done(&op))
        weft_op_cancel(&op);
    UNTIL(weft_op_done(&op), 2);
    CHECK(weft_op_done(&op));
    if (op.status == WEFT_ERR_CANCELLED)
        return false;
    check_status(op.status, N);
    if (op.status)
        return false;
    weft_am_t *am = op.buf;
    struct fate *f = see(am);
    if (view) {
        st = weft_am_view(am, &seen);
        if (!st) {
            UNTIL(weft_op_done(&seen), 5);
            CHECK(weft_op_done(&seen));
            st = seen.status;
            if (!st)
                CHECK(seen.len == plan[f - fates].len && is_bytes(seen.buf, seen.len));
        }
        check_status(st, (unsigned)(f - fates));
        f->kept_less = st;
    } else {
        f->kept_less = !am->data && am->len;
    }
    weft_am_release(am);
    return true;
}

static bool all_sent(void)
{
    for (unsigned i = 0; i < N; i++) {
        if (fates[i].posted && !weft_op_done(&fates[i].op))
            return false;
    }
    return true;
}

/* A message that should have come and has not been seen. */
static bool missing(void)
{
    for (unsigned i = 0; i < N; i++) {
        if (fates[i].posted && !fates[i].seen && (!weft_op_done(&fates[i].op) || !fates[i].op.status))
            return true;
        if (fates[i].answered && !fates[i].back)
            return true;
    }
    return false;
}

static void judge(bool must_work)
{
    for (unsigned i = 0; i < N; i++) {
        struct fate *f = &fates[i];
        CHECK(weft_op_done(&f->op));
        CHECK(f->seen <= 1);
        CHECK(!f->seen || f->posted);
        CHECK(f->back <= f->answered);
        if (!f->posted)
            continue;
        weft_status_t st = f->op.status;
        if (st == WEFT_ERR_REJECTED) {
            bool said = plan[i].id == REJECT ? f->op.reason == REASON : f->op.reason == WEFT_AM_NOT_TAKEN;
            if (!said)
                FAIL("message %u was rejected with %x", i, f->op.reason);
            CHECK(!must_work || plan[i].id == REJECT);
        } else {
            check_status(st, i);
        }
        if (both_up() && st == WEFT_OK) {
            if (!f->seen)
                FAIL("message %u (id %u, %zu bytes) was lost in silence", i, plan[i].id, plan[i].len);
            if (f->kept_less && plan[i].len == LARGE && plan[i].form != FORGOTTEN)
                FAIL("the sender of message %u was told that it had been taken", i);
        }
        if (must_work) {
            CHECK(f->posted && f->seen == 1 && !f->kept_less);
            CHECK(st == (plan[i].id == REJECT ? WEFT_ERR_REJECTED : WEFT_OK));
            CHECK_EQ(f->back, plan[i].id == ANSWER);
        }
    }
}

/* All of the plan once. True: the failure lay beyond its end. */
static bool life(bool must_work)
{
    void *pooled = NULL;
    memset(fates, 0, sizeof fates);
    memset(pulls, 0, sizeof pulls);
    n_kept = 0;
    for (unsigned i = 0; i < HANDLERS; i++)
        handle(server, handlers[i].id, handlers[i].fn);
    handle(client, BACK, on_back);
    weft_status_t st = weft_pool_get(send_pool, LARGE, &pooled);
    CHECK(!st || (!must_work && st == WEFT_ERR_NOMEM));
    if (pooled)
        memcpy(pooled, bytes, LARGE);
    for (unsigned i = 0; i < N; i++) {
        send_one(i, pooled);
        if (i % 4 == 0)
            drive();
    }
    for (unsigned i = 0; i < 50; i++)
        drive();
    for (unsigned i = 0; i < N; i++) {
        if (!fates[i].posted)
            continue;
        if (plan[i].id == TAKE)
            take_one(TAKE, true, 2);
        else if (plan[i].id == RECV || plan[i].id == MAKE || plan[i].id == POOLED || plan[i].id == DEVICE || plan[i].id >= FAR)
            receive_one(plan[i].id, must_work);
    }
    bool beyond = nomem_still_ahead();
    nomem_off();
    for (unsigned rounds = 0; both_up() && missing() && rounds < 3 * N; rounds++)
        take_one(WEFT_AM_ANY_ID, true, 0.2);
    for (unsigned i = 0; i < N; i++) {
        UNTIL(weft_op_done(&pulls[i]), 5);
        CHECK(weft_op_done(&pulls[i]));
        check_status(pulls[i].status, i);
        if (plan[i].id == PULL && fates[i].seen && !fates[i].kept_less) {
            if (pulls[i].status)
                fates[i].kept_less = true;
            else
                CHECK(pulls[i].len == plan[i].len && is_bytes(into[i], plan[i].len));
        }
    }
    while (n_kept) { /* a payload that still waits at its sender is taken now, if that is possible */
        weft_op_t view = WEFT_OP_INIT;
        weft_am_t *am = kept[--n_kept];
        unsigned i = which(am->header, am->header_len, am->id, am->len);
        if (!weft_am_view(am, &view)) {
            UNTIL(weft_op_done(&view), 5);
            CHECK(weft_op_done(&view));
            check_status(view.status, i);
            if (!view.status)
                CHECK(is_bytes(view.buf, view.len));
        }
        fates[i].kept_less = view.status;
        weft_am_release(am);
    }
    UNTIL(all_sent(), 5);
    UNTIL(!missing() || !both_up(), 3);
    judge(must_work);
    weft_pool_put(send_pool, pooled);
    for (unsigned i = 0; i < HANDLERS; i++)
        handle(server, handlers[i].id, NULL);
    handle(client, BACK, NULL);
    UNTIL(!owned_out, 2);
    CHECK_EQ(owned_out, 0);
    return beyond;
}

static void join(void)
{
    weft_op_t connect = WEFT_OP_INIT;
    taken = NULL;
    CHECK_OK(weft_ep_open(client, weft_listener_uri(l), NULL, &connect, &ep));
    UNTIL(weft_op_done(&connect) && taken, 10);
    CHECK(weft_op_done(&connect) && !connect.status && taken);
    UNTIL(both_up(), 5);
}

static void part(void)
{
    weft_op_t ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    CHECK_OK(weft_ep_close(ep, &ops[0]));
    UNTIL(weft_op_done(&ops[0]), 5);
    CHECK_OK(weft_ep_close(taken, &ops[1]));
    UNTIL(weft_op_done(&ops[1]), 5);
    CHECK(weft_op_done(&ops[0]) && weft_op_done(&ops[1]));
    ep = taken = NULL;
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(server, &s);
    CHECK_EQ(s.endpoints, 0);
    CHECK_EQ(s.am_held, 0);
    CHECK_EQ(s.am_held_bytes, 0);
}

static void open_both(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_log_set_level(WEFT_LOG_NONE);
    for (unsigned i = 0; i < LARGE; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 256);
    o.transports = transports;
    CHECK_OK(weft_runtime_open(&o, &server));
    CHECK_OK(weft_runtime_open(&o, &client));
    lo.accept = take;
    CHECK_OK(weft_listen(server, ports_tcp(), &lo, &l));
    CHECK_OK(weft_mem_alloc(fakedev(), LARGE, &device_bytes));
    fakedev_poke(device_bytes, bytes, LARGE);
    CHECK_OK(weft_pool_new(client, NULL, &send_pool));
    CHECK_OK(weft_pool_new(server, NULL, &recv_pool));
}

static void close_both(void)
{
    part();
    CHECK_OK(weft_pool_free(send_pool));
    CHECK_OK(weft_pool_free(recv_pool));
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
    weft_mem_free(fakedev(), device_bytes, LARGE);
    CHECK_EQ(fakedev_live(), 0);
}

/* fresh: in runtimes that have done nothing yet and have everything to allocate; else in some that keep what earlier lives
 * left. */
static void every_allocation(const char *transports, long times, bool fresh)
{
    unsigned beyond = 0, lost = 0;
    long at = 0;
    open_both(transports);
    join();
    life(true);
    for (; beyond < 3 && at < 3000; at++) {
        if (fresh) {
            close_both();
            open_both(transports);
            join();
        }
        nomem_at(at, times);
        beyond = life(false) ? beyond + 1 : 0;
        if (!both_up()) {
            lost++;
            part();
            join();
        }
        life(true);
    }
    printf("# %s: %ld allocations, %u of them cost the endpoint\n", transports, at - 3, lost);
    CHECK(beyond == 3);
    close_both();
}

TEST(messages_over_shared_memory_survive_the_failure_of_any_one_allocation)
{
    every_allocation("shm", 1, true);
}

TEST(messages_over_shared_memory_survive_runs_of_failures)
{
    every_allocation("shm", 6, true);
}

TEST(messages_over_shared_memory_survive_failures_in_runtimes_that_are_warm)
{
    every_allocation("shm", 1, false);
    every_allocation("shm", 3, false);
}

TEST(messages_over_tcp_survive_the_failure_of_any_one_allocation)
{
    every_allocation("tcp", 1, true);
}
