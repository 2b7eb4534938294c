/* tools/run/plan.c - what starts when, and what follows when it is over.
 *
 * A compute element starts when the last of its parents is done, all of its copies at once as far as --jobs allows, and is
 * given their results. Memory elements start together with the first compute element that uses them, and end when the last one
 * is done.
 *
 * A copy is done when it has said its result, whether its process ends or not. A process that is still there after a grace is
 * asked to end. Memory that it uses stays until one of the two has come.
 *
 * States of an element: waiting, running, done, failed, stopped. tests/tools/tools_run.py and tests/tools/tools_run_loss.py
 * check it. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "trace.h"

void run_complain(run_t *run, const char *text)
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

static void fail(run_t *run, const char *fmt, va_list ap)
{
    char *text = NULL;
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    run->failed = true;
    run->why = text ? text : run_dup(fmt);
    run_complain(run, run->why);
}

/* The first reason is the one that counts; the others follow from it. */
void run_fail(run_t *run, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!run->failed)
        fail(run, fmt, ap);
    va_end(ap);
}

void run_fail_by(run_proc_t *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!p->run->failed) {
        fail(p->run, fmt, ap);
        if (!p->error)
            p->error = run_dup(p->run->why);
    }
    va_end(ap);
}

/* --- compute elements ---------------------------------------------------------------------------------------------------- */

/* Each waits to be configured: at once, if its memory is there. */
static void add_transport(const run_proc_t *p, run_element_t *m, unsigned copy, const char *trans, void *user)
{
    char *text = run_printf("%s;rdma_tcp;", trans);
    (void)p;
    (void)m;
    (void)copy;
    tool_json_text(user, NULL, text);
    free(text);
}

static void add_params(const run_t *run, const run_element_t *e, tool_json_t *j)
{
    if (e->params) {
        tool_json_raw(j, "params", e->params);
        return;
    }
    tool_json_open(j, "params", '{');
    run_defaults(run, e, j);
    for (unsigned i = 0; i < run->opts.n_params; i++)
        tool_json_raw(j, run->opts.params[i].name, run->opts.params[i].value);
    for (unsigned i = 0; i < e->n_before; i++) {
        tool_json_open(j, e->before[i]->name, '[');
        for (unsigned k = 0; k < e->before[i]->copies; k++)
            tool_json_raw(j, NULL, e->before[i]->results[k]);
        tool_json_close(j, ']');
    }
    tool_json_close(j, '}');
}

static void add_path(const run_proc_t *p, tool_json_t *j, const char *name, const char *path)
{
    char *there = run_there(p, path);
    tool_json_text(j, name, there);
    free(there);
}

/* docs/design/launcher.md */
static void tell_run(run_proc_t *p)
{
    const run_element_t *e = p->element;
    run_text_t line = {0};
    tool_json_t j = run_json_begin(&line);
    tool_json_open(&j, NULL, '{');
    tool_json_text(&j, "do", "run");
    tool_json_text(&j, "name", e->name);
    tool_json_count(&j, "index", p->copy);
    tool_json_count(&j, "copies", e->copies);
    tool_json_text(&j, "id", p->label);
    add_path(p, &j, "file", e->path);
    add_path(p, &j, "path", p->run->dir);
    tool_json_open(&j, "paths", '[');
    for (unsigned i = 1; i < p->run->n_paths; i++) /* the first is the directory */
        add_path(p, &j, NULL, p->run->paths[i]);
    tool_json_close(&j, ']');
    tool_json_open(&j, "imports", '[');
    for (unsigned i = 0; i < e->imports.n; i++)
        add_path(p, &j, NULL, e->imports.at[i].name);
    tool_json_close(&j, ']');
    add_params(p->run, e, &j);
    tool_json_open(&j, "transports", '[');
    run_each_transport(p, add_transport, &j);
    run_given_add(p->run, &j);
    for (unsigned i = 0; i < e->n_merged; i++) { /* memory of its own process */
        char *text = run_printf("%s;rdma_local;size,%llu;", e->merged[i].name, (unsigned long long)e->merged[i].bytes);
        tool_json_text(&j, NULL, text);
        free(text);
    }
    tool_json_close(&j, ']');
    if (p->run->trace)
        tool_json_count(&j, "trace", RUN_TRACE_ROWS);
    tool_json_end(&j);
    run_json_end(&j);
    run_tell(p, &line);
    run_free(&line);
    run_configure(p, NULL);
    run_given_configure(p);
}

