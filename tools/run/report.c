/* tools/run/report.c - how it went: a table and results for people, one JSON object for programs.
 *
 * Time is from the first start to the last result of an element's copies; cpu is their sum, peak memory that of the largest:
 * of a compute element without memory elements that it had mapped, of a memory element what anybody has touched of it.
 * Bytes read and written are those that a compute element moved; of a memory element those that its users moved.
 * tests/tools/tools_run.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

typedef struct figures {
    uint64_t time_ns, peak_bytes;
    double cpu, throttled;
} figures_t;

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* The kernel's figure has what is mapped of memory elements in it. So a copy that uses some says what is its own, and the
 * launcher has looked now and then. */
static uint64_t peak_of(const run_proc_t *p)
{
    uint64_t most = (uint64_t)p->usage.ru_maxrss << 10, said = p->peak_said < most ? p->peak_said : most;
    if (p->element->memory)
        return p->peak ? p->peak : most;
    if (said || (p->peak && p->element->n_uses))
        return said > p->peak ? said : p->peak;
    return most;
}

static figures_t figures_of(const run_t *run, const run_element_t *e)
{
    figures_t f = {0};
    if (e->started)
        f.time_ns = (e->ended ? e->ended : run->ended) - e->started;
    for (const run_proc_t *p = run->procs; p; p = p->next) {
        if (p->element != e || !p->over)
            continue;
        f.cpu += seconds(p->usage.ru_utime) + seconds(p->usage.ru_stime);
        f.throttled += p->throttled;
        if (peak_of(p) > f.peak_bytes)
            f.peak_bytes = peak_of(p);
    }
    return f;
}

const char *run_bytes_text(uint64_t n, char *buf, size_t cap)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    unsigned u = 0;
    while (v >= 1000 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(buf, cap, u && v < 100 && v != (double)(unsigned)v ? "%.1f %s" : "%.0f %s", v, units[u]);
    return buf;
}

/* --- for people ------------------------------------------------------------------------------------------------------ */

enum { COLUMNS = 8 };

/* Columns are as wide as their contents: ordinary names fit into 80 columns. */
static void table(run_t *run)
{
    static const char *const heads[COLUMNS] = {"element", "copies", "state", "time", "cpu", "peak mem", "read", "written"};
    char(*cells)[COLUMNS][RUN_NAME_MAX + 1] = run_alloc((run->n_elements + 1) * sizeof *cells);
    int widths[COLUMNS] = {0};
    char total[32];
    for (unsigned k = 0; k < COLUMNS; k++)
        snprintf(cells[0][k], sizeof cells[0][k], "%s", heads[k]);
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        char(*row)[RUN_NAME_MAX + 1] = cells[i + 1];
        figures_t f = figures_of(run, e);
        char *state = run_state_whole(run, e);
        snprintf(row[0], sizeof row[0], "%s", e->name);
        snprintf(row[1], sizeof row[1], "%u", e->copies);
        snprintf(row[2], sizeof row[2], "%s", state);
        free(state);
        run_time_text(f.time_ns, row[3], sizeof row[3]);
        run_time_text((uint64_t)(f.cpu * 1e9), row[4], sizeof row[4]);
        run_bytes_text(f.peak_bytes, row[5], sizeof row[5]);
        run_bytes_text(e->bytes_read, row[6], sizeof row[6]);
        run_bytes_text(e->bytes_written, row[7], sizeof row[7]);
    }
    for (unsigned i = 0; i <= run->n_elements; i++)
        for (unsigned k = 0; k < COLUMNS; k++)
            if ((int)strlen(cells[i][k]) > widths[k])
                widths[k] = (int)strlen(cells[i][k]);
    for (unsigned i = 0; i <= run->n_elements; i++)
        for (unsigned k = 0; k < COLUMNS; k++)
            printf("%*s%s", k == 0 || k == 2 ? -widths[k] : widths[k], cells[i][k], k + 1 < COLUMNS ? "  " : "\n");
    free(cells);
    printf("%s in %s\n", run->failed ? "failed" : "done", run_time_text(run->ended - run->started, total, sizeof total));
}

/* Results that no other element was given. */
static void results(run_t *run)
{
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        for (unsigned k = 0; !e->memory && !e->n_after && !e->owner && k < e->copies; k++) {
            run_text_t text = {0};
            if (!e->results || !e->results[k])
                continue;
            run_add(&text, e->results[k], strlen(e->results[k]));
            run_hide(run, &text);
            printf(e->copies > 1 ? "%s@%u: " : "%s: ", e->name, k);
            if (tool_is_terminal(stdout) && text.n > 500)
                printf("%.500s... (%zu bytes; --json has all of it)\n", text.p, text.n);
            else
                printf("%s\n", text.p);
            run_free(&text);
        }
    }
}

