/* tests/fault/lib/nomem.h - memory that runs out at a chosen allocation of the library. */
#ifndef WEFT_TEST_NOMEM_H
#define WEFT_TEST_NOMEM_H

#include <stdbool.h>

/* Let `at` allocations succeed from now on, and then `times` fail. */
void nomem_at(long at, long times);
/* From now on none fails. */
void nomem_off(void);
/* True: none has failed yet. */
bool nomem_still_ahead(void);

#endif
