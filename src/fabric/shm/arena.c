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

typedef struct arena_record {
    uint64_t id, base, n, ino;
    uint32_t fd, zero;
} arena_record_t;

/* --- ours: shared ranges ------------------------------------------------------------------------------------------ */

/* The first one that begins after `at`. */
static uint32_t share_after(const wefti_shm_transport_t *r, uint64_t at)
{
    uint32_t lo = 0, hi = atomic_load_explicit(&r->n_shares, memory_order_relaxed);
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (r->shares[mid]->base > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static weft_status_t share_insert(wefti_shm_transport_t *r, wefti_shm_share_t *s)
{
    uint32_t n = atomic_load_explicit(&r->n_shares, memory_order_relaxed), at = share_after(r, s->base);
    if ((at && r->shares[at - 1]->base + r->shares[at - 1]->n > s->base) || (at < n && s->base + s->n > r->shares[at]->base))
        return wefti_fail(WEFT_ERR_INVALID, "a range of %llu bytes is shared already, or a part of it", (unsigned long long)s->n);
    if (n >= WEFTI_SHM_SHARES_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "%u ranges are shared; use larger arenas", n);
    if (n == r->cap_shares) {
        uint32_t cap = n ? 2 * n : 16;
        wefti_shm_share_t **more = wefti_realloc(r->shares, cap * sizeof(wefti_shm_share_t *));
        if (!more)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to share one more range");
        r->shares = more;
        r->cap_shares = cap;
    }
    memmove(&r->shares[at + 1], &r->shares[at], (n - at) * sizeof r->shares[0]);
    r->shares[at] = s;
    s->id = ++r->last_share;
    atomic_store(&r->n_shares, n + 1);
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
    s->base = at;
    s->n = n;
    s->ino = ino;
    s->fd = fd;
    pthread_mutex_lock(&r->share_lock);
    st = share_insert(r, s);
    uint64_t id = s->id;
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
    wefti_shm_share_t *s = NULL;
    if (!id)
        return;
    pthread_mutex_lock(&r->share_lock);
    uint32_t n = atomic_load_explicit(&r->n_shares, memory_order_relaxed), i = 0;
    while (i < n && r->shares[i]->id != id)
        i++;
    assert(i < n);
    if (i < n) {
        s = r->shares[i];
        memmove(&r->shares[i], &r->shares[i + 1], (n - 1 - i) * sizeof r->shares[0]);
        atomic_store(&r->n_shares, n - 1);
    }
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
            wefti_shm_told_t *told = lane ? wefti_map_take(&lane->told_ids, s->id) : NULL;
            if (!told)
                continue;
            if (lane->last_told == told)
                lane->last_told = NULL;
            told->ctl = (wefti_shm_ctl_t){.type = WEFTI_SHM_ARENA_GONE, .id = s->id, .ends = WEFTI_SHM_ENDS_TOLD};
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

void wefti_shm_told_free(wefti_shm_lane_t *lane, wefti_shm_told_t *told)
{
    if (lane->last_told == told)
        lane->last_told = NULL;
    wefti_free(told);
}

static bool share_find(wefti_shm_transport_t *r, uint64_t at, uint64_t n, wefti_shm_share_t *copy_out)
{
    bool found = false;
    pthread_mutex_lock(&r->share_lock);
    uint32_t i = share_after(r, at);
    if (i) {
        wefti_shm_share_t *s = r->shares[i - 1];
        found = at - s->base < s->n && n <= s->n - (at - s->base);
        if (found) {
            s->told = true; /* or about to be */
            *copy_out = *s;
        }
    }
    pthread_mutex_unlock(&r->share_lock);
    return found;
}

static bool tell(wefti_shm_lane_t *lane, const wefti_shm_share_t *s)
{
    if (lane->told_ids.n >= WEFTI_SHM_TOLD_MAX)
        return false;
    wefti_shm_told_t *told = wefti_calloc(1, sizeof *told);
    if (!told)
        return false;
    *told = (wefti_shm_told_t){.id = s->id, .base = s->base, .n = s->n};
    if (wefti_map_put(&lane->told_ids, s->id, told))
        goto err_free;
    arena_record_t rec = {s->id, s->base, s->n, s->ino, (uint32_t)s->fd, 0};
    void *at = wefti_shm_lane_reserve(lane, sizeof rec);
    if (!at)
        goto err_map;
    memcpy(at, &rec, sizeof rec);
    wefti_shm_lane_commit(lane, sizeof rec, WEFTI_SHM_ARENA);
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
    wefti_shm_share_t s;
    if (iov_n > LOOK_MAX)
        iov_n = LOOK_MAX;
    for (size_t i = 0; i < iov_n; i++) {
        uint64_t at = (uint64_t)(uintptr_t)iov[i].base, n = iov[i].len;
        const wefti_shm_told_t *last = lane->last_told;
        if (n < WEFTI_SHM_TELL_MIN || (last && at - last->base < last->n && n <= last->n - (at - last->base)))
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

/* The first one that begins after `at`. */
static uint32_t known_after(const wefti_shm_lane_t *lane, uint64_t at)
{
    uint32_t lo = 0, hi = lane->n_known;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (lane->known[mid]->base > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static void unmap(wefti_shm_arena_t *a)
{
    wefti_region_unmap(a->map, (size_t)a->n);
    a->map = NULL;
    if (a->transport) {
        wefti_list_remove(&a->link);
        a->transport->n_mapped--;
        a->transport->mapped_bytes -= a->n;
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
        if (wefti_map_get(&a->peer->arenas, a->id) == a)
            wefti_map_take(&a->peer->arenas, a->id);
        a->peer = NULL;
    }
    arena_free_if_unused(a);
}

/* The arena that a record describes. Another lane may have told us of it before. If another arena has the same id, it stays as
 * it is: records of one lane do not change the meaning of another lane's. */
static weft_status_t arena_get(wefti_shm_lane_t *lane, const arena_record_t *rec, wefti_shm_arena_t **arena_out)
{
    wefti_shm_arena_t *known = wefti_map_get(&lane->peer->arenas, rec->id);
    if (known && known->base == rec->base && known->n == rec->n && known->ino == rec->ino && known->fd == (int)rec->fd) {
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
    a->id = rec->id;
    a->base = rec->base;
    a->n = rec->n;
    a->ino = rec->ino;
    a->fd = (int)rec->fd;
    *arena_out = a;
    return WEFT_OK;
}

weft_status_t wefti_shm_on_arena(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n)
{
    arena_record_t rec;
    wefti_shm_arena_t *a;
    if (n != sizeof rec)
        return WEFT_ERR_PROTOCOL;
    memcpy(&rec, bytes, sizeof rec);
    wefti_shm_copied();
    if (!rec.n || rec.base + rec.n < rec.base || rec.n > SIZE_MAX / 2 || rec.fd > INT32_MAX ||
        lane->n_known >= WEFTI_SHM_TOLD_MAX)
        return WEFT_ERR_PROTOCOL;
    uint32_t at = known_after(lane, rec.base);
    if ((at && wefti_shm_arena_has(lane->known[at - 1], rec.base, 1)) ||
        (at < lane->n_known && rec.base + rec.n > lane->known[at]->base))
        return WEFT_ERR_PROTOCOL;
    for (uint32_t i = 0; i < lane->n_known; i++)
        if (lane->known[i]->id == rec.id)
            return WEFT_ERR_PROTOCOL;
    if (lane->n_known == lane->cap_known) {
        uint32_t cap = lane->cap_known ? 2 * lane->cap_known : 8;
        wefti_shm_arena_t **more = wefti_realloc(lane->known, cap * sizeof(wefti_shm_arena_t *));
        if (!more)
            return WEFT_ERR_NOMEM;
        lane->known = more;
        lane->cap_known = cap;
    }
    weft_status_t st = arena_get(lane, &rec, &a);
    if (st)
        return st;
    a->known++;
    memmove(&lane->known[at + 1], &lane->known[at], (lane->n_known - at) * sizeof lane->known[0]);
    lane->known[at] = a;
    lane->n_known++;
    return WEFT_OK;
}

weft_status_t wefti_shm_on_arena_gone(wefti_shm_lane_t *lane, uint64_t id)
{
    for (uint32_t i = 0; i < lane->n_known; i++) {
        wefti_shm_arena_t *a = lane->known[i];
        if (a->id != id)
            continue;
        lane->n_known--;
        memmove(&lane->known[i], &lane->known[i + 1], (lane->n_known - i) * sizeof lane->known[0]);
        arena_forget(a);
        return WEFT_OK;
    }
    return WEFT_ERR_PROTOCOL;
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
    if (a->hopeless || !make_space(r, a->n))
        return false;
    weft_status_t st = wefti_region_view(a->peer->pid, a->fd, a->ino, (size_t)a->n, false, &at);
    if (st) {
        a->hopeless = st != WEFT_ERR_NOMEM && st != WEFT_ERR_LIMIT;
        wefti_info("shm: shared memory of process %d is not used: %s", (int)a->peer->pid, weft_last_error());
        return false;
    }
    a->map = at;
    wefti_list_push_back(&r->mapped, &a->link);
    r->n_mapped++;
    r->mapped_bytes += a->n;
    return true;
}

wefti_shm_arena_t *wefti_shm_arena_find(const wefti_shm_lane_t *lane, uint64_t at, uint64_t n)
{
    uint32_t i = known_after(lane, at);
    wefti_shm_arena_t *a = i ? lane->known[i - 1] : NULL;
    return a && !a->hopeless && wefti_shm_arena_has(a, at, n) ? a : NULL;
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
    while (lane->n_known)
        arena_forget(lane->known[--lane->n_known]);
    wefti_free(lane->known);
}

void wefti_shm_arenas_close(wefti_shm_transport_t *r)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&r->mapped))) {
        wefti_shm_arena_t *a = wefti_container_of(it, wefti_shm_arena_t, link);
        a->transport = NULL; /* it is lent: the borrower unmaps it */
    }
    uint32_t n = atomic_load(&r->n_shares);
    for (uint32_t i = 0; i < n; i++)
        wefti_free(r->shares[i]);
    while ((it = wefti_list_pop(&r->gone)))
        wefti_free(wefti_container_of(it, wefti_shm_share_t, link));
    wefti_free(r->shares);
    pthread_mutex_destroy(&r->share_lock);
}
