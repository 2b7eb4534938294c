/* element/io.c - operations on transports: from the post, through waiting for READY, to their end.
 *
 *     (post) --> WAITING --READY--> MOVING: an operation of a room below --> ended
 *                                   HELD: the way waits for something else first
 *
 * Reads and writes of mapped memory take a shorter way: the thread that posts them carries them out, with a lock of the transport's held twice for
 * a moment. They take it only while nothing else is under way, so that nothing is passed; one that turns out not to be done at once becomes an io
 * like any other.
 *
 * One that has to end before it is over (its deadline, a release) is cancelled below, and then waits for the element to let go of its buffer. An
 * element that does not do that soon is taken for lost, and the connection to it given up: a deadline is kept, whatever state the element is in.
 *
 * The ios of a transport are on one list, in the order of their posts: a flush is done when it is the first of them.
 *
 * Promise: every operation completes once; it completes after the rooms below have let go of its buffer; and the buffer stays as long, whatever is
 * registered meanwhile. tests/wire/element_basic.c, element_life.c, tests/fault/element_lost.c. */
#include "element/state.h"

#define LET_GO_NS (250 * WEFT_MILLISECOND) /* how long an element may take to let go of a buffer whose operation has to end */
enum { BATCH_MOST = 65536 };

typedef struct io_room {
    element_io_t *io;
} io_room_t;

/* --- ios ---------------------------------------------------------------------------------------------------------------------- */

static element_io_t *io_new(void)
{
    return (element_io_t *)wefti_calloc(1, sizeof(element_io_t));
}

/* With the transport's lock. NULL: there is none to be used again. */
static element_io_t *take_spare(weft_transport_t *t)
{
    element_io_t *io = t->spare;
    if (io) {
        t->spare = io->next;
        t->n_spare--;
    }
    return io;
}

/* With the transport's lock. The io, if it is to be freed. */
static element_io_t *put_spare(weft_transport_t *t, element_io_t *io)
{
    if (t->n_spare >= ELEMENT_SPARE_IOS)
        return io;
    io->next = t->spare;
    t->spare = io;
    t->n_spare++;
    return NULL;
}

static void io_free(element_io_t *io)
{
    weft_buffer_drop(io->buf);
    wefti_free(io->rma_items);
    wefti_free(io);
}

/* Make it as good as new: only `inner` is left alone, which may be posted again as it is. */
static void io_clear(element_io_t *io)
{
    memset((char *)io + sizeof io->inner, 0, sizeof *io - sizeof io->inner);
    io->inner.fn = NULL;
    io->inner.timeout_ns = 0;
    io->inner.status = WEFT_OK;
}

/* --- the end ------------------------------------------------------------------------------------------------------------------- */

/* What the end of a connection means, whichever side ended it: an element that hung up is lost. */
static weft_status_t cut_off(const weft_transport_t *t, weft_status_t st)
{
    if (st != WEFT_ERR_CANCELLED && st != WEFT_ERR_CLOSED)
        return st;
    return t->state == WEFT_TRANSPORT_RELEASED || weft_ext_closing(t->rt) ? WEFT_ERR_CLOSED : WEFT_ERR_PEER;
}

weft_status_t wefti_io_status(const element_io_t *io, weft_status_t st)
{
    if (io->why && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_CLOSED || st == WEFT_ERR_TIMEOUT))
        return io->why;
    return cut_off(io->t, st);
}

static void count_one(weft_transport_stats_t *s, unsigned what, uint64_t size, weft_status_t st)
{
    if (st) {
        s->failed++;
    } else if (what == IO_READ) {
        s->reads++;
        s->bytes_read += size;
    } else if (what == IO_WRITE) {
        s->writes++;
        s->bytes_written += size;
    } else if (what == IO_ATOMIC) {
        s->atomics++;
    }
}

static void count(weft_transport_t *t, const element_io_t *io, weft_status_t st)
{
    if (io->what != IO_BATCH || !io->op) {
        count_one(&t->stats, io->what, io->size, st);
        return;
    }
    for (size_t i = 0; i < io->n; i++)
        count_one(&t->stats, io->items[i].what == WEFT_RMA_DO_READ ? IO_READ : IO_WRITE, io->items[i].size, io->items[i].status);
}

/* Flushes that have nothing before them any more. */
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

