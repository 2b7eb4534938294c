/* fabric/tcp/transport.c - progress, sleep, and everything the transport has to tell.
 *
 * A TCP transport of our own, because UCX's does what any stranger writes to its port (docs/design/security.md). Here a stranger
 * can send one greeting of fixed size, and only a peer that has proved who it is reaches in.c.
 *
 * The transport is CLOSED (no descriptors) until its first lane, then OPEN until it is closed.
 *
 * System calls cost the time here. So lanes on which records flow are hot, at most TP_HOT of them, and are tried with recv() on
 * every progress. All others are left to one epoll_wait() now and then: at once again while it finds something, else less and
 * less often. Every connection is in that epoll instance, level-triggered, except hot ones that have been so for a while, since
 * it costs something on every packet: those are put back before a sleep, or when they cool down.
 *
 * Upcalls: `record` and `announced` come while a lane is read; the rest is put on lists (ended, events) and told at the end of
 * progress. tests/wire/fabric_lanes.c and fabric_tcp.c hold the transport to fabric.h's promises. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/tcp/internal.h"

#define EVENTS 64
#define STUCK_TRIES 8 /* lanes whose socket was full, per progress */
#define TIMER_GRAIN_NS 10000000u
#define LOOK_FIRST (WEFTI_TICKS_US / 2) /* after a look that found nothing */
#define LOOK_IDLE WEFTI_TICKS_US
#define LOOK_BUSY (20 * WEFTI_TICKS_US)

void wefti_tp_fail(tp_lane_t *l, weft_status_t why, const char *what)
{
    if (l->half.failed || l->state >= TP_LANE_CLOSING)
        return;
    wefti_half_fail(&l->half, why, what);
    wefti_tp_cool(l);
    if (l->conn && l->conn->state == TP_UP)
        wefti_tp_watch(l->conn, 0); /* its end would be an event on every look */
}

/* --- hot lanes ---------------------------------------------------------------------------------------------------- */

/* Into epoll, where it is not. It says at once what has come meanwhile. */
static bool watch_again(tp_lane_t *l)
{
    l->warm = 0;
    if (!l->conn->events)
        wefti_tp_watch(l->conn, EPOLLIN);
    return l->conn->events;
}

void wefti_tp_cool(tp_lane_t *l)
{
    tp_transport_t *r = l->transport;
    if (!l->hot)
        return;
    l->hot = false;
    for (unsigned i = 0; i < r->n_hot; i++) {
        if (r->hot[i] == l) {
            r->hot[i] = r->hot[--r->n_hot];
            return;
        }
    }
}

void wefti_tp_heat(tp_lane_t *l)
{
    tp_transport_t *r = l->transport;
    l->quiet = 0;
    if (l->hot || l->half.failed || l->state != TP_LANE_UP)
        return;
    if (r->n_hot == TP_HOT) {
        tp_lane_t *quietest = r->hot[0];
        for (unsigned i = 1; i < TP_HOT; i++) {
            if (r->hot[i]->quiet > quietest->quiet)
                quietest = r->hot[i];
        }
        if (quietest->quiet < TP_HOT || !watch_again(quietest))
            return;
        wefti_tp_cool(quietest);
    }
    l->hot = true;
    l->warm = 0;
    r->hot[r->n_hot++] = l;
}

static unsigned poll_hot(tp_transport_t *r)
{
    unsigned n = 0;
    for (unsigned i = r->n_hot; i-- > 0;) {
        if (i >= r->n_hot)
            continue; /* an upcall has closed or failed others */
        tp_lane_t *l = r->hot[i];
        if (wefti_tp_read(l)) {
            l->quiet = 0;
            n++;
            if (++l->warm == TP_WARM && l->hot)
                wefti_tp_watch(l->conn, 0);
        } else if (++l->quiet > TP_QUIET && watch_again(l)) {
            wefti_tp_cool(l);
        }
    }
    return n;
}

/* --- deadlines ---------------------------------------------------------------------------------------------------- */

void wefti_tp_timer(tp_transport_t *r, uint64_t at)
{
    if (r->timer_at && r->timer_at <= at)
        return;
    r->timer_at = at;
    struct itimerspec its = {.it_value = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)}};
    timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &its, NULL);
}

static void sooner(uint64_t *next, uint64_t at)
{
    if (!*next || at < *next)
        *next = at;
}

