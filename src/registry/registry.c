/* registry/registry.c - the room, and opening and closing a registry.
 *
 *     open --close, or the runtime closes--> closing: watches end, the thread serves its requests and takes our entries away
 *          --its last call of the driver--> closed: the thread is joined, memory freed, the operation completes
 *
 * The thread (thread.c) passes its news on by a call to the driver, which may happen inside a post of the program. So the call
 * only completes an operation of the registry's own: its function runs in progress, as all functions of the program must.
 *
 * Promise: closing ends, and a runtime that closes takes its registries with it. A thread that hangs in a file system for longer
 * than the runtime waits is left alone, and frees the registry when it comes back. tests/wire/registry_basic.c,
 * tests/fault/registry_place.c. */
#include "registry/registry.h"

#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/uri.h"
#include "registry/state.h"

#define LOOK_NS WEFT_SECOND

static const reg_backend_t *const backends[] = {
    &wefti_reg_memory, &wefti_reg_directory,
#ifdef WEFT_HIREDIS
    &wefti_reg_redis,  &wefti_reg_redis_unix,
#endif
#ifdef WEFT_CURL
    &wefti_reg_etcd,   &wefti_reg_etcds,
#endif
};

/* Kinds that need the header of a library when Weft is built. */
static const struct {
    const char *scheme, *library, *package;
} optional[] = {{"redis", "hiredis", "libhiredis-dev"},
                {"redis+unix", "hiredis", "libhiredis-dev"},
                {"etcd", "libcurl", "libcurl4-openssl-dev"},
                {"etcd+https", "libcurl", "libcurl4-openssl-dev"}};

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_registry_t, name);

/* --- telling ----------------------------------------------------------------------------------------------------------- */

static void closed(weft_registry_t *r);

/* In progress: take everything that the thread has for us. The request that closes is the last one. */
static void told(weft_op_t *op, void *user)
{
    weft_registry_t *r = (weft_registry_t *)user;
    wefti_list_t done;
    reg_found_t *fresh;
    (void)op;
    wefti_list_init(&done);
    pthread_mutex_lock(&r->lock);
    wefti_list_splice(&done, &r->done);
    fresh = r->fresh;
    r->fresh = NULL;
    r->telling = false;
    pthread_mutex_unlock(&r->lock);
    if (fresh) {
        wefti_reg_found_unref(r->current);
        r->current = fresh;
        wefti_reg_watches_tell(r);
    }
    for (wefti_list_t *l; (l = wefti_list_pop(&done));) {
        reg_request_t *q = wefti_container_of(l, reg_request_t, link);
        if (q->what == REG_CLOSE) {
            closed(r);
            return;
        }
        wefti_reg_request_done(q);
    }
}

/* It begins without a start(): called(). */
static const wefti_op_kind_t tell_kind = {.name = "registry", .cancel = wefti_reg_no_cancel};

static void called(wefti_call_t *call)
{
    weft_registry_t *r = wefti_container_of(call, weft_registry_t, call);
    if (!wefti_closing(r->rt) && !wefti_op_prepare(r->rt, &r->tell, &tell_kind)) {
        wefti_op_begin(&r->tell);
        wefti_op_complete(&r->tell, WEFT_OK);
    } else if (wefti_reg_is_own_thread(r)) {
        r->late = true; /* it calls again: call_driver() in thread.c */
    } else {
        told(&r->tell, r); /* the runtime closes, and there is no more progress */
    }
}

/* --- opening ----------------------------------------------------------------------------------------------------------- */

/* A unique name that tells people where the process is: host-pid-random. */
static void make_name(weft_runtime_t *rt, char name[REG_NAME_MAX + 1])
{
    char host[33] = "";
    uint64_t random = 0;
    if (rt->virtual_time) {
        random = wefti_rng_next(&rt->rng); /* the same seed makes the same name */
        snprintf(host, sizeof host, "%.32s", rt->name);
    } else {
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            random = wefti_clock_ns();
        gethostname(host, sizeof host - 1);
    }
    for (char *c = host; *c; c++)
        if (!wefti_is_alnum(*c) && *c != '.' && *c != '-' && *c != '_')
            *c = '-';
    snprintf(name, REG_NAME_MAX + 1, "%s-%u-%012llx", *host ? host : "host", rt->virtual_time ? 1u : (unsigned)getpid(),
             (unsigned long long)(random & 0xffffffffffff));
}

