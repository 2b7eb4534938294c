/* tools/run/remote.c - hosts that are other machines: lines to a child process, and what it says of processes there.
 *
 * What the child says is checked like what elements say: it may be of another version, and what it passes on came from elements.
 * remotes.c starts the children and looks after them. tests/tools/tools_run_ssh.py checks it. */
#include "remote.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "run.h"

static run_remote_t *of(const run_proc_t *p)
{
    return (run_remote_t *)p->host;
}

/* --- saying --------------------------------------------------------------------------------------------------------------- */

static tool_json_t begin(run_text_t *line, const char *what, const run_proc_t *p)
{
    return run_line_begin(line, "do", what, p ? p->number : 0);
}

void run_remote_say(run_remote_t *r, const char *what)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, what, NULL);
    run_line_end(&line, &j, &r->lines);
}

void run_remote_open(run_t *run, run_remote_t *r)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, "open", NULL);
    tool_json_text(&j, "version", weft_version());
    tool_json_text(&j, "key", run->key);
    if (run->opts.python_said)
        tool_json_text(&j, "python", run->opts.python);
    if (strcmp(run->opts.weft, "weft") != 0)
        tool_json_text(&j, "weft", run->opts.weft);
    if (run->opts.image)
        tool_json_text(&j, "image", run->opts.image);
    if (run->opts.address)
        tool_json_text(&j, "address", run->opts.address);
    tool_json_raw(&j, "keep", run->opts.keep ? "true" : "false");
    run_line_end(&line, &j, &r->lines);
}

static void near(const run_proc_t *memory, void *user)
{
    tool_json_count(user, NULL, memory->number);
}

static bool start(run_proc_t *p)
{
    const run_element_t *e = p->element;
    run_remote_t *r = of(p);
    uint64_t maps = 0, merged = 0;
    run_text_t line = {0};
    tool_json_t j = begin(&line, "start", p);
    tool_json_text(&j, "label", p->label);
    tool_json_raw(&j, "memory", e->memory ? "true" : "false");
    tool_json_count(&j, "copy", p->copy);
    if (e->memory) {
        char *name = e->copies > 1 ? run_printf("%s@%u", e->name, p->copy) : run_dup(e->trans ? e->trans : e->name);
        tool_json_text(&j, "name", name);
        tool_json_count(&j, "spare", e->spare);
        tool_json_raw(&j, "mirrored", e->replicas > 1 ? "true" : "false");
        free(name);
    }
    tool_json_open(&j, "limits", '{');
    tool_json_number(&j, "cpu", e->limits.cpu, 6);
    tool_json_count(&j, "mem", e->limits.mem);
    tool_json_count(&j, "storage", e->limits.storage);
    tool_json_close(&j, '}');
    for (unsigned i = 0; i < e->n_uses; i++)
        maps += run_memory_size(e->uses[i].element);
    for (unsigned i = 0; i < e->n_merged; i++)
        merged += e->merged[i].bytes;
    tool_json_count(&j, "maps", maps);
    tool_json_count(&j, "merged", merged);
    tool_json_open(&j, "near", '[');
    run_each_near(p, near, &j);
    tool_json_close(&j, ']');
    run_line_end(&line, &j, &r->lines);
    p->started = tool_now();
    r->n_live++;
    r->n_computing += !e->memory;
    r->mem_used += e->memory ? e->limits.mem + e->spare : 0;
    return true;
}

static void tell(run_proc_t *p, const char *text, size_t n)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, "tell", p);
    run_json_add_bytes(&j, text, n);
    run_line_end(&line, &j, &of(p)->lines);
}

static void send_signal(run_proc_t *p, int number)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, "signal", p);
    tool_json_count(&j, "number", (uint64_t)number);
    run_line_end(&line, &j, &of(p)->lines);
}

static void answer(run_proc_t *p, uint64_t question, const char *text, size_t n)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, "answer", p);
    tool_json_count(&j, "question", question);
    run_json_add_bytes(&j, text, n);
    run_line_end(&line, &j, &of(p)->lines);
}

