/* rma/region.c - regions: memory of ours that others may use. ending.c has their end.
 *
 * Any thread makes regions. Each is in two tables, by its id and by its names, until it is freed: what peers bring (a key, a
 * name) is looked up there. The tables are the head's, and its shards look there too: twins.c.
 *
 * Promise: what is in the tables is there and not being freed; what a peer could see of a region is never seen in another.
 * tests/unit/rma_region.c, rma_grant.c. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rma/serve.h"
#include "rma/twins.h"

/* --- the tables: any thread, under rs->lock ---------------------------------------------------------------------------- */

void wefti_rma_regions_init(rma_state_t *rs)
{
    pthread_mutex_init(&rs->lock, NULL);
    wefti_slots_init(&rs->by_id, UINT32_MAX - 1);
    wefti_list_init(&rs->regions);
    wefti_rma_rounds_init(&rs->works, rs, wefti_rma_region_piece);
}

void wefti_rma_regions_free(rma_state_t *rs)
{
    wefti_slots_free(&rs->by_id);
    wefti_map_free(&rs->by_name);
    wefti_rma_stripes_free(rs->stripes);
    wefti_rma_meeting_free(rs->meeting);
    pthread_mutex_destroy(&rs->lock);
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_region_t, rt);

struct rma_name {
    rma_name_t *next; /* of by_name, of the same hash: the first, so that a test can look */
    rma_name_t *more; /* of the same region */
    weft_region_t *region;
    uint64_t hash;
    size_t n;
    char text[];
};

static rma_name_t *find_name(const rma_state_t *rs, uint64_t hash, const char *text, size_t n)
{
    rma_name_t *name = wefti_map_get(&rs->by_name, hash);
    while (name && (name->n != n || memcmp(name->text, text, n) != 0))
        name = name->next;
    return name;
}

/* NULL: no memory. */
static rma_name_t *name_new(weft_region_t *region, const char *text)
{
    size_t n = strlen(text);
    rma_name_t *name = wefti_calloc(1, sizeof *name + n + 1);
    if (!name)
        return NULL;
    name->region = region;
    name->hash = wefti_hash_bytes(text, n);
    name->n = n;
    memcpy(name->text, text, n);
    return name;
}

static weft_status_t list_name(rma_state_t *rs, rma_name_t *name)
{
    if (find_name(rs, name->hash, name->text, name->n))
        return wefti_fail(WEFT_ERR_STATE, "there is a region \"%s\" already: free it first, or choose another name", name->text);
    name->next = wefti_map_get(&rs->by_name, name->hash);
    if (wefti_map_put(&rs->by_name, name->hash, name))
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the name of a region");
    return WEFT_OK;
}

static void unlist_name(rma_state_t *rs, rma_name_t *name)
{
    rma_name_t *at = wefti_map_get(&rs->by_name, name->hash);
    if (at == name) {
        /* replacing needs no memory */
        weft_status_t st = name->next ? wefti_map_put(&rs->by_name, name->hash, name->next) : WEFT_OK;
        if (!name->next || st)
            wefti_map_take(&rs->by_name, name->hash);
        return;
    }
    while (at && at->next != name)
        at = at->next;
    if (at)
        at->next = name->next;
}

/* Those that are listed. */
static void unlist_names(weft_region_t *region)
{
    for (rma_name_t *name = region->names; name; name = name->more)
        unlist_name(region->rs, name);
}

static void free_names(weft_region_t *region)
{
    for (rma_name_t *name = region->names, *more; name; name = more) {
        more = name->more;
        wefti_free(name);
    }
}

static weft_status_t list(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    pthread_mutex_lock(&rs->lock);
    weft_status_t st = wefti_closing(rs->rt) ? wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed")
                       : region->names       ? list_name(rs, region->names)
                                             : WEFT_OK;
    if (!st && wefti_slots_add(&rs->by_id, region, &region->id)) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for the id of a region");
        unlist_names(region);
    }
    if (!st)
        wefti_list_push_back(&rs->regions, &region->link);
    pthread_mutex_unlock(&rs->lock);
    return st;
}

void wefti_rma_region_unlist(weft_region_t *region)
{
    rma_state_t *rs = region->rs;
    pthread_mutex_lock(&rs->lock);
    if (wefti_slots_get(&rs->by_id, region->id)) {
        wefti_slots_remove(&rs->by_id, region->id);
        unlist_names(region);
    }
    pthread_mutex_unlock(&rs->lock);
    wefti_rma_next_generation(region);
}

weft_region_t *wefti_rma_region(rma_state_t *rs, uint64_t id)
{
    pthread_mutex_lock(&rs->lock);
    weft_region_t *region = wefti_slots_get(&rs->by_id, id);
    pthread_mutex_unlock(&rs->lock);
    return region;
}

