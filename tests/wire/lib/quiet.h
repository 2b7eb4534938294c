/* tests/wire/lib/quiet.h - what a stretch of code does not do: allocate, enter the kernel.
 *
 * Allocations are counted by standing in front of malloc; system calls by a parent that traces a child. Neither works under a
 * sanitizer. */
#ifndef WEFT_TEST_QUIET_H
#define WEFT_TEST_QUIET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIET_SANITIZED 1
#else
#define QUIET_SANITIZED 0
#endif

/* Calls of malloc, calloc and realloc in this process so far, whoever made them. */
uint64_t quiet_allocations(void);

/* Run body() in a child, and count the system calls its main thread makes between quiet_mark(true) and quiet_mark(false): all
 * of them, or those of `which`. body may fail by exit(). -1: tracing is not permitted here; -2: it failed, or did not come to
 * the end. */
int64_t quiet_calls(void (*body)(void), const long *which, size_t n);
void quiet_mark(bool begin);

#endif
