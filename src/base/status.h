/* base/status.h - statuses that a peer tells of, whatever version it is. */
#ifndef WEFTI_STATUS_H
#define WEFTI_STATUS_H

#include <stdint.h>
#include <weft/status.h>

/* How a peer says an operation ended, 0 or less: as a status of ours. A failure that this version does not know, for the peer
 * is newer, is a failure of that operation all the same, and nothing more: WEFT_ERR_REJECTED, *reason_out (untouched
 * otherwise) its number without the sign, and the log has both. who: "the owner of remote memory". */
weft_status_t wefti_status_told(int32_t number, const char *who, uint32_t *reason_out);

#endif
