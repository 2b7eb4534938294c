/* fabric/sock/dial.c - a wire's way to being connected.
 *
 * RESOLVING: a name is being looked up; the event is its eventfd. CONNECTING: one address of the list is being tried; the event
 * is the socket's. Each address that fails is logged, the next is tried, and the last one's failure is the wire's. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/sock/internal.h"

#define UNIX_RETRY_NS 1000000000u

static void attempt_failed(sock_wire_t *w, const wefti_addr_t *a, const char *what, int err)
{
    char text[WEFTI_ADDR_TEXT];
    wefti_addr_text(a, text, sizeof text);
    wefti_info("sock: %s %s: %s", what, text, strerror(err));
    w->last = wefti_errno_status(err);
    wefti_sock_close_fd(w->sock, w->fd);
    w->fd = -1;
    w->events = 0;
}

/* A connect to a free port of this host may be given that very port as its own, and then succeeds with itself. */
static bool connected_to_itself(int fd)
{
    struct sockaddr_storage a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    socklen_t an = sizeof a, bn = sizeof b;
    if (getsockname(fd, (void *)&a, &an) || getpeername(fd, (void *)&b, &bn))
        return false;
    return a.ss_family != AF_UNIX && an == bn && !memcmp(&a, &b, an);
}

static void opened(sock_wire_t *w)
{
    w->state = WIRE_OPEN;
    wefti_wire_want(w, EPOLLIN);
    w->sock->fabric->up->wire_opened(w->base.user);
    if (w->state == WIRE_OPEN && !w->end)
        wefti_wire_flush(w);
}

static void connected(sock_wire_t *w)
{
    w->last = WEFT_OK;
    wefti_free(w->addrs.at);
    w->addrs = (wefti_addrs_t){0};
    if (wefti_wire_is_strange(w->fd, wefti_wire_guard(w))) {
        wefti_wire_over(w, WEFT_ERR_AUTH);
        return;
    }
    w->unasked = !w->tls && wefti_wire_must_secure(w);
    w->tls = w->tls || w->unasked;
    if (w->tls) {
        if (wefti_wire_secure(w, WEFTI_SIDE_DIALLER))
            wefti_dial_event(w); /* the first words are ours */
        return;
    }
    opened(w);
}

/* Begin with one address; false if it failed already. */
static bool attempt(sock_wire_t *w, const wefti_addr_t *a)
{
    w->fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (w->fd < 0) {
        attempt_failed(w, a, "no socket for", errno);
        return false;
    }
    if (w->has_source && w->source.ss.ss_family == a->ss.ss_family) {
        int on = 1;
        if (wefti_addr_port(&w->source))
            setsockopt(w->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(w->fd, (const void *)&w->source.ss, w->source.n)) {
            attempt_failed(w, &w->source, "cannot connect from", errno);
            return false;
        }
    } else if (w->has_source) {
        attempt_failed(w, a, "the source address is of another family than", EADDRNOTAVAIL);
        return false;
    }
    wefti_wire_socket_options(w->fd, a->ss.ss_family);
    int rc = connect(w->fd, (const void *)&a->ss, a->n);
    int err = rc ? errno : 0;
    if (err == EAGAIN && a->ss.ss_family == AF_UNIX) {
        /* The listener's queue is full. The kernel has no event for when it is not. */
        uint64_t now = wefti_clock_ns();
        if (!w->retry_until)
            w->retry_until = now + UNIX_RETRY_NS;
        close(w->fd);
        w->fd = -1;
        if (now >= w->retry_until) {
            attempt_failed(w, a, "connect to", ECONNREFUSED);
            return false;
        }
        w->next_addr--;
        w->retry = true;
        wefti_list_push_back(&w->sock->todo, &w->todo_link);
        return true;
    }
    if (err && err != EINPROGRESS) {
        attempt_failed(w, a, "connect to", err);
        return false;
    }
    /* Also when it is connected already: being told is for progress. */
    if (wefti_sock_watch(w->sock, w->fd, &w->watch, EPOLLOUT)) {
        attempt_failed(w, a, "cannot watch the connect to", ENFILE);
        return false;
    }
    w->events = EPOLLOUT;
    return true;
}

