/* rma/checked.c - accesses over the checked path: from the request to the owner's answer.
 *
 *     PENDING  waits for the connection, for an access before it, for the bound on unanswered requests, for space on the lane, or
 *              for its bytes, which come from a device (carried.c)
 *     ASKED    its request is with the owner
 *     OUT      the same, and its bytes are announced
 *     PULL     its bytes are on their way here
 *
 * Nobody passes the pending list of an endpoint.
 *
 * Order. The owner carries small requests out as they come. A large access is loose: its bytes move while later requests are
 * carried out. So an access waits for a loose one before it if both touch the same bytes, if a fence is between them, or if
 * both notify.
 *
 * Cancelling. A pending access ends at once, and so does one that is asked for; its answer is then dropped. One whose bytes are
 * moving ends when the fabric, or a device, does not use its buffer any more. */
#include "rma/carried.h"

/* --- order ------------------------------------------------------------------------------------------------------------- */

static bool overtakes(const rma_acc_t *acc, const rma_acc_t *loose)
{
    if (acc->notify && loose->notify)
        return true;
    return (rma_writes(acc) || rma_writes(loose)) && acc->offset < loose->offset + loose->len &&
           loose->offset < acc->offset + acc->len;
}

static bool blocked(const rma_acc_t *acc)
{
    const weft_remote_t *r = acc->remote;
    wefti_list_each(l, &r->loose) {
        const rma_acc_t *loose = wefti_container_of(l, rma_acc_t, loose_link);
        if (loose->seq < acc->seq && (loose->epoch != acc->epoch || overtakes(acc, loose)))
            return true;
    }
    return false;
}

/* --- requests ---------------------------------------------------------------------------------------------------------- */

/* How many bytes may come back for it in a record. */
static uint64_t cost(const rma_acc_t *acc)
{
    return acc->what == ACC_READ && acc->len <= RMA_INLINE ? acc->len : 0;
}

static weft_status_t put_write(wefti_lane_t *lane, const rma_acc_t *acc, const rma_request_t *req)
{
    size_t head = sizeof *req + (acc->notify ? 8u : 0u);
    uint8_t *at = (uint8_t *)lane->ops->reserve(lane, head + acc->len);
    if (!at)
        return WEFT_ERR_AGAIN;
    weft_status_t st = acc->len ? wefti_rma_gather(acc, 0, at + head, acc->len) : WEFT_OK;
    if (st) { /* the device failed, but what is reserved has to be sent: a record that means nothing */
        memset(at, 0, 8);
        *at = WEFTI_REC_NOTHING;
        lane->ops->commit(lane, 8);
        return st;
    }
    memcpy(at, req, sizeof *req);
    if (acc->notify)
        memcpy(at + sizeof *req, &acc->operand, 8);
    lane->ops->commit(lane, head + acc->len);
    return WEFT_OK;
}

static bool can(const weft_ep_t *ep, uint64_t capability)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    return !weft_ep_get_info(ep, &info) && info.peer_capabilities & capability;
}

static weft_status_t put_attach(weft_ep_t *ep, const rma_acc_t *acc)
{
    const weft_remote_t *r = acc->remote;
    wefti_lane_t *lane = ep->lane;
    rma_attach_t head = {.kind = REC_ATTACH, .id = acc->id, .len = (uint32_t)r->claim_len, .flags = acc->which};
    uint8_t *at = (uint8_t *)lane->ops->reserve(lane, sizeof head + r->claim_len);
    if (!at)
        return WEFT_ERR_AGAIN;
    if (r->wanted != WEFT_RMA_CHECKED && r->wanted != WEFT_RMA_NATIVE && lane->ops->map)
        head.flags |= F_MAP;
    if (head.flags & F_MAP && lane->ops->peer_open && wefti_mem_imports() && can(ep, WEFT_CAN_DEVICE))
        head.flags |= F_FAR;
    if (wefti_rma_native_wanted(r, ep))
        head.flags |= F_NATIVE;
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, r->claim, r->claim_len);
    lane->ops->commit(lane, sizeof head + r->claim_len);
    return WEFT_OK;
}

