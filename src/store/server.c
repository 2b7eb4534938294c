/* store/server.c - a server: what it answers to each request, and its beginning and end.
 *
 * Requests come as active messages from whoever is connected, and each gets one reply: at once, or when memory was freed or accesses have ended
 * (blocks.c, replica.c). Every runtime answers, also one that serves nothing: so that asking the wrong peer ends with WEFT_ERR_UNSUPPORTED and not
 * by time running out. Bytes that are no request, and a peer that asks without ever taking replies, cost it its connection.
 *
 *     SERVING --close--> CLOSING (its blocks are being freed, requests are refused) --> gone
 *
 * Promise: one reply per request, while there is a connection; what one peer does costs others nothing but their share of the processor.
 * tests/wire/store_basic.c, tests/fault/store_hostile.c. */
#include <sys/resource.h>

#include "store/state.h"

/* --- replies ------------------------------------------------------------------------------------------------------------------ */

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
    /* A client that is not answered would wait for ever: without memory it loses the connection instead. Other errors say that it has already. */
    if (st == WEFT_ERR_NOMEM && weft_am_send(ep, STORE_AM_REPLY, bytes, n, NULL, 0, NULL))
        weft_ext_ep_break(ep, WEFT_ERR_NOMEM, "there is no memory to answer a request to the store");
}

/* --- requests ------------------------------------------------------------------------------------------------------------------ */

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

static void sum_up(weft_store_server_t *s, weft_store_stats_t *out)
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
    sum_up(s, &all);
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

/* --- beginning and end --------------------------------------------------------------------------------------------------------- */

static weft_status_t take_opts(const weft_store_server_opts_t *given, weft_store_server_opts_t *o)
{
    weft_status_t st = wefti_opts_read(given, o, sizeof *o, "weft_store_server_opts_t");
    if (st)
        return st;
    o->size = sizeof *o;
    if (!o->bytes || o->bytes > UINT64_C(1) << 56)
        return weft_fail(WEFT_ERR_INVALID, "a server has 1 byte to 64 PiB to give out, not %llu", (unsigned long long)o->bytes);
    if (!o->client_bytes)
        o->client_bytes = o->bytes;
    if (!o->client_blocks)
        o->client_blocks = 4096;
    if (!o->blocks)
        o->blocks = 65536;
    if (!o->clients)
        o->clients = 1024;
    if (!o->lease_ns)
        o->lease_ns = 30 * WEFT_SECOND;
    if (o->blocks > 1u << 24 || o->clients > 1u << 24)
        return weft_fail(WEFT_ERR_INVALID, "a server has at most 16777216 blocks and as many clients");
    if (o->lease_ns < WEFT_MILLISECOND || o->lease_ns > 86400 * WEFT_SECOND)
        return weft_fail(WEFT_ERR_INVALID, "a lease is 1 ms to 1 day, not %llu ns", (unsigned long long)o->lease_ns);
    return WEFT_OK;
}

/* A block that others map has a file descriptor; the last quarter of those is left to everything else. */
static uint32_t most_mapped(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > UINT32_MAX)
        return UINT32_MAX;
    return (uint32_t)(limit.rlim_cur - limit.rlim_cur / 4);
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_store_server_t, rt);

static weft_status_t serve_on(weft_runtime_t *rt, const weft_store_server_opts_t *o, weft_store_server_t **server_out)
{
    store_state_t *ss = store_state(rt);
    weft_status_t st = WEFT_OK;
    if (!ss)
        return wefti_store_no_state(rt);
    weft_store_server_t *s = (weft_store_server_t *)wefti_handle_new(&handles);
    if (!s)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a server");
    s->rt = rt;
    s->ss = ss;
    s->opts = *o;
    s->born = weft_now(rt);
    s->max_mapped = most_mapped();
    s->stats.size = sizeof s->stats;
    wefti_slots_init(&s->blocks, o->blocks);
    wefti_list_init(&s->client_list);
    wefti_list_init(&s->block_list);
    wefti_list_init(&s->later);
    wefti_store_random_id(ss, s->id);
    wefti_store_random_id(ss, s->hash_key);
    pthread_mutex_lock(&ss->lock);
    if (weft_ext_closing(rt)) /* those who come later see that, and those before are seen by the end of the room */
        st = weft_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", weft_runtime_name(rt));
    else if (ss->server)
        st = weft_fail(WEFT_ERR_STATE, "the runtime \"%s\" has a server already; close that first", weft_runtime_name(rt));
    else
        ss->server = s;
    pthread_mutex_unlock(&ss->lock);
    if (st)
        wefti_handle_free(&handles, s);
    else
        *server_out = s;
    return st;
}

weft_status_t weft_store_serve(weft_runtime_t *rt, const weft_store_server_opts_t *opts, weft_store_server_t **server_out)
{
    weft_store_server_opts_t o;
    if (!rt || !server_out)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "where the server goes" : "the runtime");
    weft_status_t st = take_opts(opts, &o);
    if (!st)
        st = weft_ext_enter(rt);
    if (st)
        return st;
    st = serve_on(rt, &o, server_out);
    weft_ext_leave(rt);
    return st;
}
static void server_free(weft_store_server_t *s)
{
    s->ss->server = NULL;
    wefti_store_later_drop(s);
    wefti_map_free(&s->clients);
    wefti_slots_free(&s->blocks);
    wefti_free(s->names.at);
    wefti_handle_free(&handles, s); /* whoever is inside does not wait for the lock, which we have */
}

