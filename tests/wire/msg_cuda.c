/* tests/wire/msg_cuda.c - messages from and to CUDA memory of every sort, against a driver made of paper: between two processes
 * and within one, over shared memory and TCP, on every way that a payload can take. The thresholds are small, so that each way
 * is taken, and the counters say that it was. ctest: timeout=400 long gpu */
#define TEST_SECONDS 380
#include "test.h"

#include <sys/prctl.h>
#include <weft/weft.h>

#include "conn/chunks.h"
#include "conn/direct.h"
#include "lib/cuda/use.h"
#include "lib/fakedev.h"
#include "lib/pair.h"
#include "lib/says.h"

enum { HOST, PINNED, CUDA, POOL, VMM, FD, MANAGED, SORTS, FAKE = SORTS, ALL };
static const char *const names[] = {"host", "pinned", "cuda", "pool", "vmm", "fd", "managed", "fakedev"};
enum { AREA = 6 << 20, EDGE = 64 };
static const size_t sizes[] = {0, 1, 2, 3, 4095, 8192, 8193, 65535, 300000, (1 << 20) + 1, (5 << 20) + 3};
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef struct side {
    bool here; /* in this process */
    weft_runtime_t *rt;
    weft_ep_t *ep;
    uint8_t *area[ALL];
} side_t;
static side_t sides[2]; /* 0 listens, 1 connects */
static pid_t other;     /* the process of side 1; 0: this one */
static void *primary[2];
static uint8_t *bytes, *back;

/* --- memory -------------------------------------------------------------------------------------------------------------- */

static void enter(int device)
{
    CHECK_EQ(cu.PrimaryRetain(&primary[device], device), 0);
    CHECK_EQ(cu.CtxPushCurrent(primary[device]), 0);
}

static void leave(void)
{
    void *gone;
    CHECK_EQ(cu.CtxPopCurrent(&gone), 0);
}

static uint8_t *area_new(int sort)
{
    static const use_properties_t plain = {.type = 1, .location = {1, 0}}, shared = {1, 1, {1, 0}, NULL, {0}};
    static const use_access_t ours = {.location = {1, 0}, .flags = 3};
    uintptr_t p = 0;
    void *stream, *q = NULL;
    unsigned long long handle;
    switch (sort) {
    case HOST:
        return calloc(1, AREA);
    case PINNED:
        CHECK(!posix_memalign(&q, 4096, AREA));
        CHECK_EQ(cu.MemHostRegister(q, AREA, 1), 0);
        return q;
    case CUDA:
        CHECK_EQ(cu.MemAlloc(&p, AREA), 0);
        return (uint8_t *)p;
    case POOL:
        CHECK_EQ(cu.StreamCreate(&stream, 1), 0);
        CHECK_EQ(cu.MemAllocAsync(&p, AREA, stream), 0);
        return (uint8_t *)p;
    case MANAGED:
        CHECK_OK(weft_mem_alloc(weft_mem_kind_find("cuda-managed"), AREA, &q));
        return q;
    case VMM:
    case FD:
        CHECK_EQ(cu.MemAddressReserve(&p, AREA, 0, 0, 0), 0);
        CHECK_EQ(cu.MemCreate(&handle, AREA, sort == FD ? &shared : &plain, 0), 0);
        CHECK_EQ(cu.MemMap(p, AREA, 0, handle, 0), 0);
        CHECK_EQ(cu.MemSetAccess(p, AREA, &ours, 1), 0);
        return (uint8_t *)p;
    default:
        CHECK_OK(weft_mem_alloc(fakedev(), AREA, &q));
        return q;
    }
}

static void put(int sort, uint8_t *to, const void *from, size_t n)
{
    if (sort == HOST || sort == PINNED)
        memcpy(to, from, n);
    else if (sort == FAKE)
        fakedev_poke(to, from, n);
    else if (n)
        CHECK_EQ(cu.MemcpyHtoD((uintptr_t)to, from, n), 0);
    use_settle();
}

static void get(int sort, void *to, const uint8_t *from, size_t n)
{
    if (sort == HOST || sort == PINNED)
        memcpy(to, from, n);
    else if (sort == FAKE)
        fakedev_peek(from, to, n);
    else if (n)
        CHECK_EQ(cu.MemcpyDtoH(to, (uintptr_t)from, n), 0);
}

/* --- the two sides ------------------------------------------------------------------------------------------------------- */

