/* tools/run/limits.c - limits of elements: memory, storage and processors, each by the best way that this machine allows.
 *
 * `mem`: a cgroup, whose kernel ends what goes over it. Pages of a memory element are charged to whoever touches them first,
 * so the cgroup of an element that uses memory elements is larger by their size, and what is the element's own is watched,
 * too. Where no cgroup can be made, watching is all there is: of the whole process group. `storage`: the working directory is
 * watched, and looked at once more before a result counts. `cpu`: a cgroup's quota and weight, else processors that the
 * process is pinned to, and below 1 its priority. No resource limit of the process is used: libraries reserve addresses that
 * they never touch, and memory files of Weft are files.
 *
 * Watching: the next look comes when the rest of a limit could be used up, at GROWTH, between SOON and LATE, and never so
 * early that looking takes more than a twentieth of a processor. An element that is over a limit is killed with its group and
 * its cgroup, and the run fails with a sentence that has both numbers.
 *
 * Promise: whatever a run has made here is gone when it ends (guard.c, cgroup_run.c). tests/tools/tools_run_limits.py and
 * tests/tools/tools_run_pinned.py check it. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "limits.h"

#define SOON (10 * WEFT_MILLISECOND)
#define LATE (100 * WEFT_MILLISECOND)
#define GROWTH 4                /* bytes a nanosecond: faster than memory can be taken or files be written */
#define SHARE 20                /* looking takes at most one part in so many of a processor's time */
#define EXACT_EVERY WEFT_SECOND /* how old the exact figure may be where much is mapped of others */
#define PIDS_MOST 4096

struct run_hold {
    run_cgroup_t cgroup;
    uint64_t most;             /* bytes of memory of its own; 0: no limit */
    uint64_t charged;          /* bytes that its cgroup may have: with memory of others that it touches first */
    uint64_t others, exact_at; /* bytes that the counters have and that are not its own, when that was measured last */
    uint64_t memory_at, storage_at, sample_at; /* the next looks */
    pid_t *pids;                               /* its process group, itself first; without a cgroup */
    unsigned n_pids;
};

struct run_holds {
    run_cgroups_t cgroups;
    uint64_t look_at, scan_at;
    long newest; /* process of this machine at the last scan */
};

/* --- what is hit ----------------------------------------------------------------------------------------------------------- */

static void kill_it(run_proc_t *p)
{
    run_kill(p);
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        if (p->hold->cgroup.dir[i])
            run_cgroup_kill_in(p->hold->cgroup.dir[i]);
}

/* used 0: the kernel has ended it. */
static void hit(run_proc_t *p, const char *name, uint64_t most, uint64_t used)
{
    bool memory = !strcmp(name, "mem");
    char limit[32], now[32];
    if (p->limit_hit)
        return;
    run_bytes_text(most, limit, sizeof limit);
    if (used < most + most / 10) /* the two numbers could look the same */
        snprintf(now, sizeof now, "%llu bytes", (unsigned long long)used);
    else
        run_bytes_text(used, now, sizeof now);
    p->limit = (run_limit_hit_t){.name = name, .most = most, .used = used};
    if (!memory)
        p->limit_hit =
            run_printf("%s is over its storage limit: the files in its working directory have %s, and limits: storage is "
                       "%s; write less there, or raise the limit",
                       p->label, now, limit);
    else if (used)
        p->limit_hit =
            run_printf("%s is over its memory limit: it has %s, and limits: mem is %s; raise it, or put data into memory "
                       "elements, which do not count",
                       p->label, now, limit);
    else
        p->limit_hit =
            run_printf("%s is over its memory limit: its processes took more than the %s of limits: mem, and the kernel "
                       "ended one; raise it, or put data into memory elements, which do not count",
                       p->label, limit);
}

static void end_it(run_proc_t *p)
{
    kill_it(p);
    if (p->run->agent)
        return; /* the launcher is told when it is over */
    if (!p->run->failed)
        p->element->state = RUN_FAILED;
    run_fail_by(p, "%s", p->limit_hit);
}

/* --- looking --------------------------------------------------------------------------------------------------------------- */

static uint64_t after(uint64_t now, uint64_t soon, uint64_t used, uint64_t most)
{
    uint64_t left = used < most ? (most - used) / GROWTH : 0;
    return now + (left < soon ? soon : left > LATE ? LATE : left);
}

