/* tools/call/tensor.c - tensors from text and from .npy files, and back.
 *
 *     [[1, 2], [3, 4]]     of f32, if nothing else is said        i64 [1, 2, 3]     of that type
 *     7.5                  without a dimension                    a file that begins with numpy's magic: as it says
 *
 * Only what is in host memory, and of a type that a value can have, is shown; the rest is described. What comes from a server
 * is read by its shape and strides, which the library has checked. tests/tools/tools_call.py checks it. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

typedef struct kind {
    uint32_t type;
    uint8_t code, bits;
    const char *npy;
} kind_t;

static const kind_t kinds[] = {
    {WEFT_T_BOOL, 6, 8, "b1"}, {WEFT_T_I8, 0, 8, "i1"},   {WEFT_T_I16, 0, 16, "i2"}, {WEFT_T_I32, 0, 32, "i4"},
    {WEFT_T_I64, 0, 64, "i8"}, {WEFT_T_U8, 1, 8, "u1"},   {WEFT_T_U16, 1, 16, "u2"}, {WEFT_T_U32, 1, 32, "u4"},
    {WEFT_T_U64, 1, 64, "u8"}, {WEFT_T_F32, 2, 32, "f4"}, {WEFT_T_F64, 2, 64, "f8"}, {0, 2, 16, "f2"},
    {0, 5, 64, "c8"},          {0, 5, 128, "c16"},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static bool wrong(char *why, size_t cap, const char *words)
{
    snprintf(why, cap, "%s", words);
    return false;
}

static void describe(weft_tensor_t *t, const kind_t *k, void *data, int ndim, int64_t *shape)
{
    *t = (weft_tensor_t){
        .data = data, .device_type = 1, .ndim = ndim, .code = k->code, .bits = k->bits, .lanes = 1, .shape = shape};
}

/* --- from text ---------------------------------------------------------------------------------------------------- */

typedef struct parse {
    const char *at;
    const kind_t *kind;
    size_t size;
    uint8_t *data;
    size_t n, cap;
    int64_t shape[WEFT_TENSOR_DIMS];
    int ndim; /* -1: no element was met yet */
    char *why;
    size_t why_cap;
} parse_t;

static void blanks(parse_t *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
}

static bool element(parse_t *p, int depth)
{
    char token[512];
    weft_value_t v;
    size_t len = strcspn(p->at, ",[] \t\r\n");
    if (p->ndim >= 0 && p->ndim != depth)
        return wrong(p->why, p->why_cap, "its rows are not all of the same depth");
    p->ndim = depth;
    if (!len || len >= sizeof token)
        return wrong(p->why, p->why_cap, "a number is missing in it, or one is too long");
    memcpy(token, p->at, len);
    token[len] = '\0';
    if (weft_value_parse(p->kind->type, token, NULL, 0, &v))
        return wrong(p->why, p->why_cap, weft_last_error());
    if (p->n == p->cap) /* cannot be: cap counts the separators */
        return wrong(p->why, p->why_cap, "it has more numbers than it has room for");
    memcpy(p->data + p->n++ * p->size, &v.u64, p->size);
    p->at += len;
    return true;
}

/* A row at a depth, or an element; shape[] is settled by the first row of each depth. */
static bool row(parse_t *p, int depth)
{
    int64_t n = 0;
    blanks(p);
    if (*p->at != '[')
        return element(p, depth);
    if (depth == WEFT_TENSOR_DIMS)
        return wrong(p->why, p->why_cap, "it has more than 16 dimensions");
    p->at++;
    blanks(p);
    if (*p->at == ']' && (p->ndim < 0 || p->ndim == depth + 1))
        p->ndim = depth + 1;
    while (*p->at != ']') {
        if (!row(p, depth + 1))
            return false;
        n++;
        blanks(p);
        if (*p->at == ',')
            p->at++;
        else if (*p->at != ']')
            return wrong(p->why, p->why_cap, *p->at ? "a ',' or a ']' is missing in it" : "a ']' is missing at its end");
    }
    p->at++;
    if (p->shape[depth] >= 0 && p->shape[depth] != n)
        return wrong(p->why, p->why_cap, "its rows are not all of the same length");
    p->shape[depth] = n;
    return true;
}

