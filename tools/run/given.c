/* tools/run/given.c - what the command line gives to elements: parameters, memory, transports, and where they find modules.
 *
 * Two that contradict each other are refused: one would be silently ignored. Of two parameters of a name the last counts, with a
 * warning, and --param before --params. Memory of --memory is an element like one with a file. A transport of --transport leads
 * to memory that this run does not start, and every compute element has it. tests/tools/tools_run_given.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

#define PARAMS_MAX ((size_t)16 << 20)

static bool is_utf8(const char *text)
{
    for (; *text; text += tool_utf8_len(text))
        if (!tool_utf8_len(text))
            return false;
    return true;
}

/* All of a file, at most so much; false after a sentence. */
static bool read_file(const char *option, const char *path, size_t most, run_text_t *text)
{
    char piece[16384];
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && text->n <= most && (n = read(fd, piece, sizeof piece)) > 0)
        run_add(text, piece, (size_t)n);
    if (n < 0)
        tool_error("--%s %s cannot be read: %s", option, path, strerror(errno));
    else if (n > 0)
        tool_error("--%s %s is longer than %zu bytes", option, path, most);
    if (fd >= 0)
        close(fd);
    return n == 0;
}

/* --- parameters ------------------------------------------------------------------------------------------------------- */

/* They are its own from now on. A --param counts before --params; otherwise the last one does. */
static void add_param(run_opts_t *o, char *name, char *value, bool of_file)
{
    run_param_t p = {.name = name, .value = value, .of_file = of_file};
    for (unsigned i = 0; i < o->n_params; i++)
        if (!strcmp(o->params[i].name, name)) {
            p.twice = o->params[i].twice || (!of_file && !o->params[i].of_file);
            if (!of_file || o->params[i].of_file) {
                run_param_t old = o->params[i];
                o->params[i] = p;
                p = old;
            }
            free(p.name);
            free(p.value);
            return;
        }
    o->params = run_grow(o->params, (o->n_params + 1) * sizeof *o->params);
    o->params[o->n_params++] = p;
}

bool run_take_param(void *opts, const char *text)
{
    run_opts_t *o = opts;
    const char *equals = strchr(text, '='), *value = equals ? equals + 1 : "";
    run_value_t v;
    run_text_t quoted = {0};
    if (!equals || equals == text) {
        tool_error("--param %s is not NAME=VALUE", text);
        return false;
    }
    if (!is_utf8(text)) {
        tool_error("--param is not UTF-8");
        return false;
    }
    if (run_json(value, strlen(value), &v)) {
        char *twice = run_json_twice(v);
        if (twice)
            tool_error("--param %.*s: the object has \"%s\" twice", (int)(equals - text), text, twice);
        else
            add_param(o, run_dup_n(text, (size_t)(equals - text)), run_dup_n(v.p, v.n), false);
        free(twice);
        return !twice;
    }
    if (*value == '{' || *value == '[') { /* it would be a text that nobody meant */
        tool_error("--param %s: the value begins like JSON and is none; a text that begins so is written in double quotes", text);
        return false;
    }
    tool_json_t j = run_json_begin(&quoted);
    tool_json_text(&j, NULL, value);
    run_json_end(&j);
    add_param(o, run_dup_n(text, (size_t)(equals - text)), quoted.p, false);
    return true;
}

bool run_take_params(void *opts, const char *given)
{
    run_opts_t *o = opts;
    run_value_t all, key, value;
    run_text_t text = {0};
    wefti_json_t at = {0};
    const char *shown = *given == '{' ? "(an object)" : given;
    bool good = true;
    char *twice;
    if (*given == '{')
        run_add(&text, given, strlen(given));
    else
        good = read_file("params", given, PARAMS_MAX, &text);
    if (good && (!text.p || !run_json(text.p, text.n, &all) || *all.p != '{')) {
        tool_error("--params %s is not a JSON object", *given == '{' ? given : shown);
        good = false;
    }
    twice = good ? run_json_twice(all) : NULL;
    if (twice) {
        tool_error("--params %s has \"%s\" twice", shown, twice);
        good = false;
    }
    free(twice);
    while (good && run_json_next(all, &at, &key, &value)) {
        char *name = run_json_string(key);
        if (!name) {
            tool_error("--params %s: a name has a zero in it", shown);
            good = false;
        } else {
            add_param(o, name, run_dup_n(value.p, value.n), true);
        }
    }
    run_free(&text);
    return good;
}

