/* tests/fault/lib/flip.h - memory that changes while it is looked at: as a peer changes its ring, but at a moment that the test
 * chooses.
 *
 * The watched bytes cannot be touched without a signal. Each instruction that touches them is let through, counted, and when so
 * many were that the test said, the bytes become others. So every moment at which a peer could write is one number, and a test
 * can try them all. Where a byte is read twice, there is a number with which the second reader sees another one than the first.
 *
 * For one thread, on x86-64: flip_works() says. */
#ifndef WEFT_TEST_FLIP_H
#define WEFT_TEST_FLIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool flip_works(void);
/* Watch n bytes at `at`, whose pages are all shared memory that is mapped a second time, there at `twin`. After `when` touches
 * (from 1 on) they become `evil`. */
void flip_watch(const void *at, void *twin, size_t n, const void *evil, unsigned when);
/* No longer. How often they were touched. */
unsigned flip_unwatch(void);

#endif