/* What is its own, of these processes: by counters, and exactly where they leave it open whether that is too much. */
static uint64_t own_memory(run_hold_t *h, const pid_t *pids, unsigned n, uint64_t now)
{
    uint64_t counted = 0, own = 0;
    run_resident_t r;
    for (unsigned i = 0; i < n; i++)
        if (run_measure_status(pids[i], &r))
            counted += r.anonymous + r.shared;
    if (counted <= h->most)
        return counted;
    if (counted - (h->others < counted ? h->others : counted) <= h->most && now < h->exact_at)
        return counted - (h->others < counted ? h->others : counted);
    for (unsigned i = 0; i < n; i++)
        own += run_measure_own(pids[i]);
    h->others = own < counted ? counted - own : 0;
    h->exact_at = now + EXACT_EVERY;
    return own;
}

static void look_at_memory(run_proc_t *p, uint64_t now)
{
    run_hold_t *h = p->hold;
    const char *dir = h->cgroup.dir[RUN_CONTROL_MEMORY];
    uint64_t used;
    if (dir && run_cgroup_oom_kills(&h->cgroup)) {
        hit(p, "mem", h->most, 0);
        return;
    }
    if (dir && h->charged == h->most) { /* the kernel sees to it; this look is for the end of a child */
        h->memory_at = now + LATE;
        return;
    }
    used = dir ? run_cgroup_usage(&h->cgroup) : own_memory(h, h->pids, h->n_pids, now);
    if (dir && used > h->most) {
        pid_t *pids = run_alloc(PIDS_MOST * sizeof *pids);
        used = own_memory(h, pids, run_cgroup_pids(dir, pids, PIDS_MOST), now);
        free(pids);
    }
    h->memory_at = after(now, SOON, used, h->most);
    if (used > h->most)
        hit(p, "mem", h->most, used);
}

static void look_at_storage(run_proc_t *p, uint64_t now)
{
    uint64_t most = p->element->limits.storage, used = run_measure_files(p->dir, p->hold->pids, p->hold->n_pids, most);
    p->hold->storage_at = after(now, 3 * SOON, used, most);
    if (used > most)
        hit(p, "storage", most, used);
}

/* For the table: the kernel's own peak has what is mapped of memory elements in it. */
static void sample(run_proc_t *p, uint64_t now)
{
    run_resident_t r;
    if (p->element->memory) {
        uint64_t touched = run_measure_touched(p->pid);
        p->peak = touched > p->peak ? touched : p->peak;
    } else if (run_measure_status(p->pid, &r) && r.all - r.shared > p->peak && r.shared <= r.all) {
        p->peak = r.all - r.shared;
    }
    p->hold->sample_at = now + LATE;
}

/* A process that belongs to the group of one that is watched. */
static void found(pid_t pid, pid_t group, void *user)
{
    for (run_proc_t *p = ((run_t *)user)->procs; p; p = p->next)
        if (!p->over && p->hold && p->hold->pids && p->pid == group && pid != group && p->hold->n_pids < PIDS_MOST)
            p->hold->pids[p->hold->n_pids++] = pid;
}