void run_defaults(const run_t *run, const run_element_t *e, tool_json_t *j)
{
    for (unsigned i = 0; i < e->n_defaults; i++) {
        bool other = false;
        for (unsigned k = 0; k < run->opts.n_params; k++)
            other |= !strcmp(run->opts.params[k].name, e->defaults[i].name);
        if (!other)
            tool_json_raw(j, e->defaults[i].name, e->defaults[i].value);
    }
}

/* --- names of memory ---------------------------------------------------------------------------------------------------- */

/* "NAME" or "NAME@3", which ends at `end`. copy -1: no copy. False: neither. */
static bool read_name(const char *text, const char *end, size_t *n_out, int *copy_out)
{
    const char *at = memchr(text, '@', (size_t)(end - text));
    char digits[8];
    uint64_t copy;
    *n_out = (size_t)((at ? at : end) - text);
    *copy_out = -1;
    if (!run_name_ok(text, *n_out))
        return false;
    if (!at)
        return true;
    if ((size_t)(end - at) > sizeof digits || (at[1] == '0' && end - at > 2))
        return false;
    memcpy(digits, at + 1, (size_t)(end - at) - 1);
    digits[end - at - 1] = '\0';
    if (!tool_parse_count(digits, 0, RUN_COPIES_MAX - 1, &copy))
        return false;
    *copy_out = (int)copy;
    return true;
}

static bool is_name(const char *full, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(full, name, n) && (!full[n] || full[n] == '@');
}

bool run_given_has(const run_opts_t *o, const char *name)
{
    for (unsigned i = 0; i < o->n_transports; i++)
        if (is_name(o->transports[i].name, name))
            return true;
    return false;
}

/* --- memory ------------------------------------------------------------------------------------------------------------ */

bool run_take_memory(void *opts, const char *text)
{
    run_opts_t *o = opts;
    const char *equals = strchr(text, '=');
    run_given_memory_t m = {.copy = -1};
    size_t n;
    if (!equals || !read_name(text, equals, &n, &m.copy)) {
        tool_error("--memory %s is not NAME=SIZE or NAME@COPY=SIZE; NAME is letters, digits, '-', '_' and '.', COPY a number "
                   "below %d",
                   text, RUN_COPIES_MAX);
        return false;
    }
    if (!run_size(equals + 1, &m.bytes)) {
        tool_error("--memory %s: the size needs a unit, such as 64M or 2G", text);
        return false;
    }
    m.name = run_dup_n(text, n);
    o->memory = run_grow(o->memory, (o->n_memory + 1) * sizeof *o->memory);
    o->memory[o->n_memory++] = m;
    return true;
}

/* All that is said of one name must be said once, of every copy, and alike. */
static bool check_memory(const run_opts_t *o, const run_given_memory_t *first)
{
    bool there[RUN_COPIES_MAX] = {false};
    unsigned n = 0, missing = 0;
    for (unsigned i = 0; i < o->n_memory; i++) {
        const run_given_memory_t *m = &o->memory[i];
        if (strcmp(m->name, first->name) != 0)
            continue;
        if (m < first)
            return true; /* it was looked at with that one */
        if ((m->copy < 0) != (first->copy < 0)) {
            tool_error("--memory: %s is given as a whole and by its copies: say %s=SIZE, or %s@0=SIZE and so on", m->name,
                       m->name, m->name);
            return false;
        }
        if (m->copy < 0 ? m != first : there[m->copy]) {
            tool_error(m->copy < 0 ? "--memory: %s is given twice" : "--memory: %s@%d is given twice", m->name, m->copy);
            return false;
        }
        if (m->bytes != first->bytes) {
            tool_error("--memory: all copies of %s have one size", m->name);
            return false;
        }
        if (m->copy >= 0) {
            there[m->copy] = true;
            n++;
        }
    }
    while (missing < n && there[missing])
        missing++;
    if (missing < n) {
        tool_error("--memory: %s@%u is missing: copies are numbered from 0 on", first->name, missing);
        return false;
    }
    if (run_given_has(o, first->name)) {
        tool_error("%s is given by --memory and by --transport: it is one of the two", first->name);
        return false;
    }
    return true;
}

