/* base/crc32c.h - CRC-32C (Castagnoli; RFC 3720): whether bytes were changed by accident.
 *
 * By the processor's own instruction where there is one (x86 with SSE4.2 and PCLMULQDQ; asked at run time), else by tables. Both
 * give the same. It finds each change of up to 3 bits in a row of bytes shorter than 256 MiB, and each that touches no more than
 * 32 bits in a row. It is no MAC: whoever changes bytes on purpose makes a new one. Any thread. */
#ifndef WEFTI_BASE_CRC32C_H
#define WEFTI_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of some bytes; `crc` is 0, or that of the bytes before them. */
uint32_t wefti_crc32c(uint32_t crc, const void *bytes, size_t n);
/* The same without the processor's instruction. */
uint32_t wefti_crc32c_table(uint32_t crc, const void *bytes, size_t n);

#endif
