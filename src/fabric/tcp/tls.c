/* fabric/tcp/tls.c - TLS below a lane's connections.
 *
 * Where the two met over TLS, every connection of their lane begins with a handshake of its own, by a key that is made of the
 * wire's: the one who dials names the lane, and the other one finds its key there. Then all is as without: challenge, greeting,
 * answer (greet.c), records. Such lanes have a port of their own, at which nobody is understood who does not speak TLS.
 *
 * OpenSSL may have read more from a socket than was asked for. epoll says nothing of that: a lane for which it is so is on the
 * transport's list `more`, and is read with the next progress. tests/wire/tls.c. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "fabric/tcp/internal.h"

static bool find(void *user, uint64_t id, uint8_t secret[WEFTI_SECRET_SIZE])
{
    tp_transport_t *r = user;
    const tp_lane_t *l = wefti_slots_get(&r->lanes, id);
    if (!l || !l->tls)
        return false;
    memcpy(secret, l->tls_secret, sizeof l->tls_secret);
    return true;
}

bool wefti_tp_secure(tp_conn_t *c)
{
    tp_transport_t *r = c->transport;
    const tp_lane_t *l = c->lane;
    weft_status_t st = wefti_guard_ready_for_lanes(r->guard);
    if (!st)
        st = l ? wefti_stream_dials(r->guard, l->peer_id, l->tls_secret, &c->stream)
               : wefti_stream_dialled(r->guard, find, r, &c->stream);
    c->shaking = !st;
    return !st;
}

weft_status_t wefti_tp_shake(tp_conn_t *c)
{
    weft_status_t st = wefti_stream_shake(c->stream, c->fd);
    if (st == WEFT_ERR_AGAIN)
        wefti_tp_watch(c, c->stream->waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    else
        c->shaking = false;
    if (!st)
        wefti_tp_watch(c, EPOLLIN);
    return st;
}

ssize_t wefti_tp_send(int fd, wefti_stream_t *s, const struct iovec *v, unsigned n)
{
    if (s)
        return s->sums ? wefti_tp_sums_send(s, fd, v, n) : wefti_stream_send(s, fd, v, n);
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)v, .msg_iovlen = n};
    return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t wefti_tp_recv(int fd, wefti_stream_t *s, const struct iovec *v, unsigned n)
{
    if (s)
        return s->sums ? wefti_tp_sums_recv(s, fd, v, n) : wefti_stream_recv(s, fd, v, n);
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)v, .msg_iovlen = n};
    return recvmsg(fd, &msg, MSG_DONTWAIT);
}

void wefti_tp_note_more(tp_lane_t *l)
{
    if (l->stream && wefti_tp_stream_has(l->stream) && !wefti_list_linked(&l->more_link))
        wefti_list_push_back(&l->transport->more, &l->more_link);
}

unsigned wefti_tp_read_more(tp_transport_t *r)
{
    unsigned n = 0;
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &r->more);
    while ((it = wefti_list_pop(&now)))
        n += wefti_tp_read(wefti_container_of(it, tp_lane_t, more_link)) != 0;
    return n;
}
