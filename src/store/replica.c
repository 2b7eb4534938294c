/* store/replica.c - the server's half of mirrors: the record of a replica, the lease that its writer grants, and who may read
 * and write it.
 *
 * The states, and why a lease counts from a stamp, are in replica.h. Here they are flags of the record:
 *
 *     REFILLING set       only the key of the last make or set is there
 *     none set            LEASED until `until`; the region itself refuses every access from then on (weft_region_until),
 *                         whether or not the timer
 *                         came that makes it LAPSED
 *     LAPSED, SEALED set
 *
 * A set or a seal revokes the region, and its reply comes when no access with an old key is under way any more. A set that
 * comes meanwhile is done at once as well, and the one before it ends with WEFT_ERR_STALE.
 *
 * tests/wire/store_replica.c, tests/sim/mirror_history.c. */
#include "store/state.h"

struct store_replica {
    store_held_t *block;
    wefti_replica_t rec;
    uint64_t until; /* LEASED: when that ends */
    store_alarm_t *timer;
};

static bool leased(const store_replica_t *r)
{
    return !(r->rec.flags & (WEFTI_REPLICA_REFILLING | WEFTI_REPLICA_SEALED | WEFTI_REPLICA_LAPSED));
}

/* What it is now, also if its timer is late. */
static void look(store_replica_t *r)
{
    weft_runtime_t *rt = r->block->server->ss->rt;
    if (!leased(r) || weft_now(rt) < r->until)
        return;
    r->rec.flags |= WEFTI_REPLICA_LAPSED;
    wefti_store_alarm_stop(&r->timer);
    weft_region_revoke(r->block->region, NULL); /* without memory for that: `until` has passed, and every access is refused */
}

static void lease_over(void *user, uint64_t when)
{
    (void)when;
    look((store_replica_t *)user);
}

/* Served until then; 0: for ever. */
static void serve_until(store_replica_t *r, uint64_t until)
{
    r->until = until;
    (void)weft_region_until(r->block->region, until);
    if (until) /* without memory for it the region still refuses, and look() finds it lapsed */
        (void)wefti_store_alarm_set(r->block->server->ss, &r->timer, until, lease_over, r);
    else
        wefti_store_alarm_stop(&r->timer);
}

void wefti_store_replica_free(store_held_t *b)
{
    if (!b->replica)
        return;
    wefti_store_alarm_stop(&b->replica->timer);
    wefti_free(b->replica);
    b->replica = NULL;
}

/* --- replies  --------------------------------------------------------------------------------------------------------- */

/* The reply about a replica: with its record, whatever the status, and with a key for those rights if it is WEFT_OK. */
static void reply(store_held_t *b, const store_asker_t *to, weft_status_t status, uint32_t rights)
{
    uint8_t key[WEFT_REGION_KEY_MAX];
    weft_store_server_t *s = b->server;
    store_reply_t p = {.id = to->id, .kind = to->kind};
    if (!status && rights)
        status = wefti_store_block_tell(b, rights, key, &p);
    p.status = status;
    p.flags = STORE_BODY;
    p.len = b->len;
    p.rec = b->replica->rec;
    p.stamp = weft_now(s->ss->rt);
    s->stats.refused += status != WEFT_OK;
    wefti_store_reply(s->ss, to->ep, &p);
}

static void refuse(weft_store_server_t *s, const store_asker_t *to, weft_status_t status)
{
    store_reply_t p = {.id = to->id, .kind = to->kind, .status = status};
    s->stats.refused += status != WEFT_ERR_NOTFOUND;
    wefti_store_reply(s->ss, to->ep, &p);
}

/* --- revoking  -------------------------------------------------------------------------------------------------------- */

/* A set or seal that waits for accesses to end. */
typedef struct setting {
    weft_op_t op;
    weft_store_server_t *server;
    uint64_t block, epoch;
    uint32_t rights; /* of the key that it gets */
    store_asker_t asker;
} setting_t;

static void revoked(weft_op_t *op, void *user)
{
    setting_t *w = (setting_t *)user;
    weft_store_server_t *s = w->server;
    store_state_t *ss = s->ss;
    weft_status_t st = op->status;
    store_end(ss);
    pthread_mutex_lock(&ss->lock);
    store_held_t *b = (store_held_t *)wefti_slots_get(&s->blocks, w->block);
    if (!b || !b->replica) {
        refuse(s, &w->asker, WEFT_ERR_NOTFOUND);
    } else {
        look(b->replica);
        bool over = b->replica->rec.epoch != w->epoch || b->replica->rec.flags & WEFTI_REPLICA_LAPSED;
        reply(b, &w->asker, st ? st : over ? WEFT_ERR_STALE : WEFT_OK, w->rights);
    }
    s->n_setting--;
    wefti_store_server_settle(s);
    pthread_mutex_unlock(&ss->lock);
    wefti_free(w);
}

static setting_t *setting_new(store_held_t *b, const store_asker_t *asker, uint32_t rights)
{
    setting_t *w = (setting_t *)wefti_calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->server = b->server;
    w->block = b->id;
    w->rights = rights;
    w->asker = *asker;
    w->op.fn = revoked;
    w->op.user = w;
    return w;
}

static void revoke(store_held_t *b, setting_t *w)
{
    weft_store_server_t *s = b->server;
    w->epoch = b->replica->rec.epoch;
    s->n_setting++;
    store_begin(s->ss);
    if (weft_region_revoke(b->region, &w->op)) { /* the runtime closes */
        s->n_setting--;
        store_end(s->ss);
        wefti_free(w);
    }
}

