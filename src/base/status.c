/* base/status.c - names and sentences of statuses, from the one list in weft/status.h.
 *
 * Promise: every status of the list has both, no two share a name, and any other number gets the two words for unknown ones.
 * tests/unit/base_status.c. */
#include "base/status.h"

#include <weft/config.h>

#include "base/log.h"

const char *weft_status_name(weft_status_t status)
{
    switch ((int)status) {
#define NAME(name, value, text) \
    case (value): \
        return #name;
        WEFT_STATUS_LIST(NAME)
#undef NAME
    default:
        return "WEFT_ERR_?";
    }
}

const char *weft_status_text(weft_status_t status)
{
    switch ((int)status) {
#define TEXT(name, value, text) \
    case (value): \
        return text;
        WEFT_STATUS_LIST(TEXT)
#undef TEXT
    default:
        return "unknown status";
    }
}

bool wefti_status_known(int32_t number)
{
    switch (number) {
#define KNOWN(name, value, text) case (value):
        WEFT_STATUS_LIST(KNOWN)
#undef KNOWN
        return true;
    default:
        return false;
    }
}

weft_status_t wefti_status_told(int32_t number, const char *who, uint32_t *reason_out)
{
    if (wefti_status_known(number))
        return (weft_status_t)number;
    *reason_out = (uint32_t)0 - (uint32_t)number;
    wefti_info("%s failed with status %d, which version %s does not know", who, (int)number, WEFT_VERSION_STRING);
    return WEFT_ERR_REJECTED;
}
