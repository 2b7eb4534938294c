/* base/units.h - sizes, times and plain numbers as people write them. */
#ifndef WEFTI_UNITS_H
#define WEFTI_UNITS_H

#include <stdint.h>
#include <weft/status.h>

/* The whole string, or WEFT_ERR_INVALID. Size: digits and k, M, G, T (any case, "iB" may follow), powers of 1024. Time: digits
 * and ns, us, ms, s, m, h; "0" needs no unit. */
weft_status_t wefti_parse_size(const char *text, uint64_t *out);
weft_status_t wefti_parse_time(const char *text, uint64_t *ns_out);
weft_status_t wefti_parse_number(const char *text, uint64_t *out); /* 0..UINT32_MAX */

#endif
