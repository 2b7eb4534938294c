/* tools/run/plan.c - what starts when, what is over, and how all of it is taken down.
 *
 * A compute element starts when the last of its parents is done, all of its copies at once as far as --jobs allows, and is given
 * their results. Memory elements start together with the first compute element that uses them, which need not wait for them: its
 * transports are configured when they serve. They end when the last one that uses them is done.
 *
 * States of an element: waiting, running, done, failed, stopped. The first failure, a signal, or a time that is over (--timeout, or
 * limits.time of an element) turns the run around: compute elements are asked to end, and when none is left memory elements; those
 * who do not are killed. The loop ends when every process has been waited for, whatever the reason. tests/tools/tools_run.py and
 * tests/tools/tools_run_loss.py hold it. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define MEMORY_DEFAULT ((uint64_t)128 << 20)
#define EVENTS 64

static void complain(run_t *run, const char *text)
{
    run_text_t shown = {0};
    run_add(&shown, text, strlen(text));
    run_hide(run, &shown);
    if (run_takes(run, stderr)) {
        run_progress_wipe(run);
        tool_error("%s", shown.p);
    }
    run_free(&shown);
}

void run_fail(run_t *run, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    if (run->failed)
        return; /* the first reason is the one that counts; the others follow from it */
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    run->failed = true;
    run->why = text ? text : run_dup(fmt);
    complain(run, run->why);
}

/* --- memory elements ------------------------------------------------------------------------------------------------- */

static run_proc_t **slot(run_element_t *e, unsigned copy, unsigned replica)
{
    return &e->procs[copy * e->replicas + replica];
}

bool run_start_memory(run_t *run, run_element_t *e)
{
    if (e->state != RUN_WAITING)
        return true;
    e->state = RUN_RUNNING;
    e->started = tool_now();
    for (unsigned copy = 0; copy < e->copies; copy++)
        for (unsigned replica = 0; replica < e->replicas; replica++) {
            run_proc_t *p = run_spawn(run, e, copy, replica);
            if (!p)
                return false;
            *slot(e, copy, replica) = p;
            e->n_started++;
        }
    return true;
}

void run_stop_memory(run_element_t *e)
{
    e->stopping = true;
    for (unsigned i = 0; i < e->copies * e->replicas; i++)
        if (e->procs[i])
            run_ask(e->procs[i]);
}

static char *mirrored_durl(run_element_t *e, unsigned copy)
{
    weft_durl_t all = WEFT_DURL_INIT, one = WEFT_DURL_INIT;
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    for (unsigned i = 0; i < e->replicas; i++) {
        const run_proc_t *p = *slot(e, copy, i);
        if (!p->durl)
            continue; /* it is lost */
        if (weft_durl_parse(p->durl, &one) || one.n_replicas != 1)
            return NULL;
        if (!all.n_replicas)
            all = one;
        else
            memcpy(all.replica[all.n_replicas++], one.replica[0], sizeof one.replica[0]);
    }
    if (!all.n_replicas || weft_durl_format(&all, text, &len))
        return NULL;
    return run_dup(text);
}

char *run_durl(const run_element_t *memory, unsigned copy)
{
    run_element_t *e = (run_element_t *)memory;
    for (unsigned i = 0; i < e->replicas; i++) {
        const run_proc_t *p = *slot(e, copy, i);
        if (!p || (!p->durl && !p->lost))
            return NULL;
    }
    return e->replicas > 1 ? mirrored_durl(e, copy) : run_dup((*slot(e, copy, 0))->durl);
}

/* Every transport of a process that leads to a copy of a memory element. Parallel memory is reached as NAME@i, and as NAME the
 * copy with the same index. */
