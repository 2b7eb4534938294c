/* base/version.c - which library this is, for programs that were compiled against another.
 *
 * Promise: the text is that of the header this file was compiled with, and agrees with its three numbers.
 * tests/unit/base_status.c. */
#include <weft/config.h>

const char *weft_version(void)
{
    return WEFT_VERSION_STRING;
}
