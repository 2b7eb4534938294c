/* rma/serve.c - requests of peers to our regions: each is checked against its grant, carried out, and answered once.
 *
 * Small ones are carried out as they come and answered in the same call. A long read announces its bytes where they lie; a long
 * write is pulled to where it belongs. The grant counts both, so that the region's memory stays meanwhile. Answers that find no
 * space on the lane wait in order, with their data. A peer that has more than RMA_REQUESTS unanswered breaks the protocol.
 *
 * Promise: no byte outside of a grant is read or written, whatever the records say. tests/fault/rma_hostile.c,
 * tests/fuzz/records.c. */
#include "rma/mapped.h"

/* A payload that moves into or out of a region. */
typedef struct serve {
    weft_ep_t *ep;
    rma_grant_t *grant;
    weft_iov_t at;
    uint64_t id;
    uint64_t offset; /* from the region's first byte on */
    uint64_t value;
    bool notify;
    wefti_xfer_t x; /* in */
} serve_t;

/* A record that waits for space on the lane. */
typedef struct owed {
    wefti_list_t link; /* rma_ep_t.owed */
    serve_t *read;     /* announce this; else the record */
    bool answer;       /* it counts: the peer may have so many unanswered */
    uint32_t n;
    _Alignas(8) uint8_t rec[];
} owed_t;

/* --- answers ----------------------------------------------------------------------------------------------------------- */

/* Put a record on the lane, unless others wait or there is no space. True: that is all. */
static bool send_now(weft_ep_t *ep, const void *rec, size_t n)
{
    return !ep->lane || (wefti_list_empty(&rma_ep(ep)->owed) && wefti_rma_put(ep, rec, n));
}

static owed_t *keep(weft_ep_t *ep, size_t n)
{
    owed_t *owed = (owed_t *)wefti_malloc(sizeof *owed + n);
    if (!owed)
        return NULL;
    *owed = (owed_t){.n = (uint32_t)n};
    wefti_list_push_back(&rma_ep(ep)->owed, &owed->link);
    return owed;
}

/* Keep an answer of n bytes, or a read, for later. NULL: the peer asked for more than it may, or there is no memory; the
 * endpoint fails. */
static owed_t *owe(weft_ep_t *ep, size_t n, serve_t *read)
{
    rma_ep_t *e = rma_ep(ep);
    if (e->n_replies >= RMA_REQUESTS ||
        e->reply_bytes + n > RMA_REPLY_BYTES + RMA_REQUESTS * (sizeof(rma_attached_t) + WEFTI_KEY_MAX) + RMA_INLINE) {
        wefti_ep_protocol_error(ep, "more requests to remote memory than may be unanswered");
        return NULL;
    }
    owed_t *owed = keep(ep, n);
    if (!owed) {
        wefti_ep_cannot(ep, "no memory for an answer about remote memory");
        return NULL;
    }
    owed->read = read;
    owed->answer = true;
    e->n_replies++;
    e->reply_bytes += n;
    return owed;
}

static void unowe(weft_ep_t *ep, owed_t *owed)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_list_remove(&owed->link);
    e->n_replies -= owed->answer;
    e->reply_bytes -= owed->answer ? owed->n : 0;
    wefti_free(owed);
}

void wefti_rma_reply(weft_ep_t *ep, const void *rec, size_t n)
{
    owed_t *owed = send_now(ep, rec, n) ? NULL : owe(ep, n, NULL);
    if (owed)
        memcpy(owed->rec, rec, n);
}

bool wefti_rma_tell(weft_ep_t *ep, uint8_t kind, uint64_t grant)
{
    rma_drop_t rec = {.kind = kind, .grant = grant};
    if (send_now(ep, &rec, sizeof rec))
        return true;
    owed_t *owed = keep(ep, sizeof rec);
    if (owed)
        memcpy(owed->rec, &rec, sizeof rec);
    return owed;
}

void wefti_rma_reply_status(weft_ep_t *ep, uint64_t id, weft_status_t st)
{
    rma_reply_t rec = {.kind = REC_DONE, .status = (int16_t)st, .id = id};
    if (!st) /* what is refused is counted where it is refused */
        wefti_count_up(&rma_state(ep->rt)->served, 1);
    wefti_rma_reply(ep, &rec, sizeof rec);
}

/* --- payloads out: long reads ------------------------------------------------------------------------------------------ */

