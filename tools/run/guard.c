/* tools/run/guard.c - leaves no process and no directory behind, however the launcher ends.
 *
 * The launcher is a subreaper: processes that elements leave behind become its children, even from other groups and sessions,
 * and are killed in the end. The guard is a child that waits for the case that the launcher itself is killed. It finds the
 * processes by their environment: WEFT_LAUNCHER names a socket in the scratch directory of the run. Then it removes that
 * directory, and the cgroups that are written down in it. If the guard was killed too, the next run does its work: the
 * directory is locked (flock) as long as the launcher or the guard lives, and one that is a minute old, ours and not locked
 * belongs to a dead run. Directories that --keep left are marked, and stay.
 *
 * Only descendants of elements are killed. A shell with children that becomes the launcher (exec) still has them; then those
 * of elements are told apart by their environment. tests/tools/tools_run_guard.py checks it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"

#define PREFIX "weft-run-"
#define LETTERS 6    /* of the name, after that */
#define KEPT S_ISVTX /* of a directory that stays */
#define OLD 60       /* seconds: one that is younger may be about to be locked */
#define TRIES 200    /* a process may have started others before it was killed */
#define PAUSE (10 * WEFT_MILLISECOND)
#define ENVIRONMENT_MAX ((size_t)1 << 20)

static void pause_a_little(void)
{
    struct timespec t = {.tv_nsec = (long)PAUSE};
    nanosleep(&t, NULL);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    static unsigned deep;
    (void)st;
    (void)where;
    if (kind == FTW_DNR && deep < 8 && !chmod(path, 0700)) { /* an element changed its mode */
        deep++;
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        deep--;
    }
    (void)!remove(path); /* as much of it as can be */
    return 0;
}

static void remove_all(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- processes ----------------------------------------------------------------------------------------------------- */

static run_text_t read_proc(int dir, const char *pid, const char *what)
{
    char path[64], piece[4096];
    run_text_t text = {0};
    ssize_t n;
    int fd;
    snprintf(path, sizeof path, "%s/%s", pid, what);
    fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    run_add(&text, "", 0);
    while (fd >= 0 && text.n < ENVIRONMENT_MAX && (n = read(fd, piece, sizeof piece)) > 0)
        run_add(&text, piece, (size_t)n);
    if (fd >= 0)
        close(fd);
    return text;
}

/* Has it the variable, with exactly that value, in the environment that it was started with? */
static bool has_variable(int dir, const char *pid, const char *variable)
{
    run_text_t all = read_proc(dir, pid, "environ");
    size_t n = strlen(variable) + 1; /* with the zero */
    bool found = false;
    for (const char *p = all.p; !found && p < all.p + all.n; p += strlen(p) + 1)
        found = (size_t)(all.p + all.n - p) + 1 >= n && !strcmp(p, variable);
    run_free(&all);
    return found;
}

static bool is_child(int dir, const char *pid)
{
    run_text_t stat = read_proc(dir, pid, "stat");
    const char *p = strrchr(stat.p, ')'); /* the name in parentheses may hold any character */
    bool found = p && strtol(strlen(p) > 4 ? p + 4 : "", NULL, 10) == getpid();
    run_free(&stat);
    return found;
}

/* Kill every process that is a child of ours (variable NULL), or that has the variable. How many. */
static unsigned kill_all(const char *variable)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    unsigned killed = 0;
    if (!proc)
        return 0;
    /* cppcheck-suppress readdirCalled ; there is one thread */
    while ((entry = readdir(proc))) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        int fd;
        if (pid <= 1 || pid == getpid())
            continue;
        if (variable ? !has_variable(dirfd(proc), entry->d_name, variable) : !is_child(dirfd(proc), entry->d_name))
            continue;
        fd = (int)syscall(SYS_pidfd_open, pid, 0);
        /* checked again: with a pidfd the number cannot be reused */
        if (fd >= 0 && (!variable || has_variable(dirfd(proc), entry->d_name, variable)) &&
            !syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0))
            killed++;
        if (fd >= 0)
            close(fd);
    }
    closedir(proc);
    return killed;
}

static void kill_those_of(const char *scratch)
{
    char *variable = run_printf("WEFT_LAUNCHER=%s/launcher", scratch);
    for (unsigned i = 0; i < TRIES && kill_all(variable); i++)
        pause_a_little();
    free(variable);
}