static const kind_t *kind_named(const char *name, size_t len)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        const char *known = weft_type_name(kinds[i].type);
        if (kinds[i].type && strlen(known) == len && !strncmp(known, name, len))
            return &kinds[i];
    }
    return NULL;
}

static bool from_text(call_args_t *a, const char *text, weft_tensor_t *out, char *why, size_t why_cap)
{
    parse_t p = {.at = text, .ndim = -1, .why = why, .why_cap = why_cap, .cap = 1};
    int64_t *shape;
    size_t word;
    blanks(&p);
    word = strspn(p.at, "abcdefghijklmnopqrstuvwxyz0123456789");
    p.kind = kind_named(p.at, word);
    p.at += p.kind ? word : 0;
    if (!p.kind)
        p.kind = kind_named("f32", 3);
    p.size = p.kind->bits / 8u;
    for (const char *c = text; *c; c++)
        p.cap += *c == ',' || *c == '[';
    for (int i = 0; i < WEFT_TENSOR_DIMS; i++)
        p.shape[i] = -1;
    p.data = call_args_alloc(a, p.cap * p.size);
    shape = call_args_alloc(a, sizeof p.shape);
    if (!p.data || !shape || !row(&p, 0))
        return false;
    blanks(&p);
    if (*p.at)
        return wrong(why, why_cap, "something follows its end");
    memcpy(shape, p.shape, sizeof p.shape);
    describe(out, p.kind, p.data, p.ndim, shape);
    return true;
}

/* --- .npy ----------------------------------------------------------------------------------------------------------- */

#define MAGIC "\x93NUMPY"
#define MAGIC_LEN 6

/* What follows 'name': in the header. */
static const char *field(const char *header, const char *name)
{
    const char *at = strstr(header, name);
    at = at ? strchr(at, ':') : NULL;
    return at ? at + 1 + strspn(at + 1, " ") : NULL;
}

static bool npy_kind(const char *at, const kind_t **kind_out)
{
    size_t len;
    if (*at != '\'' || !at[1] || !strchr("<|", at[1]))
        return false;
    len = strcspn(at + 2, "'");
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i].npy) == len && !strncmp(kinds[i].npy, at + 2, len)) {
            *kind_out = &kinds[i];
            return true;
        }
    }
    return false;
}

static bool npy_shape(const char *at, int64_t *shape, int *ndim_out)
{
    int n = 0;
    if (*at++ != '(')
        return false;
    for (at += strspn(at, " "); *at != ')'; at += strspn(at, ", ")) {
        char *end;
        if (n == WEFT_TENSOR_DIMS || !isdigit((unsigned char)*at))
            return false;
        shape[n++] = strtoll(at, &end, 10);
        at = end;
    }
    *ndim_out = n;
    return true;
}

static bool from_npy(call_args_t *a, char *bytes, size_t n, weft_tensor_t *out, char *why, size_t why_cap)
{
    size_t head = bytes[MAGIC_LEN] == 1 ? 10 : 12, len = (uint8_t)bytes[8] | (size_t)(uint8_t)bytes[9] << 8;
    const char *descr, *order, *dims;
    const kind_t *kind;
    uint64_t need;
    char *header;
    int64_t *shape = call_args_alloc(a, WEFT_TENSOR_DIMS * sizeof *shape);
    if (!shape)
        return false;
    if (head == 12 && n >= 12)
        len |= (size_t)(uint8_t)bytes[10] << 16 | (size_t)(uint8_t)bytes[11] << 24;
    if (n < head || len > n - head || len > 65536)
        return wrong(why, why_cap, "it is a .npy file that ends too early");
    header = call_args_alloc(a, len + 1);
    if (!header)
        return false;
    memcpy(header, bytes + head, len);
    header[len] = '\0';
    descr = field(header, "'descr'");
    order = field(header, "'fortran_order'");
    dims = field(header, "'shape'");
    if (!descr || !order || !dims)
        return wrong(why, why_cap, "it is a .npy file whose header is not understood");
    if (!npy_kind(descr, &kind))
        return wrong(why, why_cap, "it is a .npy file of a type that is no tensor's: little-endian numbers and bool are");
    if (strncmp(order, "False", 5) != 0)
        return wrong(why, why_cap, "it is a .npy file in Fortran's order; save numpy.ascontiguousarray(it)");
    describe(out, kind, bytes + head + len, 0, shape);
    if (!npy_shape(dims, shape, &out->ndim) || weft_tensor_bytes(out, &need))
        return wrong(why, why_cap, "it is a .npy file with a shape that is no tensor's");
    if (need != n - head - len)
        return wrong(why, why_cap, "it is a .npy file that has more or fewer bytes than its shape says");
    if ((uintptr_t)out->data % 8) { /* numpy aligns to 64 from the beginning of the file; other writers may not */
        void *copy = call_args_alloc(a, need);
        if (!copy)
            return false;
        memcpy(copy, out->data, need);
        out->data = copy;
    }
    return true;
}

