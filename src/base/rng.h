/* base/rng.h - small seeded generator (splitmix64) for jitter, simulation and tests. Never for secrets. */
#ifndef WEFTI_RNG_H
#define WEFTI_RNG_H

#include <stdint.h>

typedef struct wefti_rng {
    uint64_t state;
} wefti_rng_t;

static inline uint64_t wefti_rng_next(wefti_rng_t *r)
{
    uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
/* 0 .. n-1; n > 0. */
static inline uint64_t wefti_rng_below(wefti_rng_t *r, uint64_t n) { return wefti_rng_next(r) % n; }
/* A random time from half of it to all of it, so that many who wait for one thing do not come at once. */
static inline uint64_t wefti_rng_jitter(wefti_rng_t *r, uint64_t ns) { return ns / 2 + wefti_rng_below(r, ns / 2 + 1); }

#endif
