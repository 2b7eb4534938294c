/* tests/fault/lib/seen.h - values as a function or a caller has them: each is what its type says, and stays as it was while
 * somebody looks.
 *
 * Whatever is not so ends the test. For values of up to SEEN_MAX bytes. */
#ifndef WEFT_TEST_SEEN_H
#define WEFT_TEST_SEEN_H

#include <stddef.h>
#include <weft/types.h>

enum { SEEN_MAX = 16384 };

/* Text is UTF-8, bools are 0 or 1, tensors have as many bytes as their shape says and start where their strides begin; and a
 * second and a third look find the same. */
void seen_values(const weft_value_t *values, size_t n);

#endif
