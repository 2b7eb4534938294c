/* conn/direct.c - a payload in device memory that the receiver copies itself, or is lent.
 *
 * The sender's announcement (STAGED) carries an export of the memory. The receiver imports it, copies to where the bytes belong,
 * device to device or device to page-locked memory, and answers with STAGED_END. Nobody but the owner of a buffer ever writes to
 * it: so a sender that is stopped in the middle, and goes on when everybody has given it up, changes nothing.
 *
 * The receiver may read memory that its sender has taken back: when the sender lost patience with a receiver that was stopped.
 * So after the last byte it looks whether the sender has closed the lane; the sender closes it before it gives the buffer back
 * to its program (payload.c).
 *
 * Promise: x is done exactly once, after the copy has ended, whatever becomes of the peer. tests/wire/msg_cuda.c,
 * tests/fault/cuda_peer_lost.c. */
#include "conn/direct.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

#define SPARE_MAX 64

uint64_t wefti_direct_min = 512u << 10;

wefti_direct_t *wefti_direct_new(wefti_in_t *in, const wefti_export_t *export)
{
    wefti_direct_t *d = wefti_spares_get(&wefti_conn_of(in->rt)->payloads.spare_directs, sizeof *d);
    if (!d)
        return NULL;
    memset(d, 0, sizeof *d);
    d->export = *export;
    d->in = in;
    return d;
}

void wefti_direct_free(wefti_in_t *in)
{
    wefti_spares_put(&wefti_conn_of(in->rt)->payloads.spare_directs, in->direct, SPARE_MAX);
    in->direct = NULL;
}

bool wefti_direct_wanted(const wefti_out_t *out)
{
    const wefti_peer_t *peer = atomic_load_explicit(&wefti_epx(out->ep)->peer, memory_order_relaxed);
    return out->total >= wefti_direct_min && out->iov_n == 1 && out->ep->lane->ops->peer_open && peer &&
           peer->capabilities & WEFT_CAN_DEVICE;
}

static int take_fd(void *lane, int fd)
{
    return ((wefti_lane_t *)lane)->ops->take_fd(lane, fd);
}

weft_status_t wefti_ep_import(weft_ep_t *ep, const wefti_export_t *from, size_t n, const void *near, wefti_import_t **import_out,
                              void **ptr_out)
{
    wefti_lane_t *lane = wefti_epx(ep)->link->lane;
    weft_status_t st = wefti_mem_import(ep->rt, from, n, near, lane->ops->take_fd ? take_fd : NULL, lane, import_out, ptr_out);
    if (st || from->sort != WEFTI_EXPORT_CUDA_FD || lane->ops->peer_open(lane))
        return st;
    wefti_mem_distrust(*import_out); /* the number of its descriptor may have been another file's by then */
    wefti_mem_unimport(ep->rt, *import_out);
    return wefti_fail(WEFT_ERR_UNSUPPORTED, "the peer has taken its memory back");
}

/* Is the lane still open on both sides? Then the bytes that were read were the sender's to give. */
static bool was_ours(const wefti_direct_t *d)
{
    wefti_lane_t *lane = wefti_epx(d->in->ep)->link->lane;
    return lane->ops->peer_open(lane);
}

static void copy_done(wefti_copy_t *copy, weft_status_t status)
{
    wefti_direct_t *d = wefti_container_of(copy, wefti_direct_t, copy);
    wefti_in_t *in = d->in;
    wefti_xfer_t *x = d->x;
    bool down = d->down;
    wefti_mem_unimport(in->rt, d->import);
    if (d->status)
        status = d->status;
    else if (!status && !was_ours(d))
        status = WEFT_ERR_PEER;
    in->state = WEFTI_IN_OVER;
    if (down) {
        wefti_in_free(in);
    } else {
        in->owes = status ? WEFTI_OWES_FAILED : WEFTI_OWES_TAKEN;
        wefti_in_flush(in);
    }
    x->done(x, status);
}

/* Can the device write to these pieces by itself? */
static bool reachable(const weft_iov_t *iov, uint64_t want, const weft_mem_kind_t *device)
{
    return device ? wefti_device_known(device) : wefti_mem_are_pinned(iov, want);
}

weft_status_t wefti_direct_pull(wefti_in_t *in, const weft_iov_t *iov, uint64_t want, const weft_mem_kind_t *device,
                                wefti_xfer_t *x)
{
    wefti_direct_t *d = in->direct;
    void *from;
    if (!reachable(iov, want, device))
        return WEFT_ERR_UNSUPPORTED;
    const weft_mem_kind_t *by = device ? device : wefti_device_kind();
    while (!iov->len)
        iov++;
    weft_status_t st = wefti_ep_import(in->ep, &d->export, want, iov->base, &d->import, &from);
    if (st == WEFT_ERR_NOMEM)
        return st;
    if (st) {
        wefti_info("conn: memory of a peer's device is copied through host memory: %s", weft_last_error());
        return WEFT_ERR_UNSUPPORTED;
    }
    st = wefti_copy_begin(in->rt, &d->copy);
    if (st) {
        wefti_mem_unimport(in->rt, d->import);
        return st;
    }
    for (uint64_t at = 0; at < want; iov++) {
        uint64_t n = iov->len < want - at ? iov->len : want - at;
        if (n)
            wefti_copy_add(in->rt, &d->copy, by, iov->base, (const char *)from + at, n,
                           device ? WEFTI_COPY_WITHIN : WEFTI_COPY_FROM);
        at += n;
    }
    d->copy.done = copy_done;
    d->x = x;
    wefti_copy_end(in->rt, &d->copy);
    in->user = NULL;
    in->state = WEFTI_IN_DIRECT;
    wefti_conn_of(in->rt)->payloads.direct_pulls++;
    return WEFT_OK;
}

void wefti_direct_down(wefti_in_t *in)
{
    in->direct->down = true;
    if (!in->direct->status)
        in->direct->status = WEFT_ERR_CANCELLED;
}

/* --- lending --------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_in_lend_device(wefti_in_t *in, wefti_lent_t *lent_out)
{
    wefti_lent_t lent = {.rt = in->rt};
    char why[WEFTI_DETAIL_MAX];
    void *ptr;
    if (!in->direct)
        return wefti_fail(WEFT_ERR_UNSUPPORTED,
                          "the payload cannot be lent: it is in host memory, shorter than %llu KiB, in pieces, on another "
                          "machine, or in memory that others cannot open: pull it",
                          (unsigned long long)(wefti_direct_min >> 10));
    weft_status_t st = wefti_ep_import(in->ep, &in->direct->export, in->total, NULL, &lent.import, &ptr);
    if (st) {
        snprintf(why, sizeof why, "%s", weft_last_error_status() == st ? weft_last_error() : weft_status_text(st));
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "the payload cannot be lent: %.160s: pull it", why);
    }
    lent.ptr = ptr;
    in->state = WEFTI_IN_LENT;
    *lent_out = lent;
    return WEFT_OK;
}
