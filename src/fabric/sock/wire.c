/* fabric/sock/wire.c - messages on a connected wire.
 *
 * On the socket: u32 "WFT1", u32 length (at most WEFTI_WIRE_MAX), the bytes. Between two messages there may be heartbeats, a
 * byte each (beat.c). The first byte that cannot be either ends the wire: a port scan or a browser gets nothing from us and
 * costs one line at level info; who speaks TLS is told in its words that nobody does here (tls.c).
 *
 * Reads go into one buffer of the whole; only a message that has arrived in part takes memory of its own wire, so that ten
 * thousand silent wires cost nothing. Writes that the socket does not take wait here, up to SOCK_OUT_MAX. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/sock/internal.h"

static const uint8_t magic[4] = {'W', 'F', 'T', '1'};

void wefti_wire_socket_options(int fd, int family)
{
    int on = 1;
    if (family == AF_UNIX)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

static void flush_locked(sock_wire_t *w)
{
    while (w->out_n) {
        ssize_t n = wefti_wire_write(w, w->out + w->out_at, w->out_n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            wefti_wire_want(w, EPOLLIN | EPOLLOUT);
            return;
        }
        if (n < 0) {
            /* What the peer said last may still be in the socket: reading goes on to its end, which is the wire's. */
            w->out_n = 0;
            break;
        }
        w->out_at += (size_t)n;
        w->out_n -= (size_t)n;
    }
    w->out_at = 0;
    if (w->stream && w->stream->waits && !wefti_stream_flush(w->stream, w->fd) && errno == EAGAIN) {
        wefti_wire_want(w, EPOLLIN | EPOLLOUT);
        return;
    }
    wefti_wire_want(w, wefti_beat_events(w));
    wefti_free(w->out); /* a wire says a few words in its first moment, and a thousand may be open */
    w->out = NULL;
    w->out_cap = 0;
}

/* Write what waits, as far as the socket takes it. */
void wefti_wire_flush(sock_wire_t *w)
{
    wefti_beat_lock(w);
    flush_locked(w);
    wefti_beat_unlock(w);
}

static bool out_space(sock_wire_t *w, size_t n)
{
    if (w->out_at + w->out_n + n <= w->out_cap)
        return true;
    if (w->out_at) {
        memmove(w->out, w->out + w->out_at, w->out_n);
        w->out_at = 0;
    }
    if (w->out_n + n <= w->out_cap)
        return true;
    size_t cap = w->out_cap ? w->out_cap : 512;
    while (cap < w->out_n + n)
        cap *= 2;
    uint8_t *grown = wefti_realloc(w->out, cap);
    if (!grown)
        return false;
    w->out = grown;
    w->out_cap = cap;
    return true;
}

weft_status_t wefti_sock_wire_send(wefti_wire_t *wire, const void *bytes, size_t n)
{
    sock_wire_t *w = (sock_wire_t *)(void *)wire;
    *w->sock->look_now = true;
    if (n > WEFTI_WIRE_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "a message of %zu bytes is more than a wire's %d", n, WEFTI_WIRE_MAX);
    if (w->end || w->state == WIRE_DEAD)
        return WEFT_OK; /* wire_closed will say so */
    if (w->out_n + SOCK_HEAD + n > SOCK_OUT_MAX) {
        wefti_info("sock: a wire ends, its peer has left %zu bytes unread", w->out_n);
        wefti_wire_end(w, WEFT_ERR_PEER);
        return WEFT_OK;
    }
    if (!out_space(w, SOCK_HEAD + n))
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a message of %zu bytes", n);
    uint32_t len = (uint32_t)n;
    uint8_t *at = w->out + w->out_at + w->out_n;
    memcpy(at, magic, 4);
    memcpy(at + 4, &len, 4);
    if (n)
        memcpy(at + SOCK_HEAD, bytes, n);
    wefti_beat_lock(w);
    w->out_n += SOCK_HEAD + n;
    if (w->state == WIRE_OPEN)
        flush_locked(w);
    wefti_beat_unlock(w);
    return WEFT_OK;
}

