/* rpc/stream_in.c - what one side of a stream receives: items in order, and credit for more as the program takes them.
 *
 *     ITEM --> slot: a scalar, or values whose payload is fetched at once --it is the oldest, ready, and a receive waits--> taken
 *
 * The other side may have RPC_STREAM_ITEMS and RPC_STREAM_BYTES here that nobody took, and one item may go beyond the bytes. It
 * gets new credit when half of either was taken, so that it neither waits for us nor hears of every item. A scalar needs no
 * memory but its slot, which is there from the start; anything else is one allocation.
 *
 * If an item cannot be kept (no memory, larger than item_max) or is missing, receives end with a status from then on. What comes
 * after that is counted and dropped, so that the other side does not wait.
 *
 * Promise: a peer cannot make us hold more than its credit: more is a breach of the protocol, and ends the endpoint.
 * tests/wire/rpc_stream.c. */
#include "rpc/stream.h"

typedef struct stream_recv {
    weft_stream_t *s;
    weft_item_t *item;
} stream_recv_t;

static stream_recv_t *stream_recv(weft_op_t *op)
{
    return wefti_op_scratch(op, stream_recv_t);
}

/* --- credit -------------------------------------------------------------------------------------------------------- */

static bool credit_due(const stream_in_t *in)
{
    uint64_t items = in->may_items - in->taken_items,
             bytes = in->may_bytes - in->taken_bytes; /* that are left; bytes may be below zero */
    return items <= RPC_STREAM_ITEMS / 2 || bytes <= RPC_STREAM_BYTES / 2 || bytes > RPC_STREAM_BYTES;
}

static void give_credit(weft_stream_t *s);

static void credit_sent(void *user, weft_status_t status)
{
    weft_stream_t *s = (weft_stream_t *)user;
    s->in.crediting = false;
    if (!status)
        give_credit(s);
    else if (!s->over)
        wefti_stream_in_fail(s, status); /* otherwise both sides would wait for ever */
    wefti_stream_unref(s);
}

static void give_credit(weft_stream_t *s)
{
    stream_in_t *in = &s->in;
    rpc_msg_t msg;
    rpc_out_t *out;
    if (!s->ep || in->ended || in->crediting || !credit_due(in))
        return;
    rpc_credit_t credit = {in->taken_items + RPC_STREAM_ITEMS, in->taken_bytes + RPC_STREAM_BYTES};
    rpc_msg_init(&msg, rpc_head(RPC_CREDIT, s->call));
    rpc_msg_put(&msg, &credit, sizeof credit);
    weft_status_t st = wefti_rpc_send(s->ep, s->to_peer, &msg, 0, credit_sent, s, &out);
    if (st) {
        wefti_stream_in_fail(s, st);
        return;
    }
    in->may_items = credit.items;
    in->may_bytes = credit.bytes;
    if (out) {
        in->crediting = true;
        stream_ref(s);
    }
}

static void taken(weft_stream_t *s, uint64_t bytes)
{
    s->in.taken_items++;
    s->in.taken_bytes += bytes;
    give_credit(s);
}

/* --- what is here -------------------------------------------------------------------------------------------------- */

static stream_slot_t *slot_at(stream_in_t *in, uint32_t i)
{
    return &in->slots[(in->first + i) % RPC_STREAM_ITEMS];
}

static void put_value(const weft_stream_t *s, weft_item_t *item, uint64_t bits)
{
    item->value = (weft_value_t){.type = s->in.codec.types[0], .u64 = bits};
    item->more = NULL;
}

static bool first_ready(stream_in_t *in)
{
    return in->n && (in->codec.fixed || !slot_at(in, 0)->in->missing);
}

static stream_slot_t pop_slot(stream_in_t *in)
{
    stream_slot_t slot = *slot_at(in, 0);
    in->first = (in->first + 1) % RPC_STREAM_ITEMS;
    in->n--;
    return slot;
}

/* Give the first item, which is ready, to the program. */
static void take_first(weft_stream_t *s, weft_item_t *item)
{
    stream_slot_t slot = pop_slot(&s->in);
    if (s->in.codec.fixed) {
        put_value(s, item, slot.bits);
    } else {
        wefti_rpc_in_charge(slot.in, NULL, 0); /* the program has it now */
        item->value = slot.in->values[0];
        item->more = slot.in;
    }
    taken(s, slot.bytes);
}

/* Does nothing more come? *status_out: how a receive ends then, WEFT_OK at the end of the stream. */
static bool at_end(const weft_stream_t *s, weft_status_t *status_out)
{
    const stream_in_t *in = &s->in;
    if (in->status)
        *status_out = in->status;
    else if (in->n || (!in->ended && !s->over))
        return false;
    else
        *status_out = in->ended ? WEFT_OK : s->why;
    return true;
}

