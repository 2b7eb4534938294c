/* fabric/shm/transport.c - what every progress does: closings, bells, hot lanes, work; and how the transport goes to sleep.
 *
 * To sleep is to say so (`sleeping`), to park every lane, and to look once more at all that could have come meanwhile; a peer
 * publishes, rings, and then looks at `sleeping`. park.c and bell.c say why one of the two always sees the other.
 *
 * Work (copies, streams, failures to report) is a list of lanes; a lane that only waits for space is not on it: its bell will
 * ring. Lanes are freed at the beginning of a progress, where no loop and no upcall can hold one.
 *
 * Any peer can silence our bells. So every SWEEP_CALLS, and before a sleep if the last look was SWEEP_NS ago, every lane is
 * looked at, and what has something gets its bell rung by ourselves. A runtime never sleeps for more than a quarter of a second
 * (core/sleep.c).
 *
 * Promise: an armed transport whose fd stays unreadable has nothing to do, if its peers are honest; a hostile one can make the
 * records of others late, but loses none. tests/wire/fabric_shm_sleep.c (200,000 random sleeps) holds us to it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

/* Progress calls without a look at the bell after it was answered: bells then come in batches, and the line they are in does
 * not go back and forth for each (100 lanes: 20 M/s instead of 13). A ring that comes alone is answered at once. */
#define BELL_REST 16u
#define SWEEP_CALLS 65536u
#define SWEEP_NS 100000000u
#define WAKE_READS 1024 /* of 64 bytes: as much as a pipe holds */

weft_status_t wefti_shm_open(wefti_fabric_t *f, const wefti_config_t *config, wefti_transport_t **transport_out)
{
    uint64_t ring = config->shm_ring;
    if (ring < WEFTI_RING_SMALLEST || ring > WEFTI_RING_LARGEST || (ring & (ring - 1)))
        return wefti_fail(WEFT_ERR_INVALID, "WEFT_SHM_RING is %llu bytes; it must be a power of two between 16k and 64M",
                          (unsigned long long)ring);
    wefti_shm_transport_t *r = wefti_aligned_alloc(64, sizeof *r);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the shm transport");
    wefti_shm_barriers_early();
    memset(r, 0, sizeof *r);
    r->transport = (wefti_transport_t){.ops = &wefti_shm_ops, .fabric = f, .kind = WEFTI_SHM_KIND, .name = "shm", .fd = -1};
    r->ring_bytes = (uint32_t)ring;
    r->frame_max = wefti_shm_frame_max((uint32_t)ring);
    r->sharing = !config->share_lanes || strcmp(config->share_lanes, "off");
    r->copy_ring = config->shm_copy && !strcmp(config->shm_copy, "ring");
    r->copy_alone = config->shm_copy && !strcmp(config->shm_copy, "kernel");
    wefti_list_t *lists[] = {&r->work, &r->closing, &r->cooling, &r->gone, &r->mapped};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
    r->door.fd = -1;
    r->until_sweep = SWEEP_CALLS;
    r->max_mapped = WEFTI_SHM_MAPPED_MAX;
    r->max_mapped_bytes = WEFTI_SHM_MAPPED_BYTES;
    pthread_mutex_init(&r->share_lock, NULL);
    wefti_slots_init(&r->lanes, UINT32_C(1) << 24);
    wefti_shm_boot_id(r);
    *transport_out = &r->transport;
    return WEFT_OK;
}

void wefti_shm_close(wefti_transport_t *transport)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    for (int carriers = 0; carriers < 2; carriers++) /* behind their guests */
        for (uint32_t i = 0; i < r->lanes.n; i++) {
            wefti_shm_lane_t *lane = wefti_shm_lane_at(r, i);
            if (!lane || (lane->guests && !carriers))
                continue;
            wefti_shm_lane_close(&lane->lane);
            wefti_shm_lane_end(lane, true);
        }
    wefti_spares_free(&r->spare_sends);
    wefti_spares_free(&r->spare_pulls);
    wefti_shm_arenas_close(r);
    wefti_bell_close(r);
    wefti_shm_door_close(r);
    wefti_slots_free(&r->lanes);
    wefti_map_free(&r->peers);
    wefti_map_free(&r->offers);
    wefti_free(r);
}

void wefti_shm_work(wefti_shm_lane_t *lane)
{
    wefti_shm_transport_t *r = wefti_shm_transport_of(lane);
    if (wefti_list_linked(&lane->work_link))
        return;
    wefti_list_push_back(&r->work, &lane->work_link);
    if (WEFTI_UNLIKELY(r->armed))
        wefti_bell_wake(&r->self);
}

/* --- bells -------------------------------------------------------------------------------------------------------- */

static unsigned answer_word(wefti_shm_transport_t *r, uint32_t word)
{
    unsigned n = 0;
    uint64_t bits = atomic_exchange(&r->bell->word[word], 0);
    for (; bits; bits &= bits - 1) {
        uint32_t index = word * 64 + (uint32_t)__builtin_ctzll(bits);
        for (; index < r->lanes.n; index += WEFTI_BELL_BITS) {
            wefti_shm_lane_t *lane = wefti_shm_lane_at(r, index);
            if (!lane)
                continue;
            unsigned got = wefti_shm_lane_visit(lane);
            n += got;
            if (got && !lane->hot && lane->state == WEFTI_SHM_LANE_UP)
                wefti_shm_heat(lane);
        }
    }
    return n;
}

