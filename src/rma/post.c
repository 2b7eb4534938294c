/* rma/post.c - posting accesses: they are checked, then carried out at once or handed to the driver.
 *
 * The calling thread itself carries a small access to mapped memory out, without the driver: the slot's busy word is a lock among
 * the threads of this process, and tells the owner that somebody is inside. Every other access goes through the driver, in
 * order. */
#include "rma/mapped.h"

weft_status_t wefti_rma_fits(const weft_remote_t *r, uint32_t rights, uint64_t offset, uint64_t len)
{
    if ((r->rights & rights) != rights)
        return wefti_fail(WEFT_ERR_RIGHTS, "the region's key gives rights %u; %u are needed for that", r->rights, rights);
    if (offset > r->len || len > r->len - offset)
        return wefti_fail(WEFT_ERR_RANGE, "%llu bytes at %llu are not in a region of %llu", (unsigned long long)len,
                          (unsigned long long)offset, (unsigned long long)r->len);
    return WEFT_OK;
}

static weft_status_t start(weft_op_t *op)
{
    weft_remote_t *r = rma_acc(op)->remote; /* the operation may be gone when it has begun */
    weft_status_t st = wefti_rma_begin(rma_acc(op));
    if (st)
        rma_acc(op)->remote = NULL; /* it came, and has not begun */
    wefti_rma_came(r);
    return st;
}

void wefti_rma_op_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_rma_cancel(rma_acc(op), why);
}

static void skip(weft_op_t *op)
{
    wefti_rma_came(rma_acc(op)->remote);
}

static const wefti_op_kind_t kind = {
    .name = "remote memory", .start = start, .cancel = wefti_rma_op_cancel, .skip = skip, .stops = true, .streams = true};

static weft_status_t post(weft_op_t *op, const rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    weft_runtime_t *rt = r->rt;
    weft_status_t st = wefti_rma_prepare(r, op, &kind);
    if (st)
        return st;
    *rma_acc(op) = *acc;
    if (__builtin_expect(atomic_load_explicit(&r->fence, memory_order_relaxed), 0))
        rma_acc(op)->epoch = atomic_exchange(&r->fence, false);
    op->len = acc->len;
    op->from = r->owner;
    st = wefti_op_post(rt, op);
    if (__builtin_expect(st, 0) && rma_acc(op)->remote) /* the runtime was closed meanwhile */
        wefti_rma_comes_not(r);
    return st;
}

/* --- at once ----------------------------------------------------------------------------------------------------------- */

/* Can it be done here and now? */
static inline bool plain(const weft_remote_t *r, weft_op_t *op, uint32_t rights, uint64_t offset, uint64_t len)
{
    return r->slot && len <= RMA_AT_ONCE && !atomic_load_explicit(&r->n_live, memory_order_relaxed) &&
           !atomic_load_explicit(&r->coming, memory_order_relaxed) && !atomic_load_explicit(&r->state, memory_order_relaxed) &&
           rma_fits(r, rights, offset, len) && wefti_op_plain(r->rt, op);
}

static inline void done(weft_remote_t *r, weft_op_t *op, uint64_t len)
{
    wefti_count_up(&r->fast, 1);
    op->status = rma_leave(r);
    op->len = len;
    op->from = r->owner;
    wefti_opx(op)->rt = r->rt;
    atomic_store_explicit(&wefti_opx(op)->state, WEFTI_OP_DONE, memory_order_release);
}

/* --- posts ------------------------------------------------------------------------------------------------------------- */

/* Post a read or a write of one buffer. */
static weft_status_t transfer(weft_remote_t *r, int what, uint64_t offset, const void *buf, size_t len, bool notify,
                              uint64_t value, weft_op_t *op)
{
    if (!r || !op)
        return wefti_fail(WEFT_ERR_INVALID, "an access needs a remote and an operation");
    if (!buf && len)
        return wefti_fail(WEFT_ERR_INVALID, "the buffer is NULL with a length of %zu", len);
    weft_status_t st = wefti_rma_fits(r, what == ACC_READ ? WEFT_RMA_READ : WEFT_RMA_WRITE, offset, len);
    if (st)
        return st;
    return post(op, &(rma_acc_t){.remote = r,
                                 .what = (uint8_t)what,
                                 .offset = offset,
                                 .len = len,
                                 .buf = (void *)(uintptr_t)buf,
                                 .operand = value,
                                 .notify = notify,
                                 .device = len ? wefti_mem_device_of(buf, NULL) : NULL});
}

weft_status_t weft_rma_read(weft_remote_t *r, uint64_t offset, void *buf, size_t len, weft_op_t *op)
{
    if (__builtin_expect(r && op && buf && plain(r, op, WEFT_RMA_READ, offset, len) && !wefti_mem_device_of(buf, NULL), 1) &&
        rma_enter(r) == WEFT_OK) {
        rma_copy(buf, r->bytes + offset, len);
        rma_count_read(&r->count, len);
        done(r, op, len);
        return WEFT_OK;
    }
    return transfer(r, ACC_READ, offset, buf, len, false, 0, op);
}