weft_status_t wefti_rma_region_here(rma_state_t *rs, uint64_t id, weft_region_t **region_out)
{
    rma_state_t *head = rma_state(wefti_head(rs->rt));
    weft_status_t st = WEFT_OK;
    pthread_mutex_lock(&head->lock);
    *region_out = wefti_slots_get(&head->by_id, id);
    if (*region_out && head != rs)
        st = wefti_rma_twin(*region_out, rs, region_out);
    pthread_mutex_unlock(&head->lock);
    if (!st && !*region_out)
        st = wefti_fail(WEFT_ERR_STALE, "the region was revoked or freed since its key was made");
    return st;
}

weft_status_t wefti_rma_named(rma_state_t *rs, const char *name, size_t n, rma_claim_t *claim_out)
{
    pthread_mutex_lock(&rs->lock);
    const rma_name_t *found = find_name(rs, wefti_hash_bytes(name, n), name, n);
    const weft_region_t *r = found ? found->region : NULL;
    if (r)
        *claim_out = (rma_claim_t){
            .region = r->id, .generation = atomic_load(&r->generation), .len = atomic_load(&r->len), .rights = r->name_rights};
    pthread_mutex_unlock(&rs->lock);
    return r ? WEFT_OK : wefti_fail(WEFT_ERR_NOTFOUND, "no region has that name of %zu bytes", n);
}

/* --- memory ------------------------------------------------------------------------------------------------------------ */