static weft_status_t put_record(weft_ep_t *ep, rma_acc_t *acc)
{
    rma_request_t req = {.id = acc->id, .grant = acc->remote->grant, .offset = acc->offset, .len = acc->len};
    if (acc->what == ACC_READ) {
        req.kind = REC_READ;
        return wefti_rma_put(ep, &req, sizeof req) ? WEFT_OK : WEFT_ERR_AGAIN;
    }
    if (acc->what == ACC_WRITE) {
        req.kind = REC_WRITE;
        req.what = acc->notify ? F_TELL : 0;
        return put_write(ep->lane, acc, &req);
    }
    if (acc->what == ACC_ATTACH)
        return put_attach(ep, acc);
    rma_atomic_t rec = {.req = req, .operand = acc->operand};
    rec.req.kind = acc->what == ACC_ATOMIC ? REC_ATOMIC : REC_NOTIFY;
    if (acc->what == ACC_ATOMIC) {
        rec.req.what = acc->which;
        rec.req.width = acc->width;
        rec.compare = acc->compare;
    }
    return wefti_rma_put(ep, &rec, sizeof rec) ? WEFT_OK : WEFT_ERR_AGAIN;
}

rma_big_acc_t *wefti_rma_big_new(rma_acc_t *acc, size_t bytes)
{
    rma_big_acc_t *big = (rma_big_acc_t *)wefti_malloc(sizeof *big + bytes);
    if (!big)
        return NULL;
    *big = (rma_big_acc_t){.acc = acc, .one = {acc->iov_n ? NULL : acc->buf, acc->len}};
    return big;
}

static void out_done(wefti_out_t *out, weft_status_t status);

static weft_status_t put_announced(weft_ep_t *ep, rma_acc_t *acc)
{
    rma_big_t rec = {.kind = REC_WRITE_BIG,
                     .what = acc->notify ? F_TELL : 0,
                     .id = acc->id,
                     .grant = acc->remote->grant,
                     .offset = acc->offset,
                     .value = acc->notify ? acc->operand : 0};
    rma_big_acc_t *big = acc->big ? acc->big : wefti_rma_big_new(acc, 0); /* from the last try, or with a carry */
    if (!big)
        return WEFT_ERR_NOMEM;
    acc->big = big;
    wefti_out_t *out = wefti_out_new(ep->rt);
    if (!out)
        return WEFT_ERR_NOMEM;
    out->done = out_done;
    out->user = big;
    out->ep = ep;
    out->iov = acc->iov_n ? acc->iov : &big->one;
    out->iov_n = acc->iov_n ? acc->iov_n : 1;
    out->total = acc->len;
    out->device = acc->device;
    if (big->carry) {
        out->iov = &big->carry->iov;
        out->iov_n = 1;
        out->device = NULL;
    }
    weft_status_t st = wefti_out_announce(out, &rec, sizeof rec);
    if (st) {
        wefti_out_free(ep->rt, out);
        return st;
    }
    big->out = out;
    return WEFT_OK;
}

static bool big_write(const rma_ep_t *e, const rma_acc_t *acc)
{
    return acc->what == ACC_WRITE && sizeof(rma_request_t) + (acc->notify ? 8u : 0u) + acc->len > e->record_max;
}