static serve_t *serve_new(weft_ep_t *ep, rma_grant_t *grant, uint8_t *at, uint64_t len, uint64_t id)
{
    if (rma_ep(ep)->serving >= RMA_SERVING) {
        wefti_ep_protocol_error(ep, "more payloads of remote memory than may be under way");
        return NULL;
    }
    serve_t *s = (serve_t *)wefti_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->ep = ep;
    s->grant = grant;
    s->at = (weft_iov_t){at, len};
    s->id = id;
    wefti_rma_grant_begin(grant);
    rma_ep(ep)->serving++;
    return s;
}

static void serve_free(serve_t *s)
{
    weft_ep_t *ep = s->ep;
    wefti_rma_grant_end(s->grant);
    wefti_free(s);
    rma_ep(ep)->serving--;
    wefti_ep_drained(ep);
}

static void read_done(wefti_out_t *out, weft_status_t status)
{
    serve_t *s = (serve_t *)out->user;
    (void)status; /* the reader knows */
    wefti_out_free(s->ep->rt, out);
    serve_free(s);
}

static weft_status_t read_announce(serve_t *s)
{
    weft_ep_t *ep = s->ep;
    rma_payload_t rec = {.kind = REC_PAYLOAD, .id = s->id};
    wefti_out_t *out = wefti_out_new(ep->rt);
    if (!out)
        return WEFT_ERR_NOMEM;
    out->done = read_done;
    out->user = s;
    out->ep = ep;
    out->iov = &s->at;
    out->iov_n = 1;
    out->total = s->at.len;
    out->device = s->grant->region->device;
    weft_status_t st = wefti_out_announce(out, &rec, sizeof rec);
    if (st)
        wefti_out_free(ep->rt, out);
    return st;
}

static void read_long(weft_ep_t *ep, rma_grant_t *grant, uint8_t *at, uint64_t len, uint64_t id)
{
    serve_t *s = serve_new(ep, grant, at, len, id);
    if (!s) {
        wefti_rma_reply_status(ep, id, WEFT_ERR_NOMEM);
        return;
    }
    weft_status_t st = wefti_list_empty(&rma_ep(ep)->owed) && ep->lane ? read_announce(s) : WEFT_ERR_AGAIN;
    if (st == WEFT_ERR_AGAIN) {
        if (!owe(ep, 0, s))
            serve_free(s);
    } else if (st) {
        serve_free(s);
        wefti_rma_reply_status(ep, id, st);
    } else {
        wefti_count_up(&rma_state(ep->rt)->served, 1);
    }
}

/* --- small requests ---------------------------------------------------------------------------------------------------- */

/* The grant of that id, if it allows that; the bytes are at *at_out. */
static weft_status_t look_up(weft_ep_t *ep, uint64_t id, uint32_t rights, uint64_t offset, uint64_t len, rma_grant_t **grant_out,
                             uint8_t **at_out)
{
    rma_grant_t *grant = *grant_out = wefti_slots_get(&rma_ep(ep)->grants, id);
    if (grant)
        return wefti_rma_grant_check(grant, rights, offset, len, at_out);
    wefti_count_up(&rma_state(ep->rt)->refused, 1);
    return WEFT_ERR_STALE;
}

/* The bytes of a read in a record of their own, straight from the region. */
static void read_short(weft_ep_t *ep, const rma_grant_t *grant, const uint8_t *at, uint64_t len, uint64_t id)
{
    rma_reply_t head = {.kind = REC_DATA, .id = id};
    wefti_lane_t *lane = ep->lane;
    size_t n = sizeof head + len;
    uint8_t *rec = lane && wefti_list_empty(&rma_ep(ep)->owed) ? (uint8_t *)lane->ops->reserve(lane, n) : NULL;
    owed_t *owed = NULL; /* NULL: it goes at once */
    if (!rec) {
        owed = lane ? owe(ep, n, NULL) : NULL;
        if (!owed)
            return; /* the endpoint ends */
        rec = owed->rec;
    }
    weft_status_t st = len ? wefti_mem_move(grant->region->device, rec + sizeof head, at, len) : WEFT_OK;
    if (st) {
        /* the device failed, and what goes has to be an answer of some length: the status, and no data */
        head.kind = REC_DONE;
        head.status = (int16_t)st;
        n = sizeof head;
    }
    memcpy(rec, &head, sizeof head);
    if (owed) {
        rma_ep(ep)->reply_bytes -= owed->n - n;
        owed->n = (uint32_t)n;
    } else {
        lane->ops->commit(lane, n);
    }
    if (!st)
        wefti_count_up(&rma_state(ep->rt)->served, 1);
}