bool run_given_check(const run_opts_t *o)
{
    for (unsigned i = 0; i < o->n_memory; i++)
        if (!check_memory(o, &o->memory[i]))
            return false;
    return true;
}

static run_element_t *find(run_t *run, const char *name)
{
    for (unsigned i = 0; i < run->n_elements; i++)
        if (!strcmp(run->elements[i]->name, name))
            return run->elements[i];
    return NULL;
}

void run_given_elements(run_t *run)
{
    for (unsigned i = 0; i < run->opts.n_memory; i++) {
        const run_given_memory_t *m = &run->opts.memory[i];
        run_element_t *e = find(run, m->name);
        char *path;
        if (e && e->given) {
            e->copies++; /* run_given_check() has seen all of them */
            e->numbered = false;
            continue;
        }
        if (e) {
            run_problem(run, e->path, 0, "is an element already, and --memory %s=SIZE is for memory that has no file", m->name);
            continue;
        }
        path = run_printf("--memory %s", m->name);
        e = run_element_new(run, m->name, strlen(m->name), path, true);
        free(path);
        if (!e)
            return;
        e->given = e->described = true;
        e->numbered = m->copy == 0;
        e->limits.mem = m->bytes;
    }
    for (unsigned i = 0; i < run->opts.n_transports; i++) {
        char *name = run_dup(run->opts.transports[i].name), *parts = run_printf(";%s", run->opts.transports[i].durl);
        run_element_t *e;
        run_secret(run, parts);
        explicit_bzero(parts, strlen(parts));
        free(parts);
        name[strcspn(name, "@")] = '\0';
        e = find(run, name);
        if (e)
            run_problem(run, e->path, 0, "is an element, and --transport %s=DURL would lead elsewhere under its name",
                        run->opts.transports[i].name);
        free(name);
    }
}

void run_given_unused(run_t *run)
{
    for (const run_proc_t *p = run->procs; p; p = p->next)
        if (!p->element->memory && !p->told_stats)
            return; /* it may have used them */
    for (unsigned i = 0; i < run->n_static && !run->failed; i++) {
        const run_element_t *e = run->elements[i];
        if (e->offered && !e->wanted && e->n_started)
            run_warn(run, NULL, 0, e->name,
                     "--memory %s was not used: no element names it under corunning, or asked for it by "
                     "get_transport(\"%s\", \"rdma\")",
                     e->name, e->name);
    }
}

/* --- transports --------------------------------------------------------------------------------------------------------- */

/* The text of a durl, yours to free, with what may be left out: "tcp://HOST:PORT", "url,tcp://HOST:PORT;...", a whole one, or
 * "@FILE" that has one of them. */
static char *read_durl(const char *text)
{
    run_text_t all = {0};
    char *durl;
    if (*text == '@') {
        if (!read_file("transport", text + 1, WEFT_DURL_MAX + 2, &all)) {
            run_free(&all);
            return NULL;
        }
        run_add(&all, "", 0);
        all.p[strcspn(all.p, "\r\n")] = '\0';
        text = all.p;
    }
    bool address = !strncmp(text, "tcp://", 6) || !strncmp(text, "tls://", 6) || !strncmp(text, "unix://", 7);
    durl = address ? run_printf("url,%s;", text) : run_dup(text);
    run_free(&all);
    return durl;
}

