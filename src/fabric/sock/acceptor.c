/* fabric/sock/acceptor.c - listening and accepting.
 *
 * An acceptor has one listener per bound address, all on one port. A listener is in epoll, or PAUSED: when the process has no
 * descriptors left, not even the spare one, a listener in epoll would be ready all the time, so it is taken out for a tenth of a
 * second. A timer ends the pause: in a program that only listens and sleeps, there may be no other event. The timer is opened
 * with the first acceptor, since there is no descriptor for it when it is needed.
 *
 * With no descriptors left conn is asked to let go of a wire that has proved nothing. If it has none, a newcomer is accepted on
 * the spare descriptor and closed at once: it learns that it was turned away, and the queue empties. tests/fault/conn_flood.c,
 * tests/wire/fabric_sock.c: descriptors_exhausted_turn_newcomers_away_and_nothing_spins,
 * a_listener_that_paused_wakes_who_sleeps. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/sock/internal.h"

#define ACCEPTS_PER_EVENT 32
#define PAUSE_NS 100000000u
#define SAY_NS 1000000000u
#define PORT_TRIES 16

struct wefti_acceptor {
    wefti_sock_t *sock;
    void *user;
    wefti_list_t link;
    wefti_list_t listeners;
    bool tls;
    wefti_guard_t *guard; /* its share; NULL: the runtime's */
    char *uris;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* a Unix path to remove, and which file it was */
    dev_t dev;
    ino_t ino;
};

wefti_acceptor_t *wefti_acceptor_of_link(wefti_list_t *link)
{
    return wefti_container_of(link, wefti_acceptor_t, link);
}

/* --- accepting ---------------------------------------------------------------------------------------------------- */

static void pause_over(wefti_watch_t *watch, uint32_t events)
{
    wefti_sock_t *s = wefti_container_of(watch, wefti_sock_t, pause_watch);
    uint64_t count;
    (void)events;
    ssize_t n = read(s->pause_fd, &count, sizeof count);
    (void)n; /* the sweep after this batch looks at the clock */
}

static weft_status_t open_pause(wefti_sock_t *s)
{
    if (s->pause_fd >= 0)
        return WEFT_OK;
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0)
        return wefti_fail(wefti_errno_status(errno), "no timer for listeners: %s", strerror(errno));
    s->pause_watch.fn = pause_over;
    weft_status_t st = wefti_sock_watch(s, fd, &s->pause_watch, EPOLLIN);
    if (st) {
        close(fd);
        return st;
    }
    s->pause_fd = fd;
    return WEFT_OK;
}

static void pause_from_now(wefti_sock_t *s)
{
    uint64_t at = wefti_clock_ns() + PAUSE_NS;
    struct itimerspec its = {.it_value = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)}};
    s->paused_until = at;
    timerfd_settime(s->pause_fd, TFD_TIMER_ABSTIME, &its, NULL);
}

static void pause_listener(sock_listener_t *l)
{
    wefti_sock_t *s = l->acceptor->sock;
    wefti_sock_unwatch(s, l->fd);
    l->paused = true;
    pause_from_now(s);
}

/* No descriptors left: turn one newcomer away with the spare one. */
static void turn_away(sock_listener_t *l, int err)
{
    wefti_sock_t *s = l->acceptor->sock;
    uint64_t now = wefti_clock_ns();
    if (!s->spare_said || now - s->spare_said >= SAY_NS) {
        s->spare_said = now;
        wefti_warn("sock: a newcomer is turned away: %s", strerror(err));
    }
    if (s->spare_fd >= 0) {
        wefti_addr_t from;
        close(s->spare_fd);
        int fd = wefti_addr_accept(l->fd, SOCK_CLOEXEC, &from);
        if (fd >= 0)
            close(fd);
    }
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->spare_fd < 0)
        pause_listener(l);
}

/* Listeners that were taken out of epoll go back; if there are still no descriptors they will be back here soon. */
void wefti_acceptor_resume(wefti_sock_t *s)
{
    if (s->spare_fd < 0)
        s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool left = false;
    wefti_list_each(pit, &s->acceptors) {
        wefti_acceptor_t *acceptor = wefti_acceptor_of_link(pit);
        wefti_list_each(it, &acceptor->listeners) {
            sock_listener_t *l = wefti_container_of(it, sock_listener_t, link);
            if (l->paused && !wefti_sock_watch(s, l->fd, &l->watch, EPOLLIN))
                l->paused = false;
            left = left || l->paused;
        }
    }
    s->paused_until = 0;
    if (left)
        pause_from_now(s);
}

