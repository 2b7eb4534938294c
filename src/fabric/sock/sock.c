/* fabric/sock/sock.c - the whole of sock: what is told and freed between two batches of events.
 *
 * A wire:  RESOLVING -> CONNECTING -> (SECURING ->) OPEN -> DEAD; accepted ones begin in OPEN, or with TLS in SECURING. An
 *          error sets w->end and puts the wire on the todo list; sweep makes the upcall and kills it. wire_close() kills it at
 *          once. A DEAD wire has no fd and no upcalls; the sweep after the batch in which it died frees it.
 *
 * Upcalls come from event functions and from sweep, which only progress calls. tests/wire/fabric_sock.c holds us to this. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/sock/internal.h"

weft_status_t wefti_sock_open(wefti_fabric_t *f, int epoll_fd, bool *look_now, wefti_guard_t *guard, wefti_sock_t **sock_out)
{
    wefti_sock_t *s = wefti_malloc(sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for sockets");
    memset(s, 0, offsetof(wefti_sock_t, scratch)); /* the rest is touched when it is used */
    s->fabric = f;
    s->guard = guard;
    s->epoll_fd = epoll_fd;
    s->look_now = look_now;
    s->pid = getpid();
    s->pause_fd = -1;
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->spare_fd < 0) {
        int err = errno;
        wefti_free(s);
        return wefti_fail(wefti_errno_status(err), "no spare descriptor");
    }
    wefti_list_init(&s->wires);
    wefti_list_init(&s->acceptors);
    wefti_list_init(&s->todo);
    wefti_list_init(&s->dead);
    wefti_list_init(&s->dead_listeners);
    *sock_out = s;
    return WEFT_OK;
}

weft_status_t wefti_sock_watch(wefti_sock_t *s, int fd, wefti_watch_t *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev))
        return wefti_fail(wefti_errno_status(errno), "epoll takes no more descriptors");
    return WEFT_OK;
}

/* Closing a descriptor is not enough: a resolver's thread or a forked child may have the same file, and epoll watches files. In
 * the forked child itself, though, the epoll instance is the parent's, and its list is not ours to change. */
