/* fabric/tcp/dial.c - from two addresses to one connection.
 *
 *     WAIT --time--> DIALING --connected--> CALLING --challenge--> GREETING --answer--> UP        the side that dials
 *     STRANGER --greeting--> (HELD -->) UP                                                        the side that is dialled
 *
 * Both sides have the other's addresses, and either may be the only one that can reach the other (a firewall, translated
 * addresses). The lane with the smaller token leads: it dials at once, one address after the other. The other one waits
 * FOLLOW_NS to be dialled and then dials too. A connection is the lane's when its acceptor has answered, and both must choose
 * the same one, so:
 *   - a lane that has not greeted anybody takes the first one that greets it;
 *   - a leader that has greeted closes those that greet it: its own counts, until that ends;
 *   - a follower that has greeted holds who greets it (HELD) until its own is answered or closed;
 *   - who greets a lane that does not know its peer yet stays a stranger until it does.
 * Rounds over the addresses are repeated with more patience; after TRIES of them the leader fails the lane.
 * tests/wire/fabric_tcp.c: a_lane_comes_up_whichever_side_can_be_reached, lanes_survive_dials_that_cross. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/addr.h"
#include "fabric/tcp/internal.h"

enum { KEEP_IDLE = 60, KEEP_PAUSE = 10, KEEP_TRIES = 6 }; /* seconds, and how often */
#define DIAL_NS 300000000u                                /* for one address in the first round */
#define ANSWER_NS 2000000000u                             /* where there are other addresses to try */
#define ROUND_NS 100000000u                               /* before the next round */
#define FOLLOW_NS 250000000u
#define TRIES 4

/* --- connections -------------------------------------------------------------------------------------------------- */

void wefti_tp_watch(tp_conn_t *c, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    if (c->events == events || c->fd < 0)
        return;
    if (!epoll_ctl(c->transport->base.fd, !events ? EPOLL_CTL_DEL : c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &ev))
        c->events = events;
}

static void close_fd(tp_conn_t *c)
{
    if (c->fd < 0)
        return;
    wefti_tp_watch(c, 0); /* a forked child may have the same file, and epoll watches files */
    close(c->fd);
    c->fd = -1;
    c->events = 0;
    wefti_tp_stream_free(c->stream);
    c->stream = NULL;
    c->shaking = false;
}

/* fd is the connection's, and closed where there is no memory for one. */
tp_conn_t *wefti_tp_conn_new(tp_transport_t *r, int fd, tp_conn_state_t state)
{
    tp_conn_t *c = wefti_calloc(1, sizeof *c);
    if (!c) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    c->transport = r;
    c->fd = fd;
    c->state = state;
    wefti_list_init(&c->busy);
    wefti_list_init(&c->unacked);
    wefti_list_push_back(state == TP_STRANGER ? &r->strangers : &r->dials, &c->link);
    r->n_strangers += state == TP_STRANGER;
    return c;
}

/* It is no stranger or linger any more. */
static void leave_list(tp_conn_t *c)
{
    c->transport->n_strangers -= c->state == TP_STRANGER;
    c->transport->n_lingers -= c->state == TP_LINGER;
    wefti_list_remove(&c->link);
}

void wefti_tp_conn_drop(tp_conn_t *c)
{
    tp_lane_t *l = c->lane;
    if (c->state == TP_DEAD)
        return;
    if (l) {
        l->stream = l->conn == c ? NULL : l->stream;
        l->conn = l->conn == c ? NULL : l->conn;
        l->held = l->held == c ? NULL : l->held;
        l->bulk = l->bulk == c ? NULL : l->bulk;
    }
    c->lane = NULL;
    close_fd(c);
    leave_list(c);
    wefti_list_remove(&c->busy);
    wefti_list_remove(&c->unacked);
    c->state = TP_DEAD;
    wefti_list_push_back(&c->transport->dead, &c->link);
}

void wefti_tp_options(int fd)
{
    int on = 1, idle = KEEP_IDLE, pause = KEEP_PAUSE, tries = KEEP_TRIES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* Heartbeats go over the wire: an idle lane is kept in the tables of routers, and found dead, by the kernel; one that sends
     * by acks.c. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause, sizeof pause);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

