/* fabric/ucx/bulk.c - a plain TCP connection beside a lane, for the bytes of large payloads.
 *
 * Where TCP is all there is, UCX brings payloads in through a buffer of its own (chunk.c), which costs a third of the bandwidth. So a lane
 * that moves large payloads gets a second connection, on which they go from the sender's memory to the receiver's with nothing between
 * but the kernel. It is an extra: until it is there, or if it cannot be had, chunks do.
 *
 *     (none) --first large pull, leader only--> DIALING --connected--> GREETING --answer--> UP
 *     (none) --a stranger connects, and greets with the tokens of one of our lanes--> UP
 *
 * Addresses and port travel in the lane's address. The greeting has both lanes' tokens, which nobody but the two peers knows. The receiver
 * asks in PULL for the payload to come this way; then the sender sends u64 slot, u64 length, the bytes. The connection ending ends the lane,
 * since its peer is gone. Nothing waits for this socket: while a payload moves, progress tries it; else epoll watches it.
 * tests/wire/fabric_lanes.c, tests/wire/fabric_ucx.c: a_large_payload_goes_over_a_connection_of_its_own. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/ucx/ux.h"

#define GREETING_MAGIC UINT64_C(0x314b4c5542544657) /* "WFTBULK1" */
#define ANSWER_MAGIC UINT64_C(0x324b4c5542544657)   /* "WFTBULK2" */
#define STRANGERS_MAX 64
#define STRANGER_NS 5000000000u
#define PIECES 16
#define ROUND_BYTES (1u << 20) /* of one payload in a row, in each direction */

typedef enum bulk_state { DIALING, GREETING, STRANGER, UP } bulk_state_t;

struct ux_bulk {
    ux_rail_t *rail;
    ux_lane_t *lane; /* NULL: a stranger */
    bulk_state_t state;
    int fd;
    uint32_t events;
    uint64_t since;
    wefti_list_t link; /* strangers, or rail->bulk_dead */
    wefti_list_t busy; /* rail->bulk_busy */
    uint8_t in[24];    /* greeting, answer or head, as far as it has come */
    size_t in_n;
    ux_pull_t *pull; /* whose bytes come now */
    uint64_t out[3]; /* greeting, answer or head, as far as it has not gone */
    size_t out_at, out_n;
    unsigned next_addr;
};

/* --- addresses ------------------------------------------------------------------------------------------------------------ */

static bool device_allowed(const ux_rail_t *r, const char *name)
{
    size_t n = strlen(name);
    if (!r->devices)
        return true;
    for (const char *at = r->devices; *at;) {
        size_t len = strcspn(at, ",");
        if (len == n && !memcmp(at, name, n))
            return true;
        at += len + (at[len] == ',');
    }
    return false;
}

/* Ours, as IPv6 (IPv4 mapped); loopback only where there is nothing else. */
static unsigned local_addresses(const ux_rail_t *r, struct in6_addr *out)
{
    struct ifaddrs *list;
    unsigned n = 0;
    if (getifaddrs(&list))
        return 0;
    for (unsigned loopback = 0; loopback <= IFF_LOOPBACK && !n; loopback += IFF_LOOPBACK) {
        for (struct ifaddrs *it = list; it && n < UX_BULK_ADDRS; it = it->ifa_next) {
            if (!it->ifa_addr || !(it->ifa_flags & IFF_UP) || (it->ifa_flags & IFF_LOOPBACK) != loopback ||
                !device_allowed(r, it->ifa_name))
                continue;
            if (it->ifa_addr->sa_family == AF_INET) {
                memset(&out[n], 0, sizeof out[n]);
                out[n].s6_addr[10] = out[n].s6_addr[11] = 0xff;
                memcpy(&out[n].s6_addr[12], &((struct sockaddr_in *)(void *)it->ifa_addr)->sin_addr, 4);
                n++;
            } else if (it->ifa_addr->sa_family == AF_INET6) {
                const struct in6_addr *a = &((struct sockaddr_in6 *)(void *)it->ifa_addr)->sin6_addr;
                if (!IN6_IS_ADDR_LINKLOCAL(a))
                    out[n++] = *a;
            }
        }
    }
    freeifaddrs(list);
    return n;
}

