/* element/io_post.c - what a program posts on a transport beside reads and writes, and the checks of all of it. */
#include "element/io.h"

enum { BATCH_MOST = 65536 };

/* --- checks -------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_io_check(const weft_transport_t *t, const weft_op_t *op, bool server)
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

weft_status_t wefti_io_not_local(const weft_transport_t *t, const element_range_t *r)
{
    if (!t->buf)
        return weft_fail(WEFT_ERR_STATE, "the transport %s has no buffer: call weft_transport_reg() first", t->name);
    return wefti_range_local(t, r);
}

/* For a thread that is inside: it goes out. */
weft_status_t wefti_io_no_memory(weft_transport_t *t, bool slow)
{
    pthread_mutex_lock(&t->lock);
    t->slow -= slow;
    t->stats.failed++;
    pthread_mutex_unlock(&t->lock);
    weft_status_t st = weft_fail(WEFT_ERR_NOMEM, "no memory for an operation on %s", t->name);
    if (slow)
        wefti_action_unref(t->action);
    wefti_io_go_out(t);
    return st;
}

weft_status_t wefti_io_released(const weft_transport_t *t)
{
    return weft_fail(WEFT_ERR_CLOSED, "the transport %s was released", t->name);
}

/* --- posts --------------------------------------------------------------------------------------------------------------- */

/* A counted io for the driver; the thread is inside. */
static weft_status_t io_for(weft_transport_t *t, unsigned what, element_io_t **io_out)
{
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    element_io_t *io = NULL;
    if (may) {
        wefti_io_come_in_slow(t);
        io = wefti_io_take(t);
    }
    pthread_mutex_unlock(&t->lock);
    if (!may)
        return wefti_io_released(t);
    if (!io)
        return wefti_io_no_memory(t, true);
    io->t = t;
    io->what = (uint8_t)what;
    *io_out = io;
    return WEFT_OK;
}

/* One that has nothing to say but what it is. */
static weft_status_t post_plain(weft_transport_t *t, unsigned what, bool server, weft_op_t *op)
{
    element_io_t *io;
    weft_status_t st = wefti_io_check(t, op, server);
    if (!st)
        st = io_for(t, what, &io);
    return st ? st : wefti_io_post(io, op);
}

/* Does it need no buffer? A batch without items needs one. */
static bool all_own(const weft_transport_item_t *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!items[i].own)
            return false;
    return n > 0;
}

weft_status_t weft_transport_batch(weft_transport_t *trans, weft_transport_item_t *items, size_t n, weft_op_t *op)
{
    weft_status_t st = wefti_io_check(trans, op, false);
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
    st = own ? WEFT_OK : wefti_io_check_local(trans, &(element_range_t){0});
    for (size_t i = 0; !st && i < n; i++) {
        uint8_t *at = (uint8_t *)items[i].own;
        if (items[i].what != WEFT_RMA_DO_READ && items[i].what != WEFT_RMA_DO_WRITE)
            st = weft_fail(WEFT_ERR_INVALID, "item %zu of the batch is neither a read nor a write", i);
        if (!st && !at)
            st = wefti_io_check_local(trans, &(element_range_t){items[i].what == WEFT_RMA_DO_READ ? IO_READ : IO_WRITE,
                                                                items[i].size, items[i].addr, items[i].offset, true, i, n});
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
        wefti_io_drop(io);
        wefti_io_go_out(trans);
        return st;
    }
    return wefti_io_post(io, op);
}

weft_status_t weft_transport_atomic(weft_transport_t *trans, weft_rma_atomic_t which, uint64_t addr, size_t width,
                                    uint64_t operand, uint64_t compare, weft_op_t *op)
{
    weft_status_t st = wefti_io_check(trans, op, false);
    if (!st && (which < WEFT_RMA_ADD || which > WEFT_RMA_XOR))
        st = weft_fail(WEFT_ERR_INVALID, "there is no atomic operation %d", (int)which);
    else if (!st && width != 4 && width != 8)
        st = weft_fail(WEFT_ERR_INVALID, "an atomic operation is on 4 or 8 bytes, and not on %zu", width);
    else if (!st && addr % width)
        st = weft_fail(WEFT_ERR_INVALID, "an atomic operation on %zu bytes is at a multiple of %zu, and %llu is none", width,
                       width, (unsigned long long)addr);
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
    return wefti_io_post(io, op);
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
    weft_status_t st = wefti_io_check(trans, op, false);
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
    return wefti_io_post(io, op);
}

weft_status_t weft_transport_flush(weft_transport_t *trans, weft_op_t *op)
{
    return post_plain(trans, IO_FLUSH, false, op);
}

weft_status_t weft_transport_serve(weft_transport_t *trans, weft_op_t *op)
{
    return post_plain(trans, IO_SERVE, true, op);
}

weft_status_t weft_transport_ready(weft_transport_t *trans, weft_op_t *op)
{
    return post_plain(trans, IO_READY, trans && trans->server, op);
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
