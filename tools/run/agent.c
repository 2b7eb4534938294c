/* tools/run/agent.c - `weft run --agent`: starts processes on this machine for a launcher on another.
 *
 * Lines come on standard input and go to standard output, as docs/design/launcher.md has them; the launcher's side is remote.c.
 * The agent knows nothing of a program: it has this machine as its host (local.c), passes on what the launcher says to processes
 * and what they say to it, and keeps their code and their key in its scratch directory. When its input ends, or nothing has come
 * for ALONE, it kills what it started, removes what it made, and ends; if it is killed, its guard does that.
 *
 * A launcher that reads slowly holds up what elements print, and nothing else. tests/tools/tools_run_ssh.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "limits.h"
#include "run.h"

#define ALONE (30 * WEFT_SECOND)
#define HIGH ((size_t)4 << 20) /* bytes that wait for the launcher: what elements print is not read */
#define LOW ((size_t)1 << 20)
#define LINE ((size_t)RUN_LINE_MAX * 2 + 4096)

static run_lines_t launcher = RUN_LINES_CLOSED;
static bool opened, holding, left; /* left: what runs is killed because nobody wants it any more */
static uint64_t heard_at;

/* --- to the launcher ---------------------------------------------------------------------------------------------------- */

static tool_json_t begin(run_text_t *line, const char *what, const run_proc_t *p)
{
    return run_line_begin(line, "did", what, p ? p->number : 0);
}

static void hold_if(run_t *run)
{
    size_t waits = launcher.say.n - launcher.said;
    bool hold = holding ? waits > LOW : waits > HIGH;
    if (hold == holding)
        return;
    holding = hold;
    for (run_proc_t *p = run->procs; p; p = p->next)
        if (!p->over)
            run_channel_hold(p, hold);
}

static void finish(run_t *run, run_text_t *line, tool_json_t *j)
{
    run_line_end(line, j, &launcher);
    hold_if(run);
}

static void refuse(run_t *run, const char *fmt, const char *what)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, "failed", NULL);
    char *text = run_printf(fmt, what);
    tool_json_text(&j, "error", text);
    finish(run, &line, &j);
    free(text);
}

static void pass_on(run_proc_t *p, const char *what, const char *name, uint64_t number, const char *text, size_t n)
{
    run_text_t line = {0};
    tool_json_t j = begin(&line, what, p);
    if (name)
        tool_json_count(&j, name, number);
    run_json_add_bytes(&j, text, n);
    finish(p->run, &line, &j);
}

static void heard(run_proc_t *p, const char *text, size_t n)
{
    pass_on(p, "heard", NULL, 0, text, n);
}

static void printed(run_proc_t *p, unsigned which, const char *text, size_t n)
{
    pass_on(p, "printed", "stream", which + 1, text, n);
}

static void asked(run_proc_t *p, uint64_t question, const char *text, size_t n)
{
    pass_on(p, "asked", "question", question, text, n);
}

static void over(run_proc_t *p)
{
    const struct rusage *u = &p->usage;
    run_text_t line = {0};
    tool_json_t j = begin(&line, "over", p);
    tool_json_count(&j, "status", (uint64_t)p->status);
    tool_json_count(&j, "cpu_us",
                    (uint64_t)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1000000 +
                        (uint64_t)(u->ru_utime.tv_usec + u->ru_stime.tv_usec));
    tool_json_count(&j, "peak_bytes", (uint64_t)u->ru_maxrss << 10);
    tool_json_raw(&j, "flooded", p->flooded ? "true" : "false");
    tool_json_count(&j, "throttled_us", (uint64_t)(p->throttled * 1e6));
    tool_json_count(&j, "own_peak", p->peak);
    if (p->limit.name && p->limit_hit) {
        tool_json_open(&j, "limit", '{');
        tool_json_text(&j, "name", p->limit.name);
        tool_json_count(&j, "most", p->limit.most);
        tool_json_count(&j, "used", p->limit.used);
        tool_json_text(&j, "text", p->limit_hit);
        tool_json_close(&j, '}');
    }
    if (left)
        tool_json_text(&j, "lost", "the launcher had said nothing for 30 s");
    finish(p->run, &line, &j);
}

/* --- the code and the key ----------------------------------------------------------------------------------------------- */

