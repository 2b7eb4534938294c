/* rma/access.c - an access: its buffer, its beginning and its end, on whatever path it goes (mapped.c, checked.c, native.c).
 *
 * Promise: every access ends once, and no buffer is touched after that. tests/sim/rma_exactly_once.c. */
#include "base/copy.h"
#include "rma/carried.h"

void wefti_rma_nonsense(weft_ep_t *ep)
{
    wefti_ep_protocol_error(ep, "a record of remote memory of an unknown kind, length or number");
}

/* --- its buffer -------------------------------------------------------------------------------------------------------- */

static weft_status_t move(const rma_acc_t *acc, uint64_t at, uint8_t *bytes, uint64_t n, bool in)
{
    if (acc->device && acc->big && acc->big->carry) {
        uint8_t *ours = (uint8_t *)acc->big->carry->iov.base + at;
        memcpy(in ? ours : bytes, in ? bytes : ours, n);
        return WEFT_OK;
    }
    weft_iov_t one = {acc->buf, acc->len};
    const weft_iov_t *iov = acc->iov_n ? acc->iov : &one;
    weft_status_t st = WEFT_OK;
    for (; n && !st; iov++) {
        if (at >= iov->len) {
            at -= iov->len;
            continue;
        }
        uint64_t part = iov->len - at < n ? iov->len - at : n;
        uint8_t *ours = (uint8_t *)iov->base + at;
        if (acc->len >= WEFTI_PAST_CACHE && !acc->device)
            wefti_copy_past_cache(in ? ours : bytes, in ? bytes : ours, part);
        else
            st = in ? wefti_mem_move(acc->device, ours, bytes, part) : wefti_mem_move(acc->device, bytes, ours, part);
        bytes += part;
        n -= part;
        at = 0;
    }
    return st;
}

weft_status_t wefti_rma_scatter(rma_acc_t *acc, uint64_t at, const uint8_t *bytes, uint64_t n)
{
    return move(acc, at, (uint8_t *)(uintptr_t)bytes, n, true);
}

weft_status_t wefti_rma_gather(const rma_acc_t *acc, uint64_t at, uint8_t *bytes, uint64_t n)
{
    return move(acc, at, bytes, n, false);
}

/* --- life -------------------------------------------------------------------------------------------------------------- */

static void live(rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    acc->seq = ++r->last_seq;
    acc->epoch = r->epoch += acc->epoch;
    acc->loose_link.next = NULL;
    acc->big = NULL;
    acc->id = 0;
    wefti_list_push_back(&r->live, &acc->live_link);
    atomic_store_explicit(&r->n_live, r->n_live + 1, memory_order_relaxed);
    r->refs++;
}

static const char *words_for(weft_status_t status)
{
    switch (status) {
    case WEFT_ERR_RANGE:
        return "not within the region";
    case WEFT_ERR_RIGHTS:
        return "its key does not allow that";
    case WEFT_ERR_STALE:
        return "the region was freed or revoked, or the time of its key is over";
    case WEFT_ERR_NOTFOUND:
        return "it has no region of that name";
    case WEFT_ERR_AUTH:
        return "the key of the region is not one that it gave out";
    case WEFT_ERR_LIMIT:
        return "this connection has as many remotes as it may";
    case WEFT_ERR_TIMEOUT:
        return "not done in time";
    default:
        return NULL; /* the endpoint has its own words for its end */
    }
}

/* Say why, when the owner refused it or did not answer in time. */
static void explain(const rma_acc_t *acc, weft_status_t status)
{
    static const char *const names[] = {
        [ACC_READ] = "a read", [ACC_WRITE] = "a write", [ACC_ATOMIC] = "an atomic operation", [ACC_NOTIFY] = "a notification"};
    const char *words = words_for(status);
    if (words && acc->what == ACC_ATTACH)
        wefti_ep_says(acc->remote->ep, "%s", words);
    else if (words)
        wefti_ep_says(acc->remote->ep, "%s of %llu bytes at offset %llu: %s", names[acc->what], (unsigned long long)acc->len,
                      (unsigned long long)acc->offset, words);
}

void wefti_rma_end(rma_acc_t *acc, weft_status_t status)
{
    weft_remote_t *r = acc->remote;
    bool freed = acc->loose_link.next != NULL;
    wefti_list_remove(&acc->live_link);
    atomic_store_explicit(&r->n_live, r->n_live - 1, memory_order_relaxed);
    if (freed)
        wefti_list_remove(&acc->loose_link);
    if (__builtin_expect(acc->big != NULL, 0))
        wefti_rma_big_free(acc);
    if (acc->batch) {
        wefti_rma_batch_ended(acc, status);
    } else {
        if (__builtin_expect(status && r->ep, 0))
            explain(acc, status);
        wefti_op_complete(wefti_op_of_scratch(acc), status);
    }
    wefti_rma_flushes(r);
    weft_ep_t *ep = r->ep;
    if (freed && ep && ep->lane)
        wefti_rma_pending_flush(ep); /* others may have waited for it */
    wefti_rma_remote_unref(r);
    if (ep)
        wefti_ep_drained(ep);
}

void wefti_rma_count(const rma_acc_t *acc)
{
    rma_counts_t *c = &acc->remote->count;
    if (acc->what == ACC_READ)
        rma_count_read(c, acc->len);
    else if (acc->what == ACC_WRITE)
        rma_count_write(c, acc->len);
    else if (acc->what == ACC_ATOMIC)
        wefti_count_up(&c->atomics, 1);
}

static weft_status_t fail_as_the_remote_did(const weft_remote_t *r, weft_status_t st)
{
    char text[WEFTI_DETAIL_MAX];
    if (wefti_detail_get(r->why_detail, text))
        return wefti_fail(st, "%s; the remote can no longer be used: attach it again", text);
    return wefti_fail(st, "the remote can no longer be used: attach it again");
}

weft_status_t wefti_rma_begin(rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    weft_status_t st = (weft_status_t)atomic_load_explicit(&r->state, memory_order_relaxed);
    if (st)
        return fail_as_the_remote_did(r, st);
    if (r->slot && acc->what != ACC_ATTACH && !wefti_rma_asks(r)) {
        live(acc);
        if (__builtin_expect(!acc->device, 1)) {
            r->rs->mapped++;
        } else {
            ++*(wefti_rma_carry_cannot(acc) ? &r->rs->checked : &r->rs->mapped);
            acc->what == ACC_READ ? wefti_rma_carry_new(acc) : wefti_rma_carry_fetch(acc);
        }
        wefti_rma_step(acc);
        return WEFT_OK;
    }
    bool far = wefti_rma_far_can(acc);
    st = far ? WEFT_OK : wefti_ep_may_wait(r->ep);
    if (st)
        return st;
    live(acc);
    if (far && wefti_rma_far_start(acc)) {
        r->rs->mapped++;
        r->rs->far++;
        wefti_rma_count(acc);
        return WEFT_OK;
    }
    if (acc->what != ACC_ATTACH)
        ++*(wefti_rma_native_can(acc) ? &r->rs->native : &r->rs->checked);
    wefti_rma_count(acc);
    st = wefti_rma_ask(acc);
    if (st)
        wefti_rma_end(acc, st);
    return WEFT_OK;
}
