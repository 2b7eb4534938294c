/* tools/element/serve.c - `weft element serve`: the action runtime of OpenWhisk, which is Python's module disagg.serve.
 *
 * It reads the command line, finds the interpreter, and becomes it: signals, streams and the exit status are that program's from then on.
 * tests/tools/tools_element_serve.py holds it, and tests/python/test_openwhisk_*.py hold the module. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "element.h"

enum { OPT_PORT = 1, OPT_HOST, OPT_ADDRESS, OPT_PYTHON, OPT_READY_FD, OPT_HELP };

static const tool_opt_t options[] = {
    {OPT_PORT, "port", "N", "the port to listen on (default 8080); 0 picks one, and prints where it is"},
    {OPT_HOST, "host", "ADDRESS", "the address to listen on (default 0.0.0.0, all of them)"},
    {OPT_ADDRESS, "address", "ADDRESS", "the address by which others reach this container (default: that of its way out)"},
    {OPT_PYTHON, "python", "PATH", "the interpreter that runs actions (default python3)"},
    {OPT_READY_FD, "ready-fd", "FD", "write the port there, in a line, when it can be connected to"},
    {OPT_HELP, "help", NULL, "this"},
    {0, NULL, NULL, NULL},
};

/* As `-m disagg.serve` does, but one without the package gets a sentence. */
static const char program[] =
    "import sys\n"
    "try:\n"
    "    from disagg.serve.__main__ import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'weft element serve: {sys.executable} cannot run actions ({error}): install the Python package '\n"
    "             'weft-disagg for it, or name another interpreter by --python PATH')\n"
    "sys.exit(main(sys.argv[1:]))\n";

void element_serve_help(FILE *f)
{
    fputs("Usage: weft element serve [options]\n\n"
          "An action runtime for OpenWhisk: answers POST /init with the code of an action, plain or an element, and POST /run by "
          "running it.\n"
          "It is what a container of such an action runs; the guide's page on OpenWhisk has an image.\n\n",
          f);
    tool_args_help(options, f);
}

int element_serve(int argc, char **argv)
{
    char *args[16] = {NULL}, *python;
    const char *name = "python3";
    unsigned n = 4; /* the interpreter, -P, -c and the program come first */
    uint64_t number;
    struct stat st;
    tool_args_t a;
    int id;
    tool_args_init(&a, argc, argv, options);
    while ((id = tool_args_next(&a)) != 0) {
        if (id < 0)
            return TOOL_USAGE;
        if (id == OPT_HELP) {
            element_serve_help(stdout);
            return TOOL_OK;
        }
        if (id == OPT_PYTHON) {
            name = a.value;
            continue;
        }
        if (id == OPT_PORT && !tool_parse_count(a.value, 0, 65535, &number)) {
            tool_error("--port %s is not a number from 0 to 65535", a.value);
            return TOOL_USAGE;
        }
        if (id == OPT_READY_FD && (!tool_parse_count(a.value, 0, 1 << 20, &number) || fstat((int)number, &st))) {
            tool_error("--ready-fd %s is not a descriptor that this process inherited", a.value);
            return TOOL_USAGE;
        }
        if (n + 2 >= sizeof args / sizeof *args) {
            tool_error("an option is given more than once");
            return TOOL_USAGE;
        }
        args[n++] = id == OPT_PORT ? "--port" : id == OPT_HOST ? "--host" : id == OPT_ADDRESS ? "--address" : "--ready-fd";
        args[n++] = (char *)a.value;
    }
    python = tool_find_python(name);
    if (!python) {
        tool_error("there is no interpreter %s; --python PATH names one", name);
        return TOOL_FAILED;
    }
    args[0] = python;
    args[1] = "-P"; /* what lies in the working directory is not imported */
    args[2] = "-c";
    args[3] = (char *)program;
    execv(python, args);
    tool_error("%s cannot be executed: %s", python, strerror(errno));
    free(python);
    return TOOL_FAILED;
}