void wefti_sock_unwatch(wefti_sock_t *s, int fd)
{
    if (getpid() == s->pid)
        epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void wefti_sock_close_fd(wefti_sock_t *s, int fd)
{
    if (fd < 0)
        return;
    wefti_sock_unwatch(s, fd);
    close(fd);
}

void wefti_wire_want(sock_wire_t *w, uint32_t events)
{
    if (w->events == events || w->fd < 0)
        return;
    struct epoll_event ev = {.events = events, .data.ptr = &w->watch};
    if (!epoll_ctl(w->sock->epoll_fd, EPOLL_CTL_MOD, w->fd, &ev))
        w->events = events;
}

sock_wire_t *wefti_wire_new(wefti_sock_t *s)
{
    sock_wire_t *w = wefti_calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->base.fabric = s->fabric;
    w->watch.fn = wefti_wire_event;
    w->sock = s;
    w->fd = -1;
    wefti_list_init(&w->todo_link);
    wefti_list_init(&w->beat_link);
    wefti_list_push_back(&s->wires, &w->link);
    return w;
}

void wefti_wire_end(sock_wire_t *w, weft_status_t why)
{
    if (w->end || w->state == WIRE_DEAD)
        return;
    w->end = why;
    wefti_beat_lock(w);
    if (!w->verdict)
        w->verdict = why; /* the thread leaves it alone from here on */
    wefti_wire_want(w, 0);
    wefti_beat_unlock(w);
    if (!wefti_list_linked(&w->todo_link))
        wefti_list_push_back(&w->sock->todo, &w->todo_link);
}

void wefti_wire_kill(sock_wire_t *w)
{
    if (w->state == WIRE_DEAD)
        return;
    w->state = WIRE_DEAD;
    if (w->job) {
        wefti_sock_unwatch(w->sock, wefti_lookup_fd(w->job));
        wefti_lookup_drop(w->job);
    }
    w->job = NULL;
    wefti_beat_stop(w);
    wefti_sock_close_fd(w->sock, w->fd);
    w->fd = -1;
    wefti_list_remove(&w->todo_link);
    wefti_list_remove(&w->link);
    wefti_list_push_back(&w->sock->dead, &w->link);
}

weft_status_t wefti_sock_wire_adopt(wefti_sock_t *s, const wefti_loose_t *loose, uint64_t source, wefti_wire_t **wire_out)
{
    sock_wire_t *w = wefti_wire_new(s);
    if (!w) {
        wefti_sock_wire_drop(loose);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a newcomer");
    }
    w->fd = loose->fd;
    w->guard = loose->guard;
    w->state = WIRE_OPEN;
    w->stream = w->base.stream = loose->stream;
    w->events = EPOLLIN;
    w->base.source = source;
    w->base.guarded = wefti_guard_demands(wefti_wire_guard(w));
    w->either = loose->either;
    w->unasked = loose->unasked;
    if (loose->tls && !loose->stream)
        w->state = WIRE_SECURING;
    weft_status_t st = wefti_sock_watch(s, w->fd, &w->watch, EPOLLIN);
    if (st) {
        wefti_wire_kill(w);
        return st;
    }
    *s->look_now = true;
    *wire_out = &w->base;
    return WEFT_OK;
}

bool wefti_sock_wire_release(wefti_wire_t *wire, wefti_loose_t *loose_out)
{
    sock_wire_t *w = wefti_container_of(wire, sock_wire_t, base);
    if (w->state != WIRE_OPEN || w->end || w->beats || w->out_n ||
        (w->stream && (w->stream->waits || wefti_stream_has(w->stream))))
        return false;
    *loose_out = (wefti_loose_t){.fd = w->fd, .tls = w->stream, .stream = w->stream, .guard = w->guard};
    wefti_sock_unwatch(w->sock, w->fd);
    w->fd = -1;
    w->stream = w->base.stream = NULL;
    w->guard = NULL;
    wefti_wire_kill(w);
    return true;
}

void wefti_sock_wire_drop(const wefti_loose_t *loose)
{
    wefti_stream_free(loose->stream);
    wefti_guard_free(loose->guard);
    close(loose->fd);
}

static void wire_free(sock_wire_t *w)
{
    wefti_free(w->addrs.at);
    wefti_stream_free(w->stream);
    wefti_guard_free(w->guard);
    wefti_free(w->said);
    wefti_free(w->host);
    wefti_free(w->in);
    wefti_free(w->out);
    wefti_free(w);
}

static void sweep_dead(wefti_sock_t *s)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&s->dead)))
        wire_free(wefti_container_of(it, sock_wire_t, link));
    while ((it = wefti_list_pop(&s->dead_listeners)))
        wefti_free(wefti_container_of(it, sock_listener_t, link));
}

bool wefti_sock_pending(const wefti_sock_t *s)
{
    return !wefti_list_empty(&s->todo) || !wefti_list_empty(&s->dead) || !wefti_list_empty(&s->dead_listeners);
}

unsigned wefti_sock_sweep(wefti_sock_t *s)
{
    unsigned n = 0;
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &s->todo);
    while ((it = wefti_list_pop(&now))) {
        sock_wire_t *w = wefti_container_of(it, sock_wire_t, todo_link);
        if (w->end) {
            weft_status_t why = w->end;
            void *user = w->base.user;
            wefti_wire_kill(w);
            if (w->said)
                wefti_fail(why, "%s", w->said);
            s->fabric->up->wire_closed(user, why);
            n++;
        } else if (w->retry) {
            w->retry = false;
            wefti_dial_next(w);
        }
    }
    if (s->paused_until && wefti_clock_ns() >= s->paused_until)
        wefti_acceptor_resume(s);
    sweep_dead(s);
    return n;
}

void wefti_sock_close(wefti_sock_t *s)
{
    wefti_list_t *it;
    while ((it = wefti_list_first(&s->wires)))
        wefti_wire_kill(wefti_container_of(it, sock_wire_t, link));
    while ((it = wefti_list_first(&s->acceptors)))
        wefti_sock_acceptor_close(wefti_acceptor_of_link(it));
    sweep_dead(s);
    wefti_beats_drop(s);
    wefti_sock_close_fd(s, s->pause_fd);
    if (s->spare_fd >= 0)
        close(s->spare_fd);
    wefti_free(s);
}
