/* fabric/tcp/lane.c - the life of a lane.
 *
 *     NEW --connect--> JOINING --connection--> UP --close--> CLOSING --progress--> ENDED --progress--> (lane_closed, freed)
 *
 * Only the calls of fabric.h and progress move it; close may come in any state. In CLOSING what was committed before still
 * leaves, for CLOSE_NS at most. Then every transfer ends, and the connection is left to itself: it says that nothing more comes,
 * and reads on until the peer has closed too (LINGER, LINGER_NS at most), since a socket closed with unread bytes in it would
 * take back what the peer has not read yet.
 *
 * A lane without a connection keeps a descriptor for it (reserve_fd): where there is none left, it is lane_new() that says so,
 * and not a peer that waits for nothing.
 *
 * Promise: every transfer is done once, then lane_closed comes, and the peer's lane fails with WEFT_ERR_PEER after it has had
 * all records. tests/wire/fabric_lanes.c, tests/wire/fabric_tcp.c. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/tcp/internal.h"

#define CAPS_VERSION 2 /* 2: challenges */
#define ADDR_VERSION 1
#define ADDR_SUMS 0x100 /* beside the number of addresses: this side wants checksums. Who does not know it refuses the address */
#define CLOSE_NS 50000000u
#define LINGER_NS 1000000000u
#define LINGER_READS 8 /* in a row */

/* Strangers shall not take the descriptors that peers need. */
static unsigned strangers_allowed(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / 4 >= TP_STRANGERS)
        return TP_STRANGERS;
    return limit.rlim_cur / 4 ? (unsigned)(limit.rlim_cur / 4) : 1;
}

/* Open what all lanes share. */
static weft_status_t start(tp_transport_t *r, bool tls)
{
    if (r->base.fd >= 0)
        return wefti_tp_listen(r, tls);
    r->base.fd = epoll_create1(EPOLL_CLOEXEC);
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r->max_strangers = strangers_allowed();
    r->spare_fd = r->base.fd >= 0 ? fcntl(r->base.fd, F_DUPFD_CLOEXEC, 0) : -1;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    weft_status_t st;
    if (r->spare_fd < 0 || r->timer_fd < 0 || epoll_ctl(r->base.fd, EPOLL_CTL_ADD, r->timer_fd, &ev))
        st =
            wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "no descriptors for connections over TCP: %s", strerror(errno));
    else
        st = wefti_tp_listen(r, tls);
    if (!st)
        return WEFT_OK;
    wefti_tp_close_fds(r);
    return st;
}

void wefti_tp_release_reserve(tp_lane_t *l)
{
    if (l->reserve_fd < 0)
        return;
    close(l->reserve_fd);
    l->reserve_fd = -1;
    wefti_list_remove(&l->reserve_link);
}

static weft_status_t lane_new(wefti_transport_t *transport, const wefti_meeting_t *with, void *user, void *addr_buf,
                              size_t *n_out, wefti_lane_t **lane_out)
{
    tp_transport_t *r = tp_transport(transport);
    weft_status_t st = start(r, with->tls);
    if (st)
        return st;
    tp_lane_t *l = wefti_calloc(1, sizeof *l);
    if (!l)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a lane");
    st = wefti_slots_add(&r->lanes, l, &l->id);
    if (st)
        goto err_free;
    l->reserve_fd = fcntl(r->base.fd, F_DUPFD_CLOEXEC, 0);
    if (l->reserve_fd < 0) {
        st = wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "no descriptor for a lane: %s", strerror(errno));
        goto err_slot;
    }
    transport->fabric->ops->random(transport->fabric, l->token, sizeof l->token);
    l->side = with->side;
    memcpy(l->key, with->secret, sizeof l->key);
    l->tls = with->tls;
    l->only_here = with->only_here && !with->tls;
    if (l->tls)
        wefti_mac(with->secret, "weft tls of a lane", "", 0, l->tls_secret);
    wefti_half_init(&l->half, &r->transfers, transport, user, TP_REC_MAX);
    l->transport = r;
    l->fd = -1;
    wefti_list_push_back(&r->reserved, &l->reserve_link);
    wefti_list_init(&l->queue);
    wefti_list_init(&l->stuck_link);
    wefti_list_init(&l->more_link);
    wefti_list_init(&l->bulk_out);
    r->n_lanes++;

    wefti_writer_t w = wefti_writer(addr_buf, WEFTI_LANE_ADDR_MAX);
    wefti_put_u32(&w, ADDR_VERSION);
    const tp_port_t *p = &r->ports[l->tls];
    wefti_put_u32(&w, p->n_addrs | (r->sums ? ADDR_SUMS : 0));
    wefti_put_u64(&w, l->id);
    wefti_put_bytes(&w, l->token, TP_TOKEN);
    for (unsigned i = 0; i < p->n_addrs; i++) {
        wefti_put_bytes(&w, &p->addrs[i].ip, sizeof p->addrs[i].ip);
        wefti_put_u16(&w, p->addrs[i].port);
    }
    *n_out = (size_t)(w.at - (uint8_t *)addr_buf);
    *lane_out = &l->half.base;
    return WEFT_OK;

