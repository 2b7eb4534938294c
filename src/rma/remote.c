/* rma/remote.c - memory of others: attaching it, asking about it, dropping it.
 *
 * A remote is made when its attachment is posted, and becomes the program's when that succeeds. It ends with its endpoint: from
 * then on every access says how the endpoint ended. It is freed when the program has dropped it and its last access has ended,
 * and so is its mapping. When the runtime closes, the program may still have it: then the mapping stays until it is dropped,
 * and calls say WEFT_ERR_CLOSED.
 *
 * Small accesses to mapped memory do not check whether it was dropped: the fields that they read stay readable, and say that
 * nothing is mapped.
 *
 * Mapping: where the owner gives a map handle for its memory, and the transport can use it, accesses go there directly.
 * Otherwise, and if the mapping fails, the same grant is used over the lane. */
#include <sys/mman.h>

#include "rma/serve.h"

const char *weft_rma_path_name(weft_rma_path_t path)
{
    static const char *const names[] = {"any", "mapped", "checked", "native"};
    return (unsigned)path < sizeof names / sizeof names[0] ? names[path] : "?";
}

/* --- letting go -------------------------------------------------------------------------------------------------------- */

#define LINGER WEFT_MILLISECOND

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_remote_t, rt);

static weft_remote_t *remote_new(weft_runtime_t *rt, weft_ep_t *ep, const void *claim, size_t n)
{
    weft_remote_t *r = (weft_remote_t *)wefti_handle_take(&handles);
    uint8_t *copy = r ? (uint8_t *)wefti_malloc(n) : NULL;
    if (!copy) {
        wefti_handle_free(&handles, r);
        return NULL;
    }
    memset(&r->rights, 0,
           sizeof *r - offsetof(weft_remote_t, rights)); /* not `coming`: calls that come too late still touch it */
    r->claim = memcpy(copy, claim, n);
    r->claim_len = n;
    r->rt = rt;
    r->rs = rma_state(rt);
    r->ep = ep;
    r->owner = ep->id;
    wefti_list_init(&r->live);
    wefti_list_init(&r->loose);
    wefti_list_init(&r->flushes);
    wefti_list_init(&r->held);
    atomic_store_explicit(&r->handle.open, 1, memory_order_release);
    return r;
}

static void memory_free(weft_remote_t *r)
{
    r->slot = NULL;
    atomic_store(&r->state, WEFT_ERR_CLOSED);
    if (r->map)
        r->unmap(r->map, r->map_bytes);
    wefti_free(r->claim);
    wefti_handle_free(&handles, r);
}

static void remote_free(weft_remote_t *r)
{
    rma_state_t *rs = r->rs;
    weft_ep_t *ep = r->ep;
    wefti_timer_stop(rs->rt, &r->linger);
    if (ep) {
        wefti_list_remove(&r->ep_link);
        if (r->grant) /* without memory for it, the end of the endpoint tells the owner */
            (void)wefti_rma_tell(ep, REC_DROP, r->grant);
    }
    if (wefti_list_linked(&r->held_link)) /* all that was held was cancelled */
        wefti_list_remove(&r->held_link);
    wefti_rma_native_close(r);
    wefti_rma_far_close(r);
    wefti_list_remove(&r->all_link);
    wefti_count_up(&rs->mapped, r->fast);
    wefti_count_up(&rs->fast_gone, r->fast);
    memory_free(r);
    if (ep)
        wefti_ep_drained(ep);
}

void wefti_rma_remote_unref(weft_remote_t *r)
{
    if (--r->refs)
        return;
    if (!atomic_load(&r->coming))
        remote_free(r);
    else /* the call that comes frees it, or this timer; without memory for the timer, the end of the runtime */
        (void)wefti_timer_at(r->rt, &r->linger, wefti_now(r->rt) + LINGER);
}

