/* tests/must.h - for the libraries of tests: the time, and calls that must succeed. */
#ifndef WEFT_TEST_MUST_H
#define WEFT_TEST_MUST_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <weft/status.h>

static inline double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static inline void must(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, weft_status_name(st), weft_last_error());
    exit(1);
}

#endif
