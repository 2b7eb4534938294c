/* store/serve.c - what a server answers to each request.
 *
 * Requests come as active messages from whoever is connected. Each gets one reply: at once, or when memory was freed or
 * accesses have ended (blocks.c, replica.c). Every runtime answers, also one that serves nothing: so a request to the wrong
 * peer ends with WEFT_ERR_UNSUPPORTED, and not when its time is over. A peer that sends bytes that are no request, or asks
 * without taking the replies, loses its connection.
 *
 * The driver of the peer's shard answers, under the lock of the head's state. What comes later is the head's answer: it goes to
 * the endpoint's shard like any message that another thread sends.
 *
 * Promise: one reply per request, while there is a connection. What one peer does costs others nothing but processor time.
 * tests/wire/store_basic.c, tests/wire/store_shards.c, tests/fault/store_hostile.c. */
#include "store/state.h"

/* --- replies  --------------------------------------------------------------------------------------------------------- */

typedef struct sending {
    weft_op_t op;
    store_state_t *ss;
    weft_ep_id_t to;
    uint8_t bytes[];
} sending_t;

/* On the driver of its endpoint: others break that. */
static void no_longer_owed(store_state_t *ss, weft_ep_id_t to)
{
    weft_ep_t *ep = weft_ep_find(ss->rt, to);
    store_ep_t *e = ep ? store_ep(ep) : NULL;
    if (e && e->owed)
        e->owed--;
}

static void left(weft_op_t *op, void *user)
{
    sending_t *s = (sending_t *)user;
    (void)op;
    no_longer_owed(s->ss, s->to);
    store_end(s->ss);
    wefti_free(s);
}

static weft_status_t send_reply(store_state_t *ss, weft_ep_t *ep, const uint8_t *bytes, size_t n)
{
    sending_t *s = (sending_t *)wefti_malloc(sizeof *s + n);
    if (!s)
        return WEFT_ERR_NOMEM;
    memset(s, 0, sizeof *s);
    s->ss = ss;
    s->to = weft_ep_id(ep);
    s->op.fn = left;
    s->op.user = s;
    memcpy(s->bytes, bytes, n);
    store_begin(ss);
    weft_status_t st = weft_am_send(ep, STORE_AM_REPLY, s->bytes, n, NULL, 0, &s->op);
    if (st) {
        store_end(ss);
        wefti_free(s);
    }
    return st;
}

static const char no_memory[] = "there is no memory to answer a request to the store";

void wefti_store_break_called(weft_ext_call_t *call)
{
    store_state_t *ss = wefti_container_of(call, store_state_t, break_call);
    weft_ep_id_t ids[STORE_UNANSWERED];
    pthread_mutex_lock(&ss->head->lock);
    uint32_t n = ss->n_unanswered;
    memcpy(ids, ss->unanswered, n * sizeof *ids);
    ss->n_unanswered = 0;
    pthread_mutex_unlock(&ss->head->lock);
    for (uint32_t i = 0; i < n; i++) {
        weft_ep_t *ep = weft_ep_find(ss->rt, ids[i]);
        if (ep)
            weft_ext_ep_break(ep, WEFT_ERR_NOMEM, no_memory);
    }
}

/* Its driver is to break it. If more than so many have to be broken at once, the others find out by their deadlines. */
static void break_there(weft_ep_t *ep)
{
    store_state_t *ss = store_state(weft_ext_ep_shard(ep));
    if (!ss || ss->n_unanswered == STORE_UNANSWERED)
        return;
    ss->unanswered[ss->n_unanswered++] = weft_ep_id(ep);
    if (ss->n_unanswered == 1)
        (void)weft_ext_call(ss->rt, &ss->break_call); /* a runtime that closes breaks all of them */
}

void wefti_store_reply(store_state_t *ss, weft_ep_id_t to, const store_reply_t *reply)
{
    uint8_t bytes[STORE_REPLY_MAX];
    weft_ep_t *ep = weft_ep_find(ss->rt, to);
    if (!ep)
        return;
    size_t n = wefti_store_put_reply(reply, bytes, sizeof bytes);
    weft_status_t st = send_reply(ss, ep, bytes, n);
    if (!st)
        return;
    bool here = wefti_store_here(ss) == store_state(weft_ext_ep_shard(ep));
    no_longer_owed(ss, to);
    /* A client that is not answered would wait for ever: without memory it loses the connection instead. Other errors say that
     * it has already. */
    if (st != WEFT_ERR_NOMEM)
        return;
    if (!here)
        break_there(ep);
    else if (weft_am_send(ep, STORE_AM_REPLY, bytes, n, NULL, 0, NULL))
        weft_ext_ep_break(ep, WEFT_ERR_NOMEM, no_memory);
}

