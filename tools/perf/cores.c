/* tools/perf/cores.c - which core each thread runs on.
 *
 * Two threads on one core measure the scheduler. So each process of --fork has a core of its own; with --mode thread it has two
 * threads, the one that measures and the one that drives, and two cores where there are enough for all. */
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

void perf_pin(unsigned nth)
{
    cpu_set_t one;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, allowed()) && !nth--) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

bool perf_cores_share(perf_opts_t *o, unsigned processes)
{
    const unsigned n = perf_cores();
    o->cores = o->threaded && n >= 2 * processes ? 2 : 1;
    return n >= processes;
}
