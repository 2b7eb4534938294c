/* tools/run/place.c - which machine an element's process runs on, if there are several.
 *
 * Elements that share memory go to the same machine where they fit, since there they map it: a compute element to a machine that
 * has memory which it uses and a free processor, a memory element to one that has memory which is used together with it and
 * space for more. Otherwise the machine that has most left. An engine of its own (Dask) is told what is near, and decides.
 * tests/tools/tools_run_ssh.py checks it. */
#include "run.h"

/* Every process of a memory element that e uses. */
static void each_memory(const run_element_t *e, run_near_fn_t *found, void *user)
{
    for (unsigned i = 0; i < e->n_uses; i++) {
        const run_element_t *m = e->uses[i].element;
        for (unsigned k = 0; m->procs && k < m->copies * m->replicas; k++)
            if (m->procs[k] && !m->procs[k]->over)
                found(m->procs[k], user);
    }
}

void run_each_near(const run_proc_t *p, run_near_fn_t *found, void *user)
{
    const run_t *run = p->run;
    if (!p->element->memory) {
        each_memory(p->element, found, user);
        return;
    }
    if (p->element->replicas > 1)
        return; /* one machine less must not be all of them */
    if (p->element->owner)
        each_memory(p->element->owner->element, found, user);
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        for (unsigned k = 0; k < e->n_uses; k++)
            if (e->uses[k].element == p->element) {
                each_memory(e, found, user);
                break;
            }
    }
}

static bool fits(const run_remote_t *r, const run_proc_t *p)
{
    const run_element_t *e = p->element;
    if (e->memory)
        return !r->mem || r->mem_used + e->limits.mem + e->spare <= r->mem / 2; /* the rest is for programs */
    return !r->cpus || r->n_computing < r->cpus;
}

/* How full it is, for a process of that kind. */
static double fullness(const run_remote_t *r, const run_proc_t *p)
{
    if (p->element->memory)
        return r->mem ? (double)r->mem_used / (double)r->mem : r->n_live;
    return (double)(r->n_computing + 1) / (r->cpus ? r->cpus : 1);
}

typedef struct search {
    const run_proc_t *p;
    run_host_t *found;
} search_t;

static void near_one(const run_proc_t *memory, void *user)
{
    search_t *s = user;
    if (!s->found && memory->host != &memory->run->here && !((run_remote_t *)memory->host)->lost &&
        fits((run_remote_t *)memory->host, s->p))
        s->found = memory->host;
}

/* Does another replica run there? */
static bool has_replica(const run_remote_t *r, const run_proc_t *p)
{
    const run_element_t *e = p->element;
    for (unsigned i = 0; e->memory && i < e->replicas; i++) {
        const run_proc_t *other = *run_slot(e, p->copy, i);
        if (other && other->host == &r->host)
            return true;
    }
    return false;
}

run_host_t *run_place(run_t *run, const run_proc_t *p)
{
    search_t s = {.p = p};
    run_remote_t *best = NULL;
    if (!run->remotes)
        return &run->here;
    run_each_near(p, near_one, &s);
    if (s.found)
        return s.found;
    for (run_remote_t *r = run->remotes; r; r = r->next) {
        if (r->lost)
            continue;
        if (!best || has_replica(best, p) > has_replica(r, p) ||
            (has_replica(best, p) == has_replica(r, p) && fullness(r, p) < fullness(best, p)))
            best = r;
    }
    return best ? &best->host : NULL;
}