static void accepted(sock_listener_t *l, int fd, const wefti_addr_t *from)
{
    wefti_acceptor_t *acceptor = l->acceptor;
    wefti_sock_t *s = acceptor->sock;
    const wefti_fabric_up_t *up = s->fabric->up;
    char text[WEFTI_ADDR_TEXT];
    wefti_wire_t *wire;
    wefti_wire_socket_options(fd, from->ss.ss_family);
    uint64_t source = wefti_addr_group(from, fd);
    if (from->ss.ss_family == AF_UNIX)
        snprintf(text, sizeof text, "%s", acceptor->uris); /* who dials a Unix socket has no name of its own */
    else
        wefti_addr_text(from, text, sizeof text);
    const wefti_guard_t *g = acceptor->guard ? acceptor->guard : s->guard;
    if (from->ss.ss_family == AF_UNIX && wefti_wire_turn_away(fd, g))
        return;
    wefti_loose_t loose = {.fd = fd, .tls = acceptor->tls, .guard = wefti_guard_keep(acceptor->guard)};
    if (!loose.tls && from->ss.ss_family != AF_UNIX && wefti_guard_demands(g)) {
        loose.tls = true;
        loose.either = !wefti_guard_demands_here(g) && wefti_addr_is_here(fd);
        loose.unasked = !loose.either;
    }
    if (up->wire_elsewhere && up->wire_elsewhere(acceptor->user, &loose, source, text))
        return;
    if (!wefti_sock_wire_adopt(s, &loose, source, &wire))
        up->wire_accepted(acceptor->user, wire, text);
}

static void listener_event(wefti_watch_t *watch, uint32_t events)
{
    sock_listener_t *l = wefti_container_of(watch, sock_listener_t, watch);
    (void)events;
    /* The upcall may close the acceptor: then l->acceptor is NULL, and l itself stays until the sweep. */
    for (int i = 0; i < ACCEPTS_PER_EVENT && l->acceptor && !l->paused; i++) {
        wefti_addr_t from;
        int fd = wefti_addr_accept(l->fd, SOCK_NONBLOCK | SOCK_CLOEXEC, &from);
        if (fd >= 0) {
            accepted(l, fd, &from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            int err = errno;
            const wefti_fabric_up_t *up = l->acceptor->sock->fabric->up;
            if (!up->make_way || !up->make_way(l->acceptor->user))
                turn_away(l, err);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } /* else the newcomer has gone (ECONNABORTED and its like): on to the next */
    }
}

/* --- binding ------------------------------------------------------------------------------------------------------ */

static weft_status_t bind_failed(const wefti_addr_t *a, int err)
{
    char text[WEFTI_ADDR_TEXT];
    wefti_addr_text(a, text, sizeof text);
    weft_status_t st = wefti_errno_status(err);
    if (st != WEFT_ERR_LIMIT && st != WEFT_ERR_NOMEM)
        st = WEFT_ERR_ADDRESS;
    return wefti_fail(st, "cannot listen at %s: %s", text, strerror(err));
}

/* Bind and listen at one address, which then has its real port. *err_out: errno of a failure. */
static weft_status_t listen_at(wefti_acceptor_t *acceptor, wefti_addr_t *a, unsigned backlog, int *err_out)
{
    sock_listener_t *l = wefti_calloc(1, sizeof *l);
    *err_out = 0;
    if (!l)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a listener");
    l->watch.fn = listener_event;
    l->acceptor = acceptor;
    l->fd = wefti_addr_listen(a, backlog > 65535 ? 65535 : (int)backlog, a->ss.ss_family != AF_UNIX, true);
    if (l->fd < 0) {
        *err_out = errno;
        wefti_free(l);
        return bind_failed(a, *err_out);
    }
    weft_status_t st = wefti_sock_watch(acceptor->sock, l->fd, &l->watch, EPOLLIN);
    if (st) {
        close(l->fd);
        wefti_free(l);
        return st;
    }
    wefti_list_push_back(&acceptor->listeners, &l->link);
    return WEFT_OK;
}

static void close_listeners(wefti_acceptor_t *acceptor)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&acceptor->listeners))) {
        sock_listener_t *l = wefti_container_of(it, sock_listener_t, link);
        l->acceptor = NULL;
        wefti_sock_close_fd(acceptor->sock, l->fd);
        wefti_list_push_back(&acceptor->sock->dead_listeners, &l->link);
    }
}

