/* tools/run/trace_rows.c - the part of the timeline that copies tell: calls on transports, waits, points of the program.
 *
 * A copy sends rows before its result: [transport, what, bytes, when it began, how long it took, how long of that it waited
 * for the element], in nanoseconds of CLOCK_MONOTONIC, which is the launcher's clock, too. A transport of a copy is a thread
 * of the picture, or several where its calls overlap: spans of one thread must not. Bytes are counted at the memory element
 * behind the transport, in a fixed number of steps that grow with the run.
 *
 * Rows come from programs: what makes no sense is left out, and of one copy no more than ROWS_MOST are written. Names are
 * shown without secrets. tests/tools/tools_run_trace.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "trace.h"

#define ROWS_MOST 32768
#define TRACKS_MOST 4096 /* of a copy */
#define LANES 32         /* threads of a track */
#define STEPS 1024
#define FIRST_THREAD 100000 /* of tracks: copies are below */

struct run_track {
    char *name;
    unsigned place; /* among the tracks of its copy */
    struct {
        unsigned thread;
        uint64_t ends; /* of the last span there */
    } lanes[LANES];
    unsigned n_lanes;
    run_element_t *memory; /* NULL: its own, or not of the run */
    run_track_t *next;
};

/* Bytes moved in each step since the run began. */
struct run_traffic {
    uint64_t step, bytes[STEPS];
};

/* --- bytes of a memory element ------------------------------------------------------------------------------------------- */

static void count(const run_t *run, run_element_t *m, uint64_t from, uint64_t to, uint64_t bytes)
{
    run_traffic_t *t = m->traffic;
    uint64_t first, last, rest = bytes;
    if (!t) {
        t = m->traffic = run_alloc(sizeof *t);
        t->step = WEFT_MILLISECOND;
    }
    from -= run->started;
    to -= run->started;
    while (to / t->step >= STEPS) {
        for (unsigned i = 0; i < STEPS; i++) {
            uint64_t both = i < STEPS / 2 ? t->bytes[2 * i] + t->bytes[2 * i + 1] : 0;
            t->bytes[i] = both;
        }
        t->step *= 2;
    }
    first = from / t->step;
    last = to / t->step;
    for (uint64_t i = first; i < last; i++) { /* evenly over the time that it took */
        t->bytes[i] += bytes / (last - first + 1);
        rest -= bytes / (last - first + 1);
    }
    t->bytes[last] += rest;
}

void run_trace_counters(run_t *run, const run_element_t *e)
{
    tool_json_t *j = &run->trace->j;
    uint64_t sum = 0;
    for (unsigned i = 0; e->traffic && i < STEPS; i++) {
        sum += e->traffic->bytes[i];
        if (i && !e->traffic->bytes[i])
            continue; /* it stays as it was */
        run_trace_head(j, "bytes moved", "transport", "C", e->index, 0, (double)((i + 1) * e->traffic->step) / 1e3);
        tool_json_open(j, "args", '{');
        tool_json_count(j, "bytes", sum);
        tool_json_close(j, '}');
        tool_json_close(j, '}');
    }
}

/* --- tracks ---------------------------------------------------------------------------------------------------------------- */

static run_track_t *track_of(run_proc_t *p, const char *name)
{
    run_track_t **at = &p->tracks;
    unsigned n = 0;
    for (; *at; at = &(*at)->next, n++)
        if (!strcmp((*at)->name, name))
            return *at;
    if (n == TRACKS_MOST)
        return NULL;
    *at = run_alloc(sizeof **at);
    (*at)->name = run_dup(name);
    (*at)->place = n;
    (*at)->memory = run_behind(p, name);
    return *at;
}

/* The thread of the picture that is free then. */
static unsigned thread_for(run_proc_t *p, run_track_t *t, uint64_t from, uint64_t to)
{
    tool_json_t *j = &p->run->trace->j;
    unsigned lane = 0;
    while (lane < t->n_lanes && t->lanes[lane].ends > from)
        lane++;
    if (lane == LANES) {
        lane--;
    } else if (lane == t->n_lanes) {
        run_text_t name = {0};
        run_addf(&name, lane ? "%s: %s (%u)" : "%s: %s", p->label, t->name, lane + 1);
        run_hide(p->run, &name);
        t->lanes[lane].thread = FIRST_THREAD + p->run->trace->n_tracks++;
        t->n_lanes++;
        run_trace_named(j, "thread_name", p->element->index, t->lanes[lane].thread, name.p);
        run_trace_order(j, p->element->index, t->lanes[lane].thread, (run_trace_thread(p) + 1) * 1000 + t->place + 1);
        run_free(&name);
    }
    t->lanes[lane].ends = to;
    return t->lanes[lane].thread;
}

void run_trace_free_proc(run_proc_t *p)
{
    run_track_t *next;
    for (run_track_t *t = p->tracks; t; t = next) {
        next = t->next;
        free(t->name);
        free(t);
    }
    p->tracks = NULL;
}

/* --- rows ------------------------------------------------------------------------------------------------------------------ */

