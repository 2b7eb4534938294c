/* tools/element/serve.c - `weft element serve`: the action runtime of OpenWhisk, which is Python's module disagg.serve.
 *
 * It reads the command line, finds the interpreter, and replaces itself by it. tests/tools/tools_element_serve.py checks it, and
 * tests/python/test_openwhisk_*.py check the module. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "element.h"

/* As `-m disagg.serve` does, but one without the package gets a sentence. */
static const char program[] =
    "import sys\n"
    "try:\n"
    "    from disagg.serve.__main__ import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'weft element serve: {sys.executable} cannot run actions ({error}): install the Python package '\n"
    "             'weft-disagg for it, or name another interpreter by --python PATH')\n"
    "sys.exit(main(sys.argv[1:]))\n";

typedef struct serve {
    const char *host, *address, *python;
    const char *port, *ready_fd; /* NULL: not said */
} serve_t;

static bool take_port(void *opts, const char *value)
{
    uint64_t number;
    ((serve_t *)opts)->port = value;
    return tool_take_count("port", value, 0, 65535, &number);
}

static bool take_ready_fd(void *opts, const char *value)
{
    uint64_t number;
    struct stat st;
    ((serve_t *)opts)->ready_fd = value;
    if (tool_parse_count(value, 0, 1 << 20, &number) && !fstat((int)number, &st))
        return true;
    tool_error("--ready-fd %s is not a descriptor that this process inherited", value);
    return false;
}

static int element_serve(int argc, char **argv)
{
    serve_t s = {.python = "python3"};
    int rc = tool_options(&element_serve_command, argc, argv, &s, NULL);
    if (rc != TOOL_GO)
        return rc;
    const char *values[] = {s.port, s.host, s.address, s.ready_fd};
    static const char *const names[] = {"--port", "--host", "--address", "--ready-fd"};
    char *python = tool_find_python(s.python);
    if (!python) {
        tool_error("there is no interpreter %s; --python PATH names one", s.python);
        return TOOL_FAILED;
    }
    /* -P: what lies in the working directory is not imported */
    char *args[16] = {python, "-P", "-c", (char *)program};
    for (size_t i = 0, n = 4; i < sizeof names / sizeof *names; i++)
        if (values[i]) {
            args[n++] = (char *)names[i];
            args[n++] = (char *)values[i];
        }
    execv(python, args);
    tool_error("%s cannot be executed: %s", python, strerror(errno));
    free(python);
    return TOOL_FAILED;
}

static const tool_opt_t options[] = {
    {"port", "N", "the port to listen on (default 8080); 0 picks one, and prints where it is", TO_TAKE(take_port)},
    {"host", "ADDRESS", "the address to listen on (default 0.0.0.0, all of them)", TO_TEXT(serve_t, host)},
    {"address", "ADDRESS", "the address by which others reach this container (default: that of its way out)",
     TO_TEXT(serve_t, address)},
    {"python", "PATH", "the interpreter that runs actions (default python3)", TO_TEXT(serve_t, python)},
    {"ready-fd", "FD", "write the port there, in a line, when it can be connected to", TO_TAKE(take_ready_fd)},
    {0},
};

const tool_command_t element_serve_command = {
    .name = "serve",
    .full_name = "weft element serve",
    .summary = "run actions for OpenWhisk: the runtime in a container of its",
    .usage = "[options]",
    .about = "An action runtime for OpenWhisk: answers POST /init with the code of an action, plain or an element, and POST /run "
             "by running it. It "
             "is what a container of such an action runs; the guide's page on OpenWhisk has an image.",
    .options = options,
    .run = element_serve,
};
