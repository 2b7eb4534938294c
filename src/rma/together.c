/* rma/together.c - all drivers of a runtime with several shards come together, to move a piece of a region's memory.
 *
 *     head:    calls all --> waits --all are here--> moves the piece --> all go on
 *                                 \--one does not come in time--> all go on; later once more, and with more time
 *     others:  here, with no mapped grant that is good, and no fabric key that is out --> wait for the head
 *
 * A driver that writes to the memory while it is copied would lose what it wrote. On one shard that cannot happen, for one driver
 * does both. So the others stop for as long as one piece takes, and the memory is moved as on one shard, piece by piece. This is
 * for peers that were lost or stopped in the middle of a mapped access, so it is rare.
 *
 * A shard may be in a function of the program, which takes as long as it takes. So the head waits a short time, and no shard
 * waits for longer than the head does: for WAIT_MIN at first, up to WAIT_MAX if that was not enough. Between two tries the
 * runtime runs for PAUSES times as long. One that comes too late goes on at once.
 *
 * Promise: while a piece is moved, no driver of the runtime does anything else; none waits without a bound.
 * tests/fault/rma_shards_lost.c. */
#include <time.h>

#include "rma/twins.h"

#define WAIT_MIN (2 * WEFT_MILLISECOND)
#define WAIT_MAX (64 * WEFT_MILLISECOND)
#define PAUSES 8

/* On the way to one further shard. */
typedef struct guest {
    rma_meeting_t *meeting;
    weft_runtime_t *rt;
    wefti_call_t call;
} guest_t;

struct rma_meeting {
    uint64_t wait, not_before; /* the head's */
    pthread_mutex_t lock;      /* of what is beneath */
    pthread_cond_t came, over;
    weft_region_t *region; /* for whose sake; NULL: it is over */
    uint32_t called;       /* calls that have not ended */
    uint32_t here;
    bool held, moved;
    uint32_t n;
    guest_t guests[];
};

static void attend(wefti_call_t *call);

weft_status_t wefti_rma_meeting(rma_state_t *rs)
{
    uint32_t n = wefti_n_shards(rs->rt);
    pthread_condattr_t monotonic;
    if (rs->meeting)
        return WEFT_OK;
    rma_meeting_t *m = (rma_meeting_t *)wefti_calloc(1, sizeof *m + n * sizeof m->guests[0]);
    if (!m)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for regions of %u shards", n);
    m->wait = WAIT_MIN;
    m->n = n;
    for (uint32_t k = 0; k < n; k++) {
        m->guests[k].meeting = m;
        m->guests[k].rt = wefti_shard(rs->rt, k);
        m->guests[k].call.fn = attend;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->came, &monotonic);
    pthread_cond_init(&m->over, NULL);
    pthread_condattr_destroy(&monotonic);
    rs->meeting = m;
    return WEFT_OK;
}

void wefti_rma_meeting_free(rma_meeting_t *m)
{
    if (!m)
        return;
    pthread_cond_destroy(&m->came);
    pthread_cond_destroy(&m->over);
    pthread_mutex_destroy(&m->lock);
    wefti_free(m);
}

uint64_t wefti_rma_together_pause(const weft_region_t *region, uint64_t ns)
{
    const rma_meeting_t *m = region->rs->meeting;
    uint64_t now = wefti_now(region->rt);
    return m->not_before > now + ns ? m->not_before - now : ns;
}

/* --- the others ------------------------------------------------------------------------------------------------------------ */

/* Its twin of the region; NULL: it has none, and gets none until it goes on. */
static weft_region_t *here(const weft_region_t *region, const weft_runtime_t *rt)
{
    weft_region_t *twin = wefti_rma_twin_of(region, wefti_shard_number(rt));
    return twin && !twin->ending ? twin : NULL;
}

/* False: there are fabric keys out. */
static bool prepare(weft_region_t *twin)
{
    wefti_rma_unmap_stale(twin);
    return !wefti_rma_native_hold(twin);
}

static void attend(wefti_call_t *call)
{
    guest_t *guest = wefti_container_of(call, guest_t, call);
    rma_meeting_t *m = guest->meeting;
    bool moved = false;
    pthread_mutex_lock(&m->lock);
    weft_region_t *twin = m->region ? here(m->region, guest->rt) : NULL; /* which stays until this shard lets go of it */
    pthread_mutex_unlock(&m->lock);
    bool ready = !twin || prepare(twin);
    pthread_mutex_lock(&m->lock);
    if (m->region) { /* the same: there is no other before this call has ended */
        m->held |= !ready;
        m->here++;
        pthread_cond_signal(&m->came);
        while (m->region)
            pthread_cond_wait(&m->over, &m->lock);
        moved = m->moved;
        m->here--;
    }
    m->called--;
    pthread_cond_signal(&m->came);
    pthread_mutex_unlock(&m->lock);
    if (moved && twin)
        wefti_rma_twin_moved(twin);
}

/* --- the head -------------------------------------------------------------------------------------------------------------- */

static struct timespec clock_in(uint64_t ns)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ns += (uint64_t)ts.tv_nsec;
    ts.tv_sec += (time_t)(ns / WEFT_SECOND);
    ts.tv_nsec = (long)(ns % WEFT_SECOND);
    return ts;
}

/* Under the lock. False: not all came. */
static bool wait_for_all(rma_meeting_t *m, uint32_t all)
{
    struct timespec until = clock_in(m->wait);
    int failed = 0;
    while (m->here < all && !failed)
        failed = pthread_cond_timedwait(&m->came, &m->lock, &until);
    return m->here == all;
}

static uint32_t call_all(rma_meeting_t *m)
{
    uint32_t all = 0;
    for (uint32_t k = 1; k < m->n; k++) {
        pthread_mutex_lock(&m->lock);
        m->called++;
        pthread_mutex_unlock(&m->lock);
        if (wefti_call_on_driver(m->guests[k].rt, &m->guests[k].call)) {
            all++;
            continue;
        }
        pthread_mutex_lock(&m->lock); /* it is closed */
        m->called--;
        pthread_mutex_unlock(&m->lock);
    }
    return all;
}

static void too_late(rma_meeting_t *m, uint64_t now)
{
    m->not_before = now + PAUSES * m->wait;
    m->wait = 2 * m->wait < WAIT_MAX ? 2 * m->wait : WAIT_MAX;
}

weft_status_t wefti_rma_move_together(weft_region_t *region)
{
    rma_meeting_t *m = region->rs->meeting;
    weft_runtime_t *rt = region->rt;
    weft_status_t st = WEFT_ERR_STATE;
    if (wefti_now(rt) < m->not_before)
        return WEFT_ERR_STATE;
    bool ready = prepare(region);
    pthread_mutex_lock(&m->lock);
    bool late = m->called; /* one that did not come to the last one in time */
    if (!late) {
        m->region = region;
        m->held = !ready;
        m->moved = false;
    }
    pthread_mutex_unlock(&m->lock);
    if (late) {
        too_late(m, wefti_now(rt));
        return WEFT_ERR_STATE;
    }
    uint32_t all = call_all(m);
    pthread_mutex_lock(&m->lock);
    if (!wait_for_all(m, all)) {
        too_late(m, wefti_now(rt));
    } else {
        m->wait = WAIT_MIN;
        if (!m->held)
            st = wefti_rma_move_piece(region);
    }
    m->moved = !st;
    m->region = NULL;
    pthread_cond_broadcast(&m->over);
    while (m->here) /* they only have to wake up */
        pthread_cond_wait(&m->came, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return st;
}
