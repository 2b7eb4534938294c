/* _core/inbox.c - requests as they come: kept, their large arguments fetched, handed to the loop or put where threads wait for
 * them.
 *
 *     arrived -> kept -> (fetched) -> in a loop: a Request for the next turn
 *                                     else: waiting -> taken by a thread
 *
 * A blocking runtime is driven by threads that do not have the GIL and must not wait for it: whoever holds it may be waiting for
 * them. Where it has several shards there are several of them at once: what they share is under the lock. So this file knows no
 * Python, but where a runtime of a loop, whose driver has the GIL, hands a request on. Arguments that were not here when the
 * request came are fetched into memory of our own, with all of the fabric's ways and no copy after it: views of it may outlive
 * the runtime.
 *
 * What the library does for threads of its own is done here for Python's: a queue of bounded length, bytes counted, of both a
 * part for each peer, RESOURCE_EXHAUSTED beyond.
 *
 * Promise: a request is run by one thread or answered here, never both, and whoever waits is woken when there is one, or at the
 * end. tests/python/test_service_threads.py holds us to it. */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- life ---------------------------------------------------------------------------------------------------------------- */

/* The same rule as in the library, src/rpc/share.c. */
static uint64_t part_of(uint64_t whole, uint32_t percent)
{
    return whole / 100 * percent + (whole % 100 * percent + 99) / 100;
}

weftpy_inbox_t *weftpy_inbox_new(weft_runtime_t *rt, bool blocking, const weft_service_opts_t *opts)
{
    uint32_t percent = opts->peer_percent ? opts->peer_percent : 50;
    pthread_condattr_t attr;
    weftpy_inbox_t *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    atomic_init(&q->refs, 1);
    q->rt = rt;
    q->pid = getpid();
    q->blocking = blocking;
    q->bytes_most = opts->bytes ? opts->bytes : UINT64_C(2) << 30; /* the library's defaults */
    q->queue_most = opts->queue ? opts->queue : 65536;
    q->peer_bytes = part_of(q->bytes_most, percent);
    q->peer_queue = (uint32_t)part_of(q->queue_most, percent);
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    for (weftpy_line_t *line = q->lines; line < q->lines + WEFTPY_LINES; line++) {
        line->last = &line->first;
        pthread_cond_init(&line->more, &attr);
    }
    pthread_condattr_destroy(&attr);
    return q;
}

