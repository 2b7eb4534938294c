/* tools/run/channel.c - the three streams of a process on this machine: lines to and from the launcher, and what it prints.
 *
 * A line to the launcher is at most RUN_LINE_MAX bytes; a printed line is cut after PRINTED bytes.
 * tests/tools/tools_run_hostile.py checks it. */
#include <unistd.h>

#include "run.h"

#define PRINTED ((size_t)1 << 16)

static void heard(run_lines_t *l, const char *text, size_t n)
{
    run_proc_t *p = l->user;
    p->run->news->heard(p, text, n);
}

static void printed(run_lines_t *l, const char *text, size_t n)
{
    run_proc_t *p = l->user;
    p->run->news->printed(p, l == &p->out[1], text, n);
}

bool run_channel_open(run_proc_t *p, int control, int out, int err)
{
    int back = p->element->memory ? -1 : dup(control); /* a pipe from a memory element; a socket otherwise */
    p->channel = (run_lines_t){.most = RUN_LINE_MAX, .line = heard, .user = p};
    p->out[0] = p->out[1] = (run_lines_t){.most = PRINTED, .cut = true, .line = printed, .user = p};
    return run_lines_open(p->run, &p->channel, control, back) & run_lines_open(p->run, &p->out[0], out, -1) &
           run_lines_open(p->run, &p->out[1], err, -1);
}

void run_channel_tell(run_proc_t *p, const char *line, size_t n)
{
    run_lines_say(&p->channel, line, n);
}

void run_channel_rest(run_proc_t *p)
{
    run_lines_rest(&p->channel);
    p->flooded = p->channel.flooded;
    run_lines_rest(&p->out[0]);
    run_lines_rest(&p->out[1]);
}

void run_channel_hold(run_proc_t *p, bool held)
{
    run_lines_hold(&p->out[0], held);
    run_lines_hold(&p->out[1], held);
}

void run_channel_close(run_proc_t *p)
{
    run_lines_close(&p->channel);
    run_lines_close(&p->out[0]);
    run_lines_close(&p->out[1]);
}
