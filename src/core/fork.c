/* core/fork.c - noticing that this process is a child of the one that opened a runtime.
 *
 * A fabric does not survive fork(): its connections and registrations belong to the parent, and its thread is not here. So
 * every fork counts, and a runtime remembers the count at its opening: comparing the two is what every public call does first.
 * A call that forgets the comparison must not touch the parent's connections, which the child has mapped, too: so in the child
 * the driver of every runtime counts as taken. The handler only counts and stores; it is legal between fork() and exec().
 * tests/unit/core_fork.c. */
#include <pthread.h>

#include "core/local.h"

uint32_t wefti_fork_generation;

/* Every open runtime. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wefti_list_t runtimes = {&runtimes, &runtimes};

void wefti_fork_list(weft_runtime_t *rt)
{
    pthread_mutex_lock(&lock);
    wefti_list_push_back(&runtimes, &rt->fork_link);
    pthread_mutex_unlock(&lock);
}

void wefti_fork_unlist(weft_runtime_t *rt)
{
    pthread_mutex_lock(&lock);
    if (wefti_list_linked(&rt->fork_link))
        wefti_list_remove(&rt->fork_link);
    pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    wefti_fork_generation++;
    for (wefti_list_t *l; (l = wefti_list_pop(&runtimes));)
        atomic_store(&wefti_container_of(l, weft_runtime_t, fork_link)->driver, 1);
    wefti_driven = NULL; /* if a callback forked: its driver is the parent's thread */
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    if (pthread_atfork(before_fork, in_parent, in_child))
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
