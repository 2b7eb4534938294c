/* base/futex.h - sleep until a word of this process changes. */
#ifndef WEFTI_FUTEX_H
#define WEFTI_FUTEX_H

#include <stdbool.h>
#include <stdint.h>

/* While it is `seen`, for at most so many ns; UINT64_MAX: without a bound. False: the time is over. It may return early. */
bool wefti_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void wefti_futex_wake(_Atomic uint32_t *word, int most);

#endif
