/* A peer in a process of its own that calls, and changes its calls in shared memory while the service reads them: shapes,
 * strides, lengths, text, bools, back and forth, tens of thousands of times. The service neither crashes (run it under asan) nor
 * answers with bytes that it was not sent; what its functions see is what was checked; and an honest caller is served all the
 * while.
 *
 * conn_flips.c tries every moment, one after the other; here nobody waits for anybody.
 *
 * ctest: tls timeout=300 long */
#define TEST_SECONDS 250
#include <sys/prctl.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/rng.h"
#include "conn/conn.h"
#include "fabric/shm/internal.h"
#include "seen.h"
#include "ports.h"
#include "test.h"

#define ECHO "echo(s: string, b: [bool], t: tensor) -> (s: string, b: [bool], t: tensor)"
#define FILL 0x5a
enum { ROUNDS = 50000, BATCH = 16, FLIPS = 200, ELEMENTS = 64 };
#define SECONDS 12.0 /* of attack, at most: a busy machine does fewer rounds */

/* --- callers, each in a process ---------------------------------------------------------------------------------------- */

static int64_t shape[2] = {ELEMENTS / 8, 8}, strides[2] = {1, ELEMENTS / 8};
static uint8_t data[ELEMENTS], bools[16] = {1, 0, 1};
static weft_tensor_t tensor;
static weft_value_t args[3];

static void prepare(void)
{
    memset(data, FILL, sizeof data);
    tensor = (weft_tensor_t){.data = data, .device_type = 1, .ndim = 2, .code = 1, .bits = 8, .lanes = 1};
    tensor.shape = shape;
    tensor.strides = strides;
    args[0] = weft_text("\xc3\xa4\xc3\xb6 nothing but text", 21);
    args[1] = weft_vector(WEFT_T_BOOL, bools, sizeof bools);
    args[2] = weft_tensor(&tensor);
}

/* Of a tensor that came back: nothing but what was sent. */
static bool ours(const weft_value_t *v)
{
    uint64_t bytes;
    const weft_tensor_t *t = v->tensors.at;
    const uint8_t *p = (const uint8_t *)t->data;
    if (weft_tensor_bytes(t, &bytes) || bytes > ELEMENTS)
        return false;
    for (uint64_t i = 0; i < bytes; i++)
        if (p[i] != FILL)
            return false;
    return true;
}

typedef struct caller {
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_client_t *client;
    weft_method_t *echo;
    char uri[256];
} caller_t;

static void caller_connect(caller_t *c)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_ep_open(c->rt, c->uri, NULL, &op, &c->ep));
    CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
    CHECK_OK(weft_client_on(c->ep, NULL, &c->client));
    CHECK_OK(weft_client_method(c->client, ECHO, &c->echo));
    CHECK_OK(weft_method_check(c->echo, NULL, &op));
    CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
}

static void caller_part(caller_t *c)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_client_close(c->client, &op));
    weft_op_wait(&op, 20 * WEFT_SECOND);
    CHECK_OK(weft_ep_abort(c->ep, &op));
    weft_op_wait(&op, 20 * WEFT_SECOND);
}

static caller_t caller_open(int uri_fd)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    caller_t c = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK(read(uri_fd, c.uri, sizeof c.uri - 1) > 0);
    prepare();
    weft_log_set_level(WEFT_LOG_NONE);
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = "shm";
    CHECK_OK(weft_runtime_open(&o, &c.rt));
    caller_connect(&c);
    return c;
}

/* Where in its record something lies that is worth changing, and what it becomes. */
typedef struct spot {
    uint8_t *at;
    size_t n; /* bytes: 1 or 8; 0: nothing */
    uint64_t evil, good;
} spot_t;

/* Anything that is eight bytes wide and small is a length or a number of something, most likely. */
static spot_t choose(wefti_rng_t *rng, uint8_t *rec, size_t n)
{
    static const uint64_t evils[] = {0, 1, 4096, 2295, UINT64_C(1) << 20, UINT64_C(1) << 40, UINT64_MAX};
    size_t at = 32 + wefti_rng_below(rng, n - 32), wide = (at & ~(size_t)7) + 8 <= n ? at & ~(size_t)7 : 32;
    spot_t s = {.at = rec + at, .n = 1, .evil = wefti_rng_next(rng) & 1 ? 0xff : 2};
    if (wefti_rng_next(rng) & 1)
        s = (spot_t){.at = rec + wide, .n = 8, .evil = evils[wefti_rng_below(rng, sizeof evils / sizeof evils[0])]};
    memcpy(&s.good, s.at, s.n);
    if ((uint8_t)s.good == FILL) /* not the data itself: that may change, and comes back as it is */
        s.n = 0;
    return s;
}

