/* tools/call/options.c - the command line of `weft call`.
 *
 * The first word is where, the others are arguments: what they mean is only known with the function's signature. Whatever is wrong before
 * that gets one sentence and exit status 2, and nothing is opened. tests/tools/tools_call.py holds it. */
#include <stdlib.h>
#include <string.h>

#include "call.h"

enum {
    OPT_LIST = 1,
    OPT_WATCH,
    OPT_FUNCTION,
    OPT_REGISTRY,
    OPT_TIMEOUT,
    OPT_ONCE,
    OPT_REPEAT,
    OPT_WAIT,
    OPT_SAVE,
    OPT_JSON,
    OPT_KEY_FILE,
    OPT_TLS,
    OPT_HEARTBEAT,
    OPT_HELP
};

#define TIMEOUT_DEFAULT (10 * WEFT_SECOND)
#define REPEAT_MAX UINT64_C(1000000000000)

static const tool_opt_t options[] = {
    {OPT_LIST, "list", NULL,
     "without a URI: every instance of every service in the registry;\n"
     "with one: the functions there"},
    {OPT_WATCH, "watch", NULL, "with --list: go on, a line for each instance that comes, changes or goes"},
    {OPT_FUNCTION, "function", "F",
     "the function, if it is not in the URI: a name, #NUMBER, or a\n"
     "signature that the server's has to agree with"},
    {OPT_TIMEOUT, "timeout", "TIME", "the longest that the call may take (default 10s; with streams: none)"},
    {OPT_ONCE, "once", NULL, "exactly once: it may be sent again, and the server knows it by an id"},
    {OPT_WAIT, "wait", NULL, "if nobody is there, wait for somebody, for as long as --timeout says"},
    {OPT_REPEAT, "repeat", "N", "call it N times, one after the other, and tell how long that takes"},
    {OPT_SAVE, "save", "FILE", "write the result to FILE: a tensor as .npy, others as printed"},
    {OPT_JSON, "json", NULL, "one JSON object a line instead of text"},
    {OPT_REGISTRY, "registry", "URI", "where weft:// is looked up (default: as configured, WEFT_REGISTRY)"},
    {OPT_KEY_FILE, "key-file", "PATH", "file with the pre-shared key; both sides need the same"},
    {OPT_TLS, "tls", "LIST", "transports: all, shm, tcp, or a list of those and of UCX's names (default: as configured)"},
    {OPT_HEARTBEAT, "heartbeat", "TIME", "a peer silent for this long is lost (default: as configured)"},
    {OPT_HELP, "help", NULL, "this"},
    {0, NULL, NULL, NULL},
};

void tool_call_help(FILE *f)
{
    fputs("Usage: weft call URI [ARGUMENT...] [options]\n"
          "       weft call --list [URI] [--watch]\n\n"
          "Calls a function of a service, and prints what it gives:\n\n"
          "  weft call weft://calc/add 25 17              whoever offers calc in the registry\n"
          "  weft call weft://calc@mill-3/add 25 17       that instance of it\n"
          "  weft call tcp://host:port/calc/add 25 17     the server there\n"
          "  weft call unix:///run/calc#calc/add 25 17    behind a path: after a #\n\n"
          "Arguments are 25, -1.5e3, true, text as it is, [1, 2, 3]; or by name, b=17; or what is in a file,\n"
          "@FILE, or comes from standard input, -. Tensors are [[1, 2], [3, 4]], i64 [1, 2], or @FILE.npy.\n"
          "A stream of results is printed one a line as they come; a stream of arguments is read so.\n\n",
          f);
    tool_args_help(options, f);
    fputs("\n"
          "Exit status: 0 done, 1 the function or the server said no, 2 the command line or an argument was\n"
          "not understood, 3 there is no such function, or its signature is another, 4 no server answers, it\n"
          "was lost, or time ran out, 128 and its number after a signal.\n",
          f);
}

uint64_t call_timeout(const call_opts_t *opts)
{
    return opts->timeout_ns ? opts->timeout_ns : TIMEOUT_DEFAULT;
}