static void side_open(side_t *s, const char *transports)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = transports;
    opts.progress = WEFT_PROGRESS_CALLER;
    opts.heartbeat_ns = 60 * WEFT_SECOND; /* a busy machine is no lost peer */
    CHECK_OK(weft_runtime_open(&opts, &s->rt));
    for (int sort = 0; sort < SORTS; sort++)
        s->area[sort] = area_new(sort);
    s->here = true;
}

static void drive(void)
{
    for (int i = 0; i < 2; i++)
        if (sides[i].here)
            weft_runtime_progress(sides[i].rt);
}

static weft_status_t wait_for(weft_op_t *op)
{
    double until = test_now() + 60;
    while (!weft_op_done(op)) {
        drive();
        if (test_now() > until)
            FAIL("an operation did not complete within 60 s");
    }
    return op->status;
}

/* Before CUDA is used. two: side 1 is in a process of its own. */
static void begin(const char *transports, bool two)
{
    int pipe_of[2];
    char uri[256] = "";
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    weft_listener_t *listener;
    use_there();
    setenv("PAPER_THREAD", "10", 1);
    CHECK(!pipe(pipe_of));
    fflush(NULL);
    other = two ? fork() : 0;
    CHECK(other >= 0);
    bool first = !two || other, second = !two || !other;
    if (two && !other)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    wefti_direct_min = 20000;
    wefti_bounce_min = 40000;
    wefti_bounce_min_pinned = 30000;
    wefti_bounce_bytes = 150000;
    wefti_managed_min = 20000;
    wefti_chunk_bytes = 50000;
    use_paper();
    CHECK(weft_mem_kind_find("cuda"));
    enter(0);
    bytes = malloc(AREA);
    back = malloc(AREA);
    if (first) {
        side_open(&sides[0], transports);
        CHECK_OK(weft_listen(sides[0].rt, "tcp://127.0.0.1:0", NULL, &listener));
        CHECK_OK(weft_listener_accept(listener, &accept));
        CHECK(write(pipe_of[1], weft_listener_uri(listener), strlen(weft_listener_uri(listener))) > 0);
    }
    if (second) {
        side_open(&sides[1], transports);
        CHECK(read(pipe_of[0], uri, sizeof uri - 1) > 0);
        CHECK_OK(weft_ep_open(sides[1].rt, uri, NULL, &connect, &sides[1].ep));
        CHECK_OK(wait_for(&connect));
    }
    if (first) {
        CHECK_OK(wait_for(&accept));
        sides[0].ep = (weft_ep_t *)accept.buf;
        CHECK_OK(weft_listener_close(listener, NULL));
    }
    close(pipe_of[0]);
    close(pipe_of[1]);
}

static wefti_payloads_t *counters(const side_t *s)
{
    return &wefti_conn_of(s->rt)->payloads;
}

/* Both close, and nothing of the driver's is left; the other process says whether it thinks so too. */
static void end(bool waits)
{
    weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    for (int i = 0; i < 2; i++)
        if (sides[i].here)
            CHECK_OK(weft_ep_close(sides[i].ep, &op[i]));
    for (int i = 0; i < 2; i++)
        if (sides[i].here)
            CHECK_OK(wait_for(&op[i]));
    SEEN(waits, waits ? cu.paper->waits : 0);
    for (int i = 0; i < 2; i++)
        if (sides[i].here)
            CHECK_OK(weft_runtime_close(sides[i].rt));
    SEEN(live_imports, 0);
    SEEN(live_events, 0);
    SEEN(registered, (unsigned)sides[0].here + sides[1].here);
    if (!sides[0].here)
        exit(0);
    if (other) {
        int status;
        CHECK_EQ(waitpid(other, &status, 0), other);
        CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
    }
}

/* --- one message --------------------------------------------------------------------------------------------------------- */

typedef struct plan {
    int from, to; /* sorts of memory */
    size_t n, cap;
    size_t out_at, in_at;
    unsigned out_pieces, in_pieces;
    int sender; /* which side */
    bool am;
    uint64_t tag;
} plan_t;

enum { PIECES = 12 };
typedef struct transfer {
    plan_t plan;
    weft_op_t send, recv;
    weft_iov_t out[PIECES], in[PIECES];
    uint64_t header;
} transfer_t;

