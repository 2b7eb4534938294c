/* base/status.h - statuses that a peer of any version sends. */
#ifndef WEFTI_STATUS_H
#define WEFTI_STATUS_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/status.h>

/* Is it a status of this version? */
bool wefti_status_known(int32_t number);
/* The status of an operation as a peer sends it, 0 or less, as one of ours. One that this version does not know, because the
 * peer is newer, becomes WEFT_ERR_REJECTED, with its number without the sign in *reason_out (untouched otherwise), and the log
 * has both. who: "the owner of remote memory". */
weft_status_t wefti_status_told(int32_t number, const char *who, uint32_t *reason_out);

#endif