/* Put its request on the lane. WEFT_ERR_AGAIN: not now. */
static weft_status_t put(weft_ep_t *ep, rma_acc_t *acc)
{
    rma_ep_t *e = rma_ep(ep);
    weft_remote_t *r = acc->remote;
    if (ep->lane && acc->what == ACC_ATTACH && !can(ep, WEFT_CAN_RMA))
        return WEFT_ERR_UNSUPPORTED;
    if (!ep->lane || rma_carrying(acc) || e->n_asked + e->pulling >= RMA_REQUESTS ||
        (e->asked_bytes && e->asked_bytes + cost(acc) > RMA_REPLY_BYTES) || (!wefti_list_empty(&r->loose) && blocked(acc)))
        return WEFT_ERR_AGAIN;
    if (wefti_rma_native_can(acc))
        return wefti_rma_native_start(ep, acc);
    weft_status_t st = wefti_slots_add(&e->requests, acc, &acc->id);
    if (st)
        return st;
    bool big = big_write(e, acc);
    st = big ? put_announced(ep, acc) : put_record(ep, acc);
    if (st) {
        wefti_slots_remove(&e->requests, acc->id);
        acc->id = 0;
        return st;
    }
    if (!big && acc->what == ACC_WRITE && acc->big)
        wefti_rma_big_free(acc); /* its bytes are in the record */
    e->n_asked++;
    e->asked_bytes += cost(acc);
    acc->state = big ? ACC_OUT : ACC_ASKED;
    wefti_list_push_back(&e->asked, &acc->link);
    /* The owner may announce a read that long. And an access that the fabric does overtakes any request. */
    if (!acc->loose_link.next && (big || (acc->what == ACC_READ && acc->len > WEFT_RMA_WHOLE) || r->native))
        wefti_list_push_back(&r->loose, &acc->loose_link);
    return WEFT_OK;
}

weft_status_t wefti_rma_ask(rma_acc_t *acc)
{
    weft_ep_t *ep = acc->remote->ep;
    rma_ep_t *e = rma_ep(ep);
    if (__builtin_expect(acc->device != NULL, 0) && acc->what == ACC_WRITE && !(ep->lane && big_write(e, acc)))
        wefti_rma_carry_fetch(acc);
    weft_status_t st = wefti_list_empty(&e->pending) ? put(ep, acc) : WEFT_ERR_AGAIN;
    if (st == WEFT_ERR_AGAIN) {
        acc->state = ACC_PENDING;
        wefti_list_push_back(&e->pending, &acc->link);
        st = WEFT_OK;
    }
    /* A batch is tracked as a whole. Without memory for its deadline it still ends with the answer or the endpoint. */
    if (!st && !acc->batch)
        (void)wefti_op_track(rma_op(acc));
    return st;
}

bool wefti_rma_ask_first(rma_acc_t *acc)
{
    weft_ep_t *ep = acc->remote->ep;
    weft_status_t st = put(ep, acc);
    if (st == WEFT_ERR_AGAIN) {
        acc->state = ACC_PENDING;
        wefti_list_push_front(&rma_ep(ep)->pending, &acc->link);
        return false;
    }
    if (st)
        wefti_rma_end(acc, st);
    return true;
}

void wefti_rma_pending_flush(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    if (e->flushing) /* an access that ended here let others go on: the loop below sees them */
        return;
    e->flushing = true;
    for (wefti_list_t *l; (l = wefti_list_pop(&e->pending));)
        if (!wefti_rma_ask_first(wefti_container_of(l, rma_acc_t, link)))
            break;
    e->flushing = false;
}

/* --- endings ----------------------------------------------------------------------------------------------------------- */

/* Its answer has come, or never will. */
static void unask(weft_ep_t *ep, rma_acc_t *acc)
{
    rma_ep_t *e = rma_ep(ep);
    if (!acc->id)
        return;
    wefti_slots_remove(&e->requests, acc->id);
    acc->id = 0;
    e->n_asked--;
    e->asked_bytes -= cost(acc);
}

/* It does not wait for its answer any more; the owner still counts the request. */
static void leave_behind(weft_ep_t *ep, rma_acc_t *acc)
{
    if (acc->id)
        wefti_slots_put(&rma_ep(ep)->requests, acc->id, RMA_LEFT(cost(acc)));
    acc->id = 0;
}

static void out_done(wefti_out_t *out, weft_status_t status)
{
    rma_big_acc_t *big = (rma_big_acc_t *)out->user;
    rma_acc_t *acc = big->acc;
    weft_ep_t *ep = out->ep;
    wefti_out_free(ep->rt, out);
    big->out = NULL;
    if (!big->replied && !big->why && (!status || status == WEFT_ERR_REFUSED)) {
        acc->state = ACC_ASKED; /* its buffer is free; the owner's answer is on its way */
    } else {
        weft_status_t st = big->replied ? big->reply : big->why ? big->why : wefti_ep_why(ep, status);
        leave_behind(ep, acc);
        wefti_list_remove(&acc->link);
        wefti_rma_end(acc, st && big->why ? big->why : st);
    }
    wefti_ep_drained(ep);
}

