/* rma/native.c - one-sided accesses by the fabric, where it is marked as trusted: both sides of them.
 *
 * The owner gives a grant a fabric key (UCX's rkey; not the region's key) for its part of the region. From then on the peer
 * reads and writes it without asking, and nobody checks these accesses but their poster. So both sides must have proved the
 * authentication key, and both fabrics must be marked as trusted. Where the fabric only emulates them there is nothing to gain:
 * then the path is used only if a program insists on it.
 *
 * The user's side: an access waits for its turn like every other (checked.c), goes to the fabric instead of the lane, is loose
 * while it is there, and ends when the fabric says so. Requests as ever are atomics, which must be atomic to the owner's
 * processor; notifications; and accesses without bytes or with a buffer on a device.
 *
 * The owner's side: a grant with a fabric key counts as under way, since nobody can tell whether an access is. When it becomes
 * stale its peer is told by REVOKED, and answers DROP after its last access. If the endpoint ends first, the fabric key goes
 * with the lane. Revoking and freeing the region waits for that.
 *
 *     owner:  KEYED --stale--> TOLD --DROP--> no fabric key
 *                 \---endpoint down--> CLOSING --the lane is closed--> no fabric key
 *
 * Promise: no one-sided access touches a region after its revoke or its free has completed. tests/wire/rma_native.c. */
#include "rma/serve.h"

/* Both have proved an authentication key, and this end's fabric is trusted; if it only emulates, so that UCX may abort
 * (fabric/ucx/onesided.c), by name. */
static bool trusted(const weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    return ep->lane && ep->lane->ops->key_new && (!ep->lane->emulates || wefti_trusted_emulated(&ep->rt->config)) &&
           !weft_ep_get_info(ep, &info) && info.authenticated;
}

/* --- the owner's side -------------------------------------------------------------------------------------------------- */

size_t wefti_rma_native_grant(rma_grant_t *g, void *key)
{
    weft_region_t *region = g->region;
    uint8_t *at = region->base + g->offset;
    size_t n;
    /* Not if its memory may be about to be replaced, and a device's is for the checked path. */
    if (!trusted(g->ep) || region->device || region->checked || !g->len || !wefti_rma_may_map(region))
        return 0;
    if (g->ep->lane->ops->key_new(g->ep->lane, at, (size_t)g->len, key, &n, &g->fabric_key)) {
        wefti_info("a region has no fabric key for one-sided access, every access is checked: %s", weft_last_error());
        return 0;
    }
    g->fabric_key_free = g->ep->lane->ops->key_free;
    wefti_rma_grant_begin(g);
    return n;
}

/* It waits behind the answers that wait: one may be the ATTACHED of this grant. */
void wefti_rma_native_stale(rma_grant_t *g)
{
    if (g->fabric_key && g->ep && !wefti_rma_tell(g->ep, REC_REVOKED, g->id))
        wefti_ep_cannot(g->ep, "no memory to say that a region was revoked");
}

static void key_gone(wefti_xfer_t *x, weft_status_t status)
{
    (void)status;
    wefti_rma_grant_end(wefti_container_of(x, rma_grant_t, fabric_key_x));
}

void wefti_rma_native_drop(rma_grant_t *g, bool lost)
{
    void *key = g->fabric_key;
    if (!key)
        return;
    g->fabric_key = NULL;
    if (lost) { /* under way until the lane is closed */
        g->fabric_key_x.done = key_gone;
        g->fabric_key_free(key, &g->fabric_key_x);
    } else {
        g->fabric_key_free(key, NULL);
        g->under_way--; /* the caller checks under_way next */
    }
}

bool wefti_rma_native_hold(weft_region_t *region)
{
    bool any = false;
    rma_each_grant(g, region) {
        any |= g->fabric_key || g->fabric_key_x.done;
        if (g->fabric_key)
            wefti_rma_grant_stale(g);
    }
    return any;
}

/* --- the user's side: attaching ---------------------------------------------------------------------------------------- */

bool wefti_rma_native_wanted(const weft_remote_t *r, const weft_ep_t *ep)
{
    return trusted(ep) && (r->wanted == WEFT_RMA_NATIVE || (r->wanted == WEFT_RMA_ANY && !ep->lane->emulates));
}

bool wefti_rma_native_open(weft_remote_t *r, weft_ep_t *ep, const void *key, size_t n)
{
    if (!wefti_rma_native_wanted(r, ep))
        return false;
    if (ep->lane->ops->key_open(ep->lane, key, n, &r->native)) {
        wefti_info("a peer's region cannot be reached one-sidedly, every access asks its owner: %s", weft_last_error());
        r->native = NULL;
        return false;
    }
    r->native_close = ep->lane->ops->key_close;
    return true;
}

void wefti_rma_native_close(weft_remote_t *r)
{
    if (r->native)
        r->native_close(r->native);
    r->native = NULL;
}

void wefti_rma_revoked(weft_ep_t *ep, uint64_t grant)
{
    wefti_list_each(l, &rma_ep(ep)->remotes) {
        weft_remote_t *r = wefti_container_of(l, weft_remote_t, ep_link);
        if (r->grant != grant || !r->grant)
            continue;
        (void)wefti_rma_remote_fails(r, WEFT_ERR_STALE);
        r->revoked = true;
        wefti_rma_native_quiet(r);
        return;
    }
    /* None: it was dropped, and our DROP is on its way. */
}

