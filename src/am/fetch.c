/* am/fetch.c - payloads into the program's memory: pulls, views, and the second half of a receive.
 *
 * A fetch is complete at once if the data is here; otherwise it is PULLING until the fabric has written everything, or the
 * lane is closed. Cancelling and deadlines do not end it before: the buffer is not free. */
#include "am/state.h"

/* --- where it goes --------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_am_into(am_into_t *into, void *buf, size_t cap, const weft_iov_t *iov, size_t iov_n,
                            const weft_mem_kind_t *kind, uint64_t *cap_out)
{
    *into = (am_into_t){.one = {buf, cap}, .iov = iov, .iov_n = 1, .kind = kind};
    *cap_out = cap;
    if (iov) {
        const weft_mem_kind_t *device;
        into->iov_n = (uint32_t)iov_n;
        return wefti_pieces_check("a receive", true, iov, buf ? SIZE_MAX : iov_n, kind, cap_out, &device);
    }
    if (!buf && cap)
        return wefti_fail(WEFT_ERR_INVALID, "the buffer is NULL with a capacity of %zu", cap);
    return WEFT_OK;
}

/* --- the fetch ------------------------------------------------------------------------------------------------------------- */

static void unallocate(weft_op_t *op, const am_into_t *into)
{
    if (!into->alloc || !op->buf)
        return;
    weft_mem_free(into->kind, op->buf, op->len);
    op->buf = NULL;
}

static void pull_done(wefti_xfer_t *x, weft_status_t status)
{
    am_pull_t *p = wefti_container_of(x, am_pull_t, x);
    weft_op_t *op = wefti_op_of_scratch(p);
    weft_ep_t *ep = p->source;
    am_msg_t *viewed = p->view ? p->msg : NULL;
    status = wefti_ep_pulled(ep, op, status);
    if (status)
        unallocate(op, &p->into);
    else if (viewed)
        op->buf = viewed->own;
    wefti_op_complete(op, status);
    if (viewed)
        wefti_am_unref(viewed);
    wefti_ep_drained(ep);
}

static void fetch_cancel(weft_op_t *op, weft_status_t why)
{
    op->status = why; /* the fabric is writing to its buffer */
}

static const wefti_op_kind_t fetch_kind = {.name = "am fetch", .cancel = fetch_cancel};

static void carry_done(wefti_carry_t *carry, weft_status_t status)
{
    weft_op_t *op = carry->user;
    weft_ep_t *ep = am_pull(op)->source;
    wefti_carry_put(wefti_opx(op)->rt, carry);
    if (ep)
        status = wefti_ep_pulled(ep, op, status);
    if (status)
        unallocate(op, &am_pull(op)->into);
    wefti_op_complete(op, status);
    if (ep)
        wefti_ep_drained(ep);
}

/* Bytes for a device go on by themselves. false: the device has to be waited for. */
static bool carry_bytes(weft_op_t *op, const am_msg_t *m, const am_into_t *into, const weft_mem_kind_t *device)
{
    const weft_iov_t *iov = into->iov ? into->iov : &into->one;
    if (!wefti_carry_bytes(wefti_opx(op)->rt, m->pub.data, m->pub.len, device, iov, carry_done, op))
        return false;
    *am_pull(op) = (am_pull_t){.source = m->ep, .into = *into};
    wefti_opx(op)->kind = &fetch_kind;
    op->status = WEFT_OK;
    if (m->ep)
        m->ep->pulls++;
    return true;
}

weft_status_t wefti_am_fetch(weft_op_t *op, am_msg_t *m, am_into_t into)
{
    weft_status_t st = WEFT_OK;
    uint64_t len = m->pub.len;
    if (into.alloc)
        op->buf = NULL;
    if (into.alloc && len) {
        void *buf;
        st = weft_mem_alloc(into.kind, len, &buf);
        if (st)
            return st;
        op->buf = buf;
        into.one = (weft_iov_t){buf, len};
    }
    const weft_iov_t *iov = into.iov ? into.iov : &into.one;
    const weft_iov_t *first = iov; /* that is not empty: an empty one may be anywhere */
    while (len && !first->len)
        first++;
    const weft_mem_kind_t *device = len ? wefti_mem_device_of(first->base, into.kind) : NULL;
    op->len = len;
    if (m->at == AT_HERE && device && carry_bytes(op, m, &into, device))
        return WEFT_OK;
    if (m->at == AT_HERE) {
        st = wefti_iov_scatter(iov, device, (const uint8_t *)m->pub.data, len);
        if (st)
            unallocate(op, &into);
        else
            wefti_op_complete(op, WEFT_OK);
        return st;
    }
    am_pull_t *p = am_pull(op);
    am_msg_t *msg = p->view ? p->msg : NULL;
    bool view = msg != NULL;
    *p = (am_pull_t){.msg = msg, .source = m->ep, .into = into, .x.done = pull_done, .view = view};
    st = wefti_in_pull(m->in, into.iov ? into.iov : &p->into.one, into.iov_n, len, device, &p->x);
    if (st) {
        unallocate(op, &into);
        return st;
    }
    wefti_opx(op)->kind = &fetch_kind;
    op->status = WEFT_OK;
    m->ep->pulls++;
    wefti_am_detach(m, AT_TAKEN);
    return WEFT_OK;
}