static bool write_file(const char *path, const void *data, size_t n, mode_t mode)
{
    const char *p = data;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    bool good = fd >= 0;
    while (good && n) {
        ssize_t put = write(fd, p, n);
        if (put > 0) {
            p += put;
            n -= (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            good = false;
        }
    }
    if (fd >= 0)
        good &= !close(fd);
    return good;
}

/* "a/b/c.py", all of it below us: no empty part, none that begins with a dot and leads up. */
static bool harmless_name(const char *name)
{
    if (!*name || *name == '/' || strlen(name) > 4000)
        return false;
    for (const char *p = name; p;) {
        size_t n = strcspn(p, "/");
        if (!n || n > 255 || (n == 1 && *p == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p = p[n] ? p + n + 1 : NULL;
    }
    return true;
}

static void make_folders(const char *path, size_t from)
{
    char *copy = run_dup(path);
    for (char *p = copy + from; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(copy, 0700);
    }
    free(copy);
}

static bool is_true(run_value_t v)
{
    return v.p && *v.p == 't';
}

/* Bytes in base64, written to a file of their own. */
static bool write_data(const char *path, const char *data, mode_t mode)
{
    size_t n = 0, most = strlen(data) + 1;
    unsigned char *bytes = run_alloc(most);
    bool good = !sodium_base642bin(bytes, most, data, most - 1, NULL, &n, NULL, sodium_base64_VARIANT_ORIGINAL) &&
                write_file(path, bytes, n, mode);
    explicit_bzero(bytes, most);
    free(bytes);
    return good;
}

/* A file of the program, or a folder, which has no data. */
static void take_file(run_t *run, run_value_t line)
{
    char *name = run_json_string(run_json_get(line, "name")), *data = run_json_string(run_json_get(line, "data")), *path;
    bool folder = is_true(run_json_get(line, "folder"));
    if (!name || (!data && !folder) || !harmless_name(name)) {
        refuse(run, "a file has no name or no data (%s)", name ? name : "");
    } else {
        path = run_printf("%s/%s", run->code, name);
        make_folders(path, strlen(run->code) + 1);
        if (folder ? mkdir(path, 0700) && errno != EEXIST
                   : !write_data(path, data, is_true(run_json_get(line, "runs")) ? 0700 : 0600))
            refuse(run, "%s cannot be written: is the disk full?", path);
        free(path);
    }
    free(name);
    free(data);
}

/* --- from the launcher -------------------------------------------------------------------------------------------------- */

static void say_ready(run_t *run)
{
    struct sysinfo machine;
    run_text_t line = {0};
    tool_json_t j = begin(&line, "ready", NULL);
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    tool_json_text(&j, "version", weft_version());
    tool_json_text(&j, "name", name);
    tool_json_text(&j, "address", run->address);
    tool_json_count(&j, "cpus", run->n_cpus);
    tool_json_text(&j, "mem_by", run->limits_by[RUN_CONTROL_MEMORY]);
    tool_json_text(&j, "cpu_by", run->limits_by[RUN_CONTROL_CPU]);
    if (!sysinfo(&machine))
        tool_json_count(&j, "mem", (uint64_t)machine.totalram * machine.mem_unit);
    finish(run, &line, &j);
}

static void take_open(run_t *run, run_value_t line)
{
    char *key = run_json_string(run_json_get(line, "key")), *path = run_printf("%s/key", run->scratch),
         *python = run_json_string(run_json_get(line, "python"));
    opened = true;
    run->opts.keep = is_true(run_json_get(line, "keep"));
    if (run->opts.keep)
        run_guard_keep(run);
    run->python = tool_find_python(python ? python : run->opts.python);
    run->code = run_printf("%s/code", run->scratch);
    if (!run->python)
        refuse(run, "there is no interpreter %s there; --python PATH names one", python ? python : run->opts.python);
    else if (mkdir(run->code, 0700) || (key && !write_data(path, key, 0600)))
        refuse(run, "the directory %s cannot be written", run->scratch);
    if (key) {
        run->key_file = path;
        explicit_bzero(key, strlen(key));
    } else {
        free(path);
    }
    free(key);
    free(python);
}

static void take_limits(run_limits_t *limits, run_value_t said)
{
    run_value_t cpu = run_json_get(said, "cpu");
    if (cpu.p) {
        char *text = run_dup_n(cpu.p, cpu.n);
        limits->cpu = strtod(text, NULL);
        free(text);
    }
    run_json_count(run_json_get(said, "mem"), &limits->mem);
    run_json_count(run_json_get(said, "storage"), &limits->storage);
}

static void take_start(run_t *run, run_value_t line, uint64_t n)
{
    run_element_t *e = run_alloc(sizeof *e);
    char *label = run_json_string(run_json_get(line, "label"));
    uint64_t copy = 0;
    run_text_t answer = {0};
    run_proc_t *p;
    tool_json_t j;
    e->memory = is_true(run_json_get(line, "memory"));
    e->name = run_json_string(run_json_get(line, "name"));
    e->copies = e->replicas = 1;
    e->mirrored = is_true(run_json_get(line, "mirrored"));
    if (!label || strchr(label, '/'))
        label = run_printf("%llu", (unsigned long long)n);
    if (!e->name)
        e->name = run_dup(label);
    run_json_count(run_json_get(line, "spare"), &e->spare);
    run_json_count(run_json_get(line, "copy"), &copy);
    take_limits(&e->limits, run_json_get(line, "limits"));
    run_json_count(run_json_get(line, "maps"), &e->maps);
    e->merged = run_alloc(sizeof *e->merged);
    e->merged->name = run_dup("merged");
    e->n_merged = run_json_count(run_json_get(line, "merged"), &e->merged->bytes);
    e->procs = run_alloc(sizeof(run_proc_t *));
    run_enlist(run, e);
    p = run_proc_new(run, &run->here, e, (unsigned)(copy % RUN_COPIES_MAX), 0, label);
    p->number = n;
    if (e->memory)
        p->error = run_too_large(e, "that machine");
    if (!p->error && run_proc_start(p)) {
        e->procs[0] = p;
        if (holding)
            run_channel_hold(p, true);
        j = begin(&answer, "started", p);
        tool_json_count(&j, "pid", (uint64_t)p->pid);
    } else {
        j = begin(&answer, "over", p);
        tool_json_text(&j, "error", p->error);
        tool_json_count(&j, "status", 127 << 8);
        run_proc_free(p);
    }
    finish(run, &answer, &j);
}

static void take_for(run_proc_t *p, run_value_t doing, run_value_t line)
{
    uint64_t number = 0;
    run_text_t text = {0};
    bool has_text = run_json_bytes(line, &text);
    if (run_json_is(doing, "tell") && has_text)
        p->host->ops->tell(p, text.p, text.n);
    else if (run_json_is(doing, "signal") && run_json_count(run_json_get(line, "number"), &number))
        p->host->ops->signal(p, number == SIGKILL ? SIGKILL : SIGTERM);
    else if (run_json_is(doing, "answer") && has_text && run_json_count(run_json_get(line, "question"), &number))
        p->host->ops->answer(p, number, text.p, text.n);
    run_free(&text);
}

/* The launcher is gone, or has no more to do here. */
static void leave(run_t *run)
{
    run->waits = false;
    left = true;
    for (run_proc_t *p = run->procs; p; p = p->next)
        run_kill(p);
}

static void told(run_lines_t *l, const char *text, size_t n)
{
    run_t *run = l->user;
    run_value_t line, doing;
    run_proc_t *p;
    uint64_t number = 0;
    heard_at = tool_now();
    if (!run_json(text, n, &line) || *line.p != '{') {
        refuse(run, "what came is not a line of a launcher%s", "");
        return;
    }
    doing = run_json_get(line, "do");
    run_json_count(run_json_get(line, "n"), &number);
    for (p = run->procs; p && (p->number != number || p->over); p = p->next)
        ;
    if (run_json_is(doing, "ping")) {
        run_text_t pong = {0};
        tool_json_t j = begin(&pong, "pong", NULL);
        finish(run, &pong, &j);
    } else if (run_json_is(doing, "open") && !opened) {
        take_open(run, line);
    } else if (run_json_is(doing, "file") && opened) {
        take_file(run, line);
    } else if (run_json_is(doing, "begin") && opened && run->python) {
        say_ready(run);
    } else if (run_json_is(doing, "start") && opened && run->python && number && !p) {
        take_start(run, line, number);
    } else if (run_json_is(doing, "close")) {
        leave(run);
    } else if (p) {
        take_for(p, doing, line);
    }
}

static void hung_up(run_lines_t *l)
{
    leave(l->user);
}

uint64_t run_agent_keep(run_t *run, uint64_t now)
{
    uint64_t gap = run->kept_at && now > run->kept_at + 3 * WEFT_SECOND ? now - run->kept_at : 0;
    if (!run->agent)
        return UINT64_MAX;
    run->kept_at = now;
    heard_at += gap; /* we were stopped ourselves, and there may be lines to read */
    hold_if(run);
    if (run->waits && now >= heard_at + ALONE)
        leave(run);
    return now + WEFT_SECOND;
}

/* The address that others reach this machine by: the one that the launcher did, as sshd says. */
static char *own_address(void)
{
    const char *from = getenv("SSH_CONNECTION");
    char client[64], port[16], server[64];
    if (from && sscanf(from, "%63s %15s %63s", client, port, server) == 3)
        return run_dup(server);
    return run_dup("127.0.0.1");
}

bool run_agent_begin(run_t *run)
{
    static const run_news_t news = {.heard = heard, .printed = printed, .asked = asked, .over = over};
    int in = fcntl(0, F_DUPFD_CLOEXEC, 10), out = fcntl(1, F_DUPFD_CLOEXEC, 10);
    run->news = &news;
    run->waits = true;
    heard_at = tool_now();
    if (!run->address)
        run->address = run->opts.address ? run_dup(run->opts.address) : own_address();
    launcher = (run_lines_t){.most = LINE, .line = told, .ended = hung_up, .user = run};
    if (in < 0 || out < 0 || dup2(run->null_fd, 0) < 0 || dup2(2, 1) < 0 || fcntl(in, F_SETFL, O_NONBLOCK) ||
        fcntl(out, F_SETFL, O_NONBLOCK) || !run_lines_open(run, &launcher, in, out)) {
        tool_error("an agent has its launcher on standard input and output: %s", strerror(errno));
        return false;
    }
    return true;
}

void run_agent_end(run_t *run)
{
    if (run->key_file)
        unlink(run->key_file);  /* --keep keeps the directory it is in */
    run_lines_close(&launcher); /* its end says that all is cleaned up */
}
