/* store/blocks.c - the blocks of a server: regions that may have an owner and a name, and a client that pays for them.
 *
 * A block exists from the request that makes it until it is freed. From then on nobody finds it and its keys are stale. It is
 * counted until its region has given the memory back, after the accesses that are under way.
 *
 * The client that makes a block pays for it from its quota; a client that extends it pays for all of it from then on. When a
 * client ends, its own blocks are freed, and nobody pays for those that it shared.
 *
 * Memory is counted in pages of `len`. What a block can still grow to costs only address space. When that becomes scarce, a
 * client that did not say how much it wants gets less.
 *
 * tests/sim/store_life.c compares the counts with the blocks. tests/wire/store_basic.c. */
#include "store/state.h"

#define ADDRESS_ALL (UINT64_C(1) << 44) /* bytes of address space for all blocks: an eighth of what a process has */
#define ADDRESS_ONE (UINT64_C(64) << 30)

/* A region has at least one byte, and so has that of an empty block. */
static uint64_t bytes_of(uint64_t len)
{
    return len ? len : 1;
}

static uint64_t pages(uint64_t len)
{
    return (bytes_of(len) + STORE_PAGE - 1) & ~(STORE_PAGE - 1);
}

/* --- who pays  -------------------------------------------------------------------------------------------------------- */

/* What is being freed counts until its memory is back; `sign` 1: it begins to be, -1: it is no longer. */
static void count_back(store_client_t *c, const store_held_t *b, int sign)
{
    c->back_bytes += sign > 0 ? b->charge : -b->charge;
    c->back_blocks += (uint32_t)sign;
}

static void pay(store_held_t *b, store_client_t *c)
{
    b->payer = c;
    c->bytes += b->charge;
    c->n_blocks++;
    wefti_list_push_back(&c->paid, &b->paid_link);
}

void wefti_store_block_unpaid(store_held_t *b)
{
    store_client_t *c = b->payer;
    if (!c)
        return;
    b->payer = NULL;
    c->bytes -= b->charge;
    c->n_blocks--;
    if (b->freeing)
        count_back(c, b, -1);
    wefti_list_remove(&b->paid_link);
}

/* --- making  ---------------------------------------------------------------------------------------------------------- */

/* How far it may be extended: what was asked for, or a default. 0: that is impossible. */
static uint64_t how_far(const weft_store_server_t *s, uint64_t len, uint64_t wanted)
{
    uint64_t left = ADDRESS_ALL - s->reserved, most = pages(s->opts.bytes);
    if (most > ADDRESS_ONE)
        most = ADDRESS_ONE;
    if (pages(len) > left)
        return 0;
    if (wanted)
        return wanted <= most && pages(wanted) <= left ? wanted : 0;
    if (most > left / 64)
        most = left / 64 & ~(STORE_PAGE - 1);
    return most > len ? most : len;
}

static weft_status_t region_new(weft_store_server_t *s, store_held_t *b, bool unmapped, bool may_shrink)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = bytes_of(b->len);
    o.max_len = b->max_len;
    o.unmapped = unmapped || s->opts.unmapped || s->n_mapped >= s->max_mapped;
    weft_status_t st = weft_region_new(s->ss->rt, &o, &b->region);
    if (st == WEFT_ERR_LIMIT && !o.unmapped) { /* there are no more file descriptors */
        o.unmapped = true;
        st = weft_region_new(s->ss->rt, &o, &b->region);
    }
    if (st && may_shrink && o.max_len > o.len) { /* address space may be limited */
        o.max_len = o.len;
        st = weft_region_new(s->ss->rt, &o, &b->region);
    }
    b->max_len = o.max_len;
    b->mapped = !o.unmapped;
    return st;
}

/* What a request adds to what is there. */
typedef struct asked {
    uint64_t bytes, mine;   /* the server's, and of those that its client pays for */
    uint32_t blocks, owned; /* likewise */
} asked_t;

static asked_t asked_to_make(uint64_t len)
{
    return (asked_t){len <= ADDRESS_ONE ? pages(len) : UINT64_MAX, len <= ADDRESS_ONE ? pages(len) : UINT64_MAX, 1, 1};
}

static asked_t asked_to_extend(const store_held_t *b, const store_client_t *c, uint64_t len)
{
    uint64_t more = pages(len) - b->charge;
    return b->payer == c ? (asked_t){more, more, 0, 0} : (asked_t){more, pages(len), 0, 1};
}

static bool fits(uint64_t more, uint64_t used, uint64_t most)
{
    return used <= most && more <= most - used;
}

