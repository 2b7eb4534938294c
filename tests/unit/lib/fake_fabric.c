/* tests/unit/lib/fake_fabric.c - see fake_fabric.h. */
#include "fake_fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

typedef struct fake_op {
    fake_how_t how;
    bool asked;
} fake_op_t;

static fake_fabric_t *fake(wefti_fabric_t *f)
{
    return (fake_fabric_t *)(void *)f;
}

/* --- operations ---------------------------------------------------------------------------------------------------------- */

static void end(weft_op_t *op, weft_status_t st)
{
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, st);
}

_Atomic uint32_t fake_started;

static weft_status_t fake_start(weft_op_t *op)
{
    fake_fabric_t *f = fake_of(wefti_opx(op)->rt);
    fake_op_t *o = wefti_op_scratch(op, fake_op_t);
    atomic_store(&f->armed, 0); /* what UCX does: the event that would come now wakes nobody */
    o->asked = false;
    op->len = 7;
    atomic_fetch_add(&fake_started, 1);
    if (o->how == FAKE_LOST)
        return wefti_fail(WEFT_ERR_PEER, "tcp://nowhere:1: it was lost before");
    if (o->how == FAKE_FAILS)
        return wefti_fail(WEFT_ERR_LIMIT, "it was told to fail");
    if (o->how == FAKE_AT_ONCE) {
        wefti_op_complete(op, WEFT_OK);
        return WEFT_OK;
    }
    weft_status_t st = wefti_op_track(op);
    if (st)
        return st;
    wefti_list_push_back(&f->pending, &wefti_opx(op)->link);
    return WEFT_OK;
}

static void fake_cancel(weft_op_t *op, weft_status_t why)
{
    fake_fabric_t *f = fake_of(wefti_opx(op)->rt);
    fake_op_t *o = wefti_op_scratch(op, fake_op_t);
    if (o->how == FAKE_STUBBORN && !o->asked) {
        o->asked = true;
        wefti_list_remove(&wefti_opx(op)->link);
        wefti_list_push_back(&f->stubborn, &wefti_opx(op)->link);
        return;
    }
    end(op, why);
}

static const wefti_op_kind_t fake_kind = {.name = "fake", .start = fake_start, .cancel = fake_cancel};
static const wefti_op_kind_t stops_kind = {.name = "fake", .start = fake_start, .cancel = fake_cancel, .stops = true};

weft_status_t fake_prepare(weft_runtime_t *rt, fake_how_t how, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(rt, op, &fake_kind);
    if (!st)
        wefti_op_scratch(op, fake_op_t)->how = how;
    return st;
}

weft_status_t fake_post(weft_runtime_t *rt, fake_how_t how, weft_op_t *op)
{
    weft_status_t st = fake_prepare(rt, how, op);
    return st ? st : wefti_op_go(rt, op);
}

weft_status_t fake_post_stops(weft_runtime_t *rt, fake_how_t how, weft_op_t *op)
{
    weft_status_t st = wefti_op_prepare(rt, op, &stops_kind);
    if (st)
        return st;
    wefti_op_scratch(op, fake_op_t)->how = how;
    return wefti_op_go(rt, op);
}

void fake_event(weft_runtime_t *rt, unsigned n)
{
    fake_fabric_t *f = fake_of(rt);
    atomic_fetch_add(&f->events, n);
    if (atomic_load(&f->armed))
        f->base.ops->wake(&f->base);
}

/* --- the fabric ------------------------------------------------------------------------------------------------------------ */

static unsigned progress(wefti_fabric_t *base, bool idle)
{
    fake_fabric_t *f = fake(base);
    unsigned n = atomic_load_explicit(&f->events, memory_order_relaxed) ? atomic_exchange(&f->events, 0) : 0;
    f->progressed++;
    f->idle_looks += idle;
    for (unsigned i = 0; i < n; i++) {
        wefti_list_t *l = wefti_list_first(&f->stubborn);
        if (l)
            end(wefti_op_of_link(l), WEFT_ERR_CANCELLED);
        l = wefti_list_first(&f->pending);
        if (l)
            end(wefti_op_of_link(l), WEFT_OK);
    }
    return n;
}

static void drain(fake_fabric_t *f)
{
    uint64_t count;
    if (read(f->fd, &count, sizeof count) < 0)
        return;
}

static weft_status_t arm(wefti_fabric_t *base)
{
    fake_fabric_t *f = fake(base);
    f->arms++;
    if (f->fd >= 0)
        drain(f);
    atomic_store(&f->armed, 1);
    if (!atomic_load(&f->events))
        return WEFT_OK;
    atomic_store(&f->armed, 0);
    return WEFT_ERR_AGAIN;
}

static void disarm(wefti_fabric_t *base)
{
    fake_fabric_t *f = fake(base);
    atomic_store(&f->armed, 0);
    if (f->fd >= 0)
        drain(f);
}

static int event_fd(wefti_fabric_t *base)
{
    return fake(base)->fd;
}

static void wake(wefti_fabric_t *base)
{
    uint64_t one = 1;
    atomic_fetch_add(&fake(base)->wakes, 1);
    if (fake(base)->fd >= 0 && write(fake(base)->fd, &one, sizeof one) < 0)
        abort();
}

static uint64_t now(wefti_fabric_t *base)
{
    fake_fabric_t *f = fake(base);
    return f->virtual_time ? atomic_load(&f->now) : wefti_clock_ns();
}

static void random_bytes(wefti_fabric_t *base, void *buf, size_t n)
{
    (void)base;
    memset(buf, 42, n);
}

