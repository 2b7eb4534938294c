/* core/fork.c - noticing that this process is a child of the one that opened a runtime.
 *
 * A fabric does not survive fork(): its connections and registrations belong to the parent, and its thread is not here. So every
 * fork counts, and a runtime remembers the count at its opening: comparing the two is what every public call does first. The
 * handler only counts; it is legal between fork() and exec(). tests/unit/core_fork.c holds us to it. */
#include <pthread.h>

#include "core/local.h"

uint32_t wefti_fork_generation;

static void in_child(void)
{
    wefti_fork_generation++;
}

static void install(void)
{
    if (pthread_atfork(NULL, NULL, in_child))
        wefti_error("no memory to notice forks: a forked child must not use the parent's runtimes");
}

void wefti_fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

weft_status_t wefti_fail_gone(const weft_runtime_t *rt)
{
    uint32_t generation = atomic_load_explicit(&rt->fork_generation, memory_order_relaxed);
    if (generation == WEFTI_CLOSED_GENERATION || generation == wefti_fork_generation) /* the latter: in a moment */
        return wefti_fail(WEFT_ERR_CLOSED, "the runtime is closed");
    return wefti_fail(WEFT_ERR_FORKED, "this process was forked after the runtime was opened; open a new one here");
}
