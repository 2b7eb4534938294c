/* rma/grant.c - grants: what one remote of a peer may do with a region of ours.
 *
 *     GOOD --revoked, expired, freed--> STALE          whatever it asks for from then on is refused
 *        \        \--its peer lets go, or the endpoint is down--> DROPPED --nothing under way--> gone
 *
 * It belongs to the driver of its endpoint. A claim (of a key or a name) becomes a grant if it is true when it arrives: the
 * region is there, of that generation, and the key has not expired. From then on only the grant counts: its part,
 * its rights, and whether it is stale.
 *
 * A grant that is dropped while a payload moves into or out of the region stays, without endpoint, until that has ended: whoever
 * revokes or frees the region waits for it. A region that is gone leaves its grants behind without region, for their peers to
 * hear that they are stale.
 *
 * A slot whose peer lets go of it is used again, unless it is busy: then it stays taken until the memory is replaced (region.c).
 *
 * Promise: no access is let through that is not wholly inside the part, with the rights, and of the region's generation; an
 * endpoint that is down leaves no grant that others would wait for without end. tests/unit/rma_grant.c holds us to it. */
#include "rma/serve.h"

/* --- good -------------------------------------------------------------------------------------------------------------- */

static void expired(wefti_timer_t *t)
{
    wefti_rma_grant_stale(wefti_container_of(t, rma_grant_t, expiry));
}

/* A region in device memory, which its peer could read by itself: does it have slots to tell us when? Where other shards look at
 * them too, they were there before. */
static bool has_slots(weft_region_t *region, const rma_grant_t *g, uint8_t flags)
{
    if (!(flags & F_FAR) || region->checked || !(g->rights & WEFT_RMA_READ))
        return false;
    rma_share_t *share = &region->pub->share;
    return share->fd >= 0 || (!region->stripes && !wefti_rma_share_new(share, 0));
}

/* Mapped, unless the memory may be about to be replaced: then it would be the wrong memory. */
static void map_it(weft_region_t *region, rma_grant_t *g, uint8_t flags)
{
    if (region->device && !has_slots(region, g, flags))
        return;
    if (region->pub->share.fd < 0 || !wefti_rma_may_map(region))
        return;
    uint64_t stamp = atomic_fetch_add_explicit(&region->pub->rs->stamps, 1, memory_order_relaxed) + 1;
    g->slot = wefti_rma_slot_take(&region->pub->share, stamp);
    if (g->slot < 0)
        return;
    g->stamp = stamp;
    wefti_count_up(&region->mapped, 1);
}

weft_status_t wefti_rma_grant_new(weft_ep_t *ep, const rma_claim_t *claim, uint8_t flags, rma_grant_t **grant_out)
{
    weft_runtime_t *rt = ep->rt;
    rma_ep_t *e = rma_ep(ep);
    weft_region_t *region;
    weft_status_t st = wefti_rma_region_here(rma_state(rt), claim->region, &region);
    if (st)
        return st;
    if (claim->generation != atomic_load(&region->generation))
        return wefti_fail(WEFT_ERR_STALE, "the region was revoked or freed since its key was made");
    if (claim->expires && wefti_now(rt) >= claim->expires)
        return wefti_fail(WEFT_ERR_STALE, "the time of the region's key is over");
    uint64_t all = atomic_load(&region->pub->len);
    if (claim->offset > all || claim->len > all - claim->offset)
        return wefti_fail(WEFT_ERR_RANGE, "the region's key is for bytes that it does not have");
    rma_grant_t *g = wefti_calloc(1, sizeof *g);
    if (!g)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a peer's access to a region");
    *g = (rma_grant_t){.region = region,
                       .ep = ep,
                       .offset = claim->offset,
                       .len = claim->len,
                       .generation = claim->generation,
                       .rights = claim->rights & region->rights,
                       .expires = claim->expires,
                       .slot = -1};
    g->expiry.fn = expired;
    st = wefti_slots_add(&e->grants, g, &g->id);
    if (st) {
        st = st == WEFT_ERR_LIMIT
                 ? wefti_fail(st, "the peer has %u remotes on this connection, and may not have more", RMA_GRANTS)
                 : wefti_fail(st, "no memory for a peer's access to a region");
        goto err_grant;
    }
    st = claim->expires ? wefti_timer_at(rt, &g->expiry, claim->expires) : WEFT_OK;
    if (st)
        goto err_slot;
    wefti_list_push_back(&region->grants, &g->region_link);
    wefti_count_up(&region->attached, 1);
    if (flags & F_MAP)
        map_it(region, g, flags);
    *grant_out = g;
    return WEFT_OK;

err_slot:
    wefti_slots_remove(&e->grants, g->id);
err_grant:
    wefti_free(g);
    return st;
}

