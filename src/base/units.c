/* base/units.c - sizes, times and plain numbers as people write them.
 *
 * Whole numbers only, no blanks, no sign: "64k" is 65536, "50ms" is 50000000. A time without a unit is refused, because half of
 * its readers would take it for seconds and half for milliseconds; 0 is 0 in any of them.
 *
 * Promise: the whole string is read or WEFT_ERR_INVALID says what is wrong with it; nothing wraps around.
 * tests/unit/base_config.c and tests/fuzz/config.c hold us to it. */
#include <string.h>

#include "base/ascii.h"
#include "base/log.h"
#include "base/units.h"

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit_t;

/* Digits at the start of text: their value (UINT64_MAX if it is that or more), and what follows them. NULL: no digits. */
static const char *digits(const char *text, uint64_t *out)
{
    uint64_t v = 0;
    const char *at = text;
    for (; wefti_is_digit(*at); at++) {
        uint64_t d = (uint64_t)(*at - '0');
        v = v > (UINT64_MAX - d) / 10 ? UINT64_MAX : v * 10 + d;
    }
    *out = v;
    return at == text ? NULL : at;
}

/* UINT64_MAX is left out of what fits: it means forever and automatic. */
static weft_status_t scale(const char *text, uint64_t v, uint64_t factor, uint64_t *out)
{
    if (v > (UINT64_MAX - 1) / factor)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is too large: it does not fit in 64 bits", text);
    *out = v * factor;
    return WEFT_OK;
}

weft_status_t wefti_parse_size(const char *text, uint64_t *out)
{
    static const char letters[] = "kmgt";
    uint64_t v;
    const char *unit = digits(text, &v);
    if (!unit)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is not a size such as 4096, 64k or 1M", text);
    if (!*unit)
        return scale(text, v, 1, out);
    const char *letter = strchr(letters, wefti_lower(*unit));
    if (!letter || (unit[1] && strcmp(unit + 1, "iB")))
        return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is not a size: its unit \"%.40s\" is none of k, M, G, T", text, unit);
    return scale(text, v, UINT64_C(1024) << (10 * (letter - letters)), out);
}

weft_status_t wefti_parse_time(const char *text, uint64_t *ns_out)
{
    static const unit_t units[] = {
        {"ns", 1},
        {"us", UINT64_C(1000)},
        {"ms", UINT64_C(1000000)},
        {"s", UINT64_C(1000000000)},
        {"m", 60 * UINT64_C(1000000000)},
        {"h", 3600 * UINT64_C(1000000000)},
    };
    uint64_t v;
    const char *unit = digits(text, &v);
    if (!unit)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is not a time such as 5s, 50ms or 10us", text);
    if (!*unit && !v)
        return scale(text, 0, 1, ns_out);
    if (!*unit)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is not a time: it has no unit (ns, us, ms, s, m, h)", text);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (!strcmp(unit, units[i].name))
            return scale(text, v, units[i].factor, ns_out);
    return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is not a time: its unit \"%.40s\" is none of ns, us, ms, s, m, h", text, unit);
}

weft_status_t wefti_parse_number(const char *text, uint64_t *out)
{
    uint64_t v;
    const char *rest = digits(text, &v);
    if (!rest || *rest || v > UINT32_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.40s\" is not a number from 0 to 4294967295", text);
    *out = v;
    return WEFT_OK;
}
