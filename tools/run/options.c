/* tools/run/options.c - the command line of `weft run`.
 *
 * Nothing is started before the whole command line has been understood. tests/tools/tools_run_check.py checks it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

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

static bool take_python(void *opts, const char *path)
{
    run_opts_t *o = opts;
    o->python = path;
    o->python_said = true;
    return true;
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
    if (!run_on_check(o))
        return TOOL_USAGE;
    if (!o->ssh)
        o->ssh = "ssh";
    if (!o->weft)
        o->weft = "weft";
    if (o->agent) {
        if (words.n || o->on) {
            tool_error("--agent is what a launcher runs on another machine, without a directory");
            return TOOL_USAGE;
        }
        return TOOL_GO;
    }
    if (words.n)
        o->dir = words.at[0];
    if (words.n > 1) {
        tool_error("one directory or file is run at a time; \"%s\" is a second", words.at[1]);
        return TOOL_USAGE;
    }
    if (!o->dir) {
        tool_error("say which directory to run: weft run DIR");
        return TOOL_USAGE;
    }
    return run_given_check(o) ? TOOL_GO : TOOL_USAGE;
}

static const tool_opt_t options[] = {
    {"check", NULL, "read the elements, say what is wrong with them, and run none", TO_FLAG(run_opts_t, check)},
    {"strict", NULL, "refuse what would be ignored with a warning", TO_FLAG(run_opts_t, strict)},
    {"graph", "[text|dot]", "show which elements wait for which and use what, and run none", TO_TAKE(take_graph)},
    {"param", "NAME=VALUE", "a parameter for every element, in params[NAME]: JSON, or else text; may be given several times",
     TO_TAKE(run_take_param)},
    {"params", "FILE", "parameters from a JSON object in a file; or the object itself: {...}", TO_TAKE(run_take_params)},
    {"memory", "NAME=SIZE",
     "memory that has no file NAME.o.yaml; NAME@0=SIZE, NAME@1=SIZE and so on are the copies of parallel memory",
     TO_TAKE(run_take_memory)},
    {"transport", "NAME=DURL",
     "a transport of every compute element to memory that is served elsewhere: a durl, @FILE with a durl, or tcp://HOST:PORT",
     TO_TAKE(run_take_transport)},
    {"path", "DIR", "a directory in which elements find modules, after their own and lib in it; may be given several times",
     TO_TAKE(run_take_path)},
    {"jobs", "N",
     "run at most so many compute elements at a time (default: as many as keep the processors busy, more if none ends)",
     TO_COUNT(run_opts_t, jobs, 1, 1 << 20)},
    {"timeout", "TIME", "take everything down after this time, and fail", TO_TIME(run_opts_t, timeout_ns, 1, UINT64_MAX)},
    {"grace", "TIME", "how long a process may stay after its element returned (default 5s)",
     TO_TIME(run_opts_t, grace_ns, 0, UINT64_MAX)},
    {"python", "PATH", "the interpreter that runs compute elements (default python3)", TO_TAKE(take_python)},
    {"trace", "FILE", "write a timeline there, for chrome://tracing or ui.perfetto.dev", TO_TEXT(run_opts_t, trace)},
    {"json", NULL,
     "one JSON object on standard output in the end: results and figures. What elements print goes to standard error",
     TO_FLAG(run_opts_t, json)},
    {"keep", NULL, "leave the working directories of the elements, and say where they are", TO_FLAG(run_opts_t, keep)},
    {"on", "WHERE", "run it on other machines: ssh://HOST,HOST..., dask://HOST:PORT, dask, or openwhisk",
     TO_TEXT(run_opts_t, on)},
    {"ssh", "COMMAND", "how machines of --on ssh:// are reached (default ssh)", TO_TEXT(run_opts_t, ssh)},
    {"weft", "PATH", "this command on those machines (default weft)", TO_TEXT(run_opts_t, weft)},
    {"image", "NAME", "for --on openwhisk: the image that runs the actions", TO_TEXT(run_opts_t, image)},
    {"agent", NULL, "start elements here for a launcher elsewhere, by lines on standard input and output",
     TO_FLAG(run_opts_t, agent)},
    {"address", "HOST",
     "by which others reach this machine: for --agent, and for --on openwhisk, where it may be HOST:PORT, or none",
     TO_TEXT(run_opts_t, address)},
    {"key-file", "PATH", "file with the pre-shared key that all elements use", TO_TAKE(take_key_file)},
    {0},
};

const tool_command_t tool_run_command = {
    .name = "run",
    .full_name = "weft run",
    .summary = "run a program in elements: a directory of them, on this machine",
    .usage = "[options] DIR\n[options] NAME.o.py\n[options] DAG.json",
    .about =
        "Runs a directory of elements on this machine: NAME.o.py are programs, NAME.o.yaml is memory that they share. Each "
        "starts when its "
        "parents are done, as processes of their own, and is given their results. A single program can be run, and a DAG that "
        "is one file of JSON.",
    .footer = "Exit status: 0 every element is done, 1 one failed or the elements are wrong, 2 the command line was not "
              "understood, 128 and its "
              "number after a signal.",
    .options = options,
    .words = true,
    .run = run_command,
};