void wefti_dial_next(sock_wire_t *w)
{
    w->state = WIRE_CONNECTING;
    while (w->next_addr < w->addrs.n) {
        if (attempt(w, &w->addrs.at[w->next_addr++]))
            return;
    }
    wefti_wire_end(w, w->last ? w->last : WEFT_ERR_ADDRESS);
}

static void resolved(sock_wire_t *w)
{
    const struct addrinfo *found;
    weft_status_t st = wefti_lookup_result(w->job, &found);
    if (st == WEFT_ERR_AGAIN)
        return;
    if (!st)
        st = wefti_addrs_from(found, w->port, &w->addrs);
    wefti_sock_unwatch(w->sock, wefti_lookup_fd(w->job));
    wefti_lookup_drop(w->job);
    w->job = NULL;
    if (st)
        wefti_wire_end(w, st);
    else
        wefti_dial_next(w);
}

void wefti_dial_event(sock_wire_t *w)
{
    if (w->state == WIRE_RESOLVING) {
        resolved(w);
        return;
    }
    if (w->state == WIRE_SECURING) {
        if (wefti_wire_shake(w))
            opened(w);
        return;
    }
    int err = 0;
    socklen_t n = sizeof err;
    if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &err, &n))
        err = errno;
    if (!err && connected_to_itself(w->fd))
        err = ECONNREFUSED;
    if (!err) {
        connected(w);
        return;
    }
    attempt_failed(w, &w->addrs.at[w->next_addr - 1], "connect to", err);
    wefti_dial_next(w);
}

static weft_status_t dial_name(sock_wire_t *w, const char *host)
{
    weft_status_t st = wefti_lookup_start(host, &w->job);
    if (st)
        return st;
    w->state = WIRE_RESOLVING;
    return wefti_sock_watch(w->sock, wefti_lookup_fd(w->job), &w->watch, EPOLLIN);
}

weft_status_t wefti_sock_wire_dial(wefti_sock_t *s, const wefti_uri_t *uri, wefti_guard_t *guard, const char *source, void *user,
                                   wefti_wire_t **wire_out)
{
    sock_wire_t *w = wefti_wire_new(s);
    *s->look_now = true;
    if (!w)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a wire");
    weft_status_t st = WEFT_OK;
    w->base.user = user;
    w->port = uri->port;
    w->guard = wefti_guard_keep(guard);
    w->dialled = true;
    w->tls = uri->scheme == WEFTI_URI_TLS;
    w->base.guarded = wefti_guard_demands(wefti_wire_guard(w));
    if (w->tls || (w->base.guarded && uri->scheme != WEFTI_URI_UNIX)) {
        w->host = wefti_strdup(uri->host);
        st = w->host ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for a wire");
    }
    if (!st && w->tls)
        st = wefti_guard_ready(wefti_wire_guard(w));
    if (uri->scheme == WEFTI_URI_UNIX) {
        st = wefti_addr_unix(uri->host, &w->addrs);
    } else if (!st) {
        if (source && *source) {
            st = wefti_addr_source(source, &w->source);
            w->has_source = !st;
        }
        if (!st && !uri->port)
            st = wefti_fail(WEFT_ERR_INVALID, "\"%s\" cannot be dialled at port 0", uri->host);
        if (!st)
            st = wefti_addr_numeric(uri->host, uri->port, &w->addrs);
        if (st == WEFT_ERR_NOTFOUND)
            st = dial_name(w, uri->host);
    }
    if (st) {
        wefti_wire_kill(w);
        return st;
    }
    if (w->addrs.n)
        wefti_dial_next(w);
    *wire_out = &w->base;
    return WEFT_OK;
}
