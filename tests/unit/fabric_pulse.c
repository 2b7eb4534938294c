/* The arithmetic of heartbeats (fabric/pulse.h), with a clock of the test's own: who is lost, and when. */
#include "test.h"

#include "fabric/pulse.h"

enum { BOUND = 8000, EVERY = BOUND / WEFTI_BEATS };

static wefti_pulse_t started(uint64_t now)
{
    wefti_pulse_t p;
    wefti_pulse_start(&p, EVERY, now);
    wefti_pulse_watch(&p, BOUND, now);
    return p;
}

/* Tick on time until the peer is lost; when that was. `last`: nothing is heard after it. `late`: how late each tick runs. */
static uint64_t lost_at(wefti_pulse_t *p, uint64_t last, uint64_t late)
{
    uint64_t before = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t now = p->due + late;
        bool heard = last > before && last <= now;
        before = now;
        if (wefti_pulse_tick(p, now, heard))
            return now;
    }
    return UINT64_MAX;
}

TEST(a_silent_peer_is_lost_between_three_quarters_and_seven_eighths_of_the_bound_after_its_last_beat)
{
    for (uint64_t last = 1; last < 4 * EVERY; last += 37)
        for (uint64_t late = 0; late < EVERY / 2; late += 83) {
            wefti_pulse_t p = started(0);
            uint64_t at = lost_at(&p, last, late);
            CHECK(at >= last + BOUND / 8 * 5);
            CHECK(at <= last + BOUND / 8 * 7 + late);
        }
}

TEST(a_peer_that_beats_is_never_lost)
{
    for (uint64_t late = 0; late < 3 * EVERY; late += 171) {
        wefti_pulse_t p = started(0);
        for (int i = 0; i < 1000; i++)
            CHECK(!wefti_pulse_tick(&p, p.due + late, true));
    }
}

TEST(ticks_stay_on_their_grid_however_late_each_of_them_is)
{
    wefti_pulse_t p = started(123);
    uint64_t first = p.due;
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK_EQ(p.due, first + i * EVERY);
        wefti_pulse_tick(&p, p.due + i % EVERY, true);
    }
}

TEST(a_process_that_was_stopped_itself_does_not_blame_its_peers_at_once)
{
    wefti_pulse_t p = started(0);
    CHECK(!wefti_pulse_tick(&p, p.due, true));
    CHECK(!wefti_pulse_tick(&p, p.due + 100 * BOUND, false));
    CHECK(!wefti_pulse_tick(&p, p.due, false)); /* and gives them their bound again */
}

TEST(a_process_that_is_always_starved_finds_its_dead_all_the_same)
{
    wefti_pulse_t p = started(0);
    uint64_t at = lost_at(&p, 0, 5 * EVERY);
    CHECK(at < 4 * BOUND);
}

TEST(a_peer_that_is_not_watched_yet_is_not_lost)
{
    wefti_pulse_t p;
    wefti_pulse_start(&p, EVERY, 0);
    CHECK_EQ(lost_at(&p, 0, 0), UINT64_MAX);
}
