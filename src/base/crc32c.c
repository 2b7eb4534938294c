/* base/crc32c.c - CRC-32C by instruction or by tables. See crc32c.h.
 *
 * The instruction gives its result three cycles after it began, and can begin each cycle. So long inputs are three pieces beside
 * each other. The CRC of a piece becomes that of the piece and n zeroes after it by a multiplication with x^(8n) (carryless, and
 * reduced by the same instruction); then they are added. tests/unit/base_crc32c.c. */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* its highest power is the lowest bit */

/* --- by tables ---------------------------------------------------------------------------------------------------------- */

static uint32_t table[8][256]; /* [k][b]: of the byte b and k zeroes */

static void make_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][b] = crc;
    }
    for (uint32_t b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t wefti_crc32c_table(uint32_t crc, const void *bytes, size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *at = bytes;
    pthread_once(&once, make_table);
    crc = ~crc;
    for (; n >= 8; n -= 8, at += 8) {
        uint32_t a = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24];
        crc ^= table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    }
    for (; n; n--)
        crc = crc >> 8 ^ table[0][(crc ^ *at++) & 255];
    return ~crc;
}

/* --- by the instruction ------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <immintrin.h>

enum { LONG = 4096, SHORT = 256 }; /* bytes of each of three pieces */
/* x^(8n - 33) for n zeroes: multiplied with a CRC and reduced it is what the CRC becomes. */
#define AFTER_LONG 0x82f89c77
#define AFTER_2LONG 0x54a86326
#define AFTER_SHORT 0xb9e02b86
#define AFTER_2SHORT 0xdd7e3b0c

static inline uint64_t eight(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t times(uint64_t crc, uint64_t power)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)power), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

/* Of three pieces of n bytes each. */
__attribute__((target("sse4.2,pclmul"))) static inline uint64_t three(uint64_t a, const uint8_t *at, size_t n, uint64_t after,
                                                                      uint64_t after_2)
{
    uint64_t b = 0, c = 0;
    for (const uint8_t *end = at + n; at < end; at += 8) {
        a = _mm_crc32_u64(a, eight(at));
        b = _mm_crc32_u64(b, eight(at + n));
        c = _mm_crc32_u64(c, eight(at + 2 * n));
    }
    return c ^ _mm_crc32_u64(0, times(a, after_2) ^ times(b, after));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t n)
{
    uint64_t c = ~crc;
    for (; n >= 3 * LONG; n -= 3 * LONG, at += 3 * LONG)
        c = three(c, at, LONG, AFTER_LONG, AFTER_2LONG);
    for (; n >= 3 * SHORT; n -= 3 * SHORT, at += 3 * SHORT)
        c = three(c, at, SHORT, AFTER_SHORT, AFTER_2SHORT);
    for (; n >= 8; n -= 8, at += 8)
        c = _mm_crc32_u64(c, eight(at));
    for (; n; n--)
        c = _mm_crc32_u8((uint32_t)c, *at++);
    return ~(uint32_t)c;
}

uint32_t wefti_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    if (__builtin_expect(__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"), 1))
        return by_instruction(crc, bytes, n);
    return wefti_crc32c_table(crc, bytes, n);
}
#else
uint32_t wefti_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    return wefti_crc32c_table(crc, bytes, n);
}
#endif