void wefti_sock_wire_close(wefti_wire_t *wire)
{
    sock_wire_t *w = (sock_wire_t *)(void *)wire;
    uint8_t drain[4096]; /* not the scratch: a message of another wire may be in it, being delivered to our caller */
    *w->sock->look_now = true;
    if (w->state == WIRE_SECURING && w->either && !w->stream)
        w->state = WIRE_OPEN; /* what it speaks is not known yet; our last words are plain */
    if (w->state == WIRE_OPEN && w->fd >= 0) {
        if (w->out_n)
            wefti_wire_flush(w);
        if (w->stream) {
            wefti_beat_lock(w);
            wefti_stream_end(w->stream, w->fd);
            wefti_beat_unlock(w);
        }
        /* Closing with unread bytes resets the connection, and our last words with it. */
        shutdown(w->fd, SHUT_WR);
        for (int i = 0; i < 16; i++) {
            if (recv(w->fd, drain, sizeof drain, MSG_DONTWAIT) <= 0)
                break;
        }
    }
    wefti_wire_kill(w);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static void not_ours(sock_wire_t *w, const char *what)
{
    wefti_addr_t a = {.n = sizeof a.ss};
    char text[WEFTI_ADDR_TEXT] = "a peer";
    if (!getpeername(w->fd, (void *)&a.ss, &a.n))
        wefti_addr_text(&a, text, sizeof text);
    wefti_info("sock: a wire from %s ends: %s", text, what);
    if (!w->said)
        w->said = wefti_strdup(what);
    wefti_wire_end(w, WEFT_ERR_PROTOCOL);
}

/* How long the message that starts here is, head included; 0: not known yet; SIZE_MAX: it is none of ours. */
static size_t message_size(const uint8_t *at, size_t n)
{
    if (memcmp(at, magic, n < 4 ? n : 4))
        return SIZE_MAX;
    if (n < SOCK_HEAD)
        return 0;
    uint32_t len;
    memcpy(&len, at + 4, 4);
    return len <= WEFTI_WIRE_MAX ? SOCK_HEAD + len : SIZE_MAX;
}

static bool keep_part(sock_wire_t *w, const uint8_t *at, size_t n, size_t size)
{
    size_t cap = size ? size : SOCK_HEAD;
    if (w->in_cap < cap) {
        uint8_t *grown = wefti_realloc(w->in, cap);
        if (!grown)
            return false;
        w->in = grown;
        w->in_cap = cap;
    }
    memmove(w->in, at, n);
    w->in_n = n;
    return true;
}

/* Deliver the whole messages of [at, at + n); what is left is kept. Beats are counted. False when the wire is over. */
static bool deliver(sock_wire_t *w, const uint8_t *at, size_t n, size_t *n_beats)
{
    while (n) {
        if (*at == SOCK_BEAT) {
            at++;
            n--;
            ++*n_beats;
            continue;
        }
        size_t size = message_size(at, n);
        if (size == SIZE_MAX && !w->stream && *at == (w->dialled ? SOCK_TLS_ALERT : SOCK_TLS_HANDSHAKE)) {
            wefti_wire_not_tls(w);
            return false;
        }
        if (size == SIZE_MAX) {
            not_ours(w, "the bytes are not Weft's");
            return false;
        }
        if (!size || size > n) {
            if (keep_part(w, at, n, size))
                return true;
            wefti_wire_end(w, WEFT_ERR_NOMEM);
            return false;
        }
        w->sock->fabric->up->wire_message(w->base.user, at + SOCK_HEAD, size - SOCK_HEAD);
        if (w->state != WIRE_OPEN || w->end)
            return false;
        at += size;
        n -= size;
    }
    return true;
}

/* One read. Another follows with the next event, so that no wire keeps the others waiting. */
static void wire_read(sock_wire_t *w)
{
    uint8_t *scratch = w->sock->scratch;
    size_t had = w->in_n, n_beats = 0;
    if (had)
        memcpy(scratch, w->in, had);
    wefti_beat_lock(w);
    ssize_t n = wefti_wire_take(w, scratch + had, sizeof w->sock->scratch - had);
    int err = errno;
    weft_status_t verdict = w->verdict;
    w->reading = n > 0;
    wefti_beat_unlock(w);
    if (n < 0 && (err == EAGAIN || err == EWOULDBLOCK || err == EINTR))
        return;
    if (n < 0 && err == EBADMSG && !w->said)
        w->said = wefti_strdup(weft_last_error());
    if (n <= 0) {
        wefti_debug("sock: a wire ends: %s", verdict ? "the peer fell silent" : n ? strerror(err) : "the peer closed it");
        wefti_wire_end(w, verdict ? verdict : n && err == EBADMSG ? WEFT_ERR_AUTH : WEFT_ERR_PEER);
        return;
    }
    w->in_n = 0;
    if (deliver(w, scratch, had + (size_t)n, &n_beats) && !w->in_n) {
        wefti_free(w->in);
        w->in = NULL;
        w->in_cap = 0;
    }
    wefti_beat_lock(w);
    w->reading = false;
    wefti_beat_heard(w, n_beats);
    wefti_beat_unlock(w);
}

static bool has_more(sock_wire_t *w)
{
    wefti_beat_lock(w);
    bool more = w->stream && wefti_stream_has(w->stream);
    wefti_beat_unlock(w);
    return more;
}

void wefti_wire_event(wefti_watch_t *watch, uint32_t events)
{
    sock_wire_t *w = wefti_container_of(watch, sock_wire_t, watch);
    if (w->state == WIRE_DEAD || w->end)
        return;
    bool told = w->state == WIRE_SECURING && !w->dialled; /* accepted: conn has it already */
    if (told && wefti_wire_answer(w)) {
        w->state = WIRE_OPEN;
        wefti_wire_flush(w);
    } else if (w->state != WIRE_OPEN && !told) {
        wefti_dial_event(w);
    }
    if (w->state != WIRE_OPEN || w->end)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR) || w->stream)
        wire_read(w);
    while (w->state == WIRE_OPEN && !w->end && has_more(w))
        wire_read(w); /* no event would tell of it */
    if (events & EPOLLOUT && w->state == WIRE_OPEN && !w->end)
        wefti_wire_flush(w);
}
