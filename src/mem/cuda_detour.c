/* mem/cuda_detour.c - copies within a device that go through page-locked memory of the host, in the order of one stream.
 *
 * For a crowded device (cuda_waits.c): a copy within it needs a queue of kernels, in which it could come behind a stream that
 * waits for just this copy. Copies between host and device have queues of their own. Piece by piece the bytes go to a buffer and
 * back, at 20 GB/s and not 2,000, but they arrive.
 *
 * A detour belongs to one stream: its buffer is used again in the stream's order. tests/wire/msg_stream_queues.c. */
#include "base/alloc.h"
#include "mem/cuda.h"

#define PAGE 4096u
#define PIECE ((size_t)2 << 20)

bool wefti_cuda_detour_ready(wefti_cuda_detour_t *d)
{
    if (d->mem || d->tried)
        return d->mem;
    d->tried = true;
    d->mem = wefti_aligned_alloc(PAGE, PIECE);
    if (d->mem && !wefti_cuda_pin(d->mem, PIECE)) {
        wefti_free(d->mem);
        d->mem = NULL;
    }
    return d->mem;
}

void wefti_cuda_detour_free(wefti_cuda_detour_t *d)
{
    if (d->mem)
        wefti_cuda_unpin_free(d->mem, PIECE);
    d->mem = NULL;
}

cu_result_t wefti_cuda_detour_post(wefti_cuda_detour_t *d, void *dst, const void *src, size_t n, cu_stream_t stream)
{
    cu_result_t r = CU_SUCCESS;
    for (size_t done = 0; done < n && !r; done += PIECE) {
        size_t len = n - done < PIECE ? n - done : PIECE;
        r = wefti_cuda_post(d->mem, true, (const char *)src + done, false, len, stream);
        if (!r)
            r = wefti_cuda_post((char *)dst + done, false, d->mem, true, len, stream);
    }
    return r;
}
