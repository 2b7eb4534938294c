/* tools/mem/flow.c - a window of transfers, so that the link is never idle while a file is read or written.
 *
 * A ring of slots. A free slot is filled and posted; the oldest one is waited for. They end in the order they began, so that
 * a pipe gets its bytes in order. A failure ends all: mem_flow_free() cancels the rest and waits for them, and only then
 * frees the buffers. tests/tools/tools_mem.py checks it. */
#include <string.h>

#include "mem.h"

bool mem_flow_init(mem_flow_t *f, mem_link_t *l)
{
    weft_status_t st = WEFT_OK;
    memset(f, 0, sizeof *f);
    f->link = l;
    /* from a pool, so that a server on this machine that moves the bytes itself can map them */
    if (!l->pool)
        st = weft_pool_new(l->rt, NULL, &l->pool);
    for (unsigned i = 0; i < MEM_WINDOW && !st; i++) {
        void *buf;
        st = weft_pool_get(l->pool, MEM_CHUNK, &buf);
        if (!st)
            f->slots[i].buf = buf;
    }
    if (st) {
        tool_error_status(st, "no memory for %d buffers of %zu bytes", MEM_WINDOW, MEM_CHUNK);
        mem_flow_free(f);
    }
    return !st;
}

void mem_flow_free(mem_flow_t *f)
{
    for (uint64_t i = f->ended; i < f->began; i++)
        weft_op_cancel(&f->slots[i % MEM_WINDOW].op);
    for (uint64_t i = f->ended; i < f->began; i++)
        tool_wait_through(&f->slots[i % MEM_WINDOW].op);
    f->ended = f->began;
    for (unsigned i = 0; i < MEM_WINDOW; i++) {
        if (f->slots[i].buf)
            weft_pool_put(f->link->pool, f->slots[i].buf);
        f->slots[i].buf = NULL;
    }
}

mem_slot_t *mem_flow_free_slot(mem_flow_t *f)
{
    return f->began - f->ended < MEM_WINDOW ? &f->slots[f->began % MEM_WINDOW] : NULL;
}

static mem_slot_t *begin(mem_flow_t *f, uint64_t offset, size_t len)
{
    mem_slot_t *s = &f->slots[f->began % MEM_WINDOW];
    s->offset = offset;
    s->len = len;
    return s;
}

weft_status_t mem_flow_write(mem_flow_t *f, uint64_t offset, size_t len)
{
    mem_slot_t *s = begin(f, offset, len);
    weft_status_t st = f->mirror ? weft_mirror_write(f->mirror, offset, s->buf, len, &s->op)
                                 : weft_rma_write(f->remote, offset, s->buf, len, &s->op);
    f->began += !st;
    return st;
}

weft_status_t mem_flow_read(mem_flow_t *f, uint64_t offset, size_t len)
{
    mem_slot_t *s = begin(f, offset, len);
    weft_status_t st = f->mirror ? weft_mirror_read(f->mirror, offset, s->buf, len, &s->op)
                                 : weft_rma_read(f->remote, offset, s->buf, len, &s->op);
    f->began += !st;
    return st;
}

weft_status_t mem_flow_next(mem_flow_t *f, mem_slot_t **slot_out)
{
    mem_slot_t *s = &f->slots[f->ended % MEM_WINDOW];
    weft_status_t st;
    *slot_out = NULL;
    if (f->ended == f->began)
        return WEFT_OK;
    st = tool_wait(&s->op);
    f->ended++;
    if (!st)
        *slot_out = s;
    return st;
}

weft_status_t mem_mirror_open(mem_link_t *l, const char *name, uint64_t len, bool write, weft_mirror_t **mirror_out)
{
    weft_mirror_opts_t mo = WEFT_MIRROR_OPTS_INIT;
    weft_store_t *stores[WEFT_MIRROR_MAX];
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    for (unsigned i = 0; i < l->n_servers; i++)
        stores[i] = l->servers[i].store;
    mo.name = name;
    mo.stores = stores;
    mo.n_stores = l->n_servers;
    mo.len = len;
    mo.write = write;
    mo.checksums = l->opts->checksums;
    op.timeout_ns = l->opts->timeout_ns;
    st = tool_do_through(weft_mirror_open(l->rt, &mo, &op), &op);
    if (!st)
        *mirror_out = weft_op_mirror(&op);
    return st;
}
