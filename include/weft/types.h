/* weft/types.h - what functions take and give: types, values, tensors, signatures.
 *
 * A signature is text:
 *
 *     add(a: i32, b: i32) -> i32
 *     split(text: string, at: u64) -> (head: string, tail: string)
 *     mean(values: [f64]) -> f64 idempotent
 *     scale(image: tensor, by: f32) -> tensor
 *     primes(below: u64) -> stream u64
 *     total(values: stream f64) -> f64
 *     log(line: string) -> void oneway
 *
 * Types:   bool, i8 i16 i32 i64, u8 u16 u32 u64, f32 f64, string (UTF-8), tensor; [T] is a vector of any of these but string;
 *          void only as the result.
 * Stream:  at most one parameter, the last, and at most one result, the only one, is a stream of values.
 * Marks:   idempotent (it may be run again after a failure), oneway (no reply: its result is void).
 * Names:   letters, digits and '_', not a digit first, at most 63; of a function also with '.' between: "calc.add".
 *
 * Two signatures agree if their names, types, streams and marks are the same; the names of parameters and results are for people.
 *
 * Threads: any; a signature is never changed after it was made. */
#ifndef WEFT_TYPES_H
#define WEFT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- types and values --------------------------------------------------------------------------------------------------- */

typedef enum weft_type {
    WEFT_T_VOID = 0,
    WEFT_T_BOOL = 1,
    WEFT_T_I8 = 2, WEFT_T_I16 = 3, WEFT_T_I32 = 4, WEFT_T_I64 = 5,
    WEFT_T_U8 = 6, WEFT_T_U16 = 7, WEFT_T_U32 = 8, WEFT_T_U64 = 9,
    WEFT_T_F32 = 10, WEFT_T_F64 = 11,
    WEFT_T_STRING = 12,
    WEFT_T_TENSOR = 13,
    WEFT_T_VECTOR = 0x20 /* WEFT_T_VECTOR | WEFT_T_I32 is [i32] */
} weft_type_t;

/* Bytes of one value of a scalar type, and of one element of a vector of them; 0 for string, tensor and void. */
WEFT_API size_t weft_type_size(uint32_t type);
/* "i32", "[f64]"; "?" for a number that is no type. */
WEFT_API const char *weft_type_name(uint32_t type);

/* A tensor, with the layout of DLPack's DLTensor, so that one can be passed as the other. */
typedef struct weft_tensor {
    void *data;
    int32_t device_type; /* 1 CPU, 2 CUDA, 3 pinned, 13 CUDA managed: DLPack's numbers */
    int32_t device_id;
    int32_t ndim;        /* at most WEFT_TENSOR_DIMS */
    uint8_t code;        /* 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool */
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;    /* in elements; NULL: compact, the last dimension fastest */
    uint64_t byte_offset;
} weft_tensor_t;
#define WEFT_TENSOR_DIMS 16

/* Bytes of its elements, if it is compact; WEFT_ERR_INVALID: a negative or overflowing shape, too many dimensions, a code that is
 * none of the above, bits * lanes not in bytes. */
WEFT_API weft_status_t weft_tensor_bytes(const weft_tensor_t *tensor, uint64_t *bytes_out);
/* Is it compact, the last dimension fastest? */
WEFT_API bool weft_tensor_compact(const weft_tensor_t *tensor);

/* What a value of many bytes is. A string: bytes, without a zero at the end; a vector: elements. Tensors: one, or a vector of
 * them. */
typedef struct weft_view {
    const void *data;
    uint64_t n;
} weft_view_t;
typedef struct weft_tensor_view {
    const weft_tensor_t *at;
    uint64_t n;
} weft_tensor_view_t;

/* An argument or a result. Strings, vectors and tensors are views of memory that belongs to something else. */
typedef struct weft_value {
    uint32_t type; /* weft_type_t */
    uint32_t zero;
    union {
        bool b;
        int8_t i8; int16_t i16; int32_t i32; int64_t i64;
        uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64;
        float f32; double f64;
        weft_view_t view;
        weft_tensor_view_t tensors;
    };
} weft_value_t;

/* --- signatures --------------------------------------------------------------------------------------------------------- */

typedef struct weft_sig weft_sig_t;

#define WEFT_SIG_PARAMS 32 /* at most, and as many results */
#define WEFT_SIG_TEXT 4096 /* bytes of the longest, as text */

typedef struct weft_param {
    const char *name; /* "" where a result has none */
    uint32_t type;
    bool stream;
} weft_param_t;

/* Read a signature. The result is yours until weft_sig_free(). Fails: WEFT_ERR_INVALID (weft_last_error() shows the place and
 * says what was expected), WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_sig_parse(const char *text, weft_sig_t **sig_out);
WEFT_API void weft_sig_free(weft_sig_t *sig);
/* As text, always written in the same way. */
WEFT_API const char *weft_sig_text(const weft_sig_t *sig);
WEFT_API const char *weft_sig_name(const weft_sig_t *sig);
WEFT_API const weft_param_t *weft_sig_params(const weft_sig_t *sig, size_t *n_out);
/* void: none. */
WEFT_API const weft_param_t *weft_sig_results(const weft_sig_t *sig, size_t *n_out);
WEFT_API bool weft_sig_idempotent(const weft_sig_t *sig);
WEFT_API bool weft_sig_oneway(const weft_sig_t *sig);
/* The same for two that agree, on every machine and in every version. */
WEFT_API uint64_t weft_sig_hash(const weft_sig_t *sig);

/* Read a value of a type as a person writes it on a command line: 25, -1.5e3, true, text as it is, [1, 2, 3]. `buf` (cap bytes)
 * holds what the value views. WEFT_ERR_INVALID, with a sentence: not of that type, out of its range; WEFT_ERR_LIMIT: buf is too
 * small; WEFT_ERR_UNSUPPORTED: tensors. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_value_parse(uint32_t type, const char *text, void *buf, size_t cap,
                                                        weft_value_t *value_out);
/* Write it in that way: at most cap bytes with the zero at the end. Returns how many there are without it, as snprintf does. Of
 * tensors: shape and type. */
WEFT_API size_t weft_value_format(const weft_value_t *value, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
