/* tests/lib/cuda/space.c - addresses of the devices made of paper, sets of ranges, and handles.
 *
 * All device memory of a process lies in one reserved range, and is mapped a second time at a fixed distance: this driver uses
 * only the second mapping (the view), so that the first can be one that crashes. What was freed last is given out first. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "parts.h"

/* --- sets of ranges ------------------------------------------------------------------------------------------------------- */

size_t pp_find_from(const ranges_t *in, const void *p)
{
    size_t low = 0, high = in->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (in->at[mid]->base + in->at[mid]->n > (const uint8_t *)p)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

range_t *pp_find(const ranges_t *in, const void *p)
{
    size_t i = pp_find_from(in, p);
    return i < in->count && in->at[i]->base <= (const uint8_t *)p ? in->at[i] : NULL;
}

bool pp_overlaps(const ranges_t *in, const void *p, size_t n)
{
    size_t i = pp_find_from(in, p);
    return i < in->count && (uintptr_t)in->at[i]->base < (uintptr_t)p + n;
}

void pp_insert(ranges_t *in, range_t *r)
{
    if (in->count == in->room) {
        in->room = in->room ? 2 * in->room : 64;
        in->at = realloc(in->at, in->room * sizeof *in->at);
        if (!in->at)
            abort();
    }
    size_t i = pp_find_from(in, r->base);
    memmove(in->at + i + 1, in->at + i, (in->count - i) * sizeof *in->at);
    in->at[i] = r;
    in->count++;
}

void pp_remove(ranges_t *in, range_t *r)
{
    size_t i = pp_find_from(in, r->base);
    if (i == in->count || in->at[i] != r)
        abort();
    in->count--;
    memmove(in->at + i, in->at + i + 1, (in->count - i) * sizeof *in->at);
}

/* --- the addresses of devices --------------------------------------------------------------------------------------------- */

#define SPACE ((size_t)64 << 30)
enum { RECENT = 64 };
static uint8_t *space; /* its view is right behind it */
static ranges_t taken;
static range_t recent[RECENT]; /* freed, the last at `recent_at` */
static unsigned recent_at;

size_t pp_page(size_t n)
{
    size_t page = (size_t)getpagesize();
    return (n + page - 1) & ~(page - 1);
}

static bool start(void)
{
    if (!space) {
        void *p = mmap(NULL, 2 * SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        space = p == MAP_FAILED ? NULL : p;
    }
    return space;
}

static bool is_free(const uint8_t *p, size_t n)
{
    return p >= space && n <= SPACE && (size_t)(p - space) <= SPACE - n && !pp_overlaps(&taken, p, n);
}

static uint8_t *aligned(uint8_t *p, size_t align)
{
    return p + (-(uintptr_t)p & (align - 1));
}

/* The first gap it fits in. */
static uint8_t *first_fit(size_t n, size_t align)
{
    uint8_t *p = aligned(space, align);
    for (size_t i = 0; i < taken.count; i++) {
        if (taken.at[i]->base >= p && (size_t)(taken.at[i]->base - p) >= n)
            break;
        p = aligned(taken.at[i]->base + taken.at[i]->n, align);
    }
    return is_free(p, n) ? p : NULL;
}

void *pp_space_take(size_t n, size_t align, void *hint)
{
    if (n > SPACE / 2 || !start())
        return NULL;
    n = pp_page(n) + pp_page(1); /* with a page behind it that is nobody's */
    align = align < pp_page(1) ? pp_page(1) : align;
    uint8_t *p = hint && aligned(hint, align) == hint && is_free(hint, n) ? hint : NULL;
    for (unsigned i = 0; i < RECENT && !p; i++) {
        const range_t *r = &recent[(recent_at - i) % RECENT];
        if (r->n == n && aligned(r->base, align) == r->base && is_free(r->base, n))
            p = r->base;
    }
    if (!p)
        p = first_fit(n, align);
    if (p) {
        range_t *r = pp_new(sizeof *r);
        *r = (range_t){p, n};
        pp_insert(&taken, r);
    }
    return p;
}

void pp_space_give(void *base)
{
    range_t *r = pp_find(&taken, base);
    pp_remove(&taken, r);
    recent[++recent_at % RECENT] = *r;
    free(r);
}

bool pp_space_has(const void *p)
{
    return space && (const uint8_t *)p >= space && (const uint8_t *)p < space + SPACE;
}

uint8_t *pp_view(const void *p)
{
    return space + SPACE + ((const uint8_t *)p - space);
}

bool pp_space_map(void *base, size_t n, int fd, bool cpu)
{
    n = pp_page(n);
    if (mmap(base, n, cpu || !pp_strict ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return false;
    if (mmap(pp_view(base), n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
        return true;
    pp_space_unmap(base, n);
    return false;
}

void pp_space_unmap(void *base, size_t n)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    n = pp_page(n);
    if (mmap(base, n, PROT_NONE, flags, -1, 0) == MAP_FAILED || mmap(pp_view(base), n, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        abort();
}

/* --- handles: of streams, events, physical memory ------------------------------------------------------------------------- */

typedef struct entry {
    void *object, *handle;
    int kind;
    uint32_t generation;
    size_t next_free; /* an index + 1 */
} entry_t;

static entry_t *entries;
static size_t entry_count, entry_room, first_free;

static size_t index_of(const void *handle)
{
    return (uintptr_t)handle >> 8 & 0xffffff;
}

void *pp_handle_new(int kind, void *object)
{
    if (!first_free) {
        if (entry_count == entry_room) {
            entry_room = entry_room ? 2 * entry_room : 64;
            entries = realloc(entries, entry_room * sizeof *entries);
            if (!entries)
                abort();
        }
        entries[entry_count++] = (entry_t){0};
        first_free = entry_count;
    }
    size_t i = first_free - 1;
    first_free = entries[i].next_free;
    uint32_t generation = entries[i].generation + 1;
    uintptr_t handle = (uintptr_t)generation << 32 | (uintptr_t)i << 8 | (uintptr_t)kind;
    entries[i] = (entry_t){object, (void *)handle, kind, generation, 0};
    return entries[i].handle;
}

void *pp_handle_get(int kind, const void *handle)
{
    size_t i = index_of(handle);
    return i < entry_count && handle && entries[i].handle == handle && entries[i].kind == kind ? entries[i].object : NULL;
}

void pp_handle_drop(const void *handle)
{
    size_t i = index_of(handle);
    entries[i].object = entries[i].handle = NULL;
    entries[i].next_free = first_free;
    first_free = i + 1;
}

void *pp_handle_next(int kind, size_t *i)
{
    for (; *i < entry_count; ++*i)
        if (entries[*i].handle && entries[*i].kind == kind)
            return entries[(*i)++].handle;
    return NULL;
}