int wefti_tp_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        wefti_tp_options(fd);
    return fd;
}

bool wefti_tp_read_in(tp_conn_t *c, size_t want)
{
    struct iovec v = {c->in + c->in_n, want - c->in_n};
    ssize_t n = wefti_tp_recv(c->fd, c->stream, &v, 1);
    if (n > 0)
        c->in_n += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->in_n = SIZE_MAX;
    if (!n)
        errno = 0;
    return c->in_n == want;
}

/* --- who is dialled ----------------------------------------------------------------------------------------------- */

static void wait_until(tp_conn_t *c, uint64_t at)
{
    close_fd(c);
    c->state = TP_WAIT;
    c->deadline = at;
    wefti_tp_timer(c->transport, at);
}

static weft_status_t dial_later(tp_lane_t *l, uint64_t ns)
{
    tp_conn_t *c = wefti_tp_conn_new(l->transport, -1, TP_WAIT);
    if (!c)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a connection");
    c->lane = l;
    l->conn = c;
    wait_until(c, wefti_clock_ns() + ns);
    return WEFT_OK;
}

static void hold(tp_lane_t *l, tp_conn_t *c)
{
    leave_list(c);
    wefti_list_init(&c->link);
    c->state = TP_HELD;
    c->lane = l;
    l->held = c;
    wefti_tp_watch(c, EPOLLIN); /* it has nothing to say now: an event is its end */
}

/* This one is the lane's. */
static void take(tp_lane_t *l, tp_conn_t *c)
{
    if (!wefti_tp_say_answer(l, c)) {
        wefti_tp_conn_drop(c);
        if (!l->conn && dial_later(l, FOLLOW_NS))
            wefti_tp_fail(l, WEFT_ERR_NOMEM, "no memory for a connection");
        return;
    }
    if (l->conn)
        wefti_tp_conn_drop(l->conn);
    leave_list(c);
    wefti_list_init(&c->link);
    wefti_tp_lane_up(l, c);
}

void wefti_tp_arrived(tp_lane_t *l, tp_conn_t *c)
{
    if (l->state != TP_LANE_JOINING || l->half.failed || l->held) {
        wefti_debug("tcp: a connection that its lane has no use for is closed");
        wefti_tp_conn_drop(c);
    } else if (!l->conn || l->conn->state != TP_GREETING) {
        take(l, c);
    } else if (l->leads) {
        wefti_tp_conn_drop(c);
    } else {
        hold(l, c);
    }
}

/* --- dialling ----------------------------------------------------------------------------------------------------- */

/* Try the next address. WEFT_ERR_LIMIT: no descriptor; it tries again later all the same. */
static weft_status_t dial_next(tp_conn_t *c)
{
    tp_lane_t *l = c->lane;
    uint64_t now = wefti_clock_ns();
    close_fd(c);
    c->in_n = 0;
    while (l->peer_at < l->n_peer) {
        struct sockaddr_storage ss;
        socklen_t n = wefti_tp_sockaddr(&l->peer[l->peer_at++], &ss);
        wefti_tp_release_reserve(l);
        c->fd = wefti_tp_socket(ss.ss_family);
        if (c->fd < 0 && errno != EAFNOSUPPORT) {
            weft_status_t st = wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "no socket for a lane: %s", strerror(errno));
            l->peer_at--;
            wait_until(c, now + ROUND_NS);
            return st;
        }
        if (c->fd >= 0 && (!connect(c->fd, (void *)&ss, n) || errno == EINPROGRESS)) {
            c->state = TP_DIALING;
            c->deadline = now + ((uint64_t)DIAL_NS << l->tries);
            wefti_tp_timer(c->transport, c->deadline);
            wefti_tp_watch(c, EPOLLOUT);
            return WEFT_OK;
        }
        close_fd(c);
    }
    l->peer_at = 0;
    if (++l->tries < TRIES) {
        wait_until(c, now + ((uint64_t)ROUND_NS << l->tries));
        return WEFT_OK;
    }
    wefti_tp_conn_drop(c);
    if (l->leads)
        wefti_tp_fail(l, WEFT_ERR_UNREACHABLE, "none of the peer's addresses answers");
    return WEFT_OK;
}

