/* base/wild.h - bytes that a peer can still change: copied once, and only the copy is used.
 *
 * On shared memory a record is read in place, and its sender may write to it meanwhile. So nothing there is read twice: not to
 * check it and then to use it, nor by a compiler that loads again instead of keeping a value. A pointer to wefti_wild_t cannot
 * be dereferenced, only copied from.
 *
 * wefti_wild_bare() is for bytes that are passed on unseen: to a copy into the program's buffer, or to a handler that gets
 * them in place. tests/fault/conn_flips.c changes records between any two instructions of ours that touch them. */
#ifndef WEFTI_WILD_H
#define WEFTI_WILD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct wefti_wild wefti_wild_t; /* there is none: it has no fields, and no size */

static inline const wefti_wild_t *wefti_wild(const void *bytes) { return (const wefti_wild_t *)bytes; }
static inline const void *wefti_wild_bare(const wefti_wild_t *wild) { return (const void *)wild; }
/* What is behind the first n bytes. */
static inline const wefti_wild_t *wefti_wild_skip(const wefti_wild_t *wild, size_t n)
{
    return (const wefti_wild_t *)(const void *)((const uint8_t *)wefti_wild_bare(wild) + n);
}
/* The first byte. */
static inline uint8_t wefti_wild_u8(const wefti_wild_t *wild) { return *(const volatile uint8_t *)wefti_wild_bare(wild); }
/* The first n bytes. */
static inline void wefti_wild_take(void *to, const wefti_wild_t *wild, size_t n)
{
    memcpy(to, wefti_wild_bare(wild), n);
    __asm__ volatile("" : : : "memory"); /* whatever is loaded after this is not assumed to be what was copied */
}

#endif
