/* rpc/line.h - the line in which the requests of one shard wait for a thread. The driver of the shard puts in and takes back, any
 * thread takes, oldest first, one at a time, without a lock.
 *
 * It is a ring of pointers. Who moves `head` over a place owns what lies there and takes it out by an exchange. A place is used
 * again when it is empty: a taker that lost its processor between the two is in nobody's way. What finds its place in use is
 * spilled: it goes on a list under a lock, and so does everything behind it. Takers that find the ring empty move the oldest of
 * the list up, many at a time. The driver writes to the ring while the list is empty, and the holder of the lock while it is
 * not: there is one writer at any time.
 *
 * A request that is taken back leaves DEAD in its place, which costs nothing but the place.
 *
 * Whether a request is run is decided by its `place` (serve.h), not here: a taker may hold one that was called off meanwhile. */
#ifndef WEFTI_RPC_LINE_H
#define WEFTI_RPC_LINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "rpc/state.h"

#define RPC_LINE 256u /* places of the ring */

typedef struct rpc_line {
    /* the driver's, or of the holder of the lock while something is spilled */
    _Alignas(64) _Atomic uint64_t tail;
    weft_runtime_t *rt;           /* its shard, which may be closed: the memory of a runtime stays one */
    /* moved by takers */
    _Alignas(64) _Atomic uint64_t head;
    /* seldom written: */
    _Alignas(64) _Atomic uint32_t spilled; /* on the list. The driver alone makes it more than 0 */
    _Atomic uint32_t dead;        /* places of the ring whose requests were taken back */
    pthread_mutex_t lock;
    wefti_list_t spill;           /* rpc_request_t.spill_link */
    _Alignas(64) _Atomic(rpc_request_t *) places[RPC_LINE];
} rpc_line_t;

void wefti_line_init(rpc_line_t *l, weft_runtime_t *rt);
void wefti_line_fini(rpc_line_t *l);
/* By its driver. What is put in before a thread says that it sleeps is seen by that thread, or the driver sees it asleep: both
 * are sequentially consistent. */
void wefti_line_put(rpc_line_t *l, rpc_request_t *r);
/* By its driver: true, nobody has it any more. False: someone has taken it. */
bool wefti_line_take_back(rpc_line_t *l, rpc_request_t *r);
rpc_request_t *wefti_line_take(rpc_line_t *l); /* the oldest; NULL: there is none. Any thread */
uint32_t wefti_line_waiting(rpc_line_t *l);    /* how many; any thread */

/* May there be something to take? Any thread. */
static inline bool wefti_line_waits(rpc_line_t *l)
{
    return atomic_load(&l->head) != atomic_load(&l->tail) || atomic_load(&l->spilled);
}

#endif
