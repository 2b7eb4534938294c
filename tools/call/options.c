/* tools/call/options.c - the command line of `weft call`.
 *
 * The first word is a URI, the others are arguments. They are only understood with the function's signature. Nothing is opened
 * if the command line is wrong. tests/tools/tools_call.py checks it. */
#include <string.h>

#include "call.h"

#define TIMEOUT_DEFAULT (10 * WEFT_SECOND)
#define REPEAT_MAX UINT64_C(1000000000000)

uint64_t call_timeout(const call_opts_t *opts)
{
    return opts->timeout_ns ? opts->timeout_ns : TIMEOUT_DEFAULT;
}

/* With --repeat the caller drives. While it waited for a pipe the server would take it for lost. */
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

int call_options(int argc, char **argv, call_opts_t *opts_out)
{
    call_opts_t *o = opts_out;
    tool_words_t words;
    int rc;
    *o = (call_opts_t){0};
    rc = tool_options(&tool_call_command, argc, argv, o, &words);
    if (rc != TOOL_GO)
        return rc;
    if (words.n) {
        o->uri = words.at[0];
        o->words = words.at + 1;
        o->n_words = words.n - 1;
    }
    return fits_together(o) ? TOOL_GO : TOOL_USAGE;
}

static const tool_opt_t options[] = {
    {"list", NULL, "without a URI: every instance of every service in the registry; with one: the functions there",
     TO_FLAG(call_opts_t, list)},
    {"watch", NULL, "with --list: go on, a line for each instance that comes, changes or goes", TO_FLAG(call_opts_t, watch)},
    {"function", "F",
     "the function, if it is not in the URI: a name, #NUMBER, or a signature that the server's has to agree with",
     TO_TEXT(call_opts_t, function)},
    {"timeout", "TIME", "the longest that the call may take (default 10s; with streams: none)",
     TO_TIME(call_opts_t, timeout_ns, WEFT_MILLISECOND, TOOL_DAY)},
    {"once", NULL, "exactly once: it may be sent again, and the server knows it by an id", TO_FLAG(call_opts_t, once)},
    {"wait", NULL, "if nobody is there, wait for somebody, for as long as --timeout says", TO_FLAG(call_opts_t, wait)},
    {"repeat", "N", "call it N times, one after the other, and tell how long that takes",
     TO_COUNT(call_opts_t, repeat, 1, REPEAT_MAX)},
    {"save", "FILE", "write the result to FILE: a tensor as .npy, others as printed", TO_TEXT(call_opts_t, save)},
    {"json", NULL, "one JSON object a line instead of text", TO_FLAG(call_opts_t, json)},
    {"registry", "URI", "where weft:// is looked up (default: as configured, WEFT_REGISTRY)", TO_TEXT(call_opts_t, registry)},
    {TO_GROUP(call_opts_t, net, tool_net_options)},
    {0},
};

const tool_command_t tool_call_command = {
    .name = "call",
    .full_name = "weft call",
    .summary = "call functions of services, and list who offers what",
    .usage = "URI [ARGUMENT...] [options]\n--list [URI] [--watch]",
    .about = "Calls a function of a service, and prints what it gives:\n\n"
             "  weft call weft://calc/add 25 17           any server of calc in the registry\n"
             "  weft call weft://calc@mill-3/add 25 17    that instance of it\n"
             "  weft call tcp://host:port/calc/add 25 17  the server there\n"
             "  weft call unix:///run/calc#calc/add 1 2   behind a path: after a #\n\n"
             "Arguments are 25, -1.5e3, true, text as it is, [1, 2, 3]; or by name, b=17; or what is in a file, @FILE, or comes "
             "from standard "
             "input, -. Tensors are [[1, 2], [3, 4]], i64 [1, 2], or @FILE.npy. A stream of results is printed one a line as "
             "they come; a stream "
             "of arguments is read so.",
    .footer = "Exit status: 0 done, 1 the function or the server said no, 2 the command line or an argument was not understood, "
              "3 there is no such "
              "function, or its signature is another, 4 no server answers, it was lost, or time ran out, 128 and its number "
              "after a signal.",
    .options = options,
    .words = true,
    .numbers = true,
    .run = call_command,
};
