/* msg/recv.c - receives: from the post to the bytes in the caller's buffer.
 *
 * A receive is POSTED (waits for a match, on its endpoint's or the runtime's list), PULLING (the fabric writes to its buffer,
 * or a device copies the bytes there) or complete. Cancelling, a deadline or a lost peer ends a posted one at once. A pulling
 * one ends with its transfer, or when the lane is closed: its buffer is not free before. A receive that runs out of memory
 * leaves its message for the next one. */
#include "msg/state.h"

/* --- delivery -------------------------------------------------------------------------------------------------------------- */

/* Fill in what the receive will report, and see that it has a buffer for the message. WEFT_OK, _TRUNCATED, _NOMEM. */
static weft_status_t envelope(weft_op_t *op, weft_ep_id_t from, uint64_t tag, uint64_t len)
{
    msg_recv_t *r = msg_recv(op);
    op->from = from;
    op->tag = tag;
    op->len = len;
    if (len > r->cap)
        return WEFT_ERR_TRUNCATED;
    if (r->alloc) {
        op->buf = wefti_malloc(len ? len : 1);
        if (!op->buf)
            return WEFT_ERR_NOMEM;
        r->one = (weft_iov_t){op->buf, len};
    }
    return WEFT_OK;
}

static void unallocate(weft_op_t *op)
{
    if (!msg_recv(op)->alloc)
        return;
    wefti_free(op->buf);
    op->buf = NULL;
}

static void carry_done(wefti_carry_t *carry, weft_status_t status)
{
    weft_op_t *op = carry->user;
    weft_ep_t *ep = msg_recv(op)->source;
    wefti_carry_put(wefti_opx(op)->rt, carry);
    if (ep)
        status = wefti_ep_pulled(ep, op, status);
    wefti_op_complete(op, status);
    if (ep)
        wefti_ep_drained(ep);
}

/* Bytes for a device go on by themselves. false: the device has to be waited for. */
static bool carry_bytes(weft_op_t *op, weft_ep_t *ep, const void *bytes, uint64_t len)
{
    msg_recv_t *r = msg_recv(op);
    if (!wefti_carry_bytes(wefti_opx(op)->rt, bytes, len, r->device, r->iov_n == 1 ? &r->one : r->iov, carry_done, op))
        return false;
    r->source = ep;
    if (ep)
        ep->pulls++;
    return true;
}

/* Apart, so that messages for host memory do not pay for it. */
__attribute__((cold, noinline)) static bool deliver_to_device(weft_op_t *op, weft_ep_t *ep, const void *bytes, uint64_t len)
{
    msg_recv_t *r = msg_recv(op);
    if (!carry_bytes(op, ep, bytes, len))
        wefti_op_complete(op, wefti_iov_scatter(r->iov_n == 1 ? &r->one : r->iov, r->device, (const uint8_t *)bytes, len));
    return true;
}

bool wefti_msg_deliver_bytes(weft_op_t *op, weft_ep_id_t from, uint64_t tag, uint64_t len, const void *bytes, weft_ep_t *ep)
{
    msg_recv_t *r = msg_recv(op);
    weft_status_t st = envelope(op, from, tag, len);
    if (__builtin_expect(st == WEFT_OK && len, 1)) {
        if (__builtin_expect(r->device != NULL, 0))
            return deliver_to_device(op, ep, bytes, len);
        if (__builtin_expect(r->iov_n == 1, 1))
            memcpy(r->one.base, bytes, len);
        else
            st = wefti_iov_scatter(r->iov, NULL, (const uint8_t *)bytes, len);
        wefti_op_complete(op, st);
        return true; /* a copy that failed takes the message with it */
    }
    wefti_op_complete(op, st);
    return st != WEFT_ERR_NOMEM;
}

static void pull_done(wefti_xfer_t *x, weft_status_t status)
{
    msg_recv_t *r = wefti_container_of(x, msg_recv_t, x);
    weft_op_t *op = wefti_op_of_scratch(r);
    weft_ep_t *ep = r->source;
    status = wefti_ep_pulled(ep, op, status);
    if (status)
        unallocate(op);
    wefti_op_complete(op, status);
    wefti_ep_drained(ep);
}

bool wefti_msg_deliver_pull(weft_op_t *op, uint64_t tag, wefti_in_t *in)
{
    msg_recv_t *r = msg_recv(op);
    weft_ep_t *ep = in->ep;
    weft_status_t st = envelope(op, ep->id, tag, in->total);
    if (st == WEFT_OK) {
        r->source = ep;
        r->x.done = pull_done;
        st = wefti_in_pull(in, r->iov_n == 1 ? &r->one : r->iov, r->iov_n, in->total, r->device, &r->x);
        if (st == WEFT_OK) {
            ep->pulls++;
            return true;
        }
        unallocate(op);
    } else if (st == WEFT_ERR_TRUNCATED) {
        wefti_in_refuse(in, true);
        wefti_op_complete(op, st);
        return true;
    }
    wefti_op_complete(op, st);
    return false;
}

