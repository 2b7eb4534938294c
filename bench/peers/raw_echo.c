/* bench/peers/raw_echo.c - active messages on UCP and nothing else: the yardstick that Weft's own are held against.
 *
 *     raw_echo lat|rate|bw|echo [--size N] [--header N] [--window N] [--seconds S] [--count N] [--no-pin]
 *
 *   lat    ping-pong; avg_us is half of a round trip
 *   rate   one way, `window` sends not complete at a time, until the server says that all have arrived; 8 bytes if not told
 *   bw     the same with 1 MiB if not told
 *   echo   requests that the server sends back, `window` of them under way at a time; avg_us is the total time / requests,
 *          and with a window of 1 p50_us that of the median one
 *
 * Two processes by fork, one core each like `weft perf --fork`: the child is the server. UCX_TLS says over what. One line of
 * JSON.
 *
 * It is what a careful program would do with UCP: one worker each that nobody else touches, no error handling, endpoints by
 * worker address, ucp_am_send_nbx with UCX's own requests (they come from a pool and most small sends need none), eager forced
 * up to EAGER_MAX and UCX's own choice beyond, handlers that read eager data in place and answer from within, as in
 * ucx_perftest. Only a request that is sent back is copied, because eager data is gone when its handler returns.
 *
 * The two agree on each run over a socket pair, so that nothing but what is measured goes over UCX. A server whose client is gone
 * gets a signal from the kernel; a client whose server is gone finds the socket closed. Nobody waits longer than PEER_LIMIT_S.
 * tests/tools/tools_raw_echo.py runs it. */
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "peer.h"

#define EAGER_MAX 4096

enum { AM_DATA = 1, AM_DONE = 2 };
typedef enum echo_mode { LAT, RATE, BW, ECHO } echo_mode_t;

typedef struct side {
    peer_t peer; /* what to do */
    echo_mode_t mode;
    size_t size, header_len;
    uint64_t window;
    bool server;
    int fd; /* to the other one */

    /* UCX */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    ucp_request_param_t send_param;

    /* this run */
    uint64_t expect, taken; /* messages, since the beginning: a run's first may overtake the word that it begins */
    uint64_t outstanding, echo_at;
    bool done; /* the server's word that all has arrived */
    char *send_buf, *recv_buf, *header, *echo_bufs;
} side_t;

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "raw_echo: %s: %s\n", what, why);
    exit(1);
}

static void ucx_ok(ucs_status_t st, const char *what)
{
    if (st != UCS_OK)
        die(what, ucs_status_string(st));
}

/* --- turns ----------------------------------------------------------------------------------------------- */

