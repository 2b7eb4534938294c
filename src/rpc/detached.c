/* rpc/detached.c - calls of `oneway` functions without an operation of the caller.
 *
 * The values are copied into one allocation, together with an operation that goes the way of any call. */
#include "rpc/client.h"
#include "rpc/type.h"

#define DETACHED_MAX (UINT64_C(1) << 20) /* bytes of such calls on a runtime */

typedef struct detached {
    weft_op_t op;
    rpc_state_t *rs;
    uint64_t bytes;
    _Alignas(16) uint8_t data[];
} detached_t;

static void gone(weft_op_t *op, void *user)
{
    detached_t *d = (detached_t *)user;
    (void)op;
    atomic_fetch_sub_explicit(&d->rs->detached, d->bytes, memory_order_relaxed);
    rpc_end(d->rs);
    wefti_free(d);
}

/* Copies of values, and of what they view, one after the other. to NULL: only count the bytes. */
typedef struct pack {
    uint8_t *to;
    uint64_t n;
} pack_t;

static void *lay(pack_t *p, const void *from, uint64_t n)
{
    uint8_t *at = p->to ? p->to + p->n : NULL;
    if (at && from && n)
        memcpy(at, from, n);
    p->n += (n + 15) & ~UINT64_C(15);
    return at;
}

static weft_status_t lay_tensor(pack_t *p, const weft_tensor_t *from, weft_tensor_t *to)
{
    uint64_t bytes, first;
    weft_status_t st = wefti_tensor_span(from, &bytes, &first);
    if (st)
        return st;
    if (!wefti_tensor_on_host(from->device_type))
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "a tensor of a device needs a call with an operation");
    size_t dims = (size_t)from->ndim * sizeof(int64_t);
    void *shape = lay(p, from->shape, dims), *strides = from->strides ? lay(p, from->strides, dims) : NULL;
    void *data = lay(p, (const uint8_t *)from->data + from->byte_offset - first, bytes);
    if (to) {
        *to = *from;
        to->shape = (int64_t *)shape;
        to->strides = (int64_t *)strides;
        to->data = data;
        to->byte_offset = first;
    }
    return WEFT_OK;
}

static weft_status_t lay_value(pack_t *p, const weft_value_t *from, weft_value_t *to)
{
    weft_status_t st = WEFT_OK;
    if (from->type == WEFT_T_TENSOR || from->type == (WEFT_T_VECTOR | WEFT_T_TENSOR)) {
        weft_tensor_t *copies = (weft_tensor_t *)lay(p, from->tensors.at, from->tensors.n * sizeof(weft_tensor_t));
        for (uint64_t i = 0; i < from->tensors.n && !st; i++)
            st = lay_tensor(p, &from->tensors.at[i], copies ? &copies[i] : NULL);
        if (to)
            to->tensors.at = copies;
    } else if (from->type == WEFT_T_STRING || from->type & WEFT_T_VECTOR) {
        uint64_t size = from->type == WEFT_T_STRING ? 1 : weft_type_size(from->type);
        if (from->view.n > DETACHED_MAX)
            return wefti_fail(WEFT_ERR_LIMIT, "too much to be copied for a call without an operation; use one");
        const void *at = lay(p, from->view.data, from->view.n * size);
        if (to)
            to->view.data = at;
    }
    return st;
}

/* Check the arguments, and count the bytes of the copy. */
static weft_status_t measure(weft_method_t *m, const weft_value_t *args, size_t n, uint64_t *bytes_out)
{
    pack_t size = {0};
    weft_status_t st = wefti_rpc_method_lock(m);
    if (st)
        return st;
    lay(&size, NULL, n * sizeof *args);
    if (n != m->args->n)
        st = wefti_fail(WEFT_ERR_INVALID, "%s is called with %zu arguments", m->text, n);
    for (size_t i = 0; i < n && !st; i++)
        st = args[i].type == m->args->types[i]
                 ? lay_value(&size, &args[i], NULL)
                 : wefti_fail(WEFT_ERR_INVALID, "argument %zu of %s is no %s", i + 1, m->text, weft_type_name(m->args->types[i]));
    wefti_rpc_unlock(m->rt);
    *bytes_out = sizeof(detached_t) + size.n;
    return st;
}

static weft_status_t call_detached(rpc_state_t *rs, weft_method_t *m, const weft_value_t *args, size_t n)
{
    uint64_t bytes;
    weft_status_t st = measure(m, args, n, &bytes);
    if (st)
        return st;
    if (bytes > DETACHED_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "too much to be copied for a call without an operation; use one");
    if (atomic_fetch_add_explicit(&rs->detached, bytes, memory_order_relaxed) + bytes > DETACHED_MAX)
        st = wefti_fail(WEFT_ERR_AGAIN, "too many calls without an operation wait already");
    detached_t *d = st ? NULL : (detached_t *)wefti_calloc(1, bytes);
    if (!st && !d)
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for a call");
    if (!st) {
        pack_t p = {.to = d->data};
        weft_value_t *copies = (weft_value_t *)lay(&p, args, n * sizeof *args);
        for (size_t i = 0; i < n; i++)
            (void)lay_value(&p, &args[i], &copies[i]); /* it was checked above */
        d->rs = rs;
        d->bytes = bytes;
        d->op.fn = gone;
        d->op.user = d;
        rpc_begin(rs);
        st = weft_call(m, copies, n, NULL, &d->op);
        if (!st)
            return WEFT_OK;
        rpc_end(rs);
        wefti_free(d);
    }
    atomic_fetch_sub_explicit(&rs->detached, bytes, memory_order_relaxed);
    return st;
}

weft_status_t wefti_rpc_call_detached(weft_method_t *m, const weft_value_t *args, size_t n)
{
    weft_runtime_t *rt = m->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = call_detached(rpc_state(rt), m, args, n);
    wefti_part(rt);
    return st;
}
