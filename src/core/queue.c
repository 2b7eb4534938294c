/* core/queue.c - completion queues.
 *
 * The driver pushes, one thread at a time pops; between them a stack (`pushed`) that the popper takes whole and turns round
 * (`taken`), linked through opx->inbox_next, which nobody else needs once an operation is complete. An operation in a queue is
 * DONE and QUEUED: complete for whoever asks, but not to be posted again before it is popped.
 *
 * The event fd is written when the first of a burst is pushed, and read by the pop that finds nothing left:
 *
 *     DARK --a push, which writes--> LIGHTING --it has written--> LIT --a pop that finds nothing reads--> DARK, then one more look,
 *     since a push in between relied on it
 *
 * A pop that finds nothing while it is LIGHTING leaves it: then the fd is readable once with nothing there, and the next pop darkens
 * it. Nobody ever waits for a byte that another may have read.
 *
 * A forked child has a copy of the queue, but the same fd: so there it gives nothing and touches nothing.
 *
 * Promise: each completion is popped once, in the order of completion; the fd is readable while something is there.
 * tests/unit/core_queue.c holds us to it. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "core/local.h"

enum { DARK, LIGHTING, LIT };

struct weft_queue {
    weft_runtime_t *_Atomic rt;  /* NULL once the runtime is closed */
    uint32_t fork_generation;    /* of the process that made it */
    _Atomic(weft_op_t *) pushed; /* newest first */
    _Atomic(weft_op_t *) taken;  /* oldest first; only the popping thread changes it */
    _Atomic uint32_t waited;     /* a popper sleeps */
    _Atomic uint32_t lit;        /* DARK, LIGHTING, LIT: the fd is not readable, is about to be, is */
    _Atomic int fd;              /* -1 before weft_queue_fd() */
    _Atomic int64_t under_way;   /* posted with this queue and not popped */
    _Atomic uint32_t pushing;    /* the driver is in wefti_queue_push() */
    wefti_list_t link;           /* rt->queues */
};

weft_runtime_t *wefti_queue_runtime(const weft_queue_t *queue)
{
    return atomic_load_explicit(&queue->rt, memory_order_relaxed);
}

void wefti_queue_count(weft_queue_t *queue, int by)
{
    atomic_fetch_add_explicit(&queue->under_way, by, memory_order_acq_rel);
}

static bool has_some(const weft_queue_t *queue)
{
    return atomic_load(&queue->taken) || atomic_load(&queue->pushed);
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
    /* nothing to read: the program has read it, which it should not */
    while (read(atomic_load(&queue->fd), &count, sizeof count) < 0 && errno == EINTR)
        ;
    atomic_store(&queue->lit, DARK);
    if (has_some(queue))
        light(queue);
}

void wefti_queue_push(weft_runtime_t *rt, weft_queue_t *queue, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    weft_op_t *head = atomic_load_explicit(&queue->pushed, memory_order_relaxed);
    /* The popper may have it, and want to free the queue, as soon as it is in. */
    atomic_store_explicit(&queue->pushing, 1, memory_order_relaxed);
    wefti_op_done(rt, op, WEFTI_OP_QUEUED);
    do
        atomic_store_explicit(&x->inbox_next, head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&queue->pushed, &head, op, memory_order_seq_cst, memory_order_relaxed));
    if (atomic_load(&queue->waited))
        rt->leave_due |= WEFTI_DUE_WAKE;
    if (!head)
        light(queue);
    atomic_store_explicit(&queue->pushing, 0, memory_order_release);
}

static size_t take(weft_queue_t *queue, weft_op_t **ops_out, size_t n)
{
    weft_op_t *op = atomic_load_explicit(&queue->taken, memory_order_relaxed);
    size_t got = 0;
    while (got < n) {
        if (!op) {
            weft_op_t *newest = atomic_exchange(&queue->pushed, NULL);
            while (newest) {
                wefti_opx_t *x = wefti_opx(newest);
                weft_op_t *older = atomic_load_explicit(&x->inbox_next, memory_order_relaxed);
                atomic_store_explicit(&x->inbox_next, op, memory_order_relaxed);
                op = newest;
                newest = older;
            }
            if (!op)
                break;
        }
        weft_op_t *next = atomic_load_explicit(&wefti_opx(op)->inbox_next, memory_order_relaxed);
        atomic_store_explicit(&wefti_opx(op)->state, WEFTI_OP_DONE, memory_order_release);
        ops_out[got++] = op;
        op = next;
    }
    atomic_store(&queue->taken, op);
    if (got)
        atomic_fetch_sub_explicit(&queue->under_way, (int64_t)got, memory_order_acq_rel);
    if (!has_some(queue))
        darken(queue);
    return got;
}

/* --- waiting for one ------------------------------------------------------------------------------------------------------- */

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
    if (!queue || !ops_out || !n || is_inherited(queue))
        return 0;
    size_t got = take(queue, ops_out, n);
    weft_runtime_t *rt = wefti_queue_runtime(queue);
    if (got || !rt || wefti_driven)
        return got; /* inside a callback there is no waiting, only looking */
    const wefti_wait_t what = {some_there, mark, queue};
    weft_status_t st = wefti_wait(rt, &what, timeout_ns);
    atomic_store(&queue->waited, 0);
    return st ? 0 : take(queue, ops_out, n);
}

int weft_queue_fd(weft_queue_t *queue)
{
    if (!queue)
        return wefti_fail(WEFT_ERR_INVALID, "the queue is NULL");
    if (is_inherited(queue))
        return wefti_fail_forked();
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

/* --- life ------------------------------------------------------------------------------------------------------------------ */

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
    if (wefti_forked(rt))
        return; /* a thread that is not here may have the lock; and none of them looks at the runtime any more */
    lock(rt);
    for (wefti_list_t *l; (l = wefti_list_pop(&rt->queues));)
        atomic_store(&wefti_container_of(l, weft_queue_t, link)->rt, NULL);
    unlock(rt);
}

weft_status_t weft_queue_new(weft_runtime_t *rt, weft_queue_t **queue_out)
{
    if (!rt || !queue_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "queue_out" : "the runtime");
    if (wefti_forked(rt))
        return wefti_fail_forked();
    weft_queue_t *queue = wefti_calloc(1, sizeof *queue);
    if (!queue)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a queue");
    queue->rt = rt;
    queue->fork_generation = wefti_fork_generation;
    queue->fd = -1;
    lock(rt);
    wefti_list_push_back(&rt->queues, &queue->link);
    unlock(rt);
    *queue_out = queue;
    return WEFT_OK;
}

weft_status_t weft_queue_free(weft_queue_t *queue)
{
    if (!queue)
        return WEFT_OK;
    if (is_inherited(queue))
        return wefti_fail_forked();
    weft_runtime_t *rt = wefti_queue_runtime(queue);
    int64_t under_way = atomic_load_explicit(&queue->under_way, memory_order_acquire);
    if (under_way)
        return wefti_fail(WEFT_ERR_STATE, "%lld operations of the queue are under way or were not popped", (long long)under_way);
    while (atomic_load_explicit(&queue->pushing, memory_order_acquire))
        sched_yield();
    if (rt) {
        lock(rt);
        wefti_list_remove(&queue->link);
        unlock(rt);
    }
    if (queue->fd >= 0)
        close(queue->fd);
    wefti_free(queue);
    return WEFT_OK;
}
