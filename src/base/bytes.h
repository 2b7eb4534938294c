/* base/bytes.h - reading and writing little-endian bytes that came from outside, never past the end.
 *
 * A reader or writer that once ran over its end stays `bad`, returns zeroes and writes nothing: check once, at the end. */
#ifndef WEFTI_BYTES_H
#define WEFTI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct wefti_reader {
    const uint8_t *at, *end;
    bool bad;
} wefti_reader_t;

typedef struct wefti_writer {
    uint8_t *at, *end;
    bool bad;
} wefti_writer_t;

static inline wefti_reader_t wefti_reader(const void *p, size_t n)
{
    static const uint8_t nothing = 0;
    wefti_reader_t r = {&nothing, &nothing, false}; /* NULL with n 0 is allowed, and 0 bytes of it are not NULL */
    if (n) {
        r.at = (const uint8_t *)p;
        r.end = r.at + n;
    }
    return r;
}
static inline size_t wefti_reader_left(const wefti_reader_t *r) { return (size_t)(r->end - r->at); }
/* n bytes in place, or NULL. */
static inline const void *wefti_get_bytes(wefti_reader_t *r, size_t n)
{
    if (r->bad || wefti_reader_left(r) < n) {
        r->bad = true;
        return NULL;
    }
    const void *p = r->at;
    r->at += n;
    return p;
}
#define WEFTI_GET(name, type) \
    static inline type wefti_get_##name(wefti_reader_t *r) \
    { \
        type v = 0; \
        const void *p = wefti_get_bytes(r, sizeof v); \
        if (p) \
            memcpy(&v, p, sizeof v); \
        return v; \
    }
WEFTI_GET(u8, uint8_t)
WEFTI_GET(u16, uint16_t)
WEFTI_GET(u32, uint32_t)
WEFTI_GET(u64, uint64_t)
#undef WEFTI_GET

static inline wefti_writer_t wefti_writer(void *p, size_t n)
{
    wefti_writer_t w = {(uint8_t *)p, (uint8_t *)p + n, false};
    return w;
}
static inline void wefti_put_bytes(wefti_writer_t *w, const void *p, size_t n)
{
    if (w->bad || (size_t)(w->end - w->at) < n) {
        w->bad = true;
        return;
    }
    if (n)
        memcpy(w->at, p, n);
    w->at += n;
}
#define WEFTI_PUT(name, type) \
    static inline void wefti_put_##name(wefti_writer_t *w, type v) { wefti_put_bytes(w, &v, sizeof v); }
WEFTI_PUT(u8, uint8_t)
WEFTI_PUT(u16, uint16_t)
WEFTI_PUT(u32, uint32_t)
WEFTI_PUT(u64, uint64_t)
#undef WEFTI_PUT

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Weft's wire is little-endian; this needs byte swaps on a big-endian machine"
#endif

#endif