static unsigned answer_bells(wefti_shm_transport_t *r)
{
    unsigned n = 0;
    uint64_t lines = atomic_exchange(&r->bell->top, 0);
    for (; lines; lines &= lines - 1) {
        uint32_t first = (uint32_t)__builtin_ctzll(lines) * 8;
        for (uint32_t word = first; word < first + 8; word++)
            if (atomic_load_explicit(&r->bell->word[word], memory_order_relaxed))
                n += answer_word(r, word);
    }
    return n;
}

/* Look at every lane, as if no bell could be trusted: true if one has something. */
static bool sweep(wefti_shm_transport_t *r)
{
    bool any = false;
    r->until_sweep = SWEEP_CALLS;
    for (uint32_t i = 0; i < r->lanes.n; i++) {
        wefti_shm_lane_t *lane = wefti_shm_lane_at(r, i);
        if (!lane || !wefti_shm_lane_has_something(lane))
            continue;
        wefti_bell_ring(&r->self, i);
        any = true;
    }
    return any;
}

/* --- progress and sleep ------------------------------------------------------------------------------------------- */

static unsigned do_work(wefti_shm_transport_t *r)
{
    unsigned n = 0;
    uint64_t budget = WEFTI_SHM_COPY_BUDGET;
    wefti_list_t todo, served, *it;
    wefti_list_init(&todo);
    wefti_list_init(&served);
    wefti_list_splice(&todo, &r->work);
    while ((it = wefti_list_pop(&todo))) {
        uint64_t before = budget;
        n += wefti_shm_lane_work(wefti_container_of(it, wefti_shm_lane_t, work_link), &budget);
        if (budget != before && wefti_list_linked(it)) { /* next time, those come first that had nothing of the budget */
            wefti_list_remove(it);
            wefti_list_push_back(&served, it);
        }
    }
    wefti_list_splice(&r->work, &served);
    return n;
}

static unsigned do_closing(wefti_shm_transport_t *r)
{
    unsigned n = 0;
    wefti_list_t todo, *it;
    wefti_list_init(&todo);
    wefti_list_splice(&todo, &r->closing);
    while ((it = wefti_list_first(&todo))) {
        wefti_shm_lane_end(wefti_container_of(it, wefti_shm_lane_t, close_link), false);
        n++;
    }
    return n;
}

unsigned wefti_shm_progress(wefti_transport_t *transport)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    unsigned n = 0;
    if (WEFTI_UNLIKELY(!r->bell))
        return 0;
    if (WEFTI_UNLIKELY(!wefti_list_empty(&r->closing)))
        n += do_closing(r);
    if (WEFTI_UNLIKELY(atomic_load_explicit(&r->n_gone, memory_order_relaxed)))
        n += wefti_shm_shares_gone(r);
    if (WEFTI_UNLIKELY(r->bell_rest)) {
        r->bell_rest--;
    } else if (WEFTI_UNLIKELY(atomic_load_explicit(&r->bell->top, memory_order_relaxed))) {
        n += answer_bells(r);
        r->bell_rest = BELL_REST;
    }
    if (WEFTI_UNLIKELY(!--r->until_sweep))
        sweep(r);
    n += wefti_shm_poll_hot(r);
    if (WEFTI_UNLIKELY(!wefti_list_empty(&r->work)))
        n += do_work(r);
    return n;
}

weft_status_t wefti_shm_arm(wefti_transport_t *transport)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    if (!r->bell)
        return WEFT_OK;
    if (!wefti_list_empty(&r->work) || !wefti_list_empty(&r->closing) || atomic_load(&r->n_gone))
        return WEFT_ERR_AGAIN;
    r->bell_rest = 0;
    if (atomic_load_explicit(&r->bell->top, memory_order_relaxed))
        return WEFT_ERR_AGAIN;
    uint64_t now = wefti_clock_ns();
    if (now - r->swept >= SWEEP_NS) {
        r->swept = now;
        if (sweep(r))
            return WEFT_ERR_AGAIN;
    }
    r->armed = true;
    atomic_exchange(&r->bell->sleeping, 1);
    if (wefti_shm_park_all(r) && !atomic_load(&r->bell->top))
        return WEFT_OK;
    wefti_shm_disarm(transport);
    return WEFT_ERR_AGAIN;
}

void wefti_shm_disarm(wefti_transport_t *transport)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    char bytes[64];
    if (!r->armed)
        return;
    r->armed = false;
    r->bell_rest = 0;
    atomic_store(&r->bell->sleeping, 0);
    wefti_shm_unpark_hot(r);
    /* Whoever took the flag has written its byte, or does so soon: then the sleep after this one may end for nothing. Reading
     * even when nobody took it keeps bytes that came from nowhere from ending every sleep. Somebody may write faster than we
     * read. */
    for (int i = 0; i < WAKE_READS && read(r->self.wake_fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes; i++)
        ;
}