static void on_read(weft_ep_t *ep, const rma_request_t *req, rma_grant_t *grant, uint8_t *at)
{
    rma_count_read(&grant->region->count, req->len);
    if (sizeof(rma_reply_t) + req->len <= rma_ep(ep)->record_max)
        read_short(ep, grant, at, req->len, req->id);
    else
        read_long(ep, grant, at, req->len, req->id);
}

/* Tell the program, which may do anything then, even free the region. */
static void notify(weft_ep_t *ep, const rma_grant_t *grant, uint64_t offset, uint64_t len, uint64_t value)
{
    weft_region_t *region = grant->region;
    if (region && region->notify && !grant->stale)
        region->notify(region, offset, len, value, ep->id, region->user);
}

/* bytes NULL: they are in mapped memory already, and the program is to be told. */
static void on_write(weft_ep_t *ep, const rma_request_t *req, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes,
                     uint64_t value)
{
    weft_status_t st = WEFT_OK;
    if (bytes && req->len)
        st = wefti_mem_move(grant->region->device, at, wefti_wild_bare(bytes), req->len);
    if (!st && bytes)
        rma_count_write(&grant->region->count, req->len);
    if (!st && (!bytes || req->what & F_TELL))
        notify(ep, grant, grant->offset + req->offset, req->len, value);
    wefti_rma_reply_status(ep, req->id, st);
}

/* In memory of a device: all peers go through this process, so this is atomic to them. */
static weft_status_t device_atomic(const weft_mem_kind_t *device, uint8_t *at, const rma_atomic_t *rec, uint64_t *before)
{
    _Alignas(8) uint64_t word = 0;
    weft_status_t st = wefti_mem_move(device, &word, at, rec->req.width);
    if (st)
        return st;
    *before = rma_atomic_apply(&word, rec->req.what, rec->req.width, rec->operand, rec->compare);
    return wefti_mem_move(device, at, &word, rec->req.width);
}

static void on_atomic(weft_ep_t *ep, const rma_atomic_t *rec, rma_grant_t *grant, uint8_t *at)
{
    struct {
        rma_reply_t reply;
        uint64_t before;
    } answer = {.reply = {.kind = REC_VALUE, .id = rec->req.id}};
    weft_status_t st = (uintptr_t)at % rec->req.width ? WEFT_ERR_INVALID : WEFT_OK;
    if (!st && grant->region->device)
        st = device_atomic(grant->region->device, at, rec, &answer.before);
    else if (!st)
        answer.before = rma_atomic_apply(at, rec->req.what, rec->req.width, rec->operand, rec->compare);
    if (st) {
        wefti_rma_reply_status(ep, rec->req.id, st);
        return;
    }
    wefti_count_up(&grant->region->count.atomics, 1);
    wefti_count_up(&rma_state(ep->rt)->served, 1);
    wefti_rma_reply(ep, &answer, sizeof answer);
}

/* --- records in -------------------------------------------------------------------------------------------------------- */

static bool sound(const rma_request_t *req)
{
    return !req->zero && (req->kind == REC_ATOMIC ? req->what >= WEFT_RMA_ADD && req->what <= WEFT_RMA_XOR &&
                                                        req->len == req->width && (req->width == 4 || req->width == 8)
                                                  : !req->width && !(req->what & ~(req->kind == REC_WRITE ? F_TELL : 0)));
}

/* Carry out a request that is sound. */
static void carry_out(weft_ep_t *ep, const rma_atomic_t *rec, const wefti_wild_t *bytes, uint64_t value)
{
    const rma_request_t *req = &rec->req;
    uint32_t rights = req->kind == REC_READ ? WEFT_RMA_READ : req->kind == REC_ATOMIC ? WEFT_RMA_ATOMIC : WEFT_RMA_WRITE;
    rma_grant_t *grant;
    uint8_t *at;
    weft_status_t st = look_up(ep, req->grant, rights, req->offset, req->len, &grant, &at);
    if (st)
        wefti_rma_reply_status(ep, req->id, st);
    else if (req->kind == REC_READ)
        on_read(ep, req, grant, at);
    else if (req->kind == REC_ATOMIC)
        on_atomic(ep, rec, grant, at);
    else
        on_write(ep, req, grant, at, bytes, value);
}