static weft_status_t refuse(rma_grant_t *g, weft_status_t why)
{
    rma_state_t *rs = rma_state(g->ep->rt);
    if (g->region)
        wefti_count_up(&g->region->refused, 1);
    wefti_count_up(&rs->refused, 1);
    return why;
}

weft_status_t wefti_rma_grant_check(rma_grant_t *g, uint32_t rights, uint64_t offset, uint64_t len, uint8_t **at_out)
{
    weft_region_t *region = g->region;
    /* The generation too: a revoke counts from its call on, which may come from another thread. One that is not stale has a
     * region. */
    if (g->stale || g->generation != atomic_load_explicit(&region->generation, memory_order_relaxed))
        return refuse(g, WEFT_ERR_STALE);
    uint64_t until = atomic_load_explicit(&region->until, memory_order_relaxed);
    /* By the clock, too: in a process that was stopped and goes on, what waits may be read before the timer is looked at. */
    if ((g->expires && wefti_now(g->ep->rt) >= g->expires) || (until && wefti_now(g->ep->rt) >= until))
        return refuse(g, WEFT_ERR_STALE);
    if (rights & ~g->rights)
        return refuse(g, WEFT_ERR_RIGHTS);
    if (offset > g->len || len > g->len - offset)
        return refuse(g, WEFT_ERR_RANGE);
    *at_out = region->base + g->offset + offset;
    return WEFT_OK;
}

/* --- stale, dropped, gone ---------------------------------------------------------------------------------------------- */

void wefti_rma_grant_stale(rma_grant_t *g)
{
    if (g->stale)
        return;
    g->stale = true;
    g->quiet = g->slot < 0;
    if (g->ep)
        wefti_timer_stop(g->ep->rt, &g->expiry);
    if (g->slot >= 0) {
        wefti_rma_slot_stale(&g->region->pub->share, g->slot);
        g->quiet = !wefti_rma_slot_busy(&g->region->pub->share, g->slot);
    }
    wefti_rma_native_stale(g);
}

void wefti_rma_grant_unslot(rma_grant_t *g, bool lost)
{
    weft_region_t *region = g->region;
    if (g->slot < 0)
        return;
    if (!wefti_rma_slot_give(&region->pub->share, g->slot)) /* the next revoke moves the region's bytes away */
        wefti_info("rma: a peer %s in the middle of an access to a region", lost ? "was lost" : "let go");
    g->slot = -1;
    g->quiet = true;
    wefti_count_up(&region->mapped, (uint64_t)-1);
}

static void gone(rma_grant_t *g)
{
    if (g->region)
        wefti_list_remove(&g->region_link);
    wefti_free(g);
}

void wefti_rma_grant_drop(rma_grant_t *g, bool lost)
{
    weft_region_t *region = g->region;
    rma_ep_t *e = rma_ep(g->ep);
    wefti_rma_native_drop(g, lost);
    wefti_rma_grant_stale(g);
    wefti_slots_remove(&e->grants, g->id);
    wefti_mem_unhold(g->ep->rt, g->held); /* not with the region: until now its peer could be about to open it */
    g->ep = NULL;
    if (region) {
        wefti_count_up(&region->attached, (uint64_t)-1);
        wefti_rma_grant_unslot(g, lost);
    }
    if (!g->under_way)
        gone(g);
    if (region)
        wefti_rma_settle(region);
}

void wefti_rma_grants_down(weft_ep_t *ep)
{
    const wefti_slots_t *grants = &rma_ep(ep)->grants;
    for (uint32_t i = 0; i < grants->n; i++)
        if (grants->at[i].generation & 1)
            wefti_rma_grant_drop((rma_grant_t *)grants->at[i].value, true);
}

