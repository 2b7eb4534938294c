/* tools/run/proc.c - the life of an element's process, on whichever host: started, asked to end, killed, over.
 *
 * States: running, asked (a line on its channel), terminated (SIGTERM), killed (SIGKILL), over (waited for). The run moves a
 * process to all of them but the last, to which its host does. tests/tools/tools_run_loss.py checks it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define POLITE (500 * WEFT_MILLISECOND) /* between the line and SIGTERM */
#define PATIENT (2 * WEFT_SECOND)       /* between SIGTERM and SIGKILL */

static char *label_of(const run_element_t *e, unsigned copy, unsigned replica)
{
    run_text_t label = {0};
    run_addf(&label, "%s", e->name);
    if (e->copies > 1)
        run_addf(&label, "@%u", copy);
    if (e->replicas > 1)
        run_addf(&label, ".%u", replica);
    return label.p;
}

run_proc_t *run_proc_new(run_t *run, run_host_t *host, run_element_t *e, unsigned copy, unsigned replica, char *label)
{
    run_proc_t *p = run_alloc(sizeof *p);
    p->run = run;
    p->host = host;
    p->element = e;
    p->copy = copy;
    p->replica = replica;
    p->number = ++run->n_procs;
    p->label = label ? label : label_of(e, copy, replica);
    p->exit.fd = -1;
    p->channel = p->out[0] = p->out[1] = (run_lines_t)RUN_LINES_CLOSED;
    return p;
}

bool run_proc_start(run_proc_t *p)
{
    run_t *run = p->run;
    if (!p->host->ops->start(p))
        return false;
    *run->procs_end = p;
    run->procs_end = &p->next;
    run->n_live++;
    run->n_computing += !p->element->memory;
    return true;
}

run_proc_t *run_spawn(run_t *run, run_element_t *e, unsigned copy, unsigned replica)
{
    run_proc_t *p = run_proc_new(run, &run->here, e, copy, replica, NULL);
    p->host = run_place(run, p);
    if (p->host && run_proc_start(p))
        return p;
    run_fail(run, "%s", p->host ? p->error : "no machine is left to run elements on");
    if (!p->host)
        p->host = &run->here;
    run_proc_free(p);
    return NULL;
}

void run_kill(run_proc_t *p)
{
    if (p->over)
        return;
    p->asked = RUN_KILLED;
    p->ask_at = UINT64_MAX;
    p->host->ops->signal(p, SIGKILL);
}

void run_ask(run_proc_t *p)
{
    static const char line[] = "{\"do\": \"terminate\"}\n";
    if (p->over || p->asked)
        return;
    p->asked = RUN_ASKED;
    p->ask_at = tool_now();
    if (!p->element->memory) {
        p->ask_at += POLITE;
        p->host->ops->tell(p, line, sizeof line - 1);
    }
}

uint64_t run_press(run_t *run, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (run_proc_t *p = run->procs; p; p = p->next) {
        if (p->over || !p->asked)
            continue;
        if (p->ask_at <= now) {
            if (p->asked == RUN_ASKED) {
                p->asked = RUN_TERMINATED;
                p->ask_at = now + PATIENT;
                p->host->ops->signal(p, SIGTERM);
            } else if (p->asked == RUN_TERMINATED) {
                run_kill(p);
            }
        }
        if (p->ask_at < next)
            next = p->ask_at;
    }
    return next;
}

void run_ended(run_proc_t *p)
{
    p->over = true;
    p->ended = tool_now();
    p->run->n_live--;
    p->run->n_computing -= !p->element->memory;
    p->run->news->over(p);
}

void run_proc_free(run_proc_t *p)
{
    p->host->ops->forget(p);
    free(p->label);
    free(p->durl);
    free(p->result);
    free(p->error);
    free(p->traceback);
    free(p->limit_hit);
    free(p->where);
    free(p);
}