static void each_transport(const run_proc_t *p,
                           void (*found)(const run_proc_t *p, run_element_t *m, unsigned copy, const char *trans, void *user),
                           void *user)
{
    const run_element_t *e = p->element;
    for (unsigned i = 0; i < e->n_uses; i++) {
        run_element_t *m = e->uses[i].element;
        found(p, m, p->copy % m->copies, e->uses[i].trans, user);
        for (unsigned copy = 0; m->copies > 1 && copy < m->copies; copy++) {
            char *trans = run_printf("%s@%u", e->uses[i].trans, copy);
            found(p, m, copy, trans, user);
            free(trans);
        }
    }
}

/* The name within the durl stays the element's: replicas are found by it. */
static void configure_one(const run_proc_t *p, run_element_t *m, unsigned copy, const char *trans, void *user)
{
    const run_proc_t *ready = user;
    char *durl;
    if (ready && (m != ready->element || copy != ready->copy))
        return;
    durl = run_durl(m, copy);
    if (durl)
        run_tell_config((run_proc_t *)p, trans, durl);
    free(durl);
}

void run_memory_ready(run_proc_t *ready)
{
    run_element_t *e = ready->element;
    char *durl = run_durl(e, ready->copy);
    if (!durl)
        return; /* other replicas are not there yet */
    free(durl);
    for (run_proc_t *p = ready->run->procs; p; p = p->next)
        if (!p->over && !p->element->memory)
            each_transport(p, configure_one, ready);
    if (e->owner)
        run_invoked_ready(e);
}

/* --- compute elements ---------------------------------------------------------------------------------------------------- */

/* Each waits to be configured: at once, if its memory is there. */
static void add_transport(const run_proc_t *p, run_element_t *m, unsigned copy, const char *trans, void *user)
{
    run_text_t *line = user;
    (void)p;
    (void)m;
    (void)copy;
    run_addf(line, "%s\"%s;rdma_tcp;\"", line->p[line->n - 1] == '[' ? "" : ", ", trans);
}

static void add_params(const run_t *run, const run_element_t *e, run_text_t *line)
{
    bool first = true;
    if (e->params) {
        run_addf(line, "%s", e->params);
        return;
    }
    run_add(line, "{", 1);
    for (unsigned i = 0; i < run->opts.n_params; i++, first = false) {
        run_addf(line, "%s", first ? "" : ", ");
        run_add_json(line, run->opts.params[i].name);
        run_addf(line, ": %s", run->opts.params[i].value);
    }
    for (unsigned i = 0; i < e->n_before; i++, first = false) {
        const run_element_t *parent = e->before[i];
        run_addf(line, "%s", first ? "" : ", ");
        run_add_json(line, parent->name);
        run_add(line, ": [", 3);
        for (unsigned k = 0; k < parent->copies; k++) {
            run_addf(line, "%s", k ? ", " : "");
            run_add(line, parent->results[k], strlen(parent->results[k]));
        }
        run_add(line, "]", 1);
    }
    run_add(line, "}", 1);
}

/* docs/design/launcher.md */
static void tell_run(run_proc_t *p)
{
    const run_element_t *e = p->element;
    run_text_t line = {0};
    run_addf(&line, "{\"do\": \"run\", \"name\": \"%s\", \"index\": %u, \"copies\": %u, \"id\": ", e->name, p->copy, e->copies);
    run_add_json(&line, p->label);
    run_addf(&line, ", \"file\": ");
    run_add_json(&line, e->path);
    run_addf(&line, ", \"path\": ");
    run_add_json(&line, p->run->dir);
    run_addf(&line, ", \"imports\": [");
    for (unsigned i = 0; i < e->imports.n; i++) {
        run_addf(&line, "%s", i ? ", " : "");
        run_add_json(&line, e->imports.at[i].name);
    }
    run_addf(&line, "], \"params\": ");
    add_params(p->run, e, &line);
    run_addf(&line, ", \"transports\": [");
    each_transport(p, add_transport, &line);
    for (unsigned i = 0; i < e->n_merged; i++) /* memory of its own process */
        run_addf(&line, "%s\"%s;rdma_local;size,%llu;\"", line.p[line.n - 1] == '[' ? "" : ", ", e->merged[i].name,
                 (unsigned long long)e->merged[i].bytes);
    run_addf(&line, "]}\n");
    run_tell(p, &line);
    run_free(&line);
    each_transport(p, configure_one, NULL);
}

