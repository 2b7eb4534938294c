/* tools/perf/stats.c - how long a tick is, and percentiles of a histogram.
 *
 * The cycle counter is used only where the processor promises that it runs evenly through sleep and frequency changes.
 * Elsewhere a tick is a nanosecond of the kernel's clock. tests/tools/tools_perf.py checks the order of the percentiles. */
#include <math.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "perf.h"

bool perf_tsc;
static double tick_ns = 1;

static bool counter_is_even(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
#elif defined(__aarch64__)
    return true;
#else
    return false;
#endif
}

void perf_ticks_calibrate(void)
{
    uint64_t ns0, ns1, t0, t1;
    if (!counter_is_even())
        return;
    perf_tsc = true;
    ns0 = tool_now();
    t0 = perf_ticks();
    do
        ns1 = tool_now();
    while (ns1 - ns0 < 20 * WEFT_MILLISECOND);
    t1 = perf_ticks();
    if (t1 <= t0) {
        perf_tsc = false; /* it does not count time */
        return;
    }
    tick_ns = (double)(ns1 - ns0) / (double)(t1 - t0);
}

double perf_tick_ns(void)
{
    return tick_ns;
}

double perf_percentile(const perf_histogram_t *h, double share)
{
    uint64_t rank = (uint64_t)ceil((double)h->n * share), seen = 0;
    const unsigned cells = sizeof h->counts / sizeof *h->counts;
    if (!h->n)
        return 0;
    if (rank < 1)
        rank = 1;
    for (unsigned i = 0; i < cells; i++) {
        seen += h->counts[i];
        if (seen >= rank) {
            /* Undo the index of perf_record(): above the first 2 * PERF_STEPS values a cell is 1 << shift wide, and its middle
             * stands for it. */
            unsigned shift = i < 2 * PERF_STEPS ? 0 : (i >> PERF_STEP_BITS) - 1;
            double low = ldexp((double)(i - (shift << PERF_STEP_BITS)), (int)shift);
            double v = shift ? low + ldexp(0.5, (int)shift) : low;
            return v < (double)h->max ? v : (double)h->max;
        }
    }
    return (double)h->max;
}
