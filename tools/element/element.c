/* tools/element/element.c - `weft element`: the processes that launchers start: `weft run` on this machine, OpenWhisk elsewhere.
 *
 * tests/tools/tools_element.py checks it. */
#include "element.h"

static const tool_command_t *const commands[] = {&element_memory_command, &element_serve_command, NULL};

const tool_command_t tool_element_command = {
    .name = "element",
    .full_name = "weft element",
    .summary = "be an element of a program: started by weft run, or by OpenWhisk",
    .usage = "COMMAND [options]",
    .commands = commands,
    .footer = "  weft element COMMAND --help    what a command does, with all of its options\n\n"
              "A program in elements is a directory: weft run DIR starts all that is needed, its memory included.",
};
