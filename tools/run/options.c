/* tools/run/options.c - the command line of `weft run`.
 *
 * Nothing is started before the whole command line has been understood. tests/tools/tools_run_check.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define PARAMS_MAX ((size_t)16 << 20)

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

static bool take_param(void *opts, const char *text)
{
    run_opts_t *o = opts;
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
        tool_json_t j = run_json_begin(&quoted);
        tool_json_text(&j, NULL, equals + 1);
        run_json_end(&j);
        add_param(o, run_dup_n(text, (size_t)(equals - text)), quoted.p);
    }
    return true;
}

static bool take_params(void *opts, const char *path)
{
    run_opts_t *o = opts;
    run_value_t all, key, value;
    run_text_t text = {0};
    char piece[16384];
    wefti_json_t at = {0};
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

/* "--graph DIR" is also "--graph text DIR". */
static bool take_graph(void *opts, const char *word)
{
    run_opts_t *o = opts;
    o->graph = true;
    o->dot = word && !strcmp(word, "dot");
    if (word && !o->dot && strcmp(word, "text") != 0)
        o->dir = word;
    return true;
}

static bool take_key_file(void *opts, const char *path)
{
    char *whole = realpath(path, NULL); /* elements run in directories of their own */
    bool good = whole && tool_use_key_file(whole);
    (void)opts;
    if (!whole)
        tool_error("--key-file %s cannot be read: %s", path, strerror(errno));
    free(whole);
    return good;
}

int run_options(run_opts_t *o, int argc, char **argv)
{
    tool_words_t words;
    int rc;
    o->python = "python3";
    o->grace_ns = 5 * WEFT_SECOND;
    rc = tool_options(&tool_run_command, argc, argv, o, &words);
    if (rc != TOOL_GO)
        return rc;
    if (o->dir && words.n) {
        tool_error("--graph %s is neither text nor dot", o->dir);
        return TOOL_USAGE;
    }
    if (words.n)
        o->dir = words.at[0];
    if (words.n > 1) {
        tool_error("one directory is run at a time; \"%s\" is a second", words.at[1]);
        return TOOL_USAGE;
    }
    if (!o->dir) {
        tool_error("say which directory to run: weft run DIR");
        return TOOL_USAGE;
    }
    return TOOL_GO;
}

static const tool_opt_t options[] = {
    {"check", NULL, "read the elements, say what is wrong with them, and run none", TO_FLAG(run_opts_t, check)},
    {"graph", "[text|dot]", "show which elements wait for which and use what, and run none", TO_TAKE(take_graph)},
    {"param", "NAME=VALUE", "a parameter for every element, in params[NAME]: JSON, or else text; may be given several times",
     TO_TAKE(take_param)},
    {"params", "FILE", "parameters from a JSON object in a file", TO_TAKE(take_params)},
    {"jobs", "N", "run at most so many compute elements at a time (default: no bound)", TO_COUNT(run_opts_t, jobs, 1, 1 << 20)},
    {"timeout", "TIME", "take everything down after this time, and fail", TO_TIME(run_opts_t, timeout_ns, 1, UINT64_MAX)},
    {"grace", "TIME", "how long a process may stay after its element returned (default 5s)",
     TO_TIME(run_opts_t, grace_ns, 0, UINT64_MAX)},
    {"python", "PATH", "the interpreter that runs compute elements (default python3)", TO_TEXT(run_opts_t, python)},
    {"trace", "FILE", "write a timeline there, for chrome://tracing or ui.perfetto.dev", TO_TEXT(run_opts_t, trace)},
    {"json", NULL,
     "one JSON object on standard output in the end: results and figures. What elements print goes to standard error",
     TO_FLAG(run_opts_t, json)},
    {"keep", NULL, "leave the working directories of the elements, and say where they are", TO_FLAG(run_opts_t, keep)},
    {"key-file", "PATH", "file with the pre-shared key that all elements use", TO_TAKE(take_key_file)},
    {0},
};

const tool_command_t tool_run_command = {
    .name = "run",
    .full_name = "weft run",
    .summary = "run a program in elements: a directory of them, on this machine",
    .usage = "[options] DIR",
    .about = "Runs a directory of elements on this machine: NAME.o.py are programs, NAME.o.yaml is memory that they share. Each "
             "starts when its "
             "parents are done, as processes of their own, and is given their results.",
    .footer = "Exit status: 0 every element is done, 1 one failed or the elements are wrong, 2 the command line was not "
              "understood, 128 and its "
              "number after a signal.",
    .options = options,
    .words = true,
    .run = run_command,
};

void run_options_free(run_opts_t *o)
{
    for (unsigned i = 0; i < o->n_params; i++) {
        free(o->params[i].name);
        free(o->params[i].value);
    }
    free(o->params);
}