/* --- requests  -------------------------------------------------------------------------------------------------------- */

/* One request while it is answered. */
typedef struct serving {
    weft_store_server_t *s;
    store_client_t *c;
    weft_ep_t *ep;
    store_asker_t to;
    const store_request_t *q;
    store_reply_t p;
    uint8_t *bytes;  /* STORE_ENTRIES_MAX of them, for what the reply points to */
    uint32_t rights; /* of the key that it may have */
    bool later;      /* somebody else replies, now or later */
} serving_t;

static bool may_change(const store_held_t *b, const store_client_t *c)
{
    return b->shared || b->payer == c;
}

static store_held_t *by_id(const serving_t *v)
{
    return (store_held_t *)wefti_slots_get(&v->s->blocks, v->q->block);
}

static store_held_t *by_name(const serving_t *v)
{
    return wefti_store_names_find(&v->s->names, v->q->name, v->q->name_len);
}

static weft_status_t tell_block(serving_t *v, store_held_t *b)
{
    _Static_assert(WEFT_REGION_KEY_MAX <= STORE_ENTRIES_MAX, "a key fits where entries do");
    return wefti_store_block_tell(b, v->rights, v->bytes, &v->p);
}

static weft_status_t on_open(serving_t *v)
{
    const store_request_t *q = v->q;
    weft_status_t st = wefti_store_client_open(v->s, v->ep, q->client, q->lease_ns, q->flags & STORE_TIMED, &v->c);
    if (st)
        return st;
    v->p.lease_ns = v->c->lease_ns;
    memcpy(v->p.server, v->s->id, sizeof v->s->id);
    return WEFT_OK;
}

static weft_status_t on_alloc(serving_t *v)
{
    store_held_t *b;
    weft_status_t st = wefti_store_block_new(v->s, v->c, v->q, v->q->flags & STORE_SHARED, false, &b);
    return st ? st : tell_block(v, b);
}

static weft_status_t on_find(serving_t *v)
{
    store_held_t *b = by_name(v);
    if (!b || b->replica)
        return b ? WEFT_ERR_STATE : WEFT_ERR_NOTFOUND;
    v->s->stats.opens++;
    return tell_block(v, b);
}

static weft_status_t on_extend(serving_t *v)
{
    store_held_t *b = by_id(v);
    if (!b)
        return WEFT_ERR_NOTFOUND;
    if (!may_change(b, v->c) || b->replica)
        return WEFT_ERR_STATE;
    weft_status_t st = wefti_store_block_extend(b, v->c, v->q->len);
    return st ? st : tell_block(v, b);
}

/* FREE and REMOVE: the reply comes when the memory is back. */
static weft_status_t on_free(serving_t *v)
{
    store_held_t *b = v->q->kind == STORE_FREE ? by_id(v) : by_name(v);
    if (!b || !may_change(b, v->c))
        return b ? WEFT_ERR_STATE : WEFT_ERR_NOTFOUND;
    v->later = true;
    wefti_store_block_free(b, &v->to);
    return WEFT_OK;
}

static weft_status_t on_list(serving_t *v)
{
    const store_request_t *q = v->q;
    const store_names_t *names = &v->s->names;
    wefti_writer_t w = wefti_writer(v->bytes, STORE_ENTRIES_MAX);
    uint64_t now = weft_now(v->s->ss->rt);
    bool exact = false;
    size_t at = wefti_store_names_from(names, q->name, q->name_len, NULL);
    size_t after = q->after_len ? wefti_store_names_from(names, q->after, q->after_len, &exact) + exact : 0;
    if (after > at)
        at = after;
    for (; at < names->n; at++) {
        const store_held_t *b = names->at[at];
        weft_region_info_t info = WEFT_REGION_INFO_INIT;
        if (b->name_len < q->name_len || memcmp(b->name, q->name, q->name_len) != 0)
            break;
        if ((size_t)(w.end - w.at) < STORE_ENTRY_MAX) {
            v->p.flags |= STORE_MORE;
            break;
        }
        if (!wefti_store_rules_lists(b, v->c, v->ep))
            continue;
        if (weft_region_get_info(b->region, &info))
            info.attached = 0;
        store_entry_t e = {.name = b->name,
                           .name_len = b->name_len,
                           .flags = b->shared          ? STORE_E_SHARED
                                    : b->payer == v->c ? STORE_E_OURS
                                                       : 0,
                           .len = b->len,
                           .max_len = b->max_len,
                           .age_ns = now - b->born,
                           .attached = info.attached};
        wefti_store_put_entry(&w, &e);
    }
    v->p.entries = v->bytes;
    v->p.entries_len = (uint32_t)(w.at - v->bytes);
    return WEFT_OK;
}