static bool take_time(const char *name, const char *text, uint64_t min, uint64_t *out)
{
    uint64_t ns;
    if (tool_parse_time(text, &ns) && ns >= min && ns <= 86400 * WEFT_SECOND) {
        *out = ns;
        return true;
    }
    tool_error("--%s %s is not a time between %g s and a day; write it like 250ms, 2s or 0.5", name, text, (double)min / 1e9);
    return false;
}

static bool take(call_opts_t *o, int id, const char *v)
{
    switch (id) {
    case OPT_LIST:
        o->list = true;
        return true;
    case OPT_WATCH:
        o->watch = true;
        return true;
    case OPT_FUNCTION:
        o->function = v;
        return true;
    case OPT_REGISTRY:
        o->registry = v;
        return true;
    case OPT_TIMEOUT:
        return take_time("timeout", v, WEFT_MILLISECOND, &o->timeout_ns);
    case OPT_ONCE:
        o->once = true;
        return true;
    case OPT_REPEAT:
        if (tool_parse_count(v, 1, REPEAT_MAX, &o->repeat))
            return true;
        tool_error("--repeat %s is not a number of calls, from 1 on", v);
        return false;
    case OPT_WAIT:
        o->wait = true;
        return true;
    case OPT_SAVE:
        o->save = v;
        return true;
    case OPT_JSON:
        o->json = true;
        return true;
    case OPT_KEY_FILE:
        o->key_file = v;
        return true;
    case OPT_TLS:
        o->tls = v;
        return true;
    default:
        return take_time("heartbeat", v, 100 * WEFT_MILLISECOND, &o->heartbeat_ns);
    }
}

/* With --repeat the caller drives, and a pipe may take its time: the server would give us up. */
static bool has_stdin(const call_opts_t *o)
{
    for (size_t i = 0; i < o->n_words; i++) {
        size_t n = strlen(o->words[i]);
        if (!strcmp(o->words[i], "-") || (n > 2 && !strcmp(o->words[i] + n - 2, "=-")))
            return true;
    }
    return false;
}

static bool fits_together(const call_opts_t *o)
{
    if (o->watch && !o->list)
        tool_error("--watch goes with --list");
    else if (o->list && (o->function || o->once || o->repeat || o->save || o->wait))
        tool_error("--list calls no function: --function, --once, --repeat, --save and --wait do not go with it");
    else if (o->list && o->n_words)
        tool_error("it is used like this: weft call --list [URI], and \"%s\" is more than that", o->words[0]);
    else if (!o->list && !o->uri)
        tool_error("say what to call: weft call weft://calc/add 25 17; weft call --list shows who offers what");
    else if (o->repeat && o->save)
        tool_error("--save keeps one result, --repeat has many");
    else if (o->repeat && has_stdin(o))
        tool_error("with --repeat, standard input cannot be an argument; give it as @FILE");
    else
        return true;
    return false;
}

int call_options(int argc, char **argv, call_opts_t *opts_out, bool *run_out)
{
    call_opts_t *o = opts_out;
    tool_args_t args;
    int id;
    *o = (call_opts_t){0};
    *run_out = false;
    o->words = calloc((size_t)argc, sizeof *o->words);
    if (!o->words) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    tool_args_init(&args, argc, argv, options);
    args.words = args.numbers = true;
    while ((id = tool_args_next(&args)) > 0) {
        if (id == OPT_HELP) {
            tool_call_help(stdout);
            return TOOL_OK;
        }
        if (id == TOOL_WORD && !o->uri)
            o->uri = args.value;
        else if (id == TOOL_WORD)
            o->words[o->n_words++] = args.value;
        else if (!take(o, id, args.value))
            return TOOL_USAGE;
    }
    if (id < 0 || !fits_together(o))
        return TOOL_USAGE;
    if (o->key_file && !tool_use_key_file(o->key_file))
        return TOOL_FAILED;
    *run_out = true;
    return TOOL_OK;
}
