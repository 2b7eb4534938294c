/* base/map.h - hash map from a 64-bit key to a pointer; open addressing, grows, deletes without tombstones. */
#ifndef WEFTI_MAP_H
#define WEFTI_MAP_H

#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

typedef struct wefti_map_cell {
    uint64_t key;
    void *value; /* NULL: empty */
} wefti_map_cell_t;

typedef struct wefti_map {
    wefti_map_cell_t *cells;
    size_t n, mask; /* mask 0: nothing allocated yet */
} wefti_map_t;

void wefti_map_free(wefti_map_t *m);
/* value is not NULL. Replaces. */
weft_status_t wefti_map_put(wefti_map_t *m, uint64_t key, void *value);
void *wefti_map_get(const wefti_map_t *m, uint64_t key); /* NULL: not there */
void *wefti_map_take(wefti_map_t *m, uint64_t key);      /* removes; what was there, or NULL */
/* Walk: start with *at = 0; returns NULL at the end. The map may not be changed during the walk. */
void *wefti_map_next(const wefti_map_t *m, size_t *at, uint64_t *key_out);
uint64_t wefti_hash_u64(uint64_t key);
uint64_t wefti_hash_bytes(const void *p, size_t n);

#endif
