/* fabric/ucx/onesided.c - access to the peer's memory without the peer, where the fabric is marked as trusted.
 *
 * The owner of a range registers it and packs a key; the peer unpacks that on its lane and then reads and writes the range by
 * UCX's get and put. Nobody checks them there: where the transport emulates them (TCP), the owner's UCX stores what a packet
 * says at the address it says, in any range, key or no key. So this exists only on transports whose configuration says
 * "trusted".
 *
 * One operation (ux_one_t) is what UCX holds for it, in parts: one for each piece of memory, and for puts a flush of the
 * endpoint, since UCX calls a put complete when the buffer is free and not when the bytes have arrived. It ends when the last
 * part has ended, with the first error there was, and is told at the end of progress.
 *
 *     on lane->ones --the last part--> transfers.ended --told--> free
 *
 * Two ways to post them. Where the hardware does it, all parts at once, and one flush for the puts between two calls of
 * progress. Where UCX emulates it (nothing but TCP: transport->chunked), one packet at a time, the others waiting in
 * lane->waiting, because UCX 1.13 aborts the OWNER's process where it has to answer a request of a peer whose loss it has found
 * while sending something else. So when a user is killed in the middle of an access, the owner may be aborted too. One packet at
 * a time makes that rare; nothing above UCX can make it impossible. It is slow, too: lane->emulates tells the rooms above not to
 * use it unless someone insists.
 *
 * UCX's atomics are not used. Where it emulates them, 1.13 crashes when their endpoint ends in the middle; and where the
 * hardware has them, they are not atomic to the processor.
 *
 * Promise: each operation is done once, after UCX has let go of its buffers; lane_close() ends them all.
 * tests/wire/fabric_onesided.c holds us to it. */
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "fabric/ucx/internal.h"

#define KEY_VERSION 1
#define KEY_HEAD 20    /* version, address, length */
#define STEPS_ROUND 16 /* of one lane between two calls of UCX's progress */
#define KEY_SLACK 256  /* zeroes behind a peer's key: UCX is not told how long it is */

/* What a peer may reach of ours. */
typedef struct ux_key {
    wefti_list_t link; /* lane->keys */
    ux_lane_t *lane;
    ucp_mem_h mem;
    wefti_xfer_t *x; /* done when the lane's endpoint is gone */
} ux_key_t;

/* What we may reach of a peer's. */
typedef struct ux_remote {
    ucp_rkey_h rkey;
    uint64_t base, n;
    unsigned refs; /* one of key_open()'s, and one of each operation */
} ux_remote_t;

enum { GET, PUT };

typedef struct ux_one {
    wefti_job_t job;   /* its link: lane->ones. Its status: of the first part that failed */
    wefti_list_t turn; /* lane->unflushed, then flush->puts; or lane->waiting */
    ux_lane_t *lane;
    ux_remote_t *remote;
    unsigned parts; /* that have not ended: one of ours while there are more to post, and what UCX has */
    uint8_t kind;
    wefti_cursor_t pieces;
    size_t left;
    uint64_t at; /* the peer's address */
} ux_one_t;

/* A flush that UCX has, and the puts that wait for it. */
typedef struct ux_flush {
    wefti_list_t puts;
} ux_flush_t;

