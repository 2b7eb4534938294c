/* tools/run/trace.c - a timeline of the run, as JSON that chrome://tracing and Perfetto read; times are microseconds.
 *
 * An element is a process there, a copy of it a thread. A copy has two spans: from its start to the program's beginning, and
 * from there to its end. Arrows lead from parents to their dependents. The file has names and times only: no results, no
 * parameters, no durls. tests/tools/tools_run.py checks it. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "run.h"

static double us(const run_t *run, uint64_t at)
{
    return at > run->started ? (double)(at - run->started) / 1e3 : 0;
}

static void head(tool_json_t *j, const char *name, const char *phase, unsigned element, unsigned thread, double ts)
{
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "name", name);
    tool_json_text(j, "cat", "element");
    tool_json_text(j, "ph", phase);
    tool_json_count(j, "pid", element + 1);
    tool_json_count(j, "tid", thread + 1);
    tool_json_number(j, "ts", ts, 3);
}

static void named(tool_json_t *j, const char *what, unsigned element, unsigned thread, const char *name)
{
    head(j, what, "M", element, thread, 0);
    tool_json_open(j, "args", '{');
    tool_json_text(j, "name", name);
    tool_json_close(j, '}');
    tool_json_close(j, '}');
}

static void span(const run_t *run, tool_json_t *j, const run_proc_t *p, unsigned thread, const char *name, uint64_t from,
                 uint64_t to)
{
    head(j, name, "X", p->element->index, thread, us(run, from));
    tool_json_number(j, "dur", us(run, to) - us(run, from), 3);
    tool_json_open(j, "args", '{');
    tool_json_text(j, "copy", p->label);
    tool_json_count(j, "process", (uint64_t)p->pid);
    if (WIFSIGNALED(p->status))
        tool_json_count(j, "signal", (uint64_t)WTERMSIG(p->status));
    else
        tool_json_count(j, "exit_status", (uint64_t)WEXITSTATUS(p->status));
    tool_json_close(j, '}');
    tool_json_close(j, '}');
}

static void arrows(const run_t *run, tool_json_t *j, const run_element_t *e, unsigned *id)
{
    for (unsigned i = 0; e->started && i < e->n_before; i++) {
        const run_element_t *parent = e->before[i];
        if (!parent->done)
            continue;
        head(j, "result", "s", parent->index, 0, us(run, parent->done - 1000));
        tool_json_count(j, "id", ++*id);
        tool_json_close(j, '}');
        head(j, "result", "f", e->index, 0, us(run, e->procs[0] ? e->procs[0]->started + 1000 : e->started));
        tool_json_count(j, "id", *id);
        tool_json_text(j, "bp", "e");
        tool_json_close(j, '}');
    }
}

bool run_trace(run_t *run)
{
    FILE *f = fopen(run->opts.trace, "we");
    unsigned id = 0;
    bool good;
    if (!f) {
        tool_error("--trace %s cannot be written: %s", run->opts.trace, strerror(errno));
        return false;
    }
    tool_json_t j = tool_json_begin(f);
    tool_json_text(&j, "displayTimeUnit", "ms");
    tool_json_open(&j, "traceEvents", '[');
    for (unsigned i = 0; i < run->n_elements; i++) {
        named(&j, "process_name", i, 0, run->elements[i]->name);
        arrows(run, &j, run->elements[i], &id);
    }
    for (const run_proc_t *p = run->procs; p; p = p->next) {
        unsigned thread = p->copy * p->element->replicas + p->replica;
        uint64_t began = p->began ? p->began : p->ended;
        named(&j, "thread_name", p->element->index, thread, p->label);
        span(run, &j, p, thread, "start", p->started, began);
        if (p->began)
            span(run, &j, p, thread, p->element->memory ? "serve" : "run", began, p->ended);
    }
    tool_json_close(&j, ']');
    tool_json_end(&j);
    good = !ferror(f);
    good &= !fclose(f);
    if (!good)
        tool_error("--trace %s cannot be written: %s", run->opts.trace, strerror(errno));
    return good;
}
