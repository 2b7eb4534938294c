/* tools/mem/mem.c - `weft mem`: finds which of its commands was meant, and says what a failure means.
 *
 * Exit status: 0 done, 1 it could not be done, 2 it was not asked for in words we know, 3 no such block, 4 no server, 128 and its
 * number after a signal. tests/tools/tools_mem.py holds them. */
#include "mem.h"

#include <stdarg.h>
#include <string.h>

void tool_mem_help(FILE *f)
{
    fputs("Usage: weft mem COMMAND [options]\n\n", f);
    for (size_t i = 0; i < mem_n_commands; i++)
        fprintf(f, "  %-7s %s\n", mem_commands[i].name, mem_commands[i].summary);
    fputs("\n"
          "  weft mem COMMAND --help    what a command does, with all of its options\n\n"
          "A server gives out memory in blocks that have names. The other commands are its clients: they find\n"
          "it by --server URI or by the variable WEFT_MEM_SERVER. Exit status: 0 done, 1 it could not be done,\n"
          "2 the command line was not understood, 3 there is no such block, 4 no server answers or it was\n"
          "lost, 128 and its number after a signal.\n",
          f);
}

static const mem_command_t *find_command(const char *name)
{
    const char *names[16];
    size_t n = 0;
    for (; n < mem_n_commands && n < sizeof names / sizeof *names; n++) {
        if (!strcmp(mem_commands[n].name, name))
            return &mem_commands[n];
        names[n] = mem_commands[n].name;
    }
    tool_no_command(name, names, n, "weft mem");
    return NULL;
}

int tool_mem(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    const mem_command_t *command;
    mem_opts_t opts;
    bool run;
    int rc;
    if (!word) {
        tool_error("say what to do: serve, put, get, ls, stat or rm; weft mem --help tells more");
        return TOOL_USAGE;
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || (!strcmp(word, "help") && argc == 2)) {
        tool_mem_help(stdout);
        return TOOL_OK;
    }
    command = find_command(!strcmp(word, "help") ? argv[2] : word);
    if (!command)
        return TOOL_USAGE;
    tool_name = command->full_name;
    if (!strcmp(word, "help")) {
        mem_command_help(command, stdout);
        return TOOL_OK;
    }
    rc = mem_options(command, argc - 1, argv + 1, &opts, &run);
    if (!rc && run)
        rc = command->run(&opts);
    mem_options_free(&opts);
    return rc;
}

/* --- failures -------------------------------------------------------------------------------------------- */

static const char *advice(weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_REFUSED:
        return "; start it first: weft mem serve --size SIZE --listen URI";
    case WEFT_ERR_UNSUPPORTED:
        return "; is it a weft mem serve that listens there?";
    case WEFT_ERR_LIMIT:
        return "; weft mem stat tells what the server has left, weft mem rm frees some of it";
    default:
        return tool_advice(st);
    }
}

static int exit_status(weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_NOTFOUND:
        return MEM_NO_BLOCK;
    case WEFT_ERR_PEER:
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_REFUSED:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_ADDRESS:
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_UNSUPPORTED:
        return MEM_NO_SERVER;
    default:
        return TOOL_FAILED;
    }
}

int mem_failed(weft_status_t st, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    if (tool_signal())
        return 128 + tool_signal();
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    switch (st) {
    case WEFT_ERR_NOTFOUND:
        tool_error("%s: there is no block of that name", what);
        break;
    case WEFT_ERR_LIMIT:
        tool_error("%s: the server has no room for it, or a quota says no%s", what, advice(st));
        break;
    case WEFT_ERR_STALE:
        tool_error("%s: it was removed or replaced meanwhile, or the server has given us up", what);
        break;
    default:
        tool_error("%s: %s%s", what, weft_status_text(st), advice(st));
    }
    return exit_status(st);
}
