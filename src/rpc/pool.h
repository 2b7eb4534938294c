/* rpc/pool.h - what the two files of a pool share: pool.c makes it, ends it and gives it requests, worker.c takes them.
 *
 * The requests of each shard wait in a line (line.h), and every thread takes from every line, one request at a time: none is
 * bound to a thread that may be held up by the request before it.
 *
 * A wake-up costs several microseconds at both ends. So while a thread looks for work, or was called and has not come yet, nobody
 * is called: a burst of requests costs the driver one wake-up or none. A looking thread that takes a request calls the next, if
 * more wait, before it runs the function. So no request waits while a thread sleeps and none looks.
 *
 *     runs --lines are empty--> looks --found nothing for a while--> sleeps --called--> looks
 *
 * `state` counts threads that sleep and threads that look. As long as nobody sleeps nobody has to be called, and then threads of
 * a pool that is loaded look without being counted: neither they nor the drivers write to anything that all of them share. */
#ifndef WEFTI_RPC_POOL_H
#define WEFTI_RPC_POOL_H

#include <semaphore.h>

#include "rpc/line.h"
#include "rpc/serve.h"

/* Who takes requests: a thread, or the driver of functions that are `serial`. */
typedef struct rpc_worker {
    _Alignas(64) rpc_pool_t *pool;
    pthread_t thread;
    rpc_state_t *kept;        /* the state of a runtime that it keeps; NULL: none */
    uint32_t at, stayed;      /* its line, and how many of it in a row */
    uint32_t crowded;         /* see CROWDED */
    bool looks;               /* it counts in `state` as one that looks */
    bool owes;                /* others rely on it: when it has taken a request it calls the next */
    uint64_t until;           /* when it has looked for long enough; 0: it has not begun to */
    _Atomic bool running;
} rpc_worker_t;

struct rpc_pool {
    weft_service_t *service;
    uint32_t n_lines, n, look_most;
    uint64_t spin_ns;
    bool gone;                /* the driver's */
    wefti_call_t call;        /* without threads: works the lines off */
    weft_op_t op;             /* completes when all have left */
    _Atomic bool working;     /* without threads: `call` is on its way, or under way */
    _Atomic uint32_t alive;
    _Atomic uint64_t no_spin_until, wakeups;
    sem_t called;
    _Alignas(64) _Atomic uint32_t state; /* ASLEEP and LOOKING, times the number of threads */
    _Atomic bool stop;
    rpc_line_t *lines;        /* by shard */
    rpc_worker_t *workers;    /* one at least */
};

#define POOL_ASLEEP 1u
#define POOL_LOOKING (1u << 16) /* there are at most THREADS_MAX of both: service.c */
static inline uint32_t rpc_asleep(uint32_t state) { return state & (POOL_LOOKING - 1); }
static inline uint32_t rpc_looking(uint32_t state) { return state / POOL_LOOKING; }

static inline bool rpc_pool_waits(rpc_pool_t *p)
{
    for (uint32_t i = 0; i < p->n_lines; i++)
        if (wefti_line_waits(&p->lines[i]))
            return true;
    return false;
}

/* worker.c */
void wefti_rpc_pool_call_one(rpc_pool_t *p);  /* something waits: call a thread, unless one looks */
void *wefti_rpc_pool_thread(void *worker);
void wefti_rpc_pool_serial(wefti_call_t *call); /* without threads: rpc_pool_t.call */

#endif
