/* rpc/type.c - the names and sizes of types: one table. Its numbers are on the wire and in hashes, so new types are appended.
 *
 * tests/unit/rpc_sig.c. */
#include "rpc/type.h"

#include <string.h>

static const struct {
    const char *name, *vector; /* vector: NULL if there is none of them */
    size_t size;
} types[] = {
    [WEFT_T_VOID] = {"void", NULL, 0},     [WEFT_T_BOOL] = {"bool", "[bool]", 1},       [WEFT_T_I8] = {"i8", "[i8]", 1},
    [WEFT_T_I16] = {"i16", "[i16]", 2},    [WEFT_T_I32] = {"i32", "[i32]", 4},          [WEFT_T_I64] = {"i64", "[i64]", 8},
    [WEFT_T_U8] = {"u8", "[u8]", 1},       [WEFT_T_U16] = {"u16", "[u16]", 2},          [WEFT_T_U32] = {"u32", "[u32]", 4},
    [WEFT_T_U64] = {"u64", "[u64]", 8},    [WEFT_T_F32] = {"f32", "[f32]", 4},          [WEFT_T_F64] = {"f64", "[f64]", 8},
    [WEFT_T_STRING] = {"string", NULL, 0}, [WEFT_T_TENSOR] = {"tensor", "[tensor]", 0},
};
#define TYPES (sizeof types / sizeof types[0])

/* NULL: it is none. */
static const char *name_of(uint32_t type)
{
    uint32_t element = type & ~(uint32_t)WEFT_T_VECTOR;
    if (element >= TYPES)
        return NULL;
    return type & WEFT_T_VECTOR ? types[element].vector : types[element].name;
}

size_t weft_type_size(uint32_t type)
{
    return name_of(type) ? types[type & ~(uint32_t)WEFT_T_VECTOR].size : 0;
}

const char *weft_type_name(uint32_t type)
{
    const char *name = name_of(type);
    return name ? name : "?";
}

bool wefti_type_ok(uint32_t type)
{
    return type != WEFT_T_VOID && name_of(type);
}

bool wefti_type_find(const char *name, size_t len, uint32_t *type_out)
{
    for (uint32_t type = 0; type < WEFT_T_VECTOR + TYPES; type++) {
        const char *is = name_of(type);
        if (is && strlen(is) == len && !memcmp(is, name, len)) {
            *type_out = type;
            return true;
        }
    }
    return false;
}