void weftpy_inbox_unref(weftpy_inbox_t *q)
{
    if (atomic_fetch_sub(&q->refs, 1) != 1)
        return;
    for (unsigned i = 0; i < WEFTPY_LINES; i++)
        pthread_cond_destroy(&q->lines[i].more);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

void weftpy_inbox_released(void *function, void *unused)
{
    weftpy_function_t *f = function;
    weftpy_inbox_unref(f->inbox);
    free(f);
}

/* --- what one peer has ---------------------------------------------------------------------------------------------------- */

typedef struct weftpy_share {
    weft_ep_id_t from;
    uint64_t bytes;
    uint32_t waiting;
    struct weftpy_share *next;
} share_t;

static share_t **share_at(weftpy_inbox_t *q, weft_ep_id_t from)
{
    share_t **at = &q->shares[(from ^ from >> 32) % WEFTPY_SHARES]; /* an id has an index and a generation: use both */
    while (*at && (*at)->from != from)
        at = &(*at)->next;
    return at;
}

/* Add to the share of the peer, under the lock. False: it would be too much, or there is no memory for the share. */
static bool take_share(weftpy_inbox_t *q, weft_ep_id_t from, uint64_t bytes, uint32_t waiting)
{
    share_t **at = share_at(q, from), *s = *at;
    uint64_t has = s ? s->bytes : 0;
    if (bytes > q->bytes_most - q->bytes || has > q->peer_bytes || bytes > q->peer_bytes - has ||
        waiting > q->queue_most - q->waiting || (s ? s->waiting : 0) + waiting > q->peer_queue)
        return false;
    if (!s) {
        if (!(s = calloc(1, sizeof *s)))
            return false;
        s->from = from;
        *at = s;
    }
    s->bytes += bytes;
    s->waiting += waiting;
    q->bytes += bytes;
    q->waiting += waiting;
    return true;
}

/* Subtract from the share, under the lock. */
static void give_share(weftpy_inbox_t *q, weft_ep_id_t from, uint64_t bytes, uint32_t waiting)
{
    share_t **at = share_at(q, from), *s = *at;
    s->bytes -= bytes;
    s->waiting -= waiting;
    q->bytes -= bytes;
    q->waiting -= waiting;
    if (s->bytes || s->waiting)
        return;
    *at = s->next;
    free(s);
}

static void uncount(weftpy_arrival_t *a)
{
    if (!a->counted)
        return;
    a->counted = false;
    pthread_mutex_lock(&a->inbox->lock);
    give_share(a->inbox, a->from, a->memory_len, 0);
    pthread_mutex_unlock(&a->inbox->lock);
}

void weftpy_arrival_free(weftpy_arrival_t *a)
{
    weftpy_inbox_t *q = a->inbox;
    if (q->pid == getpid()) { /* in a forked child the request belongs to the parent, and the inbox may stay locked for ever */
        uncount(a);
        weft_request_release(a->request);
        pthread_mutex_lock(&q->lock);
        if (!--q->alive && q->stopped)
            pthread_cond_broadcast(&q->lines[WEFTPY_TOLD].more);
        pthread_mutex_unlock(&q->lock);
    }
    free(a->memory);
    free(a->peer);
    free(a);
    weftpy_inbox_unref(q);
}

/* Answer without running the function. */
static void turn_away(weftpy_arrival_t *a, weft_code_t code, const char *why)
{
    weft_request_fail(a->request, code, why);
    weftpy_arrival_free(a);
}

/* --- arriving ------------------------------------------------------------------------------------------------------------ */

/* Under the lock. */
static void push(weftpy_line_t *line, weftpy_arrival_t *a)
{
    a->next = NULL;
    *line->last = a;
    line->last = &a->next;
    pthread_cond_signal(&line->more);
}

static void put(weftpy_arrival_t *a)
{
    weftpy_inbox_t *q = a->inbox;
    pthread_mutex_lock(&q->lock);
    bool stopped = q->stopped, full = !stopped && !take_share(q, a->from, 0, 1);
    if (!stopped && !full)
        push(&q->lines[a->line], a);
    pthread_mutex_unlock(&q->lock);
    if (stopped)
        turn_away(a, WEFT_CODE_UNAVAILABLE, "the service takes no more calls: it is closing");
    else if (full)
        turn_away(a, WEFT_CODE_RESOURCE_EXHAUSTED, "too many requests wait for a thread of the service: try again later");
}

/* All arguments of the function have arrived. */
static void ready(weftpy_arrival_t *a)
{
    weftpy_inbox_t *q = a->inbox;
    if (weft_request_cancelled(a->request)) /* nobody waits for it any more */
        weftpy_arrival_free(a);
    else if (q->blocking)
        put(a);
    else if (!q->owner)
        turn_away(a, WEFT_CODE_UNAVAILABLE, "the service takes no more calls: it is closing");
    else
        weftpy_service_ready(q->owner, a); /* the thread that drives has the GIL */
}

static void fetched(weft_op_t *op, void *user)
{
    weftpy_arrival_t *a = user;
    if (op->status)
        turn_away(a, WEFT_CODE_UNAVAILABLE, "the data of the arguments could not be brought here");
    else
        ready(a);
}

static void fetch(weftpy_arrival_t *a)
{
    weftpy_inbox_t *q = a->inbox;
    size_t len = a->request->fetch_len;
    a->memory_len = (len + 63) & ~(size_t)63;
    pthread_mutex_lock(&q->lock);
    a->counted = take_share(q, a->from, a->memory_len, 0);
    pthread_mutex_unlock(&q->lock);
    if (!a->counted) {
        turn_away(a, WEFT_CODE_RESOURCE_EXHAUSTED, "the requests of the service take too much memory: try again later");
        return;
    }
    a->memory = aligned_alloc(64, a->memory_len);
    a->op.fn = fetched;
    a->op.user = a;
    if (!a->memory || weft_request_fetch(a->request, a->memory, a->memory_len, NULL, &a->op) != WEFT_OK)
        turn_away(a, WEFT_CODE_RESOURCE_EXHAUSTED, "there is no memory for the arguments");
}

static void copy_text(char *to, size_t cap, const char *from)
{
    size_t n = strnlen(from ? from : "", cap - 1);
    memcpy(to, from ? from : "", n);
    to[n] = '\0';
}

static weftpy_peer_t *peer_of(const weft_request_t *request, weft_runtime_t *rt)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *ep = weft_ep_find(rt, request->from);
    weftpy_peer_t *peer = ep && !weft_ep_get_info(ep, &info) ? malloc(sizeof *peer) : NULL;
    if (!peer)
        return NULL;
    copy_text(peer->name, sizeof peer->name, info.peer_name);
    copy_text(peer->address, sizeof peer->address, info.peer_address);
    copy_text(peer->transport, sizeof peer->transport, info.transport);
    peer->authenticated = info.authenticated;
    peer->same_host = info.same_host;
    return peer;
}

