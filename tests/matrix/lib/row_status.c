/* tests/matrix/lib/row_status.c - rows of weft/status.h. */
#include "row.h"

ROW(weft_status_name, ON_NOTHING)
{
    turn_text(t, weft_status_name(WEFT_ERR_PEER));
}

ROW(weft_status_text, ON_NOTHING)
{
    turn_text(t, weft_status_text(WEFT_ERR_PEER));
}

ROW(weft_last_error, ON_NOTHING)
{
    turn_text(t, weft_last_error());
}

ROW(weft_last_error_status, ON_NOTHING)
{
    turn_text(t, weft_status_name(weft_last_error_status()));
}

ROW(weft_fail, ON_NOTHING)
{
    weft_fail(WEFT_ERR_STATE, "row %d", 1);
    turn_text(t, weft_last_error());
}
