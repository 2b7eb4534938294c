/* rpc/once.c - exactly once: calls by the number that their client gave them, and their replies until the client has them.
 *
 *     new --> runs --> answered --> forgotten: its client has the reply, or remember_ns passed
 *
 * Each client has a floor. A number below the floor that is not known was known once, or comes so late that nobody can tell. The
 * floor rises with what the client acknowledges and with what is forgotten. A client without calls is remembered for its floor as
 * long as a repeat may still come from it (stay_ns); a new client begins at 0.
 *
 * Promise: at most one call of a number is ever NEW, unless it was forgotten as not run. What is held is bounded: `max` calls and
 * clients, the bytes that the service allows, and of each the part of one peer. tests/unit/rpc_once.c. */
#include "rpc/serve.h"

struct rpc_once_client {
    uint64_t id;
    uint64_t floor;
    wefti_map_t calls;    /* rpc_once_entry_t by seq */
    wefti_list_t entries; /* the same, in order of arrival */
    wefti_list_t idle;    /* of the book, while it has no calls */
    uint64_t until;
    rpc_share_t *share; /* of the peer that made its first call */
};

void wefti_once_init(rpc_book_t *b, uint32_t max, uint64_t remember_ns)
{
    memset(b, 0, sizeof *b);
    wefti_list_init(&b->age);
    wefti_list_init(&b->idle);
    b->max = b->max_clients = b->peer_max = b->peer_clients = max;
    b->remember_ns = b->stay_ns = remember_ns;
}

static uint64_t later(uint64_t now, uint64_t ns)
{
    return ns < UINT64_MAX - now ? now + ns : UINT64_MAX;
}

static void client_free(rpc_book_t *b, rpc_once_client_t *c)
{
    wefti_map_take(&b->clients, c->id);
    wefti_map_free(&c->calls);
    if (wefti_list_linked(&c->idle))
        wefti_list_remove(&c->idle);
    c->share->clients--;
    wefti_rpc_share_put(c->share);
    wefti_free(c);
    b->n_clients--;
}

static uint64_t kept_bytes(uint32_t header, uint64_t payload)
{
    return ((header + 7u) & ~7u) + payload;
}

static uint64_t reply_bytes(const rpc_once_entry_t *e)
{
    return e->reply ? kept_bytes(e->reply->len, e->reply->payload) : 0;
}

void wefti_once_forget(rpc_book_t *b, rpc_once_entry_t *e, uint64_t now)
{
    rpc_once_client_t *c = e->client;
    wefti_map_take(&c->calls, e->seq);
    wefti_list_remove(&e->link);
    if (wefti_list_linked(&e->age))
        wefti_list_remove(&e->age);
    b->bytes -= reply_bytes(e);
    wefti_rpc_uncharge(e->share, reply_bytes(e));
    e->share->entries--;
    wefti_rpc_share_put(e->share);
    wefti_rpc_kept_free(e->reply);
    wefti_free(e);
    b->n--;
    if (wefti_list_empty(&c->entries)) {
        c->until = later(now, b->stay_ns);
        wefti_list_push_back(&b->idle, &c->idle);
    }
}

void wefti_once_free(rpc_book_t *b)
{
    uint64_t id;
    rpc_once_client_t *c;
    for (size_t at = 0; (c = (rpc_once_client_t *)wefti_map_next(&b->clients, &at, &id)); at = 0) {
        for (wefti_list_t *l; (l = wefti_list_first(&c->entries));)
            wefti_once_forget(b, wefti_container_of(l, rpc_once_entry_t, link), 0);
        client_free(b, c);
    }
    wefti_map_free(&b->clients);
}