static void deliver(weft_stream_t *s)
{
    stream_in_t *in = &s->in;
    weft_status_t st = WEFT_OK;
    for (wefti_list_t *l; (l = wefti_list_first(&in->receives));) {
        bool ready = !in->status && first_ready(in);
        if (!ready && !at_end(s, &st))
            return;
        weft_op_t *op = wefti_op_of_link(l);
        wefti_list_remove(l);
        op->len = ready;
        if (ready)
            take_first(s, stream_recv(op)->item);
        wefti_op_complete(op, ready ? WEFT_OK : st);
    }
}

void wefti_stream_in_fail(weft_stream_t *s, weft_status_t status)
{
    if (s->in.status)
        return;
    s->in.status = status;
    while (s->in.n) {
        stream_slot_t slot = pop_slot(&s->in);
        if (!s->in.codec.fixed)
            wefti_rpc_in_free(slot.in);
        taken(s, slot.bytes);
    }
    deliver(s);
}

void wefti_stream_in_over(weft_stream_t *s, weft_status_t status)
{
    /* at a server nobody is left to receive what a client sent */
    if (s->at_server || !stream_answered(status))
        wefti_stream_in_fail(s, stream_answered(status) ? WEFT_ERR_CLOSED : status);
    else
        deliver(s);
}

/* --- arrivals ------------------------------------------------------------------------------------------------------ */

static void wrong_type(weft_stream_t *s)
{
    wefti_ep_protocol_error(s->ep, "an item of a stream is no value of its type");
}

static void fetched(void *user, weft_status_t status)
{
    weft_stream_t *s = (weft_stream_t *)user;
    if (status == WEFT_ERR_PROTOCOL && s->ep)
        wrong_type(s);
    if (status)
        wefti_stream_in_fail(s, status);
    else
        deliver(s);
}

static void keep_slot(stream_in_t *in, stream_slot_t slot)
{
    *slot_at(in, in->n) = slot;
    in->n++;
}

/* A scalar. */
static void item_fixed(weft_stream_t *s, const weft_am_t *am, const rpc_where_t *where, uint64_t bytes)
{
    stream_in_t *in = &s->in;
    weft_value_t value = {0};
    wefti_decoded_t d;
    if (am->len || wefti_rpc_values_here(am, where, &value, &d)) {
        wrong_type(s);
        return;
    }
    wefti_list_t *l = wefti_list_first(&in->receives);
    if (!l) {
        keep_slot(in, (stream_slot_t){.bits = value.u64, .bytes = bytes});
        return;
    }
    weft_op_t *op = wefti_op_of_link(l);
    wefti_list_remove(l);
    put_value(s, stream_recv(op)->item, value.u64);
    op->len = 1;
    wefti_op_complete(op, WEFT_OK);
    taken(s, bytes);
}

/* Charge the budget of the service before memory is allocated. *share_out NULL: there is no budget. */
static weft_status_t pay(weft_stream_t *s, const weft_am_t *am, const rpc_where_t *where, rpc_share_t **share_out,
                         uint64_t *n_out)
{
    const char *words;
    *share_out = NULL;
    *n_out = wefti_rpc_in_cost(am, where) + (am->data ? 0 : am->len);
    if (!s->in.budget)
        return WEFT_OK;
    rpc_share_t *share = wefti_rpc_share(s->in.budget, am->ep->id);
    if (!share)
        return WEFT_ERR_NOMEM;
    if (!wefti_rpc_charge(share, *n_out, &words)) {
        wefti_info("a value of a stream is not taken: %s", words);
        wefti_rpc_share_put(share);
        return WEFT_ERR_LIMIT;
    }
    *share_out = share;
    return WEFT_OK;
}

static void item_any(weft_stream_t *s, weft_am_t *am, const rpc_where_t *where, uint64_t bytes)
{
    rpc_share_t *share;
    uint64_t cost;
    rpc_in_t *got = NULL;
    weft_status_t why = pay(s, am, where, &share, &cost);
    if (!why)
        got = wefti_rpc_in_new(s->rs, am, where, NULL, &why);
    if (got)
        wefti_rpc_in_charge(got, share, cost);
    else if (share) {
        wefti_rpc_uncharge(share, cost);
        wefti_rpc_share_put(share);
    }
    if (!got && why == WEFT_ERR_PROTOCOL) {
        wrong_type(s);
        return;
    }
    if (!got) {
        wefti_stream_in_fail(s, why);
        taken(s, bytes);
        return;
    }
    keep_slot(&s->in, (stream_slot_t){.in = got, .bytes = bytes});
    why = got->missing ? wefti_rpc_in_fetch(got, NULL, 0, NULL, s->in.stall_ns, fetched, s) : WEFT_OK;
    if (why)
        wefti_stream_in_fail(s, why);
    else
        deliver(s);
}

