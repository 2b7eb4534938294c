/* base/slots.h - ids that are index + generation: (generation << 32 | index), never 0, and stale ids find nothing. */
#ifndef WEFTI_SLOTS_H
#define WEFTI_SLOTS_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/status.h>

typedef struct wefti_slot {
    void *value;
    uint32_t generation; /* odd while taken */
    uint32_t next_free;
} wefti_slot_t;

typedef struct wefti_slots {
    wefti_slot_t *at;
    uint32_t n, cap, max, first_free; /* first_free: index + 1; 0 none */
    uint32_t taken;
} wefti_slots_t;

void wefti_slots_init(wefti_slots_t *s, uint32_t max);
void wefti_slots_free(wefti_slots_t *s);
/* WEFT_ERR_LIMIT when `max` are taken, WEFT_ERR_NOMEM. */
weft_status_t wefti_slots_add(wefti_slots_t *s, void *value, uint64_t *id_out);
void wefti_slots_remove(wefti_slots_t *s, uint64_t id);
static inline void *wefti_slots_get(const wefti_slots_t *s, uint64_t id)
{
    uint32_t i = (uint32_t)id, gen = (uint32_t)(id >> 32);
    return i < s->n && s->at[i].generation == gen ? s->at[i].value : 0;
}
/* Was this ever an id, and is none any more? Then what is said of it was said before the end was known. */
static inline bool wefti_slots_used_up(const wefti_slots_t *s, uint64_t id)
{
    uint32_t i = (uint32_t)id, gen = (uint32_t)(id >> 32);
    return i < s->n && (gen & 1) && gen < s->at[i].generation;
}
/* Replace the value of a taken id. */
static inline void wefti_slots_put(wefti_slots_t *s, uint64_t id, void *value) { s->at[(uint32_t)id].value = value; }

#endif