static void pull_done(wefti_xfer_t *x, weft_status_t status)
{
    rma_big_acc_t *big = wefti_container_of(x, rma_big_acc_t, x);
    rma_acc_t *acc = big->acc;
    weft_ep_t *ep = big->ep;
    rma_ep(ep)->pulling--;
    if (status)
        status = big->why ? big->why : wefti_ep_why(ep, status);
    wefti_rma_end(acc, status);
    wefti_ep_drained(ep);
}

void wefti_rma_cancel(rma_acc_t *acc, weft_status_t why)
{
    weft_remote_t *r = acc->remote;
    weft_ep_t *ep = r->ep;
    if (acc->state == ACC_NATIVE && acc->big->copied) {
        wefti_rma_native_leave(acc, why);
        return;
    }
    if (acc->state == ACC_OUT || acc->state == ACC_PULL || acc->state == ACC_NATIVE || acc->state == ACC_FAR ||
        rma_carrying(acc)) { /* the fabric has its buffer, or a device */
        if (!acc->big->why)
            acc->big->why = why;
        if (acc->state == ACC_OUT && acc->big->out && ep && ep->lane)
            wefti_out_withdraw(acc->big->out);
        return;
    }
    if (acc->state == ACC_ASKED)
        leave_behind(ep, acc);
    if (acc->state == ACC_STEPS)
        wefti_rma_window_stop(r, acc);
    wefti_list_remove(&acc->link);
    wefti_rma_end(acc, why);
}

void wefti_rma_asked_down(weft_ep_t *ep, weft_status_t why)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_list_t ending;
    wefti_list_init(&ending);
    wefti_list_each_safe(l, &e->asked) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        unask(ep, acc);
        if (acc->state == ACC_OUT) { /* it ends when the fabric does not use its buffer any more */
            acc->big->replied = true;
            if (!acc->big->reply)
                acc->big->reply = why;
        } else {
            wefti_list_remove(l);
            wefti_list_push_back(&ending, l);
        }
    }
    wefti_list_splice(&ending, &e->pending);
    for (wefti_list_t *l; (l = wefti_list_pop(&ending));) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        if (rma_carrying(acc))
            wefti_rma_carry_down(acc, why);
        else
            wefti_rma_end(acc, why);
    }
    wefti_slots_free(&e->requests); /* and what cancelled requests left there */
    wefti_slots_init(&e->requests, RMA_REQUESTS);
    e->n_asked = 0;
    e->asked_bytes = 0;
}

/* --- answers ----------------------------------------------------------------------------------------------------------- */

/* The access that an answer is for; *left: it was cancelled. NULL and not left: nonsense. */
static rma_acc_t *answered(weft_ep_t *ep, uint64_t id, bool *left)
{
    rma_ep_t *e = rma_ep(ep);
    void *slot = wefti_slots_get(&e->requests, id);
    *left = rma_is_left(slot);
    if (!*left)
        return (rma_acc_t *)slot;
    wefti_slots_remove(&e->requests, id);
    e->n_asked--;
    e->asked_bytes -= rma_left_cost(slot);
    return NULL;
}

static void done(weft_ep_t *ep, rma_acc_t *acc, weft_status_t st)
{
    unask(ep, acc);
    if (acc->state == ACC_OUT) {
        acc->big->replied = true;
        acc->big->reply = st;
        return;
    }
    wefti_list_remove(&acc->link);
    weft_status_t placed = st ? st : wefti_rma_carry_place(acc);
    if (st || placed != WEFT_ERR_PENDING) /* a peer may answer with any status, also with that one */
        wefti_rma_end(acc, placed);
}

