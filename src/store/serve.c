/* store/serve.c - what a server answers to each request.
 *
 * Requests come as active messages from whoever is connected. Each gets one reply: at once, or when memory was freed or
 * accesses have ended (blocks.c, replica.c). Every runtime answers, also one that serves nothing: so a request to the wrong
 * peer ends with WEFT_ERR_UNSUPPORTED, and not when its time is over. A peer that sends bytes that are no request, or asks
 * without taking the replies, loses its connection.
 *
 * Promise: one reply per request, while there is a connection. What one peer does costs others nothing but processor time.
 * tests/wire/store_basic.c, tests/fault/store_hostile.c. */
#include "store/state.h"

/* --- replies  --------------------------------------------------------------------------------------------------------- */

typedef struct sending {
    weft_op_t op;
    store_state_t *ss;
    weft_ep_id_t to;
    uint8_t bytes[];
} sending_t;

static void no_longer_owed(store_state_t *ss, weft_ep_id_t to)
{
    weft_ep_t *ep = weft_ep_find(ss->rt, to);
    if (ep && store_ep(ep)->owed)
        store_ep(ep)->owed--;
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
    no_longer_owed(ss, to);
    /* A client that is not answered would wait for ever: without memory it loses the connection instead. Other errors say that
     * it has already. */
    if (st == WEFT_ERR_NOMEM && weft_am_send(ep, STORE_AM_REPLY, bytes, n, NULL, 0, NULL))
        weft_ext_ep_break(ep, WEFT_ERR_NOMEM, "there is no memory to answer a request to the store");
}

/* --- requests  -------------------------------------------------------------------------------------------------------- */

static void refuse(weft_store_server_t *s, store_reply_t *p, weft_status_t status)
{
    p->status = status;
    p->flags &= (uint8_t)~STORE_BODY;
    if (status != WEFT_ERR_NOTFOUND)
        s->stats.refused++;
}

static bool may_change(const store_held_t *b, const store_client_t *c)
{
    return b->shared || b->payer == c;
}

/* The reply about a block, sent from here: it points into our stack. */
static void tell_block(weft_store_server_t *s, weft_ep_t *ep, store_held_t *b, store_reply_t *p)
{
    uint8_t key[WEFT_REGION_KEY_MAX];
    weft_status_t st = wefti_store_block_tell(b, WEFT_RMA_ALL, key, p);
    if (st)
        refuse(s, p, st);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
    p->key = NULL;
}

