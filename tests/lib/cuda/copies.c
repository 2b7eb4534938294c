/* tests/lib/cuda/copies.c - copies and fills made of paper: what is checked when they are given, and what they do.
 *
 * Bytes of a device are encoded, those of the host and of managed memory are not. A copy finds its memory again when it is done:
 * what was unmapped or freed meanwhile makes it fail. */
#include <string.h>

#include "parts.h"

enum { HOST = 1, DEVICE = 2, UNIFIED = 4, ENGINE = 64 << 10 };

/* One side of a copy in two dimensions, as CUDA lays it out. */
typedef struct side {
    size_t x, y;
    int type;
    void *host;
    uintptr_t device;
    void *array;
    size_t pitch;
} side_t;

typedef struct copy2d {
    side_t src, dst;
    size_t width, height;
} copy2d_t;

/* --- checking ------------------------------------------------------------------------------------------------------------- */

static size_t extent(size_t pitch, size_t width, size_t height)
{
    return width && height ? (height - 1) * pitch + width : 0;
}

/* Which memory is it? */
static int find_place(place_t *p, size_t width, size_t height)
{
    const block_t *b = pp_block(p->at);
    size_t n = extent(p->pitch, width, height);
    p->block = b ? b->id : 0;
    if (!n)
        return OK;
    if (!b)
        return pp_space_has(p->at) ? INVALID_VALUE : OK;
    return b->freeing || !pp_covered(p->at, n) || (b->sort == MAPPED && !b->access) ? INVALID_VALUE : OK;
}

/* One of the two must belong to the context that copies. */
static bool belongs(const op_t *op)
{
    const block_t *to = op->dst.block ? pp_block(op->dst.at) : NULL, *from = op->src.block ? pp_block(op->src.at) : NULL;
    return (!to && !from) || (to && pp_fits(to)) || (from && pp_fits(from));
}

static int check(op_t *op)
{
    int r = find_place(&op->dst, op->width, op->height), r2 = find_place(&op->src, op->width, op->height);
    if (!belongs(op))
        return INVALID_CONTEXT;
    return r ? r : r2;
}

static int post_copy(int r, op_t *op, void *handle)
{
    stream_t *s;
    if (!r)
        r = pp_stream_here(handle, &s);
    if (!r && paper.copy_fails)
        r = paper.copy_fails;
    if (!r)
        r = check(op);
    if (!r) {
        uint64_t kib = (op->width * op->height + 1023) / 1024;
        op->takes = (int64_t)(paper.copy_ns + kib * paper.copy_ns_per_kib);
        pp_post(s, op);
    }
    return r;
}

static op_t linear(uintptr_t dst, uintptr_t src, size_t n)
{
    return (op_t){.kind = COPY, .dst = {.at = (void *)dst}, .src = {.at = (void *)src}, .width = n, .height = 1};
}

/* --- the calls ------------------------------------------------------------------------------------------------------------ */

int cuMemcpyAsync(uintptr_t dst, uintptr_t src, size_t n, void *stream)
{
    op_t op = linear(dst, src, n);
    int r = pp_begin_in(__func__);
    return pp_end(post_copy(r, &op, stream));
}

static int place_of(const side_t *side, const copy2d_t *c, place_t *out)
{
    uintptr_t base = side->type == HOST ? (uintptr_t)side->host : side->device;
    size_t pitch = side->pitch ? side->pitch : side->x + c->width;
    *out = (place_t){.at = (void *)(base + side->y * pitch + side->x), .pitch = pitch};
    if (side->type != HOST && side->type != DEVICE && side->type != UNIFIED)
        return INVALID_VALUE;
    if (pitch > 0x7fffffff || side->x > pitch || c->width > pitch - side->x)
        return INVALID_VALUE;
    const block_t *b = pp_block(out->at);
    uint32_t key;
    if (side->type == HOST && pp_space_has(out->at) && !(b && b->sort == MANAGED))
        return INVALID_VALUE;
    if (side->type == DEVICE && !b && !pp_word((uintptr_t)out->at & ~(uintptr_t)3, &key))
        return INVALID_VALUE;
    return OK;
}

int cuMemcpy2DAsync_v2(const copy2d_t *c, void *stream)
{
    op_t op = {.kind = COPY, .flat = true};
    int r = pp_begin_in(__func__);
    if (!r && c->width && c->height) {
        r = place_of(&c->dst, c, &op.dst);
        if (!r)
            r = place_of(&c->src, c, &op.src);
        op.width = c->width;
        op.height = c->height;
    }
    return pp_end(post_copy(r, &op, stream));
}