/* Odd lengths, empty ones among them. */
static void cut(weft_iov_t *iov, unsigned pieces, uint8_t *at, size_t n)
{
    for (unsigned i = 0; i < pieces; i++) {
        bool empty = i % 5 == 3 || (!i && pieces % 2);
        size_t len = i + 1 == pieces ? n : empty ? 0 : n * (i % 7 + 1) / (3 * pieces);
        iov[i] = (weft_iov_t){len ? at : NULL, len};
        at += len;
        n -= len;
    }
}

static void post_send(transfer_t *t)
{
    const plan_t *p = &t->plan;
    side_t *s = &sides[p->sender];
    uint8_t *at = s->area[p->from] + p->out_at;
    pattern_fill(bytes, p->n, p->tag);
    put(p->from, at, bytes, p->n);
    cut(t->out, p->out_pieces, at, p->n);
    if (p->am) {
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        o.id = (uint32_t)p->tag;
        t->header = p->tag * 3;
        o.header = &t->header;
        o.header_len = 8;
        o.iov = t->out;
        o.iov_n = p->out_pieces;
        CHECK_OK(weft_am_send_with(s->ep, &o, &t->send));
    } else if (p->out_pieces == 1) {
        CHECK_OK(weft_msg_send(s->ep, at, p->n, p->tag, &t->send));
    } else {
        weft_msg_send_opts_t o = WEFT_MSG_SEND_OPTS_INIT;
        o.iov = t->out;
        o.iov_n = p->out_pieces;
        o.tag = p->tag;
        CHECK_OK(weft_msg_send_with(s->ep, &o, &t->send));
    }
}

static void post_recv(transfer_t *t)
{
    const plan_t *p = &t->plan;
    side_t *s = &sides[!p->sender];
    uint8_t *at = s->area[p->to] + p->in_at;
    memset(bytes, 0xc3, p->n + EDGE);
    put(p->to, at, bytes, p->n + EDGE);
    cut(t->in, p->in_pieces, at, p->cap);
    if (p->am) {
        weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
        o.ep = s->ep;
        o.id = (uint32_t)p->tag;
        o.header = &t->header;
        o.header_cap = 8;
        o.iov = t->in;
        o.iov_n = p->in_pieces;
        CHECK_OK(weft_am_recv(s->rt, &o, &t->recv));
    } else if (p->in_pieces == 1) {
        CHECK_OK(weft_msg_recv(s->ep, at, p->cap, p->tag, WEFT_TAG_FULL, &t->recv));
    } else {
        CHECK_OK(weft_msg_recv_iov(s->rt, s->ep, t->in, p->in_pieces, p->tag, WEFT_TAG_FULL, &t->recv));
    }
}

static void finish(transfer_t *t)
{
    const plan_t *p = &t->plan;
    bool cut_off = p->cap < p->n;
    if (sides[p->sender].here) {
        weft_status_t st = wait_for(&t->send), want = cut_off && p->am && p->n > 100000 ? WEFT_ERR_REJECTED : WEFT_OK;
        if (st != want)
            FAIL("%s to %s, %zu bytes: the send ends with %s", names[p->from], names[p->to], p->n, weft_status_name(st));
    }
    if (!sides[!p->sender].here)
        return;
    weft_status_t st = wait_for(&t->recv);
    if (st != (cut_off ? WEFT_ERR_TRUNCATED : WEFT_OK))
        FAIL("%s to %s, %zu bytes: the receive ends with %s", names[p->from], names[p->to], p->n, weft_status_name(st));
    CHECK_EQ(t->recv.len, p->n);
    get(p->to, back, sides[!p->sender].area[p->to] + p->in_at, p->n + EDGE);
    size_t good = cut_off ? 0 : pattern_check(back, p->n, p->tag);
    if (!cut_off && good < p->n)
        FAIL("%s to %s, %zu bytes in %u pieces to %u, %s: the one at %zu is wrong", names[p->from], names[p->to], p->n,
             p->out_pieces, p->in_pieces, p->am ? "am" : "msg", good);
    for (size_t i = cut_off ? 0 : p->n; i < p->n + EDGE; i++)
        if (back[i] != 0xc3)
            FAIL("%s to %s, %zu bytes: the one at %zu was changed", names[p->from], names[p->to], p->n, i);
    if (p->am && !cut_off)
        CHECK_EQ(t->header, p->tag * 3);
}

