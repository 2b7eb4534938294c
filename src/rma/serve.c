/* rma/serve.c - requests of peers to our regions: each is checked against its grant, carried out, and answered once.
 *
 * Small ones are carried out as they come and answered in the same call; serve_device.c has those to memory of a device, which
 * is not waited for. A long read announces its bytes where they lie; a long
 * write is pulled to where it belongs. The grant counts both, so that the region's memory stays meanwhile. Answers that find no
 * space on the lane wait in order, with their data. A peer that has more than RMA_REQUESTS unanswered breaks the protocol.
 *
 * Promise: no byte outside of a grant is read or written, whatever the records say. tests/fault/rma_hostile.c,
 * tests/fuzz/records.c. */
#include "rma/mapped.h"
#include "rma/serve.h"

/* A payload that moves into or out of a region. */
typedef struct serve {
    weft_ep_t *ep;
    rma_grant_t *grant;
    weft_iov_t at;
    rma_todo_t todo;
    uint32_t lane_no; /* of the endpoint's lanes: over another one it is not answered */
    wefti_xfer_t x;   /* in */
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

static void too_many(weft_ep_t *ep)
{
    wefti_ep_protocol_error(ep, "more requests to remote memory than may be unanswered");
}

bool wefti_rma_one_more(weft_ep_t *ep)
{
    if (rma_ep(ep)->n_replies + rma_ep(ep)->n_turns < RMA_REQUESTS)
        return true;
    too_many(ep);
    return false;
}

/* Keep an answer of n bytes, or a read, for later. NULL: the peer asked for more than it may, or there is no memory; the
 * endpoint fails. */
static owed_t *owe(weft_ep_t *ep, size_t n, serve_t *read)
{
    rma_ep_t *e = rma_ep(ep);
    if (e->reply_bytes + n > RMA_REPLY_BYTES + RMA_REQUESTS * (sizeof(rma_attached_t) + WEFTI_KEY_MAX) + RMA_INLINE) {
        too_many(ep);
        return NULL;
    }
    if (!wefti_rma_one_more(ep))
        return NULL;
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

static serve_t *serve_new(weft_ep_t *ep, rma_grant_t *grant, uint8_t *at, const rma_todo_t *todo)
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
    s->at = (weft_iov_t){at, todo->rec.req.len};
    s->todo = *todo;
    s->lane_no = rma_ep(ep)->lane_no;
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
    rma_payload_t rec = {.kind = REC_PAYLOAD, .id = s->todo.rec.req.id};
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

static void read_long(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at)
{
    uint64_t id = todo->rec.req.id;
    serve_t *s = serve_new(ep, grant, at, todo);
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

/* In a record of their own, straight from where they are. */
void wefti_rma_reply_data(weft_ep_t *ep, uint64_t id, const weft_mem_kind_t *device, const uint8_t *at, uint64_t len)
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
    weft_status_t st = len ? wefti_mem_move(device, rec + sizeof head, at, len) : WEFT_OK;
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

static void on_read(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at)
{
    const rma_request_t *req = &todo->rec.req;
    rma_count_read(&grant->region->count, req->len);
    if (wefti_rma_is_short(ep, req->len))
        wefti_rma_reply_data(ep, req->id, grant->region->device, at, req->len);
    else
        read_long(ep, todo, grant, at);
}

weft_status_t wefti_rma_written(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant)
{
    const rma_request_t *req = &todo->rec.req;
    weft_region_t *region = grant->region;
    bool tells = req->kind == REC_NOTIFY || req->what & F_TELL;
    if (!region)
        return WEFT_OK;
    if (tells && grant->stale)
        return WEFT_ERR_STALE;   /* the program is not told any more */
    if (req->kind != REC_NOTIFY) /* else its bytes were there before, in mapped memory */
        rma_count_write(&region->count, req->len);
    if (tells && region->notify)
        region->notify(region->pub, grant->offset + req->offset, req->len, todo->value, ep->id, region->user);
    return WEFT_OK;
}

static void on_write(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes)
{
    const rma_request_t *req = &todo->rec.req;
    weft_status_t st = WEFT_OK;
    if (req->kind == REC_WRITE && req->len)
        st = wefti_mem_move(grant->region->device, at, wefti_wild_bare(bytes), req->len);
    if (!st)
        st = wefti_rma_written(ep, todo, grant);
    wefti_rma_reply_status(ep, req->id, st);
}

void wefti_rma_reply_value(weft_ep_t *ep, uint64_t id, uint64_t before)
{
    struct {
        rma_reply_t reply;
        uint64_t before;
    } answer = {.reply = {.kind = REC_VALUE, .id = id}, .before = before};
    wefti_count_up(&rma_state(ep->rt)->served, 1);
    wefti_rma_reply(ep, &answer, sizeof answer);
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

weft_status_t wefti_rma_atomic_here(const weft_region_t *region, uint8_t *at, const rma_atomic_t *rec, uint64_t *before)
{
    if ((uintptr_t)at % rec->req.width)
        return WEFT_ERR_INVALID;
    if (region->device)
        return device_atomic(region->device, at, rec, before);
    *before = rma_atomic_apply(at, rec->req.what, rec->req.width, rec->operand, rec->compare);
    return WEFT_OK;
}

void wefti_rma_atomic_done(weft_ep_t *ep, const rma_atomic_t *rec, weft_region_t *region, weft_status_t st, uint64_t before)
{
    if (st) {
        wefti_rma_reply_status(ep, rec->req.id, st);
        return;
    }
    wefti_count_up(&region->count.atomics, 1);
    wefti_rma_reply_value(ep, rec->req.id, before);
}

static void on_atomic(weft_ep_t *ep, const rma_atomic_t *rec, rma_grant_t *grant, uint8_t *at)
{
    uint64_t before = 0;
    weft_status_t st = wefti_rma_atomic_here(grant->region, at, rec, &before);
    wefti_rma_atomic_done(ep, rec, grant->region, st, before);
}

static void on_write_big(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at);

void wefti_rma_carry_out(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes)
{
    switch (todo->rec.req.kind) {
    case REC_READ:
        on_read(ep, todo, grant, at);
        break;
    case REC_ATOMIC:
        on_atomic(ep, &todo->rec, grant, at);
        break;
    case REC_WRITE_BIG:
        on_write_big(ep, todo, grant, at);
        break;
    default:
        on_write(ep, todo, grant, at, bytes);
    }
}

void wefti_rma_refuse(weft_ep_t *ep, const rma_todo_t *todo, weft_status_t why)
{
    wefti_rma_reply_status(ep, todo->rec.req.id, why); /* first: the writer then knows why its payload is refused */
    if (todo->in)
        wefti_in_refuse(todo->in, false);
}

/* It is sound: may it, and is it its turn? */
static void look_at(weft_ep_t *ep, const rma_todo_t *todo, const wefti_wild_t *bytes)
{
    const rma_request_t *req = &todo->rec.req;
    rma_grant_t *grant;
    uint8_t *at;
    weft_status_t st = look_up(ep, req->grant, rma_todo_rights(todo), req->offset, req->len, &grant, &at);
    if (__builtin_expect(st, 0))
        wefti_rma_refuse(ep, todo, st);
    else if (!grant->region->apart || !wefti_rma_apart(ep, todo, grant, at, bytes))
        wefti_rma_carry_out(ep, todo, grant, at, bytes);
}

/* --- records in -------------------------------------------------------------------------------------------------------- */

static bool sound(const rma_request_t *req)
{
    return !req->zero && (req->kind == REC_ATOMIC ? req->what >= WEFT_RMA_ADD && req->what <= WEFT_RMA_XOR &&
                                                        req->len == req->width && (req->width == 4 || req->width == 8)
                                                  : !req->width && !(req->what & ~(req->kind == REC_WRITE ? F_TELL : 0)));
}

/* False: the record is not as it has to be. */
static bool request(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *bytes, size_t n)
{
    rma_todo_t todo;
    rma_request_t *req = &todo.rec.req;
    size_t head = kind == REC_READ || kind == REC_WRITE ? sizeof *req : sizeof todo.rec;
    if (n < head || (kind != REC_WRITE && n != head))
        return false;
    memset(&todo, 0, sizeof todo);
    wefti_wild_take(&todo.rec, bytes, head);
    req->kind = kind;
    if (!sound(req) || (kind == REC_NOTIFY && todo.rec.compare))
        return false;
    todo.value = todo.rec.operand;
    if (req->what & F_TELL && kind == REC_WRITE) {
        if (n < head + sizeof todo.value)
            return false;
        wefti_wild_take(&todo.value, wefti_wild_skip(bytes, head), sizeof todo.value);
        head += sizeof todo.value;
    }
    if (kind == REC_WRITE && req->len != n - head)
        return false;
    look_at(ep, &todo, kind == REC_WRITE ? wefti_wild_skip(bytes, head) : NULL);
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
    if (!status)
        status = wefti_rma_written(ep, &s->todo, s->grant);
    if (ep->lane && s->lane_no == rma_ep(ep)->lane_no)
        wefti_rma_reply_status(ep, s->todo.rec.req.id, status);
    serve_free(s);
}

static void on_write_big(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at)
{
    weft_status_t st = WEFT_ERR_NOMEM;
    serve_t *s = serve_new(ep, grant, at, todo);
    if (s) {
        s->x.done = write_done;
        st = wefti_in_pull(todo->in, &s->at, 1, s->at.len, grant->region->device, &s->x);
        if (st)
            serve_free(s);
    }
    if (st)
        wefti_rma_refuse(ep, todo, st);
}

void wefti_rma_serve_big(weft_ep_t *ep, const wefti_wild_t *bytes, size_t n, wefti_in_t *in)
{
    rma_big_t rec;
    memset(&rec, 0, sizeof rec);
    if (n == sizeof rec)
        wefti_wild_take(&rec, bytes, sizeof rec);
    if (n != sizeof rec || rec.zero || rec.zero2 || rec.what & ~F_TELL || (!(rec.what & F_TELL) && rec.value)) {
        wefti_in_refuse(in, false);
        wefti_rma_nonsense(ep);
        return;
    }
    rma_todo_t todo = {.value = rec.value, .in = in};
    todo.rec.req = (rma_request_t){
        .kind = REC_WRITE_BIG, .what = rec.what, .id = rec.id, .grant = rec.grant, .offset = rec.offset, .len = in->total};
    look_at(ep, &todo, NULL);
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
            rma_reply_t rec = {.kind = REC_DONE, .status = (int16_t)st, .id = read->todo.rec.req.id};
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
