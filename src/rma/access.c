/* rma/access.c - an access over the checked path: from its post to the owner's answer.
 *
 * An access is PENDING (waits for the connection, for one before it, for the bound on what may be unanswered, or for room on the lane), ASKED
 * (its request is with the owner), OUT (the same, and its bytes are announced), PULL (its bytes are on their way here), or has ended. Nobody passes
 * the pending list of an endpoint.
 *
 * Order. The owner carries small requests out as they come. A large access is loose: its bytes move while later requests are carried out. So one
 * that touches the same bytes as a loose one before it, or comes after a fence, or notifies after one that does, waits until that has ended.
 *
 * Cancelling: a pending access ends at once, and so does one that is asked for; its answer is then dropped. One whose bytes are moving ends when the
 * fabric has let go of its buffer.
 *
 * Promise: every access ends once, and no buffer is touched after that. tests/sim/rma_exactly_once.c holds us to it. */
#include "base/copy.h"
#include "rma/state.h"

void wefti_rma_nonsense(weft_ep_t *ep)
{
    wefti_ep_protocol_error(ep, "a record of remote memory of an unknown kind, length or number");
}

/* --- its buffer -------------------------------------------------------------------------------------------------------------- */

static weft_status_t move(const rma_acc_t *acc, uint64_t at, uint8_t *bytes, uint64_t n, bool in)
{
    weft_iov_t one = {acc->buf, acc->len};
    const weft_iov_t *iov = acc->iov_n ? acc->iov : &one;
    weft_status_t st = WEFT_OK;
    for (; n && !st; iov++) {
        if (at >= iov->len) {
            at -= iov->len;
            continue;
        }
        uint64_t part = iov->len - at < n ? iov->len - at : n;
        uint8_t *ours = (uint8_t *)iov->base + at;
        if (acc->len >= WEFTI_PAST_CACHE && !acc->device)
            wefti_copy_past_cache(in ? ours : bytes, in ? bytes : ours, part);
        else
            st = in ? wefti_mem_move(acc->device, ours, bytes, part) : wefti_mem_move(acc->device, bytes, ours, part);
        bytes += part;
        n -= part;
        at = 0;
    }
    return st;
}

weft_status_t wefti_rma_scatter(rma_acc_t *acc, uint64_t at, const uint8_t *bytes, uint64_t n)
{
    return move(acc, at, (uint8_t *)(uintptr_t)bytes, n, true);
}

weft_status_t wefti_rma_gather(const rma_acc_t *acc, uint64_t at, uint8_t *bytes, uint64_t n)
{
    return move(acc, at, bytes, n, false);
}

/* --- life -------------------------------------------------------------------------------------------------------------------- */

static void live(rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    acc->seq = ++r->last_seq;
    acc->epoch = r->epoch += acc->epoch;
    acc->loose_link.next = NULL;
    acc->big = NULL;
    acc->id = 0;
    wefti_list_push_back(&r->live, &acc->live_link);
    atomic_store_explicit(&r->n_live, r->n_live + 1, memory_order_relaxed);
    r->refs++;
}

static const char *words_for(weft_status_t status)
{
    switch (status) {
    case WEFT_ERR_RANGE:
        return "not within the region";
    case WEFT_ERR_RIGHTS:
        return "its key does not allow that";
    case WEFT_ERR_STALE:
        return "the region was freed or revoked, or the time of its key is over";
    case WEFT_ERR_NOTFOUND:
        return "it has no region of that name";
    case WEFT_ERR_AUTH:
        return "the key of the region is not one that it gave out";
    case WEFT_ERR_LIMIT:
        return "this connection has as many remotes as it may";
    case WEFT_ERR_TIMEOUT:
        return "not done in time";
    default:
        return NULL; /* what the end of the endpoint does to it, the endpoint says */
    }
}

/* What it says when the owner refused it, or did not answer in time. */
static void explain(const rma_acc_t *acc, weft_status_t status)
{
    static const char *const names[] = {
        [ACC_READ] = "a read", [ACC_WRITE] = "a write", [ACC_ATOMIC] = "an atomic operation", [ACC_NOTIFY] = "a notification"};
    const char *words = words_for(status);
    if (words && acc->what == ACC_ATTACH)
        wefti_ep_says(acc->remote->ep, "%s", words);
    else if (words)
        wefti_ep_says(acc->remote->ep, "%s of %llu bytes at offset %llu: %s", names[acc->what], (unsigned long long)acc->len,
                      (unsigned long long)acc->offset, words);
}