/* --- pull and view --------------------------------------------------------------------------------------------------------- */

/* What is wrong with fetching from it now; WEFT_OK for nothing. */
static weft_status_t unfit(const am_msg_t *m)
{
    return m->at == AT_LOST ? m->lost : m->at == AT_TAKEN || m->at == AT_LENT ? WEFT_ERR_STATE : WEFT_OK;
}

/* It did not come about: another may try, and hear the same if it is lost. */
static void give_up(weft_op_t *op, am_msg_t *m, weft_status_t st, uint64_t detail)
{
    op->len = m->pub.len;
    if (m->at != AT_TAKEN && m->at != AT_LENT)
        atomic_store(&m->claimed, false);
    wefti_op_complete_why(op, st, detail);
}

static weft_status_t pull_start(weft_op_t *op)
{
    am_pull_t *p = am_pull(op);
    am_msg_t *m = p->msg;
    am_into_t into = p->into;
    weft_status_t st = wefti_op_may_start(op);
    if (!st)
        st = unfit(m);
    op->from = m->pub.from;
    op->tag = m->pub.id;
    if (!st && !into.alloc && op->len < m->pub.len)
        st = WEFT_ERR_TRUNCATED;
    if (!st) {
        bool waits = m->at == AT_SENDER;
        p->view = false;
        st = wefti_am_fetch(op, m, into);
        if (!st && waits)
            (void)wefti_op_track(op); /* without memory for its deadline it still ends with the transfer or the lane */
    }
    if (st)
        give_up(op, m, st, 0);
    if (m->block)
        wefti_am_unref(m);
    return WEFT_OK;
}

/* It was cancelled before: the message is there for another. */
static void pull_skip(weft_op_t *op)
{
    am_msg_t *m = am_pull(op)->msg;
    op->from = m->pub.from;
    op->tag = m->pub.id;
    op->len = m->pub.len;
    if (m->at != AT_TAKEN && m->at != AT_LENT)
        atomic_store(&m->claimed, false);
    if (m->block)
        wefti_am_unref(m);
}

static weft_status_t start_view(weft_op_t *op, bool device)
{
    am_pull_t *p = am_pull(op);
    am_msg_t *m = p->msg;
    uint64_t why = 0;
    weft_status_t st = wefti_op_may_start(op);
    if (!st)
        st = unfit(m);
    op->from = m->pub.from;
    op->tag = m->pub.id;
    op->len = m->pub.len;
    op->buf = NULL;
    if (st)
        goto err_view;
    if (m->at == AT_HERE && device) {
        st = WEFT_ERR_UNSUPPORTED;
        why = wefti_detail_put("the payload cannot be lent: it is short and came with the message, into host memory: pull it");
        goto err_view;
    }
    if (m->at == AT_HERE) {
        op->buf = (void *)(uintptr_t)m->pub.data;
        wefti_op_complete(op, WEFT_OK);
        wefti_am_unref(m);
        return WEFT_OK;
    }
    st = device ? wefti_in_lend_device(m->in, &m->lent) : WEFT_OK;
    if (device ? !st : !wefti_in_lend(m->in, &m->lent)) {
        m->at = AT_LENT;
        wefti_timer_stop(m->as->rt, &m->hold);
        op->buf = (void *)(uintptr_t)m->lent.ptr;
        wefti_op_complete(op, WEFT_OK);
        wefti_am_unref(m);
        return WEFT_OK;
    }
    if (st) {
        why = wefti_detail_last(st);
        goto err_view;
    }
    m->own = wefti_malloc(m->pub.len);
    st = WEFT_ERR_NOMEM;
    if (!m->own)
        goto err_view;
    p->view = true; /* its reference stays until the bytes are there */
    st = wefti_am_fetch(op, m, (am_into_t){.one = {m->own, m->pub.len}, .iov_n = 1, .kind = weft_mem_host()});
    if (st)
        goto err_own;
    (void)wefti_op_track(op);
    return WEFT_OK;

err_own:
    wefti_free(m->own);
    m->own = NULL;
err_view:
    give_up(op, m, st, why);
    wefti_am_unref(m);
    return WEFT_OK;
}

