/* fabric/tcp/bulk.c - the second connection, for large payloads.
 *
 * A gigabyte between two records would delay the second one. So the first payload of TP_BULK_MIN bytes or more opens a second
 * connection beside the lane's, on which large ones go from the sender's memory to the receiver's with nothing between but the
 * kernel: u64 slot, u64 length, the bytes.
 *
 *     (none) --first large pull, by whoever dialled the lane--> DIALING --> GREETING --> UP
 *     (none) --a stranger greets as the peer of this lane--> UP
 *     (none) --it cannot be had, or ended with nothing under way--> no_bulk: payloads go between records from then on
 *
 * Payloads wait for it while it is being made. Whoever finds that there is none says so (NO_BULK). If it ends in the middle of a
 * payload the peer is gone, and the lane fails once what came over its first connection has been told. While a payload moves,
 * progress tries this socket; otherwise epoll watches it. tests/wire/fabric_lanes.c, tests/wire/fabric_tcp.c:
 * a_large_payload_goes_over_a_connection_of_its_own. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/tcp/internal.h"

#define ROUND_BYTES (256u << 10) /* per progress, of all payloads together */
#define SEND_BYTES (128u << 10)  /* of one send: on one host the kernel also receives what is sent, in the same call */
#define DIAL_NS 2000000000u
#define LAST_READS 64

static bool works(const tp_lane_t *l)
{
    return l->state == TP_LANE_UP && !l->half.failed;
}

/* --- getting there ------------------------------------------------------------------------------------------------ */

/* There is none: what waits for it goes between records. If it is the peer that says so (`tell` is false), it may have sent
 * payloads that we wait for, and that went with the connection. */
void wefti_tp_bulk_none(tp_lane_t *l, bool tell)
{
    if (l->no_bulk || !works(l))
        return;
    if (l->bulk && (l->bulk->pull || l->bulk->out_n || (!tell && l->bulk_in))) {
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "no second connection, in the middle of a payload on it");
        return;
    }
    l->no_bulk = true;
    if (l->bulk)
        wefti_tp_conn_drop(l->bulk);
    wefti_list_each(it, &l->bulk_out) {
        if (wefti_container_of(it, wefti_outgoing_t, job.link)->sent) {
            wefti_tp_fail(l, WEFT_ERR_PEER, "its second connection ended in the middle of a payload");
            return;
        }
    }
    wefti_list_splice(&l->half.sending, &l->bulk_out);
    wefti_half_later(&l->half);
    if (tell)
        wefti_tp_control_id(l, TP_NO_BULK, 0);
}

/* A large payload is about to move. Cheap to call again. */
void wefti_tp_bulk_want(tp_lane_t *l)
{
    if (l->bulk || l->no_bulk || !l->dialled || !works(l))
        return;
    struct sockaddr_storage ss;
    socklen_t n = wefti_tp_sockaddr(&l->peer[l->peer_at - 1], &ss); /* the one that answered for the lane */
    int fd = wefti_tp_socket(ss.ss_family);
    if (fd >= 0 && connect(fd, (void *)&ss, n) && errno != EINPROGRESS) {
        close(fd);
        fd = -1;
    }
    tp_conn_t *c = fd >= 0 ? wefti_tp_conn_new(l->transport, fd, TP_DIALING) : NULL;
    if (!c) {
        wefti_debug("tcp: no second connection for a lane; it goes on without");
        wefti_tp_bulk_none(l, true);
        return;
    }
    c->bulk = true;
    c->lane = l;
    l->bulk = c;
    c->deadline = wefti_clock_ns() + DIAL_NS;
    wefti_tp_timer(l->transport, c->deadline);
    wefti_tp_watch(c, EPOLLOUT);
}

void wefti_tp_bulk_up(tp_conn_t *c)
{
    tp_lane_t *l = c->lane;
    if (l->sums)
        c->stream = wefti_tp_sums_new(c->transport);
    c->state = TP_UP;
    wefti_list_init(&c->link);
    if (l->sums && !c->stream) {
        wefti_tp_bulk_none(l, true);
        return;
    }
    wefti_tp_watch(c, EPOLLIN);
    wefti_tp_bulk_busy(l);
}

