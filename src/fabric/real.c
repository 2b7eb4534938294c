/* fabric/real.c - the fabric of this machine: sockets, and the transports for shared memory, TCP and UCX, behind one door.
 *
 * One epoll instance has every descriptor: the sockets, an eventfd for wake(), and the transports' own, which appear with their
 * first lane. It is also what a runtime sleeps on.
 *
 * A system call costs more than a message. So while messages flow, the sockets are polled every few milliseconds; when nothing
 * flows, every few hundred microseconds; and at once after a sleep, after a call that will have an answer soon (a dial, a send
 * on a wire), and while there is no lane that polling could delay. The time between two polls is measured with the processor's
 * counter, whose exact rate does not matter. tests/wire/fabric_sock.c: wires_are_looked_at_while_a_lane_is_busy. */
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/module.h"
#include "fabric/shm/shm.h"
#include "fabric/sock/sock.h"
#include "fabric/tcp/tcp.h"
#include "fabric/tls.h"
#include "fabric/transports.h"

#define EVENTS 64

#define TICKS_IDLE (20 * WEFTI_TICKS_US)
#define TICKS_BUSY (2000 * WEFTI_TICKS_US)
#define BUSY_CALLS 64 /* progress calls that found something, between two readings of the counter */
#define EMPTY_CALLS 8 /* and those that found nothing, though not for long: reading it costs as much as polling a ring */

typedef struct real {
    wefti_fabric_t base;
    wefti_transport_t *shm, *ucx, *tcp;
    const wefti_module_t *module; /* of ucx; NULL: it was not loaded */
    wefti_sock_t *sock;
    wefti_guard_t *guard; /* for tls:// */
    int epoll_fd, wake_fd;
    bool look_now;
    uint32_t calls;
    unsigned found;                                   /* by a transport, during a look */
    uint64_t looked;                                  /* ticks */
    wefti_watch_t wake_watch, tcp_watch, other_watch; /* other: of shm and ucx */
    pthread_mutex_t random_lock;
    uint8_t random[256]; /* unpredictable bytes in stock */
    size_t random_left;
} real_t;

static real_t *real_of(wefti_fabric_t *f)
{
    return (real_t *)(void *)f;
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

static void woken(wefti_watch_t *w, uint32_t events)
{
    real_t *r = wefti_container_of(w, real_t, wake_watch);
    uint64_t count;
    (void)events;
    ssize_t n = read(r->wake_fd, &count, sizeof count);
    (void)n; /* nothing to read: it was read before */
}

static void transport_event(wefti_watch_t *w, uint32_t events)
{
    (void)w; /* the descriptor only ends a sleep: progress asks the transport itself */
    (void)events;
}

static void tcp_event(wefti_watch_t *w, uint32_t events)
{
    real_t *r = wefti_container_of(w, real_t, tcp_watch);
    (void)events;
    r->found += wefti_tcp_events(r->tcp);
}

/* A transport's descriptor exists from its first lane on. */
static void watch_transport(real_t *r, wefti_transport_t *t)
{
    if (!t || t->fd < 0 || t->watched)
        return;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = t == r->tcp ? &r->tcp_watch : &r->other_watch};
    t->watched = !epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, t->fd, &ev);
    if (!t->watched)
        wefti_warn("fabric: a transport's events cannot be watched: %s", strerror(errno));
}

static unsigned look(real_t *r, uint64_t now)
{
    struct epoll_event events[EVENTS];
    unsigned n = 0;
    r->looked = now;
    r->look_now = false;
    r->found = 0;
    watch_transport(r, r->ucx);
    watch_transport(r, r->tcp);
    int got = epoll_wait(r->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < got; i++) {
        wefti_watch_t *w = events[i].data.ptr;
        w->fn(w, events[i].events);
        n += w != &r->other_watch && w != &r->tcp_watch;
    }
    return n + r->found + wefti_sock_sweep(r->sock);
}

static unsigned progress(wefti_fabric_t *f, bool idle)
{
    real_t *r = real_of(f);
    unsigned n = 0;
    if (r->shm)
        n = wefti_shm_progress(r->shm);
    bool ucx_live = r->ucx && r->ucx->live;
    if (ucx_live)
        n += r->module->progress(r->ucx);
    bool tcp_live = r->tcp && wefti_tcp_live(r->tcp);
    if (tcp_live)
        n += wefti_tcp_progress(r->tcp, !idle);
    if (!r->look_now) {
        bool any_lane = ucx_live || tcp_live || (r->shm && r->shm->fd >= 0);
        if (any_lane && !idle && ++r->calls % (n ? BUSY_CALLS : EMPTY_CALLS))
            return n;
        uint64_t wait = !any_lane ? 0 : idle && !n ? TICKS_IDLE : TICKS_BUSY;
        uint64_t now = wefti_ticks();
        if (now - r->looked < wait)
            return n;
    }
    return n + look(r, wefti_ticks());
}

