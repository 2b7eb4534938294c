/* element/io.c - ios, the operations on a transport: waiting for READY, moving, ending. Posting is in io_post.c and io_at_once.c.
 *
 *     (post) --> WAITING --READY--> MOVING: an operation of libweft --> ended
 *                                   HELD: the route waits for something else first
 *
 * An io that has to end early (its deadline, a release) is cancelled below, and waits until the element lets go of its buffer. If
 * that takes too long, the element counts as lost and its connection is given up, so that deadlines are always kept.
 *
 * The ios of a transport are on one list, in the order of their posts: a flush is done when it is the first of them.
 *
 * Promise: every operation completes once, after libweft has let go of its buffer. The buffer stays as long, whatever is
 * registered meanwhile. tests/wire/element_basic.c, element_life.c, tests/fault/element_lost.c. */
#include "element/io.h"

#define LET_GO_NS (250 * WEFT_MILLISECOND) /* how long an element may take to let go of a buffer whose operation has to end */

/* --- ios  ------------------------------------------------------------------------------------------------------------- */

/* Make it new, except `inner`, which may be posted again as it is. */
static void io_clear(element_io_t *io)
{
    memset((char *)io + sizeof io->inner, 0, sizeof *io - sizeof io->inner);
    io->inner.fn = NULL;
    io->inner.timeout_ns = 0;
    io->inner.status = WEFT_OK;
}

/* --- the end  --------------------------------------------------------------------------------------------------------- */

/* What the end of a connection means to the program: an element that hung up is lost. */
weft_status_t wefti_io_cut_off(const weft_transport_t *t, weft_status_t st)
{
    if (st != WEFT_ERR_CANCELLED && st != WEFT_ERR_CLOSED)
        return st;
    return t->state == WEFT_TRANSPORT_RELEASED || weft_ext_closing(t->rt) ? WEFT_ERR_CLOSED : WEFT_ERR_PEER;
}

weft_status_t wefti_io_status(const element_io_t *io, weft_status_t st)
{
    if (io->why && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_CLOSED || st == WEFT_ERR_TIMEOUT))
        return io->why;
    return wefti_io_cut_off(io->t, st);
}

static void count(weft_transport_t *t, const element_io_t *io, weft_status_t st)
{
    if (io->what != IO_BATCH || !io->op) {
        wefti_io_count(&t->stats, io->what, io->size, st);
        return;
    }
    for (size_t i = 0; i < io->n; i++)
        wefti_io_count(&t->stats, io->items[i].what == WEFT_RMA_DO_READ ? IO_READ : IO_WRITE, io->items[i].size,
                       io->items[i].status);
}

/* End the flushes that are first in the list. */
static void end_flushes(weft_transport_t *t)
{
    while (!t->walking && !wefti_list_empty(&t->ios)) {
        element_io_t *io = wefti_container_of(wefti_list_first(&t->ios), element_io_t, link);
        if (io->what != IO_FLUSH)
            return;
        t->walking = true;
        wefti_io_end(io, WEFT_OK);
        t->walking = false;
    }
}

/* Count how it ended, unless its batch does, and keep its memory for another. */
static void recycle(element_io_t *io, weft_status_t st)
{
    weft_transport_t *t = io->t;
    pthread_mutex_lock(&t->lock);
    t->slow -= !io->parent;
    if (!io->parent)
        count(t, io, st);
    pthread_mutex_unlock(&t->lock);
    weft_buffer_drop(io->buf);
    wefti_free(io->rma_items);
    io_clear(io);
    pthread_mutex_lock(&t->lock);
    io = wefti_io_put_spare(t, io);
    pthread_mutex_unlock(&t->lock);
    wefti_free(io);
}

void wefti_io_end(element_io_t *io, weft_status_t st)
{
    weft_transport_t *t = io->t;
    weft_action_t *action = t->action;
    weft_op_t *op = io->op;
    element_route_t *route = io->route;
    element_io_t *parent = io->parent;
    size_t item = io->item;
    uint64_t detail = st && io->inner.status == st ? weft_ext_op_sentence(&io->inner) : 0; /* the sentence from below */
    if (st == WEFT_ERR_RANGE && op) {
        uint64_t ours = wefti_range_sentence(io);
        detail = ours ? ours : detail;
    }
    if (wefti_list_linked(&io->link))
        wefti_list_remove(&io->link);
    if (io->timed)
        weft_ext_timer_stop(t->rt, &io->timer);
    recycle(io, st);
    if (parent)
        wefti_io_child_ended(parent, item, st);
    if (op)
        weft_ext_op_complete(op, st, detail);
    if (route) {
        route->n_ios--;
        wefti_route_leave_if_idle(route);
        wefti_route_unref(route);
    }
    if (parent) /* an item ends no flush, and its batch may have had the last reference to the transport */
        return;
    end_flushes(t);
    wefti_action_unref(action);
}

