/* tools/run/loop.c - the loop of a run: what epoll tells, signals, deadlines, and how everything is taken down.
 *
 * The first failure, a signal, or a time that is over (--timeout, or limits.time of an element) ends the run: compute elements
 * are asked to end, and when none is left memory elements are. A process that does not end is killed. The loop ends when every
 * process has been waited for. tests/tools/tools_run.py and tests/tools/tools_run_loss.py check it. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "run.h"

#define MEMORY_DEFAULT ((uint64_t)128 << 20)
#define EVENTS 64

/* --- what epoll tells about ---------------------------------------------------------------------------------------- */

bool run_watch(run_t *run, run_source_t *s, int fd, uint32_t events, void (*ready)(run_source_t *s, uint32_t events))
{
    struct epoll_event ev = {.events = events, .data.ptr = s};
    s->fd = fd;
    s->run = run;
    s->ready = ready;
    return !epoll_ctl(run->epoll, EPOLL_CTL_ADD, fd, &ev);
}

void run_unwatch(run_source_t *s)
{
    if (s->fd >= 0) {
        /* close() alone keeps it in epoll while a duplicate is open, and a child has one between fork() and exec() */
        epoll_ctl(s->run->epoll, EPOLL_CTL_DEL, s->fd, NULL);
        close(s->fd);
    }
    s->fd = -1;
}

/* --- signals and time ------------------------------------------------------------------------------------------------ */

static void signalled(run_source_t *s, uint32_t events)
{
    struct signalfd_siginfo info;
    run_t *run = s->run;
    (void)events;
    if (read(s->fd, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD) {
        run_guard_reap(run);
        return;
    }
    if (run->signalled) { /* the second signal kills */
        for (run_proc_t *p = run->procs; p; p = p->next)
            run_kill(p);
        return;
    }
    run->signalled = (int)info.ssi_signo;
    run_fail(run, "SIG%s: everything is taken down", sigabbrev_np((int)info.ssi_signo));
}

uint64_t run_deadline(const run_t *run, run_proc_t **whose_out)
{
    uint64_t first = run->opts.timeout_ns && !run_all_done(run) ? run->started + run->opts.timeout_ns : UINT64_MAX;
    run_proc_t *whose = NULL;
    for (run_proc_t *p = run->procs; p; p = p->next) {
        uint64_t time = p->element->limits.time_ns;
        if (time && p->placed && !p->over && !p->returned && p->started + time < first) {
            first = p->started + time;
            whose = p;
        }
    }
    if (whose_out)
        *whose_out = whose;
    return first;
}

/* Compute elements that run, or have been started elsewhere and wait for a place there: how many. */
static unsigned name_running(const run_t *run, bool placed, run_text_t *who)
{
    unsigned n = 0;
    for (const run_proc_t *p = run->procs; p; p = p->next)
        if (!p->over && !p->element->memory && !p->returned && p->placed == placed && n++ < 8)
            run_addf(who, "%s%s", who->n ? ", " : "", p->label);
    if (n > 8)
        run_addf(who, ", ...");
    return n;
}

static void timed_out(run_t *run, run_proc_t *whose)
{
    run_text_t who = {0}, held = {0};
    char time[32];
    unsigned n = 0;
    if (whose) {
        whose->host->ops->look(whose); /* it may have ended while we were stopped */
        if (whose->over)
            return;
        whose->element->state = RUN_FAILED;
        whose->limit = (run_limit_hit_t){.name = "time", .most = whose->element->limits.time_ns};
        run_fail_by(whose, "%s takes longer than its limits.time, %s", whose->label,
                    run_time_text(whose->element->limits.time_ns, time, sizeof time));
        return;
    }
    n = name_running(run, true, &who);
    if (name_running(run, false, &held))
        run_addf(&who, "; waiting for a place elsewhere: %s", held.p);
    run_free(&held);
    for (const run_remote_t *r = run->remotes; r; r = r->next)
        if (!r->ready)
            run_addf(&who, "; %s is not ready yet", r->host.name);
    if (run->opts.jobs && run_held_back(run, &held))
        run_addf(&who, "; without a place under --jobs %llu: %s. Elements that wait for each other must all have one",
                 (unsigned long long)run->opts.jobs, held.p);
    run_fail(run, "the time is over (--timeout); still running: %s%s", n ? "" : "no compute element", who.n ? who.p : "");
    run_free(&held);
    run_free(&who);
}

/* The next step of taking the run down. */
static void take_down(run_t *run)
{
    if (!run->failed)
        return;
    if (run->phase == 0) {
        run->phase = 1;
        for (run_proc_t *p = run->procs; p; p = p->next)
            if (!p->element->memory)
                run_ask(p);
    }
    if (run->phase == 1 && !run->n_computing) {
        run->phase = 2;
        for (unsigned i = 0; i < run->n_elements; i++)
            if (run->elements[i]->memory)
                run_stop_memory(run->elements[i]);
    }
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void loop(run_t *run)
{
    struct epoll_event events[EVENTS];
    uint64_t due = UINT64_MAX; /* when the last wait was to end */
    while (run->n_live || (run->waits && !run->failed)) {
        uint64_t now, next;
        int n, wait;
        run_serve_reap();
        take_down(run);
        now = tool_now();
        next = sooner(run_limits_look(run, now), run_grace(run, now));
        next = sooner(next, run_window_keep(run, now));
        next = sooner(next, sooner(run_remotes_keep(run, now), run_agent_keep(run, now)));
        next = sooner(next, run_press(run, now)); /* last: the others may have asked some to end */
        if (!run->failed) {
            run_proc_t *whose;
            uint64_t deadline = run_deadline(run, &whose);
            /* if we were held up ourselves, what happened in time may be still to be read */
            if (now >= deadline && now < due + WEFT_SECOND) {
                timed_out(run, whose);
                continue;
            }
            if (deadline < next)
                next = deadline;
        }
        run_progress(run, now);
        if (run->terminal && next > now + 100 * WEFT_MILLISECOND)
            next = now + 100 * WEFT_MILLISECOND;
        wait = next == UINT64_MAX ? -1 : next <= now ? 0 : (int)((next - now) / WEFT_MILLISECOND + 1);
        due = next < UINT64_MAX - WEFT_SECOND ? next : UINT64_MAX - WEFT_SECOND;
        n = epoll_wait(run->epoll, events, EVENTS, next != UINT64_MAX && (wait < 0 || wait > 60000) ? 60000 : wait);
        for (int i = 0; i < n; i++) {
            run_source_t *s = events[i].data.ptr;
            if (s->fd >= 0) /* an earlier event may have closed it */
                s->ready(s, events[i].events);
        }
        if (ferror(stdout) && !run->failed)
            run_fail(run, "standard output cannot be written: %s", strerror(errno));
    }
}

/* --- before and after ----------------------------------------------------------------------------------- */

static void find_cpus(run_t *run)
{
    cpu_set_t set;
    run->cpus = run_alloc(CPU_SETSIZE * sizeof *run->cpus);
    run->pinned = run_alloc(CPU_SETSIZE * sizeof *run->pinned);
    if (sched_getaffinity(0, sizeof set, &set))
        return; /* more processors than cpu_set_t has: nobody is pinned */
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, &set))
            run->cpus[run->n_cpus++] = i;
}

