/* tests/lib/fakedev.c - see fakedev.h. */
#include "fakedev.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "must.h"

#define RANGES 4096

typedef struct range {
    uint8_t *base;
    size_t n;
    uint8_t key;
} range_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range_t ranges[RANGES];
static size_t n_ranges;
static uint64_t copies, copies_left = UINT64_MAX;
static uint8_t last_key = 0x5a;

static void broken(const char *what, const void *p, size_t n)
{
    fprintf(stderr, "fakedev: %s: %zu bytes at %p\n", what, n, p);
    abort();
}

/* The allocation an address is in; the lock is held. */
static range_t *find(const void *p)
{
    const uint8_t *at = p;
    for (size_t i = 0; i < n_ranges; i++)
        if (at >= ranges[i].base && at < ranges[i].base + ranges[i].n)
            return &ranges[i];
    return NULL;
}

/* The key of a side of a copy; 0 for memory that is not ours. */
static uint8_t key_of(const void *p, size_t n)
{
    const range_t *r = find(p);
    if (!r)
        return 0;
    if (n > r->n - (size_t)((const uint8_t *)p - r->base))
        broken("a copy goes past the end of its allocation", p, n);
    return r->key;
}

static void move(void *dst, uint8_t dst_key, const void *src, uint8_t src_key, size_t n)
{
    uint8_t *to = dst;
    const uint8_t *from = src, key = dst_key ^ src_key;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] ^ key;
}

static weft_status_t dev_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    void *p;
    weft_status_t st = WEFT_OK;
    (void)kind;
    if (!n)
        broken("an allocation of nothing", NULL, n);
    if (posix_memalign(&p, 64, n))
        return WEFT_ERR_NOMEM;
    pthread_mutex_lock(&lock);
    if (n_ranges == RANGES) {
        st = WEFT_ERR_NOMEM;
    } else {
        last_key = last_key == 0xff ? 1 : (uint8_t)(last_key + 1);
        ranges[n_ranges++] = (range_t){p, n, last_key};
    }
    pthread_mutex_unlock(&lock);
    if (st)
        free(p);
    else
        *ptr_out = p;
    return st;
}

static void dev_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind;
    pthread_mutex_lock(&lock);
    range_t *r = find(ptr);
    if (!r || r->base != ptr || r->n != n)
        broken("freed what was not allocated so", ptr, n);
    *r = ranges[--n_ranges];
    pthread_mutex_unlock(&lock);
    free(ptr);
}

static weft_status_t dev_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    (void)kind;
    pthread_mutex_lock(&lock);
    uint8_t to = key_of(dst, n), from = key_of(src, n);
    bool fails = !copies_left;
    copies++;
    copies_left -= copies_left && copies_left != UINT64_MAX;
    pthread_mutex_unlock(&lock);
    if (fails)
        return WEFT_ERR_SYSTEM;
    move(dst, to, src, from, n);
    return WEFT_OK;
}

static bool dev_owns(const weft_mem_kind_t *kind, const void *ptr)
{
    (void)kind;
    pthread_mutex_lock(&lock);
    bool owns = find(ptr) != NULL;
    pthread_mutex_unlock(&lock);
    return owns;
}

static const weft_mem_kind_t the_kind = {
    .size = sizeof(weft_mem_kind_t),
    .name = "fakedev",
    .alloc = dev_alloc,
    .free = dev_free,
    .copy = dev_copy,
    .owns = dev_owns,
};

const weft_mem_kind_t *fakedev(void)
{
    return &the_kind;
}

void fakedev_install(void)
{
    must(weft_mem_kind_add(&the_kind), "adding fakedev");
}

void fakedev_remove(void)
{
    must(weft_mem_kind_remove(&the_kind), "removing fakedev");
}

void fakedev_peek(const void *p, void *host, size_t n)
{
    pthread_mutex_lock(&lock);
    uint8_t key = key_of(p, n);
    if (!key && n)
        broken("peek at memory that is not its own", p, n);
    pthread_mutex_unlock(&lock);
    move(host, 0, p, key, n);
}

void fakedev_poke(void *p, const void *host, size_t n)
{
    pthread_mutex_lock(&lock);
    uint8_t key = key_of(p, n);
    if (!key && n)
        broken("poke at memory that is not its own", p, n);
    pthread_mutex_unlock(&lock);
    move(p, key, host, 0, n);
}

size_t fakedev_live(void)
{
    pthread_mutex_lock(&lock);
    size_t n = n_ranges;
    pthread_mutex_unlock(&lock);
    return n;
}

uint64_t fakedev_copies(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = copies;
    pthread_mutex_unlock(&lock);
    return n;
}

void fakedev_fail_copies(uint64_t after)
{
    pthread_mutex_lock(&lock);
    copies_left = after;
    pthread_mutex_unlock(&lock);
}