void wefti_io_end(element_io_t *io, weft_status_t st)
{
    weft_transport_t *t = io->t;
    weft_action_t *action = t->action;
    weft_op_t *op = io->op;
    element_way_t *way = io->way;
    element_io_t *parent = io->parent;
    size_t item = io->item;
    bool counted = io->counted;
    uint64_t detail = st && io->inner.status == st ? weft_ext_op_sentence(&io->inner) : 0; /* what it was told below */
    if (wefti_list_linked(&io->link))
        wefti_list_remove(&io->link);
    if (io->timed)
        weft_ext_timer_stop(t->rt, &io->timer);
    pthread_mutex_lock(&t->lock);
    t->slow -= counted;
    if (!parent) /* else it is one of those that its batch counts */
        count(t, io, st);
    pthread_mutex_unlock(&t->lock);
    weft_buffer_drop(io->buf);
    wefti_free(io->rma_items);
    io_clear(io);
    pthread_mutex_lock(&t->lock);
    io = put_spare(t, io);
    pthread_mutex_unlock(&t->lock);
    wefti_free(io);
    if (parent)
        wefti_io_child_ended(parent, item, st);
    if (op)
        weft_ext_op_complete(op, st, detail);
    if (way) {
        way->n_ios--;
        wefti_way_leave_if_idle(way);
        wefti_way_unref(way);
    }
    if (!parent) /* the end of an item lets no flush go; and its batch may have been all that kept the transport */
        end_flushes(t);
    if (counted)
        wefti_action_unref(action);
}

