/* fabric/sock/tls.c - TLS below the messages of a wire.
 *
 * A wire whose address is tls:// has TLS. One at tcp:// has it, too, if it goes to another host and there is something to prove
 * with (WEFT_TLS); whether it does is judged by the connected socket, on both sides alike. A listener at tcp:// leaves the choice
 * to those of its host only, and sees it from their first byte; all others have to speak TLS, so there is nothing to downgrade.
 *
 * With certificates and no key nothing but TLS proves anything, so nobody has that choice: all of tcp:// has TLS, and both sides
 * know so without judging. What the dialler judges is only whether he wants to find the host that he called in the certificate:
 * certificates name no localhost, so of his own host any certificate will do that he believes. Over a Unix socket the kernel says
 * whose the other end is; our own user and root are taken, and nobody else.
 *
 * A wire with TLS, or that may have it, is SECURING between the connection and its first message. Its stream is the driver's
 * until the wire beats; from then on it belongs to the lock of beat.c, for the thread of beats reads and writes there too. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/sock/internal.h"

static bool is_unix(int fd)
{
    struct sockaddr_storage own = {0};
    socklen_t n = sizeof own;
    return !getsockname(fd, (void *)&own, &n) && own.ss_family == AF_UNIX;
}

/* Alerts of TLS. */
enum { PROTOCOL_VERSION = 70, INTERNAL_ERROR = 80 };

void wefti_wire_over(sock_wire_t *w, weft_status_t why)
{
    w->said = wefti_strdup(weft_last_error());
    wefti_info("sock: a wire ends: %s", weft_last_error());
    wefti_wire_end(w, why);
}

bool wefti_wire_secure(sock_wire_t *w, int side)
{
    wefti_guard_t *g = wefti_wire_guard(w);
    weft_status_t st = wefti_guard_ready(g); /* the listener may be another shard's */
    bool any_host = w->unasked && wefti_addr_is_here(w->fd);
    if (!st)
        st = wefti_stream_wire(g, side, any_host ? NULL : w->host, w->port, &w->stream);
    w->state = WIRE_SECURING;
    if (st && st != WEFT_ERR_NOMEM && w->unasked) {
        char why[512];
        snprintf(why, sizeof why, "%s", weft_last_error());
        wefti_fail(st, "%s%s: %s",
                   any_host ? "certificates are shown over TLS, on one host, too," : "what leaves this host is encrypted",
                   st == WEFT_ERR_UNSUPPORTED ? " unless WEFT_TLS=off" : "", why);
    }
    if (st)
        wefti_wire_over(w, st);
    return !st;
}

bool wefti_wire_must_secure(const sock_wire_t *w)
{
    const wefti_guard_t *g = wefti_wire_guard(w);
    return wefti_guard_demands(g) && !is_unix(w->fd) && (wefti_guard_demands_here(g) || !wefti_addr_is_here(w->fd));
}

/* Say why, in the words of TLS, to who may not get another one in. */
static void alert(int fd, uint8_t code)
{
    const uint8_t record[] = {SOCK_TLS_ALERT, 3, 3, 0, 2, 2, code};
    uint8_t drain[4096];
    ssize_t n = send(fd, record, sizeof record, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 16 && n > 0; i++) /* closing with unread bytes would take it back */
        n = recv(fd, drain, sizeof drain, MSG_DONTWAIT);
}

bool wefti_wire_is_strange(int fd, const wefti_guard_t *g)
{
    unsigned uid;
    if (!wefti_guard_demands_here(g) || !is_unix(fd) || wefti_addr_is_own_user(fd, &uid))
        return false;
    wefti_fail(WEFT_ERR_AUTH,
               "who is at the other end of the Unix socket is another user (%u), and shows no certificate there: use tls:// or "
               "tcp:// between users, or give both sides a key (WEFT_KEY_FILE)",
               uid);
    return true;
}

bool wefti_wire_turn_away(int fd, const wefti_guard_t *g)
{
    if (!wefti_wire_is_strange(fd, g))
        return false;
    wefti_info("sock: a newcomer is turned away: %s", weft_last_error());
    alert(fd, PROTOCOL_VERSION);
    close(fd);
    return true;
}

void wefti_wire_not_tls(sock_wire_t *w)
{
    if (!w->dialled)
        alert(w->fd, PROTOCOL_VERSION);
    wefti_fail(
        WEFT_ERR_AUTH,
        w->dialled && is_unix(w->fd)
            ? "the listener has certificates and no key, and takes only its own user over a Unix socket: call it at tls:// or "
              "tcp:// with certificates, or give both sides a key (WEFT_KEY_FILE)"
        : w->dialled ? "the listener wants TLS here: give this side what the listener has, a key (WEFT_KEY_FILE) or certificates "
                       "(WEFT_TLS_CERT, WEFT_TLS_KEY, WEFT_TLS_CA), without WEFT_TLS=off, or call tls://"
        : w->state == WIRE_OPEN
            ? "the peer speaks TLS, and this listener has neither a key nor certificates, or WEFT_TLS=off"
            : "the peer does not speak TLS, which this listener wants: it has no key or certificates, or WEFT_TLS=off");
    wefti_wire_over(w, w->dialled ? WEFT_ERR_AUTH : WEFT_ERR_PROTOCOL);
}

bool wefti_wire_answer(sock_wire_t *w)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    uint8_t first;
    if (w->stream)
        return wefti_wire_shake(w);
    ssize_t n = recv(w->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        wefti_wire_end(w, WEFT_ERR_PEER);
    } else if (first != SOCK_TLS_HANDSHAKE) {
        if (w->either)
            return true;
        wefti_wire_not_tls(w);
    } else if (wefti_wire_secure(w, WEFTI_SIDE_LISTENER)) {
        return wefti_wire_shake(w);
    } else {
        if (!atomic_flag_test_and_set(&warned))
            wefti_warn("sock: a peer is refused: %s", w->said ? w->said : "no memory for TLS");
        alert(w->fd, INTERNAL_ERROR);
    }
    return false;
}

bool wefti_wire_shake(sock_wire_t *w)
{
    weft_status_t st = wefti_stream_shake(w->stream, w->fd);
    if (st == WEFT_ERR_AGAIN) {
        wefti_wire_want(w, w->stream->waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
        return false;
    }
    if (st) {
        wefti_wire_over(w, st);
        return false;
    }
    w->base.stream = w->stream;
    w->sock->fabric->secured++;
    w->sock->fabric->resumed += wefti_stream_resumed(w->stream);
    wefti_debug("sock: a wire has TLS: %s%s", wefti_stream_cipher(w->stream), wefti_stream_resumed(w->stream) ? ", resumed" : "");
    return true;
}

ssize_t wefti_wire_write(sock_wire_t *w, const void *bytes, size_t n)
{
    struct iovec v = {(void *)(uintptr_t)bytes, n};
    return w->stream ? wefti_stream_send(w->stream, w->fd, &v, 1) : send(w->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t wefti_wire_take(sock_wire_t *w, void *buf, size_t n)
{
    struct iovec v = {buf, n};
    return w->stream ? wefti_stream_recv(w->stream, w->fd, &v, 1) : recv(w->fd, buf, n, MSG_DONTWAIT);
}

ssize_t wefti_wire_peek(sock_wire_t *w, void *buf, size_t n)
{
    return w->stream ? wefti_stream_peek(w->stream, w->fd, buf, n) : recv(w->fd, buf, n, MSG_DONTWAIT | MSG_PEEK);
}