static void look(run_proc_t *p)
{
    (void)p; /* it tells by itself */
}

static void forget(run_proc_t *p)
{
    free(p->gone);
}

const run_host_ops_t run_remote_ops = {
    .start = start, .tell = tell, .signal = send_signal, .look = look, .answer = answer, .forget = forget};

/* --- a process is over ---------------------------------------------------------------------------------------------------- */

/* gone: why it was lost, yours no more; NULL: it ended. */
static void over(run_proc_t *p, char *gone)
{
    run_remote_t *r = of(p);
    p->gone = gone;
    if (gone)
        p->status = SIGKILL;
    r->n_live--;
    r->n_computing -= !p->element->memory;
    r->mem_used -= p->element->memory ? p->element->limits.mem + p->element->spare : 0;
    run_ended(p);
}

void run_remote_lose(run_remote_t *r, const char *why)
{
    run_t *run = r->host.run;
    if (r->lost)
        return;
    r->lost = true;
    run_lines_close(&r->lines); /* which tells it to end, if it still hears anything */
    if (!r->ready && !run->failed)
        run_fail(run, "%s: %s", r->host.name, why);
    /* those that this makes start again are behind the ones that are looked at, or on another host */
    for (run_proc_t *p = run->procs; p; p = p->next)
        if (p->host == &r->host && !p->over)
            over(p, run_dup(why));
}

/* --- what it says ----------------------------------------------------------------------------------------------------------- */

static run_proc_t *find(run_remote_t *r, run_value_t line)
{
    uint64_t n;
    if (!run_json_count(run_json_get(line, "n"), &n))
        return NULL;
    for (run_proc_t *p = r->host.run->procs; p; p = p->next)
        if (p->number == n && p->host == &r->host && !p->over)
            return p;
    return NULL;
}

/* How limits are held there, for --json. If machines differ, the last one is told. */
static void take_way(run_t *run, run_control_t control, run_value_t said)
{
    static const char *const ways[] = {"cgroup v1", "cgroup v2", "watching", "pinning"};
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_limits_t *limits = &run->elements[i]->limits;
        if (control == RUN_CONTROL_CPU ? limits->cpu <= 0 : run->elements[i]->memory || !limits->mem)
            continue;
        for (unsigned k = 0; k < sizeof ways / sizeof *ways; k++)
            if (run_json_is(said, ways[k]))
                run->limits_by[control] = ways[k];
    }
}

static void take_ready(run_remote_t *r, run_value_t line)
{
    run_t *run = r->host.run;
    char *version = run_json_string(run_json_get(line, "version"));
    uint64_t cpus = 0;
    if (!version || strcmp(version, weft_version()) != 0) {
        run_fail(run, "%s has version %s of Weft, and this is %s: install the same on both", r->host.name,
                 version ? version : "(unknown)", weft_version());
    } else if (!r->ready) {
        run_json_count(run_json_get(line, "cpus"), &cpus);
        run_json_count(run_json_get(line, "mem"), &r->mem);
        take_way(run, RUN_CONTROL_MEMORY, run_json_get(line, "mem_by"));
        take_way(run, RUN_CONTROL_CPU, run_json_get(line, "cpu_by"));
        r->cpus = cpus < 1 << 20 ? (unsigned)cpus : 0;
        r->ready = true;
        if (!run->failed && run_remotes_ready(run))
            run_start_ready(run);
    }
    free(version);
}

/* The limit that it was over. */
static void take_limit(run_proc_t *p, run_value_t limit)
{
    static const char *const names[] = {"mem", "storage"};
    for (unsigned i = 0; limit.p && i < 2; i++)
        if (run_json_is(run_json_get(limit, "name"), names[i])) {
            p->limit.name = names[i];
            run_json_count(run_json_get(limit, "most"), &p->limit.most);
            run_json_count(run_json_get(limit, "used"), &p->limit.used);
            p->limit_hit = run_json_string(run_json_get(limit, "text"));
        }
}

