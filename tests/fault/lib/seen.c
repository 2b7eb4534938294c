/* tests/fault/lib/seen.c - see seen.h. */
#include "seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rpc/type.h"

typedef struct seen {
    uint64_t n;
    uint8_t bytes[SEEN_MAX];
} seen_t;

static void must_be(bool fact, const char *what)
{
    if (fact)
        return;
    fprintf(stderr, "values as they are seen: %s\n", what);
    exit(1);
}

static void see(seen_t *s, const void *p, uint64_t n)
{
    must_be(n <= sizeof s->bytes - s->n, "they have more bytes than were sent");
    if (n)
        memcpy(s->bytes + s->n, p, n);
    s->n += n;
}

static void see_tensor(seen_t *s, const weft_tensor_t *t)
{
    uint64_t bytes, first;
    must_be(t->ndim >= 0 && t->ndim <= WEFT_TENSOR_DIMS, "a tensor has a number of dimensions that cannot be");
    see(s, t->shape, (uint64_t)t->ndim * sizeof *t->shape);
    if (t->strides)
        see(s, t->strides, (uint64_t)t->ndim * sizeof *t->strides);
    must_be(!wefti_tensor_span(t, &bytes, &first), "a tensor's shape or strides cannot be");
    must_be(first == t->byte_offset, "a tensor does not begin where its strides say");
    see(s, t->data, bytes);
}

static void look(seen_t *s, const weft_value_t *values, size_t n)
{
    s->n = 0;
    for (size_t i = 0; i < n; i++) {
        const weft_value_t *v = &values[i];
        uint64_t at = s->n;
        if (v->type == WEFT_T_TENSOR) {
            see_tensor(s, v->tensors.at);
            continue;
        }
        if (v->type < WEFT_T_STRING) {
            see(s, &v->u64, sizeof v->u64);
            continue;
        }
        must_be(v->view.n <= SEEN_MAX, "a view has more elements than were sent");
        see(s, v->view.data, v->view.n * (v->type == WEFT_T_STRING ? 1 : weft_type_size(v->type)));
        must_be(v->type != WEFT_T_STRING || wefti_utf8_ok(s->bytes + at, s->n - at), "a string is not UTF-8");
        for (; v->type == (WEFT_T_VECTOR | WEFT_T_BOOL) && at < s->n; at++)
            must_be(s->bytes[at] <= 1, "a bool is neither 0 nor 1");
    }
}

void seen_values(const weft_value_t *values, size_t n)
{
    static seen_t first, again;
    look(&first, values, n);
    for (unsigned i = 0; i < 2; i++) {
        look(&again, values, n);
        must_be(again.n == first.n && !memcmp(again.bytes, first.bytes, first.n), "they changed after they were checked");
    }
}
