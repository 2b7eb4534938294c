/* base/rarely.c - see rarely.h.
 *
 * A table of a few kinds. When it is full, the kind that was unused for longest is forgotten, and counts as never logged.
 * tests/unit/base_rarely.c. */
#include "base/rarely.h"

bool wefti_rarely_may(wefti_rarely_t *r, uint64_t kind, uint64_t now, uint64_t *left_out_out)
{
    struct wefti_rarely_kind *k = &r->of[0];
    r->asked++;
    for (int i = 0; i < WEFTI_RARELY_KINDS; i++) {
        struct wefti_rarely_kind *it = &r->of[i];
        if (it->asked && it->kind == kind) {
            it->asked = r->asked;
            if (now - it->said_at < WEFTI_RARELY_NS) {
                it->left_out++;
                return false;
            }
            *left_out_out = it->left_out;
            it->said_at = now;
            it->left_out = 0;
            return true;
        }
        if (it->asked < k->asked)
            k = it;
    }
    *k = (struct wefti_rarely_kind){.kind = kind, .said_at = now, .asked = r->asked};
    *left_out_out = 0;
    return true;
}

uint64_t wefti_rarely_text(const char *text)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *text; text++)
        if (*text < '0' || *text > '9')
            h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return h;
}
