/* tools/run/host.h - where the processes of elements run: the door between a run and machines.
 *
 * Above it is a run, which decides what starts when (plan.c), or an agent, which does what a run elsewhere says (agent.c). Below
 * it are hosts: this machine (local.c), and machines that are reached by lines to another process (remote.c). A run has one host
 * or several; a process stays on the host that it was started on.
 *
 * Nothing here waits. What happens to a process comes as calls of run_news_t, from the loop; `over` is the last of them, and
 * comes once for every process that was started. */
#ifndef WEFT_TOOLS_RUN_HOST_H
#define WEFT_TOOLS_RUN_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct run run_t;
typedef struct run_proc run_proc_t;
typedef struct run_host run_host_t;

typedef struct run_host_ops {
    /* Start the process of p. False: there is none, and p->error says why. */
    bool (*start)(run_proc_t *p);
    /* A line for the process, with its end. Lost if the process does not listen any more. */
    void (*tell)(run_proc_t *p, const char *line, size_t n);
    /* SIGTERM to the process, or SIGKILL to it and all that it has started. */
    void (*signal)(run_proc_t *p, int number);
    /* Has it ended? Then say so before this returns. */
    void (*look)(run_proc_t *p);
    /* The answer to what the process asked (run_news_t), a line with its end. A process that does not wait for it any more
     * misses nothing. */
    void (*answer)(run_proc_t *p, uint64_t question, const char *line, size_t n);
    /* Its part of a process that is over, or was never started. */
    void (*forget)(run_proc_t *p);
} run_host_ops_t;

struct run_host {
    const run_host_ops_t *ops;
    run_t *run;
    char *name; /* for people; NULL: this machine */
};

/* What hosts tell whoever is above. */
typedef struct run_news {
    void (*heard)(run_proc_t *p, const char *line, size_t n);                   /* on the channel to the launcher */
    void (*printed)(run_proc_t *p, unsigned which, const char *line, size_t n); /* 0: to standard output, 1: error */
    /* It, or what it has started, asks the launcher; `question` names the asker in the answer, which is due once. */
    void (*asked)(run_proc_t *p, uint64_t question, const char *line, size_t n);
    void (*over)(run_proc_t *p); /* it has been waited for, or its machine was lost (p->gone) */
} run_news_t;

extern const run_host_ops_t run_local_ops;

#endif