static weft_status_t view_start(weft_op_t *op)
{
    return start_view(op, false);
}

static weft_status_t view_device_start(weft_op_t *op)
{
    return start_view(op, true);
}

static const wefti_op_kind_t pull_kind = {
    .name = "am pull", .start = pull_start, .cancel = fetch_cancel, .skip = pull_skip, .stops = true, .streams = true};
static const wefti_op_kind_t view_kind = {.name = "am view", .start = view_start, .cancel = fetch_cancel};
static const wefti_op_kind_t view_device_kind = {
    .name = "am view on a device", .start = view_device_start, .cancel = fetch_cancel};

/* A pull that waits for a stream outlives the handler that posted it: the message on the handler's stack goes to a block, which
 * the pull and the handler have. NULL: no memory. */
static am_msg_t *outlive(am_msg_t *m)
{
    am_msg_t *block = wefti_am_block(m);
    if (!block)
        return NULL;
    wefti_am_give(block);
    block->kept = false;
    m->borrowed = true;
    return block;
}

/* Claim the message and hand the operation to the driver. */
static weft_status_t post(am_msg_t *m, weft_op_t *op, const wefti_op_kind_t *kind, const am_into_t *into, uint64_t cap)
{
    weft_runtime_t *rt = am_msg_runtime(m);
    if (!rt)
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime of the message is closed");
    if (wefti_gone(rt))
        return wefti_fail_gone(rt);
    if (atomic_exchange(&m->claimed, true))
        return wefti_fail(WEFT_ERR_STATE, "the message was pulled, viewed or rejected before");
    weft_status_t st = wefti_op_prepare(rt, op, kind);
    if (st)
        goto err_claimed;
    if (!m->block && wefti_gate_closed(op)) {
        am_msg_t *block = outlive(m);
        if (!block) {
            wefti_op_unprepare(op);
            st = wefti_fail(WEFT_ERR_NOMEM, "no memory to keep a message until its pull begins");
            goto err_claimed;
        }
        m = block;
    }
    *am_pull(op) = (am_pull_t){.msg = m, .into = *into};
    op->len = cap;
    op->status = WEFT_OK;
    if (m->block)
        atomic_fetch_add(&m->refs, 1);
    st = wefti_op_post(rt, op); /* its start never fails, but the runtime may be closed meanwhile */
    if (!st)
        return WEFT_OK;
    if (m->block)
        atomic_fetch_sub(&m->refs, 1); /* not the last: the program has it, or its handler */
err_claimed:
    atomic_store(&m->claimed, false);
    return st;
}

weft_status_t weft_am_pull(weft_am_t *am, void *buf, size_t cap, weft_op_t *op)
{
    am_into_t into;
    uint64_t cap_all;
    if (!am || !op)
        return wefti_fail(WEFT_ERR_INVALID, "a pull needs a message and an operation");
    weft_status_t st = wefti_am_into(&into, buf, cap, NULL, 0, NULL, &cap_all);
    return st ? st : post(am_msg_now(am), op, &pull_kind, &into, cap_all);
}

weft_status_t weft_am_pull_with(weft_am_t *am, const weft_am_pull_opts_t *given, weft_op_t *op)
{
    weft_am_pull_opts_t o;
    am_into_t into;
    uint64_t cap_all;
    if (!am || !op || !given)
        return wefti_fail(WEFT_ERR_INVALID, "a pull needs a message, an operation and options made with WEFT_AM_PULL_OPTS_INIT");
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_am_pull_opts_t");
    if (!st)
        st = wefti_am_into(&into, o.buf, o.cap, o.iov, o.iov_n, o.kind, &cap_all);
    if (st)
        return st;
    if (!o.buf && !o.iov) {
        into.alloc = true;
        into.kind = o.kind ? o.kind : weft_mem_host();
    }
    return post(am_msg_now(am), op, &pull_kind, &into, cap_all);
}

static weft_status_t view(weft_am_t *am, weft_op_t *op, bool device)
{
    static const am_into_t nowhere;
    if (!am || !op)
        return wefti_fail(WEFT_ERR_INVALID, "a view needs a message and an operation");
    am_msg_t *m = am_msg_now(am);
    if (!m->block || !m->kept)
        return wefti_fail(WEFT_ERR_STATE, "a view lasts until its message is released: keep the message first");
    return post(m, op, device ? &view_device_kind : &view_kind, &nowhere, 0);
}

weft_status_t weft_am_view(weft_am_t *am, weft_op_t *op)
{
    return view(am, op, false);
}

weft_status_t weft_am_view_device(weft_am_t *am, weft_op_t *op)
{
    return view(am, op, true);
}
