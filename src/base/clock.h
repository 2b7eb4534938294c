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

/* The processor's counter where reading that costs less than the clock: for rough intervals. */
#if defined(__x86_64__) || defined(__i386__)
#define WEFTI_TICKS_US 3000u /* 0.7 to 3 us at the rates such counters have */
static inline uint64_t wefti_ticks(void) { return __builtin_ia32_rdtsc(); }
#else
#define WEFTI_TICKS_US 1000u
static inline uint64_t wefti_ticks(void) { return wefti_clock_ns(); }
#endif

#endif
