/* core/queue.c - completion queues.
 *
 * The driver pushes, and of a runtime with several shards all of their drivers; one thread at a time pops; between them a list
 * (`pushed`, base/mpsc.h) that the popper takes whole (`taken`), through opx->handed, which nobody else needs once an operation
 * is complete. An operation in a queue is DONE and QUEUED: complete, but not to be posted again before it is popped.
 *
 * The event fd is written when the first of a burst is pushed, and read by the pop that finds nothing left:
 *
 *     DARK --a push, which writes--> LIGHTING --it has written--> LIT --a pop that finds nothing reads--> DARK
 *
 * Then that pop looks once more, since a push in between relied on LIT.
 *
 * A pop that finds nothing while it is LIGHTING leaves it: then the fd is readable once with nothing there, and the next pop
 * darkens it. No thread ever waits for a byte that another may have read.
 *
 * A forked child has a copy of the queue, but the same fd: so there every call fails and touches nothing.
 *
 * Promise: each completion is popped once, in the order of completion; the fd is readable while something is there.
 * tests/unit/core_queue.c. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "core/local.h"

enum { DARK, LIGHTING, LIT };

struct weft_queue {
    wefti_handle_t handle;
    weft_runtime_t *_Atomic rt; /* the head; NULL once the runtime is closed */
    uint32_t fork_generation;   /* of the process that made it */
    wefti_mpsc_t pushed;
    _Atomic(wefti_mpsc_node_t *) taken; /* oldest first; only the popping thread changes it */
    _Atomic uint32_t waited;            /* a popper sleeps */
    _Atomic uint32_t lit;               /* DARK, LIGHTING, LIT: the fd is not readable, is about to be, is */
    _Atomic int fd;                     /* -1 before weft_queue_fd() */
    _Atomic int64_t under_way;          /* posted with this queue and not popped */
    wefti_list_t link;                  /* rt->queues */
};

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_queue_t, fork_generation);

static weft_runtime_t *runtime_of(const weft_queue_t *queue)
{
    return atomic_load_explicit(&queue->rt, memory_order_relaxed);
}

bool wefti_queue_takes(const weft_queue_t *queue, const weft_runtime_t *rt)
{
    const weft_runtime_t *its = runtime_of(queue);
    return its == rt || (its && wefti_same_runtime(its, rt));
}

void wefti_queue_count(weft_queue_t *queue, int by)
{
    atomic_fetch_add_explicit(&queue->under_way, by, memory_order_acq_rel);
}

static bool has_some(const weft_queue_t *queue)
{
    return atomic_load(&queue->taken) || !wefti_mpsc_empty(&queue->pushed);
}

static bool is_inherited(const weft_queue_t *queue)
{
    return queue->fork_generation != wefti_fork_generation;
}

static void light(weft_queue_t *queue)
{
    int fd = atomic_load(&queue->fd);
    uint32_t dark = DARK;
    uint64_t one = 1;
    if (fd < 0 || !atomic_compare_exchange_strong(&queue->lit, &dark, LIGHTING))
        return;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    atomic_store(&queue->lit, LIT);
}

static void darken(weft_queue_t *queue)
{
    uint64_t count;
    if (atomic_load(&queue->lit) != LIT)
        return;
    /* if there is nothing to read, the program has read it, which it should not */
    while (read(atomic_load(&queue->fd), &count, sizeof count) < 0 && errno == EINTR)
        ;
    atomic_store(&queue->lit, DARK);
    if (has_some(queue))
        light(queue);
}

void wefti_queue_push(weft_runtime_t *rt, weft_queue_t *queue, weft_op_t *op)
{
    /* As soon as it is pushed, the popper may have it and free the queue. */
    atomic_store_explicit(&rt->pushing, queue, memory_order_relaxed);
    wefti_op_done(rt, op, WEFTI_OP_QUEUED);
    wefti_mpsc_push_t how = wefti_mpsc_push(&queue->pushed, &wefti_opx(op)->handed);
    if (atomic_load(&queue->waited))
        rt->leave_due |= WEFTI_DUE_WAKE;
    if (how == WEFTI_MPSC_FIRST)
        light(queue);
    atomic_store_explicit(&rt->pushing, NULL, memory_order_release);
}

static size_t take(weft_queue_t *queue, weft_op_t **ops_out, size_t n)
{
    wefti_mpsc_node_t *at = atomic_load_explicit(&queue->taken, memory_order_relaxed);
    size_t got = 0;
    while (got < n && (at || (at = wefti_mpsc_take(&queue->pushed)))) {
        weft_op_t *op = wefti_op_of(at, handed);
        at = wefti_mpsc_next(at);
        atomic_store_explicit(&wefti_opx(op)->state, WEFTI_OP_DONE, memory_order_release);
        ops_out[got++] = op;
    }
    atomic_store(&queue->taken, at);
    if (got)
        atomic_fetch_sub_explicit(&queue->under_way, (int64_t)got, memory_order_acq_rel);
    if (!has_some(queue))
        darken(queue);
    return got;
}

/* --- waiting for one -------------------------------------------------------------------------------------------------------- */

static bool some_there(void *arg)
{
    return has_some((weft_queue_t *)arg);
}

static bool mark(void *arg)
{
    weft_queue_t *queue = (weft_queue_t *)arg;
    atomic_store(&queue->waited, 1);
    return has_some(queue);
}