static bool may_start(const run_element_t *e)
{
    for (unsigned i = 0; i < e->n_before; i++)
        if (e->before[i]->state != RUN_DONE)
            return false;
    for (unsigned i = 0; i < e->n_earlier; i++)
        if (e->earlier[i]->state != RUN_DONE)
            return false;
    return true;
}

unsigned run_held_back(const run_t *run, run_text_t *names)
{
    unsigned n = 0;
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        unsigned left = e->copies - e->n_started;
        if (e->memory || e->state > RUN_RUNNING || !left || !may_start(e))
            continue;
        if (++n <= 8)
            run_addf(names, "%s%s", n > 1 ? ", " : "", e->name);
        if (n <= 8 && e->copies > 1)
            run_addf(names, " (%u of %u copies)", left, e->copies);
    }
    if (n > 8)
        run_addf(names, ", ...");
    return n;
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
    *run_slot(e, e->n_started++, 0) = p;
    tell_run(p);
    return true;
}

void run_start_ready(run_t *run)
{
    if (!run_remotes_ready(run))
        return; /* it is called again when they are */
    run->waits = false;
    for (unsigned i = 0; i < run->n_elements && !run->failed; i++) {
        run_element_t *e = run->elements[i];
        if (e->memory || e->state > RUN_RUNNING || !may_start(e))
            continue;
        while (e->n_started < e->copies && !run->failed) {
            if (run_window_full(run))
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
    if (p->gone)
        return run_printf("was lost with %s: %s", p->where ? p->where : p->host->name, p->gone);
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
        const run_proc_t *other = *run_slot(e, p->copy, i);
        others += other && other != p && !other->over;
    }
    if (!e->stopping && !p->asked && others) {
        p->lost = true;
        text = run_printf("%s %s; the other replicas serve on", p->label, how);
        run_complain(run, text);
        free(text);
        if (!p->durl)
            run_memory_ready(p); /* its users need not wait for it any more */
    } else if (!e->stopping && !p->asked) {
        e->state = RUN_FAILED;
        if (p->error && !p->durl)
            run_fail_by(p, "memory element %s cannot be started: %s", p->label, p->error);
        else
            run_fail_by(p, "memory element %s %s while it was used%s", p->label, how, p->durl ? "" : "; it never served");
    }
    free(how);
    if (++e->n_over == e->n_started && (e->stopping || run->failed)) {
        e->ended = p->ended;
        if (e->state == RUN_RUNNING)
            e->state = e->stopping && !run->failed ? RUN_DONE : RUN_STOPPED;
    }
    run_invoked_failed(e);
}

/* It needs the memory of its element no more. */
static void leave(run_proc_t *p)
{
    run_element_t *e = p->element;
    if (p->left || p->run->failed) /* then memory goes last */
        return;
    p->left = true;
    if (++e->n_left < e->copies)
        return;
    for (unsigned i = 0; i < e->n_uses; i++)
        if (!--e->uses[i].element->n_users)
            run_stop_memory(e->uses[i].element);
}

static bool ended_well(const run_proc_t *p)
{
    return WIFEXITED(p->status) && !WEXITSTATUS(p->status);
}

void run_returned(run_proc_t *p)
{
    run_t *run = p->run;
    run_element_t *e = p->element;
    if (!run_limits_kept(p) || (p->over && !ended_well(p)))
        return;
    p->returned = tool_now();
    e->results[p->copy] = p->result;
    p->result = NULL;
    e->n_returned++;
    e->done = p->returned;
    p->lingers = !p->over;
    run->n_lingering += p->lingers;
    if (run->failed || e->state != RUN_RUNNING)
        return;
    if (e->n_returned == e->copies) {
        e->state = RUN_DONE;
        e->ended = p->returned;
    }
    run_start_ready(run);
}

bool run_all_done(const run_t *run)
{
    if (run->failed || run->n_lingering != run->n_computing)
        return false;
    for (unsigned i = 0; i < run->n_elements; i++)
        if (!run->elements[i]->memory && run->elements[i]->state != RUN_DONE)
            return false;
    return true;
}

uint64_t run_grace(run_t *run, uint64_t now)
{
    uint64_t next = UINT64_MAX, most = UINT64_MAX;
    if (run->failed || !run->n_lingering)
        return next;
    if (run->opts.timeout_ns && run_all_done(run)) /* nothing is late but these */
        most = run->started + run->opts.timeout_ns;
    for (run_proc_t *p = run->procs; p; p = p->next) {
        uint64_t end = run->opts.grace_ns < UINT64_MAX - p->returned ? p->returned + run->opts.grace_ns : UINT64_MAX;
        if (!p->returned || p->over || p->asked)
            continue;
        end = end < most ? end : most;
        if (end <= now) {
            p->host->ops->look(p); /* it may have ended while we were stopped */
            if (p->over)
                continue;
            p->grace = end > p->returned ? end - p->returned : 1;
            leave(p);
            run_ask(p);
        } else if (end < next) {
            next = end;
        }
    }
    return next;
}

static void say_traceback(run_t *run, const run_proc_t *p)
{
    run_text_t text = {0};
    if (!p->traceback || !*p->traceback)
        return;
    run_add(&text, p->traceback, strlen(p->traceback));
    run_hide(run, &text);
    run_progress_wipe(run);
    tool_put_plain(stderr, text.p, text.n);
    if (text.p[text.n - 1] != '\n')
        fputc('\n', stderr);
    run_free(&text);
}

static void compute_failed(run_t *run, run_proc_t *p)
{
    char *how = describe(p);
    p->element->state = RUN_FAILED;
    /* lost memory is the reason, and not the errors of its users */
    for (unsigned i = 0; i < p->element->n_uses; i++) {
        run_element_t *m = p->element->uses[i].element;
        for (unsigned k = 0; k < m->copies * m->replicas; k++)
            if (m->procs[k])
                m->procs[k]->host->ops->look(m->procs[k]);
    }
    if (p->limit_hit) {
        run_fail_by(p, "%s", p->limit_hit);
    } else if (p->error && !run->failed) {
        say_traceback(run, p);
        run_fail_by(p, "%s failed: %s", p->label, p->error);
    } else if (p->gone) {
        run_fail_by(p, "%s %s%s", p->label, how,
                    p->element->idempotent ? "" : "; with `idempotent: true` in its head it would be started again elsewhere");
    } else if (p->flooded) {
        run_fail_by(
            p,
            "%s said a line of more than %d MiB, which is no result: put large data into a memory element, and return what the "
            "next element needs to find it there",
            p->label, RUN_LINE_MAX >> 20);
    } else if (WIFEXITED(p->status) && WEXITSTATUS(p->status) && !p->began) {
        run_fail_by(
            p,
            "%s %s before it began: can %s \"import disagg.element\"? (pip install \".[disagg]\" in the source tree installs "
            "it, --python PATH names another interpreter)",
            p->label, how, run->python);
    } else {
        run_fail_by(p, "%s %s%s", p->label, how, p->result || p->returned ? " after its result" : " without a result");
    }
    free(how);
}

/* Its machine was lost, and it does no harm to do it again: on another machine. */
static bool again(run_t *run, run_proc_t *p)
{
    run_element_t *e = p->element;
    run_proc_t *next;
    char *text;
    if (!p->gone || p->returned || p->error || p->asked || run->failed || !e->idempotent || p->attempt >= e->retries)
        return false;
    next = run_spawn(run, e, p->copy, 0);
    if (!next)
        return true;
    next->attempt = p->attempt + 1;
    *run_slot(e, p->copy, 0) = next;
    text = run_printf("%s was lost with %s (%s), and is started again", p->label, p->where ? p->where : p->host->name, p->gone);
    run_complain(run, text);
    free(text);
    tell_run(next);
    return true;
}

void run_proc_over(run_proc_t *p)
{
    run_t *run = p->run;
    run_element_t *e = p->element;
    bool good = (ended_well(p) || p->gone) && p->returned && !p->limit_hit;
    if (e->memory) {
        memory_over(run, p);
        return;
    }
    run_owner_over(p);
    if (again(run, p))
        return;
    e->n_over++;
    if (e->state != RUN_DONE) /* else it ended with its last result */
        e->ended = p->ended;
    run->n_lingering -= p->lingers;
    if (!good && !p->asked)
        compute_failed(run, p);
    leave(p);
    if (run->failed && e->state == RUN_RUNNING && e->n_over == e->n_started)
        e->state = e->n_returned == e->copies ? RUN_DONE : RUN_STOPPED;
    run_start_ready(run); /* another may start */
}