static void lingered(wefti_timer_t *t)
{
    weft_remote_t *r = wefti_container_of(t, weft_remote_t, linger);
    r->refs++;
    wefti_rma_remote_unref(r);
}

weft_status_t wefti_rma_fail_dropped(void)
{
    return wefti_fail(WEFT_ERR_CLOSED, "the remote was dropped");
}

void wefti_rma_came(weft_remote_t *r)
{
    r->refs++;
    atomic_fetch_sub(&r->coming, 1);
    wefti_rma_remote_unref(r);
}

weft_status_t wefti_rma_remote_enter(weft_remote_t *r)
{
    if (!wefti_handle_enter(&r->handle))
        return wefti_rma_fail_dropped();
    weft_status_t st = WEFT_OK;
    if (atomic_load(&r->parted))
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime of the remote is closed");
    else if (wefti_gone(r->rt))
        st = wefti_fail_gone(r->rt);
    if (st)
        wefti_handle_leave(&r->handle);
    return st;
}

static void drop_now(wefti_call_t *call)
{
    wefti_rma_remote_unref(wefti_container_of(call, weft_remote_t, drop_call));
}

/* Have the driver do it. WEFT_ERR_CLOSED: nobody does. Inside, so that the room is not freed before it is known who frees the
 * remote. */
static weft_status_t hand_in(weft_remote_t *r)
{
    weft_runtime_t *rt = r->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    if (atomic_load(&r->parted) || !wefti_call_on_driver(rt, &r->drop_call)) /* else it may be gone */
        st = WEFT_ERR_CLOSED;
    wefti_part(rt);
    return st;
}

void weft_remote_drop(weft_remote_t *r)
{
    /* in a forked child it is the parent's */
    if (r && wefti_handle_close(&r->handle) && hand_in(r) == WEFT_ERR_CLOSED && atomic_exchange(&r->parted, true))
        memory_free(r);
}

void wefti_rma_remotes_part(rma_state_t *rs)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&rs->remotes));) {
        weft_remote_t *r = wefti_container_of(l, weft_remote_t, all_link);
        wefti_rma_native_close(r);
        wefti_rma_far_close(r);
        atomic_store(&r->state, WEFT_ERR_CLOSED);
        if (!r->refs || atomic_exchange(&r->parted, true))
            memory_free(r);
    }
}

void wefti_rma_remotes_down(weft_ep_t *ep, weft_status_t why)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_list_each_safe(l, &e->remotes) {
        weft_remote_t *r = wefti_container_of(l, weft_remote_t, ep_link);
        if (wefti_rma_remote_fails(r, why))
            r->why_detail = ep->why_detail;
        if (ep->lane)
            continue; /* it closes gracefully: what is under way goes on */
        wefti_list_remove(l);
        r->ep = NULL;
        wefti_rma_native_close(r);
        r->refs++;
        wefti_rma_steps_down(r, why);
        wefti_rma_remote_unref(r);
    }
}

/* --- attaching --------------------------------------------------------------------------------------------------------- */

/* Map the memory of a map handle; what is exported is device memory beside it. False: use the lane. */
static bool map(weft_ep_t *ep, weft_remote_t *r, const rma_attached_t *a, const uint8_t *map_handle, size_t map_handle_n,
                const wefti_export_t *export)
{
    wefti_lane_t *lane = ep->lane;
    void *ptr;
    if (!a->stamp || !map_handle_n || r->wanted == WEFT_RMA_CHECKED || !lane || !lane->ops->map)
        return false;
    if (lane->ops->map(lane, map_handle, map_handle_n, (size_t)a->map_bytes, &ptr)) {
        wefti_info("a region of a peer could not be mapped, every access asks its owner: %s", weft_last_error());
        return false;
    }
    rma_control_t *control = (rma_control_t *)ptr;
    if (control->magic != RMA_MAGIC) {
        lane->ops->unmap(ptr, (size_t)a->map_bytes);
        return false;
    }
    /* Without the right to write, not even a mistake can write. */
    if (!(r->rights & (WEFT_RMA_WRITE | WEFT_RMA_ATOMIC)))
        (void)mprotect((uint8_t *)ptr + RMA_CONTROL, (size_t)a->map_bytes - RMA_CONTROL, PROT_READ);
    r->map = ptr;
    r->map_bytes = (size_t)a->map_bytes;
    r->unmap = lane->ops->unmap;
    r->stamp = a->stamp;
    if (export) {
        r->far_slot = &control->slots[a->slot];
        return wefti_rma_far_open(r, export);
    }
    r->bytes = (uint8_t *)ptr + a->map_offset;
    r->slot = &control->slots[a->slot];
    return true;
}