static ux_lane_t *ux_usable(wefti_lane_t *lane)
{
    ux_lane_t *l = ux_lane(lane);
    return l->state == UX_UP && !l->half.failed ? l : NULL;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static weft_status_t key_new(wefti_lane_t *lane, void *base, size_t n, void *buf, size_t *len_out, void **key_out)
{
    ux_lane_t *l = ux_lane(lane);
    ux_transport_t *r = l->transport;
    ux_key_t *k = wefti_calloc(1, sizeof *k);
    if (!k)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a key");
    weft_status_t status = wefti_ux_mem_map(r->context, base, n, WEFT_ERR_UNSUPPORTED, &k->mem);
    if (status)
        goto err_key;
    void *packed;
    size_t packed_n;
    ucs_status_t st = ucp_rkey_pack(r->context, k->mem, &packed, &packed_n);
    if (st != UCS_OK) {
        status =
            wefti_fail(ux_nomem_or(st, WEFT_ERR_UNSUPPORTED), "UCX makes no key for %zu bytes: %s", n, ucs_status_string(st));
        goto err_mem;
    }
    if (packed_n > WEFTI_KEY_MAX - KEY_HEAD) {
        ucp_rkey_buffer_release(packed);
        status = wefti_fail(WEFT_ERR_UNSUPPORTED, "UCX's key has %zu bytes, but should have %d at most", packed_n,
                            WEFTI_KEY_MAX - KEY_HEAD);
        goto err_mem;
    }
    wefti_writer_t w = wefti_writer(buf, WEFTI_KEY_MAX);
    wefti_put_u32(&w, KEY_VERSION);
    wefti_put_u64(&w, (uint64_t)(uintptr_t)base);
    wefti_put_u64(&w, n);
    wefti_put_bytes(&w, packed, packed_n);
    ucp_rkey_buffer_release(packed);
    k->lane = l;
    wefti_list_push_back(&l->keys, &k->link);
    *len_out = KEY_HEAD + packed_n;
    *key_out = k;
    return WEFT_OK;

err_mem:
    ucp_mem_unmap(r->context, k->mem);
err_key:
    wefti_free(k);
    return status;
}

static void key_end(ux_key_t *k)
{
    ucs_status_t st = ucp_mem_unmap(k->lane->transport->context, k->mem);
    if (st != UCS_OK)
        wefti_warn("ucx: a key is not taken back: %s", ucs_status_string(st));
    wefti_list_remove(&k->link);
    wefti_free(k);
}

/* Where UCX emulates, a packet that is on its way here needs no key: until the endpoint is gone the memory has to stay. */
static void key_free(void *key, wefti_xfer_t *x)
{
    ux_key_t *k = key;
    if (x)
        k->x = x;
    else
        key_end(k);
}

void wefti_ux_keys_end(ux_lane_t *l)
{
    for (wefti_list_t *it; (it = wefti_list_first(&l->keys));) {
        ux_key_t *k = wefti_container_of(it, ux_key_t, link);
        wefti_xfer_t *x = k->x;
        key_end(k);
        if (x)
            x->done(x, WEFT_OK);
    }
}

static weft_status_t key_open(wefti_lane_t *lane, const void *bytes, size_t len, void **remote_out)
{
    ux_lane_t *l = ux_usable(lane);
    if (!l)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the lane has no endpoint");
    wefti_reader_t rd = wefti_reader(bytes, len);
    uint32_t version = wefti_get_u32(&rd);
    uint64_t base = wefti_get_u64(&rd);
    uint64_t n = wefti_get_u64(&rd);
    if (rd.bad || version != KEY_VERSION || len > WEFTI_KEY_MAX || !n || base + n < base || !wefti_reader_left(&rd))
        return wefti_fail(WEFT_ERR_PROTOCOL, "a key of %zu bytes is not one of ours", len);
    ux_remote_t *m = wefti_calloc(1, sizeof *m);
    if (!m)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a key");
    uint8_t packed[WEFTI_KEY_MAX + KEY_SLACK] = {0};
    memcpy(packed, rd.at, wefti_reader_left(&rd));
    ucs_status_t st = ucp_ep_rkey_unpack(l->ep->ucp, packed, &m->rkey);
    if (st != UCS_OK) {
        wefti_free(m);
        return wefti_fail(ux_nomem_or(st, WEFT_ERR_UNREACHABLE), "UCX does not take the peer's key: %s", ucs_status_string(st));
    }
    m->base = base;
    m->n = n;
    m->refs = 1;
    *remote_out = m;
    return WEFT_OK;
}

static void key_close(void *remote)
{
    ux_remote_t *m = remote;
    if (--m->refs)
        return;
    ucp_rkey_destroy(m->rkey);
    wefti_free(m);
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

static void lane_has_work(ux_lane_t *l)
{
    if (!wefti_list_linked(&l->flush_link))
        wefti_list_push_back(&l->transport->flushes, &l->flush_link);
}

/* A part has ended. Progress tells when it was the last. */
static void part_end(ux_one_t *o, weft_status_t status)
{
    ux_lane_t *l = o->lane;
    if (status && !o->job.status)
        o->job.status = status;
    if (--o->parts) {
        if (o->parts == 1 && l->transport->chunked && l->state < UX_DRAINING)
            lane_has_work(l); /* its next one */
        return;
    }
    wefti_job_end(&o->job, o->job.status);
    if (l->state == UX_DRAINING)
        wefti_half_event(&l->half, WEFTI_EV_CLOSE);
}

static weft_status_t outcome(ux_lane_t *l, ucs_status_t st)
{
    if (st == UCS_OK)
        return WEFT_OK;
    if (l->state >= UX_CLOSING)
        return WEFT_ERR_CANCELLED;
    if (st == UCS_ERR_NO_MEMORY)
        return WEFT_ERR_NOMEM;
    wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(st));
    return WEFT_ERR_PEER;
}

static void part_done(void *request, ucs_status_t status, void *user)
{
    ux_one_t *o = user;
    ucp_request_free(request);
    part_end(o, outcome(o->lane, status));
}

/* What a call of UCX returned for a part that was counted before it. */
static void part_posted(ux_one_t *o, ucs_status_ptr_t p)
{
    if (!UCS_PTR_IS_PTR(p))
        part_end(o, outcome(o->lane, UCS_PTR_STATUS(p)));
}

/* Give UCX the next part: what is left of a piece of memory, at most `most` bytes. */
static void part_post(ux_one_t *o, size_t most)
{
    ucp_ep_h ep = o->lane->ep->ucp;
    ucp_request_param_t param = ux_then(part_done, o);
    o->parts++;
    uint8_t *piece;
    size_t n = wefti_cursor_next(&o->pieces, o->left < most ? o->left : most, &piece);
    uint64_t at = o->at;
    o->left -= n;
    o->at += n;
    if (o->kind == GET)
        part_posted(o, ucp_get_nbx(ep, piece, n, at, o->remote->rkey, &param));
    else
        part_posted(o, ucp_put_nbx(ep, piece, n, at, o->remote->rkey, &param));
}

static void flush_end(ux_flush_t *f, ux_lane_t *l, ucs_status_t status)
{
    wefti_list_t *it;
    weft_status_t st = outcome(l, status);
    while ((it = wefti_list_pop(&f->puts)))
        part_end(wefti_container_of(it, ux_one_t, turn), st);
    wefti_free(f);
}

static void flushed(void *request, ucs_status_t status, void *user)
{
    ux_flush_t *f = user;
    ucp_request_free(request);
    flush_end(f, wefti_container_of(wefti_list_first(&f->puts), ux_one_t, turn)->lane, status);
}

/* End a part of each of these puts when what was posted before is in the peer's memory. */
static void flush(ux_lane_t *l, wefti_list_t *puts)
{
    ux_flush_t *f = l->half.failed ? NULL : wefti_malloc(sizeof *f);
    if (!f) {
        /* Without it nobody knows when the bytes have arrived. */
        wefti_list_t *it;
        while ((it = wefti_list_pop(puts)))
            part_end(wefti_container_of(it, ux_one_t, turn), l->half.failed ? WEFT_ERR_PEER : WEFT_ERR_NOMEM);
        return;
    }
    wefti_list_init(&f->puts);
    wefti_list_splice(&f->puts, puts);
    ucp_request_param_t param = ux_then(flushed, f);
    ucs_status_ptr_t p = ucp_ep_flush_nbx(l->ep->ucp, &param);
    if (!UCS_PTR_IS_PTR(p))
        flush_end(f, l, UCS_PTR_STATUS(p));
}

/* --- posting ------------------------------------------------------------------------------------------------------ */

/* One packet at a time: the next of the first that waits, when UCX has nothing of it. */
static void step(ux_lane_t *l)
{
    for (int i = 0; i < STEPS_ROUND; i++) {
        wefti_list_t *it = wefti_list_first(&l->waiting);
        if (!it)
            return;
        ux_one_t *o = wefti_container_of(it, ux_one_t, turn);
        if (o->parts > 1)
            return;
        if (l->half.failed && !o->job.status)
            o->job.status = WEFT_ERR_PEER;
        if (o->job.status || !o->left) {
            wefti_list_remove(&o->turn);
            part_end(o, WEFT_OK);
            continue;
        }
        part_post(o, UX_CHUNK);
        if (o->kind != PUT || o->job.status)
            continue;
        ucp_request_param_t param = ux_then(part_done, o);
        o->parts++;
        part_posted(o, ucp_ep_flush_nbx(l->ep->ucp, &param));
    }
    lane_has_work(l);
}

static void work(ux_lane_t *l)
{
    if (l->transport->chunked)
        step(l);
    else
        flush(l, &l->unflushed);
}

void wefti_ux_flush_puts(ux_transport_t *r)
{
    wefti_list_t *it, now;
    wefti_list_init(&now);
    wefti_list_splice(&now, &r->flushes);
    while ((it = wefti_list_pop(&now)))
        work(wefti_container_of(it, ux_lane_t, flush_link));
}

static void one_free(wefti_job_t *job)
{
    ux_one_t *o = wefti_container_of(job, ux_one_t, job);
    key_close(o->remote);
    wefti_spares_put(&o->lane->transport->spare_ones, o, UINT32_MAX);
}

static weft_status_t post(wefti_lane_t *lane, ux_remote_t *m, uint64_t offset, size_t n, wefti_xfer_t *x, ux_one_t what)
{
    ux_lane_t *l = ux_usable(lane);
    if (!l)
        return wefti_fail(WEFT_ERR_PEER, "the lane has ended");
    if (offset > m->n || n > m->n - offset)
        return wefti_fail(WEFT_ERR_RANGE, "%zu bytes at %llu are not within the %llu of the key", n, (unsigned long long)offset,
                          (unsigned long long)m->n);
    ux_one_t *o = wefti_spares_get(&l->transport->spare_ones, sizeof *o);
    if (!o)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an access");
    *o = what;
    o->job = (wefti_job_t){.of = &l->half, .x = x, .let_go = one_free};
    o->lane = l;
    o->remote = m;
    o->at = m->base + offset;
    o->left = n;
    o->parts = 1;
    m->refs++;
    wefti_list_init(&o->turn);
    wefti_list_push_back(&l->ones, &o->job.link);
    if (l->transport->chunked) {
        wefti_list_push_back(&l->waiting, &o->turn);
        step(l);
        return WEFT_OK;
    }
    while (o->left && !o->job.status)
        part_post(o, SIZE_MAX);
    if (o->kind == PUT) { /* our part becomes the flush */
        wefti_list_push_back(&l->unflushed, &o->turn);
        lane_has_work(l);
    } else {
        part_end(o, WEFT_OK);
    }
    return WEFT_OK;
}

static weft_status_t get(wefti_lane_t *lane, void *remote, uint64_t offset, const weft_iov_t *iov, size_t iov_n, size_t n,
                         wefti_xfer_t *x)
{
    (void)iov_n; /* n ends it */
    return post(lane, remote, offset, n, x, (ux_one_t){.kind = GET, .pieces.iov = iov});
}

static weft_status_t put(wefti_lane_t *lane, void *remote, uint64_t offset, const weft_iov_t *iov, size_t iov_n, size_t n,
                         wefti_xfer_t *x)
{
    (void)iov_n;
    return post(lane, remote, offset, n, x, (ux_one_t){.kind = PUT, .pieces.iov = iov});
}

/* --- endings ------------------------------------------------------------------------------------------------------ */

void wefti_ux_ones_abandon(ux_lane_t *l)
{
    wefti_list_t *it;
    wefti_list_remove(&l->flush_link);
    while ((it = wefti_list_pop(&l->unflushed)) || (it = wefti_list_pop(&l->waiting)))
        part_end(wefti_container_of(it, ux_one_t, turn), WEFT_ERR_CANCELLED);
}

void wefti_ux_onesided(wefti_transport_ops_t *ops)
{
    ops->key_new = key_new;
    ops->key_free = key_free;
    ops->key_open = key_open;
    ops->key_close = key_close;
    ops->get = get;
    ops->put = put;
}
