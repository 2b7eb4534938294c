/* fabric/tcp/port.c - where the transport listens, and strangers until they have proved to be a lane's peer.
 *
 * With all devices allowed there is one socket for every address of the machine; with WEFT_INTERFACES there is one for each
 * address of those devices and none elsewhere. They are opened with the first lane and stay until the transport closes.
 *
 * Whoever connects is a STRANGER: it gets a challenge, and TP_GREETING_N bytes are read of it (greet.c). One that does not prove
 * to be the peer of a lane is closed; one whose lane does not know its peer yet waits until it does. There are at most
 * max_strangers of them, and none stays longer than STRANGER_NS. When there are so many, an old one goes for the newest: the
 * oldest of the newest's own address, if that has more than half of the places, else the oldest of all. So a flood of
 * connections does not keep others out.
 *
 * Out of descriptors, a newcomer gets one of those that lanes without a connection keep for it; if there is none, it is accepted
 * on the spare one and closed; if there is not even that, the listeners leave epoll for PAUSE_NS, since they would be ready all
 * the time. tests/wire/fabric_tcp_hostile.c, tests/fault/conn_fds.c. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/addr.h"
#include "fabric/tcp/internal.h"

#define STRANGER_NS 5000000000u
#define PAUSE_NS 100000000u
#define ACCEPTS 32 /* in a row */

/* --- addresses ---------------------------------------------------------------------------------------------------- */

static bool device_allowed(const tp_transport_t *r, const char *name)
{
    size_t n = strlen(name);
    if (!r->devices)
        return true;
    for (const char *at = r->devices; *at;) {
        at += strspn(at, " \t");
        size_t len = strcspn(at, ","), word = len;
        while (word && (at[word - 1] == ' ' || at[word - 1] == '\t'))
            word--;
        if (word == n && !memcmp(at, name, n))
            return true;
        at += len + (at[len] == ',');
    }
    return false;
}

/* Ours, as IPv6 (IPv4 mapped); loopback only where it was named or there is nothing else. */
static unsigned local_addresses(const tp_transport_t *r, tp_peer_addr_t *out)
{
    struct ifaddrs *list;
    unsigned n = 0;
    if (getifaddrs(&list))
        return 0;
    for (unsigned loopback = 0; loopback <= IFF_LOOPBACK && !n; loopback += IFF_LOOPBACK) {
        for (struct ifaddrs *it = list; it && n < TP_ADDRS; it = it->ifa_next) {
            struct in6_addr *ip = &out[n].ip;
            if (!it->ifa_addr || !(it->ifa_flags & IFF_UP) || (it->ifa_flags & IFF_LOOPBACK) != loopback ||
                !device_allowed(r, it->ifa_name))
                continue;
            if (it->ifa_addr->sa_family == AF_INET) {
                memset(ip, 0, sizeof *ip);
                ip->s6_addr[10] = ip->s6_addr[11] = 0xff;
                memcpy(&ip->s6_addr[12], &((struct sockaddr_in *)(void *)it->ifa_addr)->sin_addr, 4);
                n++;
            } else if (it->ifa_addr->sa_family == AF_INET6) {
                /* Link-local addresses mean nothing to a peer without its own name for the link. */
                const struct in6_addr *a = &((struct sockaddr_in6 *)(void *)it->ifa_addr)->sin6_addr;
                if (IN6_IS_ADDR_LINKLOCAL(a))
                    continue;
                *ip = *a;
                n++;
            }
        }
    }
    freeifaddrs(list);
    return n;
}

