/* rma/batch.c - many accesses in one post, and waiting for earlier ones.
 *
 * A batch is an array of accesses whose ends are counted; items that a mapped region takes at once do without, and many of them
 * are done each time that the region is entered. Cancelling a batch cancels those of its accesses that are still under way. A
 * flush waits in its remote until every earlier access has ended.
 *
 * Promise: a batch completes once, after its last item; a flush after everything before it. tests/sim/rma_exactly_once.c. */
#include "rma/mapped.h"

#define BATCH_MAX 65536u
#define FENCED ((weft_status_t)1) /* of an item that has not begun: there was a fence before it */
#define VISIT_ITEMS 256u          /* that are done in one visit of mapped memory: its owner and other threads wait meanwhile */
#define VISIT_BYTES (64u << 10)   /* and their bytes, unless the first has more */

/* --- batches ----------------------------------------------------------------------------------------------------------- */

typedef struct rma_post {
    weft_rma_item_t *items;
    size_t n;
    rma_batch_t *batch; /* once it has begun */
    weft_status_t why;  /* it was cancelled */
} rma_post_t;

static void finish(weft_op_t *op, const weft_rma_item_t *items, size_t n, weft_status_t why)
{
    uint64_t ok = 0;
    weft_status_t first = WEFT_OK;
    for (size_t i = 0; i < n; i++) {
        ok += !items[i].status;
        if (items[i].status && !first)
            first = items[i].status;
    }
    op->count = ok;
    wefti_op_complete(op, ok < n && why ? why : first);
}

static void one_less(rma_batch_t *b)
{
    if (--b->left)
        return;
    finish(b->op, b->items, b->n, wefti_op_scratch(b->op, rma_post_t)->why);
    wefti_free(b);
}

void wefti_rma_batch_ended(rma_acc_t *acc, weft_status_t status)
{
    rma_batch_t *b = acc->batch;
    b->items[b->first + (size_t)(acc - b->acc)].status = status;
    acc->remote = NULL;
    one_less(b);
}

/* Neighbours are mostly of one remote: what concerns the remote is done once for all of them. */
static inline bool first_of_remote(const weft_rma_item_t *items, size_t i)
{
    return !i || items[i].remote != items[i - 1].remote;
}

/* It has begun, or never will. */
static inline void item_came(const weft_rma_item_t *items, size_t n, size_t i)
{
    if (i + 1 == n || items[i + 1].remote != items[i].remote)
        wefti_rma_came(items[i].remote);
}

static bool item_is_good(const weft_runtime_t *rt, const weft_rma_item_t *it)
{
    return it->remote && it->remote->rt == rt && (it->what == WEFT_RMA_DO_READ || it->what == WEFT_RMA_DO_WRITE) &&
           (it->buf || !it->len);
}

/* How many items have to be looked at to see every first one of a remote: all of them, or one if there is but one remote.
 * 0: one of them is not good. */
static size_t check(const weft_rma_item_t *items, size_t n)
{
    const weft_runtime_t *rt = items[0].remote ? items[0].remote->rt : NULL;
    size_t most = 1;
    for (size_t i = 0; i < n; i++) {
        if (__builtin_expect(!item_is_good(rt, &items[i]), 0)) {
            (void)wefti_fail(WEFT_ERR_INVALID,
                             "item %zu needs a remote of the same runtime as the first, a buffer, and something to do", i);
            return 0;
        }
        most = items[i].remote == items[0].remote ? most : n;
    }
    return most;
}

/* Its turn: may it? The fence before it stands, whatever becomes of it. */
static inline weft_status_t item_fits(weft_rma_item_t *items, size_t i)
{
    weft_rma_item_t *it = &items[i];
    weft_remote_t *r = it->remote;
    uint32_t rights = it->what == WEFT_RMA_DO_READ ? WEFT_RMA_READ : WEFT_RMA_WRITE;
    if (first_of_remote(items, i) && it->status == FENCED)
        r->epoch++;
    it->status = (weft_status_t)atomic_load_explicit(&r->state, memory_order_relaxed);
    if (__builtin_expect(!it->status && !rma_fits(r, rights, it->offset, it->len), 0))
        it->status = wefti_rma_fits(r, rights, it->offset, it->len); /* says why not */
    return it->status;
}

/* Small, and its buffer is in memory that the processor can touch. */
static inline bool is_plain(const weft_rma_item_t *it)
{
    return it->len <= RMA_AT_ONCE && !(it->len && wefti_mem_device_of(it->buf, NULL));
}

/* Carry out item `first`, and those behind it that can be done within one visit of its remote's memory, which was entered:
 * entering and leaving take longer than a short copy. Returns the first that was not done. */