void wefti_store_server_count(weft_store_server_t *s, weft_store_stats_t *out)
{
    *out = s->stats;
    out->bytes = s->opts.bytes;
    out->blocks = s->blocks.taken;
    out->clients = s->n_clients;
    out->uptime_ns = weft_now(s->ss->rt) - s->born;
    wefti_list_each(l, &s->block_list)
        wefti_store_block_count(wefti_container_of(l, store_held_t, link), out);
}

static weft_status_t on_query(serving_t *v)
{
    weft_store_stats_t all;
    wefti_store_server_count(v->s, &all);
    _Static_assert(sizeof all == sizeof(size_t) + sizeof v->p.stats, "what travels is what there is");
    memcpy(v->p.stats, &all.bytes, sizeof v->p.stats);
    return WEFT_OK;
}

/* Of a client whose lease runs. */
static weft_status_t serve_client(serving_t *v)
{
    store_held_t *b;
    switch (v->q->kind) {
    case STORE_RENEW:
        v->s->stats.renewals++;
        v->p.lease_ns = v->c->lease_ns;
        return WEFT_OK;
    case STORE_CLOSE:
        if (v->q->flags & STORE_LEAVE)
            v->c->timed = true; /* it does not renew its lease any more, which was renewed for this request */
        else
            wefti_store_client_end(v->c, false);
        return WEFT_OK;
    case STORE_QUERY:
        return on_query(v);
    case STORE_ALLOC:
        return on_alloc(v);
    case STORE_FIND:
        return on_find(v);
    case STORE_EXTEND:
        return on_extend(v);
    case STORE_FREE:
    case STORE_REMOVE:
        return on_free(v);
    case STORE_SHARE:
        b = by_id(v);
        return b ? wefti_store_block_share(b, v->c, v->q) : WEFT_ERR_NOTFOUND;
    case STORE_LIST:
        return on_list(v);
    default:
        v->later = true;
        wefti_store_replica_request(v->s, v->c, &v->to, v->q);
        return WEFT_OK;
    }
}

bool wefti_store_serve(store_state_t *ss, weft_ep_t *ep, const void *bytes, size_t n)
{
    uint8_t space[STORE_ENTRIES_MAX];
    store_request_t q;
    if (!wefti_store_get_request(bytes, n, &q))
        return false;
    weft_store_server_t *s = ss->server;
    serving_t v = {.s = s, .ep = ep, .to = {weft_ep_id(ep), q.id, q.kind}, .q = &q, .bytes = space, .rights = WEFT_RMA_ALL};
    store_reply_t *p = &v.p;
    p->id = q.id;
    p->kind = q.kind;
    p->flags = STORE_BODY;
    if (!s || s->closing || q.kind >= STORE_KINDS) {
        p->status = WEFT_ERR_UNSUPPORTED;
        p->flags = 0;
        wefti_store_reply(ss, v.to.ep, p);
        return true;
    }
    v.c = wefti_store_client(s, q.client);
    if (q.kind == STORE_OPEN) {
        p->status = on_open(&v);
    } else if (!v.c || v.c->ep != ep) { /* its lease is over, or it is here over another endpoint now */
        p->status = WEFT_ERR_STALE;
        p->flags |= STORE_LEASE_OVER;
    } else {
        wefti_store_client_renew(v.c);
        p->status = wefti_store_rules(s, v.c, ep, &q, &v.rights);
        if (!p->status && wefti_store_later(s, v.c, v.to.ep, &q, bytes, n))
            return true;
        if (!p->status)
            p->status = serve_client(&v);
    }
    if (v.later)
        return true;
    if (p->status)
        p->flags &= (uint8_t)~STORE_BODY;
    s->stats.refused += p->status && p->status != WEFT_ERR_NOTFOUND;
    wefti_store_reply(ss, v.to.ep, p);
    return true;
}

void wefti_store_request(weft_am_t *am, void *user)
{
    store_state_t *ss = (store_state_t *)user;
    weft_ep_t *ep = am->ep;
    if (store_ep(ep)->owed >= STORE_OWED) {
        weft_ext_ep_break(ep, WEFT_ERR_PROTOCOL, "requests to the store without an end, and it does not take the replies");
        return;
    }
    store_ep(ep)->owed++;
    pthread_mutex_lock(&ss->lock);
    bool ok = !am->len && wefti_store_serve(ss, ep, am->header, am->header_len);
    pthread_mutex_unlock(&ss->lock);
    if (!ok)
        weft_ext_ep_break(ep, WEFT_ERR_PROTOCOL, "a request to the store that is none");
}
