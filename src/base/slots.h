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
weft_status_t wefti_slots_add_new(wefti_slots_t *s, void *value, uint64_t *id_out); /* no slot is free */
/* WEFT_ERR_LIMIT when `max` are taken, WEFT_ERR_NOMEM. */
static inline weft_status_t wefti_slots_add(wefti_slots_t *s, void *value, uint64_t *id_out)
{
    uint32_t i = s->first_free - 1;
    if (__builtin_expect(!s->first_free || s->taken >= s->max, 0))
        return wefti_slots_add_new(s, value, id_out);
    wefti_slot_t *slot = &s->at[i];
    s->first_free = slot->next_free;
    s->taken++;
    slot->value = value;
    slot->generation++;
    *id_out = (uint64_t)slot->generation << 32 | i;
    return WEFT_OK;
}
static inline void *wefti_slots_get(const wefti_slots_t *s, uint64_t id)
{
    uint32_t i = (uint32_t)id, gen = (uint32_t)(id >> 32);
    return i < s->n && s->at[i].generation == gen ? s->at[i].value : 0;
}
/* Nothing if it is no id. */
static inline void wefti_slots_remove(wefti_slots_t *s, uint64_t id)
{
    uint32_t i = (uint32_t)id;
    if (!wefti_slots_get(s, id))
        return;
    wefti_slot_t *slot = &s->at[i];
    slot->value = 0;
    slot->generation++;
    s->taken--;
    if (__builtin_expect(!slot->generation, 0))
        return; /* retired */
    slot->next_free = s->first_free;
    s->first_free = i + 1;
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
