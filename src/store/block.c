/* store/block.c - a client's blocks: from the reply that tells of one to the remote that reaches it, and their end.
 *
 * A reply with a token is not the end of a request: the token is attached first, and then the operation completes with a block that can be
 * read and written. A block that was allocated for nobody (its operation was cancelled, or it could not be attached) is freed at the
 * server.
 *
 * After an extension the block has a new reach: a remote and a token of the new length. The ones from before stay until the block is dropped, since
 * others may be using them; what the block says is always the longest. Readers of `reach` need no lock: it only ever moves on, and nothing of
 * it goes before the block does.
 *
 * tests/wire/store_basic.c, tests/sim/store_life.c. */
#include "store/state.h"

void wefti_store_block_unref(weft_block_t *block)
{
    if (atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (store_reach_t *r = atomic_load(&block->reach), *older; r; r = older) {
        older = r->older;
        weft_remote_drop(r->remote);
        wefti_free(r);
    }
    wefti_store_unref(block->store);
    wefti_free(block);
}

void wefti_store_block_undo(weft_store_t *store, uint64_t id)
{
    store_ask_t *a = wefti_store_ask_new(store, STORE_FREE, NULL);
    if (!a)
        return; /* it goes with the lease, if it is not shared */
    a->q.block = id;
    wefti_store_ask_send(a);
}

/* --- attaching ---------------------------------------------------------------------------------------------------------------- */

static weft_block_t *block_new(weft_store_t *store, uint64_t id)
{
    weft_block_t *block = (weft_block_t *)wefti_calloc(1, sizeof *block);
    if (!block)
        return NULL;
    atomic_init(&block->refs, 1);
    block->store = store;
    block->id = id;
    atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
    return block;
}

static void add_reach(weft_block_t *block, store_reach_t *r)
{
    store_reach_t *first = atomic_load(&block->reach);
    if (first && first->len > r->len) { /* extensions may be attached in another order than they were made */
        r->older = first->older;
        first->older = r;
        return;
    }
    r->older = first;
    atomic_store(&block->reach, r);
}

/* It came to nothing. */
static void fail(store_ask_t *a, weft_status_t status)
{
    if (a->kind == STORE_ALLOC)
        wefti_store_block_undo(a->store, a->q.block);
    wefti_store_ask_end(a, status);
}

static void attached(weft_op_t *op, void *user)
{
    store_ask_t *a = (store_ask_t *)user;
    weft_remote_t *remote = op->status ? NULL : (weft_remote_t *)op->buf;
    store_reach_t *r = a->reach;
    store_end(a->store->ss);
    a->state = ASK_NEW;
    if (op->status || !a->op) {
        weft_remote_drop(remote);
        fail(a, op->status);
        return;
    }
    r->remote = remote;
    a->reach = NULL;
    add_reach(a->block, r);
    a->op->len = r->len;
    a->op->from = a->store->ep_id;
    if (a->kind != STORE_EXTEND) {
        a->op->buf = a->block; /* the reference goes along */
        a->block = NULL;
    }
    wefti_store_ask_end(a, WEFT_OK);
}

void wefti_store_block_answer(store_ask_t *a, const store_reply_t *p)
{
    weft_store_t *store = a->store;
    if (p->status) {
        wefti_store_ask_end(a, p->status);
        return;
    }
    a->q.block = p->block;
    if (!a->op || !wefti_store_ep(store)) {
        fail(a, WEFT_ERR_CANCELLED);
        return;
    }
    if (!a->block)
        a->block = block_new(store, p->block);
    a->reach = (store_reach_t *)wefti_calloc(1, sizeof *a->reach + p->token_len);
    if (!a->block || !a->reach) {
        fail(a, WEFT_ERR_NOMEM);
        return;
    }
    a->reach->len = p->len;
    a->reach->token_len = p->token_len;
    memcpy(a->reach->token, p->token, p->token_len);
    a->attach.fn = attached;
    a->attach.user = a;
    a->state = ASK_ATTACHING;
    store_begin(store->ss);
    weft_status_t st = weft_remote_attach(store->ep, a->reach->token, p->token_len, NULL, &a->attach);
    if (st) {
        store_end(store->ss);
        a->state = ASK_NEW;
        fail(a, st);
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------------------- */

weft_status_t weft_block_alloc(weft_store_t *store, const weft_block_opts_t *opts, weft_op_t *op)
{
    weft_block_opts_t o;
    weft_status_t st = wefti_store_check(store, op);
    if (!st)
        st = wefti_opts_read(opts, &o, sizeof o, "weft_block_opts_t");
    if (!st && o.name)
        st = wefti_store_check_name(o.name, "a block");
    if (st)
        return st;
    if (o.max_len && o.max_len < o.len)
        return wefti_fail(WEFT_ERR_INVALID, "a block has at most max_len bytes, not %llu", (unsigned long long)o.len);
    if (o.shared && !o.name)
        return wefti_fail(WEFT_ERR_INVALID, "a shared block needs a name: nobody would find it any more");
    store_ask_t *a = wefti_store_ask_new(store, STORE_ALLOC, o.name);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a request");
    a->q.len = o.len;
    a->q.max_len = o.max_len;
    a->q.flags = o.shared ? STORE_SHARED : 0;
    return wefti_store_ask_go(a, op);
}

weft_status_t weft_block_open(weft_store_t *store, const char *name, weft_op_t *op)
{
    weft_status_t st = wefti_store_check(store, op);
    if (!st)
        st = wefti_store_check_name(name, "a block");
    if (st)
        return st;
    store_ask_t *a = wefti_store_ask_new(store, STORE_FIND, name);
    return a ? wefti_store_ask_go(a, op) : wefti_fail(WEFT_ERR_NOMEM, "no memory for a request");
}

weft_remote_t *weft_block_remote(const weft_block_t *block)
{
    return block ? atomic_load(&block->reach)->remote : NULL;
}

weft_status_t weft_block_token(const weft_block_t *block, void *buf, size_t *len)
{
    if (!block || !len || (!buf && *len))
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !block ? "the block" : "where the token goes");
    const store_reach_t *r = atomic_load(&block->reach);
    size_t room = *len;
    *len = r->token_len;
    if (room < r->token_len)
        return wefti_fail(WEFT_ERR_LIMIT, "the token has %u bytes and there is room for %zu", r->token_len, room);
    memcpy(buf, r->token, r->token_len);
    return WEFT_OK;
}

weft_status_t weft_block_extend(weft_block_t *block, uint64_t len, weft_op_t *op)
{
    weft_status_t st = wefti_store_check(block ? block->store : NULL, op);
    if (st)
        return st;
    store_ask_t *a = wefti_store_ask_new(block->store, STORE_EXTEND, NULL);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a request");
    atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
    a->block = block;
    a->q.block = block->id;
    a->q.len = len;
    return wefti_store_ask_go(a, op);
}

weft_status_t weft_block_share(weft_block_t *block, const char *name, bool replace, weft_op_t *op)
{
    weft_status_t st = wefti_store_check(block ? block->store : NULL, op);
    if (!st)
        st = wefti_store_check_name(name, "a block");
    if (st)
        return st;
    store_ask_t *a = wefti_store_ask_new(block->store, STORE_SHARE, name);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a request");
    a->q.block = block->id;
    a->q.flags = replace ? STORE_REPLACE : 0;
    return wefti_store_ask_go(a, op);
}

weft_status_t weft_block_free(weft_block_t *block, weft_op_t *op)
{
    if (!block)
        return wefti_fail(WEFT_ERR_INVALID, "the block is NULL");
    store_ask_t *a = wefti_store_ask_new(block->store, STORE_FREE, NULL);
    if (!a)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a request");
    a->q.block = block->id;
    weft_status_t st = wefti_store_ask_go(a, op);
    if (!st)
        wefti_store_block_unref(block);
    return st;
}

void weft_block_drop(weft_block_t *block)
{
    if (block)
        wefti_store_block_unref(block);
}
