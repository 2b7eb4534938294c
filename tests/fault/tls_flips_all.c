/* tests/fault/tls_flips_all.c - tls_flips.c with 2,000 changes, and with as much time as they take. FLIPS=5000 makes 10,000, half
 * of them for each proof: a quarter of an hour.
 *
 * ctest: long openssl timeout=3000 no-asan no-tsan (tls_flips runs there) */
#define TEST_SECONDS 7000
#define MANY 2000
#include "tls_flips.c"