static void run_timers(tp_transport_t *r)
{
    uint64_t count, now = wefti_clock_ns(), next = 0;
    ssize_t got = read(r->timer_fd, &count, sizeof count);
    (void)got; /* nothing to read: it was set anew meanwhile */
    r->timer_at = 0;
    if (r->paused_until && now >= r->paused_until)
        wefti_tp_resume(r);
    if (r->paused_until)
        sooner(&next, r->paused_until);
    wefti_list_each_safe(it, &r->dials) {
        tp_conn_t *c = wefti_container_of(it, tp_conn_t, link);
        if (now >= c->deadline)
            wefti_tp_dial_due(c);
    }
    wefti_list_each(it, &r->dials)
        sooner(&next, wefti_container_of(it, tp_conn_t, link)->deadline);
    uint64_t acks = wefti_tp_acks_look(r, now);
    if (acks)
        sooner(&next, acks);
    wefti_list_t *in_order[] = {&r->strangers, &r->lingers};
    for (int i = 0; i < 2; i++) {
        wefti_list_each_safe(it, in_order[i]) {
            tp_conn_t *c = wefti_container_of(it, tp_conn_t, link);
            if (now < c->deadline) {
                sooner(&next, c->deadline);
                break;
            }
            wefti_tp_conn_drop(c);
        }
    }
    if (next)
        wefti_tp_timer(r, next > now + TIMER_GRAIN_NS ? next : now + TIMER_GRAIN_NS);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static void lane_event(tp_lane_t *l, uint32_t events)
{
    if (events & EPOLLOUT) {
        wefti_tp_watch(l->conn, EPOLLIN);
        wefti_tp_flush(l);
    }
    if (events & (uint32_t)~EPOLLOUT && wefti_tp_read(l))
        wefti_tp_heat(l);
}

static void conn_event(tp_conn_t *c, uint32_t events)
{
    if (c->listener) {
        wefti_tp_accept(c);
        return;
    }
    switch (c->state) {
    case TP_DIALING:
    case TP_CALLING:
    case TP_GREETING:
        wefti_tp_dial_event(c);
        return;
    case TP_STRANGER:
        wefti_tp_stranger_spoke(c);
        return;
    case TP_HELD:
        wefti_tp_conn_drop(c); /* it waits for our answer: this is its end, or a lie */
        return;
    case TP_UP:
        if (c->bulk)
            wefti_tp_bulk_event(c);
        else
            lane_event(c->lane, events);
        return;
    case TP_LINGER:
        wefti_tp_linger_event(c);
        return;
    case TP_WAIT:
    case TP_DEAD:
        return;
    }
}

static unsigned look(tp_transport_t *r)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(r->base.fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr)
            conn_event(events[i].data.ptr, events[i].events);
        else
            run_timers(r);
    }
    return n > 0 ? (unsigned)n : 0;
}

/* Whoever is not hot, if it is time to look. */
static unsigned look_now_and_then(tp_transport_t *r, bool busy)
{
    uint64_t now = wefti_ticks(), most = busy ? LOOK_BUSY : LOOK_IDLE;
    if (now - r->looked < (r->look_wait < most ? r->look_wait : most))
        return 0;
    unsigned n = look(r);
    r->looked = now;
    r->look_wait = n ? 0 : r->look_wait ? r->look_wait * 2 : LOOK_FIRST;
    if (r->look_wait > LOOK_BUSY)
        r->look_wait = LOOK_BUSY;
    return n;
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

static void flush_open(tp_transport_t *r)
{
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &r->transfers.open);
    while ((it = wefti_list_pop(&now)))
        wefti_tp_flush(wefti_container_of(it, tp_lane_t, half.open_link));
}

static void flush_stuck(tp_transport_t *r)
{
    wefti_list_t *last = r->stuck.prev, *it;
    for (int i = 0; i < STUCK_TRIES && (it = wefti_list_pop(&r->stuck)); i++) {
        wefti_tp_flush(wefti_container_of(it, tp_lane_t, stuck_link));
        if (it == last)
            return;
    }
}

static void free_dead(tp_transport_t *r)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&r->dead)))
        wefti_free(wefti_container_of(it, tp_conn_t, link)); /* its stream went with its descriptor */
}

unsigned wefti_tcp_progress(wefti_transport_t *transport, bool busy)
{
    tp_transport_t *r = tp_transport(transport);
    unsigned n = 0;
    if (r->base.fd < 0)
        return 0;
    r->transfers.epoch++;
    if (!wefti_list_empty(&r->transfers.open))
        flush_open(r);
    if (__builtin_expect(!wefti_list_empty(&r->stuck), 0))
        flush_stuck(r);
    if (__builtin_expect(!wefti_list_empty(&r->more), 0))
        n += wefti_tp_read_more(r);
    if (r->n_hot)
        n += poll_hot(r);
    if (!wefti_list_empty(&r->bulk_busy))
        n += wefti_tp_bulk_run(r);
    if (r->n_lanes != r->n_hot || r->n_strangers || r->n_lingers)
        n += look_now_and_then(r, busy);
    if (__builtin_expect(wefti_transfers_to_tell(&r->transfers), 0))
        n += wefti_transfers_tell(&r->transfers) + wefti_events_tell(&r->transfers);
    /* Answers that the upcalls above gave, together. */
    if (!wefti_list_empty(&r->transfers.open))
        flush_open(r);
    if (__builtin_expect(!wefti_list_empty(&r->dead), 0))
        free_dead(r);
    r->transfers.epoch++; /* what comes after this call is alone again */
    return n;
}

