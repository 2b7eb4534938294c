/* tools/run/remote.h - hosts that are other machines: each is a child process that is told by lines what to do there.
 *
 * The child is `ssh HOST weft run --agent` for one machine (agent.c), or a bridge to an engine that has many machines, in Python
 * (disagg.on). docs/design/launcher.md has the lines.
 *
 * States of one: opening (it has not said that it is ready), ready, lost (its lines ended, or it was silent for too long) or
 * closed (it was told to end, and did). Every process on a lost one is over, and lost. */
#ifndef WEFT_TOOLS_RUN_REMOTE_H
#define WEFT_TOOLS_RUN_REMOTE_H

#include <sys/types.h>

#include "host.h"
#include "lines.h"

typedef struct run_remote run_remote_t;
struct run_remote {
    run_host_t host; /* first: the door knows it as this */
    char **argv;     /* of the child */
    pid_t pid;       /* 0: waited for */
    run_lines_t lines, err;
    bool ready, closing, lost;
    bool places;  /* it has many machines, and decides itself which a process runs on */
    unsigned cpus; /* of the machine; 0: not known */
    uint64_t mem;  /* bytes of it; 0: not known */
    unsigned n_live, n_computing;
    uint64_t mem_used; /* by memory elements */
    uint64_t heard_at, pinged_at;
    run_remote_t *next;
};

/* --- remote.c --- */

extern const run_host_ops_t run_remote_ops;
void run_remote_open(run_t *run, run_remote_t *r);           /* the first line to it */
void run_remote_say(run_remote_t *r, const char *what);      /* a line that is one word */
void run_remote_lose(run_remote_t *r, const char *why);      /* it is gone with all that runs there */
void run_remote_heard(run_lines_t *l, const char *text, size_t n);
void run_remote_ended(run_lines_t *l);
void run_remote_said(run_lines_t *l, const char *text, size_t n); /* on its standard error */

/* --- remotes.c --- */

/* Start the child of every host that --on names. False after a sentence. */
bool run_remotes_open(run_t *run);
/* True if everything that --on names is ready; also if it names nothing. */
bool run_remotes_ready(const run_t *run);
/* Say that we live, and nothing else: for whoever holds the loop up. */
void run_remotes_ping(run_t *run, uint64_t now);
/* From the loop: say that we live, look whether they do. When to come again. */
uint64_t run_remotes_keep(run_t *run, uint64_t now);
/* Tell all of them to end, and wait for that, within a bound. */
void run_remotes_close(run_t *run);
/* A child of ours has been waited for. True: it was one of these. */
bool run_remotes_reaped(run_t *run, pid_t pid);
void run_remotes_free(run_t *run);

/* --- on.c, code.c, place.c --- */

/* The child processes that --on asks for, into run->remotes. False after a sentence. */
bool run_on(run_t *run);
/* The files of the program, as lines to a host. False after a sentence. */
bool run_send_code(run_t *run, run_remote_t *r);
/* The host for a new process. */
run_host_t *run_place(run_t *run, const run_proc_t *p);
/* The processes of memory elements that a process uses, or that are used together with it. */
typedef void run_near_fn_t(const run_proc_t *memory, void *user);
void run_each_near(const run_proc_t *p, run_near_fn_t *found, void *user);

#endif