bool call_tensor_read(call_args_t *a, char *text, size_t n, weft_tensor_t *out, char *why, size_t why_cap)
{
    if (n >= 10 && !memcmp(text, MAGIC, MAGIC_LEN))
        return from_npy(a, text, n, out, why, why_cap);
    if (memchr(text, 0, n))
        return wrong(why, why_cap, "it is neither text nor a .npy file");
    return from_text(a, text, out, why, why_cap);
}

/* --- and back ---------------------------------------------------------------------------------------------------------- */

static const kind_t *kind_of(const weft_tensor_t *t)
{
    for (size_t i = 0; i < N_KINDS; i++)
        if (t->lanes == 1 && kinds[i].code == t->code && kinds[i].bits == t->bits)
            return &kinds[i];
    return NULL;
}

uint32_t call_tensor_type(const weft_tensor_t *t)
{
    const kind_t *k = kind_of(t);
    return k ? k->type : 0;
}

static bool on_host(const weft_tensor_t *t)
{
    return t->device_type == 1 || t->device_type == 3 || t->device_type == 13;
}

bool call_tensor_shown(const weft_tensor_t *t)
{
    return call_tensor_type(t) && on_host(t);
}

uint64_t call_tensor_count(const weft_tensor_t *t)
{
    uint64_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

static const uint8_t *place(const weft_tensor_t *t, uint64_t index)
{
    int64_t offset = 0, run = 1;
    for (int32_t i = t->ndim; i-- > 0;) {
        int64_t at = (int64_t)(index % (uint64_t)t->shape[i]);
        index /= (uint64_t)t->shape[i];
        offset += at * (t->strides ? t->strides[i] : run);
        run *= t->shape[i];
    }
    return (const uint8_t *)t->data + t->byte_offset + offset * (t->bits / 8);
}

weft_value_t call_tensor_element(const weft_tensor_t *t, uint64_t index)
{
    weft_value_t v = {.type = call_tensor_type(t)};
    memcpy(&v.u64, place(t, index), t->bits / 8u);
    return v;
}

bool call_tensor_save(const weft_tensor_t *t, FILE *f)
{
    const kind_t *k = kind_of(t);
    char header[512];
    size_t n, pad;
    if (!k || !on_host(t)) {
        tool_error("a tensor of this type, or on this device, cannot be saved as .npy");
        return false;
    }
    n = (size_t)snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", k->bits == 8 ? '|' : '<',
                         k->npy);
    for (int32_t i = 0; i < t->ndim; i++)
        n += (size_t)snprintf(header + n, sizeof header - n, "%lld, ", (long long)t->shape[i]);
    n += (size_t)snprintf(header + n, sizeof header - n, "), }");
    pad = 64 - (10 + n + 1) % 64;
    fprintf(f, "%s%c%c%c%c%s%*s\n", MAGIC, 1, 0, (int)((n + pad + 1) & 255), (int)((n + pad + 1) >> 8), header, (int)pad, "");
    if (weft_tensor_compact(t)) {
        uint64_t bytes = call_tensor_count(t) * (t->bits / 8u);
        return !bytes || fwrite((const uint8_t *)t->data + t->byte_offset, 1, bytes, f) == bytes;
    }
    for (uint64_t i = 0, all = call_tensor_count(t); i < all; i++)
        if (fwrite(place(t, i), 1, t->bits / 8u, f) != t->bits / 8u)
            return false;
    return true;
}