static size_t visit(weft_rma_item_t *items, size_t n, size_t first, uint64_t *bytes_out)
{
    weft_remote_t *r = items[first].remote;
    uint64_t bytes_read = 0, bytes_written = 0, reads = 0;
    size_t i = first, end = n - first < VISIT_ITEMS ? n : first + VISIT_ITEMS;
    do {
        const weft_rma_item_t *it = &items[i++];
        if (it->what == WEFT_RMA_DO_READ) {
            reads++;
            bytes_read += it->len;
            if (it->len)
                rma_copy(it->buf, r->bytes + it->offset, it->len);
        } else {
            bytes_written += it->len;
            if (it->len)
                rma_copy(r->bytes + it->offset, it->buf, it->len);
        }
    } while (i < end && items[i].remote == r && !item_fits(items, i) && is_plain(&items[i]) &&
             bytes_read + bytes_written + items[i].len <= VISIT_BYTES);
    wefti_count_up(&r->count.reads, reads);
    wefti_count_up(&r->count.writes, i - first - reads);
    wefti_count_up(&r->count.bytes_read, bytes_read);
    wefti_count_up(&r->count.bytes_written, bytes_written);
    wefti_count_up(&r->fast, i - first);
    *bytes_out += bytes_read + bytes_written;
    return i;
}

/* Nobody is under way, and item `first` is small and mapped, or must not be done at all: done here and now, with those behind it
 * of the same remote for which that is so. Returns the first that was not done. */
static size_t at_once(weft_rma_item_t *items, size_t n, size_t first, uint64_t *bytes_out)
{
    weft_remote_t *r = items[first].remote;
    if (item_fits(items, first))
        return first + 1;
    if (!r->slot || !is_plain(&items[first]) || atomic_load_explicit(&r->n_live, memory_order_relaxed) || rma_enter(r))
        return first;
    size_t end = visit(items, n, first, bytes_out);
    weft_status_t st = rma_leave(r);
    for (size_t i = first; __builtin_expect(st, 0) && i < end; i++) /* nobody knows before which of them it was taken from us */
        items[i].status = st;
    return end;
}

static void item_begin(rma_batch_t *b, size_t i)
{
    weft_rma_item_t *it = &b->items[i];
    rma_acc_t *acc = &b->acc[i - b->first];
    *acc = (rma_acc_t){.remote = it->remote,
                       .batch = b,
                       .what = it->what == WEFT_RMA_DO_READ ? ACC_READ : ACC_WRITE,
                       .offset = it->offset,
                       .len = it->len,
                       .buf = it->buf,
                       .device = it->len ? wefti_mem_device_of(it->buf, NULL) : NULL};
    weft_status_t st = item_fits(b->items, i);
    if (!st)
        st = wefti_rma_begin(acc);
    if (st)
        wefti_rma_batch_ended(acc, st);
    item_came(b->items, b->n, i);
}

static weft_status_t batch_start(weft_op_t *op)
{
    rma_post_t *p = wefti_op_scratch(op, rma_post_t);
    weft_rma_item_t *items = p->items;
    size_t n = p->n, first = 0;
    uint64_t done = 0; /* bytes of this post: what is more than a mapped access may be takes turns with others */
    rma_state_t *rs = items[0].remote->rs;
    for (size_t end; first < n && done < RMA_AT_ONCE && (end = at_once(items, n, first, &done)) > first; first = end)
        item_came(items, n, end - 1); /* those before it are of the same remote */
    if (first == n) {
        finish(op, items, n, WEFT_OK);
        return WEFT_OK;
    }
    rma_batch_t *b = (rma_batch_t *)wefti_malloc(sizeof *b + (n - first) * sizeof b->acc[0]);
    if (!b) {
        for (; first < n; first++) {
            items[first].status = WEFT_ERR_NOMEM;
            item_came(items, n, first);
        }
        finish(op, items, n, WEFT_OK);
        return WEFT_OK;
    }
    *b = (rma_batch_t){.op = op, .items = items, .n = n, .first = first, .left = n - first + 1};
    p->batch = b;
    for (size_t i = first; i < n; i++) {
        rs->later = done >= RMA_AT_ONCE;
        done += items[i].len;
        item_begin(b, i);
    }
    rs->later = false;
    if (b->left > 1)
        (void)wefti_op_track(op); /* without memory for its deadline it still ends with its items */
    one_less(b);
    return WEFT_OK;
}

static void batch_cancel(weft_op_t *op, weft_status_t why)
{
    rma_post_t *p = wefti_op_scratch(op, rma_post_t);
    rma_batch_t *b = p->batch;
    if (!p->why)
        p->why = why;
    b->left++; /* so that it is not freed meanwhile */
    for (size_t i = b->first; i < b->n; i++)
        if (b->acc[i - b->first].remote)
            wefti_rma_cancel(&b->acc[i - b->first], why);
    one_less(b);
}