void wefti_store_server_settle(weft_store_server_t *s)
{
    if (!s->closing || s->n_freeing || s->n_setting || !wefti_list_empty(&s->block_list))
        return;
    weft_op_t *op = s->close_op;
    server_free(s);
    if (op)
        weft_ext_op_complete(op, WEFT_OK, 0);
}

static void clients_end(weft_store_server_t *s)
{
    for (wefti_list_t *l; (l = wefti_list_first(&s->client_list));)
        wefti_store_client_end(wefti_container_of(l, store_client_t, link), false);
}

typedef struct closing {
    weft_store_server_t *server;
} closing_t;

static weft_status_t close_start(weft_op_t *op)
{
    weft_store_server_t *s = weft_ext_scratch(op, closing_t)->server;
    store_state_t *ss = s->ss;
    (void)weft_ext_op_track(
        op); /* its handle is closed: without memory for a deadline it goes on, for nobody could close it again */
    pthread_mutex_lock(&ss->lock);
    s->closing = true;
    s->close_op = op;
    wefti_store_later_again(s); /* they are refused */
    clients_end(s);
    for (wefti_list_t *l; (l = wefti_list_first(&s->block_list));)
        wefti_store_block_free(wefti_container_of(l, store_held_t, link), NULL);
    wefti_store_server_settle(s);
    pthread_mutex_unlock(&ss->lock);
    return WEFT_OK;
}

/* Whoever waited does so no longer; the memory is given back all the same. */
static void close_cancel(weft_op_t *op, weft_status_t why)
{
    weft_store_server_t *s = weft_ext_scratch(op, closing_t)->server;
    s->close_op = NULL;
    weft_ext_op_complete(op, why, 0);
}

static const weft_op_kind_t close_kind = {.name = "store server close", .start = close_start, .cancel = close_cancel};

static void free_op(weft_op_t *op, void *user)
{
    (void)user;
    wefti_free(op);
}

/* The runtime of a server that is open: it stays until weft_ext_leave(). WEFT_ERR_CLOSED, _FORKED. */
static weft_status_t join(weft_store_server_t *server, weft_runtime_t **rt_out)
{
    if (!server)
        return weft_fail(WEFT_ERR_INVALID, "the server is NULL");
    if (!wefti_handle_enter(&server->handle))
        return weft_fail(WEFT_ERR_CLOSED, "the server was closed");
    *rt_out = server->rt;
    weft_status_t st = weft_ext_enter(server->rt);
    wefti_handle_leave(&server->handle);
    return st;
}

static weft_status_t close_it(weft_runtime_t *rt, weft_store_server_t *server, weft_op_t *op)
{
    weft_op_t *own = NULL;
    if (!op) {
        op = own = (weft_op_t *)wefti_calloc(1, sizeof *own);
        if (!own)
            return weft_fail(WEFT_ERR_NOMEM, "no memory to close a server");
        own->fn = free_op;
    }
    weft_status_t st = weft_ext_op_prepare(rt, op, &close_kind);
    if (!st) {
        weft_ext_scratch(op, closing_t)->server = server;
        st = weft_ext_op_start(op);
    }
    if (st)
        wefti_free(own);
    return st;
}

weft_status_t weft_store_server_close(weft_store_server_t *server, weft_op_t *op)
{
    weft_runtime_t *rt;
    weft_status_t st = join(server, &rt);
    if (st)
        return st;
    if (!wefti_handle_close(&server->handle)) {
        st = weft_fail(WEFT_ERR_CLOSED, "the server is being closed already");
    } else {
        st = close_it(rt, server, op);
        if (st) /* nothing was started: it is as it was */
            wefti_handle_reopen(&server->handle);
    }
    weft_ext_leave(rt);
    return st;
}

weft_status_t weft_store_server_get_stats(weft_store_server_t *server, weft_store_stats_t *stats_out)
{
    weft_store_stats_t all;
    weft_runtime_t *rt;
    if (!server || !stats_out || !stats_out->size)
        return weft_fail(WEFT_ERR_INVALID,
                          server ? "statistics go to a struct made with WEFT_STORE_STATS_INIT" : "the server is NULL");
    weft_status_t st = join(server, &rt);
    if (st)
        return st;
    store_state_t *ss = store_state(rt);
    pthread_mutex_lock(&ss->lock);
    if (ss->server == server)
        sum_up(server, &all);
    else
        st = weft_fail(WEFT_ERR_CLOSED, "the server was closed");
    pthread_mutex_unlock(&ss->lock);
    weft_ext_leave(rt);
    if (st)
        return st;
    size_t n = stats_out->size < sizeof all ? stats_out->size : sizeof all;
    all.size = n;
    memcpy(stats_out, &all, n);
    return WEFT_OK;
}

void wefti_store_server_shutdown(store_state_t *ss)
{
    pthread_mutex_lock(&ss->lock);
    weft_store_server_t *s = ss->server;
    if (s) {
        bool waits = s->closing;
        s->closing = true;
        for (wefti_list_t *l; (l = wefti_list_first(&s->block_list));) /* before their owners, who would free them */
            wefti_store_block_forget(wefti_container_of(l, store_held_t, link));
        clients_end(s);
        if (waits)
            wefti_store_server_settle(s);
    }
    pthread_mutex_unlock(&ss->lock);
}

void wefti_store_server_gone(store_state_t *ss)
{
    if (ss->server)
        server_free(ss->server);
}