bool wefti_msg_deliver_held(weft_op_t *op, weft_msg_t *msg)
{
    bool taken;
    if (msg->in)
        taken = wefti_msg_deliver_pull(op, msg->tag, msg->in);
    else
        taken = wefti_msg_deliver_bytes(op, msg->from, msg->tag, msg->len, msg_bytes(msg), msg->ep);
    if (taken)
        wefti_msg_let_go(msg);
    return taken;
}

/* --- posting --------------------------------------------------------------------------------------------------------------- */

static weft_status_t recv_start(weft_op_t *op)
{
    msg_recv_t *r = msg_recv(op);
    msg_state_t *ms = msg_state(wefti_opx(op)->rt);
    bool sure = !r->ep || wefti_ep_is_up(r->ep);
    weft_status_t st = __builtin_expect(sure, 1) ? WEFT_OK : wefti_ep_check(r->ep);
    if (__builtin_expect(st, 0))
        return st;
    weft_msg_t *msg = wefti_msg_find_held(ms, r->ep, op->tag, r->mask);
    if (msg) {
        wefti_msg_deliver_held(op, msg);
        return WEFT_OK;
    }
    if (__builtin_expect(!sure, 0))
        st = wefti_ep_may_wait(r->ep);
    if (!st)
        st = wefti_op_track(op);
    if (st)
        return st;
    wefti_msg_post(ms, op);
    if (__builtin_expect(wefti_flow_n_starving(ms->rt), 0))
        wefti_outbox_tell_starving(ms->rt, r->ep, WEFTI_TRAFFIC_MSG);
    return WEFT_OK;
}

static void recv_cancel(weft_op_t *op, weft_status_t why)
{
    msg_recv_t *r = msg_recv(op);
    if (!wefti_list_linked(&r->owner_link)) { /* the fabric is writing to its buffer */
        op->status = why;
        return;
    }
    wefti_msg_unpost(msg_state(wefti_opx(op)->rt), op);
    wefti_ep_complete(r->ep, op, why);
}

static const wefti_op_kind_t recv_kind = {
    .name = "msg receive", .start = recv_start, .cancel = recv_cancel, .stops = true, .streams = true};

static void into_one(weft_op_t *op, void *buf, size_t cap, bool alloc)
{
    msg_recv_t *r = msg_recv(op);
    r->one = (weft_iov_t){buf, cap};
    r->iov = NULL;
    r->iov_n = 1;
    r->alloc = alloc;
    r->cap = cap;
    r->device = wefti_mem_device_of(buf, NULL);
}

static void fill(weft_op_t *op, weft_ep_t *ep, uint64_t tag, uint64_t mask)
{
    msg_recv_t *r = msg_recv(op);
    op->tag = tag;
    op->status = WEFT_OK; /* while it is under way: what it was asked to end with */
    r->ep = ep;
    r->owner_link.next = NULL;
    r->mask = mask;
}

static weft_status_t post_one(weft_runtime_t *rt, weft_ep_t *ep, void *buf, size_t cap, uint64_t tag, uint64_t mask,
                              weft_op_t *op)
{
    if (__builtin_expect(!op || (!buf && cap), 0))
        return wefti_fail(WEFT_ERR_INVALID, !op ? "a receive needs an operation" : "the buffer is NULL with a capacity of %zu",
                          cap);
    weft_status_t st = wefti_op_prepare(rt, op, &recv_kind);
    if (__builtin_expect(st, 0))
        return st;
    into_one(op, buf, cap, false);
    fill(op, ep, tag, mask);
    return wefti_op_post_by(rt, op, recv_start);
}

/* The same from any endpoint of several shards: any.c. Apart from the others, which do not pay for it. */
static inline bool is_across(const weft_runtime_t *rt, const weft_ep_t *ep)
{
    return !ep && wefti_sharded(rt);
}

/* One that is prepared as either kind. */
__attribute__((noinline)) static weft_status_t post(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask, weft_op_t *op)
{
    fill(op, ep, tag, mask);
    return wefti_op_post(rt, op);
}

__attribute__((cold, noinline)) static weft_status_t post_one_across(weft_runtime_t *rt, void *buf, size_t cap, uint64_t tag,
                                                                     uint64_t mask, weft_op_t *op)
{
    if (!op || (!buf && cap))
        return wefti_fail(WEFT_ERR_INVALID, !op ? "a receive needs an operation" : "the buffer is NULL with a capacity of %zu",
                          cap);
    weft_status_t st = wefti_op_prepare(rt, op, &wefti_msg_any_kind);
    if (st)
        return st;
    into_one(op, buf, cap, false);
    return post(rt, NULL, tag, mask, op);
}