/* A program's own, which is done when it returns. */
static int do_now(int r, op_t *op)
{
    stream_t *s;
    op->by_program = true;
    if (!r)
        r = pp_stream_here(NULL, &s);
    if (!r)
        r = check(op);
    if (!r) {
        paper.program_copies++;
        r = pp_wait_for(s, pp_post(s, op));
    }
    return pp_end(r);
}

int cuMemcpyDtoH_v2(void *dst, uintptr_t src, size_t n)
{
    op_t op = linear((uintptr_t)dst, src, n);
    int r = pp_begin_in(__func__);
    return do_now(r ? r : n && !pp_block((void *)src) ? INVALID_VALUE : OK, &op);
}

int cuMemcpyHtoD_v2(uintptr_t dst, const void *src, size_t n)
{
    op_t op = linear(dst, (uintptr_t)src, n);
    int r = pp_begin_in(__func__);
    return do_now(r ? r : n && !pp_block((void *)dst) ? INVALID_VALUE : OK, &op);
}

static op_t filling(uintptr_t dst, size_t n, int byte)
{
    return (op_t){.kind = FILL, .dst = {.at = (void *)dst}, .width = n, .height = 1, .value = (uint8_t)byte};
}

int cuMemsetD8_v2(uintptr_t dst, unsigned char byte, size_t n)
{
    op_t op = filling(dst, n, byte);
    int r = pp_begin_in(__func__);
    return do_now(r ? r : n && !pp_block((void *)dst) ? INVALID_VALUE : OK, &op);
}

int cuMemsetD8Async(uintptr_t dst, unsigned char byte, size_t n, void *stream)
{
    return paper_kernel(stream, dst, n, byte, 0);
}

int paper_kernel(void *stream, uintptr_t dst, size_t n, int byte, uint64_t delay_ns)
{
    op_t op = filling(dst, n, byte);
    stream_t *s;
    int r = pp_begin_in(__func__);
    if (!r)
        r = pp_stream_here(stream, &s);
    if (!r)
        r = n && !pp_block((void *)dst) ? INVALID_VALUE : check(&op);
    op.takes = (int64_t)delay_ns;
    if (!r)
        pp_post(s, &op);
    return pp_end(r);
}

/* --- doing it ------------------------------------------------------------------------------------------------------------- */

/* Where the bytes of a side are for this driver, and how they are encoded; NULL: it is memory no more. */
static uint8_t *bytes_of(const place_t *p, size_t n, uint8_t *key_out)
{
    const block_t *b = p->block ? pp_block(p->at) : NULL;
    *key_out = b && b->sort != MANAGED ? KEY : 0;
    if (!p->block)
        return p->at;
    return b && b->id == p->block && pp_covered(p->at, n) ? pp_view(p->at) : NULL;
}

static void copy_row(uint8_t *dst, const uint8_t *src, size_t n, uint8_t key)
{
    size_t i = 0;
    if (!key) {
        memmove(dst, src, n);
        return;
    }
    for (uint64_t word, keys = 0x0101010101010101u * key; n - i >= 8; i += 8) {
        memcpy(&word, src + i, 8);
        word ^= keys;
        memcpy(dst + i, &word, 8);
    }
    for (; i < n; i++)
        dst[i] = src[i] ^ key;
}

static void count(const op_t *op)
{
    uint64_t n = (uint64_t)op->width * op->height;
    bool to = op->dst.block, from = op->src.block;
    if (op->by_program)
        return;
    paper.copies++;
    if (op->flat || (to != from && n >= ENGINE))
        paper.copies_by_engine++;
    else
        paper.copies_by_kernel++;
    paper.bytes_d2d += to && from ? n : 0;
    paper.bytes_h2d += to && !from ? n : 0;
    paper.bytes_d2h += !to && from ? n : 0;
}

int pp_op_copy(const op_t *op)
{
    uint8_t to, from;
    int r = op->by_program ? OK : pp_fails("copy");
    if (r)
        return r;
    if (op->width && op->height) {
        uint8_t *dst = bytes_of(&op->dst, extent(op->dst.pitch, op->width, op->height), &to);
        const uint8_t *src = bytes_of(&op->src, extent(op->src.pitch, op->width, op->height), &from);
        if (!dst || !src)
            return ILLEGAL_ADDRESS;
        for (size_t y = 0; y < op->height; y++)
            copy_row(dst + y * op->dst.pitch, src + y * op->src.pitch, op->width, to ^ from);
    }
    count(op);
    return OK;
}

int pp_op_fill(const op_t *op)
{
    uint8_t key;
    uint8_t *dst = bytes_of(&op->dst, op->width, &key);
    if (!op->width)
        return OK;
    if (!dst)
        return ILLEGAL_ADDRESS;
    memset(dst, (uint8_t)op->value ^ key, op->width);
    return OK;
}