static void transfer(plan_t plan, bool recv_first)
{
    transfer_t t = {.plan = plan, .send = WEFT_OP_INIT, .recv = WEFT_OP_INIT};
    const plan_t *p = &t.plan;
    if (recv_first && sides[!p->sender].here)
        post_recv(&t);
    if (sides[p->sender].here)
        post_send(&t);
    if (!recv_first && sides[!p->sender].here)
        post_recv(&t);
    finish(&t);
}

static uint64_t tag = 1000;

static plan_t plan_of(int from, int to, size_t n, bool pieces, int sender, bool am)
{
    return (plan_t){.from = from,
                    .to = to,
                    .n = n,
                    .cap = n,
                    .sender = sender,
                    .am = am,
                    .tag = ++tag,
                    .out_at = tag % 5,
                    .in_at = tag % 3,
                    .out_pieces = pieces ? 2 + tag % 11 : 1,
                    .in_pieces = pieces ? 2 + tag % 7 : 1};
}

/* Managed memory is the host's where it is in pieces. */
static bool on_device(int sort, bool pieces)
{
    return sort != HOST && sort != PINNED && (sort != MANAGED || !pieces);
}

static bool device_can_reach(int sort, bool pieces)
{
    return sort == PINNED || on_device(sort, pieces);
}

/* Which way must a long one in one piece, and one in several, have gone? */
static void check_ways(int from, int to, bool pieces, const uint64_t before[2][3], bool shm)
{
    bool out = on_device(from, pieces), in = on_device(to, pieces);
    bool direct = (from == CUDA || from == FD) && device_can_reach(to, pieces) && !pieces && shm;
    bool bounced = !direct && shm && ((out && device_can_reach(to, pieces)) || (from == PINNED && in));
    bool relayed = !direct && !bounced && shm && (out || in);
    for (int i = 0; i < 2; i++) {
        if (!sides[i].here)
            continue;
        const wefti_payloads_t *c = counters(&sides[i]);
        uint64_t now[3] = {c->direct_pulls - before[i][0], c->bounced - before[i][1], c->relayed - before[i][2]};
        if (!!now[0] != direct || !!now[1] != bounced || (relayed && !now[2]) || (!shm && now[2]))
            FAIL("%s to %s%s over %s: %llu pulls directly, %llu chunks bounced, %llu relayed", names[from], names[to],
                 pieces ? " in pieces" : "", shm ? "shm" : "tcp", (unsigned long long)now[0], (unsigned long long)now[1],
                 (unsigned long long)now[2]);
    }
}

/* Every sort to every sort, every size, in both directions. */
static void everything(const char *transports, bool two)
{
    bool shm = !strcmp(transports, "shm");
    begin(transports, two);
    for (int i = 0; i < 8; i++) /* the shared memory of both directions is asked for, and there */
        transfer(plan_of(POOL, HOST, 300000, false, i % 2, false), true);
    for (int from = 0; from < SORTS; from++)
        for (int to = 0; to < SORTS; to++)
            for (int pieces = 0; pieces < 2; pieces++) {
                uint64_t before[2][3] = {{0}};
                for (int i = 0; i < 2; i++)
                    if (sides[i].here)
                        memcpy(before[i],
                               (uint64_t[3]){counters(&sides[i])->direct_pulls, counters(&sides[i])->bounced,
                                             counters(&sides[i])->relayed},
                               sizeof before[i]);
                for (int k = 0; k < SIZES; k++)
                    for (int am = 0; am < 2; am++)
                        for (int sender = 0; sender < 2; sender++)
                            if (k < SIZES - 2 || (am == (from + to) % 2 && sender == (from + to + k) % 2))
                                transfer(plan_of(from, to, sizes[k], pieces, sender, am), (k + sender + am) % 2);
                check_ways(from, to, pieces, before, shm);
            }
    end(false);
}

TEST(two_processes_over_shared_memory)
{
    everything("shm", true);
}

TEST(two_processes_over_tcp)
{
    everything("tcp", true);
}

TEST(two_runtimes_over_shared_memory)
{
    everything("shm", false);
}

TEST(two_runtimes_over_tcp)
{
    everything("tcp", false);
}

/* --- several at a time, and some that do not fit ------------------------------------------------------------------------- */