weft_status_t weft_rma_write(weft_remote_t *r, uint64_t offset, const void *buf, size_t len, weft_op_t *op)
{
    if (__builtin_expect(r && op && buf && plain(r, op, WEFT_RMA_WRITE, offset, len) && !wefti_mem_device_of(buf, NULL), 1) &&
        rma_enter(r) == WEFT_OK) {
        rma_copy(r->bytes + offset, buf, len);
        rma_count_write(&r->count, len);
        done(r, op, len);
        return WEFT_OK;
    }
    return transfer(r, ACC_WRITE, offset, buf, len, false, 0, op);
}

weft_status_t weft_rma_write_notify(weft_remote_t *r, uint64_t offset, const void *buf, size_t len, uint64_t value, weft_op_t *op)
{
    return transfer(r, ACC_WRITE, offset, buf, len, true, value, op);
}

#define PIECES_MAX 1024u

static weft_status_t pieces(weft_remote_t *r, int what, uint64_t offset, const weft_iov_t *iov, size_t n, weft_op_t *op)
{
    const weft_mem_kind_t *device;
    uint64_t total;
    if (!r || !op || (!iov && n))
        return wefti_fail(WEFT_ERR_INVALID, "an access needs a remote, pieces and an operation");
    if (n > PIECES_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "%zu pieces; at most %u go in one access: use a batch", n, PIECES_MAX);
    weft_status_t st = wefti_pieces_check("an access", true, iov, n, NULL, &total, &device);
    if (!st)
        st = wefti_rma_fits(r, what == ACC_READ ? WEFT_RMA_READ : WEFT_RMA_WRITE, offset, total);
    if (st)
        return st;
    return post(op, &(rma_acc_t){.remote = r,
                                 .what = (uint8_t)what,
                                 .offset = offset,
                                 .len = total,
                                 .iov = iov,
                                 .iov_n = (uint16_t)n,
                                 .device = device});
}

weft_status_t weft_rma_readv(weft_remote_t *r, uint64_t offset, const weft_iov_t *iov, size_t n, weft_op_t *op)
{
    return pieces(r, ACC_READ, offset, iov, n, op);
}

weft_status_t weft_rma_writev(weft_remote_t *r, uint64_t offset, const weft_iov_t *iov, size_t n, weft_op_t *op)
{
    return pieces(r, ACC_WRITE, offset, iov, n, op);
}

static weft_status_t not_atomic(weft_rma_atomic_t which, uint64_t offset, size_t width)
{
    if (which < WEFT_RMA_ADD || which > WEFT_RMA_XOR)
        return wefti_fail(WEFT_ERR_INVALID, "there is no atomic operation %d", (int)which);
    if (width != 4 && width != 8)
        return wefti_fail(WEFT_ERR_INVALID, "an atomic operation is on 4 or 8 bytes, and not on %zu", width);
    return wefti_fail(WEFT_ERR_INVALID, "an atomic operation on %zu bytes is at a multiple of %zu, and %llu is none", width,
                      width, (unsigned long long)offset);
}

weft_status_t weft_rma_atomic(weft_remote_t *r, weft_rma_atomic_t which, uint64_t offset, size_t width, uint64_t operand,
                              uint64_t compare, weft_op_t *op)
{
    if (!r || !op)
        return wefti_fail(WEFT_ERR_INVALID, "an atomic needs a remote and an operation");
    if ((width != 4 && width != 8) || offset % width || which < WEFT_RMA_ADD || which > WEFT_RMA_XOR)
        return not_atomic(which, offset, width);
    /* the part a region's key names may begin anywhere */
    if (__builtin_expect(plain(r, op, WEFT_RMA_ATOMIC, offset, width) && !((uintptr_t)(r->bytes + offset) % width), 1) &&
        rma_enter(r) == WEFT_OK) {
        op->value = rma_atomic_apply(r->bytes + offset, which, (unsigned)width, operand, compare);
        wefti_count_up(&r->count.atomics, 1);
        done(r, op, width);
        return WEFT_OK;
    }
    weft_status_t st = wefti_rma_fits(r, WEFT_RMA_ATOMIC, offset, width);
    if (st)
        return st;
    if (r->slot && (uintptr_t)(r->bytes + offset) % width)
        return wefti_fail(WEFT_ERR_INVALID,
                          "the part the region's key names begins at an odd place: the word is not aligned in memory");
    return post(op, &(rma_acc_t){.remote = r,
                                 .what = ACC_ATOMIC,
                                 .offset = offset,
                                 .len = width,
                                 .which = (uint8_t)which,
                                 .width = (uint8_t)width,
                                 .operand = operand,
                                 .compare = compare});
}

weft_status_t weft_rma_fence(weft_remote_t *r)
{
    if (!r)
        return wefti_fail(WEFT_ERR_INVALID, "a fence needs a remote");
    weft_status_t st = wefti_rma_remote_enter(r);
    if (st)
        return st;
    atomic_store(&r->fence, true);
    wefti_handle_leave(&r->handle);
    return WEFT_OK;
}
