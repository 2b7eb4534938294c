/* rpc/codec.h - arguments and results as bytes, by signature.
 *
 * Small arguments are in the bytes. An argument whose data is `out_of_line` bytes or more is only described there; its data is a
 * piece of a payload. Encoding gives the pieces as an iov that points at the caller's memory. Decoding says how the payload is
 * cut, and takes the address of each piece afterwards. Only small arguments are copied. docs/design/wire.md has the layout.
 *
 * A tensor on a device that the processor cannot touch is a piece whatever its size. All pieces of a payload are in memory of one
 * device; if that is not the host, everything else stays in the bytes.
 *
 * Threads: a codec never changes after init; the rest belongs to its caller. */
#ifndef WEFTI_RPC_CODEC_H
#define WEFTI_RPC_CODEC_H

#include <string.h>
#include <weft/op.h>
#include <weft/types.h>

#define WEFTI_CODEC_PIECES 64 /* of one payload, at most */

typedef struct wefti_codec {
    uint32_t n;
    bool flat;    /* scalars, and strings and vectors of scalars: no tensors */
    bool fixed;   /* scalars only: each has its place, and there are always `len` bytes */
    bool tight;   /* fixed, without padding between them and without bools: nothing to check but the length */
    uint16_t len;
    uint8_t types[WEFT_SIG_PARAMS];
    uint16_t at[WEFT_SIG_PARAMS];  /* where each begins, if fixed */
    uint8_t size[WEFT_SIG_PARAMS]; /* of a scalar or an element; 0: tensors */
    uint8_t up[WEFT_SIG_PARAMS], down[WEFT_SIG_PARAMS]; /* if fixed: so many bits up, then down, it is at its place in a word */
} wefti_codec_t;

/* Which values of a function a codec is for: all arguments or results that are not streams, or one item of the stream. */
typedef enum wefti_sig_part {
    WEFTI_SIG_ARGS, WEFTI_SIG_RESULTS, WEFTI_SIG_ARG_ITEM, WEFTI_SIG_RESULT_ITEM, WEFTI_SIG_PARTS
} wefti_sig_part_t;

/* Valid as long as the signature. Without a stream, the codec of its items has n = 0. */
const wefti_codec_t *wefti_sig_codec(const weft_sig_t *sig, wefti_sig_part_t part);

/* For n types that wefti_type_ok(). */
void wefti_codec_init(wefti_codec_t *c, const uint32_t *types, size_t n);

/* --- encode.c --------------------------------------------------------------------------------------------------------- */

typedef struct wefti_encoded {
    size_t len;       /* bytes */
    size_t pieces;    /* of the iov */
    uint64_t payload; /* bytes of all pieces */
    int32_t device_type, device_id; /* where the pieces are; 1, 0: host memory, or there are none */
} wefti_encoded_t;

/* Write n values to buf, and what is out of line to iov (WEFTI_CODEC_PIECES of them): it points into the values' memory, which
 * has to stay until it was sent. With so many pieces already, the rest is in the bytes. WEFT_ERR_INVALID: they are not of the
 * signature's types, or no values (text that is not UTF-8, a tensor without data). WEFT_ERR_UNSUPPORTED: tensors on two devices,
 * or too many on one. WEFT_ERR_LIMIT: cap is too small; out->len says how much is needed, no other field is set, and buf was
 * written to. */
weft_status_t wefti_encode(const wefti_codec_t *c, const weft_value_t *values, size_t n, uint64_t out_of_line, void *buf,
                           size_t cap, weft_iov_t *iov, wefti_encoded_t *out);

/* The fast way for scalars, short strings and short vectors that all fit. Returns how many bytes they are; SIZE_MAX: they are
 * something else, or wrong, and wefti_encode() says what. */
size_t wefti_encode_small(const wefti_codec_t *c, const weft_value_t *values, size_t n, uint64_t out_of_line, void *buf,
                          size_t cap);

/* Scalars only. Are these values of the signature's types? */
static inline bool wefti_encode_fixed_ok(const wefti_codec_t *c, const weft_value_t *values, size_t n)
{
    if (__builtin_expect(!c->fixed || n != c->n, 0))
        return false;
    for (size_t i = 0; i < n; i++)
        if (__builtin_expect(values[i].type != c->types[i], 0))
            return false;
    return true;
}
/* Those, to c->len bytes, and zeroes up to the next multiple of 8. buf is not read. Word by word: none of them is in two, since
 * each is aligned to its size. */