/* A stranger has proved to be the lane's peer and wants to be its second connection. */
void wefti_tp_bulk_arrived(tp_lane_t *l, tp_conn_t *c)
{
    if (!works(l) || l->dialled || l->bulk || l->no_bulk || !wefti_tp_say_answer(l, c)) {
        wefti_debug("tcp: a second connection that its lane has no use for is closed");
        wefti_tp_conn_drop(c);
        return;
    }
    l->transport->n_strangers--;
    wefti_list_remove(&c->link);
    c->in_n = 0;
    c->lane = l;
    l->bulk = c;
    wefti_tp_bulk_up(c);
}

/* --- payloads ----------------------------------------------------------------------------------------------------- */

/* It has ended. */
static void bulk_lost(tp_conn_t *c, weft_status_t why, const char *what)
{
    tp_lane_t *l = c->lane;
    bool idle = !c->pull && !c->out_n && !l->bulk_in && wefti_list_empty(&l->bulk_out);
    wefti_tp_conn_drop(c);
    if (why != WEFT_ERR_PROTOCOL && idle) {
        wefti_tp_bulk_none(l, true);
        return;
    }
    if (why != WEFT_ERR_PROTOCOL) {
        for (int i = 0; i < LAST_READS && wefti_tp_read(l); i++)
            ;
    }
    wefti_tp_fail(l, why, what);
}

/* Reading found no bytes of a payload but this errno, or 0 for the end. */
static void read_failed(tp_conn_t *c, int err, const char *what)
{
    if (err == EBADMSG)
        bulk_lost(c, WEFT_ERR_PROTOCOL, wefti_tp_stream_bad(c->stream));
    else
        bulk_lost(c, WEFT_ERR_PEER, what);
}

/* Send of the first payload, at most so many bytes; false when the socket takes no more, or has failed. */
static bool send_some(tp_conn_t *c, wefti_outgoing_t *s, uint64_t most)
{
    struct iovec v[TP_PIECES];
    unsigned n = 0;
    if (!s->sent && !c->out_n) {
        c->out[0] = s->slot;
        c->out[1] = s->want;
        c->out_at = 0;
        c->out_n = sizeof c->out;
    }
    if (c->out_n)
        v[n++] = (struct iovec){(uint8_t *)c->out + c->out_at, c->out_n};
    uint64_t left = s->want - s->sent;
    wefti_cursor_pieces(s->from, left < most ? left : most, v, TP_PIECES, &n);
    ssize_t sent = wefti_tp_send(c->fd, c->stream, v, n);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ENOMEM)
            bulk_lost(c, WEFT_ERR_PEER, strerror(errno));
        return false;
    }
    tp_sent(c);
    size_t head = (size_t)sent < c->out_n ? (size_t)sent : c->out_n;
    c->out_at += head;
    c->out_n -= head;
    wefti_cursor_advance(&s->from, (size_t)sent - head);
    s->sent += (size_t)sent - head;
    return true;
}

static unsigned run_out(tp_conn_t *c, uint64_t most, uint64_t *budget)
{
    wefti_list_t *it = wefti_list_first(&c->lane->bulk_out);
    if (tp_waits(c->stream) && !wefti_tp_stream_flush(c->stream, c->fd)) {
        if (errno != EAGAIN)
            bulk_lost(c, WEFT_ERR_PEER, strerror(errno));
        return 0;
    }
    if (!it)
        return 0;
    wefti_outgoing_t *s = wefti_container_of(it, wefti_outgoing_t, job.link);
    uint64_t before = s->sent;
    if (!send_some(c, s, most))
        return 0;
    *budget -= s->sent - before;
    if (s->sent == s->want)
        wefti_outgoing_left(s);
    return 1;
}

