/* registry/thread.c - the thread of an open registry, which does everything that can block.
 *
 *     sleeping in the backend --a request, a change, or a second has passed--> requests, then a look if needed --> sleeping
 *
 * A look renews our entries, and lists all entries if there are watches. The list is news if it differs from the last one. One
 * call of the driver is enough for any number of news: the driver takes what is there when it comes, and of several lists only
 * the last. So nothing piles up in a program that never drives.
 *
 * A change is followed by a second look soon, because the death of a process is noticed just before its lock is gone. Looks take
 * at most a quarter of a processor.
 *
 * On a simulated network there is no thread: the driver does the same in turns, with a backend that never blocks.
 *
 * Promise: every request comes back once, with WEFT_ERR_CLOSED if it came too late. The one that closes is the last that the
 * driver gets. tests/wire/registry_basic.c, tests/sim/registry_turns.c. */
#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "registry/state.h"

#define AGAIN_NS (20 * WEFT_MILLISECOND)
#define GAP_NS (2 * WEFT_MILLISECOND)

void wefti_reg_wake(weft_registry_t *r)
{
    uint64_t one = 1;
    if (!r->threaded && r->turning) {
        r->again = true;
    } else if (!r->threaded) {
        r->turning = true;
        wefti_call_on_driver(r->rt, &r->turn);
    } else {
        while (write(r->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
    }
}

/* Wake it, and release the lock. The thread is woken with the lock held: once it is released, others may free the registry. */
static void wake_unlock(weft_registry_t *r)
{
    bool threaded = r->threaded;
    if (threaded)
        wefti_reg_wake(r);
    pthread_mutex_unlock(&r->lock);
    if (!threaded)
        wefti_reg_wake(r);
}

bool wefti_reg_thread_do(weft_registry_t *r, reg_request_t *q)
{
    pthread_mutex_lock(&r->lock);
    if (r->shut) {
        pthread_mutex_unlock(&r->lock);
        return false;
    }
    wefti_list_push_back(&r->todo, &q->link);
    wake_unlock(r);
    return true;
}

void wefti_reg_thread_look(weft_registry_t *r)
{
    pthread_mutex_lock(&r->lock);
    r->look = true;
    wake_unlock(r);
}

static _Thread_local const weft_registry_t *runs; /* whose thread this is */

bool wefti_reg_is_own_thread(const weft_registry_t *r)
{
    return runs == r;
}

/* There is something for the driver. `lock` is held, and released. If nobody drives, this thread does for a moment; but in a
 * runtime that is about to close the closing thread has to do it, since the last news makes it wait for this thread. */
static void call_driver(weft_registry_t *r)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    bool call = !r->telling && !r->orphan;
    if (call)
        r->telling = r->calling = true;
    pthread_mutex_unlock(&r->lock);
    if (!call)
        return;
    wefti_call_on_driver(r->rt, &r->call);
    while (r->late) {
        r->late = false;
        nanosleep(&nap, NULL);
        wefti_call_on_driver(r->rt, &r->call);
    }
    pthread_mutex_lock(&r->lock);
    r->calling = false;
    pthread_cond_broadcast(&r->called);
    pthread_mutex_unlock(&r->lock);
}

static void note(weft_registry_t *r, weft_status_t st)
{
    if (st != WEFT_ERR_STATE && st != WEFT_ERR_NOMEM)
        atomic_store_explicit(&r->state, (int)st, memory_order_relaxed);
}

/* --- ours -------------------------------------------------------------------------------------------------------------- */

reg_own_t *wefti_reg_own_find(wefti_list_t *owns, const char *service, const char *instance)
{
    wefti_list_each(l, owns) {
        reg_own_t *own = wefti_container_of(l, reg_own_t, link);
        if (!strcmp(own->entry->service, service) && !strcmp(own->entry->instance, instance))
            return own;
    }
    return NULL;
}

void wefti_reg_own_free(reg_own_t *own)
{
    wefti_reg_entry_unref(own->entry);
    wefti_free(own);
}

static void drop_own(weft_registry_t *r, reg_own_t *own)
{
    wefti_list_remove(&own->link);
    if (r->ops->leave(r->backend, own))
        wefti_reg_own_free(own);
}

static weft_status_t enter(weft_registry_t *r, reg_entry_t *entry)
{
    reg_own_t *own = wefti_reg_own_find(&r->ours, entry->service, entry->instance);
    bool fresh = !own;
    if (fresh) {
        own = (reg_own_t *)wefti_calloc(1, sizeof *own);
        if (!own)
            return WEFT_ERR_NOMEM;
        wefti_list_push_back(&r->ours, &own->link);
    }
    wefti_reg_entry_unref(own->entry);
    own->entry = wefti_reg_entry_ref(entry);
    own->stale = true;
    own->status = r->ops->enter(r->backend, own);
    own->again_at = wefti_clock_ns() + r->look_ns;
    weft_status_t st = own->status;
    note(r, st);
    own->stale = st != WEFT_OK;
    if (fresh && (st == WEFT_ERR_STATE || st == WEFT_ERR_NOMEM))
        drop_own(r, own);
    return st;
}

static weft_status_t leave(weft_registry_t *r, const char *service, const char *instance)
{
    reg_own_t *own = wefti_reg_own_find(&r->ours, service, instance);
    if (!own)
        return WEFT_ERR_NOTFOUND;
    drop_own(r, own);
    return WEFT_OK;
}

static weft_status_t keep_one(weft_registry_t *r, reg_own_t *own)
{
    if (r->ops->noisy && own->status && wefti_clock_ns() < own->again_at)
        return own->status;
    weft_status_t st = own->stale          ? r->ops->enter(r->backend, own)
                       : r->ops->keep      ? r->ops->keep(r->backend, own)
                       : own->held == NULL ? r->ops->enter(r->backend, own)
                                           : WEFT_OK;
    if (!st)
        own->stale = false;
    if (st == WEFT_ERR_STATE && own->status != st)
        wefti_warn_rarely(&r->rarely, wefti_rarely_text(own->entry->service) ^ wefti_rarely_text(own->entry->instance),
                          "the registry %s: another process has taken %s@%s while it was out of reach", r->uri,
                          own->entry->service, own->entry->instance);
    own->status = st;
    own->again_at = wefti_clock_ns() + r->look_ns;
    return st;
}

static weft_status_t keep(weft_registry_t *r)
{
    weft_status_t worst = r->ops->renew ? r->ops->renew(r->backend, &r->ours) : WEFT_OK;
    if (worst)
        return worst;
    wefti_list_each(l, &r->ours) {
        reg_own_t *own = wefti_container_of(l, reg_own_t, link);
        weft_status_t st = keep_one(r, own);
        if (st && st != WEFT_ERR_STATE && st != WEFT_ERR_NOMEM)
            worst = st;
    }
    return worst;
}

/* --- looking ----------------------------------------------------------------------------------------------------------- */

/* fresh: ask the place now, whatever it told before. */
static weft_status_t list(weft_registry_t *r, bool fresh, reg_found_t **found_out)
{
    reg_found_t *f = wefti_reg_found_new();
    if (!f)
        return WEFT_ERR_NOMEM;
    weft_status_t st = r->ops->known && !fresh ? r->ops->known(r->backend, f) : r->ops->list(r->backend, f);
    note(r, st);
    if (st) {
        wefti_reg_found_unref(f);
        return st;
    }
    wefti_reg_found_sort(f);
    *found_out = f;
    return WEFT_OK;
}

/* tell: even if it is no news. False: it failed, so that nobody was told. */
static bool look(weft_registry_t *r, bool tell)
{
    reg_found_t *f;
    if (!wefti_list_empty(&r->ours))
        note(r, keep(r));
    if (!atomic_load_explicit(&r->watching, memory_order_relaxed)) {
        wefti_reg_found_unref(r->last);
        r->last = NULL;
        return true;
    }
    weft_status_t mine = (weft_status_t)atomic_load_explicit(&r->state, memory_order_relaxed);
    if (list(r, false, &f))
        return false;
    if (!wefti_list_empty(&r->ours))
        note(r, mine); /* that reading works does not mean that ours could be written */
    if (!tell && wefti_reg_found_same(r->last, f)) {
        wefti_reg_found_unref(f);
        return true;
    }
    wefti_reg_found_unref(r->last);
    r->last = f;
    pthread_mutex_lock(&r->lock);
    wefti_reg_found_unref(r->fresh);
    r->fresh = wefti_reg_found_ref(f);
    call_driver(r);
    return true;
}

/* --- requests ---------------------------------------------------------------------------------------------------------- */

static void finish(weft_registry_t *r, reg_request_t *q)
{
    pthread_mutex_lock(&r->lock);
    wefti_list_push_back(&r->done, &q->link);
    call_driver(r);
}

/* Why a request failed, as a detail. */
static uint64_t explain(const weft_registry_t *r, const reg_request_t *q)
{
    switch (q->status) {
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_LIMIT:
        return *r->trouble ? wefti_detail_put(r->trouble) : 0;
    case WEFT_ERR_STATE:
        return q->entry ? wefti_detail_format("the registry %s: another process has entered %s@%s", r->uri, q->entry->service,
                                              q->entry->instance)
                        : 0;
    case WEFT_ERR_NOTFOUND:
        return wefti_detail_format("the registry %s: %s@%s was not entered by this runtime", r->uri, q->service, q->instance);
    case WEFT_ERR_CLOSED:
        return wefti_detail_format("the registry %s was closed", r->uri);
    default:
        return 0;
    }
}

static void serve(weft_registry_t *r, reg_request_t *q)
{
    switch (q->what) {
    case REG_ENTER:
        q->status = enter(r, q->entry);
        break;
    case REG_LEAVE:
        q->status = leave(r, q->service, q->instance);
        break;
    case REG_FIND:
        q->status = list(r, true, &q->found);
        break;
    case REG_CLOSE:
        break;
    }
}

/* Serve what is in `todo`. True: the registry is to be closed, and takes no more. */
static bool serve_all(weft_registry_t *r, bool *wanted)
{
    uint64_t count;
    bool last = false;
    while (r->threaded && read(r->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        wefti_list_t *l = wefti_list_pop(&r->todo);
        *wanted |= r->look;
        r->look = false;
        if (!l && last)
            r->shut = true;
        pthread_mutex_unlock(&r->lock);
        if (!l)
            return last;
        reg_request_t *q = wefti_container_of(l, reg_request_t, link);
        if (q->what == REG_CLOSE) {
            last = true;
            continue;
        }
        if (last)
            q->status = WEFT_ERR_CLOSED;
        else
            serve(r, q);
        if (q->status)
            q->detail = explain(r, q);
        finish(r, q);
    }
}

static void take_away(weft_registry_t *r)
{
    if (r->ops->leave_all)
        r->ops->leave_all(r->backend, &r->ours);
    while (!wefti_list_empty(&r->ours))
        drop_own(r, wefti_container_of(r->ours.next, reg_own_t, link));
    r->ops->close(r->backend);
    r->backend = NULL;
}

static void *run(void *arg)
{
    weft_registry_t *r = (weft_registry_t *)arg;
    uint64_t due = 0, gap = GAP_NS, looked = 0;
    bool wanted = false, changed = false;
    runs = r;
    while (!serve_all(r, &wanted)) {
        bool watched = atomic_load_explicit(&r->watching, memory_order_relaxed) != 0,
             any = watched || !wefti_list_empty(&r->ours);
        uint64_t now = wefti_clock_ns();
        if (wanted && due > looked + gap)
            due = looked + gap;
        if (any && now >= due) {
            wanted = !look(r, wanted) && wanted;
            looked = wefti_clock_ns();
            gap = 3 * (looked - now) > GAP_NS ? 3 * (looked - now) : GAP_NS;
            due = looked + (changed ? AGAIN_NS : r->look_ns);
            if (wanted && gap < r->look_ns)
                looked += r->look_ns - gap; /* it failed: try again after look_ns, not after gap */
            changed = false;
            now = wefti_clock_ns();
        }
        if (r->ops->wait(r->backend, !any ? WEFT_FOREVER : due > now ? due - now : 0) && any) {
            changed = true;
            if (due > looked + gap)
                due = looked + gap;
        }
    }
    take_away(r);
    pthread_mutex_lock(&r->lock);
    if (!r->orphan) {
        wefti_list_push_back(&r->done, &r->closer.link);
        call_driver(r);
        return NULL;
    }
    pthread_mutex_unlock(&r->lock);
    pthread_detach(pthread_self());
    wefti_reg_free(r);
    return NULL;
}

/* On the driver, instead of run(). */
static void turn(wefti_call_t *call)
{
    weft_registry_t *r = wefti_container_of(call, weft_registry_t, turn);
    bool last;
    do {
        bool wanted = false;
        r->again = false;
        last = serve_all(r, &wanted);
        if (!last && (atomic_load_explicit(&r->watching, memory_order_relaxed) || !wefti_list_empty(&r->ours)))
            look(r, wanted);
    } while (!last && r->again);
    if (!last) {
        r->turning = false;
        return;
    }
    take_away(r); /* turning stays: nothing wakes it any more */
    wefti_list_push_back(&r->done, &r->closer.link);
    if (!r->telling) {
        r->telling = true;
        r->call.fn(&r->call); /* which may be its end */
    }
}

weft_status_t wefti_reg_thread_start(weft_registry_t *r)
{
    sigset_t all, old;
    r->turn.fn = turn;
    if (!r->threaded)
        return WEFT_OK;
    sigfillset(&all); /* signals are the program's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err)
        return wefti_fail(WEFT_ERR_LIMIT, "no thread for the registry %s: %s", r->uri, strerror(err));
    pthread_setname_np(r->thread, "weft-registry");
    return WEFT_OK;
}
