/* tools/run/limits.h - what limits.c, cgroup.c and measure.c share. */
#ifndef WEFT_TOOLS_RUN_LIMITS_H
#define WEFT_TOOLS_RUN_LIMITS_H

#include "run.h"

/* --- cgroup.c: the files of cgroups, of version 1 and 2 -------------------------------------------------------------------- */

typedef enum run_control { RUN_CONTROL_MEMORY, RUN_CONTROL_CPU, RUN_CONTROLS } run_control_t;

/* The cgroups of a run: its own directory in the hierarchy of each controller, with one in it for each process. */
typedef struct run_cgroups {
    char *dir[RUN_CONTROLS]; /* NULL: no cgroup can be made. Version 2: both are the same */
    bool v2[RUN_CONTROLS];
    char *leaf; /* version 2: where the launcher is now, so that its own cgroup can have others in it; NULL: it was not moved */
} run_cgroups_t;

/* One process's: its directories. NULL: not by a cgroup. */
typedef struct run_cgroup {
    char *dir[RUN_CONTROLS];
    bool v2[RUN_CONTROLS];
} run_cgroup_t;

/* cgroup_run.c. Make the run's directories for those controllers that are wanted, named like the scratch directory, and write
 * down in it where they are. `cgroups` is empty before. */
void run_cgroups_begin(run_cgroups_t *cgroups, const bool wanted[RUN_CONTROLS], const char *scratch);
/* Kill whatever is in them, and remove them. False: not all of them would go; the scratch directory has to stay, for the next run
 * to try. */
bool run_cgroups_end(run_cgroups_t *cgroups);
/* The same for a run that is dead, by what is written down in its scratch directory. */
bool run_cgroups_sweep(const char *scratch);

/* cgroup.c: files. */
bool run_cgroup_put(const char *dir, const char *file, const char *text);
run_text_t run_cgroup_read(const char *path);               /* "", if it is missing */
run_text_t run_cgroup_get(const char *dir, const char *file);
bool run_cgroup_lists(const char *text, const char *word, const char *between); /* is the word in a list of words? */
unsigned run_cgroup_pids(const char *dir, pid_t *pids, unsigned most);
void run_cgroup_kill_in(const char *dir);

bool run_cgroup_make(const run_cgroups_t *cgroups, run_control_t which, const char *name, run_cgroup_t *c);
/* Remove it, if nothing is in it; else the end of the run does. Then it is not by a cgroup. */
void run_cgroup_unmake(run_cgroup_t *c, run_control_t which);
/* Only for those that were made. */
bool run_cgroup_limit_memory(const run_cgroup_t *c, uint64_t bytes);
bool run_cgroup_limit_cpu(const run_cgroup_t *c, double cpus, unsigned n_cpus);
bool run_cgroup_enter(const run_cgroup_t *c); /* in the child, between fork() and exec() */
uint64_t run_cgroup_usage(const run_cgroup_t *c);
uint64_t run_cgroup_oom_kills(const run_cgroup_t *c);
double run_cgroup_throttled(const run_cgroup_t *c); /* seconds for which it could not run because of its limit */

/* --- measure.c: how much a process has ------------------------------------------------------------------------------------- */

/* Bytes of a process, as /proc/PID/status has them: cheap. False: it is gone. */
typedef struct run_resident {
    uint64_t all, anonymous, shared; /* shared: memory files, its own and those of others */
} run_resident_t;
bool run_measure_status(pid_t pid, run_resident_t *out);
/* Bytes that count as its own, page by page: slow where much is mapped. Memory of others that Weft mapped is not its own. */
uint64_t run_measure_own(pid_t pid);
/* Bytes of memory that a memory element has, as far as anybody has touched it. */
uint64_t run_measure_touched(pid_t pid);
/* Bytes that files below a directory take, also those that were removed and are still open in one of these processes. Stops above
 * `enough`. */
uint64_t run_measure_files(const char *dir, const pid_t *pids, unsigned n, uint64_t enough);
/* The number of the newest process of this machine, or what it says instead. */
long run_measure_newest(void);
/* Call found() for every process there is, with its process group. */
void run_measure_groups(void (*found)(pid_t pid, pid_t group, void *user), void *user);

#endif