err_slot:
    wefti_slots_remove(&r->lanes, l->id);
err_free:
    wefti_free(l);
    return st;
}

static weft_status_t lane_connect(wefti_lane_t *lane, const void *addr, size_t n)
{
    tp_lane_t *l = tp_lane(lane);
    wefti_reader_t rd = wefti_reader(addr, n);
    uint32_t version = wefti_get_u32(&rd), n_addrs = wefti_get_u32(&rd);
    bool sums = n_addrs & ADDR_SUMS;
    n_addrs &= ~(uint32_t)ADDR_SUMS;
    uint64_t id = wefti_get_u64(&rd);
    const void *token = wefti_get_bytes(&rd, TP_TOKEN);
    if (rd.bad || version != ADDR_VERSION || !n_addrs || n_addrs > TP_ADDRS || wefti_reader_left(&rd) != n_addrs * 18)
        return wefti_fail(WEFT_ERR_PROTOCOL, "a lane's address of %zu bytes is not one of ours", n);
    if (l->state != TP_LANE_NEW)
        return wefti_fail(WEFT_ERR_STATE, "the lane is connected");
    if (!memcmp(token, l->token, TP_TOKEN))
        return wefti_fail(WEFT_ERR_PROTOCOL, "a lane cannot be joined to itself");
    memcpy(l->peer_token, token, TP_TOKEN);
    l->peer_id = id;
    l->sums = !l->tls && (sums || l->transport->sums);
    l->n_peer = (uint8_t)n_addrs;
    for (unsigned i = 0; i < n_addrs; i++) {
        memcpy(&l->peer[i].ip, wefti_get_bytes(&rd, sizeof l->peer[i].ip), sizeof l->peer[i].ip);
        l->peer[i].port = wefti_get_u16(&rd);
    }
    l->state = TP_LANE_JOINING;
    return wefti_tp_join(l);
}

void wefti_tp_lane_up(tp_lane_t *l, tp_conn_t *c)
{
    if (l->sums)
        c->stream = wefti_tp_sums_new(l->transport);
    l->conn = c;
    l->fd = c->fd;
    l->stream = c->stream;
    c->lane = l;
    c->state = TP_UP;
    l->state = TP_LANE_UP;
    if (l->held)
        wefti_tp_conn_drop(l->held);
    wefti_tp_release_reserve(l);
    wefti_tp_watch(c, EPOLLIN);
    if (!c->events) {
        wefti_tp_fail(l, WEFT_ERR_LIMIT, "epoll takes no more descriptors");
        return;
    }
    if (l->sums && !l->stream) {
        wefti_tp_fail(l, WEFT_ERR_NOMEM, "no memory for checksums");
        return;
    }
    wefti_tp_heat(l);
    wefti_tp_note_more(l);
    wefti_half_later(&l->half);
    if (l->half.want_space)
        wefti_half_event(&l->half, WEFTI_EV_SPACE);
}

/* --- closing ------------------------------------------------------------------------------------------------------ */

static void lane_close(wefti_lane_t *lane)
{
    tp_lane_t *l = tp_lane(lane);
    if (l->state >= TP_LANE_CLOSING)
        return;
    if (l->state == TP_LANE_UP && !l->half.failed && !l->mute)
        wefti_tp_flush(l);
    if (l->state < TP_LANE_UP && l->conn)
        wefti_tp_conn_drop(l->conn); /* it shall not come up any more */
    l->close_until = wefti_clock_ns() + CLOSE_NS;
    l->state = TP_LANE_CLOSING;
    wefti_half_event(&l->half, WEFTI_EV_CLOSE);
}

