/* base/slots.c - a table whose ids know which use of a slot they meant.
 *
 * A slot is FREE (even generation, value NULL, on the free list), TAKEN (odd generation), or RETIRED (generation 0, on no
 * list): a slot whose generation would wrap is never used again, since an id of its first use would be valid again. Add moves
 * FREE or a new slot to TAKEN, remove moves TAKEN to FREE or RETIRED. Retired slots do not count towards `max`.
 *
 * Promise: an id is never 0, never given twice, and finds its value from add to remove and nothing after.
 * tests/unit/base_slots.c compares it with a list of all ids ever given, and walks a slot into retirement. */
#include "base/slots.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"

enum { FIRST_CAP = 16 };

void wefti_slots_init(wefti_slots_t *s, uint32_t max)
{
    memset(s, 0, sizeof *s);
    s->max = max;
}

void wefti_slots_free(wefti_slots_t *s)
{
    wefti_free(s->at);
    wefti_slots_init(s, s->max);
}

static weft_status_t grow(wefti_slots_t *s)
{
    if (s->cap > UINT32_MAX / 2)
        return WEFT_ERR_LIMIT;
    uint32_t cap = s->cap ? s->cap * 2 : FIRST_CAP;
    wefti_slot_t *at = wefti_realloc(s->at, cap * sizeof *at);
    if (!at)
        return WEFT_ERR_NOMEM;
    s->at = at;
    s->cap = cap;
    return WEFT_OK;
}

weft_status_t wefti_slots_add_new(wefti_slots_t *s, void *value, uint64_t *id_out)
{
    assert(value);
    if (s->taken >= s->max)
        return WEFT_ERR_LIMIT;
    if (s->n == s->cap) {
        weft_status_t st = grow(s);
        if (st)
            return st;
    }
    uint32_t i = s->n++;
    s->at[i] = (wefti_slot_t){.value = value, .generation = 1};
    s->taken++;
    *id_out = UINT64_C(1) << 32 | i;
    return WEFT_OK;
}