element_io_t *wefti_io_child(element_io_t *batch, size_t item)
{
    weft_transport_t *t = batch->t;
    const weft_transport_item_t *it = &batch->items[item];
    pthread_mutex_lock(&t->lock);
    element_io_t *io = take_spare(t);
    pthread_mutex_unlock(&t->lock);
    if (!io)
        io = io_new();
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

/* --- carrying out ---------------------------------------------------------------------------------------------------------------- */

static void io_go(element_io_t *io)
{
    weft_transport_t *t = io->t;
    io->state = IO_MOVING;
    if (!t->way && t->state == WEFT_TRANSPORT_LOST) { /* one before it in the walk has lost it */
        wefti_io_end(io, t->why ? t->why : WEFT_ERR_PEER);
        return;
    }
    if (!t->way) { /* a server has none */
        io->op->len = t->stats.len;
        wefti_io_end(io, io->what == IO_READY ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
        return;
    }
    io->way = t->way;
    wefti_way_ref(io->way);
    io->way->n_ios++;
    io->way->ops->move(io->way, io);
}

void wefti_io_inner(element_io_t *io, weft_op_fn fn)
{
    io->state = IO_MOVING;
    io->inner.fn = fn;
    io->inner.user = io;
    io->inner.timeout_ns = 0;
    element_begin(io->t->es);
}

/* Call fn for each of those that are there now. It is on t->ios when it is looked at, and may end, and others with it. */
static void each_io(weft_transport_t *t, void (*fn)(element_io_t *io, weft_status_t st), weft_status_t st)
{
    wefti_list_t all;
    wefti_list_init(&all);
    wefti_list_splice(&all, &t->ios);
    t->walking = true;
    wefti_action_ref(t->action); /* the last of them may be all that keeps it */
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

static void go_if_waiting(element_io_t *io, weft_status_t st)
{
    (void)st;
    if (waits(io))
        io_go(io);
}

void wefti_ios_go(weft_transport_t *t)
{
    each_io(t, go_if_waiting, WEFT_OK);
}

static void end_if_waiting(element_io_t *io, weft_status_t why)
{
    if (waits(io))
        wefti_io_end(io, why);
}

void wefti_ios_waiting_end(weft_transport_t *t, weft_status_t why)
{
    each_io(t, end_if_waiting, why);
}

static void end_if_serving(element_io_t *io, weft_status_t why)
{
    if (io->what == IO_SERVE)
        wefti_io_end(io, why);
}

void wefti_ios_serve_end(weft_transport_t *t, weft_status_t why)
{
    each_io(t, end_if_serving, why);
}

static void stuck(weft_ext_timer_t *timer)
{
    element_io_t *io = wefti_container_of(timer, element_io_t, timer);
    io->timed = false;
    io->way->ops->abort(io->way);
}

/* It has to end, with `why`. */
static void stop(element_io_t *io, weft_status_t why)
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
    io->way->ops->stop(io->way, io);
}

static void stop_unless_flush(element_io_t *io, weft_status_t why)
{
    if (io->what != IO_FLUSH) /* those end when the others have */
        stop(io, why);
}

void wefti_ios_end(weft_transport_t *t, weft_status_t why)
{
    each_io(t, stop_unless_flush, why);
}

/* --- deadlines of the durl ----------------------------------------------------------------------------------------------------------- */

static void timed_out(weft_ext_timer_t *timer)
{
    element_io_t *io = wefti_container_of(timer, element_io_t, timer);
    io->timed = false;
    stop(io, WEFT_ERR_TIMEOUT);
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
        (void)limit(wefti_container_of(l, element_io_t, link)); /* what has no memory for a timer waits as it did */
}

/* --- posting, the driver's part ------------------------------------------------------------------------------------------------------- */

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
    return weft_fail(why, "the transport %s is %s: %s", t->name, weft_transport_state_name(t->state), weft_status_text(why));
}

static void drop_new(element_io_t *io)
{
    weft_transport_t *t = io->t;
    weft_action_t *action = t->action;
    pthread_mutex_lock(&t->lock);
    t->slow--;
    t->stats.failed++;
    pthread_mutex_unlock(&t->lock);
    io_free(io);
    wefti_action_unref(action);
}

static weft_status_t start(weft_op_t *op)
{
    element_io_t *io = weft_ext_scratch(op, io_room_t)->io;
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
    drop_new(weft_ext_scratch(op, io_room_t)->io);
    weft_ext_op_complete(op, st, 0);
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    element_io_t *io = weft_ext_scratch(op, io_room_t)->io;
    stop(io, why);
}

static const weft_op_kind_t kind = {.name = "transport", .start = start, .cancel = cancel, .failed = failed, .stops = true};

/* With the transport's lock, by a thread that posts, if it is not RELEASED: its way to the driver, or past it, begins. */
static void come_in(weft_transport_t *t)
{
    atomic_fetch_add(&t->inside, 1);
}

/* It ends, and nothing of the room is touched after that. */
static void go_out(weft_transport_t *t)
{
    atomic_fetch_sub(&t->inside, 1);
}

/* The same for what is counted: an io for the driver. */
static void come_in_slow(weft_transport_t *t)
{
    come_in(t);
    t->slow++;
    wefti_action_ref(t->action);
}

/* Hand an io that is counted to the driver, and go out. */
static weft_status_t post(element_io_t *io, weft_op_t *op)
{
    weft_transport_t *t = io->t;
    weft_status_t st = weft_ext_op_prepare(t->rt, op, &kind);
    if (!st) {
        io->op = op;
        weft_ext_scratch(op, io_room_t)->io = io;
        op->buf = NULL;
        st = weft_ext_op_start(op);
    }
    if (st)
        drop_new(io);
    go_out(t);
    return st;
}

/* --- at once ------------------------------------------------------------------------------------------------------------------------ */

/* It was begun by the thread that posted it, and was not done at once: from here on it is an io like any other. On the driver. */
static void adopt(element_io_t *io)
{
    weft_transport_t *t = io->t;
    io->way->n_ios++;
    io->state = IO_MOVING;
    wefti_list_push_back(&t->ios, &io->link);
    element_begin(t->es);
    if (weft_op_done(&io->inner)) {
        wefti_single_moved(&io->inner, io);
        return;
    }
    io->inner.user = io;
    io->inner.fn = wefti_single_moved;
    if (t->state == WEFT_TRANSPORT_RELEASED)
        stop(io, t->why);
}

static weft_status_t adopt_start(weft_op_t *op)
{
    adopt(weft_ext_scratch(op, io_room_t)->io);
    return WEFT_OK;
}

static const weft_op_kind_t adopted_kind = {.name = "transport", .start = adopt_start, .cancel = cancel};

static void adopt_without(weft_ext_call_t *call)
{
    adopt(wefti_container_of(call, element_io_t, call));
}

static weft_status_t not_at_once(element_io_t *io, weft_op_t *op)
{
    weft_transport_t *t = io->t;
    pthread_mutex_lock(&t->lock);
    t->slow++;
    pthread_mutex_unlock(&t->lock);
    wefti_action_ref(t->action);
    io->counted = true;
    weft_status_t st = weft_ext_op_prepare(t->rt, op, &adopted_kind);
    if (!st) {
        io->op = op;
        weft_ext_scratch(op, io_room_t)->io = io;
        st = weft_ext_op_start(op); /* an error: the runtime did not wait for us, for its fabric does not let go. What that may touch stays */
    } else { /* the runtime closes: nobody is told, and it ends like any other */
        io->call.fn = adopt_without;
        (void)weft_ext_call(t->rt, &io->call);
    }
    go_out(t);
    return st;
}

/* The way of a small read: `io` has its way and its buffer. */
static weft_status_t at_once(element_io_t *io, weft_op_t *op)
{
    weft_transport_t *t = io->t;
    weft_runtime_t *rt = t->rt;
    element_way_t *way = io->way;
    weft_buffer_t *buf = io->buf;
    size_t size = io->size;
    unsigned what = io->what;
    weft_status_t st = what == IO_READ ? weft_rma_read(way->remote, io->addr, buf->base + io->offset, size, &io->inner)
                                       : weft_rma_write(way->remote, io->addr, buf->base + io->offset, size, &io->inner);
    if (!st && !weft_op_done(&io->inner))
        return not_at_once(io, op);
    weft_status_t came = st ? st : io->inner.status;
    weft_ep_id_t from = io->inner.from;
    io->buf = NULL;
    io->way = NULL;
    pthread_mutex_lock(&t->lock);
    if (came) {
        came = t->state > WEFT_TRANSPORT_READY ? t->why : cut_off(t, came); /* the transport knows better why */
        st = st ? came : st;
    }
    count_one(&t->stats, what, size, came);
    t->stats.at_once += !came;
    io = put_spare(t, io);
    pthread_mutex_unlock(&t->lock);
    wefti_free(io);
    weft_buffer_drop(buf);
    wefti_way_unref(way); /* and with it the transport, if its action was closed meanwhile */
    go_out(t);
    if (st)
        return st;
    op->len = size;
    op->from = from;
    weft_ext_op_done(rt, op, came);
    return WEFT_OK;
}

/* --- posts -------------------------------------------------------------------------------------------------------------------------- */

static weft_status_t check(const weft_transport_t *t, const weft_op_t *op, bool server)
{
    if (!t || !op)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", t ? "the operation" : "the transport");
    weft_status_t st = weft_ext_check(t->rt); /* before any lock: another thread may have held it when we were forked */
    if (st)
        return st;
    if (t->server != server)
        return weft_fail(WEFT_ERR_INVALID,
                          server ? "the transport %s is of type rdma: only one of type rdma_server serves"
                                 : "the transport %s is of type rdma_server: it serves memory and reaches none",
                          t->name);
    return WEFT_OK;
}

/* With the lock: is there a buffer, and are these bytes in it? */
static weft_status_t check_local(const weft_transport_t *t, size_t size, size_t offset)
{
    if (!t->buf)
        return weft_fail(WEFT_ERR_STATE, "the transport %s has no buffer: call weft_transport_reg() first", t->name);
    if (offset > t->buf->len || size > t->buf->len - offset)
        return weft_fail(WEFT_ERR_RANGE, "%zu bytes at offset %zu are not in the buffer of %zu that is registered with %s", size,
                          offset, t->buf->len, t->name);
    return WEFT_OK;
}

/* With the lock. Where it leads is about to change: only the driver knows what an operation comes to, after that. */
static bool is_ordered(const weft_transport_t *t)
{
    return t->orders != t->obeyed && t->state != WEFT_TRANSPORT_RELEASED;
}

static bool may_be_at_once(weft_transport_t *t, size_t size, weft_op_t *op)
{
    return !is_ordered(t) && t->state == WEFT_TRANSPORT_READY && t->way && t->way->path == WEFT_RMA_MAPPED &&
           size <= ELEMENT_AT_ONCE && !t->slow && weft_ext_op_plain(t->rt, op);
}

/* For one that came in: it goes out. */
static weft_status_t no_memory(weft_transport_t *t, bool slow)
{
    pthread_mutex_lock(&t->lock);
    t->slow -= slow;
    t->stats.failed++;
    pthread_mutex_unlock(&t->lock);
    weft_status_t st = weft_fail(WEFT_ERR_NOMEM, "no memory for an operation on %s", t->name);
    if (slow)
        wefti_action_unref(t->action);
    go_out(t);
    return st;
}

static weft_status_t released(weft_transport_t *t)
{
    return weft_fail(WEFT_ERR_CLOSED, "the transport %s was released", t->name);
}

static weft_status_t transfer(weft_transport_t *t, unsigned what, size_t size, uint64_t addr, size_t offset, weft_op_t *op)
{
    weft_status_t st = check(t, op, false);
    element_way_t *way = NULL;
    if (st)
        return st;
    pthread_mutex_lock(&t->lock);
    if (t->state == WEFT_TRANSPORT_RELEASED) { /* the rest may be gone */
        pthread_mutex_unlock(&t->lock);
        return released(t);
    }
    st = check_local(t, size, offset);
    if (st) {
        t->stats.failed++;
        pthread_mutex_unlock(&t->lock);
        return st;
    }
    uint64_t timeout = op->timeout_ns ? op->timeout_ns : t->timeout_ns;
    weft_buffer_t *buf = t->buf;
    weft_buffer_hold(buf);
    if (may_be_at_once(t, size, op)) {
        way = t->way;
        wefti_way_ref(way);
        come_in(t);
    } else {
        come_in_slow(t);
    }
    element_io_t *io = take_spare(t);
    pthread_mutex_unlock(&t->lock);
    if (!io)
        io = io_new();
    if (!io) {
        weft_buffer_drop(buf);
        wefti_way_unref(way);
        return no_memory(t, !way);
    }
    io->t = t;
    io->buf = buf;
    io->what = (uint8_t)what;
    io->size = size;
    io->addr = addr;
    io->offset = offset;
    io->counted = !way;
    if (!way)
        return post(io, op);
    io->way = way;
    io->inner.timeout_ns = timeout;
    return at_once(io, op);
}

weft_status_t weft_transport_read(weft_transport_t *trans, size_t size, uint64_t addr, size_t offset, weft_op_t *op)
{
    return transfer(trans, IO_READ, size, addr, offset, op);
}

weft_status_t weft_transport_write(weft_transport_t *trans, size_t size, uint64_t addr, size_t offset, weft_op_t *op)
{
    return transfer(trans, IO_WRITE, size, addr, offset, op);
}

/* An io for the driver, which has come in; it is counted. */
static weft_status_t io_for(weft_transport_t *t, unsigned what, element_io_t **io_out)
{
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    element_io_t *io = NULL;
    if (may) {
        come_in_slow(t);
        io = take_spare(t);
    }
    pthread_mutex_unlock(&t->lock);
    if (!may)
        return released(t);
    if (!io)
        io = io_new();
    if (!io)
        return no_memory(t, true);
    io->t = t;
    io->what = (uint8_t)what;
    io->counted = true;
    *io_out = io;
    return WEFT_OK;
}

static weft_status_t post_new(weft_transport_t *t, unsigned what, weft_op_t *op)
{
    element_io_t *io;
    weft_status_t st = io_for(t, what, &io);
    return st ? st : post(io, op);
}

/* Does it need no buffer? One of no items needs one as it always did: whoever has none is told so. */
static bool all_own(const weft_transport_item_t *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!items[i].own)
            return false;
    return n > 0;
}

