/* tests/fault/tcp_flips.c - one bit changes on the way, anywhere in what two runtimes say over plain TCP: messages, active
 * messages, remote reads and writes, calls. With checksums at one of the two each such bit is counted and is the end of that
 * connection; no wrong byte reaches a program, and every operation ends. Without them one gets through, so this can fail.
 *
 * FLIPS_SEED=N makes the choices of another run. ctest: shards timeout=900 long */
#define TEST_SECONDS 850
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/rng.h"
#include "test.h"

enum { SMALL = 100, MIDDLE = 20000, LARGE = 100000, HALF = 200000, AM_HERE = 7, AM_THERE = 8 };
#define ECHO "echo(bytes: [u8]) -> [u8]"

/* --- what happens on the way ---------------------------------------------------------------------------------------------- */

static struct {
    _Atomic bool on, did;
    _Atomic uint64_t n; /* bytes of lanes that came, in the order in which they were read */
    uint64_t bit;       /* which of them changes */
    uint16_t wire;      /* the port of connections that are no lanes */
} flip;

static bool is_lane(int fd)
{
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
        socklen_t n = sizeof a;
        if ((i ? getpeername(fd, (void *)&a, &n) : getsockname(fd, (void *)&a, &n)) ||
            (a.ss_family != AF_INET && a.ss_family != AF_INET6) ||
            ntohs(((struct sockaddr_in *)(void *)&a)->sin_port) == flip.wire) /* IPv6 has its port in the same place */
            return false;
    }
    return true;
}

static void pass(int fd, const struct iovec *v, size_t n_v, ssize_t got)
{
    int err = errno;
    if (got <= 0 || !atomic_load(&flip.on) || !is_lane(fd)) {
        errno = err;
        return;
    }
    uint64_t from = atomic_fetch_add(&flip.n, (uint64_t)got), at = flip.bit / 8;
    for (size_t i = 0, left = (size_t)got; i < n_v && left; i++) {
        size_t part = v[i].iov_len < left ? v[i].iov_len : left;
        if (at >= from && at < from + part) {
            ((uint8_t *)v[i].iov_base)[at - from] ^= (uint8_t)(1u << flip.bit % 8);
            atomic_store(&flip.did, true);
        }
        from += part;
        left -= part;
    }
    errno = err;
}

typedef ssize_t recv_fn(int, void *, size_t, int);
typedef ssize_t recvmsg_fn(int, struct msghdr *, int);

ssize_t recv(int fd, void *buf, size_t n, int flags)
{
    ssize_t got = ((recv_fn *)(uintptr_t)dlsym(RTLD_NEXT, "recv"))(fd, buf, n, flags);
    pass(fd, &(struct iovec){buf, n}, 1, got);
    return got;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t got = ((recvmsg_fn *)(uintptr_t)dlsym(RTLD_NEXT, "recvmsg"))(fd, msg, flags);
    pass(fd, msg->msg_iov, msg->msg_iovlen, got);
    return got;
}

/* --- the two -------------------------------------------------------------------------------------------------------------- */

enum { OPS = 24 };
static weft_runtime_t *rt[2]; /* the listener's, the dialler's */
static weft_listener_t *listener;
static weft_ep_t *ep[2];
static weft_service_t *service;
static weft_client_t *client;
static weft_method_t *echo;
static weft_region_t *region;
static weft_remote_t *remote;
static weft_reply_t reply;
static bool threads;
static _Atomic unsigned wrong;
static weft_op_t ops[OPS], pulled;
static unsigned n_ops;
static bool receives[OPS];
static uint8_t bytes[LARGE], got[OPS][LARGE], am_got[LARGE];

static weft_op_t *next_op(void)
{
    weft_op_t *op = &ops[n_ops++];
    *op = (weft_op_t)WEFT_OP_INIT;
    return op;
}

static void drive(void)
{
    if (threads)
        usleep(50);
    else
        for (int i = 0; i < 2; i++)
            weft_runtime_progress(rt[i]);
}

