/* conn/outbox_post.c - posting sends: with an operation of the program's, or detached, without one.
 *
 * A detached send has an operation of its own, which is freed when it is complete, and copies of what it sends, unless the
 * program gives its memory away. At most DETACHED_MAX bytes of such copies wait, per traffic. tests/wire/msg_basic.c. */
#include <string.h>

#include "conn/ep.h"

#define DETACHED_MAX (UINT64_C(1) << 20) /* bytes of sends without an operation that may wait, per traffic */

static void fill(weft_op_t *op, const wefti_send_t *s, uint64_t len, uint64_t tag)
{
    *wefti_send(op) = *s;
    wefti_outbox_describe(op, s->ep, len, tag);
    op->reason = 0;
}

weft_status_t wefti_outbox_start_prepared(const wefti_send_t *s, uint64_t len, uint64_t tag, weft_op_t *op)
{
    fill(op, s, len, tag);
    return wefti_op_start(op, wefti_outbox_start);
}

/* A send nobody waits for. It has its own copy of the header, and of the payload or, where it owns that, of the list of its
 * pieces. */
typedef struct detached {
    weft_op_t op;
    _Atomic uint64_t *total;
    uint64_t bytes;
    _Alignas(8) uint8_t copy[];
} detached_t;

static const wefti_op_kind_t detached_kind = {.name = "send",
                                              .start = wefti_outbox_start,
                                              .cancel = wefti_outbox_cancel,
                                              .failed = wefti_outbox_finish,
                                              .stops = true,
                                              .by_post = true};

static void detached_done(weft_op_t *op, void *user)
{
    detached_t *d = user;
    (void)op;
    atomic_fetch_sub_explicit(d->total, d->bytes, memory_order_relaxed);
    wefti_free(d);
}

/* Make the copies, and let s be of them. */
static weft_status_t detach(detached_t *d, wefti_send_t *s, uint64_t len)
{
    uint8_t *at = d->copy;
    wefti_pieces_t *p = &s->payload;
    if (p->release && p->iov) {
        p->iov = memcpy(at, p->iov, p->n * sizeof *p->iov);
        at += p->n * sizeof *p->iov;
    } else if (!p->release && len) {
        weft_status_t st = wefti_pieces_gather(p, at);
        if (st)
            return st;
        wefti_pieces_set(p, at, len, NULL, 0, NULL);
        at += len;
    }
    if (s->header_len)
        s->header = memcpy(at, s->header, s->header_len);
    return WEFT_OK;
}

/* By a thread that is inside. */
static weft_status_t detach_and_post(wefti_send_t s, uint64_t len, uint64_t tag)
{
    weft_runtime_t *rt = s.ep->rt;
    const wefti_pieces_t *p = &s.payload;
    _Atomic uint64_t *total = &wefti_conn_of(rt)->pub.detached_bytes[s.kind->traffic];
    uint64_t bytes = sizeof(detached_t) + s.header_len + (!p->release ? len : p->iov ? p->n * sizeof *p->iov : 0);
    if (!p->release && bytes > DETACHED_MAX)
        return wefti_fail(WEFT_ERR_LIMIT, "%zu bytes are too many to be copied for a send without an operation; use one",
                          (size_t)len);
    if (atomic_fetch_add_explicit(total, bytes, memory_order_relaxed) + bytes > DETACHED_MAX && !p->release) {
        atomic_fetch_sub_explicit(total, bytes, memory_order_relaxed);
        return wefti_fail(WEFT_ERR_AGAIN, "%zu bytes without an operation would have to wait, and too many such wait already",
                          (size_t)len);
    }
    weft_status_t st = WEFT_ERR_NOMEM;
    detached_t *d = wefti_malloc(bytes);
    if (!d)
        goto err_count;
    memset(d, 0, sizeof *d);
    d->total = total;
    d->bytes = bytes;
    d->op.fn = detached_done;
    d->op.user = d;
    st = detach(d, &s, len);
    if (!st)
        st = wefti_op_prepare(rt, &d->op, &detached_kind);
    if (st)
        goto err_d;
    fill(&d->op, &s, len, tag);
    st = wefti_op_post_by(rt, &d->op, wefti_outbox_start);
    if (st)
        goto err_d;
    return WEFT_OK;

err_d:
    wefti_free(d);
err_count:
    atomic_fetch_sub_explicit(total, bytes, memory_order_relaxed);
    return st;
}

static weft_status_t post_detached(const wefti_send_t *s, uint64_t len, uint64_t tag)
{
    weft_runtime_t *rt = s->ep->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_ep_lost(s->ep);
    if (!st)
        st = detach_and_post(*s, len, tag);
    wefti_part(rt);
    return st;
}

weft_status_t wefti_outbox_post(const wefti_send_t *s, uint64_t len, uint64_t tag, weft_op_t *op)
{
    weft_runtime_t *rt = s->ep->rt;
    weft_status_t st = wefti_ep_check(s->ep);
    if (st)
        return st;
    if (!op)
        return post_detached(s, len, tag);
    st = wefti_op_prepare(rt, op, &s->kind->op);
    if (st)
        return st;
    fill(op, s, len, tag);
    return wefti_op_post_by(rt, op, wefti_outbox_start);
}
