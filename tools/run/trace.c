/* tools/run/trace.c - a timeline of the run, as JSON that chrome://tracing and Perfetto read; times are microseconds.
 *
 * An element is a process there, a copy of it a thread. A copy has two spans: from its start to the program's beginning, and
 * from there to its end. Arrows lead from parents to their dependents. What copies say of their calls on transports is in
 * trace_rows.c, and is written as it comes. The file has names, times and numbers of bytes only: no results, no parameters, no
 * durls. tests/tools/tools_run.py and tests/tools/tools_run_trace.py check it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "trace.h"

void run_trace_head(tool_json_t *j, const char *name, const char *kind, const char *phase, unsigned element, unsigned thread,
                    double ts)
{
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "name", name);
    tool_json_text(j, "cat", kind);
    tool_json_text(j, "ph", phase);
    tool_json_count(j, "pid", element + 1);
    tool_json_count(j, "tid", thread + 1);
    tool_json_number(j, "ts", ts, 3);
}

void run_trace_named(tool_json_t *j, const char *what, unsigned element, unsigned thread, const char *name)
{
    run_trace_head(j, what, "element", "M", element, thread, 0);
    tool_json_open(j, "args", '{');
    tool_json_text(j, "name", name);
    tool_json_close(j, '}');
    tool_json_close(j, '}');
}

void run_trace_order(tool_json_t *j, unsigned element, unsigned thread, unsigned place)
{
    run_trace_head(j, "thread_sort_index", "element", "M", element, thread, 0);
    tool_json_open(j, "args", '{');
    tool_json_count(j, "sort_index", place);
    tool_json_close(j, '}');
    tool_json_close(j, '}');
}

static void span(const run_t *run, tool_json_t *j, const run_proc_t *p, const char *name, uint64_t from, uint64_t to)
{
    run_trace_head(j, name, "element", "X", p->element->index, run_trace_thread(p), run_trace_us(run, from));
    tool_json_number(j, "dur", run_trace_us(run, to) - run_trace_us(run, from), 3);
    tool_json_open(j, "args", '{');
    tool_json_text(j, "copy", p->label);
    tool_json_count(j, "process", (uint64_t)p->pid);
    if (WIFSIGNALED(p->status))
        tool_json_count(j, "signal", (uint64_t)WTERMSIG(p->status));
    else
        tool_json_count(j, "exit_status", (uint64_t)WEXITSTATUS(p->status));
    if (p->limit.name)
        tool_json_text(j, "limit", p->limit.name);
    tool_json_close(j, '}');
    tool_json_close(j, '}');
}

static void spans(const run_t *run, tool_json_t *j, const run_proc_t *p)
{
    uint64_t began = p->began ? p->began : p->ended, done = p->grace ? p->returned : p->ended;
    run_trace_named(j, "thread_name", p->element->index, run_trace_thread(p), p->label);
    run_trace_order(j, p->element->index, run_trace_thread(p), (run_trace_thread(p) + 1) * 1000);
    span(run, j, p, "start", p->started, began);
    if (p->began)
        span(run, j, p, p->element->memory ? "serve" : "run", began, done);
    if (p->grace)
        span(run, j, p, "stays", done, p->ended);
}

static void arrows(const run_t *run, tool_json_t *j, const run_element_t *e, unsigned *id)
{
    for (unsigned i = 0; e->started && i < e->n_before; i++) {
        const run_element_t *parent = e->before[i];
        if (!parent->done)
            continue;
        run_trace_head(j, "result", "element", "s", parent->index, 0, run_trace_us(run, parent->done - 1000));
        tool_json_count(j, "id", ++*id);
        tool_json_close(j, '}');
        run_trace_head(j, "result", "element", "f", e->index, 0,
                       run_trace_us(run, e->procs[0] ? e->procs[0]->started + 1000 : e->started));
        tool_json_count(j, "id", *id);
        tool_json_text(j, "bp", "e");
        tool_json_close(j, '}');
    }
}

static bool cannot(const run_t *run)
{
    tool_error("--trace %s cannot be written: %s", run->opts.trace, strerror(errno));
    return false;
}

bool run_trace_begin(run_t *run)
{
    FILE *f = fopen(run->opts.trace, "we");
    if (!f)
        return cannot(run);
    run->trace = run_alloc(sizeof *run->trace);
    run->trace->f = f;
    run->trace->j = tool_json_begin(f);
    tool_json_text(&run->trace->j, "displayTimeUnit", "ms");
    tool_json_open(&run->trace->j, "traceEvents", '[');
    return true;
}

bool run_trace_end(run_t *run)
{
    tool_json_t *j = &run->trace->j;
    FILE *f = run->trace->f;
    unsigned id = 0;
    bool good;
    for (unsigned i = 0; i < run->n_elements; i++) {
        run_trace_named(j, "process_name", i, 0, run->elements[i]->name);
        arrows(run, j, run->elements[i], &id);
        run_trace_counters(run, run->elements[i]);
    }
    for (const run_proc_t *p = run->procs; p; p = p->next) {
        spans(run, j, p);
        run_trace_dropped(run, p);
    }
    tool_json_close(j, ']');
    tool_json_end(j);
    good = !ferror(f);
    good &= !fclose(f);
    free(run->trace);
    run->trace = NULL;
    return good || cannot(run);
}