unsigned wefti_tcp_events(wefti_transport_t *transport)
{
    tp_transport_t *r = tp_transport(transport);
    unsigned n = look(r);
    /* As after a progress: the next message of a program that drives only while it waits must not wait for one. */
    if (!wefti_list_empty(&r->transfers.open))
        flush_open(r);
    free_dead(r);
    r->transfers.epoch++;
    return n;
}

bool wefti_tcp_live(const wefti_transport_t *transport)
{
    const tp_transport_t *r = (const tp_transport_t *)(const void *)transport;
    return r->n_lanes || r->n_lingers || r->n_strangers;
}

weft_status_t wefti_tp_arm(wefti_transport_t *transport)
{
    tp_transport_t *r = tp_transport(transport);
    if (!wefti_list_empty(&r->transfers.open) || !wefti_list_empty(&r->more) || wefti_transfers_to_tell(&r->transfers) ||
        !wefti_tp_bulk_arm(r))
        return WEFT_ERR_AGAIN;
    for (unsigned i = 0; i < r->n_hot; i++) {
        if (!watch_again(r->hot[i]))
            return WEFT_ERR_AGAIN;
    }
    wefti_list_each(it, &r->stuck) {
        tp_lane_t *l = wefti_container_of(it, tp_lane_t, stuck_link);
        if (!l->half.failed && l->conn)
            wefti_tp_watch(l->conn, EPOLLIN | EPOLLOUT);
    }
    return WEFT_OK;
}

/* --- the transport ------------------------------------------------------------------------------------------------ */

void wefti_tp_close_fds(tp_transport_t *r)
{
    int *fds[] = {&r->spare_fd, &r->timer_fd, &r->base.fd};
    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

void wefti_tp_close(wefti_transport_t *transport)
{
    tp_transport_t *r = tp_transport(transport);
    wefti_list_t *lists[] = {&r->dials, &r->strangers, &r->lingers, &r->dead}, *it;
    for (int i = 0; i < 4; i++) {
        while ((it = wefti_list_pop(lists[i]))) {
            tp_conn_t *c = wefti_container_of(it, tp_conn_t, link);
            if (c->fd >= 0) /* and not out of epoll: in a forked child that is the parent's */
                close(c->fd);
            wefti_tp_stream_free(c->stream);
            wefti_free(c);
        }
    }
    for (int k = 0; k < 2; k++)
        for (unsigned i = 0; i < r->ports[k].n_listeners; i++)
            close(r->ports[k].listeners[i].fd);
    wefti_tp_close_fds(r);
    wefti_spares_free(&r->frames);
    wefti_spares_free(&r->buffers);
    wefti_slots_free(&r->lanes);
    wefti_transfers_free(&r->transfers);
    wefti_free(r->devices);
    wefti_free(r);
}

weft_status_t wefti_tcp_open(wefti_fabric_t *f, const wefti_config_t *config, wefti_guard_t *guard,
                             wefti_transport_t **transport_out)
{
    tp_transport_t *r = wefti_calloc(1, sizeof *r);
    bool all = !config->interfaces || !*config->interfaces || !strcmp(config->interfaces, "all");
    if (r && !all)
        r->devices = wefti_strdup(config->interfaces);
    if (!r || (!all && !r->devices)) {
        wefti_free(r);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a transport");
    }
    r->base = (wefti_transport_t){.ops = &wefti_tp_ops, .fabric = f, .kind = TP_KIND, .name = "tcp", .fd = -1};
    r->timer_fd = r->spare_fd = -1;
    r->guard = guard;
    r->sums = config->checksum && !strcmp(config->checksum, "on");
    wefti_slots_init(&r->lanes, UINT32_MAX - 1);
    wefti_transfers_init(&r->transfers, &wefti_tp_transfers);
    r->bound = config->heartbeat;
    wefti_list_t *lists[] = {&r->dials,   &r->strangers, &r->lingers,   &r->dead, &r->reserved,
                             &r->unacked, &r->stuck,     &r->bulk_busy, &r->more};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
    *transport_out = &r->base;
    return WEFT_OK;
}
