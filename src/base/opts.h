/* base/opts.h - options as their caller has them, whatever version it was compiled with, as ours.
 *
 * An options struct begins with its size, and zero means the default everywhere. So a smaller one is an older caller's, and the rest is zero; a
 * larger one is a newer caller's, and is accepted if what we do not know is zero: then nothing was asked for that we would not do.
 *
 * tests/wire/api_opts.c tries every function that takes options. */
#ifndef WEFTI_OPTS_H
#define WEFTI_OPTS_H

#include <stddef.h>
#include <string.h>
#include <weft/status.h>

/* The rest of wefti_opts_read(): what is not just our own. */
weft_status_t wefti_opts_read_other(const void *given, void *out, size_t size, const char *what);

/* Copy options to *out, of `size` bytes, which is then whole, its size set; given NULL: zero. what: the struct's name. WEFT_ERR_INVALID, with a
 * sentence: its size is nonsense, or it uses what we do not know. */
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

/* Give counters or facts to a caller of any version: *out begins with its size, which stays. Bytes beyond `size` become zero. */
void wefti_opts_write(void *out, void *ours, size_t size);

#endif
