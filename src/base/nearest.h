/* base/nearest.h - how far apart two words are, for "did you mean". */
#ifndef WEFTI_NEAREST_H
#define WEFTI_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

/* Damerau-Levenshtein distance (a swap of two neighbours is one step), case aside. SIZE_MAX if a word is longer than 63. */
size_t wefti_word_distance(const char *a, const char *b);
/* Is that so near to `b` that it may be a typing error: at most one edit, and one more per four letters of b. */
bool wefti_word_near(size_t distance, const char *b);

#endif