/* later: what is being freed is gone */
static bool fits_all(const weft_store_server_t *s, const store_client_t *c, asked_t a, bool later)
{
    const weft_store_server_opts_t *o = &s->opts;
    return fits(a.bytes, s->stats.used_bytes - (later ? s->back_bytes : 0), o->bytes) &&
           fits(a.mine, c->bytes - (later ? c->back_bytes : 0), o->client_bytes) &&
           fits(a.blocks, s->blocks.taken + (later ? 0 : s->n_freeing), o->blocks) &&
           fits(a.owned, c->n_blocks - (later ? c->back_blocks : 0), o->client_blocks);
}

bool wefti_store_block_fits_later(const weft_store_server_t *s, const store_client_t *c, const store_request_t *q)
{
    bool make = q->kind == STORE_ALLOC || q->kind == STORE_R_MAKE;
    const store_held_t *b = q->kind == STORE_EXTEND ? (const store_held_t *)wefti_slots_get(&s->blocks, q->block) : NULL;
    if (!make && (!b || q->len < b->len || q->len > b->max_len))
        return false;
    asked_t asked = make ? asked_to_make(q->len) : asked_to_extend(b, c, q->len);
    return !fits_all(s, c, asked, false) && fits_all(s, c, asked, true);
}

static weft_status_t check(const weft_store_server_t *s, const store_client_t *c, const store_request_t *q, bool shared)
{
    if ((q->name_len && !wefti_store_name_ok(q->name, q->name_len)) || (shared && !q->name_len) ||
        (q->max_len && q->max_len < q->len))
        return WEFT_ERR_INVALID;
    if (q->name_len && wefti_store_names_find(&s->names, q->name, q->name_len))
        return WEFT_ERR_STATE;
    return fits_all(s, c, asked_to_make(q->len), false) ? WEFT_OK : WEFT_ERR_LIMIT;
}

weft_status_t wefti_store_block_new(weft_store_server_t *s, store_client_t *c, const store_request_t *q, bool shared,
                                    bool unmapped, store_held_t **block_out)
{
    weft_status_t st = check(s, c, q, shared);
    if (st)
        return st;
    uint64_t max_len = how_far(s, q->len, q->max_len);
    if (!max_len)
        return WEFT_ERR_LIMIT;
    store_held_t *b = (store_held_t *)wefti_calloc(1, sizeof *b);
    if (!b)
        return WEFT_ERR_NOMEM;
    b->server = s;
    b->len = q->len;
    b->max_len = max_len;
    b->charge = pages(q->len);
    b->born = weft_now(s->ss->rt);
    b->who = wefti_store_who(c->ep);
    b->shared = shared;
    b->name_len = q->name_len;
    memcpy(b->name, q->name ? q->name : "", q->name_len);
    st = region_new(s, b, unmapped, !q->max_len);
    if (st)
        goto err_b;
    st = wefti_slots_add(&s->blocks, b, &b->id);
    if (st)
        goto err_region;
    st = b->name_len ? wefti_store_names_add(&s->names, b) : WEFT_OK;
    if (st)
        goto err_id;
    b->reserved = pages(b->max_len);
    s->reserved += b->reserved;
    s->n_mapped += b->mapped;
    s->stats.used_bytes += b->charge;
    s->stats.shared_blocks += b->shared;
    s->stats.allocs++;
    wefti_list_push_back(&s->block_list, &b->link);
    pay(b, c);
    *block_out = b;
    return WEFT_OK;

err_id:
    wefti_slots_remove(&s->blocks, b->id);
err_region:
    weft_region_free(b->region, NULL);
err_b:
    wefti_free(b);
    return st == WEFT_ERR_NOMEM || st == WEFT_ERR_LIMIT ? WEFT_ERR_LIMIT
                                                        : st; /* the server has no memory: for the client that is a limit */
}

weft_status_t wefti_store_block_extend(store_held_t *b, store_client_t *c, uint64_t len)
{
    weft_store_server_t *s = b->server;
    if (len < b->len)
        return WEFT_ERR_RANGE;
    if (len > b->max_len)
        return WEFT_ERR_LIMIT;
    asked_t asked = asked_to_extend(b, c, len);
    if (!fits_all(s, c, asked, false))
        return WEFT_ERR_LIMIT;
    weft_status_t st = weft_region_extend(b->region, bytes_of(len));
    if (st)
        return st == WEFT_ERR_NOMEM ? WEFT_ERR_LIMIT : st;
    wefti_store_block_unpaid(b);
    b->len = len;
    b->charge = pages(len);
    pay(b, c);
    s->stats.used_bytes += asked.bytes;
    s->stats.extends++;
    return WEFT_OK;
}