#define UNTIL(cond) \
    do { \
        double until_end = test_now() + 60; \
        while (!(cond)) { \
            drive(); \
            if (test_now() > until_end) \
                FAIL("%s did not come true (bit %" PRIu64 ")", #cond, flip.bit); \
        } \
    } while (0)

static void look(const void *p, uint64_t n)
{
    if (memcmp(p, bytes, n))
        atomic_fetch_add(&wrong, 1);
}

static void am_pulled(weft_op_t *op, void *user)
{
    (void)user;
    if (!op->status)
        look(am_got, MIDDLE);
}

static void am_came(weft_am_t *am, void *user)
{
    (void)user;
    look(am->header, am->header_len);
    if (am->header_len != SMALL || am->len != (am->id == AM_HERE ? 3000u : MIDDLE))
        atomic_fetch_add(&wrong, 1);
    if (am->data)
        look(am->data, am->len);
    else if (weft_op_done(&pulled) && weft_am_pull(am, am_got, sizeof am_got, &pulled))
        return;
}

static void answer(weft_request_t *request, void *user)
{
    (void)user;
    look(request->args[0].view.data, request->args[0].view.n);
    weft_request_reply(request, request->args, 1);
}

static void open_all(const char *a, const char *b)
{
    weft_op_t op = WEFT_OP_INIT, taken = WEFT_OP_INIT;
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = "tcp";
    o.progress = threads ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER;
    for (int i = 0; i < 2; i++) {
        setenv("WEFT_CHECKSUM", i ? b : a, 1);
        CHECK_OK(weft_runtime_open(&o, &rt[i]));
    }
    CHECK_OK(weft_listen(rt[0], "tcp://127.0.0.1:0", NULL, &listener));
    flip.wire = weft_listener_port(listener);
    pulled = (weft_op_t)WEFT_OP_INIT;
    pulled.fn = am_pulled;
    CHECK_OK(weft_am_handle(rt[0], AM_HERE, am_came, NULL, NULL));
    CHECK_OK(weft_am_handle(rt[0], AM_THERE, am_came, NULL, NULL));
    CHECK_OK(weft_service_open(rt[0], "echoes", NULL, &service));
    CHECK_OK(weft_service_add(service, ECHO, answer, NULL, NULL));
    once.no_retry = true;
    CHECK_OK(weft_listener_accept(listener, &taken));
    CHECK_OK(weft_ep_open(rt[1], weft_listener_uri(listener), &once, &op, &ep[1]));
    UNTIL(weft_op_done(&op) && weft_op_done(&taken));
    CHECK_OK(op.status);
    CHECK_OK(taken.status);
    ep[0] = (weft_ep_t *)taken.buf;
    CHECK_OK(weft_client_on(ep[1], NULL, &client));
    CHECK_OK(weft_client_method(client, ECHO, &echo));
    remote = NULL;
    region = NULL;
    if (weft_runtime_shards(rt[0]) > 1)
        return;
    weft_region_opts_t r = WEFT_REGION_OPTS_INIT;
    r.len = 2 * HALF;
    r.name = "memory";
    CHECK_OK(weft_region_new(rt[0], &r, &region));
    memcpy(weft_region_base(region), bytes, LARGE);
    weft_op_t found = WEFT_OP_INIT;
    CHECK_OK(weft_remote_find(ep[1], "memory", NULL, &found));
    UNTIL(weft_op_done(&found));
    CHECK_OK(found.status);
    remote = weft_op_remote(&found);
}

static void close_all(void)
{
    weft_remote_drop(remote);
    for (int i = 1; i >= 0; i--)
        CHECK_OK(weft_runtime_close(rt[i]));
    for (unsigned i = 0; i < n_ops; i++)
        CHECK(weft_op_done(&ops[i]));
}

/* One message of n bytes from one side to the other. What cannot be posted, since the endpoint is lost, is none. */
static void message(int from, size_t n, uint64_t tag)
{
    uint8_t *to = got[n_ops];
    receives[n_ops] = true;
    if (weft_msg_recv(ep[!from], to, LARGE, tag, UINT64_MAX, next_op()))
        n_ops--;
    receives[n_ops] = false;
    if (weft_msg_send(ep[from], bytes, n, tag, next_op()))
        n_ops--;
}

static bool all_done(void)
{
    for (unsigned i = 0; i < n_ops; i++)
        if (!weft_op_done(&ops[i]))
            return false;
    return true;
}

static bool all_well(void)
{
    for (unsigned i = 0; i < n_ops; i++)
        if (ops[i].status)
            return false;
    return true;
}

/* The lane's second connection is there. */
static void warm(void)
{
    n_ops = 0;
    message(0, LARGE, 1);
    message(1, LARGE, 1);
    UNTIL(all_done());
    CHECK(all_well() && n_ops == 4);
    n_ops = 0;
}

static uint64_t found(void)
{
    uint64_t n = 0;
    for (int i = 0; i < 2; i++) {
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        CHECK_OK(weft_runtime_get_stats(rt[i], &s));
        n += s.checksum_errors;
    }
    return n;
}

static void talk(void)
{
    static const size_t sizes[] = {1, SMALL, MIDDLE, LARGE};
    uint8_t *read[2] = {NULL, NULL};
    unsigned reads[2] = {0, 0}, first = n_ops;
    memset(got, 0, sizeof got);
    for (unsigned i = 0; i < 4; i++)
        for (int from = 0; from < 2; from++)
            message(from, sizes[i], 10 + i);
    unsigned messages = n_ops;
    for (int there = 0; there < 2; there++)
        if (weft_am_send(ep[1], there ? AM_THERE : AM_HERE, bytes, SMALL, bytes, there ? MIDDLE : 3000, next_op()))
            n_ops--;
    weft_value_t v = weft_vector(WEFT_T_U8, bytes, 3000);
    unsigned call = n_ops;
    if (weft_call(echo, &v, 1, &reply, next_op()))
        n_ops--;
    bool called = n_ops > call, wrote = false;
    for (int i = 0; i < 2 && remote; i++) {
        read[i] = got[reads[i] = n_ops];
        if (weft_rma_read(remote, 0, read[i], i ? LARGE : SMALL, next_op())) {
            read[i] = NULL;
            n_ops--;
        }
    }
    unsigned write = n_ops;
    if (remote) {
        wrote = !weft_rma_write(remote, HALF, bytes, LARGE, next_op());
        n_ops -= !wrote;
    }
    UNTIL(all_done());
    for (unsigned i = first; i < messages; i++)
        if (!ops[i].status && receives[i])
            look(got[i], ops[i].len);
    if (called && !ops[call].status)
        look(reply.values[0].view.data, reply.values[0].view.n);
    if (called)
        weft_reply_release(&reply);
    for (int i = 0; i < 2; i++)
        if (read[i] && !ops[reads[i]].status)
            look(read[i], i ? LARGE : SMALL);
    if (wrote && !ops[write].status)
        look((const uint8_t *)weft_region_base(region) + HALF, LARGE);
}

/* True: the bit was among what was said. */
static bool try_bit(uint64_t bit)
{
    open_all(bit & 1 ? "on" : "off", bit & 1 ? "off" : "on");
    warm();
    flip.bit = bit;
    atomic_store(&flip.n, 0);
    atomic_store(&flip.did, false);
    atomic_store(&flip.on, true);
    talk();
    atomic_store(&flip.on, false);
    bool did = atomic_load(&flip.did);
    if (did)
        UNTIL(found() == 1);
    else
        CHECK(all_well() && found() == 0);
    close_all();
    CHECK_EQ(atomic_load(&wrong), 0);
    return did;
}

static void many(unsigned trials)
{
    const char *seed = getenv("FLIPS_SEED");
    wefti_rng_t rng = {seed ? strtoull(seed, NULL, 0) : 19};
    unsigned did = 0;
    weft_log_set_level(WEFT_LOG_NONE);
    for (size_t i = 0; i < LARGE; i++)
        bytes[i] = (uint8_t)wefti_rng_next(&rng);
    CHECK(!try_bit(UINT64_MAX));
    uint64_t all = atomic_load(&flip.n);
    CHECK(all > 2 * LARGE);
    for (unsigned i = 0; i < trials; i++) /* half of them in what is said first: heads, and what is small */
        did += try_bit(wefti_rng_below(&rng, 8 * (i % 2 ? all : 8000)));
    printf("# %u of %u bits changed, among %" PRIu64 " bytes\n", did, trials, all);
    CHECK(did > trials * 9 / 10);
}

TEST(each_bit_that_changes_is_found)
{
    many(2000);
}

TEST(each_bit_that_changes_is_found_with_threads)
{
    threads = true;
    many(150);
}

TEST(without_checksums_a_bit_gets_through)
{
    weft_log_set_level(WEFT_LOG_NONE);
    for (size_t i = 0; i < LARGE; i++)
        bytes[i] = (uint8_t)i;
    open_all("off", "off");
    warm();
    flip.bit = UINT64_C(8) * LARGE / 2;
    atomic_store(&flip.on, true);
    message(0, LARGE, 5);
    UNTIL(all_done());
    CHECK(all_well() && atomic_load(&flip.did) && found() == 0);
    CHECK(memcmp(got[0], bytes, LARGE));
    atomic_store(&flip.on, false);
    close_all();
}
