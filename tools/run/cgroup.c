/* tools/run/cgroup.c - one cgroup: its files, in version 1 and 2, and the limits of a process in it.
 *
 * No descriptor is kept: a run may have thousands of processes. tests/tools/tools_run_limits.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "limits.h"

#define PERIOD 100000 /* microseconds, of a quota */
#define PIDS_MOST 4096

bool run_cgroup_put(const char *dir, const char *file, const char *text)
{
    char path[PATH_MAX];
    int fd, n = snprintf(path, sizeof path, "%s/%s", dir, file);
    bool good;
    if (n < 0 || (size_t)n >= sizeof path || (fd = open(path, O_WRONLY | O_CLOEXEC)) < 0)
        return false;
    good = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return good;
}

static bool put_count(const char *dir, const char *file, uint64_t n)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    return run_cgroup_put(dir, file, text);
}

/* All of a file, which may be missing. */
run_text_t run_cgroup_read(const char *path)
{
    run_text_t text = {0};
    char piece[4096];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    run_add(&text, "", 0);
    while (fd >= 0 && (n = read(fd, piece, sizeof piece)) > 0)
        run_add(&text, piece, (size_t)n);
    if (fd >= 0)
        close(fd);
    return text;
}

run_text_t run_cgroup_get(const char *dir, const char *file)
{
    char *path = run_printf("%s/%s", dir, file);
    run_text_t text = run_cgroup_read(path);
    free(path);
    return text;
}

/* Is the word in a list of words? */
bool run_cgroup_lists(const char *text, const char *word, const char *between)
{
    size_t n = strlen(word);
    for (const char *p = text; *p; p += strspn(p, between)) {
        size_t len = strcspn(p, between);
        if (len == n && !memcmp(p, word, n))
            return true;
        p += len;
    }
    return false;
}

/* The number after a word at the beginning of a line; 0: there is none. */
static uint64_t number_of(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (!strncmp(p, word, n) && p[n] == ' ')
            return strtoull(p + n + 1, NULL, 10);
    return 0;
}

unsigned run_cgroup_pids(const char *dir, pid_t *pids, unsigned most)
{
    run_text_t text = run_cgroup_get(dir, "cgroup.procs");
    unsigned n = 0;
    char *p = text.p, *end;
    for (long pid; n < most && (pid = strtol(p, &end, 10)) > 0 && end != p; p = end)
        pids[n++] = (pid_t)pid;
    run_free(&text);
    return n;
}

void run_cgroup_kill_in(const char *dir)
{
    pid_t *pids;
    if (run_cgroup_put(dir, "cgroup.kill", "1"))
        return;
    pids = run_alloc(PIDS_MOST * sizeof *pids);
    for (unsigned i = 0, n = run_cgroup_pids(dir, pids, PIDS_MOST); i < n; i++)
        if (pids[i] != getpid())
            kill(pids[i], SIGKILL);
    free(pids);
}

/* --- one process's --------------------------------------------------------------------------------------------------------- */

bool run_cgroup_make(const run_cgroups_t *cgs, run_control_t which, const char *name, run_cgroup_t *c)
{
    char *dir;
    if (!cgs->dir[which])
        return false;
    dir = run_printf("%s/%s", cgs->dir[which], name);
    if (mkdir(dir, 0755)) {
        free(dir);
        return false;
    }
    c->dir[which] = dir;
    c->v2[which] = cgs->v2[which];
    return true;
}

void run_cgroup_unmake(run_cgroup_t *c, run_control_t which)
{
    if (c->dir[which])
        rmdir(c->dir[which]); /* it stays if a process is left in there */
    free(c->dir[which]);
    c->dir[which] = NULL;
}

bool run_cgroup_limit_memory(const run_cgroup_t *c, uint64_t bytes)
{
    const char *dir = c->dir[RUN_CONTROL_MEMORY];
    if (c->v2[RUN_CONTROL_MEMORY]) {
        (void)run_cgroup_put(dir, "memory.swap.max", "0"); /* it has none where there is no swap */
        (void)run_cgroup_put(dir, "memory.oom.group", "1");
        return put_count(dir, "memory.max", bytes);
    }
    (void)put_count(dir, "memory.memsw.limit_in_bytes", bytes); /* with swap: never below the other */
    if (!put_count(dir, "memory.limit_in_bytes", bytes))
        return false;
    (void)put_count(dir, "memory.memsw.limit_in_bytes", bytes);
    return true;
}

bool run_cgroup_limit_cpu(const run_cgroup_t *c, double cpus, unsigned n_cpus)
{
    const char *dir = c->dir[RUN_CONTROL_CPU];
    double quota = fmax(cpus * PERIOD, 1000);
    bool bounded = cpus < n_cpus;
    char text[48];
    if (c->v2[RUN_CONTROL_CPU]) {
        (void)put_count(dir, "cpu.weight", (uint64_t)fmin(fmax(cpus * 100, 1), 10000));
        snprintf(text, sizeof text, "%.0f %d", quota, PERIOD);
        return !bounded || run_cgroup_put(dir, "cpu.max", text);
    }
    (void)put_count(dir, "cpu.shares", (uint64_t)fmin(fmax(cpus * 1024, 2), 262144));
    return !bounded || (put_count(dir, "cpu.cfs_period_us", PERIOD) && put_count(dir, "cpu.cfs_quota_us", (uint64_t)quota));
}

bool run_cgroup_enter(const run_cgroup_t *c)
{
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        if (c->dir[i] && !run_cgroup_put(c->dir[i], "cgroup.procs", "0"))
            return false;
    return true;
}

uint64_t run_cgroup_usage(const run_cgroup_t *c)
{
    bool v2 = c->v2[RUN_CONTROL_MEMORY];
    run_text_t text = run_cgroup_get(c->dir[RUN_CONTROL_MEMORY], v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t bytes = strtoull(text.p, NULL, 10);
    run_free(&text);
    return bytes;
}

uint64_t run_cgroup_oom_kills(const run_cgroup_t *c)
{
    bool v2 = c->v2[RUN_CONTROL_MEMORY];
    run_text_t text = run_cgroup_get(c->dir[RUN_CONTROL_MEMORY], v2 ? "memory.events" : "memory.oom_control");
    uint64_t kills = number_of(text.p, "oom_kill");
    run_free(&text);
    return kills;
}

double run_cgroup_throttled(const run_cgroup_t *c)
{
    const char *dir = c->dir[RUN_CONTROL_CPU];
    run_text_t stat;
    double seconds;
    if (!dir)
        return 0;
    stat = run_cgroup_get(dir, "cpu.stat");
    seconds = c->v2[RUN_CONTROL_CPU] ? (double)number_of(stat.p, "throttled_usec") / 1e6
                                     : (double)number_of(stat.p, "throttled_time") / 1e9;
    run_free(&stat);
    return seconds;
}
