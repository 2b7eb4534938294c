/* base/utf8.c - UTF-8 as RFC 3629 has it: no longer form than needed, no surrogates, nothing beyond U+10FFFF.
 *
 * Promise: never a byte past the end is read; eight bytes of ASCII cost one comparison, since that is what most text is.
 * tests/unit/base_utf8.c. */
#include "base/utf8.h"

#include <string.h>

size_t wefti_utf8_char(const uint8_t *p, size_t n, uint32_t *c_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* shorter forms exist for what is below */
    size_t len = p[0] < 0x80 ? 1 : (p[0] & 0xe0) == 0xc0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : (p[0] & 0xf8) == 0xf0 ? 4 : 0;
    if (!len || len > n)
        return 0;
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *c_out = c;
    return len;
}

bool wefti_utf8_ok(const void *p, size_t n)
{
    const uint8_t *text = p;
    for (size_t at = 0, len; at < n; at += len) {
        uint64_t word;
        uint32_t c;
        len = sizeof word;
        if (n - at >= len) {
            memcpy(&word, text + at, len);
            if (!(word & UINT64_C(0x8080808080808080)))
                continue;
        }
        len = wefti_utf8_char(text + at, n - at, &c);
        if (!len)
            return false;
    }
    return true;
}
