/* base/map.c - open addressing with linear probing; deletion shifts the run back instead of leaving a tombstone.
 *
 * A cell is empty (value NULL) or taken. A key sits at its home cell or in the unbroken run of taken cells after it; put, take
 * and growing keep that true, and a lookup may therefore stop at the first empty cell. The table is at most three quarters
 * full, so a run is short and there always is an empty cell. It grows by doubling and never shrinks.
 *
 * Promise: get finds exactly what put left and take did not remove; a put that fails changes nothing.
 * tests/unit/base_map.c compares it with a plain array over random operations, with keys that collide. */
#include "base/map.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

enum { FIRST_CAP = 16 };

uint64_t wefti_hash_u64(uint64_t key)
{
    /* splitmix64's finaliser: one-to-one, and every input bit reaches the low bits the mask keeps */
    key += UINT64_C(0x9e3779b97f4a7c15);
    key = (key ^ (key >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    key = (key ^ (key >> 27)) * UINT64_C(0x94d049bb133111eb);
    return key ^ (key >> 31);
}

uint64_t wefti_hash_bytes(const void *p, size_t n)
{
    const unsigned char *at = p;
    uint64_t h = wefti_hash_u64(n), word;
    for (; n >= sizeof word; at += sizeof word, n -= sizeof word) {
        memcpy(&word, at, sizeof word);
        h = wefti_hash_u64(h ^ word);
    }
    if (n) {
        word = 0;
        memcpy(&word, at, n);
        h = wefti_hash_u64(h ^ word);
    }
    return h;
}

/* The cell that has the key, or the empty one where it would go. The table is allocated. */
static size_t find(const wefti_map_t *m, uint64_t key)
{
    size_t i = (size_t)wefti_hash_u64(key) & m->mask;
    while (m->cells[i].value && m->cells[i].key != key)
        i = (i + 1) & m->mask;
    return i;
}

static weft_status_t grow(wefti_map_t *m)
{
    size_t cap = m->mask ? (m->mask + 1) * 2 : FIRST_CAP;
    if (cap > SIZE_MAX / sizeof *m->cells)
        return WEFT_ERR_NOMEM;
    wefti_map_t bigger = {wefti_calloc(cap, sizeof *m->cells), m->n, cap - 1};
    if (!bigger.cells)
        return WEFT_ERR_NOMEM;
    for (size_t i = 0; m->mask && i <= m->mask; i++)
        if (m->cells[i].value)
            bigger.cells[find(&bigger, m->cells[i].key)] = m->cells[i];
    wefti_free(m->cells);
    *m = bigger;
    return WEFT_OK;
}

void wefti_map_free(wefti_map_t *m)
{
    wefti_free(m->cells);
    m->cells = NULL;
    m->n = m->mask = 0;
}

weft_status_t wefti_map_put(wefti_map_t *m, uint64_t key, void *value)
{
    assert(value);
    if (m->mask) {
        size_t i = find(m, key);
        if (m->cells[i].value) {
            m->cells[i].value = value;
            return WEFT_OK;
        }
    }
    if (!m->mask || (m->n + 1) * 4 > (m->mask + 1) * 3) {
        weft_status_t st = grow(m);
        if (st)
            return st;
    }
    wefti_map_cell_t *cell = &m->cells[find(m, key)];
    cell->key = key;
    cell->value = value;
    m->n++;
    return WEFT_OK;
}

void *wefti_map_get(const wefti_map_t *m, uint64_t key)
{
    return m->mask ? m->cells[find(m, key)].value : NULL;
}

void *wefti_map_take(wefti_map_t *m, uint64_t key)
{
    if (!m->mask)
        return NULL;
    size_t hole = find(m, key);
    void *value = m->cells[hole].value;
    if (!value)
        return NULL;
    for (size_t i = (hole + 1) & m->mask; m->cells[i].value; i = (i + 1) & m->mask) {
        size_t home = (size_t)wefti_hash_u64(m->cells[i].key) & m->mask;
        /* it may move back to the hole only if that is not before its home, going round */
        if (((i - home) & m->mask) >= ((i - hole) & m->mask)) {
            m->cells[hole] = m->cells[i];
            hole = i;
        }
    }
    m->cells[hole].value = NULL;
    m->n--;
    return value;
}

void *wefti_map_next(const wefti_map_t *m, size_t *at, uint64_t *key_out)
{
    while (m->mask && *at <= m->mask) {
        const wefti_map_cell_t *cell = &m->cells[(*at)++];
        if (cell->value) {
            if (key_out)
                *key_out = cell->key;
            return cell->value;
        }
    }
    return NULL;
}
