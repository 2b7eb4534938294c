/* rma/whole.c - requests of peers to memory that the drivers of several shards touch at the same time.
 *
 * An access of at most WEFT_RMA_WHOLE bytes on the checked path is applied whole, and no other sees the middle of it. One driver
 * keeps that by itself. Where there are several, each takes the lock of the memory while it touches it. The locks are the
 * runtime's, for regions may overlap: each is for the addresses that are equal, divided by STRIPE, up to a multiple of STRIPES.
 * A short access has two of them at most. They are held for one copy: no function of the program runs, and nothing is sent.
 *
 * Atomics are real ones, since mapped peers and this process make them too; they take the lock so that no write is seen half.
 *
 * Promise: two short checked accesses to the same bytes take effect one after the other. tests/wire/rma_shards.c. */
#include "rma/mapped.h"
#include "rma/serve.h"

enum { STRIPES = 256, STRIPE = 8192 };
_Static_assert(STRIPE >= WEFT_RMA_WHOLE, "a short access has two locks at most");

struct rma_stripes {
    struct {
        _Alignas(64) pthread_mutex_t lock;
    } at[STRIPES];
};

weft_status_t wefti_rma_stripes(rma_state_t *rs)
{
    if (rs->stripes)
        return WEFT_OK;
    rs->stripes = (rma_stripes_t *)wefti_aligned_alloc(64, sizeof *rs->stripes);
    if (!rs->stripes)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the locks of regions that several shards serve");
    for (int i = 0; i < STRIPES; i++)
        pthread_mutex_init(&rs->stripes->at[i].lock, NULL);
    return WEFT_OK;
}

void wefti_rma_stripes_free(rma_stripes_t *s)
{
    for (int i = 0; s && i < STRIPES; i++)
        pthread_mutex_destroy(&s->at[i].lock);
    wefti_free(s);
}

typedef struct held {
    pthread_mutex_t *first, *second; /* in this order; second NULL: one is enough */
} held_t;

static held_t hold(rma_stripes_t *s, const uint8_t *at, uint64_t len)
{
    uintptr_t a = (uintptr_t)at / STRIPE % STRIPES, b = ((uintptr_t)at + len - 1) / STRIPE % STRIPES;
    held_t h = {&s->at[a < b ? a : b].lock, a == b ? NULL : &s->at[a < b ? b : a].lock};
    pthread_mutex_lock(h.first);
    if (h.second)
        pthread_mutex_lock(h.second);
    return h;
}

static void let_go(const held_t *h)
{
    if (h->second)
        pthread_mutex_unlock(h->second);
    pthread_mutex_unlock(h->first);
}

static void on_read(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, const uint8_t *at)
{
    const rma_request_t *req = &todo->rec.req;
    weft_region_t *region = grant->region;
    uint8_t copy[WEFT_RMA_WHOLE];
    held_t h = hold(region->stripes, at, req->len);
    weft_status_t st = wefti_mem_move(region->device, copy, at, req->len);
    let_go(&h);
    rma_count_read(&region->count, req->len);
    if (st)
        wefti_rma_reply_status(ep, req->id, st);
    else
        wefti_rma_reply_data(ep, req->id, NULL, copy, req->len);
}

static void on_write(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes)
{
    const rma_request_t *req = &todo->rec.req;
    weft_region_t *region = grant->region;
    held_t h = hold(region->stripes, at, req->len);
    weft_status_t st = wefti_mem_move(region->device, at, wefti_wild_bare(bytes), req->len);
    let_go(&h);
    if (!st)
        st = wefti_rma_written(ep, todo, grant);
    wefti_rma_reply_status(ep, req->id, st);
}

static void on_atomic(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at)
{
    const rma_atomic_t *rec = &todo->rec;
    uint64_t before = 0;
    held_t h = hold(grant->region->stripes, at, rec->req.width);
    weft_status_t st = wefti_rma_atomic_here(grant->region, at, rec, &before);
    let_go(&h);
    wefti_rma_atomic_done(ep, rec, grant->region, st, before);
}

bool wefti_rma_apart(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes)
{
    const rma_request_t *req = &todo->rec.req;
    if (grant->region->by_turns)
        return wefti_rma_turn(ep, todo, grant, at, bytes);
    if (!req->len || req->len > WEFT_RMA_WHOLE)
        return false;
    if (req->kind == REC_READ && wefti_rma_is_short(ep, req->len))
        on_read(ep, todo, grant, at);
    else if (req->kind == REC_WRITE)
        on_write(ep, todo, grant, at, bytes);
    else if (req->kind == REC_ATOMIC)
        on_atomic(ep, todo, grant, at);
    else
        return false;
    return true;
}