/* After a launcher that was killed. */
static void clean_up(const char *scratch)
{
    struct stat st;
    kill_those_of(scratch);
    if (run_cgroups_sweep(scratch) && !lstat(scratch, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
        !(st.st_mode & KEPT))
        remove_all(scratch);
}

void run_guard_reap(run_t *run)
{
    for (;;) {
        siginfo_t info = {0};
        run_proc_t *p;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
            return;
        for (p = run->procs; p && (p->host != &run->here || p->over || p->pid != info.si_pid); p = p->next)
            ;
        if (p)
            p->host->ops->look(p);
        else if (waitpid(info.si_pid, NULL, WNOHANG) == run->guard)
            run->guard = 0;
        else
            run_remotes_reaped(run, info.si_pid);
    }
}

/* --- the guard ----------------------------------------------------------------------------------------------------------- */

static _Noreturn void guard(const run_t *run, int from)
{
    sigset_t all;
    char byte;
    ssize_t n;
    prctl(PR_SET_NAME, "weft-run-guard");
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid(); /* what is sent to all of the launcher's group is not for us */
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        dup2(run->null_fd, fd);
    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++) /* the launcher has a few only at this time */
        if (fd != from)
            close(fd);
    (void)!chdir("/");
    do
        n = read(from, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        clean_up(run->scratch);
    _exit(0);
}

/* --- directories ----------------------------------------------------------------------------------------------------------- */

/* One of a run that is dead, as far as can be told: then it is locked now. -1: it is not. */
static int lock_dead(const char *path)
{
    struct stat st;
    int fd;
    if (lstat(path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 07777) != 0700 ||
        time(NULL) - st.st_ctime < OLD)
        return -1;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void sweep(const char *under)
{
    DIR *dir = opendir(under);
    struct dirent *entry;
    if (!dir)
        return;
    /* cppcheck-suppress readdirCalled ; there is one thread */
    while ((entry = readdir(dir))) {
        char *path;
        int fd;
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0 || strlen(entry->d_name) != strlen(PREFIX) + LETTERS)
            continue;
        path = run_printf("%s/%s", under, entry->d_name);
        fd = lock_dead(path);
        if (fd >= 0) {
            clean_up(path);
            close(fd);
        }
        free(path);
    }
    closedir(dir);
}

void run_guard_keep(run_t *run)
{
    chmod(run->scratch, 0700 | KEPT);
}

/* The path of a directory that is not there yet. */
static void choose_scratch(run_t *run)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    const char *under = getenv("TMPDIR");
    uint8_t random[LETTERS] = {0};
    char name[LETTERS + 1] = "";
    if (!under || *under != '/' || strlen(under) > 60) /* the path of a Unix socket is short */
        under = "/tmp";
    sweep(under);
    do {
        free(run->scratch);
        (void)!getrandom(random, sizeof random, 0);
        for (unsigned i = 0; i < LETTERS; i++)
            name[i] = letters[random[i] % (sizeof letters - 1)];
        run->scratch = run_printf("%s/" PREFIX "%s", under, name);
    } while (!access(run->scratch, F_OK));
}

static bool make_scratch(run_t *run)
{
    if (mkdir(run->scratch, 0700)) {
        tool_error("no working directory can be made at %s: %s", run->scratch, strerror(errno));
        return false;
    }
    run->lock_fd = open(run->scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->lock_fd >= 0)
        flock(run->lock_fd, LOCK_EX | LOCK_NB);
    if (run->opts.keep)
        run_guard_keep(run);
    return true;
}

static bool fork_guard(run_t *run)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) {
        tool_error("cannot begin: %s", strerror(errno));
        return false;
    }
    run->guard = fork();
    if (!run->guard) {
        close(ends[1]);
        guard(run, ends[0]);
    }
    close(ends[0]);
    run->guard_fd = ends[1];
    if (run->guard > 0)
        return true;
    tool_error("cannot begin: %s", strerror(errno));
    run->guard = 0;
    return false;
}

bool run_guard_begin(run_t *run)
{
    siginfo_t info;
    run->has_others = !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    choose_scratch(run);
    /* an agent may be killed at any moment with the worker that started it, and there may be no next run to clean up */
    if ((run->agent && !fork_guard(run)) || !make_scratch(run)) {
        free(run->scratch); /* it is not ours */
        run->scratch = NULL;
        return false;
    }
    run_limits_begin(run); /* a launcher alone in its cgroup moves to another, and its guard is to go there with it */
    return run->agent || fork_guard(run);
}

void run_guard_end(run_t *run)
{
    bool gone;
    if (run->guard_fd >= 0) {
        (void)!write(run->guard_fd, "x", 1);
        close(run->guard_fd);
        run->guard_fd = -1;
    }
    if (run->guard)
        while (waitpid(run->guard, NULL, 0) < 0 && errno == EINTR)
            ;
    run->guard = 0;
    if (run->has_others && run->scratch)
        kill_those_of(run->scratch);
    /* else every child that there is now was started by an element */
    for (unsigned i = 0; i < TRIES && !run->has_others; i++) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            break;
        if (!kill_all(NULL) || i)
            pause_a_little();
    }
    gone = run_limits_end(run);
    if (run->scratch && run->opts.keep)
        tool_error("the working directories are in %s", run->scratch);
    else if (run->scratch && gone) /* else the next run finds in it what is left */
        remove_all(run->scratch);
    if (run->lock_fd >= 0)
        close(run->lock_fd);
    run->lock_fd = -1;
}