static bool fitting(const rma_acc_t *acc, const rma_reply_t *reply, size_t n)
{
    switch (reply->kind) {
    case REC_DONE:
        return n == sizeof *reply && (reply->status || acc->what == ACC_WRITE || acc->what == ACC_NOTIFY);
    case REC_DATA:
        return !reply->status && acc->what == ACC_READ && n - sizeof *reply == acc->len;
    case REC_VALUE:
        return !reply->status && acc->what == ACC_ATOMIC && n == sizeof *reply + 8;
    default:
        return !reply->status && acc->what == ACC_ATTACH && n >= sizeof(rma_attached_t);
    }
}

void wefti_rma_answer(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n)
{
    rma_reply_t reply;
    bool left;
    memset(&reply, 0, sizeof reply);
    if (n >= sizeof reply)
        wefti_wild_take(&reply, rec, sizeof reply);
    reply.kind = kind;
    rma_acc_t *acc = answered(ep, reply.id, &left);
    if (n < sizeof reply || reply.zero || reply.zero2 || reply.status > 0 || (!acc && !left) ||
        (acc && !fitting(acc, &reply, n))) {
        wefti_rma_nonsense(ep);
        return;
    }
    uint32_t reason = 0;
    weft_status_t st = wefti_status_told(reply.status, "the owner of remote memory", &reason);
    if (reason && acc && !acc->batch)
        rma_op(acc)->reason = reason;
    if (reply.kind == REC_ATTACHED) {
        if (acc) {
            unask(ep, acc);
            wefti_list_remove(&acc->link);
        }
        wefti_rma_attached(ep, acc, rec, n);
    } else if (acc) {
        if (st == WEFT_ERR_STALE) /* for good */
            (void)wefti_rma_remote_fails(acc->remote, st);
        if (reply.kind == REC_DATA) {
            if (__builtin_expect(acc->device != NULL, 0))
                wefti_rma_carry_new(acc);
            st = wefti_rma_scatter(acc, 0, (const uint8_t *)wefti_wild_bare(wefti_wild_skip(rec, sizeof reply)), acc->len);
        }
        if (reply.kind == REC_VALUE)
            wefti_wild_take(&wefti_op_of_scratch(acc)->value, wefti_wild_skip(rec, sizeof reply), 8);
        done(ep, acc, st);
    }
    if (ep->lane && !wefti_list_empty(&rma_ep(ep)->pending))
        wefti_rma_pending_flush(ep);
    wefti_ep_drained(ep);
}

static void pull(weft_ep_t *ep, rma_acc_t *acc, wefti_in_t *in)
{
    wefti_rma_big_free(acc); /* with a carry that it does not need now */
    rma_big_acc_t *big = acc->big = wefti_rma_big_new(acc, 0);
    weft_status_t st = WEFT_ERR_NOMEM;
    unask(ep, acc);
    wefti_list_remove(&acc->link);
    if (big) {
        big->x.done = pull_done;
        big->ep = ep;
        st = wefti_in_pull(in, acc->iov_n ? acc->iov : &big->one, acc->iov_n ? acc->iov_n : 1, acc->len, acc->device, &big->x);
    }
    if (st) {
        wefti_in_refuse(in, true);
        wefti_rma_end(acc, st);
        return;
    }
    acc->state = ACC_PULL;
    rma_ep(ep)->pulling++;
}

void wefti_rma_payload(weft_ep_t *ep, const wefti_wild_t *rec, size_t n, wefti_in_t *in)
{
    rma_payload_t head;
    bool left = false;
    memset(&head, 0, sizeof head);
    if (n == sizeof head)
        wefti_wild_take(&head, rec, sizeof head);
    rma_acc_t *acc = n == sizeof head ? answered(ep, head.id, &left) : NULL;
    if (!left && (!acc || acc->what != ACC_READ || in->total != acc->len)) {
        wefti_in_refuse(in, false);
        wefti_rma_nonsense(ep);
        return;
    }
    if (left)
        wefti_in_refuse(in, true);
    else
        pull(ep, acc, in);
    if (ep->lane && !wefti_list_empty(&rma_ep(ep)->pending))
        wefti_rma_pending_flush(ep);
}