typedef struct row {
    char *trans, *what;
    int64_t n; /* bytes, or the number of a point */
    uint64_t began, took, waited;
} row_t;

static void call(run_proc_t *p, const row_t *r)
{
    run_track_t *t = track_of(p, r->trans);
    tool_json_t *j = &p->run->trace->j;
    uint64_t moving = r->began + r->waited, end = r->began + r->took;
    unsigned thread;
    if (!t)
        return;
    thread = thread_for(p, t, r->began, end);
    if (r->waited) {
        run_trace_head(j, "wait", "wait", "X", p->element->index, thread, run_trace_us(p->run, r->began));
        tool_json_number(j, "dur", (double)r->waited / 1e3, 3);
        tool_json_close(j, '}');
    }
    run_trace_head(j, r->what, "transport", "X", p->element->index, thread, run_trace_us(p->run, moving));
    tool_json_number(j, "dur", (double)(end - moving) / 1e3, 3);
    tool_json_open(j, "args", '{');
    tool_json_count(j, "bytes", (uint64_t)r->n);
    tool_json_close(j, '}');
    tool_json_close(j, '}');
    if (t->memory && r->n)
        count(p->run, t->memory, moving, end, (uint64_t)r->n);
}

static void point(const run_proc_t *p, const row_t *r)
{
    tool_json_t *j = &p->run->trace->j;
    char *name = run_printf("profile %lld", (long long)r->n);
    run_trace_head(j, name, "point", "i", p->element->index, run_trace_thread(p), run_trace_us(p->run, r->began));
    tool_json_text(j, "s", "t");
    tool_json_close(j, '}');
    free(name);
}

/* Words of the library: letters and _. */
static bool is_word(const char *s)
{
    size_t n = strlen(s);
    return n && n < 32 && strspn(s, "abcdefghijklmnopqrstuvwxyz_") == n;
}

static bool read_row(run_value_t value, row_t *r)
{
    run_value_t parts[6], part;
    wefti_json_t at = {0};
    unsigned n = 0;
    if (*value.p != '[')
        return false;
    while (run_json_item(value, &at, &part) && n < 6)
        parts[n++] = part;
    if (n < 6 || !run_json_count(parts[3], &r->began) || !run_json_count(parts[4], &r->took) ||
        !run_json_count(parts[5], &r->waited) || !parts[2].n || parts[2].n > 19)
        return false;
    r->trans = run_json_string(parts[0]);
    r->what = run_json_string(parts[1]);
    r->n = strtoll(parts[2].p, NULL, 10); /* it is followed by a comma */
    return r->trans && r->what;
}

/* `theirs` is the clock of the process when it said this; 0: it is ours. Another machine's clock began at another time, and
 * what it said was on its way for a moment. */
static void to_our_clock(const run_proc_t *p, row_t *r, uint64_t now, uint64_t theirs)
{
    if (!theirs || p->host == &p->run->here || r->began > theirs || theirs - r->began > now)
        return;
    r->began = now - (theirs - r->began);
    if (r->began < p->started)
        r->began = p->started;
}

static void take_row(run_proc_t *p, run_value_t value, uint64_t now, uint64_t theirs)
{
    row_t r = {0};
    bool good = read_row(value, &r);
    if (good)
        to_our_clock(p, &r, now, theirs);
    /* a time that this process cannot have had: from before its start, or to come */
    good = good && r.began >= p->started && r.began <= now && r.took <= now - r.began && r.waited <= r.took && is_word(r.what) &&
           strlen(r.trans) <= WEFT_DURL_NAME_MAX;
    if (good && !strcmp(r.what, "profile") && !*r.trans)
        point(p, &r);
    else if (good && r.n >= 0)
        call(p, &r);
    free(r.trans);
    free(r.what);
}

void run_trace_rows(run_proc_t *p, run_value_t line)
{
    run_value_t rows = run_json_get(line, "rows"), row;
    uint64_t dropped = 0, now = tool_now(), theirs = 0;
    wefti_json_t at = {0};
    if (!p->run->trace)
        return;
    if (run_json_count(run_json_get(line, "dropped"), &dropped) && dropped < UINT32_MAX)
        p->rows_dropped += dropped;
    run_json_count(run_json_get(line, "now"), &theirs);
    while (rows.p && *rows.p == '[' && run_json_item(rows, &at, &row)) {
        if (p->n_rows++ < ROWS_MOST)
            take_row(p, row, now, theirs);
        else
            p->rows_dropped++;
    }
}

void run_trace_dropped(run_t *run, const run_proc_t *p)
{
    tool_json_t *j = &run->trace->j;
    char *name;
    if (!p->rows_dropped)
        return;
    name = run_printf("%llu calls are not in this file: the last of a copy are", (unsigned long long)p->rows_dropped);
    run_trace_head(j, name, "transport", "i", p->element->index, run_trace_thread(p), run_trace_us(run, p->began));
    tool_json_text(j, "s", "t");
    tool_json_open(j, "args", '{');
    tool_json_count(j, "dropped", p->rows_dropped);
    tool_json_close(j, '}');
    tool_json_close(j, '}');
    free(name);
}
