/* store/block.c - a client's blocks: from the reply that names one to the remote that reaches it, and their end.
 *
 * A reply with a key does not end the request. The key is attached first; then the operation completes with a block that can be
 * read and written. If the operation was cancelled, or the key cannot be attached, the block is freed at the server.
 *
 * An extension gives the block a new reach: a remote and a key of the new length. Older ones stay until the block is dropped,
 * because others may use them. `reach` is read without a lock: it is only replaced by a longer one, and all of them live as long
 * as the block.
 *
 * tests/wire/store_basic.c, tests/sim/store_life.c. */
#include "store/state.h"

#define FIND_AGAIN 100 /* times: so often a block is not replaced between two messages */

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_block_t, handle);

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
    wefti_handle_free(&handles, block);
}

/* --- attaching  ------------------------------------------------------------------------------------------------------- */

static weft_block_t *block_new(weft_store_t *store, uint64_t id)
{
    weft_block_t *block = (weft_block_t *)wefti_handle_new(&handles);
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

/* It failed. */
static void fail(store_ask_t *a, weft_status_t status)
{
    if (a->kind == STORE_ALLOC)
        wefti_store_give_back(a->store, STORE_FREE, a->q.block);
    wefti_store_ask_end(a, status);
}

/* Between the answer and the attachment another block took the place of the one that was found: it has the name now. */
static bool may_ask_again(store_ask_t *a)
{
    return a->kind == STORE_FIND && a->op && wefti_store_ep(a->store) && a->again++ < FIND_AGAIN;
}

static void ask_again(store_ask_t *a)
{
    wefti_store_block_unref(a->block);
    a->block = NULL;
    wefti_free(a->reach);
    a->reach = NULL;
    wefti_store_ask_again(a);
}

static void attached(weft_op_t *op, void *user)
{
    store_ask_t *a = (store_ask_t *)user;
    weft_remote_t *remote = op->status ? NULL : (weft_remote_t *)op->buf;
    store_reach_t *r = a->reach;
    store_end(a->store->ss);
    a->state = ASK_NEW;
    if (op->status == WEFT_ERR_STALE && may_ask_again(a)) {
        ask_again(a);
        return;
    }
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
    a->reach = (store_reach_t *)wefti_calloc(1, sizeof *a->reach + p->key_len);
    if (!a->block || !a->reach) {
        fail(a, WEFT_ERR_NOMEM);
        return;
    }
    a->reach->len = p->len;
    a->reach->key_len = p->key_len;
    memcpy(a->reach->key, p->key, p->key_len);
    a->attach.fn = attached;
    a->attach.user = a;
    a->state = ASK_ATTACHING;
    store_begin(store->ss);
    weft_status_t st = weft_remote_attach(store->ep, a->reach->key, p->key_len, NULL, &a->attach);
    if (st) {
        store_end(store->ss);
        a->state = ASK_NEW;
        fail(a, st);
    }
}

/* --- calls  ----------------------------------------------------------------------------------------------------------- */

/* It is open, and stays as it is until leave(). */
static weft_status_t enter(const weft_block_t *block)
{
    if (!block)
        return weft_fail(WEFT_ERR_INVALID, "the block is NULL");
    return wefti_handle_enter(&((weft_block_t *)(uintptr_t)block)->handle)
               ? WEFT_OK
               : weft_fail(WEFT_ERR_CLOSED, "the block was freed or dropped");
}

static void leave(const weft_block_t *block)
{
    wefti_handle_leave(&((weft_block_t *)(uintptr_t)block)->handle);
}

/* A request about it. */
static weft_status_t ask_about(weft_block_t *block, const weft_op_t *op, uint8_t kind, const char *name, store_ask_t **ask_out)
{
    if (!op)
        return weft_fail(WEFT_ERR_INVALID, "the operation is NULL");
    weft_status_t st = enter(block);
    if (st)
        return st;
    store_ask_t *a = wefti_store_ask_new(block->store, kind, name);
    if (a) {
        a->q.block = block->id;
        atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
        a->block = block;
    } else {
        st = weft_fail(WEFT_ERR_NOMEM, "no memory for a request");
    }
    leave(block);
    *ask_out = a;
    return st;
}

weft_status_t weft_block_alloc(weft_store_t *store, const weft_block_opts_t *opts, weft_op_t *op)
{
    weft_block_opts_t o;
    store_ask_t *a;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_block_opts_t");
    if (!st && o.name)
        st = wefti_store_check_name(o.name, "a block");
    if (st)
        return st;
    if (o.max_len && o.max_len < o.len)
        return weft_fail(WEFT_ERR_INVALID, "a block has at most max_len bytes, not %llu", (unsigned long long)o.len);
    if (o.shared && !o.name)
        return weft_fail(WEFT_ERR_INVALID, "a shared block needs a name: nobody would find it any more");
    st = wefti_store_ask_for(store, op, STORE_ALLOC, o.name, &a);
    if (st)
        return st;
    a->q.len = o.len;
    a->q.max_len = o.max_len;
    a->q.flags = o.shared ? STORE_SHARED : 0;
    return wefti_store_ask_go(a, op);
}

weft_status_t weft_block_open(weft_store_t *store, const char *name, weft_op_t *op)
{
    return wefti_store_ask_name(store, STORE_FIND, name, "a block", op);
}

weft_remote_t *weft_block_remote(const weft_block_t *block)
{
    if (!block || enter(block))
        return NULL;
    weft_remote_t *remote = atomic_load(&block->reach)->remote;
    leave(block);
    return remote;
}

static weft_status_t key(const weft_block_t *block, void *buf, size_t *len)
{
    weft_status_t st = wefti_store_there(block->store);
    if (st)
        return st;
    const store_reach_t *r = atomic_load(&block->reach);
    size_t cap = *len;
    *len = r->key_len;
    if (cap < r->key_len)
        return weft_fail(WEFT_ERR_LIMIT, "the region key has %u bytes and there is room for %zu", r->key_len, cap);
    memcpy(buf, r->key, r->key_len);
    return WEFT_OK;
}

weft_status_t weft_block_key(const weft_block_t *block, void *buf, size_t *len)
{
    if (!block || !len || (!buf && *len))
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", !block ? "the block" : "where the region key goes");
    weft_status_t st = enter(block);
    if (st)
        return st;
    st = key(block, buf, len);
    leave(block);
    return st;
}

weft_status_t weft_block_extend(weft_block_t *block, uint64_t len, weft_op_t *op)
{
    store_ask_t *a;
    weft_status_t st = ask_about(block, op, STORE_EXTEND, NULL, &a);
    if (st)
        return st;
    a->q.len = len;
    return wefti_store_ask_go(a, op);
}

weft_status_t weft_block_share(weft_block_t *block, const char *name, bool replace, weft_op_t *op)
{
    store_ask_t *a;
    weft_status_t st = wefti_store_check_name(name, "a block");
    if (!st)
        st = ask_about(block, op, STORE_SHARE, name, &a);
    if (st)
        return st;
    a->q.flags = replace ? STORE_REPLACE : 0;
    return wefti_store_ask_go(a, op);
}

/* It is closed: the program's reference, when nobody inside takes another. */
static void let_go(weft_block_t *block)
{
    wefti_handle_quiet(&block->handle);
    wefti_store_block_unref(block);
}

weft_status_t weft_block_free(weft_block_t *block, weft_op_t *op)
{
    store_ask_t *a = NULL;
    weft_status_t st = enter(block);
    if (st)
        return st;
    bool first = wefti_handle_close(&block->handle);
    if (first && (a = wefti_store_ask_new(block->store, STORE_FREE, NULL)))
        a->q.block = block->id;
    leave(block);
    if (!first)
        return weft_fail(WEFT_ERR_CLOSED, "the block is being freed or dropped already");
    st = a ? wefti_store_ask_go(a, op) : weft_fail(WEFT_ERR_NOMEM, "no memory for a request");
    if (st)
        wefti_handle_reopen(&block->handle); /* nothing was started: undo */
    else
        let_go(block);
    return st;
}

void weft_block_drop(weft_block_t *block)
{
    if (block && wefti_handle_close(&block->handle))
        let_go(block);
}
