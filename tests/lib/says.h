/* tests/lib/says.h - what a failed operation says. Needs test.h. */
#ifndef WEFT_TEST_SAYS_H
#define WEFT_TEST_SAYS_H

#include <string.h>
#include <weft/weft.h>

/* All of these words, in this order. */
#define SAYS(op, ...) says(op, __LINE__, (const char *const[]){__VA_ARGS__, NULL})
static inline void says(const weft_op_t *op, int line, const char *const *words)
{
    const char *text = weft_op_error(op), *at = text;
    for (int i = 0; words[i]; i++) {
        at = strstr(at, words[i]);
        if (!at)
            FAIL("line %d: \"%s\" does not say \"%s\"", line, text, words[i]);
    }
}

#endif
