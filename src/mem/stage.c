/* mem/stage.c - pieces of host memory through which payloads of devices pass.
 *
 * A stage is UNMADE, then FREE or OUT. It is made when it is first wanted and stays until the runtime ends. Once CUDA is in
 * use a stage is page-locked when it is next given out, those made before included; whether that worked is tried once.
 *
 * All of it belongs to the driver. Promise: a stage is out to one owner at a time, at most WEFTI_STAGES_MAX are, and each
 * comes back. tests/unit/mem_stage.c. */
#include "base/alloc.h"
#include "mem/local.h"

#define PAGE 4096u

static bool ready(wefti_stage_t *s)
{
    if (!s->mem)
        s->mem = wefti_aligned_alloc(PAGE, WEFTI_STAGE_BYTES);
    if (!s->mem)
        return false;
    if (!s->tried && wefti_cuda_in_use()) {
        s->tried = true;
        s->pinned = wefti_cuda_pin(s->mem, WEFTI_STAGE_BYTES);
    }
    return true;
}

void *wefti_stage_get(weft_runtime_t *rt)
{
    wefti_mem_t *m = wefti_mem_room(rt);
    /* The first free one: so that no more are made than were ever out at a time. */
    for (unsigned i = 0; i < WEFTI_STAGES_MAX; i++) {
        wefti_stage_t *s = &m->stages[i];
        if (s->out)
            continue;
        if (!ready(s))
            return NULL;
        s->out = true;
        return s->mem;
    }
    return NULL;
}

void wefti_stage_put(weft_runtime_t *rt, void *stage)
{
    wefti_mem_t *m = wefti_mem_room(rt);
    for (unsigned i = 0; i < WEFTI_STAGES_MAX; i++)
        if (m->stages[i].mem == stage && m->stages[i].out) {
            m->stages[i].out = false;
            return;
        }
    wefti_error("mem: a stage was given back that is not out");
    assert(!"a stage was given back that is not out");
}

void wefti_stages_free(wefti_mem_t *m)
{
    for (unsigned i = 0; i < WEFTI_STAGES_MAX; i++) {
        wefti_stage_t *s = &m->stages[i];
        if (s->out) {
            /* whoever has it is gone or hangs, and its memory may still be written to: better a leak */
            wefti_error("mem: a runtime ends with a stage still out");
            continue;
        }
        if (s->pinned)
            wefti_cuda_unpin(s->mem);
        wefti_free(s->mem);
    }
}