element_io_t *wefti_io_child(element_io_t *batch, size_t item)
{
    weft_transport_t *t = batch->t;
    const weft_transport_item_t *it = &batch->items[item];
    pthread_mutex_lock(&t->lock);
    element_io_t *io = wefti_io_take(t);
    pthread_mutex_unlock(&t->lock);
    if (!io)
        return NULL;
    io->t = t;
    io->buf = batch->buf;
    weft_buffer_hold(io->buf);
    io->what = it->what == WEFT_RMA_DO_READ ? IO_READ : IO_WRITE;
    io->size = it->size;
    io->addr = it->addr;
    io->offset = it->offset;
    io->own = (uint8_t *)it->own;
    io->parent = batch;
    io->item = item;
    wefti_list_push_back(&batch->children, &io->link);
    return io;
}

/* --- carrying out  ---------------------------------------------------------------------------------------------------- */

static void io_go(element_io_t *io)
{
    weft_transport_t *t = io->t;
    io->state = IO_MOVING;
    if (!t->route && t->state == WEFT_TRANSPORT_LOST) { /* an io before it in this walk found it lost */
        wefti_io_end(io, t->why ? t->why : WEFT_ERR_PEER);
        return;
    }
    if (!t->route) { /* a server has none */
        io->op->len = t->stats.len;
        wefti_io_end(io, io->what == IO_READY ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
        return;
    }
    io->route = t->route;
    wefti_route_ref(io->route);
    io->route->n_ios++;
    io->route->ops->move(io->route, io);
}

void wefti_io_inner(element_io_t *io, weft_op_fn fn)
{
    io->state = IO_MOVING;
    io->inner.fn = fn;
    io->inner.user = io;
    io->inner.timeout_ns = 0;
    element_begin(io->t->es);
}

/* An io is on t->ios when fn is called for it, and may end, also together with others. */
void wefti_ios_each(weft_transport_t *t, void (*fn)(element_io_t *io, weft_status_t st), weft_status_t st)
{
    wefti_list_t all;
    wefti_list_init(&all);
    wefti_list_splice(&all, &t->ios);
    t->walking = true;
    wefti_action_ref(t->action); /* the last io may have the last reference */
    for (wefti_list_t *l; (l = wefti_list_pop(&all));) {
        wefti_list_push_back(&t->ios, l);
        fn(wefti_container_of(l, element_io_t, link), st);
    }
    t->walking = false;
    end_flushes(t);
    wefti_action_unref(t->action);
}

static bool waits(const element_io_t *io)
{
    return io->state == IO_WAITING && io->what != IO_FLUSH && io->what != IO_SERVE;
}

void wefti_io_go_if_waiting(element_io_t *io, weft_status_t st)
{
    (void)st;
    if (waits(io))
        io_go(io);
}

void wefti_io_end_if_waiting(element_io_t *io, weft_status_t why)
{
    if (waits(io))
        wefti_io_end(io, why);
}

void wefti_io_end_if_serving(element_io_t *io, weft_status_t why)
{
    if (io->what == IO_SERVE)
        wefti_io_end(io, why);
}

static void stuck(weft_ext_timer_t *timer)
{
    element_io_t *io = wefti_container_of(timer, element_io_t, timer);
    io->timed = false;
    io->route->ops->abort(io->route);
}

/* It has to end, with `why`. */
void wefti_io_stop(element_io_t *io, weft_status_t why)
{
    weft_runtime_t *rt = io->t->rt;
    if (!io->why)
        io->why = why;
    if (io->state == IO_WAITING) {
        wefti_io_end(io, io->why);
        return;
    }
    if (io->timer.fn != stuck) {
        if (io->timed)
            weft_ext_timer_stop(rt, &io->timer);
        io->timer.fn = stuck;
        io->timed = !weft_ext_timer_set(rt, &io->timer, weft_now(rt) + LET_GO_NS);
    }
    io->route->ops->stop(io->route, io);
}

void wefti_io_stop_unless_flush(element_io_t *io, weft_status_t why)
{
    if (io->what != IO_FLUSH) /* a flush ends when the others have */
        wefti_io_stop(io, why);
}

/* --- deadlines of the durl  ------------------------------------------------------------------------------------------- */

static void timed_out(weft_ext_timer_t *timer)
{
    element_io_t *io = wefti_container_of(timer, element_io_t, timer);
    io->timed = false;
    wefti_io_stop(io, WEFT_ERR_TIMEOUT);
}

static weft_status_t limit(element_io_t *io)
{
    weft_transport_t *t = io->t;
    if (!t->timeout_ns || io->timed || !io->op || io->op->timeout_ns || io->what == IO_SERVE)
        return WEFT_OK;
    io->timer.fn = timed_out;
    weft_status_t st = weft_ext_timer_set(t->rt, &io->timer, weft_now(t->rt) + t->timeout_ns);
    io->timed = !st;
    return st;
}

void wefti_ios_limit(weft_transport_t *t)
{
    wefti_list_each(l, &t->ios)
        (void)limit(wefti_container_of(l, element_io_t, link)); /* without memory for a timer it waits without a deadline */
}

/* --- posting, the driver's part  -------------------------------------------------------------------------------------- */

/* May an operation go on now (WEFT_OK) or wait (WEFT_ERR_AGAIN)? */
static weft_status_t look(const weft_transport_t *t, unsigned what)
{
    if (t->state == WEFT_TRANSPORT_RELEASED)
        return t->why;
    if (what == IO_FLUSH)
        return wefti_list_empty(&t->ios) ? WEFT_OK : WEFT_ERR_AGAIN;
    if (what == IO_SERVE)
        return atomic_load(&t->action->terminated) ? WEFT_OK : WEFT_ERR_AGAIN;
    if (t->state == WEFT_TRANSPORT_READY)
        return WEFT_OK;
    if (t->state == WEFT_TRANSPORT_LOST || t->state == WEFT_TRANSPORT_FAILED)
        return t->why;
    return atomic_load(&t->action->terminated) ? WEFT_ERR_CANCELLED : WEFT_ERR_AGAIN;
}

static weft_status_t not_usable(const weft_transport_t *t, weft_status_t why)
{
    if (why == WEFT_ERR_RANGE)
        return wefti_range_durl(t);
    return weft_fail(why, "the transport %s is %s: %s", t->name, weft_transport_state_name(t->state), weft_status_text(why));
}

void wefti_io_drop(element_io_t *io)
{
    weft_action_t *action = io->t->action;
    io->op = NULL; /* it counts as one, also if it is a batch */
    recycle(io, WEFT_ERR_CANCELLED);
    wefti_action_unref(action);
}

static weft_status_t start(weft_op_t *op)
{
    element_io_t *io = weft_ext_scratch(op, io_scratch_t)->io;
    weft_transport_t *t = io->t;
    weft_status_t now = look(t, io->what);
    if (now && now != WEFT_ERR_AGAIN)
        return not_usable(t, now);
    weft_status_t st = weft_ext_op_track(op);
    if (!st)
        st = limit(io);
    if (st)
        return st;
    wefti_list_push_back(&t->ios, &io->link);
    io->state = IO_WAITING;
    if (now == WEFT_ERR_AGAIN) {
        if (waits(io))
            wefti_transport_count(t, &t->stats.waits);
    } else if (io->what == IO_FLUSH || io->what == IO_SERVE) {
        wefti_io_end(io, WEFT_OK);
    } else {
        io_go(io);
    }
    return WEFT_OK;
}

static void failed(weft_op_t *op, weft_status_t st)
{
    wefti_io_drop(weft_ext_scratch(op, io_scratch_t)->io);
    weft_ext_op_complete(op, st, 0);
}

void wefti_io_cancel(weft_op_t *op, weft_status_t why)
{
    element_io_t *io = weft_ext_scratch(op, io_scratch_t)->io;
    wefti_io_stop(io, why);
}

static const weft_op_kind_t kind = {
    .name = "transport", .start = start, .cancel = wefti_io_cancel, .failed = failed, .stops = true};

/* The same for what is counted: an io for the driver. */
void wefti_io_come_in_slow(weft_transport_t *t)
{
    wefti_io_come_in(t);
    t->slow++;
    wefti_action_ref(t->action);
}

/* Hand an io that is counted to the driver, and go out. */
weft_status_t wefti_io_post(element_io_t *io, weft_op_t *op)
{
    weft_transport_t *t = io->t;
    weft_status_t st = weft_ext_op_prepare(t->rt, op, &kind);
    if (!st) {
        io->op = op;
        weft_ext_scratch(op, io_scratch_t)->io = io;
        op->buf = NULL;
        st = weft_ext_op_start(op);
    }
    if (st)
        wefti_io_drop(io);
    wefti_io_go_out(t);
    return st;
}
