/* base/opts.h - options and counters of callers that were compiled with another version.
 *
 * An options struct begins with its size, and zero means the default everywhere. So a smaller one is an older caller's, and
 * the rest is zero; a larger one is a newer caller's, and is accepted if what this version does not know is zero.
 *
 * tests/wire/api_opts.c tries every function that takes options. */
#ifndef WEFTI_OPTS_H
#define WEFTI_OPTS_H

#include <stddef.h>
#include <string.h>
#include <weft/status.h>

/* wefti_opts_read() for another size than ours. */
weft_status_t wefti_opts_read_other(const void *given, void *out, size_t size, const char *what);

/* Copy options to *out, of `size` bytes, and set its size; given NULL: zero. what: the struct's name. WEFT_ERR_INVALID: the
 * size is wrong, or it uses what this version does not know. */
static inline weft_status_t wefti_opts_read(const void *given, void *out, size_t size, const char *what)
{
    size_t n = 0;
    if (given)
        memcpy(&n, given, sizeof n);
    if (__builtin_expect(n != size, 0))
        return wefti_opts_read_other(given, out, size, what);
    memcpy(out, given, size);
    return WEFT_OK;
}

/* Copy *ours, of `size` bytes, to a caller's struct of any version. *out begins with its own size, which stays; what is beyond
 * ours becomes zero. */
void wefti_opts_write(void *out, void *ours, size_t size);

#endif