weft_status_t weft_msg_recv(weft_ep_t *ep, void *buf, size_t cap, uint64_t tag, uint64_t mask, weft_op_t *op)
{
    if (__builtin_expect(!ep, 0))
        return wefti_fail(WEFT_ERR_INVALID, "the endpoint is NULL; weft_msg_recv_any() receives from all");
    weft_status_t st = wefti_ep_check(ep);
    return __builtin_expect(st, 0) ? st : post_one(ep->rt, ep, buf, cap, tag, mask, op);
}

weft_status_t weft_msg_recv_any(weft_runtime_t *rt, void *buf, size_t cap, uint64_t tag, uint64_t mask, weft_op_t *op)
{
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    if (__builtin_expect(wefti_sharded(rt), 0))
        return post_one_across(wefti_head(rt), buf, cap, tag, mask, op);
    return post_one(rt, NULL, buf, cap, tag, mask, op);
}

weft_status_t weft_msg_recv_iov(weft_runtime_t *rt, weft_ep_t *ep, const weft_iov_t *iov, size_t n, uint64_t tag, uint64_t mask,
                                weft_op_t *op)
{
    uint64_t cap = 0;
    const weft_mem_kind_t *device;
    if (!rt || !op || (!iov && n))
        return wefti_fail(WEFT_ERR_INVALID, "a receive into pieces needs a runtime, an operation and the pieces");
    weft_status_t st = wefti_pieces_check("a receive", true, iov, n, NULL, &cap, &device);
    if (!st)
        st = wefti_ep_check_of(ep, &rt);
    if (st)
        return st;
    bool across = is_across(rt, ep);
    if (n == 1)
        return across ? post_one_across(rt, iov[0].base, iov[0].len, tag, mask, op)
                      : post_one(rt, ep, iov[0].base, iov[0].len, tag, mask, op);
    st = wefti_op_prepare(rt, op, across ? &wefti_msg_any_kind : &recv_kind);
    if (st)
        return st;
    msg_recv_t *r = msg_recv(op);
    r->device = device;
    r->iov = iov;
    r->iov_n = (uint32_t)n;
    r->alloc = false;
    r->cap = cap;
    return post(rt, ep, tag, mask, op);
}

weft_status_t weft_msg_recv_alloc(weft_runtime_t *rt, weft_ep_t *ep, size_t max_len, uint64_t tag, uint64_t mask, weft_op_t *op)
{
    if (!rt || !op)
        return wefti_fail(WEFT_ERR_INVALID, "a receive needs a runtime and an operation");
    weft_status_t st = wefti_ep_check_of(ep, &rt);
    if (!st)
        st = wefti_op_prepare(rt, op, is_across(rt, ep) ? &wefti_msg_any_kind : &recv_kind);
    if (st)
        return st;
    op->buf = NULL;
    into_one(op, NULL, max_len, true);
    return post(rt, ep, tag, mask, op);
}

/* --- receiving what was claimed -------------------------------------------------------------------------------------------- */

static weft_status_t claimed_start(weft_op_t *op)
{
    /* Until here the message travelled in the place of the endpoint. */
    weft_msg_t *msg = (weft_msg_t *)(void *)msg_recv(op)->ep;
    msg_recv(op)->ep = NULL;
    if (msg->lost) {
        wefti_msg_let_go(msg);
        wefti_op_complete(op, WEFT_ERR_PEER);
    } else if (!wefti_msg_deliver_held(op, msg)) {
        wefti_msg_drop(msg); /* nobody else has it */
    }
    return WEFT_OK;
}

static const wefti_op_kind_t claimed_kind = {
    .name = "msg receive of a claimed message", .start = claimed_start, .cancel = recv_cancel};

weft_status_t weft_msg_recv_claimed(weft_msg_t *msg, void *buf, size_t cap, weft_op_t *op)
{
    if (!msg || !op || (!buf && cap))
        return wefti_fail(WEFT_ERR_INVALID, "receiving a claimed message needs the message, an operation and a buffer");
    weft_runtime_t *rt = msg_runtime(msg);
    if (!rt)
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime of the message is closed");
    weft_status_t st = wefti_op_prepare(rt, op, &claimed_kind);
    if (st)
        return st;
    into_one(op, buf, cap, false);
    fill(op, (weft_ep_t *)(void *)msg, 0, 0);
    return wefti_op_post_by(rt, op, claimed_start);
}

/* --- endings --------------------------------------------------------------------------------------------------------------- */

static void end_all(msg_state_t *ms, wefti_list_t *posted, weft_status_t why)
{
    for (wefti_list_t *l; (l = wefti_list_first(posted));) {
        weft_op_t *op = wefti_op_of_scratch(wefti_container_of(l, msg_recv_t, owner_link));
        wefti_msg_unpost(ms, op);
        wefti_op_complete(op, why);
    }
}

void wefti_msg_recv_down(weft_ep_t *ep, weft_status_t why)
{
    end_all(msg_state(ep->rt), &msg_ep(ep)->posted, why);
}

void wefti_msg_recv_shutdown(msg_state_t *ms)
{
    end_all(ms, &ms->of_any, WEFT_ERR_CLOSED);
}