static bool is_scheme(const char *uri, size_t n, const char *scheme)
{
    return strlen(scheme) == n && wefti_same_text(uri, scheme, n);
}

static weft_status_t find_backend(const char *uri, const reg_backend_t **ops_out, const char **rest_out)
{
    const char *mark = strstr(uri, "://");
    size_t n = mark ? (size_t)(mark - uri) : 0;
    if (!n)
        return wefti_fail(WEFT_ERR_INVALID,
                          "\"%.60s\" is no registry; write memory://NAME, dir:///PATH, dir://, redis://HOST or etcd://HOST", uri);
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (is_scheme(uri, n, backends[i]->scheme)) {
            *ops_out = backends[i];
            *rest_out = mark + 3;
            return WEFT_OK;
        }
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (is_scheme(uri, n, optional[i].scheme))
            return wefti_fail(WEFT_ERR_UNSUPPORTED,
                              "this Weft was built without %s, and so without %s://; install %s and build it again",
                              optional[i].library, optional[i].scheme, optional[i].package);
    return wefti_fail(
        WEFT_ERR_UNSUPPORTED,
        "this build has no registries of the kind %.*s://; it has memory://NAME, dir:///PATH, dir://, redis://HOST, "
        "redis+unix:///PATH and etcd://HOST",
        n < 40 ? (int)n : 40, uri);
}

void wefti_reg_free(weft_registry_t *r)
{
    wefti_reg_watches_end(r);
    wefti_reg_found_unref(r->current);
    wefti_reg_found_unref(r->last);
    wefti_reg_found_unref(r->fresh);
    if (r->backend)
        r->ops->close(r->backend);
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    pthread_cond_destroy(&r->called);
    pthread_mutex_destroy(&r->lock);
    wefti_free(r->uri);
    wefti_handle_free(&handles, r);
}

/* List it, so that the runtime's close takes it along. WEFT_ERR_CLOSED: that close has begun, and the registry frees itself. */
static weft_status_t list(weft_registry_t *r)
{
    reg_state_t *rs = reg_state(r->rt);
    pthread_mutex_lock(&rs->lock);
    bool late = wefti_closing(r->rt);
    if (!late)
        wefti_list_push_back(&rs->registries, &r->link);
    pthread_mutex_unlock(&rs->lock);
    if (!late)
        return WEFT_OK;
    pthread_mutex_lock(&r->lock);
    r->orphan = true; /* its thread frees it */
    pthread_mutex_unlock(&r->lock);
    weft_status_t st = wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", r->rt->name);
    wefti_reg_thread_do(r, &r->closer);
    return st;
}

/* Without what a backend or a thread needs. NULL: no memory. */
static weft_registry_t *registry_new(weft_runtime_t *rt, const reg_backend_t *ops, uint64_t lease_ns, const char *uri)
{
    weft_registry_t *r = (weft_registry_t *)wefti_handle_new(&handles);
    char *shown = r ? (char *)wefti_malloc(strlen(uri) + 4) : NULL;
    if (!shown) {
        wefti_handle_free(&handles, r);
        return NULL;
    }
    wefti_uri_hide(uri, shown, strlen(uri) + 4);
    r->uri = shown;
    r->rt = rt;
    r->ops = ops;
    r->threaded = !rt->virtual_time;
    r->lease_ns = lease_ns;
    r->look_ns = lease_ns / 3 < LOOK_NS ? lease_ns / 3 : LOOK_NS;
    make_name(rt, r->name);
    r->call.fn = called;
    r->tell.fn = told;
    r->tell.user = r;
    r->closer.what = REG_CLOSE;
    r->closer.registry = r;
    wefti_list_init(&r->todo);
    wefti_list_init(&r->done);
    wefti_list_init(&r->ours);
    wefti_list_init(&r->watches);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->called, NULL);
    return r;
}

