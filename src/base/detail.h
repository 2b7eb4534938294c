/* base/detail.h - sentences about failures that another thread asks for later: each has a number.
 *
 * An operation has no place for a sentence, and its owner releases nothing. So it keeps a number, and the last WEFTI_DETAILS
 * sentences are in a ring of the process. Operations that fail for one reason share one. Any thread writes and reads; nobody
 * waits. tests/unit/base_detail.c. */
#ifndef WEFTI_DETAIL_H
#define WEFTI_DETAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

#define WEFTI_DETAILS 1024u
#define WEFTI_DETAIL_MAX 248u /* bytes of one, with its NUL; longer ones are cut */

/* A failure, with what is to be said about it. */
typedef struct wefti_fault {
    weft_status_t status;
    uint64_t detail; /* the number of a sentence; 0: there is none */
} wefti_fault_t;

/* The number of this sentence, never 0. */
uint64_t wefti_detail_put(const char *text);
uint64_t wefti_detail_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The number of what weft_last_error() says, if that is of a failure with this status; else 0. */
uint64_t wefti_detail_last(weft_status_t status);
/* The sentence; false: it was overwritten since, or the number is 0. */
bool wefti_detail_get(uint64_t number, char text[WEFTI_DETAIL_MAX]);

#endif