static bool head_arrived(tp_conn_t *c)
{
    uint64_t head[2];
    if (!wefti_tp_read_in(c, sizeof head)) {
        if (c->in_n == SIZE_MAX)
            read_failed(c, errno, "its second connection ended");
        return false;
    }
    memcpy(head, c->in, sizeof head);
    c->in_n = 0;
    wefti_incoming_t *p = wefti_slots_get(&c->transport->transfers.incoming, head[0]);
    if (!p || p->job.of != &c->lane->half || !tp_pull(p)->bulk || p->got || head[1] != p->want) {
        bulk_lost(c, WEFT_ERR_PROTOCOL, "a payload that nobody is pulling");
        return false;
    }
    c->pull = tp_pull(p);
    return true;
}

static unsigned run_in(tp_conn_t *c, uint64_t *budget)
{
    if (!c->pull && !head_arrived(c))
        return 0;
    tp_pull_t *p = c->pull;
    struct iovec v[TP_PIECES];
    uint64_t left = p->in.want - p->in.got;
    unsigned n = 0;
    wefti_cursor_pieces(p->in.to, left < *budget ? left : *budget, v, TP_PIECES, &n);
    ssize_t got = wefti_tp_recv(c->fd, c->stream, v, n);
    if (got <= 0) {
        if (!got || (errno != EAGAIN && errno != EINTR))
            read_failed(c, got ? errno : 0, "its second connection ended in the middle of a payload");
        return 0;
    }
    *budget -= (uint64_t)got;
    wefti_cursor_advance(&p->in.to, (size_t)got);
    if (wefti_tp_pull_came(p, (size_t)got))
        c->pull = NULL;
    return 1;
}

/* --- driving it --------------------------------------------------------------------------------------------------- */

/* Something moves or is about to. */
void wefti_tp_bulk_busy(tp_lane_t *l)
{
    tp_conn_t *c = l->bulk;
    if (c && c->state == TP_UP && (l->bulk_in || !wefti_list_empty(&l->bulk_out) || tp_waits(c->stream)) &&
        !wefti_list_linked(&c->busy))
        wefti_list_push_back(&l->transport->bulk_busy, &c->busy);
}

unsigned wefti_tp_bulk_run(tp_transport_t *r)
{
    unsigned n = 0;
    uint64_t budget = ROUND_BYTES;
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &r->bulk_busy);
    while (budget && (it = wefti_list_pop(&now))) {
        tp_conn_t *c = wefti_container_of(it, tp_conn_t, busy);
        tp_lane_t *l = c->lane;
        if (!works(l))
            continue;
        n += run_out(c, budget < SEND_BYTES ? budget : SEND_BYTES, &budget);
        if (c->state == TP_UP && l->bulk_in && budget)
            n += run_in(c, &budget);
        if (c->state == TP_UP)
            wefti_tp_bulk_busy(l);
    }
    wefti_list_splice(&now, &r->bulk_busy); /* those that had no turn come first, the next time */
    wefti_list_splice(&r->bulk_busy, &now);
    return n;
}

void wefti_tp_bulk_event(tp_conn_t *c)
{
    tp_lane_t *l = c->lane;
    uint64_t budget = ROUND_BYTES;
    wefti_tp_watch(c, EPOLLIN); /* it may have been watched for space as well */
    if (!l->bulk_in && works(l))
        run_in(c, &budget); /* nothing is expected: it is the end, or the peer breaks the protocol */
    else if (!works(l))
        wefti_tp_conn_drop(c); /* the lane has failed: it would be ready on every look */
}

/* About to sleep: whoever has bytes to send must hear when there is space. */
bool wefti_tp_bulk_arm(tp_transport_t *r)
{
    wefti_list_each(it, &r->bulk_busy) {
        tp_conn_t *c = wefti_container_of(it, tp_conn_t, busy);
        if (c->stream && wefti_tp_stream_has(c->stream))
            return false; /* no event would tell of it */
        if (!wefti_list_empty(&c->lane->bulk_out) || tp_waits(c->stream))
            wefti_tp_watch(c, EPOLLIN | EPOLLOUT);
    }
    return true;
}