/* --- requests  -------------------------------------------------------------------------------------------------------- */

static void on_make(weft_store_server_t *s, store_client_t *c, const store_asker_t *to, const store_request_t *q)
{
    store_held_t *b = wefti_store_names_find(&s->names, q->name, q->name_len);
    if (b && b->replica) {
        look(b->replica);
        reply(b, to, WEFT_ERR_STATE, 0);
        return;
    }
    store_request_t plain = *q;
    plain.max_len = q->len;
    store_replica_t *r = (store_replica_t *)wefti_calloc(1, sizeof *r);
    weft_status_t st = r ? wefti_store_block_new(s, c, &plain, true, true, &b) : WEFT_ERR_LIMIT;
    if (st) {
        wefti_free(r);
        refuse(s, to, st);
        return;
    }
    r->block = b;
    r->rec = q->rec;
    r->rec.flags = (q->rec.flags & WEFTI_REPLICA_CHECKSUMS) | WEFTI_REPLICA_REFILLING;
    b->replica = r;
    reply(b, to, WEFT_OK, WEFT_RMA_ALL);
}

/* A stamp of ours that leaves something of the lease. */
static bool fresh(const store_held_t *b, uint64_t stamp, uint64_t lease_ns)
{
    uint64_t now = weft_now(b->server->ss->rt);
    return stamp <= now && now - stamp < lease_ns;
}

/* WEFT_OK: the reply comes when no access with an old key is under way any more. */
static weft_status_t on_set(store_held_t *b, const store_asker_t *to, const store_request_t *q)
{
    store_replica_t *r = b->replica;
    bool refilling = q->rec.flags & WEFTI_REPLICA_REFILLING;
    if (r->rec.epoch != q->epoch || r->rec.origin != q->rec.origin) /* each mirror counts its epochs from 1 on */
        return WEFT_ERR_STALE;
    if (q->rec.epoch <= q->epoch)
        return WEFT_ERR_INVALID;
    if (!refilling && !fresh(b, q->stamp, q->rec.lease_ns))
        return WEFT_ERR_AGAIN;
    setting_t *w = setting_new(b, to, WEFT_RMA_ALL);
    if (!w)
        return WEFT_ERR_LIMIT;
    r->rec = q->rec;
    r->rec.flags &= WEFTI_REPLICA_CHECKSUMS | WEFTI_REPLICA_REFILLING;
    serve_until(r, refilling ? 0 : q->stamp + q->rec.lease_ns);
    revoke(b, w);
    return WEFT_OK;
}

static bool is_writer(const store_replica_t *r, const store_request_t *q)
{
    return r->rec.epoch == q->epoch && !memcmp(r->rec.writer, q->writer, sizeof q->writer);
}

static weft_status_t on_renew(store_held_t *b, const store_request_t *q)
{
    store_replica_t *r = b->replica;
    if (!is_writer(r, q) || r->rec.flags & WEFTI_REPLICA_LAPSED)
        return WEFT_ERR_STALE;
    if (r->rec.flags & WEFTI_REPLICA_SEALED)
        return WEFT_ERR_STATE;
    if (leased(r) && !fresh(b, q->stamp, r->rec.lease_ns))
        return WEFT_ERR_AGAIN;
    if (leased(r) && q->stamp + r->rec.lease_ns > r->until)
        serve_until(r, q->stamp + r->rec.lease_ns);
    return WEFT_OK;
}

/* WEFT_OK: as of on_set() */
static weft_status_t on_seal(store_held_t *b, const store_asker_t *to, const store_request_t *q)
{
    store_replica_t *r = b->replica;
    if (!is_writer(r, q) || r->rec.flags & WEFTI_REPLICA_LAPSED)
        return WEFT_ERR_STALE;
    if (!leased(r))
        return WEFT_ERR_STATE;
    setting_t *w = setting_new(b, to, 0);
    if (!w)
        return WEFT_ERR_LIMIT;
    r->rec.flags |= WEFTI_REPLICA_SEALED;
    serve_until(r, 0);
    revoke(b, w);
    return WEFT_OK;
}

void wefti_store_replica_request(weft_store_server_t *s, store_client_t *c, const store_asker_t *to, const store_request_t *q)
{
    uint32_t rights = 0;
    weft_status_t st = WEFT_OK;
    if (q->kind == STORE_R_MAKE) {
        on_make(s, c, to, q);
        return;
    }
    store_held_t *b = wefti_store_names_find(&s->names, q->name, q->name_len);
    if (!b || !b->replica) {
        refuse(s, to, b ? WEFT_ERR_STATE : WEFT_ERR_NOTFOUND);
        return;
    }
    look(b->replica);
    switch (q->kind) {
    case STORE_R_GET:
        rights = b->replica->rec.flags & (WEFTI_REPLICA_REFILLING | WEFTI_REPLICA_LAPSED) ? 0 : WEFT_RMA_READ;
        break;
    case STORE_R_RENEW:
        st = on_renew(b, q);
        break;
    case STORE_R_UNMAKE:
        if (is_writer(b->replica, q))
            wefti_store_block_free(b, to);
        else
            refuse(s, to, WEFT_ERR_STALE);
        return;
    default:
        st = q->kind == STORE_R_SET ? on_set(b, to, q) : on_seal(b, to, q);
        if (!st)
            return;
    }
    if (st == WEFT_ERR_INVALID || st == WEFT_ERR_LIMIT)
        refuse(s, to, st);
    else
        reply(b, to, st, rights);
}