void wefti_rma_attached(weft_ep_t *ep, rma_acc_t *acc, const wefti_wild_t *rec, size_t n)
{
    rma_attached_t a;
    uint8_t map_handle[WEFTI_KEY_MAX]; /* or a fabric key */
    _Static_assert(WEFTI_KEY_MAX >= WEFTI_MAP_HANDLE_MAX, "it holds either");
    if (n < sizeof a) { /* its request was cancelled, so that nobody has checked the length */
        wefti_rma_nonsense(ep);
        return;
    }
    wefti_wild_take(&a, rec, sizeof a);
    size_t map_handle_n = n - sizeof a;
    if (map_handle_n <= sizeof map_handle)
        wefti_wild_take(map_handle, wefti_wild_skip(rec, sizeof a), map_handle_n);
    wefti_export_t export;
    bool far = a.stamp && !a.map_offset && map_handle_n > sizeof export && map_handle_n <= sizeof map_handle;
    if (far) {
        map_handle_n -= sizeof export;
        memcpy(&export, map_handle + map_handle_n, sizeof export);
    }
    if (!a.grant || map_handle_n > sizeof map_handle || a.rights & ~WEFT_RMA_ALL ||
        (a.stamp && (map_handle_n > WEFTI_MAP_HANDLE_MAX || a.slot >= RMA_SLOTS || a.map_bytes > SIZE_MAX / 2 ||
                     a.map_bytes < RMA_CONTROL)) ||
        (a.stamp && !far && (a.map_offset < RMA_CONTROL || a.map_offset > a.map_bytes || a.len > a.map_bytes - a.map_offset))) {
        wefti_rma_nonsense(ep);
        if (acc)
            wefti_rma_end(acc, WEFT_ERR_PROTOCOL);
        return;
    }
    if (!acc) { /* it was cancelled */
        (void)wefti_rma_tell(ep, REC_DROP, a.grant);
        return;
    }
    weft_remote_t *r = acc->remote;
    weft_op_t *op = rma_op(acc);
    r->grant = a.grant;
    r->len = a.len;
    r->rights = a.rights;
    r->generation = a.generation;
    r->path = WEFT_RMA_CHECKED;
    if (map(ep, r, &a, map_handle, map_handle_n, far ? &export : NULL))
        r->path = WEFT_RMA_MAPPED;
    else if (!a.stamp && map_handle_n && wefti_rma_native_open(r, ep, map_handle, map_handle_n))
        r->path = WEFT_RMA_NATIVE;
    if (r->wanted && r->wanted != r->path) {
        wefti_rma_end(acc, WEFT_ERR_UNSUPPORTED);
        return;
    }
    wefti_free(r->claim);
    r->claim = NULL;
    r->refs++; /* the program's */
    op->buf = r;
    op->len = a.len;
    wefti_rma_end(acc, WEFT_OK);
}

