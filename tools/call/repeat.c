/* tools/call/repeat.c - the same call many times, one after the other, and how long that takes.
 *
 * The caller drives the runtime, so that a figure does not include the time a thread takes to wake up. The result is that of
 * the first call; the first call that fails ends it. tests/tools/tools_call.py checks it. */
#include "call.h"

#include <stdlib.h>

#include "../perf/perf.h" /* its histogram */

#define SHOW_EVERY (200 * WEFT_MILLISECOND)
#define LOOK_EVERY 64 /* calls */

static void show_progress(uint64_t done, uint64_t all, uint64_t began, uint64_t now)
{
    fprintf(stderr, "\r\033[K%llu of %llu calls, %.0f a second", (unsigned long long)done, (unsigned long long)all,
            (double)done / ((double)(now - began) / 1e9));
    fflush(stderr);
}

static void report(const call_made_t *m, const perf_histogram_t *h, double seconds)
{
    static const struct {
        double share;
        const char *json, *text;
    } points[] = {{0.5, "p50_us", "p50"}, {0.9, "p90_us", "p90"}, {0.99, "p99_us", "p99"}, {0.999, "p999_us", "p99.9"}};
    double rate = seconds > 0 ? (double)h->n / seconds : 0;
    if (!m->link->opts->json) {
        printf("%llu calls in %.3f s, %.0f a second:", (unsigned long long)h->n, seconds, rate);
        for (size_t i = 0; i < sizeof points / sizeof *points; i++)
            printf(" %s %.1f us,", points[i].text, perf_percentile(h, points[i].share) / 1e3);
        printf(" max %.1f us\n", (double)h->max / 1e3);
        return;
    }
    tool_json_t j = tool_json_begin(stdout);
    tool_json_count(&j, "calls", h->n);
    tool_json_number(&j, "seconds", seconds, 6);
    tool_json_number(&j, "calls_s", rate, 1);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        tool_json_number(&j, points[i].json, perf_percentile(h, points[i].share) / 1e3, 3);
    tool_json_number(&j, "max_us", (double)h->max / 1e3, 3);
    tool_json_end(&j);
}

/* One call; the first is reported. */
static int one(call_made_t *m, uint64_t number, perf_histogram_t *h)
{
    weft_reply_t reply = WEFT_REPLY_INIT;
    uint64_t began, took;
    call_known_t known;
    weft_status_t st;
    int rc = TOOL_OK;
    call_known_init(&known, m->link, call_timeout(m->link->opts));
    if (number > 1)
        known.op.fn = NULL;
    began = tool_now();
    st = weft_call_with(m->method, m->args.values, m->args.n, &m->call_opts, &reply, &known.op);
    if (st)
        return call_failed(m, st, &reply, number);
    st = number > 1 ? tool_wait(&known.op) : call_known_wait(&known);
    took = tool_now() - began;
    if (number == 1)
        rc = call_report(m, st, &reply, (double)took / 1e9, 0);
    else if (st)
        rc = call_failed(m, st, &reply, number);
    if (!st)
        perf_record(h, took);
    weft_reply_release(&reply);
    return rc;
}

int call_repeat(call_made_t *m)
{
    uint64_t all = m->link->opts->repeat, began = tool_now(), shown = began, now;
    bool terminal = tool_is_terminal(stderr) && !m->link->opts->json, dirty = false;
    perf_histogram_t *h = calloc(1, sizeof *h);
    int rc = TOOL_OK;
    if (!h) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    for (uint64_t i = 1; i <= all && !rc; i++) {
        rc = one(m, i, h);
        if (!rc && tool_signal())
            rc = 128 + tool_signal();
        if (!terminal || i % LOOK_EVERY)
            continue;
        now = tool_now();
        if (now - shown >= SHOW_EVERY) {
            show_progress(i, all, began, now);
            shown = now;
            dirty = true;
        }
    }
    now = tool_now();
    if (dirty)
        fputs("\r\033[K", stderr);
    if (h->n)
        report(m, h, (double)(now - began) / 1e9);
    free(h);
    return rc;
}