static rpc_once_client_t *client_of(rpc_book_t *b, uint64_t id, rpc_share_t *share, uint64_t now)
{
    rpc_once_client_t *c = (rpc_once_client_t *)wefti_map_get(&b->clients, id);
    if (c)
        return c;
    if (b->n_clients >= b->max_clients || share->clients >= b->peer_clients)
        return NULL;
    c = (rpc_once_client_t *)wefti_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->id = id;
    wefti_list_init(&c->entries);
    if (wefti_map_put(&b->clients, id, c)) {
        wefti_free(c);
        return NULL;
    }
    c->until = later(now, b->stay_ns);
    c->share = share;
    share->refs++;
    share->clients++;
    wefti_list_push_back(&b->idle, &c->idle);
    b->n_clients++;
    return c;
}

/* The client has the replies to all calls below seq. Those that came out of turn may stay until they are old. */
static void acked(rpc_book_t *b, rpc_once_client_t *c, uint64_t seq, uint64_t now)
{
    if (seq <= c->floor)
        return;
    c->floor = seq;
    wefti_list_each_safe(l, &c->entries) {
        rpc_once_entry_t *e = wefti_container_of(l, rpc_once_entry_t, link);
        if (e->seq >= seq)
            break;
        if (!e->request)
            wefti_once_forget(b, e, now);
    }
}

rpc_once_found_t wefti_once_find(rpc_book_t *b, const rpc_once_t *id, rpc_share_t *share, uint64_t now,
                                 rpc_once_entry_t **entry_out)
{
    rpc_once_client_t *c = client_of(b, id->client, share, now);
    if (!c)
        return ONCE_FULL;
    acked(b, c, id->acked, now);
    rpc_once_entry_t *e = (rpc_once_entry_t *)wefti_map_get(&c->calls, id->seq);
    if (e) {
        *entry_out = e;
        return e->request ? ONCE_RUNNING : e->reply ? ONCE_ANSWERED : ONCE_GONE;
    }
    if (id->seq < c->floor)
        return ONCE_GONE;
    if (b->n >= b->max || share->entries >= b->peer_max)
        return ONCE_FULL;
    e = (rpc_once_entry_t *)wefti_calloc(1, sizeof *e);
    if (!e)
        return ONCE_FULL;
    if (wefti_map_put(&c->calls, id->seq, e)) {
        wefti_free(e);
        return ONCE_FULL;
    }
    e->client = c;
    e->seq = id->seq;
    e->share = share;
    share->refs++;
    share->entries++;
    wefti_list_push_back(&c->entries, &e->link);
    if (wefti_list_linked(&c->idle))
        wefti_list_remove(&c->idle);
    b->n++;
    *entry_out = e;
    return ONCE_NEW;
}

void wefti_once_answered(rpc_book_t *b, rpc_once_entry_t *e, rpc_msg_t *msg, uint64_t space, uint64_t now)
{
    e->request = NULL;
    if (e->seq < e->client->floor) {
        wefti_once_forget(b, e, now); /* its client has acknowledged it: it does not ask again */
        return;
    }
    if (kept_bytes(msg->len, msg->payload) <= space)
        (void)wefti_rpc_keep(msg, RPC_KEEP_ALL, &e->reply);
    b->bytes += reply_bytes(e);
    wefti_rpc_charge_more(e->share, reply_bytes(e));
    e->until = later(now, b->remember_ns);
    wefti_list_push_back(&b->age, &e->age);
}

uint64_t wefti_once_age(rpc_book_t *b, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    wefti_list_t *l;
    while ((l = wefti_list_first(&b->age))) {
        rpc_once_entry_t *e = wefti_container_of(l, rpc_once_entry_t, age);
        if (e->until > now) {
            next = e->until;
            break;
        }
        if (e->client->floor <= e->seq)
            e->client->floor = e->seq + 1;
        wefti_once_forget(b, e, now);
    }
    while ((l = wefti_list_first(&b->idle))) {
        rpc_once_client_t *c = wefti_container_of(l, rpc_once_client_t, idle);
        if (c->until > now) {
            next = c->until < next ? c->until : next;
            break;
        }
        client_free(b, c);
    }
    return next;
}
