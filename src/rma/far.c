/* rma/far.c - reads of a region in device memory of a peer on this host, which a device of ours copies itself.
 *
 * The owner exports the memory and gives the grant a slot, as for a region that is mapped (share.c): the region then has a
 * control page and no bytes behind it. A read sets the slot's busy word, checks the stamp, lets the device copy, checks the
 * stamp again and clears the word. Several reads of a remote are under way at a time, and have the word in common: it is
 * cleared with the last. What finds the stamp changed asks the owner, as in mapped.c.
 *
 * Only reads go this way. CUDA cannot take a mapping back, so a peer that is stopped in the middle of a write, and goes on when
 * its key was revoked and everybody has given it up, would change memory that is somebody else's by then. Writes and atomics are
 * the owner's to do: it copies the bytes of a long write out of the writer's memory, just as fast. A read does not begin while a
 * write of the same remote is under way, but asks the owner, who keeps their order.
 *
 * Promise: a read that succeeds has bytes that its key gave a right to until its end. tests/wire/rma_cuda.c. */
#include "rma/state.h"

bool wefti_rma_far_open(weft_remote_t *r, const wefti_export_t *export)
{
    void *ptr;
    if (wefti_ep_import(r->ep, export, (size_t)r->len, NULL, &r->import, &ptr)) {
        wefti_info("a region in device memory of a peer could not be imported, every access asks its owner: %s",
                   weft_last_error());
        r->import = NULL;
        return false;
    }
    r->bytes = ptr;
    return true;
}

void wefti_rma_far_close(weft_remote_t *r)
{
    if (r->import)
        wefti_mem_unimport(r->rt, r->import);
    r->import = NULL;
}

/* --- may it? --------------------------------------------------------------------------------------------------------------- */

/* Can a device copy to its buffer, directly or by a carry? */
static bool reachable(const rma_acc_t *acc)
{
    if (acc->device || acc->len <= WEFTI_CARRY_MAX)
        return true;
    weft_iov_t one = {acc->buf, acc->len};
    return wefti_mem_are_pinned(acc->iov_n ? acc->iov : &one, acc->len);
}

bool wefti_rma_far_can(const rma_acc_t *acc)
{
    const weft_remote_t *r = acc->remote;
    if (!r->import || acc->what != ACC_READ || !acc->len || !reachable(acc))
        return false;
    wefti_list_each(l, &r->live) {
        const rma_acc_t *other = wefti_container_of(l, rma_acc_t, live_link);
        if (other->what != ACC_READ || other->epoch != r->epoch + acc->epoch)
            return false;
    }
    return true;
}

/* --- the read ----------------------------------------------------------------------------------------------------------------
 * */

static bool enter(weft_remote_t *r)
{
    if (!r->far_reads && atomic_exchange(&r->far_slot->busy, 1))
        return false; /* nobody of ours: a peer scribbles on the page */
    if (atomic_load(&r->far_slot->stamp) == r->stamp) {
        r->far_reads++;
        return true;
    }
    if (!r->far_reads)
        atomic_store(&r->far_slot->busy, 0);
    return false;
}

static bool leave(weft_remote_t *r)
{
    bool ours = atomic_load(&r->far_slot->stamp) == r->stamp;
    if (!--r->far_reads)
        atomic_store(&r->far_slot->busy, 0);
    return ours;
}

static void ended(rma_big_acc_t *big, weft_status_t status)
{
    rma_acc_t *acc = big->acc;
    weft_remote_t *r = acc->remote;
    if (!leave(r) && !status)
        status = WEFT_ERR_STALE;
    if (status == WEFT_ERR_STALE && r->ep && !big->why) {
        /* only the owner, or the end of the connection, can say why the slot is not ours */
        wefti_list_remove(&acc->loose_link);
        acc->loose_link.next = NULL;
        acc->big = NULL;
        acc->id = 0;
        wefti_free(big);
        status = wefti_rma_ask(acc);
        if (!status)
            return;
    } else if (status && big->why) {
        status = big->why;
    }
    wefti_rma_end(acc, status);
}

static void copy_done(wefti_copy_t *copy, weft_status_t status)
{
    ended(wefti_container_of(copy, rma_big_acc_t, copy), status);
}

static void carry_done(wefti_carry_t *carry, weft_status_t status)
{
    rma_big_acc_t *big = carry->user;
    if (!status)
        status = wefti_rma_scatter(big->acc, 0, carry->iov.base, big->acc->len);
    wefti_carry_put(big->acc->remote->rt, carry);
    ended(big, status);
}

/* Into host memory of any sort, a few bytes. */
static bool by_carry(rma_acc_t *acc, rma_big_acc_t *big, const weft_mem_kind_t *kind)
{
    weft_remote_t *r = acc->remote;
    weft_iov_t from = {r->bytes + acc->offset, acc->len};
    wefti_carry_t *carry = wefti_carry_get(r->rt, acc->len);
    if (!carry)
        return false;
    carry->done = carry_done;
    carry->user = big;
    if (!wefti_carry_from(r->rt, carry, kind, &from))
        return true;
    wefti_carry_put(r->rt, carry);
    return false;
}

static bool by_copy(rma_acc_t *acc, rma_big_acc_t *big, const weft_mem_kind_t *kind)
{
    weft_remote_t *r = acc->remote;
    const weft_iov_t *iov = acc->iov_n ? acc->iov : &big->one;
    const uint8_t *from = r->bytes + acc->offset;
    if (wefti_copy_begin(r->rt, &big->copy))
        return false;
    big->copy.done = copy_done;
    for (uint64_t at = 0; at < acc->len; at += iov->len, iov++)
        if (iov->len)
            wefti_copy_add(r->rt, &big->copy, kind, iov->base, from + at, iov->len,
                           acc->device ? WEFTI_COPY_WITHIN : WEFTI_COPY_FROM);
    wefti_copy_end(r->rt, &big->copy);
    return true;
}

bool wefti_rma_far_start(rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    const weft_mem_kind_t *kind = acc->device ? acc->device : wefti_device_kind();
    rma_big_acc_t *big = wefti_rma_big_new(acc, 0);
    if (!big)
        return false;
    if (!enter(r)) {
        wefti_free(big);
        return false;
    }
    bool carried = !acc->device && acc->len <= WEFTI_CARRY_MAX;
    if (!(carried ? by_carry(acc, big, kind) : by_copy(acc, big, kind))) {
        leave(r);
        wefti_free(big);
        return false;
    }
    acc->big = big;
    acc->state = ACC_FAR;
    wefti_list_push_back(&r->loose, &acc->loose_link); /* a write to the same bytes waits for it */
    return true;
}
