/* tests/fault/lib/nomem.h - memory that runs out at a chosen allocation of the library. */
#ifndef WEFT_TEST_NOMEM_H
#define WEFT_TEST_NOMEM_H

#include <stdbool.h>

#include <weft/op.h>

/* Let `at` allocations succeed from now on, and then `times` fail. */
void nomem_at(long at, long times);
/* From now on none fails. */
void nomem_off(void);
/* True: none has failed yet. */
bool nomem_still_ahead(void);

/* Drive until an operation that was posted with this status is over: its status. One that does not end fails the test. */
weft_status_t nomem_end(weft_status_t posted, weft_op_t *op, void (*drive)(void));

#endif
