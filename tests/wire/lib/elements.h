/* tests/wire/lib/elements.h - a memory element and an action that uses it, on two runtimes of one process. Everything here that
 * is said to do something ends the test if that fails. */
#ifndef WEFT_TEST_ELEMENTS_H
#define WEFT_TEST_ELEMENTS_H

#include <weft/elements.h>

#include "pair.h"

typedef struct elements {
    pair_t pair;             /* rt[0] has the memory, rt[1] the action; they are not connected */
    weft_memory_t *memory;
    weft_action_t *action;
    char durl[WEFT_DURL_MAX + 1]; /* of the memory */
    weft_op_t op;            /* of the last operation */
} elements_t;

/* Both runtimes, memory "mem" of so many bytes (0: none yet), an action "test" without transports. The options may be NULL. */
void elements_open(elements_t *e, const pair_way_t *way, uint64_t bytes, const weft_memory_opts_t *memory,
                   const weft_action_opts_t *action);
void elements_close(elements_t *e);
/* Open "mem" (again). */
void elements_memory(elements_t *e, uint64_t bytes, const weft_memory_opts_t *opts);
void elements_memory_close(elements_t *e);

/* Add "NAME;rdma_tcp;" and the rest of the memory's durl, and give the transport; with a buffer of so many bytes, if not 0. */
weft_transport_t *elements_add(elements_t *e, const char *name, size_t buffer);
weft_transport_t *elements_get(elements_t *e, const char *name, const char *type);
/* Drive both until it is over: its status; of what was posted, or that of the post. */
weft_status_t elements_end(elements_t *e, weft_status_t posted);
weft_status_t elements_read(elements_t *e, weft_transport_t *t, size_t size, uint64_t addr, size_t offset);
weft_status_t elements_write(elements_t *e, weft_transport_t *t, size_t size, uint64_t addr, size_t offset);
weft_status_t elements_ready(elements_t *e, weft_transport_t *t);
weft_transport_stats_t elements_stats(weft_transport_t *t);
weft_memory_stats_t elements_memory_stats(elements_t *e);

#endif