static bool may_start(const run_element_t *e)
{
    for (unsigned i = 0; i < e->n_before; i++)
        if (e->before[i]->state != RUN_DONE)
            return false;
    return true;
}

static bool start_copy(run_t *run, run_element_t *e)
{
    run_proc_t *p;
    if (e->state == RUN_WAITING) {
        e->state = RUN_RUNNING;
        e->started = tool_now();
        for (unsigned i = 0; i < e->n_uses; i++)
            if (!run_start_memory(run, e->uses[i].element))
                return false;
    }
    p = run_spawn(run, e, e->n_started, 0);
    if (!p)
        return false;
    *slot(e, e->n_started++, 0) = p;
    tell_run(p);
    return true;
}

void run_start_ready(run_t *run)
{
    for (unsigned i = 0; i < run->n_elements && !run->failed; i++) {
        run_element_t *e = run->elements[i];
        if (e->memory || e->state > RUN_RUNNING || !may_start(e))
            continue;
        while (e->n_started < e->copies && !run->failed) {
            if (run->opts.jobs && run->n_computing >= run->opts.jobs)
                return;
            if (!start_copy(run, e))
                return;
        }
    }
}

/* --- ends ------------------------------------------------------------------------------------------------------------------ */

/* "was killed by signal 9 (KILL)", "ended with exit status 3". */
static char *describe(const run_proc_t *p)
{
    if (WIFSIGNALED(p->status)) {
        const char *name = sigabbrev_np(WTERMSIG(p->status));
        return run_printf("was killed by signal %d%s%s%s", WTERMSIG(p->status), name ? " (SIG" : "", name ? name : "",
                          name ? ")" : "");
    }
    return run_printf("ended with exit status %d", WEXITSTATUS(p->status));
}

static void memory_over(run_t *run, run_proc_t *p)
{
    run_element_t *e = p->element;
    char *how = describe(p), *text;
    unsigned others = 0;
    for (unsigned i = 0; i < e->replicas; i++) {
        const run_proc_t *other = *slot(e, p->copy, i);
        others += other && other != p && !other->over;
    }
    if (!e->stopping && !p->asked && others) {
        p->lost = true;
        text = run_printf("%s %s; the other replicas serve on", p->label, how);
        complain(run, text);
        free(text);
        if (!p->durl)
            run_memory_ready(p); /* who waited for it waits no longer */
    } else if (!e->stopping && !p->asked) {
        e->state = RUN_FAILED;
        run_fail(run, "memory element %s %s while it was used%s", p->label, how, p->durl ? "" : "; it never served");
    }
    free(how);
    if (++e->n_over == e->n_started && (e->stopping || run->failed)) {
        e->ended = p->ended;
        if (e->state == RUN_RUNNING)
            e->state = e->stopping && !run->failed ? RUN_DONE : RUN_STOPPED;
    }
    if (e->owner && e->asked >= 0)
        run_invoked_failed(e);
}

static void element_done(run_t *run, run_element_t *e)
{
    e->state = RUN_DONE;
    for (unsigned i = 0; i < e->n_uses; i++)
        if (!--e->uses[i].element->n_users)
            run_stop_memory(e->uses[i].element);
    run_start_ready(run);
}

static void say_traceback(run_t *run, const run_proc_t *p)
{
    run_text_t text = {0};
    if (!p->traceback || !*p->traceback)
        return;
    run_add(&text, p->traceback, strlen(p->traceback));
    run_hide(run, &text);
    run_progress_wipe(run);
    for (size_t at = 0; at < text.n;) { /* of a program, and on a terminal: nothing that moves its cursor */
        size_t n = tool_harmless(text.p + at, text.n - at, true);
        if (n)
            fwrite(text.p + at, 1, n, stderr);
        else
            fprintf(stderr, "\\x%02x", (unsigned char)text.p[at]);
        at += n ? n : 1;
    }
    if (text.p[text.n - 1] != '\n')
        fputc('\n', stderr);
    run_free(&text);
}

