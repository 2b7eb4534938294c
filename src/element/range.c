/* element/range.c - what is said of an access outside of a buffer or of an element's memory: the transport, what was to be
 * done, and all of the numbers.
 *
 * The same text for what is refused by the post and for what ends later, for one access and for an item of a batch.
 * tests/wire/element_range.c and tests/python/test_disagg_range.py hold us to it. */
#include <stdio.h>

#include "element/io.h"

enum { TEXT_MAX = 320 };

static const char *word(unsigned what)
{
    return what == IO_READ ? "a read" : what == IO_WRITE ? "a write" : "an atomic";
}

static void describe(char text[TEXT_MAX], const element_range_t *r, const char *whose, uint64_t len)
{
    char item[64] = "", offset[48] = "";
    if (r->n)
        snprintf(item, sizeof item, "item %zu of %zu, ", r->item, r->n);
    if (r->buffered)
        snprintf(offset, sizeof offset, " and offset %zu", r->offset);
    snprintf(text, TEXT_MAX, "%s%s of %zu bytes at addr %llu%s is outside of %s, which has %llu bytes", item, word(r->what),
             r->size, (unsigned long long)r->addr, offset, whose, (unsigned long long)len);
}

weft_status_t wefti_range_local(const weft_transport_t *t, const element_range_t *r)
{
    char text[TEXT_MAX];
    describe(text, r, "the registered buffer", t->buf->len);
    return weft_fail(WEFT_ERR_RANGE, "transport %s: %s", t->name, text);
}

weft_status_t wefti_range_remote(const weft_transport_t *t, const element_range_t *r, uint64_t len)
{
    char text[TEXT_MAX];
    describe(text, r, "the element's memory", len);
    return weft_fail(WEFT_ERR_RANGE, "transport %s: %s", t->name, text);
}

static void describe_durl(char text[TEXT_MAX], const weft_transport_t *t)
{
    if (t->durl.bytes > t->stats.len)
        snprintf(text, TEXT_MAX, "the element's memory has %llu bytes, and the durl says %llu", (unsigned long long)t->stats.len,
                 (unsigned long long)t->durl.bytes);
    else
        snprintf(text, TEXT_MAX, "the region's key in the durl is for bytes that the element's memory does not have");
}

weft_status_t wefti_range_durl(const weft_transport_t *t)
{
    char text[TEXT_MAX];
    describe_durl(text, t);
    return weft_fail(WEFT_ERR_RANGE, "transport %s: %s", t->name, text);
}

static bool outside(uint64_t addr, uint64_t size, uint64_t len)
{
    return addr > len || size > len - addr;
}

/* The first item that is wrong. */
static void find_item(const element_io_t *io, uint64_t len, element_range_t *r)
{
    for (size_t i = 0; i < io->n; i++) {
        const weft_transport_item_t *it = &io->items[i];
        if (!outside(it->addr, it->size, len) && it->status != WEFT_ERR_RANGE)
            continue;
        *r = (element_range_t){.what = it->what == WEFT_RMA_DO_READ ? IO_READ : IO_WRITE,
                               .size = it->size,
                               .addr = it->addr,
                               .offset = it->offset,
                               .buffered = !it->own,
                               .item = i,
                               .n = io->n};
        return;
    }
}

uint64_t wefti_range_sentence(const element_io_t *io)
{
    const weft_transport_t *t = io->t;
    element_range_t r = {.what = io->what, .size = io->size, .addr = io->addr, .offset = io->offset, .buffered = io->buf};
    uint64_t len = io->route ? io->route->len : t->stats.len;
    char text[TEXT_MAX];
    if (t->state == WEFT_TRANSPORT_FAILED) {
        describe_durl(text, t);
        return weft_ext_sentence(NULL, "%s: %s", t->name, text);
    }
    if (io->what == IO_BATCH)
        find_item(io, len, &r);
    else if (io->what == IO_ATOMIC)
        r.size = io->width;
    else if (io->what != IO_READ && io->what != IO_WRITE)
        return 0;
    describe(text, &r, "the element's memory", len);
    return weft_ext_sentence(NULL, "%s: %s", t->name, text);
}
