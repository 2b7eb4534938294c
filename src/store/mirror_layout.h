/* store/mirror_layout.h - how a mirror's bytes lie in a member's block.
 *
 * Units of WEFT_MIRROR_UNIT bytes follow each other. With checksums each is followed by a trailer: the checksum and the version,
 * 8 bytes each, little-endian. Unit and trailer together are at most WEFT_RMA_WHOLE bytes: one access over the checked path
 * moves both, and is applied whole even if the process that posted it dies meanwhile. The last unit is as long as the others;
 * what is beyond the mirror's length is zero. A unit that was never written has a trailer of zeros. */
#ifndef WEFTI_MIRROR_LAYOUT_H
#define WEFTI_MIRROR_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/mirror.h>

#define MIR_TRAILER 16u
#define MIR_STRIDE  (WEFT_MIRROR_UNIT + MIR_TRAILER)
_Static_assert(MIR_STRIDE <= WEFT_RMA_WHOLE, "a unit and its trailer are written whole");

/* The longest mirror: no offset in a member overflows. */
#define MIR_LEN_MAX (UINT64_C(1) << 56)

static inline uint32_t mir_stride(bool checksums) { return checksums ? MIR_STRIDE : WEFT_MIRROR_UNIT; }
static inline uint64_t mir_units(uint64_t len) { return (len + WEFT_MIRROR_UNIT - 1) / WEFT_MIRROR_UNIT; }
static inline uint64_t mir_bytes(uint64_t len, bool checksums) { return mir_units(len) * mir_stride(checksums); }

/* Of the bytes of a unit, its number and its version. Any change within 8 aligned bytes is found with certainty, any other one
 * but for one chance in 2^64. It is against faults and not against forgers: who may write a unit may also write its checksum. */
uint64_t wefti_mirror_checksum(const void *data, uint64_t unit, uint64_t version);
/* Write the trailer behind MIR_STRIDE - MIR_TRAILER bytes. */
void wefti_mirror_stamp(uint8_t *bytes, uint64_t unit, uint64_t version);
/* Do the MIR_STRIDE bytes belong together and to this unit? */
bool wefti_mirror_good(const uint8_t *bytes, uint64_t unit);
uint64_t wefti_mirror_version(const uint8_t *bytes);

#endif