/* All addresses on one port. With port 0 the first bind chooses; if the others cannot have that one, another is chosen. */
static weft_status_t listen_all(wefti_acceptor_t *acceptor, wefti_addrs_t *addrs, uint16_t port, unsigned backlog)
{
    for (int attempt = 1;; attempt++) {
        uint16_t chosen = port;
        weft_status_t st = WEFT_OK;
        int err = 0;
        for (size_t i = 0; i < addrs->n && !st; i++) {
            wefti_addr_set_port(&addrs->at[i], chosen);
            st = listen_at(acceptor, &addrs->at[i], backlog, &err);
            if (!st && !chosen)
                chosen = wefti_addr_port(&addrs->at[i]);
        }
        if (!st)
            return WEFT_OK;
        close_listeners(acceptor);
        if (port || err != EADDRINUSE || attempt >= PORT_TRIES)
            return st;
    }
}

/* The addresses of a network device; none found: WEFT_ERR_NOTFOUND. */
static weft_status_t device_addrs(const char *device, wefti_addrs_t *out)
{
    struct ifaddrs *list;
    weft_status_t st = WEFT_OK;
    *out = (wefti_addrs_t){0};
    if (getifaddrs(&list))
        return wefti_fail(wefti_errno_status(errno), "cannot list the network devices: %s", strerror(errno));
    for (struct ifaddrs *it = list; it && !st; it = it->ifa_next) {
        if (!it->ifa_addr || strcmp(it->ifa_name, device))
            continue;
        bool ipv4 = it->ifa_addr->sa_family == AF_INET;
        if (!ipv4 && it->ifa_addr->sa_family != AF_INET6)
            continue;
        /* A link-local address means nothing in a URI without its scope, and cannot be bound while the kernel still probes for
         * it. */
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)it->ifa_addr;
        if (ipv4 || !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
            st = wefti_addrs_add(out, it->ifa_addr, ipv4 ? sizeof(struct sockaddr_in) : sizeof *in6);
    }
    freeifaddrs(list);
    return st || out->n ? st : WEFT_ERR_NOTFOUND;
}

/* Listening is set up before there is anything to be late for, so a name may be looked up on the spot here. */
static weft_status_t name_addrs(const char *host, uint16_t port, wefti_addrs_t *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *ai;
    int rc = getaddrinfo(host, NULL, &hints, &ai);
    if (rc)
        return wefti_fail(rc == EAI_MEMORY ? WEFT_ERR_NOMEM : WEFT_ERR_ADDRESS,
                          "\"%s\" is no address, device or name of this machine: %s", host, gai_strerror(rc));
    weft_status_t st = wefti_addrs_from(ai, port, out);
    freeaddrinfo(ai);
    return st;
}

static weft_status_t tcp_addrs(const wefti_uri_t *uri, wefti_addrs_t *out)
{
    weft_status_t st = wefti_addr_numeric(uri->host, uri->port, out);
    if (st == WEFT_ERR_NOTFOUND)
        st = device_addrs(uri->host, out);
    if (st == WEFT_ERR_NOTFOUND) {
        if (if_nametoindex(uri->host))
            return wefti_fail(WEFT_ERR_ADDRESS, "the device \"%s\" has no address", uri->host);
        st = name_addrs(uri->host, uri->port, out);
    }
    return st;
}

