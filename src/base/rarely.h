/* base/rarely.h - warnings that would come again and again: each kind is logged once, and then at most once a minute. */
#ifndef WEFTI_RARELY_H
#define WEFTI_RARELY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/log.h"

#define WEFTI_RARELY_NS UINT64_C(60000000000)

/* What was said, of the kinds that were last asked for; all zero: nothing. It belongs to what is warned about (a registry, a listener), and to one
 * thread at a time. */
enum { WEFTI_RARELY_KINDS = 8 };
typedef struct wefti_rarely {
    struct wefti_rarely_kind {
        uint64_t kind, said_at, left_out;
        uint64_t asked; /* 0: not used; else the count below when it was last asked for */
    } of[WEFTI_RARELY_KINDS];
    uint64_t asked;
} wefti_rarely_t;

/* May a line of this kind be logged at `now`? True: *left_out_out is how many were not since the last one. False: it is counted. */
bool wefti_rarely_may(wefti_rarely_t *r, uint64_t kind, uint64_t now, uint64_t *left_out_out);
/* A kind for each text, whatever digits are in it: "after 12 ms" and "after 130 ms" are one. */
uint64_t wefti_rarely_text(const char *text);

/* wefti_warn() for a line of a kind. Its arguments are evaluated at most once. */
#define wefti_warn_rarely(r, kind, fmt, ...) \
    do { \
        uint64_t rarely_left; \
        if ((int)WEFT_LOG_WARN <= atomic_load_explicit(&wefti_log_level, memory_order_relaxed) && \
            wefti_rarely_may((r), (kind), wefti_clock_ns(), &rarely_left)) { \
            if (rarely_left) \
                weft_log(WEFT_LOG_WARN, fmt " (and %llu times more since the last such line)", ##__VA_ARGS__, \
                               (unsigned long long)rarely_left); \
            else \
                weft_log(WEFT_LOG_WARN, fmt, ##__VA_ARGS__); \
        } \
    } while (0)

#endif
