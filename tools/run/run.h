/* tools/run/run.h - `weft run`: what its files share.
 *
 * A directory is read into elements (elements.c, yaml.c), their names are resolved and checked (graph.c). Then plan.c starts a
 * process for each copy when its parents are done (proc.c), on some host (host.h), talk.c talks to it, and loop.c takes all of
 * it down in the end. One thread, one epoll. Every process is waited for before the run ends. */
#ifndef WEFT_TOOLS_RUN_H
#define WEFT_TOOLS_RUN_H

#include <sys/resource.h>
#include <sys/types.h>
#include <weft/elements.h>

#include "host.h"
#include "json.h"
#include "lines.h"
#include "remote.h"
#include "session.h"

enum {
    RUN_NAME_MAX = 100,
    RUN_COPIES_MAX = 1024,
    RUN_ELEMENTS_MAX = 4096,
    RUN_RETRIES_MAX = 100,
    RUN_INVOKED_DEEPEST = 16, /* elements that were invoked by one that was invoked, and so on */
    RUN_RETRIES_DEFAULT = 3, /* of an element that is idempotent */
    RUN_LINE_MAX = 64 << 20 /* bytes of the longest line that an element may say */
};

/* --- text that grows ------------------------------------------------------------------------------------------- */

/* Running out of memory ends the command: what it started dies with it. */
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

/* --- elements -------------------------------------------------------------------------------------------------- */

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

/* A memory element that a compute element uses. Its transport there has the element's name, always. */
typedef struct run_use {
    run_element_t *element;
    unsigned line;
} run_use_t;

typedef struct run_merged {
    char *name;
    uint64_t bytes;
    unsigned line;
} run_merged_t;

typedef struct run_param {
    char *name, *value; /* JSON */
    bool of_file;       /* of --params: --param counts instead, where both have it */
    bool twice;         /* there was another --param of that name */
} run_param_t;

typedef struct run_limits {
    double cpu;            /* 0: not said */
    uint64_t mem, storage; /* 0: not said */
    uint64_t time_ns;      /* of a copy of a compute element; 0: not said */
} run_limits_t;

typedef enum run_state { RUN_WAITING = 0, RUN_RUNNING, RUN_DONE, RUN_FAILED, RUN_STOPPED } run_state_t;

struct run_element {
    char *name, *path; /* path: of its file, whole */
    char *code;        /* of a DAG in one file: its program, which gets a file of its own when the run begins; else NULL */
    bool memory;
    bool given;        /* memory of --memory */
    bool described;    /* it has no file of its own to be read */
    bool numbered;     /* it has one copy, and goes by NAME@0 */
    unsigned copies, replicas; /* replicas: of a memory element, else 1 */
    bool mirrored;             /* for an agent: the process is one of several replicas */
    uint64_t maps;             /* for an agent: bytes of memory elements that it may map */
    run_limits_t limits;
    uint64_t spare;
    bool idempotent;  /* a copy may be started again if the machine that it runs on is lost */
    unsigned retries; /* how often at most */
    run_names_t parents, dependents, corunning, imports; /* as the file says */
    run_param_t *defaults; /* of a DAG in one file: parameters of its own */
    unsigned n_defaults;
    run_use_t *uses;
    unsigned n_uses;
    run_merged_t *merged;
    unsigned n_merged;
    /* the graph */
    run_element_t **before, **after; /* compute elements that are its parents, whose parent it is */
    unsigned n_before, n_after;
    run_element_t **earlier, **later; /* the same without results: memory is between them */
    unsigned n_earlier, n_later;
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
    uint64_t question; /* of one that was invoked: its owner waits for the answer to this; 0: nobody does */
    bool stopping;     /* of a memory element */
    bool offered, wanted; /* of a memory element: nobody names it, so all have it; a transport to it was asked for */
    uint64_t bytes_read, bytes_written; /* by itself; of a memory element: by its users */
    run_traffic_t *traffic;
};

/* --- options --------------------------------------------------------------------------------------------------- */

