/* store/mirror_layout.h - how a mirror's bytes lie in a member's block.
 *
 * Blocks of WEFT_MIRROR_BLOCK bytes, one behind the other. With checksums each is followed by a trailer: the checksum and the
 * version, 8 bytes each, little-endian. Block and trailer together are at most WEFT_RMA_WHOLE bytes, so that one access over
 * the checked path moves both, and is applied whole even where its poster dies in its middle. The last block is as long as the
 * others; what is behind the mirror's length is zero. A block that was never written has a trailer of zeros. */
#ifndef WEFTI_MIRROR_LAYOUT_H
#define WEFTI_MIRROR_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/mirror.h>

#define MIR_TRAILER 16u
#define MIR_STRIDE  (WEFT_MIRROR_BLOCK + MIR_TRAILER)
_Static_assert(MIR_STRIDE <= WEFT_RMA_WHOLE, "a block and its trailer are written whole");

/* The longest mirror: no offset in a member overflows. */
#define MIR_LEN_MAX (UINT64_C(1) << 56)

static inline uint32_t mir_stride(bool checksums) { return checksums ? MIR_STRIDE : WEFT_MIRROR_BLOCK; }
static inline uint64_t mir_blocks(uint64_t len) { return (len + WEFT_MIRROR_BLOCK - 1) / WEFT_MIRROR_BLOCK; }
static inline uint64_t mir_bytes(uint64_t len, bool checksums) { return mir_blocks(len) * mir_stride(checksums); }

/* Of the bytes of a block, its number and its version. Any change within 8 aligned bytes is found with certainty, any other one
 * but for one chance in 2^64. It is against faults and not against forgers: who may write a block may also write its checksum. */
uint64_t wefti_mirror_checksum(const void *data, uint64_t block, uint64_t version);
/* Write the trailer behind MIR_STRIDE - MIR_TRAILER bytes. */
void wefti_mirror_stamp(uint8_t *bytes, uint64_t block, uint64_t version);
/* Do the MIR_STRIDE bytes belong together and to this block? */
bool wefti_mirror_good(const uint8_t *bytes, uint64_t block);
uint64_t wefti_mirror_version(const uint8_t *bytes);

#endif