weft_status_t weft_transport_batch(weft_transport_t *trans, weft_transport_item_t *items, size_t n, weft_op_t *op)
{
    weft_status_t st = check(trans, op, false);
    if (!st && ((!items && n) || n > BATCH_MOST))
        st = weft_fail(WEFT_ERR_INVALID,
                        items ? "%zu are more than the %d that go in one batch" : "the %zu items are NULL (at most %d)", n,
                        BATCH_MOST);
    if (st)
        return st;
    weft_rma_item_t *rma = (weft_rma_item_t *)wefti_calloc(n ? n : 1, sizeof *rma);
    element_io_t *io;
    st = rma ? io_for(trans, IO_BATCH, &io) : weft_fail(WEFT_ERR_NOMEM, "no memory for a batch of %zu", n);
    if (st) {
        wefti_free(rma);
        return st;
    }
    io->rma_items = rma;
    io->items = items;
    io->n = n;
    wefti_list_init(&io->children);
    pthread_mutex_lock(&trans->lock);
    bool own = all_own(items, n);
    st = own ? WEFT_OK : check_local(trans, 0, 0);
    for (size_t i = 0; !st && i < n; i++) {
        uint8_t *at = (uint8_t *)items[i].own;
        if (items[i].what != WEFT_RMA_DO_READ && items[i].what != WEFT_RMA_DO_WRITE)
            st = weft_fail(WEFT_ERR_INVALID, "item %zu of the batch is neither a read nor a write", i);
        if (!st && !at)
            st = check_local(trans, items[i].size, items[i].offset);
        if (st)
            break;
        if (!at)
            at = trans->buf->base + items[i].offset;
        items[i].status = WEFT_ERR_CANCELLED; /* until it is known */
        rma[i] = (weft_rma_item_t){
            .what = items[i].what, .offset = items[i].addr, .buf = at, .len = items[i].size, .status = WEFT_ERR_CANCELLED};
    }
    if (!st && !own) {
        io->buf = trans->buf;
        weft_buffer_hold(io->buf);
    }
    pthread_mutex_unlock(&trans->lock);
    if (st) {
        drop_new(io);
        go_out(trans);
        return st;
    }
    return post(io, op);
}