static void many(const char *transports, bool two)
{
    enum { N = 36, ROUNDS = 12 };
    static transfer_t t[N];
    begin(transports, two);
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t at[2][2][SORTS] = {{{0}}}; /* of sends and receives of each side */
        for (unsigned i = 0; i < N; i++) {
            unsigned k = round * N + i;
            size_t n = (size_t[]){7, 8192, 30001, 100003, 250000, 8193, 399999}[k % 7];
            t[i] = (transfer_t){.plan = plan_of((int)(k % SORTS), (int)(k / 3 % SORTS), n, k % 4 == 1, k % 3 == 0, k % 5 == 2),
                                .send = WEFT_OP_INIT,
                                .recv = WEFT_OP_INIT};
            plan_t *p = &t[i].plan;
            size_t *out = &at[p->sender][0][p->from], *in = &at[!p->sender][1][p->to];
            p->out_at = *out;
            p->in_at = AREA / 2 + *in; /* the upper half is for receives */
            *out += n + EDGE;
            *in += n + EDGE;
            CHECK(*out <= AREA / 2 && *in <= AREA / 2);
        }
        for (unsigned i = 0; i < N; i++) {
            if (sides[t[i].plan.sender].here)
                post_send(&t[i]);
            if (sides[!t[i].plan.sender].here)
                post_recv(&t[i]);
        }
        for (unsigned i = 0; i < N; i++)
            finish(&t[i]);
    }
    end(false);
}

TEST(many_are_under_way_between_two_processes)
{
    many("shm", true);
}

TEST(many_are_under_way_between_two_runtimes)
{
    many("shm", false);
}

TEST(many_are_under_way_over_tcp)
{
    many("tcp", true);
}

/* What goes past the processor meanwhile would take their share of the bus. */
TEST(payloads_wait_for_bounce_buffers_that_are_at_the_same_peer)
{
    enum { N = 12 };
    static transfer_t t[N];
    begin("shm", false);
    for (int i = 0; i < 8; i++)
        transfer(plan_of(POOL, HOST, 300000, false, i % 2, false), true);
    const wefti_payloads_t *c = counters(&sides[0]);
    uint64_t relayed = c->relayed, bounced = c->bounced;
    for (unsigned i = 0; i < N; i++) {
        t[i] = (transfer_t){.plan = plan_of(i % 2 ? PINNED : POOL, CUDA, 200000, false, 0, false)};
        t[i].plan.out_at = t[i].plan.in_at = i * 300000;
        post_send(&t[i]);
        post_recv(&t[i]);
    }
    for (unsigned i = 0; i < N; i++)
        finish(&t[i]);
    CHECK_EQ(c->relayed, relayed);
    CHECK(c->bounced >= bounced + N);
    end(false);
}

/* Neither side says that the other is lost, or has closed. */
TEST(a_device_that_fails_is_not_a_peer_that_is_lost)
{
    use_only_paper();
    begin("shm", false);
    for (int i = 0; i < 8; i++)
        transfer(plan_of(POOL, HOST, 300000, false, i % 2, false), true);
    for (unsigned k = 0; k < 9; k++) {
        plan_t p = plan_of((int[]){CUDA, POOL, HOST}[k % 3], (int[]){CUDA, POOL, HOST}[k / 3], 1 << 20, false, 0, k % 2);
        transfer_t t = {.plan = p, .send = WEFT_OP_INIT, .recv = WEFT_OP_INIT};
        if (p.from == HOST && p.to == HOST)
            continue;
        post_recv(&t);
        post_send(&t);
        cu.fail("cuMemcpyAsync", 0, 999, -1);
        cu.fail("cuMemcpy2DAsync_v2", 0, 999, -1);
        weft_status_t sent = wait_for(&t.send), received = wait_for(&t.recv);
        cu.fail("cuMemcpyAsync", 0, 0, 0);
        cu.fail("cuMemcpy2DAsync_v2", 0, 0, 0);
        if (sent != WEFT_ERR_SYSTEM || received != WEFT_ERR_SYSTEM)
            FAIL("%s to %s: the send ends with %s, the receive with %s", names[p.from], names[p.to], weft_status_name(sent),
                 weft_status_name(received));
        if (p.to == HOST && p.from == POOL)
            CHECK(strstr(weft_op_error(&t.recv), "could not go on sending"));
        if (p.from == HOST)
            CHECK(strstr(weft_op_error(&t.send), "had begun to take"));
        transfer(plan_of(CUDA, POOL, 1 << 20, false, 0, false), true); /* both go on */
    }
    end(true);
}

