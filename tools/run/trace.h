/* tools/run/trace.h - what trace.c and trace_rows.c share. */
#ifndef WEFT_TOOLS_RUN_TRACE_H
#define WEFT_TOOLS_RUN_TRACE_H

#include "run.h"

enum { RUN_TRACE_ROWS = 20000 }; /* that a copy is asked to keep */

struct run_trace {
    FILE *f;
    tool_json_t j;
    unsigned n_tracks; /* of transports */
};

/* Microseconds since the run began. */
static inline double run_trace_us(const run_t *run, uint64_t at)
{
    return at > run->started ? (double)(at - run->started) / 1e3 : 0;
}
/* Begin an event, which the caller closes. */
void run_trace_head(tool_json_t *j, const char *name, const char *kind, const char *phase, unsigned element, unsigned thread,
                    double ts);
/* Say what a process or a thread of the picture is called. */
void run_trace_named(tool_json_t *j, const char *what, unsigned element, unsigned thread, const char *name);
void run_trace_order(tool_json_t *j, unsigned element, unsigned thread, unsigned place);
static inline unsigned run_trace_thread(const run_proc_t *p)
{
    return p->copy * p->element->replicas + p->replica;
}

/* What is told of rows in the end. */
void run_trace_dropped(run_t *run, const run_proc_t *p);
void run_trace_counters(run_t *run, const run_element_t *e);

#endif