/* Zero, and pages only where it is touched. */
static weft_status_t map_private(uint64_t max_len, uint8_t **base_out)
{
    if (max_len > PTRDIFF_MAX || (wefti_alloc_fails && wefti_alloc_fails((size_t)max_len)))
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a region of %llu bytes", (unsigned long long)max_len);
    void *p = mmap(NULL, (size_t)max_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return wefti_fail(errno == ENOMEM ? WEFT_ERR_NOMEM : WEFT_ERR_SYSTEM, "a region of %llu bytes: %s",
                          (unsigned long long)max_len, strerror(errno));
    *base_out = p;
    return WEFT_OK;
}

static weft_status_t memory_new(weft_region_t *r, const weft_region_opts_t *o)
{
    weft_status_t st = WEFT_OK;
    r->share.fd = -1;
    r->own = !o->buf;
    r->checked = o->unmapped;
    if (o->buf) {
        r->base = o->buf;
        r->device = wefti_mem_device_of(o->buf, o->kind);
        wefti_rma_turns_init(r);
        if (r->stripes && r->device && !o->unmapped) /* for peers that can read it; without, all of them ask */
            (void)wefti_rma_share_new(&r->share, 0);
    } else if (o->unmapped) {
        st = map_private(r->max_len, &r->base);
    } else {
        st = wefti_rma_share_new(&r->share, r->max_len);
        r->base = r->share.data;
    }
    return st;
}

/* Kept memory is private to this process. A peer in the middle of an access goes on writing to what it has mapped, though, and
 * so does one that was stopped there, much later: the old memory is left to them, about n bytes with each call. Only then, for
 * what the program writes to the bytes that are being moved may be lost. WEFT_ERR_AGAIN: there is more. */
static weft_status_t leave_to_peers(weft_region_t *r, uint64_t n)
{
    rma_share_t *s = &r->share;
    bool busy = wefti_rma_share_replacing(s);
    for (uint32_t i = 0; i < RMA_SLOTS && !busy; i++)
        busy = wefti_rma_slot_busy(s, (int32_t)i); /* of lost peers too; nobody's stamp is good any more */
    return busy ? wefti_rma_share_replace(s, r->max_len, n) : WEFT_OK;
}

bool wefti_rma_region_memory_give(weft_region_t *r, uint64_t n)
{
    if (!r->own)
        return false;
    if (atomic_load(&r->kept))
        return r->share.fd >= 0 && leave_to_peers(r, wefti_rma_step_bytes / RMA_MOVE) == WEFT_ERR_AGAIN;
    if (r->share.fd >= 0)
        return wefti_memfd_empty(&r->share.mem, &r->given, (size_t)n);
    /* Not munmap(): others could be given those addresses before the rest goes. */
    size_t len = (size_t)atomic_load(&r->len), left = len - r->given;
    n = (n + RMA_CONTROL - 1) / RMA_CONTROL * RMA_CONTROL;
    if (n < left)
        (void)madvise(r->base + r->given, (size_t)n, MADV_DONTNEED);
    r->given += n < left ? (size_t)n : left;
    return r->given < len;
}

static void memory_free(weft_region_t *r)
{
    bool kept = atomic_load(&r->kept);
    if (r->share.fd >= 0 && kept) {
        weft_status_t st;
        while ((st = leave_to_peers(r, wefti_rma_step_bytes)) == WEFT_ERR_AGAIN)
            ;
        if (st) /* it is the program's all the same */
            wefti_warn("rma: memory that is kept may still be written to by a peer that is in the middle of an access: %s",
                       weft_last_error());
        wefti_memfd_keep(&r->share.mem);
    } else if (r->share.fd >= 0)
        wefti_rma_share_free(&r->share);
    else if (r->own && !kept)
        munmap(r->base, (size_t)r->max_len);
}

/* --- making one -------------------------------------------------------------------------------------------------------- */

static weft_status_t check(weft_region_opts_t *o)
{
    size_t name = o->name ? strnlen(o->name, WEFT_RMA_NAME_MAX + 1) : 1;
    if (!o->max_len)
        o->max_len = o->len;
    if (!o->rights)
        o->rights = WEFT_RMA_ALL;
    if (!o->name_rights)
        o->name_rights = o->rights;
    if (!o->len || o->max_len < o->len)
        return wefti_fail(WEFT_ERR_INVALID,
                          "a region of %llu bytes that may grow to %llu: it has at least one, and never shrinks",
                          (unsigned long long)o->len, (unsigned long long)o->max_len);
    if (o->rights & ~WEFT_RMA_ALL || o->name_rights & ~o->rights)
        return wefti_fail(WEFT_ERR_INVALID, "rights %#x, and %#x by name: only WEFT_RMA_ALL, and by name no more than without",
                          o->rights, o->name_rights);
    if (!name || name > WEFT_RMA_NAME_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "the name of a region has 1 to %u bytes", WEFT_RMA_NAME_MAX);
    if (o->kind && !o->buf)
        return wefti_fail(WEFT_ERR_INVALID, "a region has a kind of memory only with buf: allocate it there first");
    if (o->buf && o->max_len > UINTPTR_MAX - (uintptr_t)o->buf)
        return wefti_fail(WEFT_ERR_INVALID, "%llu bytes from %p on do not fit an address space", (unsigned long long)o->max_len,
                          o->buf);
    return WEFT_OK;
}

void wefti_rma_region_lists(weft_region_t *r)
{
    wefti_list_init(&r->grants);
    wefti_list_init(&r->waiting);
    wefti_list_init(&r->turns.running);
    wefti_list_init(&r->turns.waiting);
}

static weft_status_t region_new(weft_runtime_t *rt, const weft_region_opts_t *given, weft_region_t **region_out)
{
    weft_region_opts_t o = *given;
    weft_status_t st;
    weft_region_t *r = wefti_handle_new(&handles);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a region");
    r->rt = rt;
    r->rs = rma_state(rt);
    r->pub = r;
    atomic_init(&r->generation, 1);
    atomic_init(&r->len, o.len);
    r->max_len = o.max_len;
    r->rights = o.rights;
    r->name_rights = o.name_rights;
    r->notify = o.notify;
    r->user = o.user;
    wefti_rma_region_lists(r);
    wefti_rma_ending_init(r);
    st = wefti_sharded(rt) ? wefti_rma_parts_new(r) : WEFT_OK;
    if (st)
        goto err_region;
    if (o.name && !(r->names = name_new(r, o.name))) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for the name of a region");
        goto err_parts;
    }
    st = memory_new(r, &o);
    r->apart |= r->by_turns;
    if (st)
        goto err_name;
    st = list(r);
    if (st)
        goto err_memory;
    *region_out = r;
    return WEFT_OK;

err_memory:
    memory_free(r);
err_name:
    free_names(r);
err_parts:
    wefti_rma_parts_free(r);
err_region:
    wefti_handle_free(&handles, r);
    return st;
}

weft_status_t weft_region_new(weft_runtime_t *rt, const weft_region_opts_t *opts, weft_region_t **region_out)
{
    weft_region_opts_t o;
    if (!rt || !opts || !region_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "rt" : !opts ? "opts" : "region_out");
    rt = wefti_head(rt);
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_opts_read(opts, &o, sizeof o, "weft_region_opts_t");
    if (!st)
        st = check(&o);
    if (!st)
        st = region_new(rt, &o, region_out);
    wefti_part(rt);
    return st;
}

void wefti_rma_region_gone(weft_region_t *r)
{
    memory_free(r);
    free_names(r);
    wefti_rma_parts_free(r);
    wefti_handle_free(&handles, r);
}

/* --- the rest of the calls --------------------------------------------------------------------------------------------- */

