/* fabric/pulse.h - the arithmetic of heartbeats on one wire: when to send one, and when a silent peer is lost.
 *
 * Each side ticks WEFTI_BEATS times in the smaller of both sides' bounds, on a grid of time, so that one late tick does not make
 * the next one late. At each tick it sends a beat and looks whether the peer was heard since the last one. A peer that was not
 * heard for three quarters of our bound is lost. A tick stamps what it heard up to one tick late, so a peer that stops is found
 * between 3/4 and 7/8 of the bound after its last beat; the last eighth is for a machine that is too busy to be on time.
 *
 * If our own tick comes more than two ticks late, this process was stopped or starved, and the silence may be its own. Then the
 * count begins anew, but not more than twice without a message from the peer: a process that is always starved would otherwise
 * never find a dead peer. tests/unit/fabric_pulse.c holds us to this, with a clock of its own. */
#ifndef WEFTI_PULSE_H
#define WEFTI_PULSE_H

#include <stdbool.h>
#include <stdint.h>

#include "fabric/fabric.h"

#define WEFTI_PULSE_EXCUSES 2u

typedef struct wefti_pulse {
    uint64_t every; /* ns between two ticks */
    uint64_t bound; /* 0: the peer is not judged (yet) */
    uint64_t due;   /* the next tick */
    uint64_t heard; /* the tick that last heard the peer */
    uint32_t excused;
} wefti_pulse_t;

static inline void wefti_pulse_start(wefti_pulse_t *p, uint64_t every, uint64_t now)
{
    *p = (wefti_pulse_t){.every = every ? every : 1};
    p->due = (now / p->every + 1) * p->every;
}

/* Judge the peer from now on. */
static inline void wefti_pulse_watch(wefti_pulse_t *p, uint64_t bound, uint64_t now)
{
    p->bound = bound;
    p->heard = now;
    p->excused = 0;
}

/* A tick at `now`, which is not before `due`. `heard`: something came from the peer since the last one. True: it is lost. */
static inline bool wefti_pulse_tick(wefti_pulse_t *p, uint64_t now, bool heard)
{
    uint64_t late = now - p->due;
    p->due = (now / p->every + 1) * p->every;
    if (heard) {
        p->heard = now;
        p->excused = 0;
    } else if (late > 2 * p->every && p->excused < WEFTI_PULSE_EXCUSES) {
        p->heard = now;
        p->excused++;
    }
    /* half a tick: both ends of the interval are times of ticks, each late by as long as the thread took to run */
    return p->bound && now - p->heard + p->every / 2 >= p->bound - p->bound / 4;
}

#endif
