/* fabric/shm/arena.c - memory that one side shares and the other maps, to copy payloads out of it or to lend them where they
 * lie.
 *
 *     sender                                       receiver
 *     share(range, memfd)                          (hears nothing of it)
 *     announce of a piece in it: ARENA {id, ..} -> notes it
 *                                RTS            -> pull or lend: maps the arena, if it is not, and reads the payload there
 *     unshare: ARENA_GONE {id}                  -> forgets it; unmaps it when nobody holds it any more
 *
 * Announcements name addresses, as they do without any of this; the receiver looks whether it knows an arena there. Hence the
 * sender has one rule: after unshare() the addresses may be those of something else, so ARENA_GONE is in the ring before any
 * announcement that was made after it. A receiver that knows no arena, or cannot map it, reads the same bytes another way.
 *
 * A receiver maps on demand, read-only, what /proc gives it under the number it was told, if that is the memfd it was told (by
 * inode: numbers are used again), is sealed, and is long enough. So an owner can close its descriptor at any time. Mappings
 * belong to the peer's runtime, not to a lane; they are bounded per transport in number and bytes, and the least recently used
 * one that nobody holds makes space. One that is held (a copy under way, a payload lent) stays, whatever becomes of lane and
 * peer.
 *
 * Ours:   share() adds to a table and unshare() removes from it, from any thread, under a lock. What lanes have to hear of it
 *         waits in `gone` for the driver. Taking something back needs no memory.
 * Theirs: a peer is believed as far as its own memory is concerned. Ranges that wrap, overlap, have an id twice, or are more
 *         than WEFTI_SHM_TOLD_MAX on a lane break the protocol.
 *
 * Promise: only bytes inside a mapping are touched, no mapping is left behind, and no payload is read from an arena that its
 * address no longer means. tests/wire/fabric_share.c, fabric_lend.c and fabric_shm_hostile.c hold us to it. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

#define LOOK_MAX 64u /* pieces of one payload whose arenas are looked for */

/* --- ranges by address -------------------------------------------------------------------------------------------- */

/* The first one that begins after `at`. */
static uint32_t range_after(const wefti_shm_ranges_t *t, uint64_t at)
{
    uint32_t lo = 0, hi = t->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->at[mid]->base > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* The one that has all of these bytes, or NULL. */
static wefti_shm_range_t *range_find(const wefti_shm_ranges_t *t, uint64_t at, uint64_t n)
{
    uint32_t i = range_after(t, at);
    return i && wefti_shm_range_has(t->at[i - 1], at, n) ? t->at[i - 1] : NULL;
}

static uint32_t range_index(const wefti_shm_ranges_t *t, uint64_t id)
{
    uint32_t i = 0;
    while (i < t->n && t->at[i]->id != id)
        i++;
    return i;
}

/* Where this one goes, and space for it. WEFT_ERR_INVALID: it overlaps another; _NOMEM. */
static weft_status_t range_place(wefti_shm_ranges_t *t, const wefti_shm_range_t *r, uint32_t *at_out)
{
    uint32_t at = range_after(t, r->base);
    if ((at && wefti_shm_range_has(t->at[at - 1], r->base, 1)) || (at < t->n && r->base + r->n > t->at[at]->base))
        return WEFT_ERR_INVALID;
    if (!wefti_grow(&t->at, &t->cap, t->n + 1, sizeof t->at[0]))
        return WEFT_ERR_NOMEM;
    *at_out = at;
    return WEFT_OK;
}

static void range_insert(wefti_shm_ranges_t *t, uint32_t at, wefti_shm_range_t *r)
{
    memmove(&t->at[at + 1], &t->at[at], (t->n - at) * sizeof t->at[0]);
    t->at[at] = r;
    t->n++;
}

/* Remove the one with this id; NULL: there is none. */
static wefti_shm_range_t *range_take(wefti_shm_ranges_t *t, uint64_t id)
{
    uint32_t i = range_index(t, id);
    if (i == t->n)
        return NULL;
    wefti_shm_range_t *r = t->at[i];
    t->n--;
    memmove(&t->at[i], &t->at[i + 1], (t->n - i) * sizeof t->at[0]);
    return r;
}

/* --- ours: shared ranges ------------------------------------------------------------------------------------------ */

static weft_status_t share_insert(wefti_shm_transport_t *r, wefti_shm_share_t *s)
{
    uint32_t at;
    weft_status_t st = range_place(&r->shares, &s->range, &at);
    if (st == WEFT_ERR_INVALID)
        return wefti_fail(st, "a range of %llu bytes is shared already, or a part of it", (unsigned long long)s->range.n);
    if (r->shares.n >= WEFTI_SHM_SHARES_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "%u ranges are shared; use larger arenas", r->shares.n);
    if (st)
        return wefti_fail(st, "no memory to share one more range");
    range_insert(&r->shares, at, &s->range);
    s->range.id = ++r->last_share;
    atomic_store(&r->n_shares, r->shares.n);
    return WEFT_OK;
}

weft_status_t wefti_shm_share(wefti_transport_t *transport, void *base, size_t n, int fd, uint64_t *id_out)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    uint64_t ino, at = (uint64_t)(uintptr_t)base;
    if (!base || !n || fd < 0 || at + n < at)
        return wefti_fail(WEFT_ERR_INVALID, "%zu bytes at %p in descriptor %d cannot be shared", n, base, fd);
    weft_status_t st = wefti_region_check(fd, n, false, &ino);
    if (st == WEFT_ERR_UNSUPPORTED) {
        *id_out = 0;
        return WEFT_OK;
    }
    if (st)
        return st;
    wefti_shm_share_t *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to share a range");
    s->range = (wefti_shm_range_t){.base = at, .n = n, .ino = ino, .fd = fd};
    pthread_mutex_lock(&r->share_lock);
    st = share_insert(r, s);
    uint64_t id = s->range.id;
    pthread_mutex_unlock(&r->share_lock);
    if (st) {
        wefti_free(s);
        return st;
    }
    *id_out = id;
    return WEFT_OK;
}

