/* conn/pieces.h - the payload of a send: one buffer or several, borrowed or owned, in whatever memory; part of the door
 * conn/conn.h. */
#ifndef WEFTI_PIECES_H
#define WEFTI_PIECES_H

#include "conn/payload.h"
#include "mem/mem.h"

typedef struct wefti_pieces {
    weft_iov_t one;                /* a single buffer is one piece */
    const weft_iov_t *iov;         /* NULL: one */
    uint32_t n;
    const weft_mem_kind_t *device; /* of all pieces; NULL: memcpy can handle them */
    weft_release_fn release;       /* owned: called for each when the send ends */
    void *release_user;
} wefti_pieces_t;

/* Check what a program says of pieces: not NULL with a length, few enough, all of one sort of memory. `what` ("a send") begins
 * the sentence if not: WEFT_ERR_INVALID. empty: there may be none. */
weft_status_t wefti_pieces_check(const char *what, bool empty, const weft_iov_t *iov, size_t n, const weft_mem_kind_t *kind,
                                 uint64_t *total_out, const weft_mem_kind_t **device_out);

/* iov NULL: the one buffer. */
static inline void wefti_pieces_set(wefti_pieces_t *p, const void *buf, size_t len, const weft_iov_t *iov, size_t n,
                                    const weft_mem_kind_t *device)
{
    p->one = (weft_iov_t){(void *)(uintptr_t)buf, len};
    p->iov = iov;
    p->n = iov ? (uint32_t)n : 1;
    p->device = device;
    p->release = NULL;
    p->release_user = NULL;
}

static inline const weft_iov_t *wefti_pieces_iov(const wefti_pieces_t *p) { return p->iov ? p->iov : &p->one; }
/* Copy all of it to host memory. Fails as the device's copies do. */
weft_status_t wefti_pieces_gather(const wefti_pieces_t *p, uint8_t *to);
/* The other way: copy `len` bytes to pieces, which have space for them. */
weft_status_t wefti_iov_scatter(const weft_iov_t *iov, const weft_mem_kind_t *device, const uint8_t *bytes, uint64_t len);
/* The send ends: call release, if there is one. The pieces may be gone afterwards, and their array with them. */
void wefti_pieces_release(const wefti_pieces_t *p);
/* Let a payload that is to be announced be these, `total` bytes in all. */
static inline void wefti_out_set(wefti_out_t *out, weft_ep_t *ep, const wefti_pieces_t *p, uint64_t total)
{
    out->ep = ep;
    out->iov = wefti_pieces_iov(p);
    out->iov_n = p->n;
    out->total = total;
    out->device = p->device;
}

#endif