/* --memory: memory that no file describes. copy -1: all of it, NAME and not NAME@i. */
typedef struct run_given_memory {
    char *name;
    int copy;
    uint64_t bytes;
} run_given_memory_t;

/* --transport: to memory that is served elsewhere. */
typedef struct run_given_transport {
    char *name, *durl; /* the durl is the right to the memory: a secret */
    char *first;       /* "NAME;IMPL;": as which it is added; then it is configured by the durl */
} run_given_transport_t;

typedef struct run_opts {
    const char *dir, *python, *trace; /* dir: a directory, or a file (elements.c) */
    const char *on, *ssh, *weft, *image; /* on: NULL: this machine; ssh, weft: commands; image: of OpenWhisk's actions */
    const char *address;                 /* at which other machines reach this one */
    bool check, strict, json, keep, graph, dot, agent;
    bool python_said; /* python is not the default */
    uint64_t jobs, timeout_ns; /* 0: no bound */
    uint64_t grace_ns;
    run_param_t *params;
    run_given_memory_t *memory;
    run_given_transport_t *transports;
    char **paths; /* of --path, whole */
    unsigned n_params, n_memory, n_transports, n_paths;
} run_opts_t;

/* TOOL_GO or the exit status, as tool_options(). */
int run_options(run_opts_t *o, int argc, char **argv);
bool run_on_check(const run_opts_t *o); /* of on.c: is --on right, and does each option of it count? False after a sentence */
int run_command(int argc, char **argv);

/* --- processes ------------------------------------------------------------------------------------------------- */

/* What was said of the elements before anything ran. */
typedef struct run_notice {
    char *file, *key, *text; /* file, key: NULL where there is none */
    unsigned line;           /* 0: none */
    bool warning;
} run_notice_t;

/* A limit that a process was over. */
typedef struct run_limit_hit {
    const char *name;    /* mem, storage, time; NULL: none */
    uint64_t most, used; /* bytes, or nanoseconds; used 0: not known */
} run_limit_hit_t;

typedef enum run_asked { RUN_NOT_ASKED = 0, RUN_ASKED, RUN_TERMINATED, RUN_KILLED } run_asked_t;

struct run_proc {
    run_t *run;
    run_host_t *host;
    run_element_t *element;
    unsigned copy, replica, attempt; /* attempt: how often this copy was lost before */
    uint64_t number;                 /* of all processes of the run, from 1 */
    char *label;       /* "count@1": for people */
    pid_t pid;         /* on its host */
    int status;        /* as waitpid() has it */
    bool over, lost;   /* waited for; lost: a replica that is gone while others serve */
    bool flooded;      /* it said a line that is too long */
    bool told_stats;   /* it said which transports it used */
    run_asked_t asked; /* how far it has been told to end */
    uint64_t ask_at;   /* when the next step of that is due */
    uint64_t started, began, ended;
    uint64_t returned; /* when its result came; 0: it has none */
    bool placed;       /* it has begun: an engine may let it wait for a place */
    uint64_t grace;    /* after its result it had so much time to end, and was ended; 0: it ended by itself */
    bool lingers, left; /* counted in the run's n_lingering, in the element's n_left */
    struct rusage usage;
    run_limit_hit_t limit;
    char *limit_hit;                         /* a sentence; NULL: it was over none */
    double throttled;                        /* seconds for which its limit of processors stopped it */
    uint64_t peak;                           /* bytes of its own memory that were seen; of a memory element: touched */
    uint64_t peak_said;                      /* by itself, because it has memory elements mapped */
    run_track_t *tracks;
    uint64_t n_rows, rows_dropped;           /* of the trace */
    char *durl, *result, *error, *traceback; /* durl: of one replica */
    run_proc_t *next;                        /* of all */
    /* on another machine */
    char *where; /* which, if its host has several; NULL: not known */
    char *gone;  /* over because its machine was lost, and why; NULL: it ended */
    /* on this machine */
    char *dir; /* its working directory */
    run_source_t exit;
    run_lines_t channel, out[2];
    int cpu_first, cpu_count; /* where it is pinned; count 0: nowhere */
    run_hold_t *hold;
};

