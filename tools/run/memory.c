/* tools/run/memory.c - memory elements of a run: starting and stopping them, their durls, and the transports that lead to them.
 *
 * A compute element may start before its memory serves. Its transports are configured when the durls are known: of all replicas
 * that are not lost. tests/tools/tools_run.py and tests/tools/tools_run_loss.py check it. */
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "run.h"

/* Memory is only allocated when it is touched, so nothing else would notice before the machine has none left. */
char *run_too_large(const run_element_t *e, const char *whose)
{
    struct sysinfo machine;
    uint64_t most;
    if (sysinfo(&machine))
        return NULL;
    most = ((uint64_t)machine.totalram + machine.totalswap) * machine.mem_unit;
    if (e->limits.mem + e->spare <= most)
        return NULL;
    return run_printf("its memory is %llu MiB, and %s has %llu MiB with its swap",
                      (unsigned long long)((e->limits.mem + e->spare) >> 20), whose, (unsigned long long)(most >> 20));
}

bool run_start_memory(run_t *run, run_element_t *e)
{
    if (e->state != RUN_WAITING)
        return true;
    e->state = RUN_RUNNING;
    e->started = tool_now();
    for (unsigned copy = 0; copy < e->copies; copy++)
        for (unsigned replica = 0; replica < e->replicas; replica++) {
            run_proc_t *p = run_spawn(run, e, copy, replica);
            if (!p)
                return false;
            *run_slot(e, copy, replica) = p;
            e->n_started++;
        }
    return true;
}

void run_stop_memory(run_element_t *e)
{
    e->stopping = true;
    for (unsigned i = 0; i < e->copies * e->replicas; i++)
        if (e->procs[i]) {
            run_limits_sample(e->procs[i]);
            run_ask(e->procs[i]);
        }
}

static char *mirrored_durl(run_element_t *e, unsigned copy)
{
    weft_durl_t all = WEFT_DURL_INIT, one = WEFT_DURL_INIT;
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    for (unsigned i = 0; i < e->replicas; i++) {
        const run_proc_t *p = *run_slot(e, copy, i);
        if (!p->durl)
            continue; /* a lost replica */
        if (weft_durl_parse(p->durl, &one) || one.n_replicas != 1)
            return NULL;
        if (!all.n_replicas)
            all = one;
        else
            memcpy(all.replica[all.n_replicas++], one.replica[0], sizeof one.replica[0]);
    }
    if (!all.n_replicas || weft_durl_format(&all, text, &len))
        return NULL;
    return run_dup(text);
}

char *run_durl(const run_element_t *memory, unsigned copy)
{
    run_element_t *e = (run_element_t *)memory;
    for (unsigned i = 0; i < e->replicas; i++) {
        const run_proc_t *p = *run_slot(e, copy, i);
        if (!p || (!p->durl && !p->lost))
            return NULL;
    }
    return e->replicas > 1 ? mirrored_durl(e, copy) : run_dup((*run_slot(e, copy, 0))->durl);
}

void run_each_transport(const run_proc_t *p, run_transport_fn_t *found, void *user)
{
    const run_element_t *e = p->element;
    for (unsigned i = 0; i < e->n_uses; i++) {
        run_element_t *m = e->uses[i].element;
        if (p->copy < m->copies || m->copies == 1)
            found(p, m, m->copies > 1 ? p->copy : 0, m->name, user);
        for (unsigned copy = 0; (m->copies > 1 || m->numbered) && copy < m->copies; copy++) {
            char *trans = run_printf("%s@%u", m->name, copy);
            found(p, m, copy, trans, user);
            free(trans);
        }
    }
}

/* The name in the durl is the element's: replicas are found by it. */
static void configure_one(const run_proc_t *p, run_element_t *m, unsigned copy, const char *trans, void *user)
{
    const run_proc_t *ready = user;
    char *durl;
    if (ready && (m != ready->element || copy != ready->copy))
        return;
    durl = run_durl(m, copy);
    if (durl)
        run_tell_config((run_proc_t *)p, trans, durl);
    free(durl);
}

void run_configure(run_proc_t *p, run_proc_t *ready)
{
    run_each_transport(p, configure_one, ready);
}

void run_memory_ready(run_proc_t *ready)
{
    run_element_t *e = ready->element;
    char *durl = run_durl(e, ready->copy);
    if (!durl)
        return; /* other replicas are not there yet */
    free(durl);
    for (run_proc_t *p = ready->run->procs; p; p = p->next)
        if (!p->over && !p->element->memory)
            run_configure(p, ready);
    if (e->owner)
        run_invoked_ready(e);
}