TEST(receives_that_are_too_short_stay_as_they_were)
{
    begin("shm", true);
    for (int from = 0; from < SORTS; from++)
        for (int to = 0; to < SORTS; to++)
            for (unsigned k = 0; k < 5; k++) {
                size_t n = (size_t[]){2, 8192, 8193, 300000, 1 << 20}[k];
                plan_t p = plan_of(from, to, n, k % 2, (int)(k / 2 % 2), false);
                p.cap = n - 1;
                transfer(p, k % 3);
            }
    end(false);
}

/* --- memory of more than one sort ---------------------------------------------------------------------------------------- */

TEST(a_programs_own_kind_beside_cuda)
{
    begin("shm", true);
    fakedev_install();
    for (int i = 0; i < 2; i++)
        if (sides[i].here)
            sides[i].area[FAKE] = area_new(FAKE);
    for (int other_sort = 0; other_sort < ALL; other_sort++)
        for (unsigned k = 0; k < 6; k++) {
            size_t n = (size_t[]){5, 8192, 20000, 50000, 300000, 1 << 20}[k];
            transfer(plan_of(FAKE, other_sort, n, k % 2, 0, false), true);
            transfer(plan_of(other_sort, FAKE, n, false, 0, k % 2), true);
            transfer(plan_of(other_sort, FAKE, n, true, 1, false), false);
        }
    for (int i = 0; i < 2; i++)
        if (sides[i].here)
            weft_mem_free(fakedev(), sides[i].area[FAKE], AREA);
    fakedev_remove();
    end(true);
}

/* The second area of CUDA memory is on the other device. */
/* Before CUDA is started here: the devices of a machine are its files. */
static void needs_two_devices(void)
{
    if (getenv("TEST_WEFT_GPU") && access("/dev/nvidia1", F_OK))
        SKIP("this machine has one GPU");
}

TEST(from_one_device_to_another)
{
    needs_two_devices();
    begin("shm", true);
    leave();
    for (int i = 0; i < 2; i++)
        if (sides[i].here && i == 1) {
            enter(1);
            sides[i].area[CUDA] = area_new(CUDA);
            leave();
        }
    enter(0);
    for (unsigned k = 0; k < SIZES; k++)
        for (int sender = 0; sender < 2; sender++)
            for (int pieces = 0; pieces < 2; pieces++) {
                transfer_t t = {
                    .plan = plan_of(CUDA, CUDA, sizes[k], pieces, sender, false), .send = WEFT_OP_INIT, .recv = WEFT_OP_INIT};
                if (sides[1].here) {
                    leave();
                    enter(1);
                }
                if (sides[!sender].here)
                    post_recv(&t);
                else
                    post_send(&t);
                finish(&t);
                if (sides[1].here) {
                    leave();
                    enter(0);
                }
            }
    end(false);
}

TEST(pieces_of_one_message_are_on_two_devices)
{
    needs_two_devices();
    begin("shm", true);
    uint8_t *at[2];
    for (int d = 0; d < 2; d++) {
        enter(d);
        at[d] = area_new(CUDA);
        leave();
    }
    for (unsigned k = 0; k < 5; k++) {
        size_t half = (size_t[]){3, 3000, 5001, 40000, 300000}[k];
        weft_op_t op = WEFT_OP_INIT;
        weft_iov_t iov[2] = {{at[0], half}, {at[1], half}};
        ++tag;
        if (sides[0].here) {
            weft_msg_send_opts_t o = WEFT_MSG_SEND_OPTS_INIT;
            pattern_fill(bytes, 2 * half, tag);
            for (int d = 0; d < 2; d++) {
                enter(d);
                put(CUDA, at[d], bytes + (size_t)d * half, half);
                leave();
            }
            o.iov = iov;
            o.iov_n = 2;
            o.tag = tag;
            CHECK_OK(weft_msg_send_with(sides[0].ep, &o, &op));
            CHECK_OK(wait_for(&op));
        } else {
            CHECK_OK(weft_msg_recv_iov(sides[1].rt, sides[1].ep, iov, 2, tag, WEFT_TAG_FULL, &op));
            CHECK_OK(wait_for(&op));
            for (int d = 0; d < 2; d++) {
                enter(d);
                get(CUDA, back + (size_t)d * half, at[d], half);
                leave();
            }
            CHECK_EQ(pattern_check(back, 2 * half, tag), 2 * half);
        }
    }
    end(false);
}

