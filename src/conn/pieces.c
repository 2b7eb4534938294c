/* conn/pieces.c - the payload of a send, as the rooms above check it, copy it and let go of it. */
#include "conn/conn.h"

#include "base/log.h"

/* The kind by its own name: what moves it may be the same for several. */
static const char *name_of(const void *ptr, const weft_mem_kind_t *said)
{
    return (said ? said : weft_mem_kind_of(ptr))->name;
}

weft_status_t wefti_pieces_check(const char *what, bool empty, const weft_iov_t *iov, size_t n, const weft_mem_kind_t *kind,
                                 uint64_t *total_out, const weft_mem_kind_t **device_out)
{
    const weft_mem_kind_t *device = NULL;
    const void *before = NULL;
    uint64_t total = 0;
    if ((!n && !empty) || n > UINT32_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "%s has either one buffer or 1 to 2^32 - 1 pieces, not %zu pieces", what, n);
    for (size_t i = 0; i < n; i++) {
        if (!iov[i].base && iov[i].len)
            return wefti_fail(WEFT_ERR_INVALID, "piece %zu is NULL with a length of %zu", i, iov[i].len);
        if (!iov[i].len)
            continue;
        const weft_mem_kind_t *of = wefti_mem_device_of(iov[i].base, kind);
        if (total && of != device)
            return wefti_fail(WEFT_ERR_INVALID, "piece %zu is of another kind of memory (%s) than those before it (%s)", i,
                              name_of(iov[i].base, kind), name_of(before, kind));
        device = of;
        before = iov[i].base;
        if (__builtin_add_overflow(total, iov[i].len, &total))
            return wefti_fail(WEFT_ERR_INVALID, "the lengths of the pieces up to %zu add up to more than there are addresses", i);
    }
    *total_out = total;
    *device_out = device;
    return WEFT_OK;
}

weft_status_t wefti_pieces_gather(const wefti_pieces_t *p, uint8_t *to)
{
    const weft_iov_t *iov = wefti_pieces_iov(p);
    for (uint32_t i = 0; i < p->n; i++) {
        weft_status_t st = iov[i].len ? wefti_mem_move(p->device, to, iov[i].base, iov[i].len) : WEFT_OK;
        if (st)
            return st;
        to += iov[i].len;
    }
    return WEFT_OK;
}

weft_status_t wefti_iov_scatter(const weft_iov_t *iov, const weft_mem_kind_t *device, const uint8_t *bytes, uint64_t len)
{
    for (; len; iov++) {
        uint64_t n = iov->len < len ? iov->len : len;
        weft_status_t st = n ? wefti_mem_move(device, iov->base, bytes, n) : WEFT_OK;
        if (st)
            return st;
        bytes += n;
        len -= n;
    }
    return WEFT_OK;
}

void wefti_pieces_release(const wefti_pieces_t *p)
{
    const weft_iov_t *iov = wefti_pieces_iov(p);
    weft_release_fn fn = p->release;
    void *user = p->release_user;
    /* The array may be freed by the release of its last piece. */
    for (uint32_t i = 0, n = fn ? p->n : 0; i < n; i++)
        fn(iov[i].base, user);
}
