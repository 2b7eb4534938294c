/* rpc/line.c - what line.h says.
 *
 * Promise: what was put in comes out once: to one taker, or back to the driver. Requests of a line come out in their order; two
 * that are taken at the same moment may be begun in any. tests/unit/rpc_line.c. */
#include "rpc/line.h"

#include "base/relax.h"
#include "rpc/serve.h"

static rpc_request_t dead_request;
#define DEAD (&dead_request) /* its address alone */

void wefti_line_init(rpc_line_t *l, weft_runtime_t *rt)
{
    memset(l, 0, sizeof *l);
    l->rt = rt;
    wefti_list_init(&l->spill);
    pthread_mutex_init(&l->lock, NULL);
}

void wefti_line_fini(rpc_line_t *l)
{
    pthread_mutex_destroy(&l->lock);
}

/* By the writer. False: its place is in use. */
static bool write_ring(rpc_line_t *l, rpc_request_t *r)
{
    uint64_t at = atomic_load_explicit(&l->tail, memory_order_relaxed);
    _Atomic(rpc_request_t *) *place = &l->places[at % RPC_LINE];
    if (atomic_load_explicit(place, memory_order_acquire))
        return false;
    r->ring_at = (uint32_t)(at % RPC_LINE);
    atomic_store_explicit(place, r, memory_order_release);
    atomic_store(&l->tail, at + 1);
    return true;
}

void wefti_line_put(rpc_line_t *l, rpc_request_t *r)
{
    if (!atomic_load_explicit(&l->spilled, memory_order_acquire) && write_ring(l, r))
        return;
    pthread_mutex_lock(&l->lock);
    r->spilled = true;
    wefti_list_push_back(&l->spill, &r->spill_link);
    atomic_fetch_add(&l->spilled, 1);
    pthread_mutex_unlock(&l->lock);
}

bool wefti_line_take_back(rpc_line_t *l, rpc_request_t *r)
{
    rpc_request_t *mine = r;
    pthread_mutex_lock(&l->lock);
    bool found = r->spilled;
    if (found) {
        r->spilled = false;
        wefti_list_remove(&r->spill_link);
        atomic_fetch_sub(&l->spilled, 1);
    } else if (atomic_compare_exchange_strong(&l->places[r->ring_at], &mine, DEAD)) {
        found = true;
        atomic_fetch_add_explicit(&l->dead, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

/* --- takers --------------------------------------------------------------------------------------------------------------- */

/* NULL: the ring is empty. */
static rpc_request_t *take_ring(rpc_line_t *l)
{
    uint64_t at = atomic_load_explicit(&l->head, memory_order_acquire);
    while (at < atomic_load(&l->tail)) {
        if (!atomic_compare_exchange_weak(&l->head, &at, at + 1)) {
            wefti_cpu_relax();
            continue;
        }
        rpc_request_t *r = atomic_exchange(&l->places[at % RPC_LINE], NULL);
        if (r != DEAD)
            return r;
        atomic_fetch_sub_explicit(&l->dead, 1, memory_order_relaxed);
        at = atomic_load_explicit(&l->head, memory_order_acquire);
    }
    return NULL;
}

/* Under the lock: the first of the list. */
static rpc_request_t *first_spilled(const rpc_line_t *l)
{
    wefti_list_t *first = wefti_list_first(&l->spill);
    return first ? wefti_container_of(first, rpc_request_t, spill_link) : NULL;
}

static void unspill(rpc_request_t *r)
{
    r->spilled = false;
    wefti_list_remove(&r->spill_link);
}

/* The oldest of the list, if the ring is empty. More of them go to the ring, so that the next takers need no lock. */
static rpc_request_t *take_spilled(rpc_line_t *l)
{
    rpc_request_t *r = NULL, *next;
    uint32_t n = 0;
    pthread_mutex_lock(&l->lock);
    if (atomic_load(&l->head) == atomic_load(&l->tail) && (r = first_spilled(l))) {
        unspill(r);
        n = 1;
        /* what moves counts in both places for a moment */
        for (; n < RPC_LINE && (next = first_spilled(l)); n++) {
            unspill(next);
            if (!write_ring(l, next)) {
                next->spilled = true;
                wefti_list_push_front(&l->spill, &next->spill_link);
                break;
            }
        }
        atomic_fetch_sub(&l->spilled, n); /* the last: with 0 the driver writes to the ring again */
    }
    pthread_mutex_unlock(&l->lock);
    return r;
}

rpc_request_t *wefti_line_take(rpc_line_t *l)
{
    rpc_request_t *r;
    do {
        r = take_ring(l);
    } while (!r && atomic_load(&l->spilled) && !(r = take_spilled(l)));
    return r;
}

uint32_t wefti_line_waiting(rpc_line_t *l)
{
    uint64_t head = atomic_load(&l->head), tail = atomic_load(&l->tail);
    uint64_t n = tail - head + atomic_load(&l->spilled), dead = atomic_load_explicit(&l->dead, memory_order_relaxed);
    return n > dead ? (uint32_t)(n - dead) : 0; /* others take and put meanwhile */
}