size_t weft_queue_pop(weft_queue_t *queue, weft_op_t **ops_out, size_t n, uint64_t timeout_ns)
{
    if (!queue || !ops_out || !n || !wefti_is_open(&queue->handle) || is_inherited(queue))
        return 0;
    size_t got = take(queue, ops_out, n);
    weft_runtime_t *rt = runtime_of(queue);
    if (got || !rt || wefti_driven)
        return got; /* inside a callback there is no waiting, only looking */
    atomic_fetch_add(&rt->handle.inside, 1);
    if (atomic_load(&queue->rt) == rt) { /* else it was closed just now */
        const wefti_wait_t what = {some_there, mark, queue};
        wefti_wait_across(rt, &what, timeout_ns);
        atomic_store(&queue->waited, 0);
    }
    wefti_part(rt);
    return take(queue, ops_out, n);
}

static weft_status_t usable(const weft_queue_t *queue)
{
    if (!wefti_is_open(&queue->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the queue was freed");
    return is_inherited(queue) ? wefti_fail(WEFT_ERR_FORKED, "the queue belongs to the parent process") : WEFT_OK;
}

int weft_queue_fd(weft_queue_t *queue)
{
    if (!queue)
        return wefti_fail(WEFT_ERR_INVALID, "the queue is NULL");
    weft_status_t st = usable(queue);
    if (st)
        return st;
    int fd = atomic_load(&queue->fd), none = -1;
    if (fd >= 0)
        return fd;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return wefti_fail(errno == EMFILE || errno == ENFILE ? WEFT_ERR_LIMIT : WEFT_ERR_SYSTEM, "no event fd for the queue: %s",
                          strerror(errno));
    if (!atomic_compare_exchange_strong(&queue->fd, &none, fd)) {
        close(fd); /* another thread was faster */
        return none;
    }
    if (has_some(queue))
        light(queue);
    return fd;
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

static void lock(weft_runtime_t *rt)
{
    while (atomic_exchange_explicit(&rt->queues_lock, 1, memory_order_acquire))
        sched_yield();
}

static void unlock(weft_runtime_t *rt)
{
    atomic_store_explicit(&rt->queues_lock, 0, memory_order_release);
}

void wefti_queues_cut(weft_runtime_t *rt)
{
    if (wefti_gone(rt))
        return; /* a thread that is not here may have the lock, and no queue looks at the runtime any more */
    lock(rt);
    for (wefti_list_t *l; (l = wefti_list_pop(&rt->queues));)
        atomic_store(&wefti_container_of(l, weft_queue_t, link)->rt, NULL);
    unlock(rt);
}

weft_status_t weft_queue_new(weft_runtime_t *rt, weft_queue_t **queue_out)
{
    if (!rt || !queue_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "queue_out" : "the runtime");
    rt = wefti_head(rt);
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    weft_queue_t *queue = wefti_handle_new(&handles);
    if (queue) {
        queue->fork_generation = wefti_fork_generation;
        queue->fd = -1;
        lock(rt);
        if (!wefti_closing(rt)) { /* else it has no runtime, as if that had been closed a moment later */
            queue->rt = rt;
            wefti_list_push_back(&rt->queues, &queue->link);
        }
        unlock(rt);
        *queue_out = queue;
    }
    wefti_part(rt);
    return queue ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for a queue");
}

/* A driver that has pushed the last of its operations may still look at it. */
static void wait_for_pushers(const weft_queue_t *queue)
{
    weft_runtime_t *rt = runtime_of(queue);
    for (uint32_t k = 0, n = rt ? wefti_n_shards(rt) : 0; k < n; k++)
        while (atomic_load_explicit(&wefti_shard(rt, k)->pushing, memory_order_acquire) == queue)
            sched_yield();
}

/* Leave the list of its runtime, unless that is closing and has emptied it. */
static void unlist(weft_queue_t *queue)
{
    weft_runtime_t *rt = runtime_of(queue);
    if (!rt)
        return;
    atomic_fetch_add(&rt->handle.inside, 1);
    if (atomic_load(&queue->rt) == rt) {
        lock(rt);
        if (wefti_list_linked(&queue->link))
            wefti_list_remove(&queue->link);
        unlock(rt);
    }
    wefti_part(rt);
}

weft_status_t weft_queue_free(weft_queue_t *queue)
{
    if (!queue)
        return WEFT_OK;
    weft_status_t st = usable(queue);
    if (st)
        return st;
    int64_t under_way = 0;
    bool ours = wefti_handle_enter(&queue->handle); /* another thread may free it, too */
    if (ours) {
        under_way = atomic_load_explicit(&queue->under_way, memory_order_acquire);
        ours = !under_way && wefti_handle_close(&queue->handle);
        wefti_handle_leave(&queue->handle);
    }
    if (under_way)
        return wefti_fail(WEFT_ERR_STATE, "%lld operations of the queue are under way or were not popped", (long long)under_way);
    if (!ours)
        return wefti_fail(WEFT_ERR_CLOSED, "the queue was freed");
    wait_for_pushers(queue);
    unlist(queue);
    if (queue->fd >= 0)
        close(queue->fd);
    wefti_handle_free(&handles, queue);
    return WEFT_OK;
}
