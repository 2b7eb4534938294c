/* tests/simnet/regs.c - ranges registered with a simulated host.
 *
 * There is nothing to register with: this file only checks the caller. A range is unregistered once, at the host where it was
 * registered, before that host is closed. Anything else is a violation. Called by whoever runs the world, from one thread.
 * tests/sim/fabric_checks.c shows the violations. */
#include <stdlib.h>

#include "base/log.h"
#include "simnet/world.h"

struct sim_reg {
    sim_reg_t *next;
    uint32_t id;
    bool gone;
};

weft_status_t wefti_sim_mem_register(wefti_fabric_t *f, void *base, size_t n, void **reg_out)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_SYSTEM, WEFT_OK};
    sim_host_t *h = sim_host_of(f);
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_MEM_REGISTER, h->world->faults.mem_register_fails, statuses);
    if (h->closed || !base || !n)
        wefti_sim_violation(h->world, "host %s: %s registered", h->name, h->closed ? "closed, and a range" : "an empty range");
    if (st)
        return wefti_fail(st, "the simulated host has no space for a registration");
    sim_reg_t *r = wefti_sim_mem(sizeof *r);
    r->id = h->regs ? h->regs->id + 1 : 1;
    r->next = h->regs;
    h->regs = r;
    h->registered++;
    wefti_sim_trace(h->world, h, SIM_T_REGISTER, r->id, n);
    *reg_out = r;
    return WEFT_OK;
}

void wefti_sim_mem_unregister(wefti_fabric_t *f, void *reg)
{
    sim_host_t *h = sim_host_of(f);
    sim_reg_t *r = h->regs;
    while (r && r != reg)
        r = r->next;
    if (!r || r->gone)
        wefti_sim_violation(h->world, "host %s: unregistered %s", h->name,
                            r ? "the same range twice" : "what is not of this host");
    r->gone = true;
    h->registered--;
    wefti_sim_trace(h->world, h, SIM_T_UNREGISTER, r->id, 0);
}

void wefti_sim_regs_free(sim_host_t *h)
{
    for (sim_reg_t *r; (r = h->regs);) {
        h->regs = r->next;
        free(r);
    }
}
