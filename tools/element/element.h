/* tools/element/element.h - `weft element`: its commands. */
#ifndef WEFT_TOOLS_ELEMENT_H
#define WEFT_TOOLS_ELEMENT_H

#include <weft/elements.h>

#include "common.h"

extern const tool_command_t element_memory_command, element_serve_command;

#endif
