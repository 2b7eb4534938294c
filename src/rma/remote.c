/* rma/remote.c - memory of others: attaching it, what can be asked of it, letting go of it.
 *
 * A remote is made when its attachment is posted, and is the program's when that succeeds. It ends with its endpoint: from then on every access says
 * how the endpoint ended. It is freed when the program has dropped it and the last access on it has ended; only then is its mapping gone.
 *
 * Mapping: where the owner gives a ticket for its memory, and the rail can use it, accesses go there directly. Otherwise, and if the
 * mapping fails, the same grant is used over the lane. */
#include <sys/mman.h>

#include "rma/state.h"

const char *weft_rma_path_name(weft_rma_path_t path)
{
    static const char *const names[] = {"any", "mapped", "checked", "native"};
    return (unsigned)path < sizeof names / sizeof names[0] ? names[path] : "?";
}

/* --- letting go ------------------------------------------------------------------------------------------------------------------- */

/* A DROP that found no room on the lane. */
typedef struct owed_drop {
    wefti_list_t link; /* rma_ep_t.drops */
    uint64_t grant;
} owed_drop_t;

static bool drop_put(weft_ep_t *ep, uint64_t grant)
{
    rma_drop_t rec = {.kind = REC_DROP, .grant = grant};
    return wefti_rma_put(ep, &rec, sizeof rec);
}

/* Tell the owner. */
bool wefti_rma_drop_send(weft_ep_t *ep, uint64_t grant)
{
    rma_ep_t *e = rma_ep(ep);
    if (!ep->lane || (wefti_list_empty(&e->drops) && drop_put(ep, grant)))
        return true;
    owed_drop_t *owed = (owed_drop_t *)wefti_malloc(sizeof *owed);
    if (!owed)
        return false;
    owed->grant = grant;
    wefti_list_push_back(&e->drops, &owed->link);
    return true;
}

void wefti_rma_drops_flush(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    for (wefti_list_t *l; (l = wefti_list_first(&e->drops));) {
        owed_drop_t *owed = wefti_container_of(l, owed_drop_t, link);
        if (!drop_put(ep, owed->grant))
            return;
        wefti_list_remove(l);
        wefti_free(owed);
    }
}

void wefti_rma_drops_free(weft_ep_t *ep)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&rma_ep(ep)->drops));)
        wefti_free(wefti_container_of(l, owed_drop_t, link));
}

static void remote_free(weft_remote_t *r)
{
    rma_state_t *rs = r->rs;
    weft_ep_t *ep = r->ep;
    if (ep) {
        wefti_list_remove(&r->ep_link);
        if (r->grant) /* what cannot be said for want of memory is said by the end of the endpoint */
            (void)wefti_rma_drop_send(ep, r->grant);
    }
    wefti_rma_native_close(r);
    wefti_list_remove(&r->all_link);
    wefti_count_up(&rs->mapped, r->fast);
    wefti_count_up(&rs->fast_gone, r->fast);
    if (r->map)
        r->unmap(r->map, r->map_bytes);
    wefti_free(r);
    if (ep)
        wefti_ep_drained(ep);
}

void wefti_rma_remote_unref(weft_remote_t *r)
{
    if (!--r->refs && !atomic_load(&r->coming))
        remote_free(r);
}

void wefti_rma_came(weft_remote_t *r)
{
    r->refs++;
    atomic_fetch_sub(&r->coming, 1);
    wefti_rma_remote_unref(r);
}

static void drop_now(wefti_call_t *call)
{
    wefti_rma_remote_unref(wefti_container_of(call, weft_remote_t, drop_call));
}

void weft_remote_drop(weft_remote_t *r)
{
    if (r)
        wefti_call_on_driver(r->rt, &r->drop_call);
}