/* What went wrong may be that it was not given enough: "" or a hint, in a buffer of this function. */
static const char *memory_hint(const run_proc_t *p)
{
    static const char *const words[] = {"MemoryError", "annot allocate memory", "failed to map segment",
                                        "can't start new thread"};
    static char text[160];
    bool short_of =
        !p->error && (WIFSIGNALED(p->status) || WEXITSTATUS(p->status)); /* a library that ended it, as OpenBLAS does */
    if (!p->element->limits.mem)
        return "";
    for (size_t i = 0; p->error && i < sizeof words / sizeof *words; i++)
        short_of |= strstr(p->error, words[i]) || (p->traceback && strstr(p->traceback, words[i]));
    if (!short_of)
        return "";
    snprintf(text, sizeof text, "; its limits: mem is %llu MiB, which may be too little (import numpy alone takes 256M)",
             (unsigned long long)(p->element->limits.mem >> 20));
    return text;
}

static void compute_failed(run_t *run, run_proc_t *p)
{
    char *how = describe(p);
    p->element->state = RUN_FAILED;
    /* memory that is gone is the reason, and not what its users say of it */
    for (unsigned i = 0; i < p->element->n_uses; i++) {
        run_element_t *m = p->element->uses[i].element;
        for (unsigned k = 0; k < m->copies * m->replicas; k++)
            if (m->procs[k])
                run_look(m->procs[k]);
    }
    if (p->error && !run->failed) {
        say_traceback(run, p);
        run_fail(run, "%s failed: %s%s", p->label, p->error, memory_hint(p));
    } else if (p->flooded) {
        run_fail(run, "%s said a line of more than %d MiB, which is no result", p->label, RUN_LINE_MAX >> 20);
    } else if (WIFEXITED(p->status) && WEXITSTATUS(p->status) && !p->began) {
        run_fail(run, "%s %s before it began: can %s \"import disagg.element\"? (--python PATH names another interpreter)",
                 p->label, how, run->python);
    } else {
        run_fail(run, "%s %s%s%s", p->label, how, p->result ? " after its result" : " without a result", memory_hint(p));
    }
    free(how);
}

void run_proc_over(run_proc_t *p)
{
    run_t *run = p->run;
    run_element_t *e = p->element;
    bool good = WIFEXITED(p->status) && !WEXITSTATUS(p->status) && p->result && !p->error;
    if (e->memory) {
        memory_over(run, p);
        return;
    }
    run_owner_over(p);
    e->n_over++;
    e->ended = p->ended;
    if (good && p->result) {
        e->results[p->copy] = p->result;
        p->result = NULL;
    } else if (!p->asked) {
        compute_failed(run, p);
    }
    if (e->state != RUN_RUNNING)
        return;
    if (run->failed)
        e->state = e->n_over == e->copies && good ? RUN_DONE : RUN_STOPPED;
    else if (e->n_over == e->copies)
        element_done(run, e);
    else
        run_start_ready(run); /* there is room for another */
}

/* --- the loop -------------------------------------------------------------------------------------------------------------- */

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
    if (run->signalled) { /* a second one: no more patience */
        for (run_proc_t *p = run->procs; p; p = p->next)
            run_kill(p);
        return;
    }
    run->signalled = (int)info.ssi_signo;
    run_fail(run, "SIG%s: everything is taken down", sigabbrev_np((int)info.ssi_signo));
}

uint64_t run_deadline(const run_t *run, run_proc_t **whose_out)
{
    uint64_t first = run->opts.timeout_ns ? run->started + run->opts.timeout_ns : UINT64_MAX;
    run_proc_t *whose = NULL;
    for (run_proc_t *p = run->procs; p; p = p->next) {
        uint64_t time = p->element->limits.time_ns;
        if (time && !p->over && p->started + time < first) {
            first = p->started + time;
            whose = p;
        }
    }
    if (whose_out)
        *whose_out = whose;
    return first;
}

