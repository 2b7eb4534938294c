/* tools/run/options.c - the command line of `weft run`.
 *
 * Whatever is wrong gets one sentence with the value and what would be right, and exit status 2. Nothing is started before all
 * of it has been understood. tests/tools/tools_run_check.py holds it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

enum {
    OPT_CHECK = 1,
    OPT_GRAPH,
    OPT_PARAM,
    OPT_PARAMS,
    OPT_JOBS,
    OPT_TIMEOUT,
    OPT_PYTHON,
    OPT_TRACE,
    OPT_JSON,
    OPT_KEEP,
    OPT_KEY_FILE,
    OPT_HELP
};

#define PARAMS_MAX ((size_t)16 << 20)

static const tool_opt_t options[] = {
    {OPT_CHECK, "check", NULL, "read the elements, say what is wrong with them, and run none"},
    {OPT_GRAPH, "graph", "[text|dot]", "show which elements wait for which and use what, and run none"},
    {OPT_PARAM, "param", "NAME=VALUE",
     "a parameter for every element, in params[NAME]: JSON, or else text; may be given several times"},
    {OPT_PARAMS, "params", "FILE", "parameters from a JSON object in a file"},
    {OPT_JOBS, "jobs", "N", "run at most so many compute elements at a time (default: no bound)"},
    {OPT_TIMEOUT, "timeout", "TIME", "take everything down after this time, and fail"},
    {OPT_PYTHON, "python", "PATH", "the interpreter that runs compute elements (default python3)"},
    {OPT_TRACE, "trace", "FILE", "write a timeline there, for chrome://tracing or ui.perfetto.dev"},
    {OPT_JSON, "json", NULL,
     "one JSON object on standard output in the end: results and figures. What elements print goes to standard error"},
    {OPT_KEEP, "keep", NULL, "leave the working directories of the elements, and say where they are"},
    {OPT_KEY_FILE, "key-file", "PATH", "file with the pre-shared key that all elements use"},
    {OPT_HELP, "help", NULL, "this"},
    {0, NULL, NULL, NULL},
};

void tool_run_help(FILE *f)
{
    fputs("Usage: weft run [options] DIR\n\n"
          "Runs a directory of elements on this machine: NAME.o.py are programs, NAME.o.yaml is memory that they share. Each "
          "starts when its\n"
          "parents are done, as processes of their own, and is given their results.\n\n",
          f);
    tool_args_help(options, f);
    fputs("\nExit status: 0 every element is done, 1 one failed or the elements are wrong, 2 the command line was not "
          "understood, 128 and its\n"
          "number after a signal.\n",
          f);
}

static void add_param(run_opts_t *o, char *name, char *value)
{
    for (unsigned i = 0; i < o->n_params; i++)
        if (!strcmp(o->params[i].name, name)) { /* the last one counts */
            free(name);
            free(o->params[i].value);
            o->params[i].value = value;
            return;
        }
    o->params = run_grow(o->params, (o->n_params + 1) * sizeof *o->params);
    o->params[o->n_params++] = (run_param_t){.name = name, .value = value};
}

static bool take_param(run_opts_t *o, const char *text)
{
    const char *equals = strchr(text, '='), *s;
    run_value_t v;
    run_text_t quoted = {0};
    if (!equals || equals == text) {
        tool_error("--param %s is not NAME=VALUE", text);
        return false;
    }
    for (s = text; *s; s += tool_utf8_len(s))
        if (!tool_utf8_len(s)) {
            tool_error("--param is not UTF-8");
            return false;
        }
    if (run_json(equals + 1, strlen(equals + 1), &v)) {
        add_param(o, run_dup_n(text, (size_t)(equals - text)), run_dup_n(v.p, v.n));
    } else {
        run_add_json(&quoted, equals + 1);
        add_param(o, run_dup_n(text, (size_t)(equals - text)), quoted.p);
    }
    return true;
}

static bool take_params(run_opts_t *o, const char *path)
{
    run_value_t all, key, value;
    run_text_t text = {0};
    char piece[16384];
    size_t at = 0;
    ssize_t n = -1;
    bool good;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && text.n <= PARAMS_MAX && (n = read(fd, piece, sizeof piece)) > 0)
        run_add(&text, piece, (size_t)n);
    if (n < 0)
        tool_error("--params %s cannot be read: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    good = n == 0;
    if (n > 0) {
        tool_error("--params %s is longer than %zu bytes", path, PARAMS_MAX);
    } else if (good && (!text.p || !run_json(text.p, text.n, &all) || *all.p != '{')) {
        tool_error("--params %s is not a JSON object", path);
        good = false;
    }
    while (good && run_json_next(all, &at, &key, &value)) {
        char *name = run_json_string(key);
        if (!name) {
            tool_error("--params %s: a name has a zero in it", path);
            good = false;
        } else {
            add_param(o, name, run_dup_n(value.p, value.n));
        }
    }
    run_free(&text);
    return good;
}

static bool take(run_opts_t *o, const tool_args_t *a, int id)
{
    char *whole;
    switch (id) {
    case TOOL_WORD:
        if (o->dir) {
            tool_error("one directory is run at a time; \"%s\" is a second", a->value);
            return false;
        }
        o->dir = a->value;
        return true;
    case OPT_CHECK:
        return o->check = true;
    case OPT_GRAPH:
        o->graph = true;
        o->dot = a->value && !strcmp(a->value, "dot");
        if (a->value && !o->dot && strcmp(a->value, "text") != 0) {
            if (o->dir) {
                tool_error("--graph %s is neither text nor dot", a->value);
                return false;
            }
            o->dir = a->value; /* weft run --graph DIR */
        }
        return true;
    case OPT_PARAM:
        return take_param(o, a->value);
    case OPT_PARAMS:
        return take_params(o, a->value);
    case OPT_JOBS:
        if (tool_parse_count(a->value, 1, 1 << 20, &o->jobs))
            return true;
        tool_error("--jobs %s is not a number from 1 on", a->value);
        return false;
    case OPT_TIMEOUT:
        if (tool_parse_time(a->value, &o->timeout_ns) && o->timeout_ns)
            return true;
        tool_error("--timeout %s is not a time, such as 30s", a->value);
        return false;
    case OPT_PYTHON:
        o->python = a->value;
        return true;
    case OPT_TRACE:
        o->trace = a->value;
        return true;
    case OPT_JSON:
        return o->json = true;
    case OPT_KEEP:
        return o->keep = true;
    case OPT_KEY_FILE:
        whole = realpath(a->value, NULL); /* elements run in directories of their own */
        if (!whole) {
            tool_error("--key-file %s cannot be read: %s", a->value, strerror(errno));
            return false;
        }
        id = tool_use_key_file(whole);
        free(whole);
        return id;
    case OPT_HELP:
        return o->help = true;
    default:
        return false;
    }
}

bool run_options(run_opts_t *o, int argc, char **argv)
{
    tool_args_t a;
    int id;
    tool_args_init(&a, argc, argv, options);
    a.words = true;
    while ((id = tool_args_next(&a)) != 0)
        if (id < 0 || !take(o, &a, id))
            return false;
    if (!o->help && !o->dir) {
        tool_error("say which directory to run: weft run DIR");
        return false;
    }
    if (!o->python)
        o->python = "python3";
    return true;
}

void run_options_free(run_opts_t *o)
{
    for (unsigned i = 0; i < o->n_params; i++) {
        free(o->params[i].name);
        free(o->params[i].value);
    }
    free(o->params);
}