weft_status_t weft_transport_atomic(weft_transport_t *trans, weft_rma_atomic_t which, uint64_t addr, size_t width,
                                    uint64_t operand, uint64_t compare, weft_op_t *op)
{
    weft_status_t st = check(trans, op, false);
    if (!st && ((width != 4 && width != 8) || addr % width || which < WEFT_RMA_ADD || which > WEFT_RMA_XOR))
        st = weft_fail(WEFT_ERR_INVALID,
                        "an atomic is on 4 or 8 bytes at a multiple of that, not on %zu at %llu (and %d is %s one)", width,
                        (unsigned long long)addr, (int)which, which < 1 || which > 6 ? "not" : "a known");
    if (st)
        return st;
    element_io_t *io;
    st = io_for(trans, IO_ATOMIC, &io);
    if (st)
        return st;
    io->which = (uint32_t)which;
    io->width = (uint32_t)width;
    io->addr = addr;
    io->operand = operand;
    io->compare = compare;
    return post(io, op);
}

weft_status_t weft_transport_fetch_add(weft_transport_t *trans, uint64_t addr, uint64_t value, weft_op_t *op)
{
    return weft_transport_atomic(trans, WEFT_RMA_ADD, addr, 8, value, 0, op);
}

weft_status_t weft_transport_compare_swap(weft_transport_t *trans, uint64_t addr, uint64_t expected, uint64_t desired,
                                          weft_op_t *op)
{
    return weft_transport_atomic(trans, WEFT_RMA_CAS, addr, 8, desired, expected, op);
}

