/* tools/element/element.h - `weft element`: what its files share. */
#ifndef WEFT_TOOLS_ELEMENT_H
#define WEFT_TOOLS_ELEMENT_H

#include <weft/elements.h>

#include "common.h"

/* One of its commands: argv[0] is its name. Each reads its own options. */
typedef struct element_command {
    const char *name, *full_name, *summary;
    int (*run)(int argc, char **argv);
    void (*help)(FILE *f);
} element_command_t;

int element_memory(int argc, char **argv);
void element_memory_help(FILE *f);
int element_serve(int argc, char **argv);
void element_serve_help(FILE *f);

#endif
