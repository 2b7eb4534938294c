/* mem/carry.c - carries: small pieces of page-locked memory through which short messages of devices pass.
 *
 * They are made in blocks of 64, when they are first needed, and stay until the runtime ends. Promise: a carry has one owner at a
 * time, and at most WEFTI_CARRIES_MAX are out. tests/unit/mem_carry.c. */
#include "base/alloc.h"
#include "mem/local.h"

#define PAGE 4096u
#define BLOCK 64u

struct wefti_carry_block {
    wefti_carry_t carry[BLOCK];
    uint8_t *mem;
    bool pinned;
};

static void more(wefti_carries_t *all)
{
    if (all->n == WEFTI_CARRIES_MAX / BLOCK)
        return;
    struct wefti_carry_block *b = wefti_calloc(1, sizeof *b);
    if (!b)
        return;
    b->mem = wefti_aligned_alloc(PAGE, (size_t)BLOCK * WEFTI_CARRY_MAX);
    if (!b->mem) {
        wefti_free(b);
        return;
    }
    b->pinned = wefti_cuda_pin(b->mem, (size_t)BLOCK * WEFTI_CARRY_MAX);
    for (unsigned i = 0; i < BLOCK; i++) {
        b->carry[i].iov.base = b->mem + (size_t)i * WEFTI_CARRY_MAX;
        wefti_list_push_back(&all->free, &b->carry[i].link);
    }
    all->block[all->n++] = b;
}

void wefti_carries_init(wefti_carries_t *all)
{
    wefti_list_init(&all->free);
}

void wefti_carries_close(wefti_carries_t *all)
{
    while (all->n) {
        struct wefti_carry_block *b = all->block[--all->n];
        if (b->pinned)
            wefti_cuda_unpin_free(b->mem, (size_t)BLOCK * WEFTI_CARRY_MAX);
        else
            wefti_free(b->mem);
        wefti_free(b);
    }
}

wefti_carry_t *wefti_carry_get(weft_runtime_t *rt, uint64_t len)
{
    wefti_carries_t *all = &wefti_mem_of(rt)->carries;
    if (!len || len > WEFTI_CARRY_MAX)
        return NULL;
    if (wefti_list_empty(&all->free))
        more(all);
    wefti_list_t *l = wefti_list_pop(&all->free);
    if (!l)
        return NULL;
    wefti_carry_t *c = wefti_container_of(l, wefti_carry_t, link);
    c->iov.len = len;
    return c;
}

void wefti_carry_put(weft_runtime_t *rt, wefti_carry_t *carry)
{
    wefti_list_push_front(&wefti_mem_of(rt)->carries.free, &carry->link); /* the next one finds it in the cache */
}

static void copy_done(wefti_copy_t *copy, weft_status_t status)
{
    wefti_carry_t *c = wefti_container_of(copy, wefti_carry_t, copy);
    c->done(c, status);
}

static weft_status_t start(weft_runtime_t *rt, wefti_carry_t *c, const weft_mem_kind_t *device, const weft_iov_t *iov, bool from)
{
    char *bytes = c->iov.base;
    weft_status_t st = wefti_copy_begin(rt, &c->copy);
    if (st)
        return st;
    c->copy.done = copy_done;
    for (size_t left = c->iov.len; left; iov++) {
        size_t n = iov->len < left ? iov->len : left;
        if (n)
            wefti_copy_add(rt, &c->copy, device, from ? bytes : iov->base, from ? iov->base : bytes, n,
                           from ? WEFTI_COPY_FROM : WEFTI_COPY_TO);
        bytes += n;
        left -= n;
    }
    wefti_copy_end(rt, &c->copy);
    return WEFT_OK;
}

weft_status_t wefti_carry_from(weft_runtime_t *rt, wefti_carry_t *carry, const weft_mem_kind_t *device, const weft_iov_t *iov)
{
    return start(rt, carry, device, iov, true);
}

weft_status_t wefti_carry_to(weft_runtime_t *rt, wefti_carry_t *carry, const weft_mem_kind_t *device, const weft_iov_t *iov)
{
    return start(rt, carry, device, iov, false);
}

bool wefti_carry_bytes(weft_runtime_t *rt, const void *bytes, uint64_t len, const weft_mem_kind_t *device, const weft_iov_t *iov,
                       void (*done)(wefti_carry_t *carry, weft_status_t status), void *user)
{
    wefti_carry_t *c = wefti_carry_get(rt, len);
    if (!c)
        return false;
    c->done = done;
    c->user = user;
    memcpy(c->iov.base, bytes, len);
    if (!wefti_carry_to(rt, c, device, iov))
        return true;
    wefti_carry_put(rt, c);
    return false;
}