void wefti_rma_remotes_down(weft_ep_t *ep, weft_status_t why)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_list_each_safe(l, &e->remotes) {
        weft_remote_t *r = wefti_container_of(l, weft_remote_t, ep_link);
        int32_t ok = WEFT_OK;
        atomic_compare_exchange_strong(&r->state, &ok, (int32_t)why);
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

/* --- attaching ------------------------------------------------------------------------------------------------------------------- */

/* Map what the ticket is for. false: use the lane. */
static bool map(weft_ep_t *ep, weft_remote_t *r, const rma_attached_t *a, const uint8_t *ticket, size_t ticket_n)
{
    wefti_lane_t *lane = ep->lane;
    void *ptr;
    if (!a->stamp || !ticket_n || r->wanted == WEFT_RMA_CHECKED || !lane || !lane->ops->map)
        return false;
    if (lane->ops->map(lane, ticket, ticket_n, (size_t)a->map_bytes, &ptr)) {
        wefti_info("a region of a peer could not be mapped, every access asks its owner: %s", weft_last_error());
        return false;
    }
    rma_control_t *control = (rma_control_t *)ptr;
    if (control->magic != RMA_MAGIC) {
        lane->ops->unmap(ptr, (size_t)a->map_bytes);
        return false;
    }
    /* What may only be read cannot be written to by mistake either. */
    if (!(r->rights & (WEFT_RMA_WRITE | WEFT_RMA_ATOMIC)))
        (void)mprotect((uint8_t *)ptr + RMA_CONTROL, (size_t)a->map_bytes - RMA_CONTROL, PROT_READ);
    r->map = ptr;
    r->map_bytes = (size_t)a->map_bytes;
    r->unmap = lane->ops->unmap;
    r->bytes = (uint8_t *)ptr + a->map_offset;
    r->stamp = a->stamp;
    r->slot = &control->slots[a->slot];
    return true;
}

void wefti_rma_attached(weft_ep_t *ep, rma_acc_t *acc, const wefti_wild_t *rec, size_t n)
{
    rma_attached_t a;
    uint8_t ticket[WEFTI_KEY_MAX]; /* or a key */
    _Static_assert(WEFTI_KEY_MAX >= WEFTI_TICKET_MAX, "it holds either");
    wefti_wild_take(&a, rec, sizeof a);
    size_t ticket_n = n - sizeof a;
    if (ticket_n <= sizeof ticket)
        wefti_wild_take(ticket, wefti_wild_skip(rec, sizeof a), ticket_n);
    if (!a.grant || ticket_n > sizeof ticket || a.rights & ~WEFT_RMA_ALL ||
        (a.stamp &&
         (ticket_n > WEFTI_TICKET_MAX || a.slot >= RMA_SLOTS || a.map_bytes > SIZE_MAX / 2 || a.map_bytes < RMA_CONTROL ||
          a.map_offset < RMA_CONTROL || a.map_offset > a.map_bytes || a.len > a.map_bytes - a.map_offset))) {
        wefti_rma_nonsense(ep);
        if (acc)
            wefti_rma_end(acc, WEFT_ERR_PROTOCOL);
        return;
    }
    if (!acc) { /* it was cancelled */
        (void)wefti_rma_drop_send(ep, a.grant);
        return;
    }
    weft_remote_t *r = acc->remote;
    weft_op_t *op = rma_op(acc);
    r->grant = a.grant;
    r->len = a.len;
    r->rights = a.rights;
    r->generation = a.generation;
    r->path = WEFT_RMA_CHECKED;
    if (map(ep, r, &a, ticket, ticket_n))
        r->path = WEFT_RMA_MAPPED;
    else if (!a.stamp && ticket_n && wefti_rma_native_open(r, ep, ticket, ticket_n))
        r->path = WEFT_RMA_NATIVE;
    if (r->wanted && r->wanted != r->path) {
        wefti_rma_end(acc, WEFT_ERR_UNSUPPORTED);
        return;
    }
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
    wefti_list_push_back(&r->rs->remotes, &r->all_link);
    wefti_list_push_back(&rma_ep(ep)->remotes, &r->ep_link);
    r->refs = 1;
    weft_status_t st = wefti_rma_begin(acc);
    wefti_rma_remote_unref(r);
    return st;
}

static void attach_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_rma_cancel(rma_acc(op), why);
}

static const wefti_op_kind_t attach_kind = {.name = "attach", .start = attach_start, .cancel = attach_cancel};

static weft_status_t attach(weft_ep_t *ep, const void *claim, size_t n, uint8_t flags, const weft_remote_opts_t *given,
                            weft_op_t *op)
{
    weft_remote_opts_t o;
    weft_status_t st = wefti_opts_read(given, &o, sizeof o, "weft_remote_opts_t");
    if (st)
        return st;
    if ((unsigned)o.path > WEFT_RMA_NATIVE)
        return wefti_fail(WEFT_ERR_INVALID, "%d is not a path to remote memory", (int)o.path);
    weft_runtime_t *rt = ep->rt;
    weft_remote_t *r = (weft_remote_t *)wefti_calloc(1, sizeof *r + n);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for one more remote");
    r->rt = rt;
    r->rs = rma_state(rt);
    r->ep = ep;
    r->owner = ep->id;
    r->wanted = o.path;
    r->claim_len = n;
    memcpy(r->claim, claim, n);
    r->drop_call.fn = drop_now;
    wefti_list_init(&r->live);
    wefti_list_init(&r->loose);
    wefti_list_init(&r->flushes);
    st = wefti_op_prepare(rt, op, &attach_kind);
    if (st) {
        wefti_free(r);
        return st;
    }
    *rma_acc(op) = (rma_acc_t){.remote = r, .what = ACC_ATTACH, .which = flags};
    op->buf = NULL;
    op->len = 0;
    op->from = ep->id;
    return wefti_op_go(rt, op);
}

weft_status_t weft_remote_attach(weft_ep_t *ep, const void *token, size_t len, const weft_remote_opts_t *opts, weft_op_t *op)
{
    if (!ep || !token || !op)
        return wefti_fail(WEFT_ERR_INVALID, "attaching needs an endpoint, a token and an operation");
    if (!len || len > WEFT_RMA_TOKEN_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "a token has 1 to %u bytes, not %zu", WEFT_RMA_TOKEN_MAX, len);
    return attach(ep, token, len, 0, opts, op);
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

weft_status_t weft_remote_get_info(const weft_remote_t *r, weft_remote_info_t *out)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    if (!r || !out || !out->size)
        return wefti_fail(WEFT_ERR_INVALID, "asking needs a remote and an info made with WEFT_REMOTE_INFO_INIT");
    info.len = r->len;
    info.rights = r->rights;
    info.path = r->path;
    info.generation = r->generation;
    info.owner = r->owner;
    info.state = (weft_status_t)atomic_load_explicit(&r->state, memory_order_relaxed);
    if (!info.state && r->slot && atomic_load_explicit(&r->slot->stamp, memory_order_relaxed) != r->stamp)
        info.state = WEFT_ERR_STALE;
    info.reads = __atomic_load_n(&r->count.reads, __ATOMIC_RELAXED);
    info.writes = __atomic_load_n(&r->count.writes, __ATOMIC_RELAXED);
    info.atomics = __atomic_load_n(&r->count.atomics, __ATOMIC_RELAXED);
    info.bytes_read = __atomic_load_n(&r->count.bytes_read, __ATOMIC_RELAXED);
    info.bytes_written = __atomic_load_n(&r->count.bytes_written, __ATOMIC_RELAXED);
    size_t size = out->size;
    memcpy(out, &info, size < sizeof info ? size : sizeof info);
    out->size = size;
    return WEFT_OK;
}