/* An IPv4 address as itself, where the machine may have no IPv6. */
socklen_t wefti_tp_sockaddr(const tp_peer_addr_t *a, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (IN6_IS_ADDR_V4MAPPED(&a->ip)) {
        struct sockaddr_in *in = (void *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons(a->port);
        memcpy(&in->sin_addr, &a->ip.s6_addr[12], 4);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = (void *)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(a->port);
    in6->sin6_addr = a->ip;
    return sizeof *in6;
}

/* --- listening ---------------------------------------------------------------------------------------------------- */

/* Listen at one address, which has a port then. False: errno. */
static bool listen_at(tp_transport_t *r, tp_port_t *p, wefti_addr_t *a)
{
    tp_conn_t *c = &p->listeners[p->n_listeners];
    *c = (tp_conn_t){.transport = r, .listener = true, .fd = wefti_addr_listen(a, SOMAXCONN, false, false)};
    c->tls = p == &r->ports[1];
    if (c->fd < 0)
        return false;
    wefti_tp_watch(c, EPOLLIN);
    if (!c->events) {
        int why = errno;
        close(c->fd);
        errno = why;
        return false;
    }
    p->n_listeners++;
    return true;
}

static bool listen_everywhere(tp_transport_t *r, tp_port_t *p)
{
    wefti_addr_t any = {.ss.ss_family = AF_INET6, .n = sizeof(struct sockaddr_in6)};
    if (!listen_at(r, p, &any)) {
        if (errno == EMFILE || errno == ENFILE)
            return false;
        any = (wefti_addr_t){.ss.ss_family = AF_INET, .n = sizeof(struct sockaddr_in)}; /* a machine without IPv6 */
        if (!listen_at(r, p, &any))
            return false;
    }
    for (unsigned i = 0; i < p->n_addrs; i++)
        p->addrs[i].port = wefti_addr_port(&any);
    return true;
}

static bool listen_at_each(tp_transport_t *r, tp_port_t *p)
{
    unsigned n = 0;
    for (unsigned i = 0; i < p->n_addrs; i++) {
        wefti_addr_t a;
        a.n = wefti_tp_sockaddr(&p->addrs[i], &a.ss);
        if (listen_at(r, p, &a)) {
            p->addrs[n].ip = p->addrs[i].ip;
            p->addrs[n++].port = wefti_addr_port(&a);
        } else if (errno == EMFILE || errno == ENFILE) {
            return false;
        } /* else it may be an address the kernel has not finished with: without it, then */
    }
    p->n_addrs = n;
    return n;
}

static void close_listeners(tp_port_t *p)
{
    while (p->n_listeners) {
        tp_conn_t *c = &p->listeners[--p->n_listeners];
        close(c->fd);
        c->fd = -1;
    }
}

weft_status_t wefti_tp_listen(tp_transport_t *r, bool tls)
{
    tp_port_t *p = &r->ports[tls];
    if (p->n_listeners)
        return WEFT_OK;
    p->n_addrs = local_addresses(r, p->addrs);
    if (!p->n_addrs)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "no network device is up with an address (WEFT_INTERFACES is \"%s\")",
                          r->devices ? r->devices : "all");
    if (r->devices ? listen_at_each(r, p) : listen_everywhere(r, p))
        return WEFT_OK;
    int err = errno;
    close_listeners(p);
    return wefti_fail(wefti_errno_limit(err, WEFT_ERR_SYSTEM), "no port for connections over TCP: %s", strerror(err));
}

/* --- strangers ---------------------------------------------------------------------------------------------------- */

static void pause_listeners(tp_transport_t *r)
{
    for (int k = 0; k < 2; k++)
        for (unsigned i = 0; i < r->ports[k].n_listeners; i++)
            wefti_tp_watch(&r->ports[k].listeners[i], 0);
    r->paused_until = wefti_clock_ns() + PAUSE_NS;
    wefti_tp_timer(r, r->paused_until);
}

void wefti_tp_resume(tp_transport_t *r)
{
    r->paused_until = 0;
    if (r->spare_fd < 0)
        r->spare_fd = fcntl(r->base.fd, F_DUPFD_CLOEXEC, 0);
    for (int k = 0; k < 2; k++)
        for (unsigned i = 0; i < r->ports[k].n_listeners; i++)
            wefti_tp_watch(&r->ports[k].listeners[i], EPOLLIN);
}

/* No descriptors: true when the newcomer has another chance. */
static bool make_way(tp_conn_t *listener)
{
    tp_transport_t *r = listener->transport;
    wefti_list_t *it = wefti_list_first(&r->reserved);
    if (it) {
        wefti_tp_release_reserve(wefti_container_of(it, tp_lane_t, reserve_link));
        return true;
    }
    if (r->spare_fd >= 0) {
        wefti_addr_t from;
        close(r->spare_fd);
        int fd = wefti_addr_accept(listener->fd, SOCK_CLOEXEC, &from);
        if (fd >= 0)
            close(fd);
    }
    r->spare_fd = fcntl(r->base.fd, F_DUPFD_CLOEXEC, 0);
    if (r->spare_fd < 0)
        pause_listeners(r);
    return r->spare_fd >= 0;
}

/* There is no place for one more from this address: who goes? */
static tp_conn_t *in_excess(tp_transport_t *r, uint64_t source)
{
    tp_conn_t *oldest = NULL;
    unsigned n = 0;
    wefti_list_each(it, &r->strangers) {
        tp_conn_t *c = wefti_container_of(it, tp_conn_t, link);
        if (c->source != source)
            continue;
        oldest = oldest ? oldest : c;
        n++;
    }
    return n > r->max_strangers / 2 ? oldest : wefti_container_of(wefti_list_first(&r->strangers), tp_conn_t, link);
}

void wefti_tp_accept(tp_conn_t *listener)
{
    tp_transport_t *r = listener->transport;
    for (int i = 0; i < ACCEPTS; i++) {
        wefti_addr_t from;
        int fd = wefti_addr_accept(listener->fd, SOCK_NONBLOCK | SOCK_CLOEXEC, &from);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return;
            if ((errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) && !make_way(listener))
                return;
            continue; /* the newcomer has gone (ECONNABORTED and its like), or there is a descriptor now */
        }
        uint64_t source = wefti_addr_group(&from, fd);
        if (r->n_strangers >= r->max_strangers)
            wefti_tp_conn_drop(in_excess(r, source));
        tp_conn_t *c = wefti_tp_conn_new(r, fd, TP_STRANGER);
        if (!c)
            continue;
        wefti_tp_options(fd);
        c->source = source;
        c->deadline = wefti_clock_ns() + STRANGER_NS;
        wefti_tp_timer(r, c->deadline);
        if (listener->tls ? wefti_tp_secure(c) : wefti_tp_say_challenge(c))
            wefti_tp_watch(c, EPOLLIN);
        else
            wefti_tp_conn_drop(c);
    }
}