/* The dial under way has come to nothing. */
static void dial_failed(tp_conn_t *c)
{
    tp_lane_t *l = c->lane;
    if (c->bulk) {
        /* Once we have greeted, the peer may have sent payloads on it and count them as gone: nobody would send them again. */
        bool lost = c->state == TP_GREETING && l->bulk_in;
        wefti_tp_conn_drop(c);
        if (lost)
            wefti_tp_fail(l, WEFT_ERR_PEER, "its second connection ended while payloads were on their way");
        else
            wefti_tp_bulk_none(l, true);
    } else if (l->held) {
        tp_conn_t *held = l->held;
        l->held = NULL;
        wefti_tp_conn_drop(c);
        take(l, held);
    } else {
        dial_next(c);
    }
}

/* It is connected, or cannot be. */
static void connected(tp_conn_t *c)
{
    int err = 0;
    socklen_t n = sizeof err;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &n) || err) {
        dial_failed(c);
        return;
    }
    if (c->lane->only_here && !wefti_addr_is_here(c->fd)) {
        wefti_info("tcp: an address of the peer's is not of this host, and the two did not meet over TLS (WEFT_TLS)");
        dial_failed(c);
        return;
    }
    c->state = TP_CALLING;
    c->deadline = wefti_clock_ns() + ANSWER_NS;
    wefti_tp_watch(c, EPOLLIN);
    if (!c->lane->tls)
        return;
    if (wefti_tp_secure(c))
        wefti_tp_dial_event(c); /* the first words are ours */
    else
        dial_failed(c);
}

static void challenged(tp_conn_t *c)
{
    if (!wefti_tp_say_greeting(c->lane, c)) {
        dial_failed(c);
        return;
    }
    c->in_n = 0;
    c->state = TP_GREETING;
    c->deadline = wefti_clock_ns() + ANSWER_NS;
}

static void answered(tp_conn_t *c)
{
    if (!wefti_tp_answer_good(c->lane, c)) {
        wefti_info("tcp: someone answers at an address of the peer's who is not the peer");
        dial_failed(c);
        return;
    }
    c->in_n = 0;
    wefti_list_remove(&c->link);
    if (c->bulk) {
        wefti_tp_bulk_up(c);
        return;
    }
    c->lane->dialled = true;
    wefti_tp_lane_up(c->lane, c);
}

void wefti_tp_dial_event(tp_conn_t *c)
{
    weft_status_t st = c->shaking ? wefti_tp_shake(c) : WEFT_OK;
    if (st == WEFT_ERR_AGAIN)
        return;
    if (st) {
        wefti_info("tcp: no TLS with an address of the peer's: %s", weft_last_error());
        dial_failed(c);
    } else if (c->state == TP_DIALING) {
        connected(c);
    } else if (!wefti_tp_read_in(c, c->state == TP_CALLING ? TP_CHALLENGE_N : TP_ANSWER_N)) {
        if (c->in_n == SIZE_MAX)
            dial_failed(c);
    } else if (c->state == TP_CALLING) {
        challenged(c);
    } else {
        answered(c);
    }
}

/* Its time is up, or has come. */
void wefti_tp_dial_due(tp_conn_t *c)
{
    tp_lane_t *l = c->lane;
    if (c->state == TP_WAIT)
        dial_next(c);
    else if (c->state != TP_DIALING && (c->bulk || l->n_peer == 1))
        /* The peer is there, and slow: whoever wants the lane has a timeout of its own. */
        c->deadline = wefti_clock_ns() + ANSWER_NS;
    else
        dial_failed(c);
}

/* For a lane that knows its peer. */
weft_status_t wefti_tp_join(tp_lane_t *l)
{
    wefti_tp_lane_key(l);
    l->leads = memcmp(l->token, l->peer_token, TP_TOKEN) < 0;
    tp_conn_t *early = wefti_tp_early_bird(l);
    if (early) {
        take(l, early);
        return WEFT_OK;
    }
    weft_status_t st = dial_later(l, FOLLOW_NS);
    return st || !l->leads ? st : dial_next(l->conn);
}