static weft_status_t arm(wefti_fabric_t *f)
{
    real_t *r = real_of(f);
    if (wefti_sock_pending(r->sock))
        return WEFT_ERR_AGAIN;
    wefti_transport_t *in_order[] = {r->tcp, r->shm, r->ucx}; /* the cheapest first */
    for (int i = 0; i < 3; i++) {
        wefti_transport_t *t = in_order[i];
        watch_transport(r, t);
        if (t && t->ops->arm(t)) {
            if (r->shm)
                wefti_shm_disarm(r->shm);
            return WEFT_ERR_AGAIN;
        }
    }
    return WEFT_OK;
}

static void disarm(wefti_fabric_t *f)
{
    real_t *r = real_of(f);
    if (r->shm)
        wefti_shm_disarm(r->shm);
    r->look_now = true;
}

static int event_fd(wefti_fabric_t *f)
{
    return real_of(f)->epoll_fd;
}

static void wake(wefti_fabric_t *f)
{
    uint64_t one = 1;
    ssize_t n = write(real_of(f)->wake_fd, &one, sizeof one);
    (void)n; /* full means that it is readable already */
}

static uint64_t now_ns(wefti_fabric_t *f)
{
    (void)f;
    return wefti_clock_ns();
}

static void random_bytes(wefti_fabric_t *f, void *buf, size_t n)
{
    real_t *r = real_of(f);
    for (size_t at = 0; n > sizeof r->random && at < n;) {
        ssize_t got = getrandom((char *)buf + at, n - at, 0);
        if (got > 0)
            at += (size_t)got;
    }
    if (n > sizeof r->random)
        return;
    /* Small asks come in bursts (tokens, jitter): one system call for many. */
    pthread_mutex_lock(&r->random_lock);
    while (n > r->random_left) {
        ssize_t got = getrandom(r->random, sizeof r->random, 0);
        r->random_left = got > 0 ? (size_t)got : 0;
    }
    r->random_left -= n;
    memcpy(buf, r->random + r->random_left, n);
    memset(r->random + r->random_left, 0, n);
    pthread_mutex_unlock(&r->random_lock);
}

/* --- wires -------------------------------------------------------------------------------------------------------- */

static weft_status_t acceptor_open(wefti_fabric_t *f, const wefti_uri_t *uri, wefti_guard_t *guard, unsigned backlog, void *user,
                                   wefti_acceptor_t **acceptor_out)
{
    return wefti_sock_acceptor_open(real_of(f)->sock, uri, guard, backlog, user, acceptor_out);
}

static weft_status_t wire_dial(wefti_fabric_t *f, const wefti_uri_t *uri, wefti_guard_t *guard, const char *source, void *user,
                               wefti_wire_t **wire_out)
{
    return wefti_sock_wire_dial(real_of(f)->sock, uri, guard, source, user, wire_out);
}

static weft_status_t wire_adopt(wefti_fabric_t *f, const wefti_loose_t *loose, uint64_t source, wefti_wire_t **wire_out)
{
    return wefti_sock_wire_adopt(real_of(f)->sock, loose, source, wire_out);
}

static void wire_drop(wefti_fabric_t *f, const wefti_loose_t *loose)
{
    (void)f;
    wefti_sock_wire_drop(loose);
}

static weft_status_t guard_keys(wefti_fabric_t *f, const wefti_keys_t *keys)
{
    return wefti_guard_keys(real_of(f)->guard, keys);
}

static void guard_name(wefti_fabric_t *f, char *buf, size_t cap)
{
    wefti_guard_name(real_of(f)->guard, buf, cap);
}

static weft_status_t wire_welcome(wefti_wire_t *wire)
{
    return wefti_stream_welcome(wire->stream);
}

static weft_status_t guard_new(wefti_fabric_t *f, const wefti_config_t *config, wefti_guard_t **out)
{
    wefti_guard_t *g = wefti_guard_new(config);
    if (!g)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for certificates");
    wefti_guard_keys_of(g, real_of(f)->guard);
    weft_status_t st = wefti_guard_ready(g);
    if (st)
        wefti_guard_free(g);
    else
        *out = g;
    return st;
}

static void wire_secret(wefti_wire_t *wire, uint8_t out[WEFTI_SECRET_SIZE])
{
    wefti_stream_secret(wire->stream, out);
}

static const char *wire_cipher(wefti_wire_t *wire)
{
    return wefti_stream_cipher(wire->stream);
}