weft_status_t wefti_rma_region_enter(const weft_region_t *region)
{
    if (!region)
        return wefti_fail(WEFT_ERR_INVALID, "the region is NULL");
    if (!wefti_handle_enter(&((weft_region_t *)(uintptr_t)region)->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the region was freed");
    if (!wefti_gone(region->rt))
        return WEFT_OK;
    wefti_rma_region_leave(region);
    return wefti_fail_gone(region->rt);
}

/* What is freed meanwhile is not in the tables any more, and gets no name that would stay there. */
static weft_status_t name_more(weft_region_t *region, rma_name_t *name)
{
    rma_state_t *rs = region->rs;
    pthread_mutex_lock(&rs->lock);
    weft_status_t st = wefti_slots_get(&rs->by_id, region->id) == region ? list_name(rs, name)
                                                                         : wefti_fail(WEFT_ERR_CLOSED, "the region was freed");
    if (!st) {
        name->more = region->names;
        region->names = name;
    }
    pthread_mutex_unlock(&rs->lock);
    return st;
}

weft_status_t weft_region_name(weft_region_t *region, const char *name)
{
    size_t n = name ? strnlen(name, WEFT_RMA_NAME_MAX + 1) : 0;
    if (!region || !n || n > WEFT_RMA_NAME_MAX)
        return wefti_fail(WEFT_ERR_INVALID, region ? "the name of a region has 1 to %u bytes" : "the region is NULL",
                          WEFT_RMA_NAME_MAX);
    weft_status_t st = wefti_rma_region_enter(region);
    if (st)
        return st;
    rma_name_t *more = name_new(region, name);
    st = more ? name_more(region, more) : wefti_fail(WEFT_ERR_NOMEM, "no memory for the name of a region");
    if (st)
        wefti_free(more);
    wefti_rma_region_leave(region);
    return st;
}

weft_status_t weft_region_until(weft_region_t *region, uint64_t when)
{
    weft_status_t st = wefti_rma_region_enter(region);
    if (st)
        return st;
    if (region->checked)
        wefti_rma_set_until(region, when);
    else
        st = wefti_fail(WEFT_ERR_STATE,
                        "the region was not made `unmapped`: only then is every access checked here, and can be refused");
    wefti_rma_region_leave(region);
    return st;
}

weft_status_t weft_region_extend(weft_region_t *region, uint64_t len)
{
    weft_status_t st = wefti_rma_region_enter(region);
    if (st)
        return st;
    uint64_t was = atomic_load(&region->len);
    do {
        if (len < was || len > region->max_len)
            st = wefti_fail(WEFT_ERR_RANGE, "a region of %llu bytes that may grow to %llu cannot have %llu",
                            (unsigned long long)was, (unsigned long long)region->max_len, (unsigned long long)len);
    } while (!st && !atomic_compare_exchange_weak(&region->len, &was, len));
    wefti_rma_region_leave(region);
    return st;
}

weft_status_t weft_region_keep(weft_region_t *region, void **map_out, size_t *n_out)
{
    if (!region || !map_out || !n_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !region ? "the region" : !map_out ? "map_out" : "n_out");
    weft_status_t st = wefti_rma_region_enter(region);
    if (st)
        return st;
    bool shared = region->share.fd >= 0;
    if (!region->own) {
        st = wefti_fail(WEFT_ERR_STATE, "the memory of this region is the program's already");
    } else {
        atomic_store(&region->kept, true);
        *map_out = shared ? region->share.mem.base : region->base;
        *n_out = shared ? region->share.mem.n : (size_t)region->max_len;
    }
    wefti_rma_region_leave(region);
    return st;
}

void *weft_region_base(const weft_region_t *region)
{
    if (!region || !wefti_handle_enter(&((weft_region_t *)(uintptr_t)region)->handle))
        return NULL;
    void *base = region->base;
    wefti_rma_region_leave(region);
    return base;
}

/* Any thread: the counters may be a little old. */
weft_status_t weft_region_get_info(const weft_region_t *region, weft_region_info_t *info_out)
{
    weft_region_info_t info = WEFT_REGION_INFO_INIT;
    if (!region || !info_out || info_out->size < sizeof info.size)
        return wefti_fail(WEFT_ERR_INVALID, "%s",
                          region ? "weft_region_info_t: use WEFT_REGION_INFO_INIT" : "the region is NULL");
    weft_status_t st = wefti_rma_region_enter(region);
    if (st)
        return st;
    info.len = atomic_load(&region->len);
    info.max_len = region->max_len;
    info.generation = atomic_load(&region->generation);
    info.attached = __atomic_load_n(&region->attached, __ATOMIC_RELAXED);
    info.mapped = __atomic_load_n(&region->mapped, __ATOMIC_RELAXED);
    rma_counts_copy(&info, &region->count);
    info.refused = __atomic_load_n(&region->refused, __ATOMIC_RELAXED);
    wefti_rma_twins_count(region, &info);
    wefti_rma_region_leave(region);
    wefti_opts_write(info_out, &info, sizeof info);
    return WEFT_OK;
}
