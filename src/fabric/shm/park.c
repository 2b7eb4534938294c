/* fabric/shm/park.c - which lanes are polled, and how a lane stops being polled without losing a record.
 *
 * A lane is hot (polled by every progress, `parked` 0) or parked (`parked` 1: its producer rings). A parked lane that has
 * something becomes hot when one of the few places is free, or held by a lane that was quiet for long; a quiet lane is parked
 * when others are hot too, so the last one is polled until we sleep.
 *
 * The producer stores a record and then looks at `parked`; the consumer stores `parked` and then looks at the ring. One of
 * them must see the other's store, which takes a barrier between store and look on BOTH sides. The producer's would be paid
 * for every record, the consumer's only when it parks. So where the kernel offers it the consumer pays both: membarrier()
 * makes every running thread of the registered processes execute one. A producer whose consumer does that publishes light
 * (ring.h).
 *
 * A light lane is parked in two steps, because membarrier() is a system call and interrupts the peer: first the flag, and the
 * lane is cooling: still looked at now and then, since a producer may not have seen the flag; then, when many are cooling or
 * we go to sleep, one barrier for all of them and the last look. While records flow on a few lanes this never enters the
 * kernel.
 *
 * Only progress, arm and disarm move these states. tests/wire/fabric_shm_sleep.c (sleeps and races, with and without
 * barriers) holds us to no lost record. */
#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "fabric/shm/internal.h"

#define COOLING_LOOK 64u /* progress calls between two looks at cooling lanes */

static int membarrier(int cmd)
{
    return (int)syscall(SYS_membarrier, cmd, 0, 0);
}

/* Registering a process of several threads waits for the kernel to have seen all processors pass by: some twenty milliseconds, in
 * the middle of the first connection. While there is one thread it costs nothing, and once it is done it is done. */
void wefti_shm_barriers_early(void)
{
    if (__libc_single_threaded)
        membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED); /* whether it worked is asked when it is needed */
}

void wefti_shm_barriers_open(wefti_shm_transport_t *r)
{
    int can = membarrier(MEMBARRIER_CMD_QUERY);
    int need = MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    r->barriers = can > 0 && (can & need) == need && !membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) &&
                  !membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

static void barrier_everywhere(wefti_shm_transport_t *r)
{
    if (!r->barriers || !membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED))
        return;
    /* It worked before: someone forbade it since. A store reaches the cache within a microsecond; wait for a hundred. */
    wefti_debug("shm: membarrier: %s", strerror(errno));
    struct timespec pause = {0, 100000};
    nanosleep(&pause, NULL);
}

static bool has_something(const wefti_shm_lane_t *lane)
{
    return lane->state == WEFTI_SHM_LANE_UP && !wefti_ring_empty(&lane->rx);
}

/* --- cooling ------------------------------------------------------------------------------------------------------ */

static void uncool(wefti_shm_transport_t *r, wefti_shm_lane_t *lane)
{
    if (!wefti_list_linked(&lane->cool_link))
        return;
    wefti_list_remove(&lane->cool_link);
    r->n_cooling--;
}

/* Cooling lanes that have something get their bell rung; after a barrier that look was the last one. True if there was any. */
static bool look_at_cooling(wefti_shm_transport_t *r, bool last)
{
    bool any = false;
    wefti_list_each_safe(it, &r->cooling) {
        wefti_shm_lane_t *lane = wefti_container_of(it, wefti_shm_lane_t, cool_link);
        if (has_something(lane)) {
            wefti_bell_ring(&r->self, wefti_shm_lane_index(lane));
            any = true;
        }
        if (last)
            uncool(r, lane);
    }
    return any;
}

/* --- hot ---------------------------------------------------------------------------------------------------------- */

static void drop_hot(wefti_shm_transport_t *r, uint32_t place)
{
    r->hot[place]->hot = false;
    r->hot[place] = r->hot[--r->n_hot];
}

void wefti_shm_forget(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    uncool(r, lane);
    for (uint32_t i = 0; lane->hot && i < r->n_hot; i++)
        if (r->hot[i] == lane)
            drop_hot(r, i);
}

void wefti_shm_replace(wefti_shm_lane_t *lane, wefti_shm_lane_t *by)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    if (wefti_list_linked(&lane->cool_link)) {
        wefti_list_remove(&lane->cool_link);
        wefti_list_push_back(&r->cooling, &by->cool_link);
    }
    for (uint32_t i = 0; lane->hot && i < r->n_hot; i++)
        if (r->hot[i] == lane)
            r->hot[i] = by;
    by->hot = lane->hot;
    lane->hot = false;
}

/* Park the lane in this place unless a record came meanwhile. */
static bool park(wefti_shm_transport_t *r, uint32_t place)
{
    wefti_shm_lane_t *lane = r->hot[place];
    atomic_exchange(&lane->rx.page->parked, 1);
    if (!wefti_ring_empty(&lane->rx)) {
        atomic_store_explicit(&lane->rx.page->parked, 0, memory_order_release);
        lane->quiet = 0;
        return false;
    }
    drop_hot(r, place);
    if (lane->light) {
        wefti_list_push_back(&r->cooling, &lane->cool_link);
        if (++r->n_cooling >= WEFTI_SHM_COOLING_MAX) {
            barrier_everywhere(r);
            look_at_cooling(r, true);
        }
    }
    return true;
}

void wefti_shm_heat(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    for (uint32_t i = 0; r->n_hot == WEFTI_SHM_HOT_MAX && i < WEFTI_SHM_HOT_MAX; i++)
        if (r->hot[i]->quiet >= WEFTI_SHM_QUIET)
            park(r, i);
    if (r->n_hot == WEFTI_SHM_HOT_MAX)
        return;
    uncool(r, lane);
    lane->hot = true;
    lane->quiet = 0;
    r->hot[r->n_hot++] = lane;
    /* Late for a producer that looks just now: it rings once too often. */
    atomic_store_explicit(&lane->rx.page->parked, 0, memory_order_release);
}

unsigned wefti_shm_poll_hot(wefti_shm_transport_t *r)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < r->n_hot; i++) {
        wefti_shm_lane_t *lane = r->hot[i];
        if (!wefti_ring_empty(&lane->rx)) {
            if (WEFTI_LIKELY(lane->state == WEFTI_SHM_LANE_UP))
                n += wefti_shm_lane_poll(lane);
            lane->quiet = 0;
        } else if (WEFTI_UNLIKELY(++lane->quiet >= WEFTI_SHM_QUIET) && r->n_hot > 1 && park(r, i)) {
            i--;
        }
    }
    if (WEFTI_UNLIKELY(r->n_cooling) && ++r->ticks % COOLING_LOOK == 0)
        look_at_cooling(r, false);
    return n;
}

/* --- sleep -------------------------------------------------------------------------------------------------------- */

bool wefti_shm_park_all(wefti_shm_transport_t *r)
{
    for (uint32_t i = 0; i < r->n_hot; i++)
        atomic_exchange(&r->hot[i]->rx.page->parked, 1);
    /* Cheaper first: often there is something. */
    for (uint32_t i = 0; i < r->n_hot; i++)
        if (has_something(r->hot[i]))
            return false;
    barrier_everywhere(r);
    bool any = look_at_cooling(r, true);
    for (uint32_t i = 0; i < r->n_hot; i++)
        any = any || has_something(r->hot[i]);
    return !any;
}

void wefti_shm_unpark_hot(wefti_shm_transport_t *r)
{
    for (uint32_t i = 0; i < r->n_hot; i++)
        atomic_store_explicit(&r->hot[i]->rx.page->parked, 0, memory_order_release);
}