/* --- memory ---------------------------------------------------------------------------------------------------------------- */

#define RANGE_MAGIC 0x72616e6765u
typedef struct fake_range {
    uint64_t magic;
    size_t n;
} fake_range_t;

static fake_range_t *range_new(size_t n)
{
    fake_range_t *r = malloc(sizeof *r);
    if (!r)
        abort();
    *r = (fake_range_t){RANGE_MAGIC, n};
    return r;
}

static size_t range_free(fake_range_t *r)
{
    size_t n = r->n;
    if (r->magic != RANGE_MAGIC) {
        fputs("fake fabric: a range was given back that is not there\n", stderr);
        abort();
    }
    r->magic = 0;
    free(r);
    return n;
}

static weft_status_t mem_register(wefti_fabric_t *base, void *ptr, size_t n, void **reg_out)
{
    fake_fabric_t *f = fake(base);
    (void)ptr;
    pthread_mutex_lock(&f->mem_lock);
    weft_status_t st = f->register_fails;
    f->registers++;
    *reg_out = NULL;
    if (!st && !f->registers_nothing) {
        *reg_out = range_new(n);
        f->registered++;
        f->registered_bytes += n;
    }
    pthread_mutex_unlock(&f->mem_lock);
    return st ? wefti_fail(st, "it was told to fail") : WEFT_OK;
}

static void mem_unregister(wefti_fabric_t *base, void *reg)
{
    fake_fabric_t *f = fake(base);
    pthread_mutex_lock(&f->mem_lock);
    f->registered--;
    f->registered_bytes -= range_free(reg);
    pthread_mutex_unlock(&f->mem_lock);
}

static weft_status_t mem_share(wefti_fabric_t *base, void *ptr, size_t n, int fd, uint64_t *id_out)
{
    fake_fabric_t *f = fake(base);
    pthread_mutex_lock(&f->mem_lock);
    weft_status_t st = f->share_fails;
    f->shares++;
    if (!st) {
        *id_out = (uint64_t)(uintptr_t)range_new(n);
        f->shared++;
        f->shared_bytes += n;
        f->share_base = ptr;
        f->share_n = n;
        f->share_fd = fd;
    }
    pthread_mutex_unlock(&f->mem_lock);
    return st ? wefti_fail(st, "it was told to fail") : WEFT_OK;
}

static void mem_unshare(wefti_fabric_t *base, uint64_t id)
{
    fake_fabric_t *f = fake(base);
    pthread_mutex_lock(&f->mem_lock);
    f->shared--;
    f->shared_bytes -= range_free((fake_range_t *)(uintptr_t)id);
    pthread_mutex_unlock(&f->mem_lock);
}

static void close_it(wefti_fabric_t *base)
{
    fake_fabric_t *f = fake(base);
    if (f->registered || f->shared) {
        fprintf(stderr, "fake fabric: closed with %u ranges registered and %u shared\n", f->registered, f->shared);
        abort();
    }
    pthread_mutex_destroy(&f->mem_lock);
    if (f->fd >= 0)
        close(f->fd);
    free(f);
}

static const wefti_fabric_ops_t ops = {
    .name = "fake",
    .close = close_it,
    .progress = progress,
    .arm = arm,
    .disarm = disarm,
    .event_fd = event_fd,
    .wake = wake,
    .now = now,
    .random = random_bytes,
    .share = mem_share,
    .unshare = mem_unshare,
    .mem_register = mem_register,
    .mem_unregister = mem_unregister,
};

/* --- the room -------------------------------------------------------------------------------------------------------------- */

static void room_shutdown(weft_runtime_t *rt)
{
    fake_fabric_t *f = fake_of(rt);
    for (wefti_list_t *l; (l = wefti_list_first(&f->pending));)
        end(wefti_op_of_link(l), WEFT_ERR_CLOSED);
    for (wefti_list_t *l; (l = wefti_list_first(&f->stubborn));)
        end(wefti_op_of_link(l), WEFT_ERR_CLOSED);
}

static bool room_idle(weft_runtime_t *rt)
{
    return wefti_list_empty(&fake_of(rt)->pending) && wefti_list_empty(&fake_of(rt)->stubborn) && !fake_of(rt)->hangs;
}

static const wefti_room_t room = {.shutdown = room_shutdown, .idle = room_idle};

static weft_runtime_t *open_it(weft_progress_mode_t mode, uint64_t spin_ns, bool virtual_time)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    wefti_config_t config;
    weft_runtime_t *rt;
    fake_fabric_t *f = calloc(1, sizeof *f);
    if (!f || wefti_config_parse("test", "", 0, &config))
        abort();
    f->base.ops = &ops;
    f->virtual_time = virtual_time;
    f->now = 1000;
    f->fd = virtual_time ? -1 : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    wefti_list_init(&f->pending);
    wefti_list_init(&f->stubborn);
    pthread_mutex_init(&f->mem_lock, NULL);
    config.spin = spin_ns;
    opts.progress = mode;
    if (wefti_runtime_open_on(&opts, &config, &f->base, &rt)) {
        fprintf(stderr, "%s\n", weft_last_error());
        abort();
    }
    wefti_runtime_attach(rt, WEFTI_ROOM_CONN, &room, NULL);
    if (wefti_runtime_start(rt))
        abort();
    return rt;
}

weft_runtime_t *fake_open(weft_progress_mode_t mode, uint64_t spin_ns)
{
    return open_it(mode, spin_ns, false);
}

weft_runtime_t *fake_open_virtual(void)
{
    return open_it(WEFT_PROGRESS_CALLER, 0, true);
}