static tp_lane_t *lane_greeted(tp_conn_t *c)
{
    uint64_t id;
    memcpy(&id, c->in + 8, 8);
    return wefti_slots_get(&c->transport->lanes, id);
}

void wefti_tp_stranger_spoke(tp_conn_t *c)
{
    if (c->shaking) {
        weft_status_t st = wefti_tp_shake(c);
        if (st == WEFT_ERR_AGAIN)
            return;
        if (st || !wefti_tp_say_challenge(c)) {
            wefti_debug("tcp: a connection that is no lane's is closed: %s", weft_last_error());
            wefti_tp_conn_drop(c);
            return;
        }
    }
    if (!wefti_tp_read_in(c, TP_GREETING_N)) {
        if (c->in_n == SIZE_MAX) /* also when it said more while its lane does not know its peer: it waits for our answer */
            wefti_tp_conn_drop(c);
        return;
    }
    tp_lane_t *l = lane_greeted(c);
    if (l && l->state == TP_LANE_NEW)
        return;
    if (!l || !wefti_tp_greeting_good(l, c) || (l->only_here && !wefti_addr_is_here(c->fd))) {
        wefti_debug("tcp: a connection that is no lane's is closed");
        wefti_tp_conn_drop(c);
    } else if (c->bulk) {
        wefti_tp_bulk_arrived(l, c);
    } else {
        wefti_tp_arrived(l, c);
    }
}

tp_conn_t *wefti_tp_early_bird(tp_lane_t *l)
{
    tp_conn_t *found = NULL;
    wefti_list_each_safe(it, &l->transport->strangers) {
        tp_conn_t *c = wefti_container_of(it, tp_conn_t, link);
        if (c->in_n != TP_GREETING_N || lane_greeted(c) != l)
            continue;
        if (!found && wefti_tp_greeting_good(l, c) && !c->bulk)
            found = c;
        else
            wefti_tp_conn_drop(c);
    }
    return found;
}