/* The lane is done with it. */
static void linger(tp_conn_t *c)
{
    tp_transport_t *r = c->transport;
    if (c->stream)
        wefti_tp_stream_end(c->stream, c->fd);
    if (shutdown(c->fd, SHUT_WR)) {
        wefti_tp_conn_drop(c);
        return;
    }
    if (r->n_lingers >= TP_LINGERS)
        wefti_tp_conn_drop(wefti_container_of(wefti_list_first(&r->lingers), tp_conn_t, link));
    wefti_list_remove(&c->unacked);
    c->lane->conn = NULL;
    c->lane = NULL;
    c->state = TP_LINGER;
    r->n_lingers++;
    wefti_list_push_back(&r->lingers, &c->link);
    c->deadline = wefti_clock_ns() + LINGER_NS;
    wefti_tp_timer(r, c->deadline);
    wefti_tp_watch(c, EPOLLIN);
    wefti_tp_linger_event(c);
}

void wefti_tp_linger_event(tp_conn_t *c)
{
    for (int i = 0; i < LINGER_READS; i++) {
        ssize_t n = recv(c->fd, c->transport->in, TP_IN, MSG_DONTWAIT);
        if (n > 0)
            continue;
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            wefti_tp_conn_drop(c);
        return;
    }
}

static void lane_end(tp_lane_t *l)
{
    if (l->fd >= 0 && !l->half.failed && !l->mute) {
        wefti_tp_flush(l);
        if (!l->mute && !wefti_tp_out_empty(l) && wefti_clock_ns() < l->close_until) {
            wefti_half_event(&l->half, WEFTI_EV_CLOSE);
            return;
        }
    }
    l->state = TP_LANE_ENDED;
    wefti_tp_cool(l);
    wefti_list_remove(&l->half.open_link);
    wefti_list_remove(&l->stuck_link);
    wefti_list_remove(&l->more_link);
    wefti_tp_out_drop(l);
    if (l->carry)
        tp_frame_free(l->transport, l->carry);
    l->carry = NULL;
    wefti_tp_abandon(l);
    wefti_tp_release_reserve(l);
    if (l->held)
        wefti_tp_conn_drop(l->held);
    if (l->bulk)
        wefti_tp_conn_drop(l->bulk);
    if (l->conn && l->conn->state == TP_UP && !l->half.failed)
        linger(l->conn);
    else if (l->conn)
        wefti_tp_conn_drop(l->conn);
    l->fd = -1;
    l->stream = NULL;
    wefti_tell_withdrawn(&l->half);
}

bool wefti_tp_lane_event(wefti_lane_t *lane, unsigned events)
{
    tp_lane_t *l = tp_lane(lane);
    tp_transport_t *r = l->transport;
    void *user = lane->user;
    (void)events;
    if (l->state == TP_LANE_CLOSING)
        lane_end(l);
    if (l->state != TP_LANE_ENDED || l->half.untold)
        return l->state < TP_LANE_CLOSING;
    r->n_lanes--;
    wefti_slots_remove(&r->lanes, l->id);
    wefti_half_free(&l->half);
    explicit_bzero(l->key, sizeof l->key);
    explicit_bzero(l->tls_secret, sizeof l->tls_secret);
    wefti_free(l);
    r->base.fabric->up->lane_closed(user);
    return false;
}

/* --- what the fabric is given ------------------------------------------------------------------------------------- */

static size_t caps(wefti_transport_t *transport, int side, void *buf)
{
    (void)transport, (void)side;
    *(uint8_t *)buf = CAPS_VERSION;
    return 1;
}

static bool match(wefti_transport_t *transport, const void *theirs, size_t n)
{
    (void)transport; /* whether there is a network between us, connecting will show */
    return n >= 1 && *(const uint8_t *)theirs == CAPS_VERSION;
}

const wefti_transport_ops_t wefti_tp_ops = {
    .close = wefti_tp_close,
    .arm = wefti_tp_arm,
    .caps = caps,
    .match = match,
    .lane_new = lane_new,
    .lane_connect = lane_connect,
    .lane_close = lane_close,
    .reserve = wefti_tp_reserve,
    .commit = wefti_tp_commit,
    .announce = wefti_tp_announce,
    .pull = wefti_tp_pull,
    .refuse = wefti_tp_refuse,
};