static void timed_out(run_t *run, run_proc_t *whose)
{
    run_text_t who = {0};
    char time[32];
    unsigned n = 0;
    if (whose) {
        run_look(whose); /* it may have ended while we were stopped */
        if (whose->over)
            return;
        whose->element->state = RUN_FAILED;
        run_fail(run, "%s takes longer than its limits.time, %s", whose->label,
                 run_time_text(whose->element->limits.time_ns, time, sizeof time));
        return;
    }
    for (run_proc_t *p = run->procs; p; p = p->next)
        if (!p->over && !p->element->memory && n++ < 8)
            run_addf(&who, "%s%s", who.n ? ", " : "", p->label);
    run_fail(run, "the time is over (--timeout); still running: %s%s", who.n ? who.p : "no compute element",
             n > 8 ? ", ..." : "");
    run_free(&who);
}

/* Where the run is on its way down. */
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

static void loop(run_t *run)
{
    struct epoll_event events[EVENTS];
    while (run->n_live) {
        uint64_t now, next;
        int n, wait;
        take_down(run);
        now = tool_now();
        next = run_press(run, now);
        if (!run->failed) {
            run_proc_t *whose;
            uint64_t deadline = run_deadline(run, &whose);
            if (now >= deadline) {
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
        n = epoll_wait(run->epoll, events, EVENTS, next != UINT64_MAX && (wait < 0 || wait > 60000) ? 60000 : wait);
        for (int i = 0; i < n; i++) {
            run_source_t *s = events[i].data.ptr;
            if (s->fd >= 0) /* one before may have closed it */
                s->ready(s, events[i].events);
        }
        if (ferror(stdout) && !run->failed)
            run_fail(run, "standard output cannot be written: %s", strerror(errno));
    }
}

/* --- before and after -------------------------------------------------------------------------------------------------------- */

static void find_cpus(run_t *run)
{
    cpu_set_t set;
    run->cpus = run_alloc(CPU_SETSIZE * sizeof *run->cpus);
    run->pinned = run_alloc(CPU_SETSIZE * sizeof *run->pinned);
    if (sched_getaffinity(0, sizeof set, &set))
        return; /* more than we can name: nobody is pinned */
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, &set))
            run->cpus[run->n_cpus++] = i;
}

/* Without them the first descriptors of ours would be taken for standard streams. */
static void open_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Memory is made when it is first touched, so that nothing else would tell before the machine is out of it. */
static bool fits(run_t *run)
{
    struct sysinfo machine;
    uint64_t most;
    if (sysinfo(&machine))
        return true;
    most = ((uint64_t)machine.totalram + machine.totalswap) * machine.mem_unit;
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        if (e->memory && e->n_users && e->limits.mem + e->spare > most) {
            run_fail(run, "%s.o.yaml: its memory is %llu MiB, and this machine has %llu MiB with its swap", e->name,
                     (unsigned long long)((e->limits.mem + e->spare) >> 20), (unsigned long long)(most >> 20));
            return false;
        }
    }
    return true;
}

static bool prepare(run_t *run)
{
    sigset_t signals;
    open_standard_streams();
    if (!fits(run))
        return false;
    if (!run->python)
        run->python = tool_find_python(run->opts.python);
    if (!run->python) {
        tool_error("there is no interpreter %s; --python PATH names one", run->opts.python);
        return false;
    }
    signal(SIGCHLD, SIG_DFL); /* were it ignored, nobody could be waited for */
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
    return run_guard_begin(run) && run_serve_open(run);
}

static void finish(run_t *run)
{
    run_serve_close(run);
    run_unwatch(&run->signals);
    run_guard_end(run);
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
    if (prepare(run)) {
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