static weft_status_t attach_start(weft_op_t *op)
{
    rma_acc_t *acc = rma_acc(op);
    weft_remote_t *r = acc->remote;
    weft_ep_t *ep = r->ep;
    weft_status_t st = wefti_ep_check(ep);
    if (st) {
        memory_free(r);
        acc->remote = NULL;
        return st;
    }
    wefti_list_push_back(&r->rs->remotes, &r->all_link);
    wefti_list_push_back(&rma_ep(ep)->remotes, &r->ep_link);
    r->refs = 1;
    st = wefti_rma_begin(acc);
    if (st)
        acc->remote = NULL; /* it is gone */
    wefti_rma_remote_unref(r);
    return st;
}

static const wefti_op_kind_t attach_kind = {.name = "attach", .start = attach_start, .cancel = wefti_rma_op_cancel};

static weft_status_t attach(weft_ep_t *ep, const void *claim, size_t n, uint8_t flags, const weft_remote_opts_t *given,
                            weft_op_t *op)
{
    weft_remote_opts_t o;
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_remote_opts_t");
    if (!st)
        st = wefti_ep_check(ep);
    if (st)
        return st;
    if ((unsigned)o.path > WEFT_RMA_NATIVE)
        return wefti_fail(WEFT_ERR_INVALID, "%d is not a path to remote memory", (int)o.path);
    weft_runtime_t *rt = ep->rt;
    st = wefti_op_prepare(rt, op, &attach_kind);
    if (st)
        return st;
    weft_remote_t *r = remote_new(rt, ep, claim, n);
    if (!r) {
        wefti_op_unprepare(op);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for one more remote");
    }
    r->wanted = o.path;
    r->drop_call.fn = drop_now;
    r->linger.fn = lingered;
    *rma_acc(op) = (rma_acc_t){.remote = r, .what = ACC_ATTACH, .which = flags};
    op->buf = NULL;
    op->len = 0;
    op->from = r->owner;
    st = wefti_op_post(rt, op);
    if (st && rma_acc(op)->remote) /* the runtime was closed meanwhile */
        memory_free(r);
    return st;
}

weft_status_t weft_remote_attach(weft_ep_t *ep, const void *key, size_t len, const weft_remote_opts_t *opts, weft_op_t *op)
{
    if (!ep || !key || !op)
        return wefti_fail(WEFT_ERR_INVALID, "attaching needs an endpoint, a region's key and an operation");
    if (!len || len > WEFT_REGION_KEY_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "a region's key has 1 to %u bytes, not %zu", WEFT_REGION_KEY_MAX, len);
    return attach(ep, key, len, 0, opts, op);
}

weft_status_t weft_remote_find(weft_ep_t *ep, const char *name, const weft_remote_opts_t *opts, weft_op_t *op)
{
    if (!ep || !name || !op)
        return wefti_fail(WEFT_ERR_INVALID, "attaching by name needs an endpoint, a name and an operation");
    size_t n = strlen(name);
    if (!n || n > WEFT_RMA_NAME_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "a name has 1 to %u bytes, not %zu", WEFT_RMA_NAME_MAX, n);
    return attach(ep, name, n, F_NAME, opts, op);
}

weft_status_t weft_remote_get_info(const weft_remote_t *remote, weft_remote_info_t *out)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    weft_remote_t *r = (weft_remote_t *)(uintptr_t)remote;
    if (!r || !out || !out->size)
        return wefti_fail(WEFT_ERR_INVALID, "asking needs a remote and an info made with WEFT_REMOTE_INFO_INIT");
    weft_status_t st = wefti_rma_remote_enter(r);
    if (st)
        return st;
    info.len = r->len;
    info.rights = r->rights;
    info.path = r->path;
    info.generation = r->generation;
    info.owner = r->owner;
    info.state = (weft_status_t)atomic_load_explicit(&r->state, memory_order_relaxed);
    if (!info.state && r->slot && atomic_load_explicit(&r->slot->stamp, memory_order_relaxed) != r->stamp)
        info.state = WEFT_ERR_STALE;
    rma_counts_copy(&info, &r->count);
    wefti_handle_leave(&r->handle);
    wefti_opts_write(out, &info, sizeof info);
    return WEFT_OK;
}
