/* tools/perf/cores.c - which core each thread runs on.
 *
 * Two threads on one core measure the scheduler. So each process of --fork has a core of its own; with --mode thread it has two
 * threads, the one that measures and the one that drives, and two cores where there are enough for all. A server with shards has
 * as many cores as shards: its first thread sleeps. */
#include <sched.h>

#include "perf.h"

/* Those the program was started with: pinning changes what the kernel says later. */
static const cpu_set_t *allowed(void)
{
    static cpu_set_t set;
    static bool known;
    if (!known && sched_getaffinity(0, sizeof set, &set))
        CPU_ZERO(&set);
    known = true;
    return &set;
}

unsigned perf_cores(void)
{
    return (unsigned)CPU_COUNT(allowed());
}

void perf_pin_to(unsigned nth, unsigned n)
{
    cpu_set_t some;
    unsigned at = 0;
    CPU_ZERO(&some);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed()))
            continue;
        if (at >= nth && at < nth + n)
            CPU_SET(cpu, &some);
        at++;
    }
    if (CPU_COUNT(&some))
        sched_setaffinity(0, sizeof some, &some);
}

void perf_pin(unsigned nth)
{
    perf_pin_to(nth, 1);
}

bool perf_cores_share(perf_opts_t *o, unsigned processes)
{
    /* a server with shards has a core for each of them in the place of one */
    const unsigned n = perf_cores(), more = o->shards > 1 ? (unsigned)o->shards - 1 : 0;
    o->cores = o->threaded && n >= 2 * processes + more ? 2 : 1;
    return n >= processes + more;
}