/* Is this path a socket that nobody answers on? */
static bool stale(const wefti_addr_t *a, const char *path)
{
    struct stat sb;
    if (lstat(path, &sb) || !S_ISSOCK(sb.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool dead = connect(fd, (const void *)&a->ss, a->n) && errno == ECONNREFUSED;
    close(fd);
    return dead;
}

static weft_status_t listen_unix(wefti_acceptor_t *acceptor, const char *path, unsigned backlog, wefti_addrs_t *addrs)
{
    int err;
    struct stat sb;
    weft_status_t st = wefti_addr_unix(path, addrs);
    if (st)
        return st;
    wefti_addr_t *a = addrs->at;
    st = listen_at(acceptor, a, backlog, &err);
    if (st && err == EADDRINUSE && path[0] != '@' && stale(a, path)) {
        wefti_info("sock: %s is left from a process that is gone, and is replaced", path);
        unlink(path);
        st = listen_at(acceptor, a, backlog, &err);
    }
    if (!st && path[0] != '@' && !lstat(path, &sb)) {
        memcpy(acceptor->path, path, strlen(path) + 1); /* wefti_addr_unix() has checked that it fits */
        acceptor->dev = sb.st_dev;
        acceptor->ino = sb.st_ino;
    }
    return st;
}

/* At tcp:// those from elsewhere may need TLS, or all: will there be one? */
static weft_status_t check_guard(wefti_guard_t *g, const wefti_addrs_t *addrs)
{
    bool needed = wefti_guard_demands_here(g);
    for (size_t i = 0; i < addrs->n; i++)
        needed = needed || !wefti_addr_is_loopback(&addrs->at[i]);
    return needed && wefti_guard_demands(g) ? wefti_guard_check(g) : WEFT_OK;
}

static char *join_uris(const wefti_addrs_t *addrs, bool tls)
{
    char *text = wefti_calloc(addrs->n, WEFTI_ADDR_TEXT + 1), *at = text;
    for (size_t i = 0; text && i < addrs->n; i++) {
        if (i)
            *at++ = ',';
        wefti_addr_text(&addrs->at[i], at, WEFTI_ADDR_TEXT);
        if (tls) { /* of tcp:// */
            at[1] = 'l';
            at[2] = 's';
        }
        at += strlen(at);
    }
    return text;
}

weft_status_t wefti_sock_acceptor_open(wefti_sock_t *s, const wefti_uri_t *uri, wefti_guard_t *guard, unsigned backlog,
                                       void *user, wefti_acceptor_t **acceptor_out)
{
    wefti_addrs_t addrs = {0};
    bool tls = uri->scheme == WEFTI_URI_TLS;
    weft_status_t st = open_pause(s);
    if (!st && tls)
        st = wefti_guard_ready(guard ? guard : s->guard);
    if (st)
        return st;
    wefti_acceptor_t *acceptor = wefti_calloc(1, sizeof *acceptor);
    if (!acceptor)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an acceptor");
    acceptor->sock = s;
    acceptor->user = user;
    acceptor->tls = tls;
    acceptor->guard = wefti_guard_keep(guard);
    wefti_list_init(&acceptor->listeners);
    wefti_list_push_back(&s->acceptors, &acceptor->link);
    if (!backlog)
        backlog = SOMAXCONN;
    if (uri->scheme == WEFTI_URI_UNIX) {
        st = listen_unix(acceptor, uri->host, backlog, &addrs);
    } else {
        st = tcp_addrs(uri, &addrs);
        if (!st)
            st = listen_all(acceptor, &addrs, uri->port, backlog);
    }
    if (!st && uri->scheme == WEFTI_URI_TCP)
        st = check_guard(guard ? guard : s->guard, &addrs);
    if (!st) {
        acceptor->uris = join_uris(&addrs, acceptor->tls);
        if (!acceptor->uris)
            st = wefti_fail(WEFT_ERR_NOMEM, "no memory for addresses as text");
    }
    wefti_free(addrs.at);
    if (st) {
        wefti_sock_acceptor_close(acceptor);
        return st;
    }
    *acceptor_out = acceptor;
    return WEFT_OK;
}

const char *wefti_sock_acceptor_uri(wefti_acceptor_t *acceptor)
{
    return acceptor->uris;
}

void wefti_sock_acceptor_close(wefti_acceptor_t *acceptor)
{
    struct stat sb;
    /* Only the file we made: another process may have taken its place, and a forked child leaves its parent's alone. */
    if (acceptor->path[0] && getpid() == acceptor->sock->pid && !lstat(acceptor->path, &sb) && sb.st_dev == acceptor->dev &&
        sb.st_ino == acceptor->ino)
        unlink(acceptor->path);
    close_listeners(acceptor);
    wefti_list_remove(&acceptor->link);
    wefti_guard_free(acceptor->guard);
    wefti_free(acceptor->uris);
    wefti_free(acceptor);
}
