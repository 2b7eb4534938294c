/* base/status.c - names and sentences of statuses, from the one list in weft/status.h.
 *
 * Promise: every status of the list has both, no two share a name, and any other number gets the two words for unknown ones.
 * tests/unit/base_status.c holds us to it. */
#include <weft/status.h>

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
