/* store/mirror_layout.c - checksums of a mirror's units.
 *
 * Four lanes take turns at the words of the unit. Each step of a lane (xor a word, multiply by an odd number, rotate) can be
 * undone, and so can each step that joins the lanes. Hence two units that differ in one word never have the same checksum. The
 * seed of the lanes is made of the unit's number and version, so that a good unit in a wrong place is not good there.
 *
 * It is not cryptographic, since it keeps nobody out (see mirror_layout.h). It is computed for every 4 KiB that move, and costs
 * less than the copy of those bytes.
 *
 * tests/unit/store_mirror_layout.c flips every bit. */
#include "store/mirror_layout.h"

#include <string.h>

#define K0 UINT64_C(0x9e3779b97f4a7c15)
#define K1 UINT64_C(0xbf58476d1ce4e5b9)
#define K2 UINT64_C(0x94d049bb133111eb)
#define K3 UINT64_C(0xd6e8feb86659fd93)

static inline uint64_t word(const uint8_t *at)
{
    uint64_t w;
    memcpy(&w, at, sizeof w);
    return w;
}

static inline uint64_t turn(uint64_t v, unsigned by)
{
    return v << by | v >> (64 - by);
}

static inline uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 32) * K3;
    v = (v ^ v >> 29) * K1;
    return v ^ v >> 32;
}

uint64_t wefti_mirror_checksum(const void *data, uint64_t unit, uint64_t version)
{
    const uint8_t *at = (const uint8_t *)data;
    uint64_t seed = mix(mix(unit + K0) ^ version);
    uint64_t a = seed, b = seed ^ K1, c = seed ^ K2, d = seed ^ K3;
    for (size_t i = 0; i < WEFT_MIRROR_UNIT; i += 32, at += 32) {
        a = turn((a ^ word(at)) * K0, 31);
        b = turn((b ^ word(at + 8)) * K1, 29);
        c = turn((c ^ word(at + 16)) * K2, 27);
        d = turn((d ^ word(at + 24)) * K3, 33);
    }
    uint64_t h = mix(a);
    h = mix(h ^ b);
    h = mix(h ^ c);
    return mix(h ^ d);
}

void wefti_mirror_stamp(uint8_t *bytes, uint64_t unit, uint64_t version)
{
    uint64_t trailer[2] = {wefti_mirror_checksum(bytes, unit, version), version};
    memcpy(bytes + WEFT_MIRROR_UNIT, trailer, MIR_TRAILER);
}

uint64_t wefti_mirror_version(const uint8_t *bytes)
{
    return word(bytes + WEFT_MIRROR_UNIT + 8);
}

bool wefti_mirror_good(const uint8_t *bytes, uint64_t unit)
{
    uint64_t sum = word(bytes + WEFT_MIRROR_UNIT), version = wefti_mirror_version(bytes), any = sum;
    if (version)
        return sum == wefti_mirror_checksum(bytes, unit, version);
    for (size_t i = 0; i < WEFT_MIRROR_UNIT; i += 8) /* never written */
        any |= word(bytes + i);
    return !any;
}
