/* tools/element/element.c - `weft element`: finds which of its commands was meant.
 *
 * Elements are started by launchers: `weft run` on this machine, OpenWhisk elsewhere. These are what they start.
 * tests/tools/tools_element.py holds it. */
#include "element.h"

#include <string.h>

static const element_command_t commands[] = {
    {"memory", "weft element memory", "be a memory element: some memory that compute elements read and write", element_memory,
     element_memory_help},
    {"serve", "weft element serve", "run actions for OpenWhisk: the runtime in a container of its", element_serve,
     element_serve_help},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

void tool_element_help(FILE *f)
{
    fputs("Usage: weft element COMMAND [options]\n\n", f);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-7s %s\n", commands[i].name, commands[i].summary);
    fputs("\n"
          "  weft element COMMAND --help    what a command does, with all of its options\n\n"
          "A program in elements is a directory: weft run DIR starts all that is needed, its memory included.\n",
          f);
}

static const element_command_t *find_command(const char *name)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!strcmp(commands[i].name, name))
            return &commands[i];
        names[i] = commands[i].name;
    }
    tool_no_command(name, names, N_COMMANDS, "weft element");
    return NULL;
}

int tool_element(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    const element_command_t *command;
    bool help;
    if (!word) {
        tool_error("say which kind of element to be; weft element --help lists all");
        return TOOL_USAGE;
    }
    help = !strcmp(word, "help");
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || (help && argc == 2)) {
        tool_element_help(stdout);
        return TOOL_OK;
    }
    command = find_command(help ? argv[2] : word);
    if (!command)
        return TOOL_USAGE;
    tool_name = command->full_name;
    if (help) {
        command->help(stdout);
        return TOOL_OK;
    }
    return command->run(argc - 1, argv + 1);
}
