/* rma/share.c - the memory of a region that peers may map: a memfd with a control page, and the slots on that page.
 *
 * A slot is FREE, or TAKEN: by a grant, or by nobody any more, because its peer was lost in the middle of an access. Only the
 * owner's drivers move it; `taken` is the owner's own note, and nothing on the page is believed. A grant's accesses are good
 * while the slot has its stamp. The owner takes that away with a store of 0 and looks at busy; the peer sets busy and looks at
 * the stamp. Both sides do the one before the other for everyone to see (sequentially consistent), so at least one of them sees
 * the other: either the owner sees that an access is under way, or the peer sees that it must not begin.
 *
 * A peer writes whatever it likes to the page, other peers' slots included: it is a process of the same user on this host, which
 * could do worse. Then accesses fail that need not, or a revoke goes on without an access that it should have waited for; the
 * owner itself reads only `busy`.
 *
 * Promise: a slot is never two grants'; the region's address stays; what a replaced mapping writes is not seen.
 * tests/unit/rma_share.c holds us to it. */
#include <unistd.h>

#include "rma/state.h"

#define NAME "weft-region"

_Static_assert(RMA_SLOTS <= 64, "share.taken has a bit for each");

weft_status_t wefti_rma_share_new(rma_share_t *s, uint64_t max_len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *s = (rma_share_t){.fd = -1, .slots_only = !max_len};
    if (max_len > (uint64_t)PTRDIFF_MAX - RMA_CONTROL - page)
        return wefti_fail(WEFT_ERR_NOMEM, "%llu bytes do not fit an address space", (unsigned long long)max_len);
    size_t bytes = (RMA_CONTROL + (size_t)max_len + page - 1) / page * page;
    weft_status_t st = wefti_memfd_open(&s->mem, NAME, bytes, false);
    if (st)
        return st;
    s->fd = s->mem.fd;
    s->bytes = bytes;
    s->control = s->mem.base;
    s->data = (uint8_t *)s->mem.base + RMA_CONTROL;
    s->control->magic = RMA_MAGIC;
    return WEFT_OK;
}

void wefti_rma_share_free(rma_share_t *s)
{
    if (s->fd < 0)
        return;
    wefti_memfd_close(&s->mem);
    *s = (rma_share_t){.fd = -1};
}

weft_status_t wefti_rma_share_replace(rma_share_t *s, uint64_t len, uint64_t n)
{
    static const uint64_t magic = RMA_MAGIC;
    for (uint32_t i = 0; i < RMA_SLOTS; i++)
        if (atomic_load(&s->taken) >> i & 1)
            wefti_rma_slot_stale(s, (int32_t)i);
    weft_status_t st = wefti_memfd_replace(&s->mem, NAME, &magic, sizeof magic, RMA_CONTROL,
                                           RMA_CONTROL + (s->slots_only ? 0 : (size_t)len), (size_t)n);
    if (st)
        return st;
    s->fd = s->mem.fd;
    atomic_store(&s->taken, 0);
    atomic_store(&s->lost, 0);
    return WEFT_OK;
}

/* --- slots ------------------------------------------------------------------------------------------------------------- */

int32_t wefti_rma_slot_take(rma_share_t *s, uint64_t stamp)
{
    for (uint32_t i = 0; i < RMA_SLOTS; i++) {
        /* One that is free and busy was left so by the peer that had it: the next one would wait for that to end. */
        uint64_t bit = UINT64_C(1) << i;
        if (atomic_load(&s->taken) & bit || wefti_rma_slot_busy(s, (int32_t)i) || atomic_fetch_or(&s->taken, bit) & bit)
            continue;
        atomic_store(&s->control->slots[i].stamp, stamp);
        return (int32_t)i;
    }
    return -1;
}

void wefti_rma_slot_stale(rma_share_t *s, int32_t slot)
{
    atomic_store(&s->control->slots[slot].stamp, 0);
}

bool wefti_rma_slot_busy(const rma_share_t *s, int32_t slot)
{
    return atomic_load(&s->control->slots[slot].busy) != 0;
}

bool wefti_rma_slot_give(rma_share_t *s, int32_t slot)
{
    uint64_t bit = UINT64_C(1) << slot;
    wefti_rma_slot_stale(s, slot);
    bool busy = wefti_rma_slot_busy(s, slot);
    if (busy)
        atomic_fetch_or(&s->lost, bit);
    else
        atomic_fetch_and(&s->taken, ~bit);
    return !busy;
}

bool wefti_rma_slots_lost(const rma_share_t *s)
{
    uint64_t lost = atomic_load(&s->lost);
    for (int32_t i = 0; lost; i++, lost >>= 1)
        if (lost & 1 && wefti_rma_slot_busy(s, i))
            return true;
    return false;
}