void wefti_shm_unshare(wefti_transport_t *transport, uint64_t id)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    pthread_mutex_lock(&r->share_lock);
    wefti_shm_share_t *s = (wefti_shm_share_t *)range_take(&r->shares, id);
    assert(s);
    atomic_store(&r->n_shares, r->shares.n);
    bool told = s && s->told;
    if (told) {
        wefti_list_push_back(&r->gone, &s->link);
        atomic_fetch_add(&r->n_gone, 1);
    }
    pthread_mutex_unlock(&r->share_lock);
    if (!told)
        wefti_free(s);
    else if (r->transport.fabric->ops->wake)
        r->transport.fabric->ops->wake(r->transport.fabric); /* peers keep the memory until they hear of it */
}

unsigned wefti_shm_shares_gone(wefti_shm_transport_t *r)
{
    unsigned n = 0;
    wefti_list_t todo, *it;
    wefti_list_init(&todo);
    pthread_mutex_lock(&r->share_lock);
    wefti_list_splice(&todo, &r->gone);
    atomic_store(&r->n_gone, 0);
    pthread_mutex_unlock(&r->share_lock);
    while ((it = wefti_list_pop(&todo))) {
        wefti_shm_share_t *s = wefti_container_of(it, wefti_shm_share_t, link);
        for (uint32_t i = 0; i < r->lanes.n; i++) {
            wefti_shm_lane_t *lane = wefti_shm_lane_at(r, i);
            wefti_shm_told_t *told = lane ? wefti_map_take(&lane->told_ids, s->range.id) : NULL;
            if (!told)
                continue;
            if (lane->last_told == told)
                lane->last_told = NULL;
            told->ctl = (wefti_shm_ctl_t){.type = WEFTI_SHM_ARENA_GONE, .id = s->range.id, .ends = WEFTI_SHM_ENDS_TOLD};
            wefti_list_push_back(&lane->out, &told->ctl.link);
            lane->n_gone_out++;
            if (lane->state == WEFTI_SHM_LANE_UP)
                wefti_shm_work(lane);
        }
        wefti_free(s);
        n++;
    }
    return n;
}

/* --- ours: telling ------------------------------------------------------------------------------------------------ */

static bool share_find(wefti_shm_transport_t *r, uint64_t at, uint64_t n, wefti_shm_range_t *copy_out)
{
    pthread_mutex_lock(&r->share_lock);
    wefti_shm_share_t *s = (wefti_shm_share_t *)range_find(&r->shares, at, n);
    if (s) {
        s->told = true; /* or about to be */
        *copy_out = s->range;
    }
    pthread_mutex_unlock(&r->share_lock);
    return s;
}

static bool tell(wefti_shm_lane_t *lane, const wefti_shm_range_t *s)
{
    if (lane->told_ids.n >= WEFTI_SHM_TOLD_MAX)
        return false;
    wefti_shm_told_t *told = wefti_calloc(1, sizeof *told);
    if (!told)
        return false;
    told->range = *s;
    if (wefti_map_put(&lane->told_ids, s->id, told))
        goto err_free;
    void *at = wefti_shm_lane_reserve(lane, sizeof *s);
    if (!at)
        goto err_map;
    memcpy(at, s, sizeof *s);
    wefti_shm_lane_commit(lane, sizeof *s, WEFTI_SHM_ARENA);
    lane->last_told = told;
    return true;

err_map:
    wefti_map_take(&lane->told_ids, s->id);
err_free:
    wefti_free(told);
    return false;
}