/* The owner waits for the last of our accesses: tell it when none is left. */
void wefti_rma_native_quiet(weft_remote_t *r)
{
    if (!r->revoked || r->n_native || !r->ep || !r->grant)
        return;
    uint64_t grant = r->grant;
    r->grant = 0; /* what is still pending is stale to the owner */
    wefti_rma_native_close(r);
    if (!wefti_rma_tell(r->ep, REC_DROP, grant))
        wefti_ep_cannot(r->ep, "no memory to say that a region is no longer used");
}

/* --- the user's side: an access ---------------------------------------------------------------------------------------- */

bool wefti_rma_native_can(const rma_acc_t *acc)
{
    const weft_remote_t *r = acc->remote;
    return r->native && !r->revoked && (acc->what == ACC_READ || acc->what == ACC_WRITE) && acc->len && !acc->device;
}

static void pass_on(const rma_big_acc_t *big, rma_acc_t *acc, weft_status_t status)
{
    const weft_remote_t *r = acc->remote;
    if (!status && acc->what == ACC_READ && big->copied)
        status = wefti_rma_scatter(acc, 0, big->bytes, acc->len);
    if (status || !acc->notify) {
        wefti_rma_end(acc, status);
        return;
    }
    /* The bytes are there: now tell the owner, before the accesses that wait for this one. */
    acc->what = ACC_NOTIFY;
    if (big->why || !r->ep)
        wefti_rma_end(acc, big->why ? big->why : (weft_status_t)atomic_load(&r->state));
    else
        (void)wefti_rma_ask_first(acc);
}

static void native_done(wefti_xfer_t *x, weft_status_t status)
{
    rma_big_acc_t *big = wefti_container_of(x, rma_big_acc_t, x);
    weft_ep_t *ep = big->ep;
    weft_remote_t *r = big->left.remote;
    rma_ep(ep)->n_native--;
    r->n_native--;
    if (big->acc) {
        big->acc->big = NULL;
        pass_on(big, big->acc, !status ? WEFT_OK : big->why ? big->why : wefti_ep_why(ep, status));
    } else {
        wefti_list_remove(&big->left.loose_link);
        if (r->ep && ep->lane)
            wefti_rma_pending_flush(ep); /* others may have waited for it */
    }
    wefti_free(big);
    wefti_rma_native_quiet(r);
    wefti_rma_remote_unref(r);
    wefti_ep_drained(ep);
}

/* A small access goes through a copy, so that it can end by its deadline while the fabric still has the bytes. */
static rma_big_acc_t *native_new(weft_ep_t *ep, rma_acc_t *acc)
{
    bool copied = acc->len <= RMA_INLINE;
    rma_big_acc_t *big = wefti_rma_big_new(acc, copied ? (size_t)acc->len : 0);
    if (!big)
        return NULL;
    big->ep = ep;
    big->x.done = native_done;
    big->left = (rma_acc_t){.remote = acc->remote, .what = acc->what, .offset = acc->offset, .len = acc->len, .seq = acc->seq};
    big->copied = copied;
    if (copied)
        big->one.base = big->bytes;
    if (copied && acc->what == ACC_WRITE && wefti_rma_gather(acc, 0, big->bytes, acc->len)) {
        wefti_free(big); /* not a device's memory: it does not fail */
        return NULL;
    }
    return big;
}

weft_status_t wefti_rma_native_start(weft_ep_t *ep, rma_acc_t *acc)
{
    const wefti_transport_ops_t *ops = ep->lane->ops;
    weft_remote_t *r = acc->remote;
    weft_status_t st;
    if (rma_ep(ep)->n_native >= RMA_REQUESTS)
        return WEFT_ERR_AGAIN;
    rma_big_acc_t *big = native_new(ep, acc);
    if (!big)
        return WEFT_ERR_NOMEM;
    bool pieces = acc->iov_n && !big->copied;
    const weft_iov_t *iov = pieces ? acc->iov : &big->one;
    size_t iov_n = pieces ? acc->iov_n : 1, n = (size_t)acc->len;
    if (acc->what == ACC_READ)
        st = ops->get(ep->lane, r->native, acc->offset, iov, iov_n, n, &big->x);
    else
        st = ops->put(ep->lane, r->native, acc->offset, iov, iov_n, n, &big->x);
    if (st) {
        wefti_free(big);
        return st;
    }
    acc->big = big;
    acc->state = ACC_NATIVE;
    wefti_list_push_back(&r->loose, &acc->loose_link);
    r->refs++;
    r->n_native++;
    rma_ep(ep)->n_native++;
    return WEFT_OK;
}

void wefti_rma_native_leave(rma_acc_t *acc, weft_status_t why)
{
    /* `left` keeps its place among the loose, so that nothing overtakes it. */
    rma_big_acc_t *big = acc->big;
    wefti_list_insert_before(&acc->loose_link, &big->left.loose_link);
    big->acc = NULL;
    acc->big = NULL;
    wefti_rma_end(acc, why);
}
