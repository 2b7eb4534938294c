/* bench/peers/shake.h - what the programs share that measure how two meet: the time and the processor time of each meeting.
 *
 * One thread drives both ends, so both figures are of both together: what a meeting costs in processor time, and how long it
 * takes where nobody waits to be woken. */
#ifndef WEFT_BENCH_SHAKE_H
#define WEFT_BENCH_SHAKE_H

#include "peer.h"

#define SHAKE_MOST 65536u
#define SHAKE_LEAST 8u /* meetings, however long they take */

typedef struct shake {
    uint32_t wall[SHAKE_MOST], cpu[SHAKE_MOST]; /* nanoseconds */
    uint64_t n, at, cpu_at, began;
} shake_t;

static inline uint64_t shake_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * PEER_SECOND + (uint64_t)ts.tv_nsec;
}

/* A meeting begins. */
static inline void shake_begin(shake_t *s)
{
    s->cpu_at = shake_cpu_ns();
    s->at = peer_now_ns();
}

/* Both know that they have met. */
static inline void shake_met(shake_t *s)
{
    s->wall[s->n] = (uint32_t)(peer_now_ns() - s->at);
}

/* And nothing is left to be done for it. */
static inline void shake_end(shake_t *s)
{
    s->cpu[s->n++] = (uint32_t)(shake_cpu_ns() - s->cpu_at);
}

static inline bool shake_enough(const peer_t *p, shake_t *s)
{
    if (!s->began)
        s->began = peer_now_ns();
    if (s->n == SHAKE_MOST || (p->count && s->n >= p->count))
        return true;
    return !p->count && s->n >= SHAKE_LEAST && (double)(peer_now_ns() - s->began) > p->seconds * 1e9;
}

static inline void shake_print(const peer_t *p, shake_t *s, const char *cipher)
{
    double sum = 0;
    for (uint64_t i = 0; i < s->n; i++)
        sum += s->wall[i];
    qsort(s->wall, s->n, sizeof *s->wall, peer_by_value);
    qsort(s->cpu, s->n, sizeof *s->cpu, peer_by_value);
    printf("{\"test\": \"%s\", \"count\": %llu, \"cipher\": \"%s\", \"avg_us\": %.3f, \"p50_us\": %.3f, \"cpu_us\": %.3f}\n",
           p->way, (unsigned long long)s->n, cipher, sum / 1e3 / (double)s->n, s->wall[s->n / 2] / 1e3, s->cpu[s->n / 2] / 1e3);
    fflush(stdout);
}

#endif