/* If one is closed, a descriptor of ours would take its number. */
static void open_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static bool fits(run_t *run)
{
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        char *why = e->memory && e->n_users ? run_too_large(e, "this machine") : NULL;
        if (why) {
            run_fail(run, "%s%s: %s", e->given ? e->path : e->name, e->described ? "" : ".o.yaml", why);
            free(why);
            return false;
        }
    }
    return true;
}

static bool prepare(run_t *run)
{
    sigset_t signals;
    open_standard_streams();
    if (!run->opts.on && !fits(run))
        return false;
    if (!run->python && !run->agent && !run->opts.on)
        run->python = tool_find_python(run->opts.python);
    if (!run->python && !run->agent && !run->opts.on) {
        tool_error("there is no interpreter %s; --python PATH names one", run->opts.python);
        return false;
    }
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, waitpid() does not work */
    signal(SIGPIPE, SIG_IGN);
    tool_raise_file_limit();
    find_cpus(run);
    run->epoll = epoll_create1(EPOLL_CLOEXEC);
    run->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (run->epoll < 0 || run->null_fd < 0) {
        tool_error("cannot begin: %s", strerror(errno));
        return false;
    }
    tool_signals(&signals);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (!run_watch(run, &run->signals, signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK), EPOLLIN, signalled)) {
        tool_error("cannot begin: %s", strerror(errno));
        return false;
    }
    if (run->opts.on) /* nothing runs here; the agents have guards of their own */
        return run_remotes_open(run);
    return run_guard_begin(run) && run_dag_write(run) && run_serve_open(run) && (!run->agent || run_agent_begin(run));
}

static void finish(run_t *run)
{
    run_remotes_close(run);
    run_serve_close(run);
    run_unwatch(&run->signals);
    run_guard_end(run);
    if (run->agent)
        run_agent_end(run);
    if (run->epoll >= 0)
        close(run->epoll);
    if (run->null_fd >= 0)
        close(run->null_fd);
}

bool run_go(run_t *run)
{
    for (unsigned i = 0; i < run->n_elements; i++) {
        run_element_t *e = run->elements[i];
        e->procs = run_alloc(e->copies * e->replicas * sizeof(run_proc_t *));
        e->results = run_alloc(e->copies * sizeof(char *));
        if (e->memory && !e->limits.mem)
            e->limits.mem = MEMORY_DEFAULT;
        for (unsigned k = 0; k < e->n_uses; k++)
            e->uses[k].element->n_users++;
    }
    run->started = tool_now();
    run->waits = true;
    if (prepare(run)) {
        if (!run->agent)
            run_start_ready(run);
        loop(run);
    } else {
        run->failed = true;
    }
    run->ended = tool_now();
    run_progress_wipe(run);
    finish(run);
    return !run->failed;
}
