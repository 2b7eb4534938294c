/* tools/run/run.h - `weft run`: what its files share.
 *
 * A directory is read into elements (elements.c, yaml.c), their names are resolved and checked (graph.c). Then plan.c starts a
 * process for each copy when its parents are done (proc.c), talk.c talks to it, and loop.c takes all of it down in the end. One
 * thread, one epoll. Every process is waited for before the run ends. */
#ifndef WEFT_TOOLS_RUN_H
#define WEFT_TOOLS_RUN_H

#include <sys/resource.h>
#include <sys/types.h>
#include <weft/elements.h>

#include "base/json.h"
#include "session.h"

enum {
    RUN_NAME_MAX = 100,
    RUN_COPIES_MAX = 1024,
    RUN_ELEMENTS_MAX = 4096,
    RUN_LINE_MAX = 64 << 20 /* bytes of the longest line that an element may say */
};

/* --- text that grows ------------------------------------------------------------------------------------------- */

/* Always ends with a zero that is not counted. Running out of memory ends the command: what it started dies with it. */
typedef struct run_text {
    char *p;
    size_t n, cap;
} run_text_t;

void *run_alloc(size_t n); /* zeroed */
void *run_grow(void *p, size_t n);
char *run_dup(const char *s);
char *run_dup_n(const char *s, size_t n);
char *run_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void run_add(run_text_t *t, const char *s, size_t n);
void run_addf(run_text_t *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void run_drop(run_text_t *t, size_t n);          /* the first n bytes */
void run_free(run_text_t *t);
/* A writer of JSON into an empty text, and its end, after which the text is whole. */
tool_json_t run_json_begin(run_text_t *t);
void run_json_end(tool_json_t *j);

/* --- JSON from others ------------------------------------------------------------------------------------------ */

typedef wefti_json_text_t run_value_t; /* a value where it lies; p NULL: there is none */

/* Is text[0..n) one JSON value, as RFC 8259 has it, with nothing but blanks around? *value_out is it without them. The
 * functions below only take what has passed this one. */
bool run_json(const char *text, size_t n, run_value_t *value_out);
run_value_t run_json_get(run_value_t object, const char *name); /* the last of that name, as Python has it */
/* The members of an object: *at is {0} at first. False: there are no more. */
bool run_json_next(run_value_t object, wefti_json_t *at, run_value_t *name_out, run_value_t *value_out);
bool run_json_item(run_value_t array, wefti_json_t *at, run_value_t *value_out); /* the same for an array */
bool run_json_is(run_value_t v, const char *text); /* a string of exactly that */
char *run_json_string(run_value_t v);              /* yours to free; NULL: no string, or one with a zero in it */
bool run_json_count(run_value_t v, uint64_t *out); /* whole and not negative */

/* --- elements -------------------------------------------------------------------------------------------------- */

typedef struct run run_t;
typedef struct run_proc run_proc_t;
typedef struct run_element run_element_t;
typedef struct run_hold run_hold_t;   /* of limits.c: a process */
typedef struct run_holds run_holds_t; /* of limits.c: a run */
typedef struct run_trace run_trace_t; /* of trace.c: a run; of trace_rows.c: a transport of a process, a memory element */
typedef struct run_track run_track_t;
typedef struct run_traffic run_traffic_t;

/* A name in a file, and where. */
typedef struct run_name {
    char *name;
    unsigned line;
} run_name_t;

typedef struct run_names {
    run_name_t *at;
    unsigned n;
} run_names_t;

/* A memory element that a compute element uses, and under which name. */
typedef struct run_use {
    char *memory, *trans;
    unsigned line;
    run_element_t *element;
} run_use_t;

typedef struct run_merged {
    char *name;
    uint64_t bytes;
} run_merged_t;

typedef struct run_limits {
    double cpu;            /* 0: not said */
    uint64_t mem, storage; /* 0: not said */
    uint64_t time_ns;      /* of a copy of a compute element; 0: not said */
} run_limits_t;

typedef enum run_state { RUN_WAITING = 0, RUN_RUNNING, RUN_DONE, RUN_FAILED, RUN_STOPPED } run_state_t;

struct run_element {
    char *name, *path; /* path: of its file, whole */
    bool memory;
    unsigned copies, replicas; /* replicas: of a memory element, else 1 */
    run_limits_t limits;
    uint64_t spare;
    run_names_t parents, dependents, corunning, imports; /* as the file says; corunning: of memory elements */
    run_use_t *uses;
    unsigned n_uses;
    run_merged_t *merged;
    unsigned n_merged;
    /* the graph */
    run_element_t **before, **after; /* compute elements that are its parents, whose parent it is */
    unsigned n_before, n_after;
    unsigned n_users; /* of a memory element: compute elements that use it and are not over */
    unsigned mark;    /* of graph.c */
    /* the run */
    run_state_t state;
    unsigned index, n_started, n_over; /* index: its place; copies */
    unsigned n_returned;               /* copies whose result is there */
    unsigned n_left;                   /* copies that need its memory no more: their process is gone, or its grace is over */
    uint64_t done;                     /* when the last result came */
    run_proc_t **procs;                /* copies * replicas of them; NULL: not started */
    char **results;                    /* JSON, by copy; NULL: none yet */
    uint64_t started, ended;
    run_proc_t *owner; /* who invoked it; NULL: it is of the directory */
    char *trans;       /* of one that was invoked: its name at its owner */
    char *params;      /* of a compute element that was invoked: JSON */
    int asked;         /* of one that was invoked: who waits for its durl; -1: nobody */
    bool stopping;     /* of a memory element */
    uint64_t bytes_read, bytes_written; /* by itself; of a memory element: by its users */
    run_traffic_t *traffic;
};

/* --- options --------------------------------------------------------------------------------------------------- */

typedef struct run_param {
    char *name, *value; /* JSON */
} run_param_t;

typedef struct run_opts {
    const char *dir, *python, *trace;
    bool check, json, keep, graph, dot;
    uint64_t jobs, timeout_ns; /* 0: no bound */
    uint64_t grace_ns;
    run_param_t *params;
    unsigned n_params;
} run_opts_t;

/* TOOL_GO or the exit status, as tool_options(). */
int run_options(run_opts_t *o, int argc, char **argv);
int run_command(int argc, char **argv);
void run_options_free(run_opts_t *o);

/* --- processes ------------------------------------------------------------------------------------------------- */

/* Something that epoll watches. fd -1: closed; events that epoll still reports are ignored. */
typedef struct run_source {
    int fd;
    void (*ready)(struct run_source *s, uint32_t events);
    run_proc_t *proc;
    run_t *run;
} run_source_t;

/* A limit that a process was over. */
typedef struct run_limit_hit {
    const char *name;    /* mem, storage, time; NULL: none */
    uint64_t most, used; /* bytes, or nanoseconds; used 0: not known */
} run_limit_hit_t;

typedef enum run_asked { RUN_NOT_ASKED = 0, RUN_ASKED, RUN_TERMINATED, RUN_KILLED } run_asked_t;

struct run_proc {
    run_t *run;
    run_element_t *element;
    unsigned copy, replica;
    char *label; /* "count@1": for people */
    char *dir;   /* its working directory */
    pid_t pid;
    int status;
    bool over, lost; /* waited for; lost: a replica that is gone while others serve */
    run_asked_t asked; /* how far it has been told to end */
    uint64_t ask_at;   /* when the next step of that is due */
    run_source_t exit, control, out[2];
    run_text_t heard, say, lines[2]; /* what came without an end of line yet; what is to be sent, of which `said` bytes are */
    size_t said;
    bool flooded;                    /* it said a line that is too long */
    uint64_t started, began, ended;
    uint64_t returned; /* when its result came; 0: it has none */
    uint64_t grace;    /* after its result it had so much time to end, and was ended; 0: it ended by itself */
    bool lingers, left; /* counted in the run's n_lingering, in the element's n_left */
    struct rusage usage;
    int cpu_first, cpu_count;                  /* where it is pinned; count 0: nowhere */
    run_hold_t *hold;
    run_limit_hit_t limit;
    char *limit_hit;                           /* a sentence; NULL: it was over none */
    double throttled;                          /* seconds for which its limit of processors stopped it */
    uint64_t peak;                             /* bytes of its own memory that were seen; of a memory element: touched */
    uint64_t peak_said;                        /* by itself, because it has memory elements mapped */
    run_track_t *tracks;
    uint64_t n_rows, rows_dropped;             /* of the trace */
    char *durl, *result, *error, *traceback;   /* durl: of one replica */
    run_proc_t *next;                          /* of all */
};

struct run {
    run_opts_t opts;
    char *dir;     /* whole path of the elements */
    char *scratch; /* private directory of this run */
    char *python;  /* whole path */
    run_element_t **elements;
    unsigned n_elements, n_static; /* the first n_static are of the directory */
    unsigned n_problems;
    bool has_others; /* it had children when it began, from before it was this program */
    int epoll, null_fd, lock_fd, guard_fd; /* lock_fd: the scratch directory, locked by the launcher or the guard */
    pid_t guard;
    run_source_t signals, server;
    char *socket_path;
    run_proc_t *procs, **procs_end; /* every process there was, in order of their starts */
    unsigned n_live, n_computing;   /* processes; of them, of compute elements */
    unsigned n_lingering;           /* of those, the ones whose result is there */
    uint64_t started, ended;
    unsigned phase;     /* 0 running, 1 taking compute elements down, 2 memory elements, too */
    bool failed;
    int signalled;
    char *why;          /* the first thing that went wrong */
    unsigned *pinned;   /* by place in `cpus`: how many processes are there */
    int *cpus;
    unsigned n_cpus;
    run_holds_t *holds;
    run_trace_t *trace; /* NULL: none is written */
    const char *limits_by[2]; /* how mem and cpu are held: "cgroup v2", "watching", ...; NULL: no element has that limit */
    char **secrets;     /* the region keys in durls: never shown */
    unsigned n_secrets;
    bool deaf;          /* there is no reader and the run ends: writing does not wait any more */
    bool terminal;      /* of stderr: progress is shown */
    unsigned shown;     /* lines of it that are on the terminal */
    uint64_t shown_at;
};

/* --- elements.c, yaml.c, graph.c --------------------------------------------------------------------------------- */

/* One sentence about a line of a file; 0: about the whole file. Counted. */
void run_problem(run_t *run, const char *path, unsigned line, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* What the directory has, into run->elements, in order of their names. False after sentences. */
bool run_read(run_t *run);
/* What a file says of its element: lines[i] of the YAML text is line numbers[i] of the file. */
void run_yaml(run_t *run, run_element_t *e, const run_text_t *yaml, const unsigned *numbers, unsigned n_lines);
/* "512 MB", "64M": with a unit. */
bool run_size(const char *text, uint64_t *out);
/* Resolve names, look for cycles. False after sentences. */
bool run_link(run_t *run);
/* What Python has to say of the programs, as problems; run none of them. */
void run_compile(run_t *run, const char *python);
void run_show_graph(run_t *run, bool dot);
run_element_t *run_find(run_t *run, const char *name); /* of the directory */
/* " did you mean ...?" if some element of that kind has a name that is near, or "". In a buffer of this function. */
const char *run_did_you_mean(run_t *run, const char *name, bool memory);
void run_element_free(run_element_t *e);
void run_name_add(run_names_t *names, char *name, unsigned line);

/* --- plan.c, memory.c, loop.c, proc.c, talk.c, invoke.c ------------------------------------------------- */

bool run_go(run_t *run); /* all of it, to the end; false: it failed */
void run_fail(run_t *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void run_start_ready(run_t *run);
/* When time ends the run, by --timeout or by limits.time of an element, whose copy *whose_out (may be NULL) then is;
 * UINT64_MAX: never. */
uint64_t run_deadline(const run_t *run, run_proc_t **whose_out);
bool run_start_memory(run_t *run, run_element_t *e);
static inline run_proc_t **run_slot(const run_element_t *e, unsigned copy, unsigned replica)
{
    return &e->procs[copy * e->replicas + replica];
}
/* Every transport of a process that leads to a copy of a memory element. Parallel memory is reached as NAME@i, and as NAME the
 * copy with the same index. */
typedef void run_transport_fn_t(const run_proc_t *p, run_element_t *m, unsigned copy, const char *trans, void *user);
void run_each_transport(const run_proc_t *p, run_transport_fn_t *found, void *user);
void run_configure(run_proc_t *p, run_proc_t *ready); /* tell it durls: those of what `ready` is a replica of, or all (NULL) */
void run_stop_memory(run_element_t *e);
void run_returned(run_proc_t *p);      /* it has said its result, which counts from now on */
/* End those whose result is there and whose grace is over; when to look again, UINT64_MAX: never. */
uint64_t run_grace(run_t *run, uint64_t now);
/* Is every compute element done, although some of their processes are still there? */
bool run_all_done(const run_t *run);
void run_proc_over(run_proc_t *p);     /* its process has been waited for */
void run_memory_ready(run_proc_t *p);  /* it has said its durl */
/* The durl of a copy of a memory element, yours to free; NULL: not known yet. */
char *run_durl(const run_element_t *memory, unsigned copy);

run_proc_t *run_spawn(run_t *run, run_element_t *e, unsigned copy, unsigned replica);
void run_ask(run_proc_t *p);                  /* to end: by a line, then SIGTERM, then SIGKILL */
uint64_t run_press(run_t *run, uint64_t now); /* the next step for those; when to look again, UINT64_MAX: never */
void run_kill(run_proc_t *p);                 /* with all that it has started itself */
void run_look(run_proc_t *p);                 /* has it ended, before epoll tells? */
bool run_watch(run_t *run, run_source_t *s, int fd, uint32_t events, void (*ready)(run_source_t *s, uint32_t events));
void run_unwatch(run_source_t *s);
void run_proc_free(run_proc_t *p);

void run_talk_control(run_source_t *s, uint32_t events);
/* The memory element behind a transport of a process; NULL: memory of its own, or not of this run. */
run_element_t *run_behind(const run_proc_t *p, const char *trans);
void run_tell(run_proc_t *p, const run_text_t *line); /* with its newline */
void run_tell_config(run_proc_t *p, const char *trans, const char *durl);
void run_hear_rest(run_proc_t *p); /* whatever it said before it ended */
size_t run_waiting(const run_source_t *s); /* bytes that can be read now */

bool run_serve_open(run_t *run); /* the socket for runtime.invoke */
void run_serve_close(run_t *run);
void run_invoked_ready(run_element_t *e);  /* its durl is known */
void run_invoked_failed(run_element_t *e); /* there will be none */
void run_owner_over(run_proc_t *p);        /* what it has invoked goes with it */

/* --- limits.c ------------------------------------------------------------------------------------------------------ */

void run_limits_begin(run_t *run);                 /* after the scratch directory is made */
void run_limits_prepare(run_proc_t *p);            /* before the fork */
void run_limits_enter(const run_proc_t *p);        /* in the child; ends it if that cannot be done */
uint64_t run_limits_look(run_t *run, uint64_t now); /* ends what is over a limit; when to look next, UINT64_MAX: never */
bool run_limits_kept(run_proc_t *p);               /* before a result counts; false: limit_hit says why, and the run has failed */
void run_limits_sample(run_proc_t *p);             /* before it is asked to end: what it has now */
void run_limits_over(run_proc_t *p);               /* it was waited for: fills limit_hit */
bool run_limits_end(run_t *run);                   /* when no process is left; false: the scratch directory has to stay */

/* --- guard.c ----------------------------------------------------------------------------------------------------- */

bool run_guard_begin(run_t *run);  /* makes scratch, which goes even if we are killed; false after a sentence */
void run_guard_end(run_t *run);    /* kills what elements left behind, and removes the scratch directory */
void run_guard_reap(run_t *run);   /* children that ended and were not started here */

/* --- output.c, progress.c, report.c, trace.c --------------------------------------------------------------------- */

void run_output(run_source_t *s, uint32_t events); /* of an element: line by line */
void run_output_rest(run_proc_t *p);
/* Can something be written there? Waits for a reader, but not past what ends the run; false: what was to be written is lost. */
bool run_takes(run_t *run, FILE *f);
void run_secret(run_t *run, const char *durl);           /* its region key is not to be shown */
void run_hide(const run_t *run, run_text_t *text);       /* what is secret in a text */
void run_progress(run_t *run, uint64_t now);             /* draw, if it is time */
void run_progress_wipe(run_t *run);                      /* before something else is written */
const char *run_time_text(uint64_t ns, char *buf, size_t cap);
const char *run_bytes_text(uint64_t n, char *buf, size_t cap);
void run_report(run_t *run);
bool run_trace_begin(run_t *run);
bool run_trace_end(run_t *run);
void run_trace_rows(run_proc_t *p, run_value_t line); /* what it says of its calls */
void run_trace_free_proc(run_proc_t *p);
const char *run_state_text(const run_t *run, const run_element_t *e);  /* one of the words of --json */
char *run_state_whole(const run_t *run, const run_element_t *e); /* with what a person asks next; yours to free */
/* How long processes of it were waited for after their results, before they were ended; 0: they ended by themselves. */
uint64_t run_ended_after(const run_t *run, const run_element_t *e);
/* The copy that was over a limit; NULL: none was. */
const run_proc_t *run_over_limit(const run_t *run, const run_element_t *e);

#endif
