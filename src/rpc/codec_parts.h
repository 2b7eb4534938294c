/* rpc/codec_parts.h - what encode.c and decode.c share: numbers of the format, and checks of what values contain. */
#ifndef WEFTI_RPC_CODEC_PARTS_H
#define WEFTI_RPC_CODEC_PARTS_H

#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/utf8.h"
#include "rpc/codec.h"
#include "rpc/type.h"

#define OUT_OF_LINE UINT32_MAX /* in place of a count: 64 bits of it follow, and the data is in the payload */
#define TENSOR_ALIGN 64
#define TENSOR_HEAD 24
/* flags of a tensor */
#define TENSOR_STRIDES 1
#define TENSOR_PIECE 2

static inline bool is_tensor(uint32_t type) { return (type & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR; }

static inline void move_scalar(void *to, const void *from, size_t size)
{
    if (size == 4)
        memcpy(to, from, 4);
    else if (size == 8)
        memcpy(to, from, 8);
    else if (size == 2)
        memcpy(to, from, 2);
    else
        memcpy(to, from, 1);
}

/* Elements of a [bool] are 0 or 1. */
static inline bool bools_ok(const uint8_t *p, uint64_t n)
{
    uint8_t all = 0;
    for (uint64_t i = 0; i < n; i++)
        all |= p[i];
    return all <= 1;
}

/* What is wrong with the content of a string or a vector; NULL: nothing. */
static inline const char *content_wrong(uint32_t type, const void *data, uint64_t n)
{
    if (type == WEFT_T_STRING && !wefti_utf8_ok(data, n))
        return "is not UTF-8";
    if (type == (WEFT_T_VECTOR | WEFT_T_BOOL) && !bools_ok(data, n))
        return "has a bool that is neither 0 nor 1";
    return NULL;
}

#endif