void wefti_rma_end(rma_acc_t *acc, weft_status_t status)
{
    weft_remote_t *r = acc->remote;
    bool freed = acc->loose_link.next != NULL;
    wefti_list_remove(&acc->live_link);
    atomic_store_explicit(&r->n_live, r->n_live - 1, memory_order_relaxed);
    if (freed)
        wefti_list_remove(&acc->loose_link);
    wefti_free(acc->big);
    acc->big = NULL;
    if (acc->batch) {
        wefti_rma_batch_ended(acc, status);
    } else {
        if (__builtin_expect(status && r->ep, 0))
            explain(acc, status);
        wefti_op_complete(wefti_op_of_scratch(acc), status);
    }
    wefti_rma_flushes(r);
    weft_ep_t *ep = r->ep;
    if (freed && ep && ep->lane)
        wefti_rma_pending_flush(ep); /* somebody may have waited for it */
    wefti_rma_remote_unref(r);
    if (ep)
        wefti_ep_drained(ep);
}

void wefti_rma_count(const rma_acc_t *acc)
{
    rma_counts_t *c = &acc->remote->count;
    if (acc->what == ACC_READ) {
        wefti_count_up(&c->reads, 1);
        wefti_count_up(&c->bytes_read, acc->len);
    } else if (acc->what == ACC_WRITE) {
        wefti_count_up(&c->writes, 1);
        wefti_count_up(&c->bytes_written, acc->len);
    } else if (acc->what == ACC_ATOMIC) {
        wefti_count_up(&c->atomics, 1);
    }
}

static weft_status_t fail_as_the_remote_did(const weft_remote_t *r, weft_status_t st)
{
    char text[WEFTI_DETAIL_MAX];
    if (wefti_detail_get(r->why_detail, text))
        return wefti_fail(st, "%s; the remote can no longer be used: attach it again", text);
    return wefti_fail(st, "the remote can no longer be used: attach it again");
}

weft_status_t wefti_rma_begin(rma_acc_t *acc)
{
    weft_remote_t *r = acc->remote;
    weft_status_t st = (weft_status_t)atomic_load_explicit(&r->state, memory_order_relaxed);
    if (st)
        return fail_as_the_remote_did(r, st);
    if (r->slot && acc->what != ACC_ATTACH && !wefti_rma_asks(r)) {
        live(acc);
        r->rs->mapped++;
        wefti_rma_step(acc);
        return WEFT_OK;
    }
    st = wefti_ep_may_wait(r->ep);
    if (st)
        return st;
    live(acc);
    if (acc->what != ACC_ATTACH)
        ++*(wefti_rma_native_can(acc) ? &r->rs->native : &r->rs->checked);
    wefti_rma_count(acc);
    st = wefti_rma_ask(acc);
    if (st)
        wefti_rma_end(acc, st);
    return WEFT_OK;
}

/* --- order ------------------------------------------------------------------------------------------------------------------- */

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

/* --- requests ---------------------------------------------------------------------------------------------------------------- */

/* What may come back for it in a record. */
static uint64_t cost(const rma_acc_t *acc)
{
    return acc->what == ACC_READ && acc->len <= RMA_INLINE ? acc->len : 0;
}

