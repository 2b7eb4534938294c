/* tools/run/graph.h - what graph.c and order.c share: lists of elements, and marks on them. */
#ifndef WEFT_TOOLS_RUN_GRAPH_H
#define WEFT_TOOLS_RUN_GRAPH_H

#include "run.h"

bool run_among(run_element_t *const *list, unsigned n, const run_element_t *e);
void run_among_add(run_element_t ***list, unsigned *n, run_element_t *e); /* once */
bool run_uses(const run_element_t *e, const run_element_t *memory);
void run_marks_clear(run_t *run);
/* The order of all elements, after names are resolved: `before` and `after`, `earlier` and `later`. With sentences. */
void run_order(run_t *run);

#endif
