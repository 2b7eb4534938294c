/* mem/staging.c - staging buffers: host memory through which payloads of devices pass.
 *
 * A buffer is allocated when it is first needed, and stays until the runtime ends. Once CUDA is in use it is page-locked when
 * it is next given out; that is tried once.
 *
 * All of it belongs to the driver. Promise: a buffer has one owner at a time, and at most WEFTI_STAGING_MAX are out.
 * tests/unit/mem_staging.c. */
#include "base/alloc.h"
#include "mem/local.h"

#define PAGE 4096u

static bool ready(wefti_staging_t *s)
{
    if (!s->mem)
        s->mem = wefti_aligned_alloc(PAGE, WEFTI_STAGING_BYTES);
    if (!s->mem)
        return false;
    if (!s->tried && wefti_cuda_in_use()) {
        s->tried = true;
        s->pinned = wefti_cuda_pin(s->mem, WEFTI_STAGING_BYTES);
    }
    return true;
}

void *wefti_staging_get(weft_runtime_t *rt)
{
    wefti_mem_t *m = wefti_mem_of(rt);
    /* The first free one: so that no more are made than were ever out at a time. */
    for (unsigned i = 0; i < WEFTI_STAGING_MAX; i++) {
        wefti_staging_t *s = &m->staging[i];
        if (s->out)
            continue;
        if (!ready(s))
            return NULL;
        s->out = true;
        return s->mem;
    }
    return NULL;
}

void wefti_staging_put(weft_runtime_t *rt, void *buf)
{
    wefti_mem_t *m = wefti_mem_of(rt);
    for (unsigned i = 0; i < WEFTI_STAGING_MAX; i++)
        if (m->staging[i].mem == buf && m->staging[i].out) {
            m->staging[i].out = false;
            return;
        }
    wefti_error("mem: a staging buffer was given back that is not out");
    assert(!"a staging buffer was given back that is not out");
}

void wefti_staging_free(wefti_mem_t *m)
{
    for (unsigned i = 0; i < WEFTI_STAGING_MAX; i++) {
        wefti_staging_t *s = &m->staging[i];
        if (s->out) {
            /* its owner did not end, and may still write to it: a leak is better */
            wefti_error("mem: a runtime ends with a staging buffer still out");
            continue;
        }
        if (s->pinned)
            wefti_cuda_unpin_free(s->mem, WEFTI_STAGING_BYTES);
        else
            wefti_free(s->mem);
    }
}