static weft_status_t put_record(weft_ep_t *ep, rma_acc_t *acc)
{
    wefti_lane_t *lane = ep->lane;
    const weft_remote_t *r = acc->remote;
    rma_request_t req = {.id = acc->id, .grant = r->grant, .offset = acc->offset, .len = acc->len};
    uint8_t *at;
    if (acc->what == ACC_READ) {
        req.kind = REC_READ;
        at = (uint8_t *)lane->ops->reserve(lane, sizeof req);
        if (!at)
            return WEFT_ERR_AGAIN;
        memcpy(at, &req, sizeof req);
        lane->ops->commit(lane, sizeof req);
    } else if (acc->what == ACC_WRITE) {
        size_t head = sizeof req + (acc->notify ? 8u : 0u);
        req.kind = REC_WRITE;
        req.what = acc->notify ? F_TELL : 0;
        at = (uint8_t *)lane->ops->reserve(lane, head + acc->len);
        if (!at)
            return WEFT_ERR_AGAIN;
        weft_status_t st = acc->len ? wefti_rma_gather(acc, 0, at + head, acc->len) : WEFT_OK;
        if (st) { /* the device failed, and something has to go: still here */
            memset(at, 0, 8);
            *at = WEFTI_REC_NOTHING;
            lane->ops->commit(lane, 8);
            return st;
        }
        memcpy(at, &req, sizeof req);
        if (acc->notify)
            memcpy(at + sizeof req, &acc->operand, 8);
        lane->ops->commit(lane, head + acc->len);
    } else if (acc->what == ACC_ATTACH) {
        rma_attach_t head = {.kind = REC_ATTACH, .id = acc->id, .len = (uint32_t)r->claim_len, .flags = acc->which};
        at = (uint8_t *)lane->ops->reserve(lane, sizeof head + r->claim_len);
        if (!at)
            return WEFT_ERR_AGAIN;
        if (r->wanted != WEFT_RMA_CHECKED && r->wanted != WEFT_RMA_NATIVE && lane->ops->map)
            head.flags |= F_MAP;
        if (wefti_rma_native_wanted(r, ep))
            head.flags |= F_NATIVE;
        memcpy(at, &head, sizeof head);
        memcpy(at + sizeof head, r->claim, r->claim_len);
        lane->ops->commit(lane, sizeof head + r->claim_len);
    } else {
        rma_atomic_t rec = {.req = req, .operand = acc->operand};
        rec.req.kind = acc->what == ACC_ATOMIC ? REC_ATOMIC : REC_NOTIFY;
        if (acc->what == ACC_ATOMIC) {
            rec.req.what = acc->which;
            rec.req.width = acc->width;
            rec.compare = acc->compare;
        }
        at = (uint8_t *)lane->ops->reserve(lane, sizeof rec);
        if (!at)
            return WEFT_ERR_AGAIN;
        memcpy(at, &rec, sizeof rec);
        lane->ops->commit(lane, sizeof rec);
    }
    return WEFT_OK;
}