/* How many run at a time (window.c). */
typedef struct run_window {
    unsigned most; /* 0: not known yet */
    bool wanted;   /* some are ready and may not start */
    unsigned looks, idle; /* since one ended; of them, with processors that had time left */
    uint64_t looked_at, ended;
} run_window_t;

struct run {
    const run_news_t *news; /* who is told what happens to processes */
    run_host_t here;
    run_remote_t *remotes; /* other machines; NULL: all of it runs here */
    bool waits;            /* the loop goes on without processes: for other machines, or for a launcher elsewhere */
    bool agent;            /* it does what a launcher elsewhere says */
    uint64_t kept_at;      /* when it last looked whether the other side lives */
    uint64_t n_procs;      /* that there ever were */
    char *key;             /* of the run: what the key file of elements elsewhere has; NULL: none */
    char *key_file, *code, *address; /* of an agent: the key and the code in its scratch directory; where memory listens */
    run_opts_t opts;
    char *dir;     /* whole path of the elements */
    char *file;    /* the one file that is run, in that directory: a program, or a DAG; NULL: all of it */
    char **paths;  /* where elements find modules, in this order */
    unsigned n_paths;
    char *scratch; /* private directory of this run */
    char *python;  /* whole path */
    char *self;    /* this command, whole path, where others are told; or NULL */
    run_element_t **elements;
    unsigned n_elements, n_static; /* the first n_static are of the directory */
    run_notice_t *notices;
    unsigned n_notices, n_problems, n_warnings;
    bool has_others; /* it had children when it began, from before it was this program */
    int epoll, null_fd, lock_fd, guard_fd; /* lock_fd: the scratch directory, locked by the launcher or the guard */
    pid_t guard;
    run_source_t signals, server;
    char *socket_path;
    run_proc_t *procs, **procs_end; /* every process there was, in order of their starts */
    unsigned n_live, n_computing;   /* processes; of them, of compute elements */
    run_window_t window;
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

/* --- notice.c ---------------------------------------------------------------------------------------------------- */

/* One sentence about a line of a file; line 0: about the whole file; path NULL: about none. Nothing runs then. */
void run_problem(run_t *run, const char *path, unsigned line, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* The same about a key that has no meaning and is ignored; with --strict it is a problem. */
void run_warn(run_t *run, const char *path, unsigned line, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* A list of the warnings, or of the problems. */
void run_notices_json(const run_t *run, tool_json_t *j, const char *name, bool warnings);
void run_notices_free(run_t *run);

/* --- elements.c, yaml.c, keys.c, dag.c, graph.c, show.c ---------------------------------------------------------- */

/* What there is to run, into run->elements, in order of their names. False after sentences. */
bool run_read(run_t *run);
/* All of a file; false after a sentence. */
bool run_slurp(run_t *run, const char *path, run_text_t *out);
/* A new element, on the list. NULL after a sentence: there are too many. */
run_element_t *run_element_new(run_t *run, const char *name, size_t n, const char *path, bool memory);
/* 1 to RUN_NAME_MAX of the characters that names of elements have? */
bool run_name_ok(const char *name, size_t n);
/* Objects of a file of JSON, run->file, as Scad's tools write it: into run->elements. */
void run_dag(run_t *run);
/* Programs of a DAG become files of the scratch directory. False after a sentence. */
bool run_dag_write(run_t *run);
/* What a file says of its element: lines[i] of the YAML text is line numbers[i] of the file. */
void run_yaml(run_t *run, run_element_t *e, const run_text_t *yaml, const unsigned *numbers, unsigned n_lines);
/* "512 MB", "64M": with a unit. */
bool run_size(const char *text, uint64_t *out);
/* The same, and without a unit MB, as Scad has it. */
bool run_size_mb(const char *text, uint64_t *out);
bool run_size_large(const char *text); /* is it one, and larger than both take, which is 64 TB? */
/* Resolve names, look for cycles. False after sentences. */
bool run_link(run_t *run);
bool run_single(const run_t *run); /* is one program run, without the others of its directory? */
/* What Python has to say of the programs, as problems; run none of them. */
void run_compile(run_t *run, const char *python);
void run_show_graph(run_t *run, bool dot);
run_element_t *run_find(run_t *run, const char *name); /* of the directory */
/* " did you mean ...?" if some element of that kind has a name that is near, or "". In a buffer of this function. */
const char *run_did_you_mean(run_t *run, const char *name, bool memory);
void run_element_free(run_element_t *e);
void run_name_add(run_names_t *names, char *name, unsigned line);

/* --- given.c: what the command line gives ------------------------------------------------------------------------ */

bool run_take_param(void *opts, const char *text);
bool run_take_params(void *opts, const char *text);
bool run_take_memory(void *opts, const char *text);
bool run_take_transport(void *opts, const char *text);
bool run_take_path(void *opts, const char *text);
bool run_given_check(const run_opts_t *o); /* do they agree? False after a sentence */
void run_given_free(run_opts_t *o);
/* The elements of --memory. */
void run_given_elements(run_t *run);
void run_given_unused(run_t *run); /* after a run: warnings of those that nobody asked for */
/* Is there a transport of that name, or to a copy of it, NAME@i? */
bool run_given_has(const run_opts_t *o, const char *name);
/* The element's own parameters, but for those that the command line has. */
void run_defaults(const run_t *run, const run_element_t *e, tool_json_t *j);
/* To a process: the transports of --transport, as its first line has them; and where they lead. */
void run_given_add(const run_t *run, tool_json_t *j);
void run_given_configure(run_proc_t *p);

/* --- props.c: what runtime.invoke() is asked for ----------------------------------------------------------------- */

/* NULL, or what is wrong; in a buffer of its own. */
const char *run_props_wrong(const run_element_t *template, run_value_t props);
bool run_has_transport(const run_proc_t *p, const char *name); /* from its start on */
/* What an element that is invoked is called, yours to free: OWNER.TRANS, and a number if a compute element has that name. */
char *run_invoked_name(const run_proc_t *owner, const char *trans, bool memory);

/* --- plan.c, memory.c, loop.c, proc.c, talk.c, invoke.c ------------------------------------------------- */

bool run_go(run_t *run); /* all of it, to the end; false: it failed */
void run_fail(run_t *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, because of this process: its error, if it said none itself. */
void run_fail_by(run_proc_t *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void run_complain(run_t *run, const char *text); /* a sentence for people, without what is secret */
void run_enlist(run_t *run, run_element_t *e);   /* one more element */
void run_start_ready(run_t *run);
/* The names of elements with copies that would run if there were a place for them under --jobs; how many these are. */
unsigned run_held_back(const run_t *run, run_text_t *names);
bool run_window_full(run_t *run); /* no more compute elements may start now */
uint64_t run_window_keep(run_t *run, uint64_t now); /* from the loop: perhaps they may; when to look again */
/* When time ends the run, by --timeout or by limits.time of an element, whose copy *whose_out (may be NULL) then is;
 * UINT64_MAX: never. */
uint64_t run_deadline(const run_t *run, run_proc_t **whose_out);
/* Why a machine cannot have that memory, of whose name it is called in the sentence; NULL: it can. */
char *run_too_large(const run_element_t *e, const char *whose);
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

/* A process of an element, on a host that is chosen for it. NULL after run_fail(). */
run_proc_t *run_spawn(run_t *run, run_element_t *e, unsigned copy, unsigned replica);
/* The two halves of that. `label` is the process's; NULL: made of the element's name. A process that could not be started has
 * an `error`, and is yours to free. */
run_proc_t *run_proc_new(run_t *run, run_host_t *host, run_element_t *e, unsigned copy, unsigned replica, char *label);
bool run_proc_start(run_proc_t *p);
void run_ask(run_proc_t *p);                  /* to end: by a line, then SIGTERM, then SIGKILL */
uint64_t run_press(run_t *run, uint64_t now); /* the next step for those; when to look again, UINT64_MAX: never */
void run_kill(run_proc_t *p);                 /* with all that it has started itself */
void run_ended(run_proc_t *p);                /* for hosts: it has been waited for; tells `over` */
void run_proc_free(run_proc_t *p);

void run_heard(run_proc_t *p, const char *line, size_t n);
/* The memory element behind a transport of a process; NULL: memory of its own, or not of this run. */
run_element_t *run_behind(const run_proc_t *p, const char *trans);
void run_tell(run_proc_t *p, const run_text_t *line); /* with its newline */
void run_tell_config(run_proc_t *p, const char *trans, const char *durl);

void run_asked(run_proc_t *p, uint64_t question, const char *line, size_t n);
/* {"ok": ok, name: value} in a line, which is empty before; name may be NULL. */
void run_answer_line(run_text_t *line, bool ok, const char *name, const char *value);
void run_invoked_ready(run_element_t *e);  /* its durl is known */
void run_invoked_failed(run_element_t *e); /* there will be none */
void run_owner_over(run_proc_t *p);        /* what it has invoked goes with it */

/* --- this machine: local.c, channel.c, lines.c, asks.c ---------------------------------------------------------------------- */

/* The streams of a process that has been started; false: not all of them. They are closed by the next call but one. */
bool run_channel_open(run_proc_t *p, int control, int out, int err);
void run_channel_tell(run_proc_t *p, const char *line, size_t n);
void run_channel_rest(run_proc_t *p); /* whatever it said and printed before it ended */
void run_channel_hold(run_proc_t *p, bool held); /* whether to read what it prints */
void run_channel_close(run_proc_t *p);

bool run_serve_open(run_t *run); /* the socket for runtime.invoke */
void run_serve_close(run_t *run);
void run_serve_reap(void); /* when nothing that epoll told is still to be looked at */
void run_serve_answer(run_proc_t *p, uint64_t question, const char *line, size_t n);

/* --- agent.c, code.c ------------------------------------------------------------------------------------------------- */

bool run_agent_begin(run_t *run); /* false after a sentence */
uint64_t run_agent_keep(run_t *run, uint64_t now); /* from the loop; when to come again */
void run_agent_end(run_t *run);
/* What a path of the program is for a process, yours to free: the path itself here, relative to the code elsewhere. */
char *run_there(const run_proc_t *p, const char *path);

/* --- limits.c ------------------------------------------------------------------------------------------------------ */

void run_limits_begin(run_t *run);                 /* after the scratch directory is made */
void run_limits_prepare(run_proc_t *p);            /* before the fork */
void run_limits_enter(const run_proc_t *p);        /* in the child; ends it if that cannot be done */
uint64_t run_limits_look(run_t *run, uint64_t now); /* ends what is over a limit; when to look next, UINT64_MAX: never */
bool run_limits_kept(run_proc_t *p);               /* before a result counts; false: limit_hit says why, and the run has failed */
void run_limits_sample(run_proc_t *p);             /* before it is asked to end: what it has now */
void run_limits_over(run_proc_t *p);               /* it was waited for: fills limit_hit */
bool run_limits_end(run_t *run);                   /* when no process is left; false: the scratch directory has to stay */
uint64_t run_memory_size(const run_element_t *memory); /* bytes of all its copies and replicas */

/* --- guard.c ----------------------------------------------------------------------------------------------------- */

void run_guard_keep(run_t *run);   /* the scratch directory stays */
bool run_guard_begin(run_t *run);  /* makes scratch, which goes even if we are killed; false after a sentence */
void run_guard_end(run_t *run);    /* kills what elements left behind, and removes the scratch directory */
void run_guard_reap(run_t *run);   /* children that ended and were not started here */

/* --- output.c, progress.c, report.c, trace.c --------------------------------------------------------------------- */

void run_printed(run_proc_t *p, unsigned which, const char *line, size_t n); /* of an element: one line */
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