static const char *wire_peer(wefti_wire_t *wire)
{
    return wefti_stream_peer(wire->stream);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static weft_status_t mem_register(wefti_fabric_t *f, void *base, size_t n, void **reg_out)
{
    *reg_out = NULL;
    real_t *r = real_of(f);
    return r->ucx ? r->module->mem_register(r->ucx, base, n, reg_out) : WEFT_OK;
}

static void mem_unregister(wefti_fabric_t *f, void *reg)
{
    real_of(f)->module->mem_unregister(real_of(f)->ucx, reg);
}

static weft_status_t share(wefti_fabric_t *f, void *base, size_t n, int fd, uint64_t *id_out)
{
    *id_out = 0;
    return real_of(f)->shm ? wefti_shm_share(real_of(f)->shm, base, n, fd, id_out) : WEFT_OK;
}

static void unshare_id(wefti_fabric_t *f, uint64_t id)
{
    if (id)
        wefti_shm_unshare(real_of(f)->shm, id);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void real_close(wefti_fabric_t *f)
{
    real_t *r = real_of(f);
    for (unsigned i = 0; i < f->n_transports; i++)
        f->transports[i]->ops->close(f->transports[i]);
    if (r->sock)
        wefti_sock_close(r->sock);
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    if (r->epoll_fd >= 0)
        close(r->epoll_fd);
    wefti_guard_free(r->guard);
    explicit_bzero(r->random, sizeof r->random);
    wefti_free(r);
}

static const wefti_fabric_ops_t real_ops = {
    .name = "real",
    .close = real_close,
    .progress = progress,
    .arm = arm,
    .disarm = disarm,
    .event_fd = event_fd,
    .wake = wake,
    .now = now_ns,
    .random = random_bytes,
    .acceptor_open = acceptor_open,
    .acceptor_uri = wefti_sock_acceptor_uri,
    .acceptor_close = wefti_sock_acceptor_close,
    .wire_dial = wire_dial,
    .wire_adopt = wire_adopt,
    .wire_release = wefti_sock_wire_release,
    .wire_drop = wire_drop,
    .wire_send = wefti_sock_wire_send,
    .wire_close = wefti_sock_wire_close,
    .wire_beat = wefti_sock_wire_beat,
    .wire_watch = wefti_sock_wire_watch,
    .wire_beat_once = wefti_sock_wire_beat_once,
    .guard_keys = guard_keys,
    .guard_name = guard_name,
    .guards_look = wefti_guards_look,
    .wire_welcome = wire_welcome,
    .guard_new = guard_new,
    .guard_free = wefti_guard_free,
    .wire_secret = wire_secret,
    .wire_cipher = wire_cipher,
    .wire_peer = wire_peer,
    .mem_register = mem_register,
    .mem_unregister = mem_unregister,
    .share = share,
    .unshare = unshare_id,
};

static weft_status_t open_descriptors(real_t *r)
{
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &r->wake_watch};
    if (r->epoll_fd >= 0 && r->wake_fd >= 0 && !epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->wake_fd, &ev))
        return WEFT_OK;
    int err = errno;
    return wefti_fail(wefti_errno_limit(err, WEFT_ERR_SYSTEM), "no descriptors for a runtime: %s", strerror(err));
}

/* Is there a device that only UCX can use? UCX itself is not asked, since it takes long to open. */
static bool has_rdma(void)
{
    glob_t found;
    bool any = !glob("/sys/class/infiniband/*", GLOB_NOSORT, NULL, &found);
    globfree(&found);
    return any;
}

static weft_status_t open_ucx(real_t *r, const wefti_config_t *config, const wefti_transports_t *t)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!t->ucx && !(t->rdma && has_rdma()))
        return WEFT_OK;
    weft_status_t st = wefti_module_load(config->module_path, &r->module);
    if (st && !t->ucx) {
        if (!atomic_flag_test_and_set(&warned))
            wefti_warn("the RDMA devices of this machine are not used: %s", weft_last_error());
        return WEFT_OK;
    }
    if (st)
        return st;
    bool all = !config->interfaces || !*config->interfaces || !strcmp(config->interfaces, "all");
    wefti_ucx_params_t params = {
        .tls = t->tls,
        .devices = all ? NULL : config->interfaces,
        .trusted = wefti_trusted(config),
        .rendezvous = wefti_ucx_rendezvous,
    };
    return r->module->open(&r->base, &params, &r->ucx);
}

weft_status_t wefti_fabric_open_real(const wefti_config_t *config, wefti_fabric_t **fabric_out)
{
    wefti_transports_t t;
    weft_status_t st = wefti_transports_parse(config->transports ? config->transports : "all", &t);
    if (st)
        return st;
    real_t *r = wefti_calloc(1, sizeof *r);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a fabric");
    r->base.ops = &real_ops;
    pthread_mutex_init(&r->random_lock, NULL);
    r->epoll_fd = r->wake_fd = -1;
    r->wake_watch.fn = woken;
    r->other_watch.fn = transport_event;
    r->tcp_watch.fn = tcp_event;
    r->look_now = true;
    st = open_descriptors(r);
    if (!st) {
        r->guard = wefti_guard_new(config);
        st = r->guard ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for a fabric");
    }
    if (!st)
        st = wefti_sock_open(&r->base, r->epoll_fd, &r->look_now, r->guard, &r->sock);
    if (!st && t.shm)
        st = wefti_shm_open(&r->base, config, &r->shm);
    if (!st)
        st = open_ucx(r, config, &t);
    if (!st && t.tcp)
        st = wefti_tcp_open(&r->base, config, r->guard, &r->tcp);
    wefti_transport_t *in_order[] = {r->shm, r->ucx, r->tcp};
    for (int i = 0; i < 3; i++) {
        if (in_order[i])
            r->base.transports[r->base.n_transports++] = in_order[i];
    }
    if (st) {
        real_close(&r->base);
        return st;
    }
    *fabric_out = &r->base;
    return WEFT_OK;
}