/* Which processes belong to the groups that are watched: if there is a new one on this machine, or after LATE. */
static void scan(run_t *run, uint64_t now)
{
    run_holds_t *all = run->holds;
    long newest = run_measure_newest();
    bool any = false;
    if (now < all->scan_at && newest == all->newest)
        return;
    all->newest = newest;
    all->scan_at = now + LATE;
    for (run_proc_t *p = run->procs; p; p = p->next)
        if (!p->over && p->hold && p->hold->pids) {
            p->hold->pids[0] = p->pid;
            p->hold->n_pids = 1;
            any = true;
        }
    if (any)
        run_measure_groups(found, run);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t run_limits_look(run_t *run, uint64_t now)
{
    run_holds_t *all = run->holds;
    uint64_t next = UINT64_MAX, took;
    if (!all || now < all->look_at)
        return all ? all->look_at : UINT64_MAX;
    scan(run, now);
    for (run_proc_t *p = run->procs; p; p = p->next) {
        run_hold_t *h = p->over ? NULL : p->hold;
        if (!h || p->limit_hit)
            continue;
        if (h->memory_at <= now)
            look_at_memory(p, now);
        if (h->storage_at <= now && !p->limit_hit)
            look_at_storage(p, now);
        if (h->sample_at <= now)
            sample(p, now);
        if (p->limit_hit)
            end_it(p);
        else
            next = earlier(next, earlier(h->memory_at, earlier(h->storage_at, h->sample_at)));
    }
    took = (tool_now() - now) * SHARE;
    all->look_at = next != UINT64_MAX && next < now + took ? now + took : next;
    return all->look_at;
}

bool run_limits_kept(run_proc_t *p)
{
    if (p->hold && !p->limit_hit && p->element->limits.storage && !p->element->memory)
        look_at_storage(p, tool_now());
    if (p->limit_hit && !p->over)
        end_it(p);
    return !p->limit_hit;
}

void run_limits_sample(run_proc_t *p)
{
    if (p->hold && !p->over && p->hold->sample_at != UINT64_MAX)
        sample(p, tool_now());
}

/* --- processors, without a cgroup ------------------------------------------------------------------------------------------ */

/* Where the search begins: other runs and other agents of this machine do not know of each other, and must not all take the
 * first processor. */
static unsigned first_cpu(unsigned n)
{
    return (unsigned)(((uint64_t)getpid() * 2654435761U >> 8) % n);
}

/* Which processors, as few others of this run on them as can be. */
static void choose_cpus(run_proc_t *p)
{
    run_t *run = p->run;
    double cpu = p->element->limits.cpu;
    unsigned want = cpu > 0 && ceil(cpu) < run->n_cpus ? (unsigned)ceil(cpu) : 0, best = 0, best_load = UINT32_MAX, places;
    if (!want)
        return; /* all of them */
    places = run->n_cpus - want + 1;
    for (unsigned k = 0; k < places; k++) {
        unsigned load = 0, from = (first_cpu(places) + k) % places;
        for (unsigned i = from; i < from + want; i++)
            load += run->pinned[i];
        if (load < best_load) {
            best = from;
            best_load = load;
        }
    }
    p->cpu_first = (int)best;
    p->cpu_count = (int)want;
    for (unsigned i = best; i < best + want; i++)
        run->pinned[i]++;
}

static void leave_cpus(run_proc_t *p)
{
    for (int i = 0; i < p->cpu_count; i++)
        p->run->pinned[p->cpu_first + i]--;
    p->cpu_count = 0;
}

static void pin(const run_proc_t *p)
{
    double cpu = p->element->limits.cpu;
    if (p->cpu_count) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int i = 0; i < p->cpu_count; i++)
            CPU_SET((size_t)p->run->cpus[p->cpu_first + i], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    if (cpu > 0 && cpu < 1) {
        int lower = (int)lround(3 * log2(1 / cpu));                         /* three steps are half the weight */
        setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + lower); /* below what the launcher has; 19 is the last */
    }
}

/* --- a process ------------------------------------------------------------------------------------------------------------- */

uint64_t run_memory_size(const run_element_t *memory)
{
    return (uint64_t)memory->copies * memory->replicas * (memory->limits.mem + memory->spare);
}

static void hold_memory(run_proc_t *p)
{
    const run_element_t *e = p->element;
    run_hold_t *h = p->hold;
    char *name = run_printf("%u-%s", e->index, p->label);
    h->most = e->limits.mem;
    for (unsigned i = 0; i < e->n_merged; i++)
        h->most += e->merged[i].bytes;
    h->charged = h->most;
    for (unsigned i = 0; i < e->n_uses; i++)
        h->charged += run_memory_size(e->uses[i].element);
    h->charged += e->maps;
    h->memory_at = 0;
    if (run_cgroup_make(&p->run->holds->cgroups, RUN_CONTROL_MEMORY, name, &h->cgroup) &&
        !run_cgroup_limit_memory(&h->cgroup, h->charged))
        run_cgroup_unmake(&h->cgroup, RUN_CONTROL_MEMORY);
    free(name);
}