/* --- what is said when it fails ------------------------------------------------------------------------------------------ */

static void say_nothing(weft_log_level_t level, const char *line, void *user)
{
    (void)level, (void)line, (void)user;
}

/* A call of the driver fails once, at every moment: how many operations ended by that, each with CUDA's own word for it. */
static unsigned failures(int from, int to, size_t n, const char *function)
{
    unsigned failed = 0;
    for (unsigned after = 0; after < 12; after++) {
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        cu.fail(function, after, 999, 1);
        CHECK_OK(weft_msg_recv(sides[1].ep, sides[1].area[to], n, 7, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(sides[0].ep, sides[0].area[from], n, 7, &send));
        if (wait_for(&send))
            weft_op_cancel(&recv);
        (void)wait_for(&recv);
        cu.fail(function, 0, 0, 0);
        const weft_op_t *both[] = {&send, &recv};
        for (int i = 0; i < 2; i++) {
            if (both[i]->status != WEFT_ERR_SYSTEM || strstr(weft_op_error(both[i]), "could not go on"))
                continue; /* the other side knows */
            SAYS(both[i], i ? "msg receive: copying CUDA memory" : "msg send: copying CUDA memory", ": CUDA_ERROR_UNKNOWN");
            CHECK(!strstr(weft_op_error(both[i]), " 0 bytes"));
            failed++;
        }
    }
    return failed;
}

TEST(an_operation_whose_copy_fails_says_what_cuda_said)
{
    begin("shm", false);
    use_only_paper();
    weft_log_set_sink(say_nothing, NULL);
    CHECK(failures(CUDA, CUDA, 3000, "cuMemcpy2DAsync_v2") >= 2);   /* carries */
    CHECK(failures(CUDA, CUDA, 300000, "cuMemcpyAsync") >= 1);      /* direct */
    CHECK(failures(CUDA, HOST, 300000, "cuMemcpy2DAsync_v2") >= 2); /* chunks: others of them do well */
    CHECK(failures(HOST, CUDA, 300000, "cuMemcpy2DAsync_v2") >= 2);
    CHECK(failures(POOL, CUDA, 300000, "cuMemcpyAsync") >= 2); /* bounce buffers */
    weft_log_set_sink(NULL, NULL);
    CHECK_OK(weft_runtime_close(sides[0].rt));
    CHECK_OK(weft_runtime_close(sides[1].rt));
}

TEST(an_operation_that_was_cancelled_before_its_copy_failed_says_so)
{
    begin("shm", false);
    use_only_paper();
    weft_log_set_sink(say_nothing, NULL);
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    cu.paper->copy_ns_per_kib = 100000; /* 0.3 ms for all */
    CHECK_OK(weft_msg_recv(sides[1].ep, sides[1].area[CUDA], 3000, 7, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(sides[0].ep, sides[0].area[HOST], 3000, 7, &send));
    CHECK_OK(wait_for(&send));
    cu.fail("copy", 0, 700, 1);
    for (int i = 0; i < 100000 && !sides[1].ep->pulls; i++)
        drive();
    CHECK(!weft_op_done(&recv));
    weft_op_cancel(&recv);
    CHECK_EQ(wait_for(&recv), WEFT_ERR_CANCELLED);
    CHECK_STR(weft_op_error(&recv), "msg receive: the operation was cancelled");
    weft_log_set_sink(NULL, NULL);
    CHECK_OK(weft_runtime_close(sides[0].rt));
    CHECK_OK(weft_runtime_close(sides[1].rt));
}

TEST(pieces_of_two_kinds_are_refused_by_their_names)
{
    begin("shm", false);
    weft_iov_t iov[] = {{sides[0].area[MANAGED], 10}, {NULL, 0}, {sides[0].area[CUDA], 10}};
    weft_msg_send_opts_t o = WEFT_MSG_SEND_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.iov = iov;
    o.iov_n = 3;
    CHECK_EQ(weft_msg_send_with(sides[0].ep, &o, &op), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "piece 2 is of another kind of memory (cuda) than those before it (cuda-managed)");
    iov[0].base = sides[0].area[HOST];
    CHECK_EQ(weft_msg_send_with(sides[0].ep, &o, &op), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "piece 2 is of another kind of memory (cuda) than those before it (host)");
    end(false);
}