/* Which rule does this ITEM break? NULL: none. */
static const char *item_breaks(const stream_in_t *in, const weft_am_t *am, const rpc_head_t *head, rpc_ext_t *ext)
{
    if (!in->codec.n || am->header_len < STREAM_ITEM_HEAD)
        return "an ITEM of a stream that is none";
    memcpy(ext, (const uint8_t *)am->header + sizeof *head, sizeof *ext);
    if (ext->flags & ~RPC_F_BYTES || ext->zero || (!(ext->flags & RPC_F_BYTES) && ext->bytes_len))
        return "an ITEM of a stream with flags that are none";
    if (in->ended || in->items >= in->may_items || in->bytes >= in->may_bytes)
        return in->ended ? "an ITEM after the END of its stream" : "an ITEM that no CREDIT was given for";
    if (am->len > UINT64_MAX / 2 || head->check - (uint32_t)in->items >= in->may_items - in->items)
        return "an ITEM out of its turn";
    return NULL;
}

void wefti_stream_in_item(weft_stream_t *s, weft_am_t *am, const rpc_head_t *head)
{
    stream_in_t *in = &s->in;
    rpc_ext_t ext;
    const char *broken = item_breaks(in, am, head, &ext);
    if (broken) {
        wefti_ep_protocol_error(s->ep, broken);
        return;
    }
    uint64_t bytes = am->header_len - STREAM_ITEM_HEAD + am->len;
    uint32_t lost = head->check - (uint32_t)in->items;
    in->items += lost + UINT64_C(1);
    in->taken_items += lost;
    in->bytes += bytes;
    if (lost)
        wefti_stream_in_fail(s, WEFT_ERR_PEER); /* the other side could not send an item: stream_out.c */
    if (!in->status && bytes > in->item_max) {
        wefti_warn("an item of a stream has %zu bytes, and at most %zu are taken", (size_t)bytes, (size_t)in->item_max);
        wefti_stream_in_fail(s, WEFT_ERR_LIMIT);
    }
    rpc_where_t where = {&in->codec, STREAM_ITEM_HEAD, &ext};
    if (in->status)
        taken(s, bytes); /* it is dropped: its sender gets credit, and goes on */
    else if (in->codec.fixed)
        item_fixed(s, am, &where, bytes);
    else
        item_any(s, am, &where, bytes);
}

void wefti_stream_in_end(weft_stream_t *s, weft_am_t *am, const rpc_head_t *head)
{
    stream_in_t *in = &s->in;
    if (!in->codec.n || in->ended || am->len || am->header_len != sizeof *head) {
        wefti_ep_protocol_error(s->ep, "an END of a stream that is none, or was ended");
        return;
    }
    in->ended = true;
    if (head->check != (uint32_t)in->items)
        wefti_stream_in_fail(s, WEFT_ERR_PEER);
    else
        deliver(s);
}

/* --- the program's side -------------------------------------------------------------------------------------------- */

static weft_status_t start(weft_op_t *op)
{
    stream_recv_t *r = stream_recv(op);
    weft_stream_t *s = r->s;
    stream_in_t *in = &s->in;
    weft_status_t st = wefti_op_may_start(op);
    if (st)
        return st;
    bool waits = !wefti_list_empty(&in->receives);
    bool ready = !waits && !in->status && first_ready(in);
    if (!ready && (waits || !at_end(s, &st))) {
        st = wefti_op_track(op);
        if (!st)
            wefti_list_push_back(&in->receives, &wefti_opx(op)->link);
        return st;
    }
    if (st)
        return st;
    op->len = ready;
    if (ready)
        take_first(s, r->item);
    wefti_op_complete(op, WEFT_OK);
    return WEFT_OK;
}

static weft_status_t start_inbox(weft_op_t *op)
{
    weft_stream_t *s = stream_recv(op)->s;
    weft_status_t st = start(op);
    wefti_stream_unref(s);
    return st;
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    wefti_list_remove(&wefti_opx(op)->link);
    wefti_op_complete(op, why);
}

static const wefti_op_kind_t recv_kind = {.name = "stream receive", .start = start_inbox, .cancel = cancel};

weft_status_t weft_stream_recv(weft_stream_t *stream, weft_item_t *item, weft_op_t *op)
{
    if (!stream || !item || !op)
        return wefti_fail(WEFT_ERR_INVALID, "a receive needs a stream, an item and an operation");
    if (!stream->in.codec.n)
        return wefti_fail(WEFT_ERR_STATE, "the signature has no stream in this direction; this side only sends");
    weft_status_t st = wefti_op_prepare(stream->rt, op, &recv_kind);
    if (st)
        return st;
    memset(item, 0, sizeof *item);
    op->len = 0;
    *stream_recv(op) = (stream_recv_t){stream, item};
    return wefti_rpc_go(stream->rt, op, start, &stream->refs, NULL);
}

void weft_item_release(weft_item_t *item)
{
    if (!item || !item->more)
        return;
    wefti_rpc_in_free((rpc_in_t *)item->more);
    item->more = NULL;
}