/* Is it a durl by which memory can be reached? */
static bool check_durl(const char *name, const char *durl, weft_durl_t *d)
{
    const char *mark = strpbrk(durl, ";,");
    char *whole = mark && *mark == ',' ? run_printf("%s;rdma_tcp;%s", name, durl) : run_dup(durl);
    weft_status_t st = weft_durl_parse(whole, d);
    free(whole);
    if (st) {
        tool_error_status(st, "--transport %s", name);
        return false;
    }
    if (d->server || (!*d->url && !*d->shm_id && !d->region_key_len && !d->n_replicas)) {
        tool_error(d->server ? "--transport %s: the durl is that of a server, and not of one who uses it"
                             : "--transport %s: the durl does not say where the memory is: give url, shm_id, token or replicas",
                   name);
        return false;
    }
    return true;
}

bool run_take_transport(void *opts, const char *text)
{
    run_opts_t *o = opts;
    const char *equals = strchr(text, '=');
    run_given_transport_t t = {0};
    weft_durl_t d = WEFT_DURL_INIT;
    size_t n;
    int copy;
    if (!equals || !equals[1] || !read_name(text, equals, &n, &copy)) {
        tool_error("--transport %.*s is not NAME=DURL; NAME is letters, digits, '-', '_' and '.', and may end in @COPY",
                   (int)strcspn(text, "=;,"), text); /* what follows may be a secret */
        return false;
    }
    t.name = run_dup_n(text, (size_t)(equals - text));
    t.durl = read_durl(equals + 1);
    for (unsigned i = 0; t.durl && i < o->n_transports; i++)
        if (!strcmp(o->transports[i].name, t.name)) {
            tool_error("--transport %s is given twice", t.name);
            free(t.durl);
            t.durl = NULL;
        }
    if (!t.durl || !check_durl(t.name, t.durl, &d)) {
        free(t.name);
        free(t.durl);
        return false;
    }
    t.first = run_printf("%s;%s;", t.name, weft_impl_name(d.impl, false));
    o->transports = run_grow(o->transports, (o->n_transports + 1) * sizeof *o->transports);
    o->transports[o->n_transports++] = t;
    return true;
}

void run_given_add(const run_t *run, tool_json_t *j)
{
    for (unsigned i = 0; i < run->opts.n_transports; i++)
        tool_json_text(j, NULL, run->opts.transports[i].first);
}

void run_given_configure(run_proc_t *p)
{
    for (unsigned i = 0; i < p->run->opts.n_transports; i++) {
        const run_given_transport_t *t = &p->run->opts.transports[i];
        run_tell_config(p, t->name, t->durl);
    }
}

/* --- paths --------------------------------------------------------------------------------------------------------------- */

bool run_take_path(void *opts, const char *text)
{
    run_opts_t *o = opts;
    char *whole = realpath(text, NULL); /* elements run in directories of their own */
    struct stat st;
    if (!whole || stat(whole, &st) || !S_ISDIR(st.st_mode)) {
        tool_error("--path %s: %s", text, whole && errno != ENOENT ? "is not a directory" : strerror(errno));
        free(whole);
        return false;
    }
    o->paths = run_grow(o->paths, (o->n_paths + 1) * sizeof *o->paths);
    o->paths[o->n_paths++] = whole;
    return true;
}

void run_given_free(run_opts_t *o)
{
    for (unsigned i = 0; i < o->n_params; i++) {
        free(o->params[i].name);
        free(o->params[i].value);
    }
    for (unsigned i = 0; i < o->n_memory; i++)
        free(o->memory[i].name);
    for (unsigned i = 0; i < o->n_transports; i++) {
        explicit_bzero(o->transports[i].durl, strlen(o->transports[i].durl));
        free(o->transports[i].name);
        free(o->transports[i].durl);
        free(o->transports[i].first);
    }
    for (unsigned i = 0; i < o->n_paths; i++)
        free(o->paths[i]);
    free(o->params);
    free(o->memory);
    free(o->transports);
    free(o->paths);
}
