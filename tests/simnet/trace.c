/* tests/simnet/trace.c - what happened in a world: the last events for people, a hash of all of them for comparing runs.
 *
 * Promise: the hash depends on nothing but the seed and the calls made, so that two runs of a seed can be compared by it;
 * tests/sim/fabric_order.c and tests/sim/msg_exactly_once.c run seeds twice and compare. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "simnet/world.h"

static const char *const texts[SIM_T_N] = {
#define SIM_TRACE_TEXT(code, text) text,
    SIM_TRACE_LIST(SIM_TRACE_TEXT)
#undef SIM_TRACE_TEXT
};

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static void put(wefti_sim_t *w, int host, int code, const char *text, uint64_t a, uint64_t b)
{
    sim_trace_t *t = &w->trace[w->trace_n++ % SIM_TRACE_KEPT];
    t->at = w->now;
    t->host = (int16_t)host;
    t->code = (uint16_t)code;
    t->text = text;
    t->a = a;
    t->b = b;
    uint64_t h = mix(mix(w->hash, w->now), (uint64_t)code << 8 ^ (uint64_t)(unsigned)(host + 1));
    w->hash = mix(mix(h, a), b);
}

void wefti_sim_trace(wefti_sim_t *w, const sim_host_t *h, int code, uint64_t a, uint64_t b)
{
    put(w, h ? (int)h->index : -1, code, NULL, a, b);
}

void wefti_sim_note(wefti_sim_t *w, int host, const char *text, uint64_t a, uint64_t b)
{
    put(w, host, SIM_T_NOTE, text, a, b);
}

uint64_t wefti_sim_hash(const wefti_sim_t *w)
{
    return w->hash;
}
uint64_t wefti_sim_seed(const wefti_sim_t *w)
{
    return w->seed;
}

void wefti_sim_dump(const wefti_sim_t *w)
{
    uint64_t first = w->trace_n > SIM_TRACE_KEPT ? w->trace_n - SIM_TRACE_KEPT : 0;
    fprintf(stderr, "the last %" PRIu64 " of %" PRIu64 " events, seed %" PRIu64 ":\n", w->trace_n - first, w->trace_n, w->seed);
    for (uint64_t i = first; i < w->trace_n; i++) {
        const sim_trace_t *t = &w->trace[i % SIM_TRACE_KEPT];
        const char *host = t->host >= 0 && t->host < (int)w->n_hosts ? w->hosts[t->host]->name : "-";
        fprintf(stderr, "%14.6f ms  %-8s %s  (%" PRId64 ", %" PRId64 ")\n", (double)t->at * 1e-6, host,
                t->code == SIM_T_NOTE && t->text ? t->text : texts[t->code], (int64_t)t->a, (int64_t)t->b);
    }
}

void wefti_sim_on_violation(wefti_sim_t *w, void (*fn)(uint64_t seed, const char *what))
{
    w->on_violation = fn;
}

void wefti_sim_violation(wefti_sim_t *w, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    fflush(stdout);
    wefti_sim_dump(w);
    fprintf(stderr, "seed %" PRIu64 ": %s\n", w->seed, what);
    if (w->on_violation)
        w->on_violation(w->seed, what);
    abort();
}