static rma_big_acc_t *big_new(rma_acc_t *acc)
{
    rma_big_acc_t *big = (rma_big_acc_t *)wefti_calloc(1, sizeof *big);
    if (!big)
        return NULL;
    big->acc = acc;
    big->one = (weft_iov_t){acc->iov_n ? NULL : acc->buf, acc->len};
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
    rma_big_acc_t *big = acc->big ? acc->big : big_new(acc); /* from the last try */
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

static bool can_rma(const weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    return !weft_ep_get_info(ep, &info) && info.peer_capabilities & WEFT_CAN_RMA;
}

/* Put its request on the lane. WEFT_ERR_AGAIN: not now. */
static weft_status_t put(weft_ep_t *ep, rma_acc_t *acc)
{
    rma_ep_t *e = rma_ep(ep);
    weft_remote_t *r = acc->remote;
    if (ep->lane && acc->what == ACC_ATTACH && !can_rma(ep))
        return WEFT_ERR_UNSUPPORTED;
    if (!ep->lane || e->n_asked + e->pulling >= RMA_REQUESTS ||
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
    e->n_asked++;
    e->asked_bytes += cost(acc);
    acc->state = big ? ACC_OUT : ACC_ASKED;
    wefti_list_push_back(&e->asked, &acc->link);
    /* A read that long may be announced, as the owner likes. And what the fabric does itself overtakes any request. */
    if (!acc->loose_link.next && (big || (acc->what == ACC_READ && acc->len > WEFT_RMA_WHOLE) || r->native))
        wefti_list_push_back(&r->loose, &acc->loose_link);
    return WEFT_OK;
}

weft_status_t wefti_rma_ask(rma_acc_t *acc)
{
    weft_ep_t *ep = acc->remote->ep;
    rma_ep_t *e = rma_ep(ep);
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

void wefti_rma_ask_first(rma_acc_t *acc)
{
    weft_ep_t *ep = acc->remote->ep;
    weft_status_t st = put(ep, acc);
    if (st == WEFT_ERR_AGAIN) {
        acc->state = ACC_PENDING;
        wefti_list_push_front(&rma_ep(ep)->pending, &acc->link);
    } else if (st) {
        wefti_rma_end(acc, st);
    }
}

void wefti_rma_pending_flush(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    if (e->flushing) /* an access that ends may let others go on: they do, one level up */
        return;
    e->flushing = true;
    for (wefti_list_t *l; (l = wefti_list_first(&e->pending));) {
        rma_acc_t *acc = wefti_container_of(l, rma_acc_t, link);
        /* put() links it elsewhere: take it out first, and back if it has to wait */
        wefti_list_remove(l);
        weft_status_t st = put(ep, acc);
        if (st == WEFT_ERR_AGAIN) {
            wefti_list_push_front(&e->pending, &acc->link);
            break;
        }
        if (st)
            wefti_rma_end(acc, st);
    }
    e->flushing = false;
}

/* --- endings ------------------------------------------------------------------------------------------------------------------ */

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

/* It does not wait for its answer any more; the owner still counts it. */
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
    if (big->replied) {
        wefti_list_remove(&acc->link);
        wefti_rma_end(acc, big->reply && big->why ? big->why : big->reply);
    } else if (!status || status == WEFT_ERR_REFUSED) {
        acc->state = ACC_ASKED; /* its buffer is free; what the owner says of it is on its way */
        if (big->why) {
            leave_behind(ep, acc);
            wefti_list_remove(&acc->link);
            wefti_rma_end(acc, big->why);
        }
    } else {
        leave_behind(ep, acc);
        wefti_list_remove(&acc->link);
        wefti_rma_end(acc, big->why ? big->why : wefti_ep_why(ep, status));
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
    if (acc->state == ACC_NATIVE) {
        wefti_rma_native_cancel(acc, why);
        return;
    }
    if (acc->state == ACC_OUT || acc->state == ACC_PULL) {
        if (!acc->big->why)
            acc->big->why = why;
        if (acc->state == ACC_OUT && acc->big->out && ep && ep->lane)
            wefti_out_withdraw(acc->big->out);
        return;
    }
    if (acc->state == ACC_ASKED)
        leave_behind(ep, acc);
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
        if (acc->state == ACC_OUT) { /* it ends when the fabric has let go */
            acc->big->replied = true;
            if (!acc->big->reply)
                acc->big->reply = why;
        } else {
            wefti_list_remove(l);
            wefti_list_push_back(&ending, l);
        }
    }
    wefti_list_splice(&ending, &e->pending);
    for (wefti_list_t *l; (l = wefti_list_pop(&ending));)
        wefti_rma_end(wefti_container_of(l, rma_acc_t, link), why);
    wefti_slots_free(&e->requests); /* and what cancelled ones left */
    wefti_slots_init(&e->requests, RMA_REQUESTS);
    e->n_asked = 0;
    e->asked_bytes = 0;
}

/* --- answers ------------------------------------------------------------------------------------------------------------------- */

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
    wefti_rma_end(acc, st);
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
        int32_t ok = WEFT_OK;
        if (st == WEFT_ERR_STALE) /* for good */
            atomic_compare_exchange_strong(&acc->remote->state, &ok, WEFT_ERR_STALE);
        if (reply.kind == REC_DATA)
            st = wefti_rma_scatter(acc, 0, (const uint8_t *)wefti_wild_bare(wefti_wild_skip(rec, sizeof reply)), acc->len);
        if (reply.kind == REC_VALUE)
            wefti_wild_take(&wefti_op_of_scratch(acc)->tag, wefti_wild_skip(rec, sizeof reply), 8);
        done(ep, acc, st);
    }
    if (ep->lane && !wefti_list_empty(&rma_ep(ep)->pending))
        wefti_rma_pending_flush(ep);
    wefti_ep_drained(ep);
}

void wefti_rma_payload(weft_ep_t *ep, const wefti_wild_t *rec, size_t n, wefti_in_t *in)
{
    rma_payload_t head;
    bool left = false;
    memset(&head, 0, sizeof head);
    if (n == sizeof head)
        wefti_wild_take(&head, rec, sizeof head);
    rma_acc_t *acc = n == sizeof head ? answered(ep, head.id, &left) : NULL;
    if (left) {
        wefti_in_refuse(in, true);
    } else if (!acc || acc->what != ACC_READ || in->total != acc->len) {
        wefti_in_refuse(in, false);
        wefti_rma_nonsense(ep);
        return;
    } else {
        rma_big_acc_t *big = big_new(acc);
        weft_status_t st = big ? WEFT_OK : WEFT_ERR_NOMEM;
        unask(ep, acc);
        wefti_list_remove(&acc->link);
        acc->big = big;
        if (big) {
            big->x.done = pull_done;
            st =
                wefti_in_pull(in, acc->iov_n ? acc->iov : &big->one, acc->iov_n ? acc->iov_n : 1, acc->len, acc->device, &big->x);
        }
        if (st) {
            wefti_in_refuse(in, true);
            wefti_rma_end(acc, st);
        } else {
            big->ep = ep;
            acc->state = ACC_PULL;
            rma_ep(ep)->pulling++;
        }
    }
    if (ep->lane && !wefti_list_empty(&rma_ep(ep)->pending))
        wefti_rma_pending_flush(ep);
}