void wefti_shm_tell(wefti_shm_lane_t *lane, const weft_iov_t *iov, size_t iov_n)
{
    wefti_shm_range_t s;
    if (iov_n > LOOK_MAX)
        iov_n = LOOK_MAX;
    for (size_t i = 0; i < iov_n; i++) {
        uint64_t at = (uint64_t)(uintptr_t)iov[i].base, n = iov[i].len;
        const wefti_shm_told_t *last = lane->last_told;
        if (n < WEFTI_SHM_TELL_MIN || (last && wefti_shm_range_has(&last->range, at, n)))
            continue;
        if (!share_find(wefti_shm_transport_of(lane), at, n, &s))
            continue;
        wefti_shm_told_t *told = wefti_map_get(&lane->told_ids, s.id);
        if (told)
            lane->last_told = told;
        else if (!tell(lane, &s))
            return; /* the payload goes another way */
    }
}

/* --- theirs: what they told us ------------------------------------------------------------------------------------ */

static void unmap(wefti_shm_arena_t *a)
{
    wefti_region_unmap(a->map, (size_t)a->range.n);
    a->map = NULL;
    if (a->transport) {
        wefti_list_remove(&a->link);
        a->transport->n_mapped--;
        a->transport->mapped_bytes -= a->range.n;
    }
}

static void arena_free_if_unused(wefti_shm_arena_t *a)
{
    if (a->known || a->holds)
        return;
    if (a->map)
        unmap(a);
    wefti_free(a);
}

/* One lane less knows it. */
static void arena_forget(wefti_shm_arena_t *a)
{
    if (!--a->known) {
        if (wefti_map_get(&a->peer->arenas, a->range.id) == a)
            wefti_map_take(&a->peer->arenas, a->range.id);
        a->peer = NULL;
    }
    arena_free_if_unused(a);
}

/* The arena that a record describes. Another lane may have told us of it before. If another arena has the same id, it stays as
 * it is: records of one lane do not change the meaning of another lane's. */
static weft_status_t arena_get(wefti_shm_lane_t *lane, const wefti_shm_range_t *rec, wefti_shm_arena_t **arena_out)
{
    wefti_shm_arena_t *known = wefti_map_get(&lane->peer->arenas, rec->id);
    if (known && !memcmp(&known->range, rec, sizeof *rec)) {
        *arena_out = known;
        return WEFT_OK;
    }
    wefti_shm_arena_t *a = wefti_calloc(1, sizeof *a);
    if (!a)
        return WEFT_ERR_NOMEM;
    if (!known && wefti_map_put(&lane->peer->arenas, rec->id, a)) {
        wefti_free(a);
        return WEFT_ERR_NOMEM;
    }
    a->transport = wefti_shm_transport_of(lane);
    a->peer = lane->peer;
    a->range = *rec;
    *arena_out = a;
    return WEFT_OK;
}

weft_status_t wefti_shm_on_arena(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n)
{
    wefti_shm_range_t rec;
    wefti_shm_arena_t *a;
    uint32_t at;
    if (n != sizeof rec)
        return WEFT_ERR_PROTOCOL;
    memcpy(&rec, bytes, sizeof rec);
    wefti_shm_copied();
    if (!rec.n || rec.base + rec.n < rec.base || rec.n > SIZE_MAX / 2 || rec.fd < 0 || lane->known.n >= WEFTI_SHM_TOLD_MAX ||
        range_index(&lane->known, rec.id) < lane->known.n)
        return WEFT_ERR_PROTOCOL;
    weft_status_t st = range_place(&lane->known, &rec, &at);
    if (!st)
        st = arena_get(lane, &rec, &a);
    if (st)
        return st == WEFT_ERR_INVALID ? WEFT_ERR_PROTOCOL : st;
    a->known++;
    range_insert(&lane->known, at, &a->range);
    return WEFT_OK;
}

weft_status_t wefti_shm_on_arena_gone(wefti_shm_lane_t *lane, uint64_t id)
{
    wefti_shm_range_t *known = range_take(&lane->known, id);
    if (!known)
        return WEFT_ERR_PROTOCOL;
    arena_forget((wefti_shm_arena_t *)known);
    return WEFT_OK;
}

/* --- theirs: mappings --------------------------------------------------------------------------------------------- */

/* Space for one more of n bytes? Those that nobody holds give way, the least recently used first. */
static bool make_space(wefti_shm_transport_t *r, uint64_t n)
{
    if (n > r->max_mapped_bytes)
        return false;
    wefti_list_each_safe(it, &r->mapped) {
        if (r->n_mapped < r->max_mapped && r->mapped_bytes <= r->max_mapped_bytes - n)
            break;
        wefti_shm_arena_t *a = wefti_container_of(it, wefti_shm_arena_t, link);
        if (!a->holds)
            unmap(a);
    }
    return r->n_mapped < r->max_mapped && r->mapped_bytes <= r->max_mapped_bytes - n;
}