static void set(const spot_t *s, uint64_t to)
{
    if (s->n == 8)
        *(volatile uint64_t *)(void *)s->at = to;
    else if (s->n)
        *(volatile uint8_t *)s->at = (uint8_t)to;
}

/* Several calls at once, and while they are read their records change and are as they were, in turn. */
static unsigned attack(caller_t *c, wefti_rng_t *rng)
{
    static weft_op_t ops[BATCH];
    static weft_reply_t replies[BATCH];
    spot_t spots[BATCH];
    unsigned n = 0, answered = 0;
    for (; n < BATCH && c->ep->lane; n++) {
        const wefti_ring_tx_t *tx = &((wefti_shm_lane_t *)c->ep->lane)->tx;
        uint64_t tail = tx->tail;
        memset(&ops[n], 0, sizeof ops[n]);
        memset(&replies[n], 0, sizeof replies[n]);
        if (weft_call(c->echo, args, 3, &replies[n], &ops[n]))
            break;
        uint8_t *at = tx->base + (tail & (tx->size - 1));
        uint64_t head = atomic_load((_Atomic uint64_t *)(void *)at);
        spots[n] = (spot_t){.n = 0};
        if (head >> 32 != WEFTI_RING_SKIP && (uint32_t)head > 64)
            spots[n] = choose(rng, at + WEFTI_RING_HEAD, (uint32_t)head);
    }
    for (unsigned i = 0; i < FLIPS; i++)
        for (unsigned k = 0; k < n; k++)
            set(&spots[k], i & 1 ? spots[k].good : spots[k].evil);
    for (unsigned i = 0; i < n; i++) {
        weft_status_t st = weft_op_wait(&ops[i], 20 * WEFT_SECOND);
        if (st == WEFT_OK && !ours(&replies[i].values[2]))
            FAIL("the answer has bytes of the server's memory");
        answered += st == WEFT_OK;
        weft_reply_release(&replies[i]);
    }
    return answered;
}

static void hostile(int uri_fd)
{
    caller_t c = caller_open(uri_fd);
    wefti_rng_t rng = {0xbad};
    unsigned answered = 0, lost = 0, rounds = 0;
    for (double end = test_now() + SECONDS; rounds < ROUNDS && test_now() < end; rounds += BATCH) {
        answered += attack(&c, &rng);
        if (!c.ep->lane) {
            caller_part(&c);
            caller_connect(&c);
            lost++;
        }
    }
    printf("# %u calls, %u answered, the connection lost %u times\n", rounds, answered, lost);
    caller_part(&c);
    CHECK_OK(weft_runtime_close(c.rt));
    exit(answered ? 0 : 1);
}

static void honest(int uri_fd)
{
    caller_t c = caller_open(uri_fd);
    for (;;) {
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_call(c.echo, args, 3, &reply, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        CHECK(ours(&reply.values[2]));
        weft_reply_release(&reply);
        usleep(2000);
    }
}

/* --- the service ------------------------------------------------------------------------------------------------------- */

static unsigned runs;

static void echo(weft_request_t *request, void *user)
{
    (void)user;
    seen_values(request->args, request->n);
    runs++;
    weft_request_reply(request, request->args, request->n);
}

static pid_t start(void (*life)(int uri_fd), int *fd_out)
{
    int fds[2];
    CHECK(!pipe(fds));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        close(fds[1]);
        life(fds[0]);
        exit(1);
    }
    close(fds[0]);
    *fd_out = fds[1];
    return pid;
}

TEST(calls_that_change_while_they_are_read)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_service_t *service;
    weft_op_t op = WEFT_OP_INIT;
    int fds[2], status = 0;
    pid_t bad = start(hostile, &fds[0]), good = start(honest, &fds[1]);
    weft_log_set_level(WEFT_LOG_NONE);
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = "shm";
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &listener));
    CHECK_OK(weft_service_open(rt, "flips", NULL, &service));
    CHECK_OK(weft_service_add(service, ECHO, echo, NULL, NULL));
    const char *uri = weft_listener_uri(listener);
    for (unsigned i = 0; i < 2; i++) {
        CHECK(write(fds[i], uri, strlen(uri)) > 0);
        close(fds[i]);
    }
    while (!waitpid(bad, &status, WNOHANG))
        for (unsigned i = 0; i < 200; i++)
            weft_runtime_progress(rt);
    CHECK_EQ(status, 0);
    CHECK_EQ(waitpid(good, &status, WNOHANG), 0); /* it goes on */
    kill(good, SIGKILL);
    waitpid(good, NULL, 0);
    CHECK(runs);
    CHECK_OK(weft_service_close(service, &op));
    while (!weft_op_done(&op))
        weft_runtime_progress(rt);
    CHECK_OK(weft_runtime_close(rt));
}
