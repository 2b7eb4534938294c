/* fabric/cursor.h - a place in a list of pieces of memory, from which bytes are taken or to which they are copied. */
#ifndef WEFTI_CURSOR_H
#define WEFTI_CURSOR_H

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <weft/op.h> /* weft_iov_t */

typedef struct wefti_cursor {
    const weft_iov_t *iov;
    size_t at, skip; /* skip bytes of iov[at] are done */
} wefti_cursor_t;

/* The bytes that follow in one piece, at most n, of which *at_out is the first; the cursor moves behind them. n bytes must be
 * left. */
static inline size_t wefti_cursor_next(wefti_cursor_t *c, size_t n, uint8_t **at_out)
{
    while (c->skip == c->iov[c->at].len) {
        c->at++;
        c->skip = 0;
    }
    size_t left = c->iov[c->at].len - c->skip, here = n < left ? n : left;
    *at_out = (uint8_t *)c->iov[c->at].base + c->skip;
    c->skip += here;
    return here;
}

static inline void wefti_cursor_advance(wefti_cursor_t *c, size_t n)
{
    uint8_t *at;
    while (n)
        n -= wefti_cursor_next(c, n, &at);
}

/* Copy n bytes to where the cursor is. */
static inline void wefti_cursor_scatter(wefti_cursor_t *to, const uint8_t *bytes, size_t n)
{
    for (uint8_t *at; n;) {
        size_t here = wefti_cursor_next(to, n, &at);
        memcpy(at, bytes, here);
        bytes += here;
        n -= here;
    }
}

/* Copy n bytes from where the cursor is. */
static inline void wefti_cursor_gather(wefti_cursor_t *from, uint8_t *bytes, size_t n)
{
    for (uint8_t *at; n;) {
        size_t here = wefti_cursor_next(from, n, &at);
        memcpy(bytes, at, here);
        bytes += here;
        n -= here;
    }
}

/* Append the pieces that follow, of at most `most` bytes, to v[*n..cap); how many bytes they have. The cursor stays. */
static inline uint64_t wefti_cursor_pieces(wefti_cursor_t c, uint64_t most, struct iovec *v, unsigned cap, unsigned *n)
{
    uint64_t sum = 0;
    for (uint8_t *at; sum < most && *n < cap; ++*n) {
        size_t here = wefti_cursor_next(&c, most - sum, &at);
        v[*n] = (struct iovec){at, here};
        sum += here;
    }
    return sum;
}

#endif
