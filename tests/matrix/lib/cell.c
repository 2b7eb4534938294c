/* tests/matrix/lib/cell.c - see cell.h. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

enum { JOBS_MAX = 16, CELL_SECONDS = 120, SHOWN = 12000 };

typedef struct job {
    pid_t pid; /* 0: none */
    const row_t *row;
    double end;
    int said; /* what the cell writes to stdout and stderr */
} job_t;

typedef struct run {
    const char *place;
    const way_t *way;
    cell_fn fn;
    job_t jobs[JOBS_MAX];
    int at_once, seconds;
    unsigned failed, all;
} run_t;

/* Leaks are not looked for: a cell is not tidy when it fails. */
const char *__asan_default_options(void) __attribute__((visibility("default")));
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && atoi(text) > 0 ? atoi(text) : otherwise;
}

static const char *mode_name(weft_progress_mode_t mode)
{
    return mode == WEFT_PROGRESS_THREAD ? "thread" : mode == WEFT_PROGRESS_LOOP ? "loop" : "caller";
}

/* --- one cell ------------------------------------------------------------------------------------------------------------- */

static void start(run_t *run, job_t *job, const row_t *row)
{
    fflush(NULL);
    job->row = row;
    job->said = memfd_create("cell", MFD_CLOEXEC);
    job->end = now() + run->seconds;
    job->pid = fork();
    if (job->pid < 0 || job->said < 0) {
        perror("fork");
        exit(1);
    }
    if (job->pid)
        return;
    setpgid(0, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    alarm((unsigned)run->seconds + 30); /* should the one that counts be gone */
    dup2(job->said, STDOUT_FILENO);
    dup2(job->said, STDERR_FILENO);
    run->fn(row, run->way);
    fflush(NULL);
    _exit(0);
}

/* What it said, without the newline at the end. */
static const char *said(const job_t *job)
{
    static char text[SHOWN + 1];
    ssize_t n = pread(job->said, text, SHOWN, 0);
    n = n > 0 ? n : 0;
    while (n && text[n - 1] == '\n')
        n--;
    text[n] = 0;
    return text;
}

static void name(const run_t *run, const job_t *job, const char *word)
{
    printf("%s %s in %s (%s, %s): ", word, job->row->name, run->place, mode_name(run->way->mode), run->way->transports);
}

/* The last line is what is wrong: it goes first. */
static void wrong(const run_t *run, const job_t *job, const char *text)
{
    const char *last = strrchr(text, '\n');
    name(run, job, "WRONG");
    printf("%s\n", last ? last + 1 : text);
    if (last)
        printf("%.*s\n", (int)(last - text), text);
}

static void crash(const run_t *run, const job_t *job, const char *text, int status)
{
    name(run, job, "CRASH");
    if (WIFEXITED(status))
        printf("ended with %d\n%s\n", WEXITSTATUS(status), text);
    else
        printf("killed by signal %d\n%s\n", WTERMSIG(status), text);
}

static void ended(run_t *run, job_t *job, int status)
{
    const char *text = said(job);
    bool sane = !strstr(text, "Sanitizer") && !strstr(text, "runtime error:");
    run->failed += status != 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1 && sane)
        wrong(run, job, text);
    else if (status)
        crash(run, job, text, status);
    close(job->said);
    job->pid = 0;
}

static void show_stacks(pid_t pid)
{
    char command[256];
    snprintf(
        command, sizeof command,
        "for p in $(pgrep -g %d); do timeout 60 gdb -p $p -batch -ex 'thread apply all bt 16' 2>/dev/null | grep '^[T#]'; done",
        (int)pid);
    fflush(stdout);
    if (system(command))
        printf("(no stacks)\n");
}

static void hung(run_t *run, job_t *job)
{
    run->failed++;
    name(run, job, "HANG");
    printf("no end after %d s\n", run->seconds);
    if (getenv("MATRIX_STACKS"))
        show_stacks(job->pid);
    kill(-job->pid, SIGKILL);
    waitpid(job->pid, NULL, 0);
    printf("%s\n", said(job));
    close(job->said);
    job->pid = 0;
}

/* --- all cells ------------------------------------------------------------------------------------------------------------ */

/* Look at those that run; whether one is free now. */
static job_t *free_job(run_t *run)
{
    job_t *found = NULL;
    for (int i = 0; i < run->at_once; i++) {
        job_t *job = &run->jobs[i];
        int status;
        if (job->pid && waitpid(job->pid, &status, WNOHANG) == job->pid)
            ended(run, job, status);
        else if (job->pid && now() > job->end)
            hung(run, job);
        if (!job->pid)
            found = job;
    }
    return found;
}

static bool some_run(const run_t *run)
{
    for (int i = 0; i < run->at_once; i++) {
        if (run->jobs[i].pid)
            return true;
    }
    return false;
}

static const row_t *row_of(const char *name)
{
    const row_t *row = rows;
    while (row && strcmp(row->name, name))
        row = row->next;
    return row;
}

/* Is a word of MATRIX in its name, or its header? */
static bool is_asked_for(const function_t *f)
{
    const char *words = getenv("MATRIX");
    char copy[1024], *rest = copy;
    if (!words)
        return true;
    snprintf(copy, sizeof copy, "%s", words);
    for (const char *word; (word = strsep(&rest, ","));) {
        if (*word && (strstr(f->name, word) || !strcmp(f->header, word)))
            return true;
    }
    return false;
}

void cells_run(const char *place, const way_t *way, uint64_t not_for, cell_fn fn)
{
    run_t run = {.place = place, .way = way, .fn = fn};
    run.at_once = setting("MATRIX_JOBS", 2) < JOBS_MAX ? setting("MATRIX_JOBS", 2) : JOBS_MAX;
    run.seconds = setting("MATRIX_SECONDS", CELL_SECONDS);
    for (int again = setting("MATRIX_REPEAT", 1); again > 0; again--) {
        for (size_t i = 0; i < functions_n; i++) { /* in the order of the headers */
            const row_t *row = row_of(functions[i].name);
            job_t *job;
            if (!row || row->needs & not_for || !is_asked_for(&functions[i]))
                continue;
            while (!(job = free_job(&run)))
                usleep(200);
            start(&run, job, row);
            run.all++;
        }
    }
    while (some_run(&run)) {
        free_job(&run);
        usleep(200);
    }
    if (run.failed) {
        printf("%u of %u cells failed in %s (%s, %s)\n", run.failed, run.all, place, mode_name(way->mode), way->transports);
        exit(1);
    }
}

/* --- inside of a cell ----------------------------------------------------------------------------------------------------- */

void cell_right(const char *wrong)
{
    if (!*wrong)
        return;
    fprintf(stderr, "%s\n", wrong);
    fflush(NULL);
    _exit(1);
}

void cell_turn(where_t where, const row_t *row, side_t *s)
{
    turn_t *t = turn_begin(where, row, s);
    turn_call(t);
    cell_right(turn_end(t));
}
