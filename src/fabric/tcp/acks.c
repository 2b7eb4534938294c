/* fabric/tcp/acks.c - connections whose peer acknowledges nothing any more, although its heartbeats arrive.
 *
 * Heartbeats go over the wire, which is another connection, perhaps over another device or another route. So the path of a lane
 * may be dead while the wire works, and the kernel retransmits for a quarter of an hour before it reports that.
 *
 * A connection on which something was sent is on the transport's list `unacked` until a look finds that all of it was
 * acknowledged. Looks come with the transport's timer, WEFTI_BEATS times per heartbeat bound, while there is anything on that
 * list. What a look finds is judged as the silence of a wire is (fabric/pulse.h): a lane whose peer's kernel did not answer for
 * three quarters of the bound has failed. A message costs nothing for this but the question whether its connection is on the
 * list.
 *
 * The kernel of a peer that lives and does not read answers as well. So silence is only that something was sent and nothing came
 * after it: while the peer's window is closed the kernel asks less and less often, and nothing has to come between an answer and
 * the next question. A single packet may be lost, too, which takes a retransmission to mend: nobody is judged within three
 * timeouts of the connection. tests/fault/conn_path.c. */
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "fabric/tcp/internal.h"

#define RTO_US_MOST 120000000u
#define TICK UINT64_C(10000000) /* ns: the kernel's times may be rounded by one of its ticks */

void wefti_tp_acks_begin(tp_conn_t *c)
{
    tp_transport_t *r = c->transport;
    uint64_t now = wefti_clock_ns();
    wefti_pulse_start(&c->acks, r->bound / WEFTI_BEATS, now);
    wefti_pulse_watch(&c->acks, r->bound, now);
    c->looked = now;
    wefti_list_push_back(&r->unacked, &c->unacked);
    wefti_tp_timer(r, c->acks.due);
}

/* Did the peer's kernel answer what it was sent, as far as it was sent anything? */
static bool answered(tp_conn_t *c, const struct tcp_info *info, uint64_t now)
{
    if (!info->tcpi_unacked)
        return true; /* what is left has not been sent: the peer's window is closed */
    if (info->tcpi_last_ack_recv * UINT64_C(1000000) < now - c->looked + TICK)
        return true;
    /* Both count milliseconds, or ticks of the kernel: one that came in the same may have come after it. */
    return info->tcpi_last_ack_recv <= info->tcpi_last_data_sent;
}

static void look(tp_conn_t *c, uint64_t now)
{
    struct tcp_info info;
    socklen_t n = sizeof info;
    int left = 0;
    if (ioctl(c->fd, SIOCOUTQ, &left) || !left || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &n)) {
        wefti_list_remove(&c->unacked);
        return;
    }
    bool good = answered(c, &info, now);
    uint64_t rto_us = info.tcpi_rto >> (info.tcpi_backoff & 31); /* as it was before it was doubled so often */
    uint64_t least = 4000 * (rto_us < RTO_US_MOST ? rto_us : RTO_US_MOST);
    c->acks.bound = c->transport->bound > least ? c->transport->bound : least; /* lost after three quarters of it */
    c->looked = now;
    if (wefti_pulse_tick(&c->acks, now, good)) {
        wefti_list_remove(&c->unacked);
        wefti_tp_fail(c->lane, WEFT_ERR_PEER, "nothing of what it was sent is acknowledged any more");
    }
}

uint64_t wefti_tp_acks_look(tp_transport_t *r, uint64_t now)
{
    uint64_t next = 0;
    wefti_list_each_safe(it, &r->unacked) {
        tp_conn_t *c = wefti_container_of(it, tp_conn_t, unacked);
        if (now >= c->acks.due)
            look(c, now);
        if (wefti_list_linked(&c->unacked) && (!next || c->acks.due < next))
            next = c->acks.due;
    }
    return next;
}
