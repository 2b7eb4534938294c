/* base/clock.h - monotonic time, nanoseconds. */
#ifndef WEFTI_CLOCK_H
#define WEFTI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t wefti_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

#endif
