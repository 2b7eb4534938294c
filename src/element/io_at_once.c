/* element/io_at_once.c - reads and writes of mapped memory, carried out by the thread that posts them.
 *
 * The transport's lock is held twice for a moment, and nothing is handed to the driver. This is done only while nothing else is
 * under way on the transport, so that nothing is overtaken. An access that turns out not to be done at once becomes an io like
 * any other. tests/wire/element_basic.c, element_storm.c. */
#include "element/io.h"

/* It was begun by the thread that posted it, and was not done at once: from here on it is an io like any other. On the driver. */
static void adopt(element_io_t *io)
{
    weft_transport_t *t = io->t;
    io->route->n_ios++;
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
        wefti_io_stop(io, t->why);
}

static weft_status_t adopt_start(weft_op_t *op)
{
    adopt(weft_ext_scratch(op, io_scratch_t)->io);
    return WEFT_OK;
}

static const weft_op_kind_t adopted_kind = {.name = "transport", .start = adopt_start, .cancel = wefti_io_cancel};

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
    weft_status_t st = weft_ext_op_prepare(t->rt, op, &adopted_kind);
    if (!st) {
        io->op = op;
        weft_ext_scratch(op, io_scratch_t)->io = io;
        st = weft_ext_op_start(
            op); /* an error: the runtime is closed although its fabric does not let go. What the fabric may touch stays */
    } else {     /* the runtime closes: it ends like any other, without an operation */
        io->call.fn = adopt_without;
        (void)weft_ext_call(t->rt, &io->call);
    }
    wefti_io_go_out(t);
    return st;
}

/* The path of a small read: `io` has its route and its buffer. */
static weft_status_t at_once(element_io_t *io, weft_op_t *op)
{
    weft_transport_t *t = io->t;
    weft_runtime_t *rt = t->rt;
    element_route_t *route = io->route;
    weft_buffer_t *buf = io->buf;
    size_t size = io->size;
    unsigned what = io->what;
    weft_status_t st = what == IO_READ ? weft_rma_read(route->remote, io->addr, buf->base + io->offset, size, &io->inner)
                                       : weft_rma_write(route->remote, io->addr, buf->base + io->offset, size, &io->inner);
    if (!st && !weft_op_done(&io->inner))
        return not_at_once(io, op);
    weft_status_t came = st ? st : io->inner.status;
    element_range_t range = {what, size, io->addr, io->offset, true, 0, 0};
    weft_ep_id_t from = io->inner.from;
    io->buf = NULL;
    io->route = NULL;
    pthread_mutex_lock(&t->lock);
    if (came) {
        came = t->state > WEFT_TRANSPORT_READY ? t->why : wefti_io_cut_off(t, came); /* the transport knows better why */
        st = st ? came : st;
    }
    wefti_io_count(&t->stats, what, size, came);
    t->stats.at_once += !came;
    io = wefti_io_put_spare(t, io);
    pthread_mutex_unlock(&t->lock);
    wefti_free(io);
    weft_buffer_drop(buf);
    if (came == WEFT_ERR_RANGE)
        (void)wefti_range_remote(t, &range, route->len);
    wefti_route_unref(route); /* the transport may go with it, if its action was closed meanwhile */
    wefti_io_go_out(t);
    if (st)
        return st;
    op->len = size;
    op->from = from;
    weft_ext_op_done(rt, op, came);
    return WEFT_OK;
}

/* --- posts ---------------------------------------------------------------------------------------------------------------- */

/* With the lock. An order to go elsewhere is on its way: only the driver knows where operations go after that. */
static bool is_ordered(const weft_transport_t *t)
{
    return t->orders != t->obeyed && t->state != WEFT_TRANSPORT_RELEASED;
}

static bool may_be_at_once(weft_transport_t *t, size_t size)
{
    return !is_ordered(t) && t->state == WEFT_TRANSPORT_READY && t->route && t->route->path == WEFT_RMA_MAPPED &&
           size <= ELEMENT_AT_ONCE && !t->slow;
}

static weft_status_t transfer(weft_transport_t *t, unsigned what, size_t size, uint64_t addr, size_t offset, weft_op_t *op)
{
    bool plain = t && op && !t->server && weft_ext_op_plain(t->rt, op); /* then its runtime is there, too */
    weft_status_t st = plain ? WEFT_OK : wefti_io_check(t, op, false);
    element_route_t *route = NULL;
    if (st)
        return st;
    pthread_mutex_lock(&t->lock);
    if (t->state == WEFT_TRANSPORT_RELEASED) { /* the rest may be gone */
        pthread_mutex_unlock(&t->lock);
        return wefti_io_released(t);
    }
    st = wefti_io_check_local(t, &(element_range_t){what, size, addr, offset, true, 0, 0});
    if (st) {
        t->stats.failed++;
        pthread_mutex_unlock(&t->lock);
        return st;
    }
    uint64_t timeout = op->timeout_ns ? op->timeout_ns : t->timeout_ns;
    weft_buffer_t *buf = t->buf;
    weft_buffer_hold(buf);
    if (plain && may_be_at_once(t, size)) {
        route = t->route;
        wefti_route_ref(route);
        wefti_io_come_in(t);
    } else {
        wefti_io_come_in_slow(t);
    }
    element_io_t *io = wefti_io_take(t);
    pthread_mutex_unlock(&t->lock);
    if (!io) {
        weft_buffer_drop(buf);
        wefti_route_unref(route);
        return wefti_io_no_memory(t, !route);
    }
    io->t = t;
    io->buf = buf;
    io->what = (uint8_t)what;
    io->size = size;
    io->addr = addr;
    io->offset = offset;
    if (!route)
        return wefti_io_post(io, op);
    io->route = route;
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