static void hold_cpu(run_proc_t *p)
{
    run_hold_t *h = p->hold;
    char *name = run_printf("%u-%s", p->element->index, p->label);
    bool made = h->cgroup.dir[RUN_CONTROL_MEMORY] && h->cgroup.v2[RUN_CONTROL_MEMORY]; /* then it is one for both */
    run_cgroups_t *cgs = &p->run->holds->cgroups;
    if (made && cgs->dir[RUN_CONTROL_CPU] && cgs->v2[RUN_CONTROL_CPU]) {
        h->cgroup.dir[RUN_CONTROL_CPU] = run_dup(h->cgroup.dir[RUN_CONTROL_MEMORY]);
        h->cgroup.v2[RUN_CONTROL_CPU] = true;
    } else {
        (void)run_cgroup_make(cgs, RUN_CONTROL_CPU, name, &h->cgroup);
    }
    if (h->cgroup.dir[RUN_CONTROL_CPU] && !run_cgroup_limit_cpu(&h->cgroup, p->element->limits.cpu, p->run->n_cpus))
        run_cgroup_unmake(&h->cgroup, RUN_CONTROL_CPU);
    if (!h->cgroup.dir[RUN_CONTROL_CPU])
        choose_cpus(p);
    free(name);
}

void run_limits_prepare(run_proc_t *p)
{
    const run_element_t *e = p->element;
    run_hold_t *h = run_alloc(sizeof *h), *owner = e->memory && e->owner ? e->owner->hold : NULL;
    p->hold = h;
    h->memory_at = h->storage_at = h->sample_at = UINT64_MAX;
    if (e->limits.mem && !e->memory)
        hold_memory(p);
    if (e->limits.cpu > 0)
        hold_cpu(p);
    if (e->limits.storage && !e->memory)
        h->storage_at = 0;
    if (e->memory || e->n_uses || e->maps)
        h->sample_at = tool_now() + LATE;
    if ((h->memory_at == 0 && !h->cgroup.dir[RUN_CONTROL_MEMORY]) || h->storage_at == 0)
        h->pids = run_alloc(PIDS_MOST * sizeof *h->pids);
    if (owner && owner->cgroup.dir[RUN_CONTROL_MEMORY]) { /* it may touch all of that */
        owner->charged += run_memory_size(e);
        (void)run_cgroup_limit_memory(&owner->cgroup, owner->charged);
    }
    p->run->holds->look_at = p->run->holds->scan_at = 0;
}

void run_limits_enter(const run_proc_t *p)
{
    static const char cannot[] = "weft run: its cgroup cannot be entered\n";
    if (!run_cgroup_enter(&p->hold->cgroup)) {
        (void)!write(2, cannot, sizeof cannot - 1);
        _exit(127);
    }
    if (!p->hold->cgroup.dir[RUN_CONTROL_CPU])
        pin(p);
}

void run_limits_over(run_proc_t *p)
{
    run_hold_t *h = p->hold;
    leave_cpus(p);
    if (!h)
        return;
    if (h->cgroup.dir[RUN_CONTROL_MEMORY] && run_cgroup_oom_kills(&h->cgroup))
        hit(p, "mem", h->most, 0);
    h->n_pids = 0;
    if (p->over && p->element->limits.storage && !p->element->memory)
        look_at_storage(p, tool_now());
    p->throttled = run_cgroup_throttled(&h->cgroup);
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        run_cgroup_unmake(&h->cgroup, (run_control_t)i);
    free(h->pids);
    free(h);
    p->hold = NULL;
}

/* --- a run ----------------------------------------------------------------------------------------------------------------- */

void run_limits_begin(run_t *run)
{
    bool wanted[RUN_CONTROLS] = {run->agent, run->agent}; /* an agent does not know what will come */
    run->holds = run_alloc(sizeof *run->holds);
    for (unsigned i = 0; i < run->n_elements; i++) {
        wanted[RUN_CONTROL_MEMORY] |= !run->elements[i]->memory && run->elements[i]->limits.mem;
        wanted[RUN_CONTROL_CPU] |= run->elements[i]->limits.cpu > 0;
    }
    if (wanted[RUN_CONTROL_MEMORY] || wanted[RUN_CONTROL_CPU])
        run_cgroups_begin(&run->holds->cgroups, wanted, run->scratch);
    run->limits_by[RUN_CONTROL_MEMORY] = !wanted[RUN_CONTROL_MEMORY] ? NULL : "watching";
    run->limits_by[RUN_CONTROL_CPU] = !wanted[RUN_CONTROL_CPU] ? NULL : "pinning";
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        if (run->holds->cgroups.dir[i])
            run->limits_by[i] = run->holds->cgroups.v2[i] ? "cgroup v2" : "cgroup v1";
}

bool run_limits_end(run_t *run)
{
    bool gone = !run->holds || run_cgroups_end(&run->holds->cgroups);
    free(run->holds);
    run->holds = NULL;
    return gone;
}