static void on_alloc(weft_store_server_t *s, store_client_t *c, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    store_held_t *b;
    weft_status_t st = wefti_store_block_new(s, c, q, q->flags & STORE_SHARED, false, &b);
    if (!st) {
        tell_block(s, ep, b, p);
        return;
    }
    refuse(s, p, st);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

static void on_find(weft_store_server_t *s, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    store_held_t *b = wefti_store_names_find(&s->names, q->name, q->name_len);
    if (b && !b->replica) {
        s->stats.opens++;
        tell_block(s, ep, b, p);
        return;
    }
    refuse(s, p, b ? WEFT_ERR_STATE : WEFT_ERR_NOTFOUND);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

static void on_extend(weft_store_server_t *s, store_client_t *c, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    store_held_t *b = (store_held_t *)wefti_slots_get(&s->blocks, q->block);
    weft_status_t st = !b                                ? WEFT_ERR_NOTFOUND
                       : !may_change(b, c) || b->replica ? WEFT_ERR_STATE
                                                         : wefti_store_block_extend(b, c, q->len);
    if (!st) {
        tell_block(s, ep, b, p);
        return;
    }
    refuse(s, p, st);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

/* FREE and REMOVE: the reply comes when the memory is back. */
static void on_free(weft_store_server_t *s, store_client_t *c, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    store_asker_t asker = {weft_ep_id(ep), q->id, q->kind};
    store_held_t *b = q->kind == STORE_FREE ? (store_held_t *)wefti_slots_get(&s->blocks, q->block)
                                            : wefti_store_names_find(&s->names, q->name, q->name_len);
    if (b && may_change(b, c)) {
        wefti_store_block_free(b, &asker);
        return;
    }
    refuse(s, p, b ? WEFT_ERR_STATE : WEFT_ERR_NOTFOUND);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

static void on_share(weft_store_server_t *s, const store_client_t *c, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    store_held_t *b = (store_held_t *)wefti_slots_get(&s->blocks, q->block);
    weft_status_t st = b ? wefti_store_block_share(b, c, q) : WEFT_ERR_NOTFOUND;
    if (st)
        refuse(s, p, st);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

static void on_list(weft_store_server_t *s, const store_client_t *c, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    uint8_t entries[STORE_ENTRIES_MAX];
    wefti_writer_t w = wefti_writer(entries, sizeof entries);
    uint64_t now = weft_now(s->ss->rt);
    bool exact = false;
    size_t at = wefti_store_names_from(&s->names, q->name, q->name_len, NULL);
    size_t after = q->after_len ? wefti_store_names_from(&s->names, q->after, q->after_len, &exact) + exact : 0;
    if (after > at)
        at = after;
    for (; at < s->names.n; at++) {
        const store_held_t *b = s->names.at[at];
        weft_region_info_t info = WEFT_REGION_INFO_INIT;
        if (b->name_len < q->name_len || memcmp(b->name, q->name, q->name_len) != 0)
            break;
        if ((size_t)(w.end - w.at) < STORE_ENTRY_MAX) {
            p->flags |= STORE_MORE;
            break;
        }
        if (weft_region_get_info(b->region, &info))
            info.attached = 0;
        store_entry_t e = {.name = b->name,
                           .name_len = b->name_len,
                           .flags =
                               (uint8_t)((b->shared ? STORE_E_SHARED : 0) | (!b->shared && b->payer == c ? STORE_E_OURS : 0)),
                           .len = b->len,
                           .max_len = b->max_len,
                           .age_ns = now - b->born,
                           .attached = info.attached};
        wefti_store_put_entry(&w, &e);
    }
    p->entries = entries;
    p->entries_len = (uint32_t)(w.at - entries);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
    p->entries = NULL; /* ours no longer */
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

static void on_query(weft_store_server_t *s, weft_ep_t *ep, store_reply_t *p)
{
    weft_store_stats_t all;
    wefti_store_server_count(s, &all);
    _Static_assert(sizeof all == sizeof(size_t) + sizeof p->stats, "what travels is what there is");
    memcpy(p->stats, &all.bytes, sizeof p->stats);
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

static void on_open(weft_store_server_t *s, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    store_client_t *c;
    weft_status_t st = wefti_store_client_open(s, ep, q->client, q->lease_ns, q->flags & STORE_TIMED, &c);
    if (st) {
        refuse(s, p, st);
    } else {
        p->lease_ns = c->lease_ns;
        memcpy(p->server, s->id, sizeof s->id);
    }
    wefti_store_reply(s->ss, weft_ep_id(ep), p);
}

static void serve_client(weft_store_server_t *s, store_client_t *c, weft_ep_t *ep, const store_request_t *q, store_reply_t *p)
{
    switch (q->kind) {
    case STORE_RENEW:
        s->stats.renewals++;
        p->lease_ns = c->lease_ns;
        wefti_store_reply(s->ss, weft_ep_id(ep), p);
        break;
    case STORE_CLOSE:
        if (q->flags & STORE_LEAVE)
            wefti_store_client_left(c);
        else
            wefti_store_client_end(c, false);
        wefti_store_reply(s->ss, weft_ep_id(ep), p);
        break;
    case STORE_QUERY:
        on_query(s, ep, p);
        break;
    case STORE_ALLOC:
        on_alloc(s, c, ep, q, p);
        break;
    case STORE_FIND:
        on_find(s, ep, q, p);
        break;
    case STORE_EXTEND:
        on_extend(s, c, ep, q, p);
        break;
    case STORE_FREE:
    case STORE_REMOVE:
        on_free(s, c, ep, q, p);
        break;
    case STORE_SHARE:
        on_share(s, c, ep, q, p);
        break;
    case STORE_LIST:
        on_list(s, c, ep, q, p);
        break;
    default:
        wefti_store_replica_request(s, c, ep, q);
    }
}

bool wefti_store_serve(store_state_t *ss, weft_ep_t *ep, const void *bytes, size_t n)
{
    store_request_t q;
    if (!wefti_store_get_request(bytes, n, &q))
        return false;
    store_reply_t p = {.id = q.id, .kind = q.kind, .flags = STORE_BODY};
    weft_store_server_t *s = ss->server;
    if (!s || s->closing || q.kind >= STORE_KINDS) {
        p.status = WEFT_ERR_UNSUPPORTED;
        p.flags = 0;
        wefti_store_reply(ss, weft_ep_id(ep), &p);
        return true;
    }
    store_client_t *c = wefti_store_client(s, q.client);
    if (q.kind == STORE_OPEN) {
        on_open(s, ep, &q, &p);
    } else if (!c || c->ep != ep) { /* its lease is over, or it is here over another endpoint now */
        refuse(s, &p, WEFT_ERR_STALE);
        p.flags |= STORE_LEASE_OVER;
        wefti_store_reply(ss, weft_ep_id(ep), &p);
    } else {
        wefti_store_client_renew(c);
        if (!wefti_store_later(s, c, weft_ep_id(ep), &q, bytes, n))
            serve_client(s, c, ep, &q, &p);
    }
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