/* In progress. */
void weftpy_inbox_arrived(weft_request_t *request, void *function)
{
    weftpy_function_t *f = function;
    weft_request_t *kept = weft_request_keep(request);
    if (!kept)
        return; /* it was answered */
    weftpy_arrival_t *a = calloc(1, sizeof *a);
    if (!a) {
        weft_request_fail(kept, WEFT_CODE_RESOURCE_EXHAUSTED, "there is no memory for the request");
        weft_request_release(kept);
        return;
    }
    a->request = kept;
    a->inbox = f->inbox;
    atomic_fetch_add(&f->inbox->refs, 1);
    pthread_mutex_lock(&f->inbox->lock);
    f->inbox->alive++;
    pthread_mutex_unlock(&f->inbox->lock);
    a->index = f->index;
    a->line = f->serial ? WEFTPY_SERIAL : WEFTPY_ANY;
    a->from = kept->from;
    uint64_t now = weftpy_clock();
    a->deadline = kept->left_ns < UINT64_MAX - now ? now + kept->left_ns : UINT64_MAX; /* the caller sent the length */
    if (f->peer)
        a->peer = peer_of(kept, f->inbox->rt);
    if (kept->fetch_len && !f->fetch)
        fetch(a);
    else
        ready(a);
}

/* --- threads that wait for them ------------------------------------------------------------------------------------------ */

/* Nothing more will come. Under the lock. */
static bool is_over(const weftpy_inbox_t *q, unsigned line)
{
    return q->stopped && (line != WEFTPY_TOLD || !q->alive);
}

bool weftpy_inbox_wait(weftpy_inbox_t *q, unsigned line, uint64_t ns)
{
    weftpy_line_t *l = &q->lines[line];
    struct timespec until;
    uint64_t at = weftpy_clock() + ns;
    until.tv_sec = (time_t)(at / 1000000000u);
    until.tv_nsec = (long)(at % 1000000000u);
    pthread_mutex_lock(&q->lock);
    while (!l->first && !is_over(q, line))
        if (pthread_cond_timedwait(&l->more, &q->lock, &until))
            break;
    bool over = is_over(q, line);
    pthread_mutex_unlock(&q->lock);
    return !over;
}

weftpy_arrival_t *weftpy_inbox_take(weftpy_inbox_t *q, unsigned line)
{
    weftpy_line_t *l = &q->lines[line];
    pthread_mutex_lock(&q->lock);
    weftpy_arrival_t *a = l->first;
    if (a) {
        l->first = a->next;
        if (!l->first)
            l->last = &l->first;
        a->next = NULL;
        if (line != WEFTPY_TOLD)
            give_share(q, a->from, 0, 1);
    }
    pthread_mutex_unlock(&q->lock);
    return a;
}

static void stop(weftpy_inbox_t *q)
{
    pthread_mutex_lock(&q->lock);
    q->stopped = true;
    for (unsigned i = 0; i < WEFTPY_LINES; i++)
        pthread_cond_broadcast(&q->lines[i].more);
    pthread_mutex_unlock(&q->lock);
}

void weftpy_inbox_stop(weftpy_inbox_t *q)
{
    stop(q);
    for (weftpy_arrival_t *a; (a = weftpy_inbox_take(q, WEFTPY_ANY)) || (a = weftpy_inbox_take(q, WEFTPY_SERIAL));)
        turn_away(a, WEFT_CODE_UNAVAILABLE, "the service was closed before a thread came to the request");
}

void weftpy_inbox_forget(weftpy_inbox_t *q)
{
    stop(q);
    for (weftpy_arrival_t *a; (a = weftpy_inbox_take(q, WEFTPY_ANY)) || (a = weftpy_inbox_take(q, WEFTPY_SERIAL));)
        weftpy_arrival_free(a);
}

/* --- cancelled ----------------------------------------------------------------------------------------------------------- */

static void leave_watched(weftpy_arrival_t *a)
{
    if (!a->watched)
        return;
    a->watched = false;
    *a->before = a->after;
    if (a->after)
        a->after->before = a->before;
}

/* In progress. The thread that runs the request may have released it: so search the remaining ones. */
static void cancelled(weft_request_t *request, void *user)
{
    weftpy_inbox_t *q = user;
    weftpy_arrival_t *a;
    pthread_mutex_lock(&q->lock);
    for (a = q->watched; a && a->request != request; a = a->after)
        ;
    if (a) {
        leave_watched(a);
        push(&q->lines[WEFTPY_TOLD], a);
    }
    pthread_mutex_unlock(&q->lock);
}

void weftpy_inbox_watch(weftpy_arrival_t *a)
{
    weftpy_inbox_t *q = a->inbox;
    pthread_mutex_lock(&q->lock);
    if (!a->watched) {
        a->watched = true;
        a->after = q->watched;
        a->before = &q->watched;
        if (a->after)
            a->after->before = &a->after;
        q->watched = a;
    }
    pthread_mutex_unlock(&q->lock);
    weft_request_on_cancel(a->request, cancelled, q);
}

void weftpy_inbox_unwatch(weftpy_arrival_t *a)
{
    weftpy_inbox_t *q = a->inbox;
    pthread_mutex_lock(&q->lock);
    leave_watched(a);
    weftpy_line_t *told = &q->lines[WEFTPY_TOLD];
    for (weftpy_arrival_t **at = &told->first; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            if (told->last == &a->next)
                told->last = at;
            break;
        }
    pthread_mutex_unlock(&q->lock);
}