/* Called now and then by whoever polls: is there still somebody, and is it not too late? */
static void look_around(side_t *s, uint64_t deadline)
{
    char c;
    if (peer_now_ns() > deadline)
        die("the other side", "said nothing for too long");
    if (recv(s->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        die("the other side", "is gone");
}

#define POLL_UNTIL(s, condition) \
    do { \
        uint64_t deadline_ = 0; \
        for (uint32_t spin_ = 1; !(condition); spin_++) { \
            ucp_worker_progress((s)->worker); \
            if (__builtin_expect(!(spin_ & 0xfffff), 0)) { \
                if (!deadline_) \
                    deadline_ = peer_now_ns() + PEER_LIMIT_S * PEER_SECOND; \
                look_around(s, deadline_); \
            } \
        } \
    } while (0)

static void on_sent(void *request, ucs_status_t st, void *user)
{
    side_t *s = user;
    ucx_ok(st, "a send");
    s->outstanding--;
    ucp_request_free(request);
}

static inline void post(side_t *s, unsigned id, const void *buf, size_t len)
{
    ucs_status_ptr_t r = ucp_am_send_nbx(s->ep, id, s->header, s->header_len, buf, len, &s->send_param);
    if (r == NULL)
        return; /* it is on its way, and the buffer is free */
    if (UCS_PTR_IS_ERR(r))
        die("ucp_am_send_nbx", ucs_status_string(UCS_PTR_STATUS(r)));
    s->outstanding++;
}

/* --- arrivals -------------------------------------------------------------------------------------------- */

/* A message is here. */
static inline void arrived(side_t *s, const void *echo)
{
    s->taken++;
    if (echo)
        post(s, AM_DATA, echo, s->size);
}

/* Where a request is kept until it was sent back. The client has at most `window` of them under way. */
static char *echo_buf(side_t *s)
{
    char *at = s->echo_bufs + s->echo_at * s->size;
    s->echo_at = s->echo_at + 1 == s->window ? 0 : s->echo_at + 1;
    return at;
}

typedef struct pull {
    side_t *side;
    void *echo;
} pull_t;

static void on_pulled(void *request, ucs_status_t st, size_t len, void *user)
{
    pull_t *p = user;
    (void)len;
    ucx_ok(st, "a receive");
    arrived(p->side, p->echo);
    ucp_request_free(request);
    free(p);
}

/* Only large messages come here: one malloc each is nothing beside what they cost. */
static void pull(side_t *s, void *desc, size_t len, void *to, void *echo)
{
    pull_t *p = malloc(sizeof *p);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .user_data = p};
    ucs_status_ptr_t r;
    if (!p)
        die("a receive", "out of memory");
    *p = (pull_t){s, echo};
    param.cb.recv_am = on_pulled;
    r = ucp_am_recv_data_nbx(s->worker, desc, to, len, &param);
    if (r == NULL) {
        free(p);
        arrived(s, echo);
    } else if (UCS_PTR_IS_ERR(r)) {
        die("ucp_am_recv_data_nbx", ucs_status_string(UCS_PTR_STATUS(r)));
    }
}

static ucs_status_t on_data(void *user, const void *header, size_t header_len, void *data, size_t len,
                            const ucp_am_recv_param_t *param)
{
    side_t *s = user;
    char *echo = NULL;
    (void)header;
    if (header_len != s->header_len || len != s->size)
        die("a message", "is not as long as agreed");
    if (s->server && s->mode == ECHO)
        echo = echo_buf(s);
    if (__builtin_expect(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV, 0)) {
        pull(s, data, len, echo ? echo : s->recv_buf, echo);
        return UCS_OK;
    }
    if (echo)
        memcpy(echo, data, len);
    arrived(s, echo);
    return UCS_OK;
}

static ucs_status_t on_done(void *user, const void *header, size_t header_len, void *data, size_t len,
                            const ucp_am_recv_param_t *param)
{
    (void)header, (void)header_len, (void)data, (void)len, (void)param;
    ((side_t *)user)->done = true;
    return UCS_OK;
}

/* --- the runs -------------------------------------------------------------------------------------------- */

/* The server's half of a run: everything expected has come, what is to go back has gone. */
static void serve(side_t *s, uint64_t count)
{
    s->expect += count;
    if (s->mode == LAT) {
        for (uint64_t i = s->expect - count; i < s->expect; i++) {
            POLL_UNTIL(s, s->taken > i);
            POLL_UNTIL(s, s->outstanding < 2);
            post(s, AM_DATA, s->send_buf, s->size);
        }
    } else {
        POLL_UNTIL(s, s->taken >= s->expect); /* the next run's first may be here already */
    }
    if (s->mode == RATE || s->mode == BW)
        post(s, AM_DONE, NULL, 0);
}

static void ping(side_t *s, uint64_t count)
{
    uint64_t before = peer_ticks();
    for (uint64_t i = s->expect - count; i < s->expect; i++) {
        POLL_UNTIL(s, s->outstanding < 2);
        post(s, AM_DATA, s->send_buf, s->size);
        POLL_UNTIL(s, s->taken > i);
        before = peer_sample(&s->peer, before);
    }
}

/* The client's half; nanoseconds. */
static uint64_t lead(side_t *s, uint64_t count)
{
    uint64_t start = peer_now_ns(), first = s->expect;
    s->expect += count;
    s->done = false;
    switch (s->mode) {
    case LAT:
        ping(s, count);
        break;
    case ECHO:
        if (s->window == 1) {
            ping(s, count);
            break;
        }
        for (uint64_t i = first; i < s->expect; i++) {
            POLL_UNTIL(s, i - s->taken < s->window);
            post(s, AM_DATA, s->send_buf, s->size);
        }
        POLL_UNTIL(s, s->taken >= s->expect);
        break;
    default:
        for (uint64_t i = 0; i < count; i++) {
            POLL_UNTIL(s, s->outstanding < s->window);
            post(s, AM_DATA, s->send_buf, s->size);
        }
        POLL_UNTIL(s, s->done);
    }
    start = peer_now_ns() - start;
    POLL_UNTIL(s, !s->outstanding);
    return start;
}

/* Tell the server how many, and do them. */
static uint64_t run(void *user, uint64_t count)
{
    side_t *s = user;
    if (write(s->fd, &count, sizeof count) != sizeof count)
        die("the server", "is gone");
    return lead(s, count);
}

/* Serve runs until the client says 0. UCX goes on meanwhile: the last answer may still have to leave. */
static void serve_all(side_t *s)
{
    while (true) {
        uint64_t count;
        ssize_t n = recv(s->fd, &count, sizeof count, MSG_DONTWAIT);
        if (n == 0 || (n == sizeof count && !count))
            return;
        if (n == sizeof count)
            serve(s, count);
        else if (n > 0 || (errno != EAGAIN && errno != EINTR))
            die("the client", "cannot be understood");
        for (unsigned i = 0; i < 64; i++)
            ucp_worker_progress(s->worker);
    }
}

static void lead_all(side_t *s)
{
    const uint64_t end = 0;
    peer_measure(&s->peer, run, s, s->mode == LAT);
    if (write(s->fd, &end, sizeof end) != sizeof end)
        die("the server", "is gone");
}

/* --- putting it together --------------------------------------------------------------------------------- */

static char *pages(size_t n, int fill)
{
    char *at;
    n = (n + 4095) & ~(size_t)4095;
    at = mmap(NULL, n ? n : 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("buffers", strerror(errno));
    memset(at, fill, n ? n : 4096);
    return at;
}

static void all_bytes(int fd, char *at, size_t n, bool out)
{
    while (n) {
        ssize_t k = out ? write(fd, at, n) : read(fd, at, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            die("the other side", "is gone");
        at += k;
        n -= (size_t)k;
    }
}

static void set_handler(side_t *s, unsigned id, ucp_am_recv_callback_t cb)
{
    ucp_am_handler_param_t p = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .cb = cb,
        .arg = s,
    };
    ucx_ok(ucp_worker_set_am_recv_handler(s->worker, &p), "a handler");
}

static void meet(side_t *s)
{
    ucp_params_t cp = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_address_t *mine;
    char *theirs;
    size_t n;
    uint64_t len;
    ucx_ok(ucp_init(&cp, NULL, &s->context), "ucp_init");
    ucx_ok(ucp_worker_create(s->context, &wp, &s->worker), "ucp_worker_create");
    set_handler(s, AM_DATA, on_data);
    set_handler(s, AM_DONE, on_done);
    ucx_ok(ucp_worker_get_address(s->worker, &mine, &n), "ucp_worker_get_address");
    len = n;
    all_bytes(s->fd, (char *)&len, sizeof len, true);
    all_bytes(s->fd, (char *)mine, n, true);
    ucp_worker_release_address(s->worker, mine);
    all_bytes(s->fd, (char *)&len, sizeof len, false);
    theirs = malloc(len);
    if (!theirs)
        die("an address", "out of memory");
    all_bytes(s->fd, theirs, len, false);
    ep.address = (const ucp_address_t *)theirs;
    ucx_ok(ucp_ep_create(s->worker, &ep, &s->ep), "ucp_ep_create");
    free(theirs);
}

/* Neither destroys its worker while the other still closes its endpoint. */
static void part(side_t *s)
{
    ucp_request_param_t p = {.op_attr_mask = 0};
    ucs_status_ptr_t r = ucp_ep_close_nbx(s->ep, &p);
    uint64_t deadline = peer_now_ns() + 2 * PEER_SECOND;
    char c = 0;
    while (UCS_PTR_IS_PTR(r) && ucp_request_check_status(r) == UCS_INPROGRESS && peer_now_ns() < deadline)
        ucp_worker_progress(s->worker);
    if (UCS_PTR_IS_PTR(r))
        ucp_request_free(r);
    if (write(s->fd, &c, 1) == 1)
        while (recv(s->fd, &c, 1, MSG_DONTWAIT) < 0 && peer_now_ns() < deadline)
            ucp_worker_progress(s->worker);
    ucp_worker_destroy(s->worker);
    ucp_cleanup(s->context);
}

static void be(side_t *s)
{
    s->send_buf = pages(s->size, 0x5a);
    s->recv_buf = pages(s->size, 0xa5);
    s->header = pages(s->header_len, 0x3c);
    if (s->server && s->mode == ECHO)
        s->echo_bufs = pages(s->size * s->window, 0);
    if (!s->server && s->window == 1 && (s->mode == LAT || s->mode == ECHO))
        peer_keep_samples(&s->peer);
    s->send_param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    s->send_param.cb.send = on_sent;
    s->send_param.user_data = s;
    if (s->size <= EAGER_MAX) {
        s->send_param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        s->send_param.flags = UCP_AM_SEND_FLAG_EAGER;
    }
    meet(s);
    if (s->server)
        serve_all(s);
    else
        lead_all(s);
    part(s);
    free(s->peer.samples);
}

static void options(side_t *s, int argc, char **argv)
{
    static const char *const names[] = {"lat", "rate", "bw", "echo"};
    *s = (side_t){.peer = {.name = "raw_echo", .ways = "lat|rate|bw|echo", .size = 8, .window = 32}};
    peer_options(&s->peer, argc, argv);
    while (strcmp(names[s->mode], s->peer.way))
        s->mode++;
    if (s->mode == BW && !s->peer.sized)
        s->peer.size = 1 << 20;
    if (s->mode == LAT)
        s->peer.window = 1;
    s->size = s->peer.size;
    s->header_len = s->peer.header;
    s->window = s->peer.window;
}

int main(int argc, char **argv)
{
    side_t s;
    int fds[2];
    options(&s, argc, argv);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        die("socketpair", strerror(errno));
    s.server = peer_fork(&s.peer);
    s.fd = fds[s.server];
    close(fds[!s.server]);
    be(&s);
    return s.server ? 0 : peer_reap(&s.peer);
}