/* False: the record is not as it has to be. */
static bool request(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *bytes, size_t n)
{
    rma_atomic_t rec;
    size_t head = kind == REC_READ || kind == REC_WRITE ? sizeof rec.req : sizeof rec;
    if (n < head || (kind != REC_WRITE && n != head))
        return false;
    memset(&rec, 0, sizeof rec);
    wefti_wild_take(&rec, bytes, head);
    rec.req.kind = kind;
    if (!sound(&rec.req) || (kind == REC_NOTIFY && rec.compare))
        return false;
    uint64_t value = rec.operand;
    if (rec.req.what & F_TELL && kind == REC_WRITE) {
        if (n < head + sizeof value)
            return false;
        wefti_wild_take(&value, wefti_wild_skip(bytes, head), sizeof value);
        head += sizeof value;
    }
    if (kind == REC_WRITE && rec.req.len != n - head)
        return false;
    carry_out(ep, &rec, kind == REC_WRITE ? wefti_wild_skip(bytes, head) : NULL, value);
    return true;
}

void wefti_rma_serve(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *bytes, size_t n)
{
    bool known = kind == REC_READ || kind == REC_WRITE || kind == REC_ATOMIC || kind == REC_NOTIFY;
    if (!known || !request(ep, kind, bytes, n))
        wefti_rma_nonsense(ep);
}

/* --- payloads in: long writes ------------------------------------------------------------------------------------------ */

static void write_done(wefti_xfer_t *x, weft_status_t status)
{
    serve_t *s = wefti_container_of(x, serve_t, x);
    weft_ep_t *ep = s->ep;
    if (!status && s->notify && s->grant->stale)
        status = WEFT_ERR_STALE; /* the program is not told any more */
    if (!status && s->grant->region) {
        rma_count_write(&s->grant->region->count, s->at.len);
        if (s->notify)
            notify(ep, s->grant, s->offset, s->at.len, s->value);
    }
    if (ep->lane)
        wefti_rma_reply_status(ep, s->id, status);
    serve_free(s);
}

void wefti_rma_serve_big(weft_ep_t *ep, const wefti_wild_t *bytes, size_t n, wefti_in_t *in)
{
    rma_big_t rec;
    uint8_t *at;
    memset(&rec, 0, sizeof rec);
    if (n == sizeof rec)
        wefti_wild_take(&rec, bytes, sizeof rec);
    if (n != sizeof rec || rec.zero || rec.zero2 || rec.what & ~F_TELL || (!(rec.what & F_TELL) && rec.value)) {
        wefti_in_refuse(in, false);
        wefti_rma_nonsense(ep);
        return;
    }
    rma_grant_t *grant;
    weft_status_t st = look_up(ep, rec.grant, WEFT_RMA_WRITE, rec.offset, in->total, &grant, &at);
    serve_t *s = st ? NULL : serve_new(ep, grant, at, in->total, rec.id);
    if (!st && !s)
        st = WEFT_ERR_NOMEM;
    if (!st) {
        s->offset = grant->offset + rec.offset;
        s->value = rec.value;
        s->notify = rec.what & F_TELL;
        s->x.done = write_done;
        st = wefti_in_pull(in, &s->at, 1, s->at.len, grant->region->device, &s->x);
        if (st)
            serve_free(s);
    }
    if (st) {
        wefti_rma_reply_status(ep, rec.id, st); /* first: the writer then knows why it is refused */
        wefti_in_refuse(in, false);
    }
}

/* --- later ------------------------------------------------------------------------------------------------------------- */

void wefti_rma_owed_flush(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    for (wefti_list_t *l; ep->lane && (l = wefti_list_first(&e->owed));) {
        owed_t *owed = wefti_container_of(l, owed_t, link);
        serve_t *read = owed->read;
        weft_status_t st = read ? read_announce(read) : wefti_rma_put(ep, owed->rec, owed->n) ? WEFT_OK : WEFT_ERR_AGAIN;
        if (st == WEFT_ERR_AGAIN)
            return;
        if (st) { /* it cannot be announced: tell the reader, in its place in the order */
            rma_reply_t rec = {.kind = REC_DONE, .status = (int16_t)st, .id = read->id};
            if (!wefti_rma_put(ep, &rec, sizeof rec))
                return;
            serve_free(read);
        }
        unowe(ep, owed);
    }
    wefti_ep_drained(ep);
}

void wefti_rma_owed_down(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    for (wefti_list_t *l; (l = wefti_list_first(&e->owed));) {
        owed_t *owed = wefti_container_of(l, owed_t, link);
        if (owed->read)
            serve_free(owed->read);
        unowe(ep, owed);
    }
}