static bool map(wefti_shm_transport_t *r, wefti_shm_arena_t *a)
{
    void *at;
    if (a->map) {
        if (r->mapped.prev != &a->link) {
            wefti_list_remove(&a->link);
            wefti_list_push_back(&r->mapped, &a->link);
        }
        return true;
    }
    if (a->hopeless || !make_space(r, a->range.n))
        return false;
    weft_status_t st = wefti_region_view(a->peer->at.pid, a->range.fd, a->range.ino, (size_t)a->range.n, false, &at);
    if (st) {
        a->hopeless = st != WEFT_ERR_NOMEM && st != WEFT_ERR_LIMIT;
        wefti_info("shm: shared memory of process %d is not used: %s", a->peer->at.pid, weft_last_error());
        return false;
    }
    a->map = at;
    wefti_list_push_back(&r->mapped, &a->link);
    r->n_mapped++;
    r->mapped_bytes += a->range.n;
    return true;
}

wefti_shm_arena_t *wefti_shm_arena_find(const wefti_shm_lane_t *lane, uint64_t at, uint64_t n)
{
    wefti_shm_arena_t *a = (wefti_shm_arena_t *)range_find(&lane->known, at, n);
    return a && !a->hopeless ? a : NULL;
}

wefti_shm_arena_t *wefti_shm_arena_hold(wefti_shm_lane_t *lane, uint64_t at, uint64_t n)
{
    wefti_shm_arena_t *a = wefti_shm_arena_find(lane, at, n);
    if (!a || !map(wefti_shm_transport_of(lane), a))
        return NULL;
    a->holds++;
    return a;
}

void wefti_shm_arena_drop(wefti_shm_arena_t *a)
{
    if (atomic_fetch_sub(&a->holds, 1) == 1)
        arena_free_if_unused(a);
}

weft_status_t wefti_shm_lend(wefti_pull_t *pull, const void **ptr_out, void **lent_out)
{
    wefti_shm_pull_t *p = (wefti_shm_pull_t *)pull;
    wefti_shm_lane_t *lane = p->lane;
    const wefti_shm_piece_t *piece = NULL;
    if (!lane->known.n || !p->total || p->n_here != p->n_pieces || lane->state != WEFTI_SHM_LANE_UP)
        return WEFT_ERR_UNSUPPORTED;
    for (uint32_t i = 0; i < p->n_here && !piece; i++)
        if (p->piece[i].len)
            piece = &p->piece[i];
    if (!piece || piece->len < p->total)
        return WEFT_ERR_UNSUPPORTED;
    wefti_shm_arena_t *a = wefti_shm_arena_hold(lane, piece->base, piece->len);
    if (!a)
        return WEFT_ERR_UNSUPPORTED;
    if (wefti_shm_peer_closed(lane)) { /* its owner may write there again already */
        wefti_shm_arena_drop(a);
        return WEFT_ERR_UNSUPPORTED;
    }
    *ptr_out = a->map + (piece->base - a->range.base);
    *lent_out = a;
    return WEFT_OK;
}

void wefti_shm_unlend(wefti_transport_t *transport, void *lent)
{
    (void)transport; /* the arena knows whether there still is one */
    wefti_shm_arena_drop(lent);
}

/* --- endings ------------------------------------------------------------------------------------------------------ */

void wefti_shm_arenas_lane_end(wefti_shm_lane_t *lane)
{
    wefti_shm_told_t *told;
    uint64_t id;
    size_t at = 0;
    while ((told = wefti_map_next(&lane->told_ids, &at, &id)))
        wefti_free(told);
    wefti_map_free(&lane->told_ids);
    lane->last_told = NULL;
    while (lane->known.n)
        arena_forget((wefti_shm_arena_t *)lane->known.at[--lane->known.n]);
    wefti_free(lane->known.at);
}

void wefti_shm_arenas_close(wefti_shm_transport_t *r)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&r->mapped))) {
        wefti_shm_arena_t *a = wefti_container_of(it, wefti_shm_arena_t, link);
        a->transport = NULL; /* it is lent: the borrower unmaps it */
    }
    while (r->shares.n)
        wefti_free(r->shares.at[--r->shares.n]);
    while ((it = wefti_list_pop(&r->gone)))
        wefti_free(wefti_container_of(it, wefti_shm_share_t, link));
    wefti_free(r->shares.at);
    pthread_mutex_destroy(&r->share_lock);
}