/* --- for programs ------------------------------------------------------------------------------------------------------ */

/* The limit that it was over. */
static void limit_json(tool_json_t *j, const run_limit_hit_t *limit)
{
    tool_json_open(j, "limit", '{');
    tool_json_text(j, "name", limit->name);
    if (!strcmp(limit->name, "time")) {
        tool_json_number(j, "seconds", (double)limit->most / 1e9, 6);
    } else {
        tool_json_count(j, "bytes", limit->most);
        if (limit->used)
            tool_json_count(j, "used_bytes", limit->used);
    }
    tool_json_close(j, '}');
}

static void element_json(run_t *run, tool_json_t *j, const run_element_t *e)
{
    figures_t f = figures_of(run, e);
    const run_proc_t *over = run_over_limit(run, e);
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "name", e->name);
    tool_json_text(j, "type", e->memory ? "memory" : "compute");
    tool_json_count(j, "copies", e->copies);
    tool_json_text(j, "state", run_state_text(run, e));
    if (over)
        limit_json(j, &over->limit);
    if (run_ended_after(run, e))
        tool_json_number(j, "ended_after", (double)run_ended_after(run, e) / 1e9, 6);
    tool_json_number(j, "start", e->started ? (double)(e->started - run->started) / 1e9 : 0, 6);
    tool_json_number(j, "seconds", (double)f.time_ns / 1e9, 6);
    tool_json_number(j, "cpu_seconds", f.cpu, 6);
    if (f.throttled > 0)
        tool_json_number(j, "throttled_seconds", f.throttled, 6);
    tool_json_count(j, "peak_bytes", f.peak_bytes);
    tool_json_count(j, "bytes_read", e->bytes_read);
    tool_json_count(j, "bytes_written", e->bytes_written);
    tool_json_close(j, '}');
}

static void failures_json(run_t *run, tool_json_t *j)
{
    tool_json_open(j, "failures", '[');
    for (const run_proc_t *p = run->procs; p; p = p->next) {
        run_text_t text = {0};
        if (!p->error || p->element->state != RUN_FAILED)
            continue;
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "element", p->label);
        run_add(&text, p->error, strlen(p->error));
        run_hide(run, &text);
        tool_json_text(j, "error", text.p);
        text.n = 0;
        run_addf(&text, "%s", p->traceback ? p->traceback : "");
        run_hide(run, &text);
        tool_json_text(j, "traceback", text.p);
        tool_json_close(j, '}');
        run_free(&text);
    }
    tool_json_close(j, ']');
}

static void as_json(run_t *run)
{
    tool_json_t j = tool_json_begin(stdout);
    tool_json_raw(&j, "ok", run->failed ? "false" : "true");
    if (run->why) {
        run_text_t why = {0};
        run_add(&why, run->why, strlen(run->why));
        run_hide(run, &why);
        tool_json_text(&j, "error", why.p);
        run_free(&why);
    }
    tool_json_number(&j, "seconds", (double)(run->ended - run->started) / 1e9, 6);
    if (run->limits_by[0] || run->limits_by[1]) {
        tool_json_open(&j, "limits_by", '{');
        if (run->limits_by[0])
            tool_json_text(&j, "mem", run->limits_by[0]);
        if (run->limits_by[1])
            tool_json_text(&j, "cpu", run->limits_by[1]);
        tool_json_close(&j, '}');
    }
    tool_json_open(&j, "elements", '[');
    for (unsigned i = 0; i < run->n_elements; i++)
        element_json(run, &j, run->elements[i]);
    tool_json_close(&j, ']');
    failures_json(run, &j);
    run_notices_json(run, &j, "warnings", true);
    tool_json_open(&j, "results", '{');
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        if (e->memory || e->state != RUN_DONE)
            continue;
        tool_json_open(&j, e->name, '[');
        for (unsigned k = 0; k < e->copies; k++)
            tool_json_raw(&j, NULL, e->results[k]);
        tool_json_close(&j, ']');
    }
    tool_json_close(&j, '}');
    tool_json_end(&j);
}

void run_report(run_t *run)
{
    if (run->failed && !run_takes(run, stdout))
        return;
    if (run->opts.json) {
        as_json(run);
        return;
    }
    if (!run->procs)
        return; /* nothing was started, and a sentence said why */
    results(run);
    table(run);
    fflush(stdout);
}