static void batch_skip(weft_op_t *op)
{
    const rma_post_t *p = wefti_op_scratch(op, rma_post_t);
    for (size_t i = 0; i < p->n; i++) {
        (void)item_fits(p->items, i); /* its fence stands */
        p->items[i].status = WEFT_ERR_CANCELLED;
        item_came(p->items, p->n, i);
    }
}

static const wefti_op_kind_t batch_kind = {
    .name = "batch", .start = batch_start, .cancel = batch_cancel, .skip = batch_skip, .stops = true, .streams = true};

weft_status_t weft_rma_batch(weft_rma_item_t *items, size_t n, weft_op_t *op)
{
    if (!items || !n || !op || n > BATCH_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "a batch needs 1 to %u items and an operation", BATCH_MAX);
    size_t most = check(items, n), coming = 0;
    if (!most)
        return WEFT_ERR_INVALID;
    weft_runtime_t *rt = items[0].remote->rt;
    weft_status_t st = wefti_op_prepare(rt, op, &batch_kind);
    if (st)
        return st;
    while (coming < most && !(first_of_remote(items, coming) && (st = wefti_rma_coming(items[coming].remote))))
        coming++;
    if (st) {
        wefti_op_unprepare(op);
        goto err_coming;
    }
    *wefti_op_scratch(op, rma_post_t) = (rma_post_t){.items = items, .n = n};
    op->from = items[0].remote->owner;
    for (size_t i = 0; i < most; i++) /* a fence that is called from now on is not before it, whenever the driver begins */
        if (first_of_remote(items, i))
            items[i].status = atomic_exchange(&items[i].remote->fence, false) ? FENCED : WEFT_OK;
    st = wefti_op_post(rt, op); /* its start never fails, but the runtime may be closed meanwhile */
    if (!st)
        return WEFT_OK;

err_coming:
    while (coming-- > 0)
        if (first_of_remote(items, coming))
            wefti_rma_comes_not(items[coming].remote);
    return st;
}

/* --- flushes ----------------------------------------------------------------------------------------------------------- */

typedef struct rma_flush {
    weft_remote_t *remote;
    uint64_t seq;
} rma_flush_t;

static void flush_end(weft_op_t *op, weft_status_t st)
{
    weft_remote_t *r = wefti_op_scratch(op, rma_flush_t)->remote;
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, st);
    wefti_rma_remote_unref(r);
}

void wefti_rma_flushes(weft_remote_t *r)
{
    if (wefti_list_empty(&r->flushes))
        return;
    wefti_list_t *l = wefti_list_first(&r->live);
    uint64_t oldest = l ? wefti_container_of(l, rma_acc_t, live_link)->seq : UINT64_MAX;
    r->refs++;
    while ((l = wefti_list_first(&r->flushes)) && wefti_op_scratch(wefti_op_of_link(l), rma_flush_t)->seq < oldest)
        flush_end(wefti_op_of_link(l), WEFT_OK);
    wefti_rma_remote_unref(r);
}

static weft_status_t flush_start(weft_op_t *op)
{
    rma_flush_t *f = wefti_op_scratch(op, rma_flush_t);
    weft_remote_t *r = f->remote;
    weft_status_t st = WEFT_OK;
    if (wefti_list_empty(&r->live)) {
        wefti_op_complete(op, WEFT_OK);
    } else if (!(st = wefti_op_track(op))) {
        f->seq = r->last_seq;
        r->refs++;
        wefti_list_push_back(&r->flushes, &wefti_opx(op)->link);
    } else {
        f->remote = NULL; /* it came, and has not begun */
    }
    wefti_rma_came(r);
    return st;
}

static const wefti_op_kind_t flush_kind = {.name = "flush", .start = flush_start, .cancel = flush_end};

weft_status_t weft_rma_flush(weft_remote_t *r, weft_op_t *op)
{
    if (!r || !op)
        return wefti_fail(WEFT_ERR_INVALID, "a flush needs a remote and an operation");
    weft_runtime_t *rt = r->rt;
    weft_status_t st = wefti_rma_prepare(r, op, &flush_kind);
    if (st)
        return st;
    *wefti_op_scratch(op, rma_flush_t) = (rma_flush_t){.remote = r};
    op->from = r->owner;
    op->len = 0;
    st = wefti_op_post(rt, op);
    if (st && wefti_op_scratch(op, rma_flush_t)->remote) /* the runtime was closed meanwhile */
        wefti_rma_comes_not(r);
    return st;
}
