/* base/nearest.c - Damerau-Levenshtein distance.
 *
 * The restricted form (optimal string alignment): no substring is edited twice. For typing errors the two forms agree.
 *
 * Promise: symmetric, zero exactly for words that are equal but for case, allocates nothing.
 * tests/unit/base_config.c. */
#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

#include "base/ascii.h"

enum { WORD_MAX_LEN = 63 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t wefti_word_distance(const char *a, const char *b)
{
    size_t rows[3][WORD_MAX_LEN + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    size_t a_n = strnlen(a, WORD_MAX_LEN + 1), b_n = strnlen(b, WORD_MAX_LEN + 1);
    if (a_n > WORD_MAX_LEN || b_n > WORD_MAX_LEN)
        return SIZE_MAX;
    memset(before, 0, sizeof rows[0]);
    for (size_t j = 0; j <= b_n; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_n; i++) {
        size_t *spare = before;
        before = above;
        above = row;
        row = spare;
        row[0] = i;
        for (size_t j = 1; j <= b_n; j++) {
            char x = wefti_lower(a[i - 1]), y = wefti_lower(b[j - 1]);
            row[j] = least(least(above[j] + 1, row[j - 1] + 1), above[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == wefti_lower(b[j - 2]) && y == wefti_lower(a[i - 2]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return row[b_n];
}

bool wefti_word_near(size_t distance, const char *b)
{
    return distance <= 1 + strlen(b) / 4;
}