static inline void wefti_encode_fixed(const wefti_codec_t *c, const weft_value_t *values, void *buf)
{
    uint64_t word = 0;
    uint8_t *to = (uint8_t *)buf;
    size_t next = sizeof word; /* where the word after this one begins */
    for (size_t i = 0; i < c->n; i++) {
        uint64_t value = values[i].u64;
        if (__builtin_expect(c->types[i] == WEFT_T_BOOL, 0))
            value = values[i].u8 != 0;
        if (c->at[i] >= next) {
            memcpy(to, &word, sizeof word);
            to += sizeof word;
            next += sizeof word;
            word = 0;
        }
        word |= value << c->up[i] >> c->down[i];
    }
    if (c->n)
        memcpy(to, &word, sizeof word);
}

/* --- decode.c --------------------------------------------------------------------------------------------------------- */

/* Data of an argument that is in the payload. */
typedef struct wefti_piece wefti_piece_t;
struct wefti_piece {
    wefti_piece_t *next;
    uint64_t offset, len;  /* in the payload; len is not 0 */
    size_t align;          /* of its elements */
    uint32_t index;        /* of the value */
    weft_tensor_t *tensor; /* whose data it is, with the sender's device; NULL: a string or a vector */
    weft_value_t *value;
};

/* What decoded values need beside the bytes. They point into it: it stays where it is until wefti_decoded_free(). */
typedef struct wefti_decoded {
    wefti_piece_t *first, **last;
    size_t pieces;
    uint64_t payload;  /* bytes of all pieces */
    uint8_t *at, *end; /* what is left of first_space, or of the newest of more */
    void *more;        /* allocations, each with a pointer to the next in front */
    _Alignas(16) uint8_t first_space[256];
} wefti_decoded_t;

/* Read c->n values, which view the bytes; what is not aligned is copied. No peer may be able to write to the bytes as long as the
 * values are used: what is checked here (counts, shapes, strides, UTF-8, bools) may be viewed. payload_len is that of the payload
 * that came with them. Pieces have no data yet. Nobody writes to shapes and strides. WEFT_ERR_PROTOCOL, with a sentence: the
 * bytes are not exactly such values. WEFT_ERR_NOMEM. After an error nothing is to be freed. */
weft_status_t wefti_decode(const wefti_codec_t *c, const void *bytes, size_t len, uint64_t payload_len, weft_value_t *values_out,
                           wefti_decoded_t *d);
/* The payload is here, in one range of host memory that no peer can write to. Its pieces are viewed there, or copied if they are
 * not aligned. WEFT_ERR_PROTOCOL: text that is not UTF-8, a bool that is neither 0 nor 1; WEFT_ERR_NOMEM. */
weft_status_t wefti_decoded_payload(wefti_decoded_t *d, const void *payload);
/* One piece is here, aligned, in memory of that device (1, 0: the host); strings and vectors in that of the host only.
 * WEFT_ERR_PROTOCOL as above. */
weft_status_t wefti_decoded_place(wefti_piece_t *piece, void *data, int32_t device_type, int32_t device_id);
/* The fast way for what wefti_encode_small() makes: without a payload, in bytes that are aligned. False: it is something else:
 * wefti_decode() does it, or says what is wrong. */
bool wefti_decode_flat(const wefti_codec_t *c, const void *bytes, size_t len, weft_value_t *values_out);
static inline uint64_t wefti_load_scalar(const uint8_t *from, size_t size)
{
    uint64_t x;
    uint32_t x4;
    uint16_t x2;
    if (size == 4)
        return memcpy(&x4, from, 4), x4;
    if (size == 8)
        return memcpy(&x, from, 8), x;
    if (size == 2)
        return memcpy(&x2, from, 2), x2;
    return *from;
}

/* Scalars side by side, of which any bytes are values. */
static inline void wefti_decode_tight(const wefti_codec_t *c, const uint8_t *bytes, weft_value_t *values)
{
    for (size_t i = 0; i < c->n; i++) {
        weft_value_t *v = &values[i];
        size_t size = c->size[i];
        v->type = c->types[i];
        v->zero = 0;
        v->u64 = wefti_load_scalar(bytes, size);
        v->view.n = 0;
        bytes += size;
    }
}
static inline bool wefti_decode_small(const wefti_codec_t *c, const void *bytes, size_t len, weft_value_t *values_out)
{
    if (!c->tight)
        return wefti_decode_flat(c, bytes, len, values_out);
    if (__builtin_expect(len != c->len, 0))
        return false;
    wefti_decode_tight(c, (const uint8_t *)bytes, values_out);
    return true;
}
void wefti_decoded_free_more(wefti_decoded_t *d);
static inline void wefti_decoded_free(wefti_decoded_t *d)
{
    if (__builtin_expect(d->more != NULL, 0))
        wefti_decoded_free_more(d);
}

#endif