/* An IPv4 address as itself, where the machine may have no IPv6. */
static socklen_t socket_address(const struct in6_addr *a, uint16_t port, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (IN6_IS_ADDR_V4MAPPED(a)) {
        struct sockaddr_in *in = (void *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons(port);
        memcpy(&in->sin_addr, &a->s6_addr[12], 4);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = (void *)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    in6->sin6_addr = *a;
    return sizeof *in6;
}

/* --- one connection ----------------------------------------------------------------------------------------------------------- */

static void watch(ux_bulk_t *b, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = b};
    if (b->events == events)
        return;
    if (!epoll_ctl(b->rail->epoll_fd, b->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, b->fd, &ev))
        b->events = events;
}

static ux_bulk_t *bulk_new(ux_rail_t *r, int fd, bulk_state_t state)
{
    ux_bulk_t *b = wefti_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->rail = r;
    b->fd = fd;
    b->state = state;
    wefti_list_init(&b->link);
    wefti_list_init(&b->busy);
    return b;
}

static void close_fd(ux_bulk_t *b)
{
    if (b->fd < 0)
        return;
    epoll_ctl(b->rail->epoll_fd, EPOLL_CTL_DEL, b->fd, NULL);
    close(b->fd);
    b->fd = -1;
    b->events = 0;
}

/* Freed after the batch of events that may still name it. */
static void bulk_drop(ux_bulk_t *b)
{
    if (b->lane)
        b->lane->bulk = NULL;
    if (b->state == STRANGER)
        b->rail->n_strangers--;
    b->lane = NULL;
    close_fd(b);
    wefti_list_remove(&b->busy);
    wefti_list_remove(&b->link);
    wefti_list_push_back(&b->rail->bulk_dead, &b->link);
}

static void bulk_failed(ux_bulk_t *b, weft_status_t why, const char *what)
{
    ux_lane_t *l = b->lane;
    bulk_drop(b);
    if (l)
        wefti_ux_fail(l, why, what);
}

static void options(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* --- getting there ---------------------------------------------------------------------------------------------------------------- */

/* Try the peer's next address. Without one the lane does without. */
static void dial_next(ux_bulk_t *b)
{
    ux_lane_t *l = b->lane;
    close_fd(b);
    if (!wefti_list_empty(&l->bulk_out)) { /* the peer has seen it up, and waits for payloads on it */
        bulk_failed(b, WEFT_ERR_PEER, "its second connection ended at the start");
        return;
    }
    while (b->next_addr < l->n_bulk_addrs) {
        struct sockaddr_storage ss;
        socklen_t n = socket_address(&l->bulk_addrs[b->next_addr++], l->bulk_port, &ss);
        b->fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (b->fd < 0)
            break;
        options(b->fd);
        if (!connect(b->fd, (void *)&ss, n) || errno == EINPROGRESS) {
            b->state = DIALING;
            b->in_n = 0;
            watch(b, EPOLLOUT);
            return;
        }
        close_fd(b);
    }
    wefti_debug("ucx: no second connection for a lane; it goes on without");
    bulk_drop(b);
}

static void greet(ux_bulk_t *b)
{
    int err = 0;
    socklen_t n = sizeof err;
    uint64_t greeting[3] = {GREETING_MAGIC, b->lane->peer_token, b->lane->token};
    if (getsockopt(b->fd, SOL_SOCKET, SO_ERROR, &err, &n) || err ||
        send(b->fd, greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof greeting) {
        dial_next(b);
        return;
    }
    b->state = GREETING;
    watch(b, EPOLLIN);
}

static bool read_in(ux_bulk_t *b, size_t want)
{
    ssize_t n = recv(b->fd, b->in + b->in_n, want - b->in_n, MSG_DONTWAIT);
    if (n > 0)
        b->in_n += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        b->in_n = SIZE_MAX;
    return b->in_n == want;
}

static void answered(ux_bulk_t *b)
{
    uint64_t answer;
    if (!read_in(b, sizeof answer)) {
        if (b->in_n == SIZE_MAX)
            dial_next(b);
        return;
    }
    memcpy(&answer, b->in, sizeof answer);
    b->in_n = 0;
    if (answer != ANSWER_MAGIC) {
        dial_next(b);
        return;
    }
    b->state = UP;
    wefti_ux_bulk_busy(b->lane);
}

static void stranger_spoke(ux_bulk_t *b)
{
    uint64_t greeting[3], answer = ANSWER_MAGIC;
    if (!read_in(b, sizeof greeting)) {
        if (b->in_n == SIZE_MAX)
            bulk_drop(b);
        return;
    }
    memcpy(greeting, b->in, sizeof greeting);
    ux_lane_t *l = wefti_ux_lane_of(b->rail, greeting[1]);
    if (greeting[0] != GREETING_MAGIC || !l || l->peer_token != greeting[2] || l->state != UX_UP || l->bulk || l->failed ||
        send(b->fd, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof answer) {
        wefti_debug("ucx: a second connection that is no lane's is closed");
        bulk_drop(b);
        return;
    }
    b->rail->n_strangers--;
    b->in_n = 0;
    b->state = UP;
    b->lane = l;
    l->bulk = b;
    wefti_list_remove(&b->link);
}

static void accept_all(ux_rail_t *r)
{
    uint64_t now = wefti_clock_ns();
    wefti_list_each_safe(it, &r->strangers_list) {
        ux_bulk_t *b = wefti_container_of(it, ux_bulk_t, link);
        if (now - b->since > STRANGER_NS)
            bulk_drop(b);
    }
    for (int i = 0; i < 32; i++) {
        struct sockaddr_storage from;
        socklen_t n = sizeof from;
        int fd = accept4(r->bulk_fd, (void *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        ux_bulk_t *b = r->n_strangers < STRANGERS_MAX ? bulk_new(r, fd, STRANGER) : NULL;
        if (!b) {
            close(fd);
            continue;
        }
        options(fd);
        b->since = now;
        r->n_strangers++;
        wefti_list_push_back(&r->strangers_list, &b->link);
        watch(b, EPOLLIN);
    }
}

/* A large payload is about to move: the leader dials. Cheap to call again. */
void wefti_ux_bulk_want(ux_lane_t *l)
{
    if (l->bulk || l->bulk_tried || l->state != UX_UP || l->failed || !l->bulk_port || l->rail->epoll_fd < 0 ||
        l->peer->id >= l->rail->id)
        return;
    l->bulk_tried = true;
    ux_bulk_t *b = bulk_new(l->rail, -1, DIALING);
    if (!b)
        return;
    b->lane = l;
    l->bulk = b;
    dial_next(b);
}

bool wefti_ux_bulk_up(const ux_lane_t *l)
{
    return l->bulk && l->bulk->state == UP;
}

/* --- payloads out ----------------------------------------------------------------------------------------------------------------- */

/* The pieces that are next, at most `most` bytes. */
static int gather(ux_announce_t *a, struct iovec *v, int n, size_t most)
{
    size_t at = a->iov_at, skip = a->piece_at;
    uint64_t left = a->want - a->sent < most ? a->want - a->sent : most;
    for (; left && n < PIECES; at++, skip = 0) {
        size_t len = a->iov[at].len - skip;
        if (len > left)
            len = (size_t)left;
        if (!len)
            continue;
        v[n++] = (struct iovec){(uint8_t *)a->iov[at].base + skip, len};
        left -= len;
    }
    return n;
}

static void advance(ux_announce_t *a, size_t n)
{
    a->sent += n;
    while (n) {
        size_t left = a->iov[a->iov_at].len - a->piece_at, part = n < left ? n : left;
        a->piece_at += part;
        n -= part;
        if (a->piece_at == a->iov[a->iov_at].len) {
            a->iov_at++;
            a->piece_at = 0;
        }
    }
}

/* Send of the first payload. False when the socket takes no more, or it has failed. */
static bool send_some(ux_bulk_t *b, ux_announce_t *a)
{
    struct iovec v[PIECES];
    int n = 0;
    if (!a->sent && !b->out_n) {
        b->out[0] = a->slot;
        b->out[1] = a->want;
        b->out_at = 0;
        b->out_n = 16;
    }
    if (b->out_n)
        v[n++] = (struct iovec){(uint8_t *)b->out + b->out_at, b->out_n};
    n = gather(a, v, n, ROUND_BYTES);
    struct msghdr msg = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t sent = sendmsg(b->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            bulk_failed(b, WEFT_ERR_PEER, strerror(errno));
        return false;
    }
    size_t head = (size_t)sent < b->out_n ? (size_t)sent : b->out_n;
    b->out_at += head;
    b->out_n -= head;
    advance(a, (size_t)sent - head);
    return true;
}

static unsigned run_out(ux_bulk_t *b)
{
    ux_lane_t *l = b->lane;
    wefti_list_t *it = wefti_list_first(&l->bulk_out);
    if (!it)
        return 0;
    ux_announce_t *a = wefti_container_of(it, ux_announce_t, link);
    if (!send_some(b, a))
        return 0;
    if (a->sent == a->want && !b->out_n) { /* the rest is the peer's to say */
        wefti_list_remove(&a->link);
        wefti_list_push_back(&l->announces, &a->link);
    }
    return 1;
}

/* --- payloads in ------------------------------------------------------------------------------------------------------------------ */

static bool head_arrived(ux_bulk_t *b)
{
    uint64_t head[2];
    if (!read_in(b, sizeof head)) {
        if (b->in_n == SIZE_MAX)
            bulk_failed(b, WEFT_ERR_PEER, "its second connection ended");
        return false;
    }
    memcpy(head, b->in, sizeof head);
    b->in_n = 0;
    ux_pull_t *p = wefti_slots_get(&b->rail->pulls, head[0]);
    if (!p || p->lane != b->lane || !p->bulk || p->got || head[1] != p->want) {
        bulk_failed(b, WEFT_ERR_PROTOCOL, "a payload that nobody is pulling");
        return false;
    }
    b->pull = p;
    return true;
}

static unsigned run_in(ux_bulk_t *b)
{
    if (!b->pull && !head_arrived(b))
        return 0;
    ux_pull_t *p = b->pull;
    ux_lane_t *l = b->lane;
    struct iovec v[PIECES];
    int n = 0;
    uint64_t left = p->want - p->got < ROUND_BYTES ? p->want - p->got : ROUND_BYTES;
    for (size_t at = p->iov_at, skip = p->piece_at; left && n < PIECES; at++, skip = 0) {
        size_t len = p->iov[at].length - skip;
        if (len > left)
            len = (size_t)left;
        if (!len)
            continue;
        v[n++] = (struct iovec){(uint8_t *)p->iov[at].buffer + skip, len};
        left -= len;
    }
    struct msghdr msg = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t got = recvmsg(b->fd, &msg, MSG_DONTWAIT);
    if (got <= 0) {
        if (!got || (errno != EAGAIN && errno != EINTR))
            bulk_failed(b, WEFT_ERR_PEER, "its second connection ended in the middle of a payload");
        return 0;
    }
    if (wefti_ux_pull_advance(p, (size_t)got)) {
        b->pull = NULL;
        l->bulk_in--;
    }
    return 1;
}

/* --- driving it ---------------------------------------------------------------------------------------------------------------------- */

/* Something moves or is about to. */
void wefti_ux_bulk_busy(ux_lane_t *l)
{
    ux_bulk_t *b = l->bulk;
    if (b && b->state == UP && (l->bulk_in || !wefti_list_empty(&l->bulk_out)) && !wefti_list_linked(&b->busy))
        wefti_list_push_back(&l->rail->bulk_busy, &b->busy);
}

unsigned wefti_ux_bulk_run(ux_rail_t *r)
{
    unsigned n = 0;
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &r->bulk_busy);
    while ((it = wefti_list_pop(&now))) {
        ux_bulk_t *b = wefti_container_of(it, ux_bulk_t, busy);
        ux_lane_t *l = b->lane;
        if (l->failed || l->state != UX_UP)
            continue;
        n += run_out(b);
        if (l->bulk == b && l->bulk_in)
            n += run_in(b);
        if (l->bulk == b)
            wefti_ux_bulk_busy(l);
    }
    return n;
}

static void bulk_event(ux_bulk_t *b)
{
    if (b->fd < 0)
        return;
    switch (b->state) {
    case DIALING:
        greet(b);
        return;
    case GREETING:
        answered(b);
        return;
    case STRANGER:
        stranger_spoke(b);
        return;
    case UP:
        watch(b, EPOLLIN); /* it may have been watched for room as well */
        if (!b->lane->bulk_in && !b->pull && b->lane->state == UX_UP && !b->lane->failed)
            run_in(b); /* nothing is expected: it is the end, or a lie */
        return;
    }
}

/* What epoll has to say: newcomers, ends. */
void wefti_ux_bulk_events(ux_rail_t *r)
{
    struct epoll_event events[32];
    int n = epoll_wait(r->epoll_fd, events, 32, 0);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == r)
            accept_all(r);
        else if (events[i].data.ptr)
            bulk_event(events[i].data.ptr);
    }
    wefti_list_t *it;
    while ((it = wefti_list_pop(&r->bulk_dead)))
        wefti_free(wefti_container_of(it, ux_bulk_t, link));
}

/* About to sleep: whoever has bytes to send must hear when there is room. False: there may be room now. */
bool wefti_ux_bulk_arm(ux_rail_t *r)
{
    bool quiet = true;
    wefti_list_each(it, &r->bulk_busy) {
        ux_bulk_t *b = wefti_container_of(it, ux_bulk_t, busy);
        if (!wefti_list_empty(&b->lane->bulk_out) && !(b->events & EPOLLOUT)) {
            watch(b, EPOLLIN | EPOLLOUT);
            quiet = false;
        }
    }
    return quiet;
}

/* --- opening and closing ----------------------------------------------------------------------------------------------------------- */

/* Without a listener there are no second connections, and that is all. */
void wefti_ux_bulk_open(ux_rail_t *r)
{
    struct sockaddr_storage any = {.ss_family = AF_INET6};
    socklen_t n = sizeof(struct sockaddr_in6);
    int off = 0;
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ucx = {.events = EPOLLIN, .data.ptr = NULL};
    if (r->epoll_fd < 0 || epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->fd, &ucx))
        goto err_epoll;
    r->n_bulk_addrs = local_addresses(r, r->bulk_addrs);
    r->bulk_fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (r->bulk_fd >= 0)
        setsockopt(r->bulk_fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (r->bulk_fd >= 0 && bind(r->bulk_fd, (void *)&any, n)) {
        close(r->bulk_fd);
        r->bulk_fd = -1;
    }
    if (r->bulk_fd < 0) {
        any.ss_family = AF_INET;
        n = sizeof(struct sockaddr_in);
        r->bulk_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (r->bulk_fd < 0 || bind(r->bulk_fd, (void *)&any, n))
            goto err_listener;
    }
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = r};
    n = sizeof any;
    if (listen(r->bulk_fd, 256) || getsockname(r->bulk_fd, (void *)&any, &n) ||
        epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->bulk_fd, &ev))
        goto err_listener;
    r->bulk_port = ntohs(any.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&any)->sin_port
                                                  : ((struct sockaddr_in6 *)(void *)&any)->sin6_port);
    return;

err_listener:
    if (r->bulk_fd >= 0)
        close(r->bulk_fd);
    r->bulk_fd = -1;
err_epoll:
    wefti_info("ucx: no second connections for large payloads: %s", strerror(errno));
    if (r->epoll_fd >= 0)
        close(r->epoll_fd);
    r->epoll_fd = -1;
}

/* The lane closes: its payloads stop here. */
void wefti_ux_bulk_close_lane(ux_lane_t *l)
{
    if (l->bulk)
        bulk_drop(l->bulk);
    wefti_list_splice(&l->announces, &l->bulk_out);
}

void wefti_ux_bulk_close(ux_rail_t *r)
{
    wefti_list_t *it;
    if (r->epoll_fd < 0)
        return;
    while ((it = wefti_list_first(&r->strangers_list)))
        bulk_drop(wefti_container_of(it, ux_bulk_t, link));
    while ((it = wefti_list_pop(&r->bulk_dead)))
        wefti_free(wefti_container_of(it, ux_bulk_t, link));
    close(r->bulk_fd);
    close(r->epoll_fd);
}