void wefti_rma_grant_end(rma_grant_t *g)
{
    weft_region_t *region = g->region;
    if (--g->under_way)
        return;
    if (!g->ep)
        gone(g);
    if (region)
        wefti_rma_settle(region);
}

/* --- attaching --------------------------------------------------------------------------------------------------------- */

typedef struct attached {
    rma_attached_t a;
    uint8_t map_handle[WEFTI_KEY_MAX]; /* or a fabric key */
} attached_t;

/* The memory is a device's: an export of it behind the map handle of n bytes. */
static size_t offer_far(rma_grant_t *g, attached_t *rec, size_t n)
{
    wefti_export_t export;
    const uint8_t *ptr = g->region->base + g->offset;
    if (!wefti_mem_export(g->region->device, ptr, (size_t)g->len, &export) &&
        !(g->held = wefti_mem_export_held(g->ep->rt, g->region->device, ptr, (size_t)g->len, &export))) {
        wefti_rma_grant_unslot(g, false);
        rec->a.slot = 0;
        rec->a.stamp = rec->a.map_bytes = rec->a.map_offset = 0;
        return 0;
    }
    rec->a.map_offset = 0;
    memcpy(rec->map_handle + n, &export, sizeof export);
    return n + sizeof export;
}

/* How its peer may reach the memory without asking. How many bytes of rec->map_handle say so. */
static size_t offer(rma_grant_t *g, uint8_t flags, attached_t *rec)
{
    if (g->slot < 0)
        return flags & F_NATIVE ? wefti_rma_native_grant(g, rec->map_handle) : 0;
    const rma_share_t *share = &g->region->pub->share;
    size_t n = g->ep->lane->ops->expose(g->ep->lane, share->fd, share->bytes, rec->map_handle);
    if (!n) {
        wefti_rma_grant_unslot(g, false); /* its peer cannot map it after all */
        return 0;
    }
    rec->a.slot = (uint32_t)g->slot;
    rec->a.stamp = g->stamp;
    rec->a.map_bytes = share->bytes;
    rec->a.map_offset = RMA_CONTROL + g->offset;
    return share->slots_only ? offer_far(g, rec, n) : n;
}

void wefti_rma_attach_asked(weft_ep_t *ep, const wefti_wild_t *bytes, size_t n)
{
    rma_state_t *rs = rma_state(ep->rt), *tables = rma_state(wefti_head(ep->rt)); /* what the program made is the head's */
    rma_attach_t head = {.len = 0};
    uint8_t claim_bytes[WEFT_REGION_KEY_MAX];
    rma_claim_t claim;
    rma_grant_t *g = NULL;
    if (n >= sizeof head)
        wefti_wild_take(&head, bytes, sizeof head);
    if (head.flags & ~(F_NAME | F_MAP | F_NATIVE | F_FAR) || head.zero || !head.len || head.len > sizeof claim_bytes ||
        head.len != n - sizeof head) {
        wefti_rma_nonsense(ep);
        return;
    }
    wefti_wild_take(claim_bytes, wefti_wild_skip(bytes, sizeof head), head.len);
    weft_status_t st = head.flags & F_NAME ? wefti_rma_named(tables, (const char *)claim_bytes, head.len, &claim)
                                           : wefti_rma_key_open(tables, claim_bytes, head.len, &claim);
    if (!st)
        st = wefti_rma_grant_new(ep, &claim, ep->lane && ep->lane->ops->expose ? head.flags : 0, &g);
    if (st) {
        wefti_rma_reply_status(ep, head.id, st);
        return;
    }
    attached_t rec;
    memset(&rec, 0, sizeof rec);
    rec.a = (rma_attached_t){.reply = {.kind = REC_ATTACHED, .id = head.id},
                             .grant = g->id,
                             .len = g->len,
                             .generation = g->generation,
                             .rights = g->rights};
    size_t offered = offer(g, head.flags, &rec);
    wefti_count_up(&rs->served, 1);
    wefti_rma_reply(ep, &rec, sizeof rec.a + offered);
}