static weft_status_t open_on(weft_runtime_t *rt, const char *uri, const weft_registry_opts_t *opts,
                             weft_registry_t **registry_out)
{
    const reg_backend_t *ops = NULL;
    const char *rest = NULL;
    weft_registry_opts_t given;
    weft_status_t st = wefti_opts_read(opts, &given, sizeof given, "weft_registry_opts_t");
    if (st)
        return st;
    if (!given.lease_ns)
        given.lease_ns = REG_LEASE_NS;
    if (!uri)
        uri = rt->config.registry;
    st = find_backend(uri, &ops, &rest);
    if (st)
        return st;
    if (rt->virtual_time && !ops->instant)
        return wefti_fail(WEFT_ERR_UNSUPPORTED,
                          "a simulated network has no threads: of the registries it can only have memory://NAME");
    if (given.lease_ns < REG_LEASE_MIN_NS || given.lease_ns > REG_LEASE_MAX_NS)
        return wefti_fail(WEFT_ERR_INVALID, "a lease of %llu ns is not between a second and an hour",
                          (unsigned long long)given.lease_ns);
    weft_registry_t *r = registry_new(rt, ops, given.lease_ns, uri);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    r->wake_fd = r->threaded ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    if (r->threaded && r->wake_fd < 0)
        st = wefti_fail(WEFT_ERR_LIMIT, "no file descriptor for the registry %s", r->uri);
    wefti_reg_fork_watch();
    if (!st)
        st = ops->open(r, rest, &r->backend);
    if (!st)
        st = wefti_reg_thread_start(r);
    if (st) {
        wefti_reg_free(r);
        return st;
    }
    st = list(r);
    if (!st)
        *registry_out = r;
    return st;
}
weft_status_t weft_registry_open(weft_runtime_t *rt, const char *uri, const weft_registry_opts_t *opts,
                                 weft_registry_t **registry_out)
{
    if (!rt || !registry_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is no runtime, or nowhere to put the registry");
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = open_on(rt, uri, opts, registry_out);
    wefti_part(rt);
    return st;
}

weft_status_t wefti_reg_enter(const weft_registry_t *r)
{
    if (!r)
        return wefti_fail(WEFT_ERR_INVALID, "there is no registry");
    if (!wefti_handle_enter(&((weft_registry_t *)(uintptr_t)r)->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the registry was closed");
    if (!wefti_gone(r->rt))
        return WEFT_OK;
    wefti_reg_leave(r);
    return wefti_fail_gone(r->rt);
}

const char *weft_registry_name(const weft_registry_t *registry)
{
    return registry && wefti_is_open(&registry->handle) ? registry->name : "";
}

const char *wefti_registry_uri(const weft_registry_t *registry)
{
    return registry->uri;
}

weft_status_t wefti_registry_check_of(const weft_registry_t *registry, const weft_runtime_t *rt)
{
    if (registry->rt != rt)
        return wefti_fail(WEFT_ERR_INVALID, "the registry is of another runtime; open one on the runtime \"%s\"", rt->name);
    return wefti_is_open(&registry->handle) ? WEFT_OK : wefti_fail(WEFT_ERR_CLOSED, "the registry was closed");
}

weft_status_t weft_registry_state(const weft_registry_t *registry)
{
    weft_status_t st = wefti_reg_enter(registry);
    if (st)
        return st;
    st = (weft_status_t)atomic_load_explicit(&registry->state, memory_order_relaxed);
    wefti_reg_leave(registry);
    return st;
}

/* --- closing ----------------------------------------------------------------------------------------------------------- */

static void closed(weft_registry_t *r)
{
    reg_state_t *rs = reg_state(r->rt);
    weft_op_t *op = r->closer.op;
    bool own = op == &r->closer.own;
    r->over = true;
    if (atomic_load(&r->coming))
        return; /* the last that arrives calls this again */
    if (r->threaded)
        pthread_join(r->thread, NULL); /* it is about to end */
    pthread_mutex_lock(&rs->lock);
    wefti_list_remove(&r->link);
    pthread_mutex_unlock(&rs->lock);
    if (own)
        wefti_op_complete(op, WEFT_OK); /* before its memory is freed */
    wefti_reg_free(r);
    if (op && !own)
        wefti_op_complete(op, WEFT_OK);
}

void wefti_reg_came(weft_registry_t *r)
{
    if (atomic_fetch_sub(&r->coming, 1) == 1 && r->over)
        closed(r);
}

/* Nobody is inside of it any more: those who were are counted in `coming`. */
static void end(weft_registry_t *r)
{
    if (r->closing)
        return;
    r->closing = true;
    wefti_reg_watches_end(r);
    wefti_reg_thread_do(r, &r->closer); /* without a thread it may be freed by now */
}

static weft_status_t start_close(weft_op_t *op)
{
    weft_registry_t *r = *wefti_op_scratch(op, weft_registry_t *);
    wefti_handle_quiet(&r->handle);
    r->closer.op = op;
    end(r);
    wefti_reg_came(r);
    return WEFT_OK;
}

/* Not to be cut short: until the file system has answered, functions of the registry may be called. */
static const wefti_op_kind_t close_kind = {.name = "registry close", .start = start_close, .cancel = wefti_reg_no_cancel};

weft_status_t weft_registry_close(weft_registry_t *registry, weft_op_t *op)
{
    if (!registry)
        return WEFT_OK;
    weft_status_t st = wefti_reg_enter(registry);
    if (st)
        return st;
    return wefti_reg_post_end(registry->rt, &registry->handle, &registry->coming, &close_kind, registry,
                              op ? op : &registry->closer.own, "the registry is being closed already");
}

/* --- the room, for core ------------------------------------------------------------------------------------------------ */

static void shutdown(weft_runtime_t *rt)
{
    reg_state_t *rs = reg_state(rt);
    for (weft_registry_t *open = NULL;; open = NULL) {
        pthread_mutex_lock(&rs->lock);
        wefti_list_each(l, &rs->registries) {
            weft_registry_t *r = wefti_container_of(l, weft_registry_t, link);
            if (!open && !r->closing)
                open = r;
        }
        pthread_mutex_unlock(&rs->lock);
        if (!open)
            return;
        wefti_handle_shut(&open->handle);
        end(open);
    }
}

static bool idle(weft_runtime_t *rt)
{
    reg_state_t *rs = reg_state(rt);
    pthread_mutex_lock(&rs->lock);
    bool none = wefti_list_empty(&rs->registries);
    pthread_mutex_unlock(&rs->lock);
    return none;
}

static void room_free(weft_runtime_t *rt)
{
    reg_state_t *rs = reg_state(rt);
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->registries));) {
        weft_registry_t *r = wefti_container_of(l, weft_registry_t, link);
        pthread_mutex_lock(&r->lock);
        r->orphan = true;
        while (r->calling)
            pthread_cond_wait(&r->called, &r->lock);
        bool threaded = r->threaded;
        pthread_mutex_unlock(&r->lock);
        if (!threaded)
            wefti_reg_free(r); /* nobody else does */
    }
    pthread_mutex_destroy(&rs->lock);
    wefti_free(rs);
}

static const wefti_room_t room = {shutdown, idle, room_free, NULL};

weft_status_t wefti_registry_attach(weft_runtime_t *rt)
{
    reg_state_t *rs = (reg_state_t *)wefti_calloc(1, sizeof *rs);
    if (!rs)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the registries of a runtime");
    pthread_mutex_init(&rs->lock, NULL);
    wefti_list_init(&rs->registries);
    wefti_runtime_attach(rt, WEFTI_ROOM_REGISTRY, &room, rs);
    return WEFT_OK;
}