static void take_over(run_proc_t *p, run_value_t line)
{
    run_value_t v = run_json_get(line, "flooded");
    uint64_t status = 0, us = 0, peak = 0;
    char *gone = run_json_string(run_json_get(line, "lost"));
    run_json_count(run_json_get(line, "status"), &status);
    p->status = (int)(status & 0xffff);
    p->flooded = v.p && *v.p == 't';
    if (run_json_count(run_json_get(line, "cpu_us"), &us) && us < (uint64_t)1 << 53)
        p->usage.ru_utime = (struct timeval){.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
    if (run_json_count(run_json_get(line, "peak_bytes"), &peak) && peak < (uint64_t)1 << 53)
        p->usage.ru_maxrss = (long)(peak >> 10);
    if (run_json_count(run_json_get(line, "throttled_us"), &us) && us < (uint64_t)1 << 53)
        p->throttled = (double)us / 1e6;
    run_json_count(run_json_get(line, "own_peak"), &p->peak);
    take_limit(p, run_json_get(line, "limit"));
    if (!p->error && !p->result && !p->returned)
        p->error = run_json_string(run_json_get(line, "error"));
    if (p->error && !p->status)
        p->status = 1 << 8;
    over(p, gone);
}

static void take_text(run_proc_t *p, run_value_t did, run_value_t line)
{
    uint64_t number = 0;
    run_text_t text = {0};
    if (!run_json_bytes(line, &text))
        return;
    if (run_json_is(did, "heard")) {
        run_heard(p, text.p, text.n);
    } else if (run_json_is(did, "printed")) {
        run_json_count(run_json_get(line, "stream"), &number);
        run_printed(p, number > 1, text.p, text.n);
    } else if (run_json_is(did, "asked") && run_json_count(run_json_get(line, "question"), &number) && number) {
        run_asked(p, number, text.p, text.n);
    }
    run_free(&text);
}

static void take_started(run_proc_t *p, run_value_t line)
{
    uint64_t pid = 0;
    run_json_count(run_json_get(line, "pid"), &pid);
    p->pid = pid < 1 << 30 ? (pid_t)pid : 0;
    if (!p->where)
        p->where = run_json_string(run_json_get(line, "where"));
    if (!p->placed)
        p->started = tool_now(); /* an engine may have let it wait */
    p->placed = true;
}

void run_remote_heard(run_lines_t *l, const char *text, size_t n)
{
    run_remote_t *r = l->user;
    run_value_t line, did;
    run_proc_t *p;
    char *words;
    if (!run_json(text, n, &line) || *line.p != '{') {
        run_remote_lose(r, "what came from there is not a line of Weft: does its shell print something?");
        return;
    }
    r->heard_at = tool_now();
    did = run_json_get(line, "did");
    if ((p = find(r, line))) {
        if (run_json_is(did, "over"))
            take_over(p, line);
        else if (run_json_is(did, "started"))
            take_started(p, line);
        else
            take_text(p, did, line);
    } else if (run_json_is(did, "ready")) {
        take_ready(r, line);
    } else if (run_json_is(did, "failed") && (words = run_json_string(run_json_get(line, "error")))) {
        run_fail(r->host.run, "%s: %s", r->host.name, words);
        free(words);
    } else if (run_json_is(did, "note") && (words = run_json_string(run_json_get(line, "text")))) {
        run_complain(r->host.run, words);
        free(words);
    }
}

void run_remote_ended(run_lines_t *l)
{
    run_remote_t *r = l->user;
    if (!r->closing)
        run_remote_lose(r, r->ready    ? "the connection to it ended"
                           : r->places ? "the bridge to it ended"
                                       : "it could not be reached, or there is no command weft (--weft PATH names it there)");
}

void run_remote_said(run_lines_t *l, const char *text, size_t n)
{
    run_remote_t *r = l->user;
    char *whole = run_printf("%s: %.*s", r->host.name, (int)n, text);
    if (n)
        run_complain(r->host.run, whole);
    free(whole);
}
