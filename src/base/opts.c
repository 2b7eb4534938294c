/* base/opts.c - options of callers that were compiled with another version. */
#include "base/opts.h"

#include <weft/config.h>

#include "base/log.h"

#define BEYOND 4096u /* bytes beyond ours: what says more has no size, but whatever was in memory there */

weft_status_t wefti_opts_read_other(const void *given, void *out, size_t size, const char *what)
{
    size_t n = 0;
    memset(out, 0, size);
    if (given) {
        memcpy(&n, given, sizeof n);
        if (n < sizeof n || n > size + BEYOND)
            return wefti_fail(WEFT_ERR_INVALID, "%s.size is %zu: begin with its _INIT", what, n);
        for (size_t i = size; i < n; i++)
            if (((const char *)given)[i])
                return wefti_fail(WEFT_ERR_INVALID, "%s uses byte %zu, which version %s does not know", what, i,
                                  WEFT_VERSION_STRING);
        memcpy(out, given, n < size ? n : size);
    }
    memcpy(out, &size, sizeof size);
    return WEFT_OK;
}

void wefti_opts_write(void *out, void *ours, size_t size)
{
    size_t n;
    memcpy(&n, out, sizeof n);
    memcpy(ours, &n, sizeof n);
    if (n > size)
        memset((char *)out + size, 0, n - size);
    memcpy(out, ours, n < size ? n : size);
}