weft_status_t wefti_store_block_tell(store_held_t *b, uint32_t rights, uint8_t *key, store_reply_t *reply)
{
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    size_t n = WEFT_REGION_KEY_MAX;
    o.rights = rights;
    /* an empty one has no byte that could be read or written, so that it is zero when it is extended */
    o.empty = !b->len;
    weft_status_t st = weft_region_key(b->region, &o, key, &n);
    if (st)
        return st;
    reply->block = b->id;
    reply->len = b->len;
    reply->max_len = b->max_len;
    reply->key = key;
    reply->key_len = (uint32_t)n;
    return WEFT_OK;
}

void wefti_store_block_count(const store_held_t *b, weft_store_stats_t *stats)
{
    weft_region_info_t info = WEFT_REGION_INFO_INIT;
    if (weft_region_get_info(b->region, &info))
        return;
    stats->reads += info.reads;
    stats->writes += info.writes;
    stats->atomics += info.atomics;
    stats->bytes_read += info.bytes_read;
    stats->bytes_written += info.bytes_written;
}

/* --- freeing  --------------------------------------------------------------------------------------------------------- */

/* Nobody finds it any more. */
static void hide(store_held_t *b)
{
    weft_store_server_t *s = b->server;
    wefti_store_replica_free(b);
    wefti_slots_remove(&s->blocks, b->id);
    wefti_list_remove(&b->link);
    if (b->name_len)
        wefti_store_names_remove(&s->names, b);
    s->stats.shared_blocks -= b->shared;
    b->freeing = true;
    s->back_bytes += b->charge;
    if (b->payer)
        count_back(b->payer, b, 1);
}

/* And it is on no list any more. */
static void gone(store_held_t *b)
{
    weft_store_server_t *s = b->server;
    wefti_store_block_unpaid(b);
    s->stats.used_bytes -= b->charge;
    s->back_bytes -= b->charge;
    s->reserved -= b->reserved;
    s->n_mapped -= b->mapped;
    wefti_free(b);
}

static void freed(weft_op_t *op, void *user)
{
    store_held_t *b = (store_held_t *)user;
    weft_store_server_t *s = b->server;
    store_state_t *ss = s->ss;
    store_reply_t reply = {.id = b->asker.id, .kind = b->asker.kind, .flags = STORE_BODY};
    weft_ep_id_t to = b->asker.ep;
    (void)op; /* whatever the status, the region is gone */
    store_end(ss);
    pthread_mutex_lock(&ss->lock);
    s->n_freeing--;
    gone(b);
    if (to)
        wefti_store_reply(ss, to, &reply);
    wefti_store_later_again(s);
    wefti_store_server_settle(s);
    pthread_mutex_unlock(&ss->lock);
}

void wefti_store_block_free(store_held_t *b, const store_asker_t *asker)
{
    weft_store_server_t *s = b->server;
    wefti_store_block_count(b, &s->stats);
    hide(b);
    s->stats.frees++;
    if (asker)
        b->asker = *asker;
    b->free_op.fn = freed;
    b->free_op.user = b;
    s->n_freeing++;
    store_begin(s->ss);
    weft_status_t st = weft_region_free(b->region, &b->free_op);
    if (st) { /* the runtime closes: the region goes with it, and so does whoever asked */
        store_end(s->ss);
        s->n_freeing--;
        gone(b);
    }
}

/* --- sharing  --------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_store_block_share(store_held_t *b, const store_client_t *c, const store_request_t *q)
{
    weft_store_server_t *s = b->server;
    store_held_t *old = wefti_store_names_find(&s->names, q->name, q->name_len);
    if (!wefti_store_name_ok(q->name, q->name_len))
        return WEFT_ERR_INVALID;
    if (b->shared || b->payer != c)
        return WEFT_ERR_STATE;
    if (old && old != b && (!(q->flags & STORE_REPLACE) || old->replica || !(old->shared || old->payer == c)))
        return WEFT_ERR_STATE;
    if (old != b) {
        size_t n = s->names.n + 1 - (old != NULL) - (b->name_len != 0);
        if (!wefti_grow(&s->names.at, &s->names.cap, n, sizeof(store_held_t *)))
            return WEFT_ERR_NOMEM;
        if (old)
            wefti_store_names_remove(&s->names, old);
        if (b->name_len)
            wefti_store_names_remove(&s->names, b);
        memcpy(b->name, q->name, q->name_len);
        b->name_len = q->name_len;
        (void)wefti_store_names_add(&s->names, b); /* the name is free, and there is space for it */
    }
    b->shared = true;
    s->stats.shared_blocks++;
    if (old && old != b)
        wefti_store_block_free(old, NULL);
    return WEFT_OK;
}

void wefti_store_block_forget(store_held_t *b)
{
    hide(b);
    gone(b);
}