weft_status_t weft_transport_alloc(weft_transport_t *trans, uint64_t len, const weft_transport_alloc_opts_t *opts, weft_op_t *op)
{
    weft_transport_alloc_opts_t o;
    weft_status_t st = check(trans, op, false);
    if (!st)
        st = wefti_opts_read(opts, &o, sizeof o, "weft_transport_alloc_opts_t");
    if (st)
        return st;
    element_io_t *io;
    st = io_for(trans, IO_ALLOC, &io);
    if (st)
        return st;
    io->bytes = len;
    io->lease_ns = o.lease_ns;
    return post(io, op);
}

weft_status_t weft_transport_flush(weft_transport_t *trans, weft_op_t *op)
{
    weft_status_t st = check(trans, op, false);
    return st ? st : post_new(trans, IO_FLUSH, op);
}

weft_status_t weft_transport_serve(weft_transport_t *trans, weft_op_t *op)
{
    weft_status_t st = check(trans, op, true);
    return st ? st : post_new(trans, IO_SERVE, op);
}

weft_status_t weft_transport_ready(weft_transport_t *trans, weft_op_t *op)
{
    weft_status_t st = check(trans, op, trans && trans->server);
    return st ? st : post_new(trans, IO_READY, op);
}

weft_status_t weft_transport_wait(weft_transport_t *trans, uint64_t timeout_ns)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_ext_may_wait();
    if (st)
        return st;
    op.timeout_ns = timeout_ns == WEFT_FOREVER ? 0 : timeout_ns ? timeout_ns : 1;
    st = weft_transport_ready(trans, &op);
    return st ? st : weft_op_wait(&op, WEFT_FOREVER);
}
