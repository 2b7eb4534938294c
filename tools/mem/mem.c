/* tools/mem/mem.c - `weft mem`: its list of commands, and what a failure means.
 *
 * Exit status: 0 done, 1 it could not be done, 2 the command line was not understood, 3 no such block, 4 no server, 128 and its
 * number after a signal. tests/tools/tools_mem.py checks them. */
#include "mem.h"

#include <stdarg.h>
#include <string.h>

static const tool_command_t *const commands[] = {
    &mem_serve_command, &mem_put_command, &mem_get_command, &mem_ls_command, &mem_stat_command, &mem_rm_command, NULL,
};

const tool_command_t tool_mem_command = {
    .name = "mem",
    .full_name = "weft mem",
    .summary = "serve memory, and put, get, list and remove blocks of it",
    .usage = "COMMAND [options]",
    .commands = commands,
    .footer = "  weft mem COMMAND --help    what a command does, with all of its options\n\n"
              "A server gives out memory in blocks that have names. The other commands are its clients: they find it by --server "
              "URI or by the "
              "variable WEFT_MEM_SERVER. Exit status: 0 done, 1 it could not be done, 2 the command line was not understood, 3 "
              "there is no such "
              "block, 4 no server answers or it was lost, 128 and its number after a signal.",
};

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
    case WEFT_ERR_PERMISSION:
        tool_error("%s: %s", what, weft_last_error()); /* it says what was not allowed */
        break;
    case WEFT_ERR_STALE:
        tool_error("%s: it was removed or replaced meanwhile, or the server has given us up", what);
        break;
    default:
        tool_error("%s: %s%s", what, weft_status_text(st), advice(st));
    }
    return st == WEFT_ERR_NOTFOUND ? MEM_NO_BLOCK : tool_no_server(st) ? MEM_NO_SERVER : TOOL_FAILED;
}
