/* mem/mem.c - the room: what it keeps per runtime, from the opening of the runtime to its end.
 *
 * It has no operations; it is idle when no copy is under way. It ends after the rooms above and before the fabric, so that
 * ranges can still be unregistered and arenas unshared.
 *
 * Promise: when the runtime is closed, the fabric knows of no memory of ours any more. tests/unit/mem_pool.c and mem_reg.c. */
#include "base/alloc.h"
#include "mem/local.h"

static void room_free(weft_runtime_t *rt)
{
    wefti_mem_t *m = wefti_mem_of(rt);
    wefti_keeper_close(&m->imports.keeper);
    wefti_keeper_close(&m->helds);
    wefti_copies_close(&m->copies);
    wefti_carries_close(&m->carries);
    wefti_bounces_close(&m->bounces);
    wefti_pools_cut(m);
    wefti_reg_end(&m->regs);
    wefti_staging_free(m);
    wefti_cuda_put_off_done();
    pthread_mutex_destroy(&m->lock);
    wefti_free(m);
}

static bool room_idle(weft_runtime_t *rt)
{
    return !wefti_mem_of(rt)->copies.n; /* their starters wait for them, too */
}

static void room_stats(weft_runtime_t *rt, weft_runtime_stats_t *stats)
{
    stats->device_copies = wefti_mem_of(rt)->copies.posted;
    stats->device_imports = wefti_mem_of(rt)->imports.opened;
}

static const wefti_room_t room = {.idle = room_idle, .free = room_free, .stats = room_stats};

weft_status_t wefti_mem_attach(weft_runtime_t *rt)
{
    wefti_mem_t *m = wefti_calloc(1, sizeof *m);
    if (!m)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a runtime's memory");
    pthread_mutex_init(&m->lock, NULL);
    wefti_list_init(&m->pools);
    wefti_reg_init(&m->regs, rt);
    wefti_copies_init(&m->copies, rt);
    wefti_imports_init(&m->imports, rt);
    wefti_helds_init(&m->helds, rt);
    rt->gates = &wefti_cuda_gates;
    wefti_carries_init(&m->carries);
    wefti_bounces_init(&m->bounces, rt);
    wefti_runtime_attach(rt, WEFTI_ROOM_MEM, &room, m);
    /* "on" is no demand: without CUDA the runtime still opens, and asking for the kind says why it is not there. */
    if (rt->config.cuda && !strcmp(rt->config.cuda, "on") && wefti_cuda_use("on"))
        wefti_info("mem: WEFT_CUDA is on, but %s", weft_last_error());
    return WEFT_OK;
}
