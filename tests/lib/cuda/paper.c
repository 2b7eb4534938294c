/* tests/lib/cuda/paper.c - see paper.h. The functions and numbers are those of CUDA's driver interface, as far as
 * src/mem/cuda.h names it. */
#include "paper.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* they are looked up by name, and declared in cuda.c in that file's own words */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC visibility push(default)

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713
};
enum { DEVICES = 2, BLOCKS = 256, DEPTH = 16, KEY = 0x3c };

typedef struct context {
    struct context *next;
    int device, alive;
    unsigned long long id;
} context_t;

typedef struct block {
    uint8_t *base;
    size_t n;
    context_t *ctx;
    int device, managed, no_context;
} block_t;

typedef struct stream {
    struct stream *next;
    context_t *ctx;
    int alive, waiting;
    uint8_t *dst;
    const uint8_t *src;
    size_t n;
} stream_t;

paper_t paper = {.lock = PTHREAD_MUTEX_INITIALIZER};
static context_t *primary[DEVICES], *contexts; /* all there ever were: whoever leaves one behind is not to blame */
static stream_t *streams;
static block_t blocks[BLOCKS], pins[BLOCKS];
static pid_t started;
static _Thread_local context_t *stack[DEPTH];
static _Thread_local int depth;

/* Begin a call: the lock is held until it ends. */
static int begin(void)
{
    if (started && started != getpid()) {
        fputs("paper: called in a child of the process that started it\n", stderr);
        abort();
    }
    pthread_mutex_lock(&paper.lock);
    return started ? OK : NOT_INITIALIZED;
}

static int end(int r)
{
    pthread_mutex_unlock(&paper.lock);
    return r;
}

static context_t *current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

/* What a call without a usable context ends with. */
static int need_context(void)
{
    return !current() ? INVALID_CONTEXT : current()->alive ? OK : CONTEXT_IS_DESTROYED;
}

static block_t *find(block_t *in, const void *p)
{
    for (int i = 0; i < BLOCKS; i++)
        if (in[i].base && (const uint8_t *)p >= in[i].base && (const uint8_t *)p < in[i].base + in[i].n)
            return &in[i];
    return NULL;
}

static block_t *slot(block_t *in)
{
    for (int i = 0; i < BLOCKS; i++)
        if (!in[i].base)
            return &in[i];
    abort();
}

/* --- starting, devices, contexts ------------------------------------------------------------------------------------------ */

int cuInit(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&paper.lock);
    paper.inits++;
    if (!paper.init_fails)
        started = getpid();
    return end(paper.init_fails);
}

int cuGetErrorName(int error, const char **out)
{
    static const struct {
        int error;
        const char *name;
    } names[] = {{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
                 {999, "CUDA_ERROR_UNKNOWN"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *out = names[i].name;
            return OK;
        }
    *out = NULL;
    return INVALID_VALUE;
}

int cuDeviceGetCount(int *out)
{
    int r = begin();
    *out = paper.no_devices ? 0 : DEVICES;
    return end(r);
}

int cuDeviceGet(int *out, int ordinal)
{
    int r = begin();
    *out = ordinal;
    return end(r ? r : ordinal < 0 || ordinal >= DEVICES ? INVALID_DEVICE : OK);
}

int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    int r = begin();
    (void)device;
    *out = attribute == 83 && !paper.no_managed;
    return end(r);
}

/* For the test: contexts that a program made itself. */
context_t *paper_context_new(int device)
{
    static unsigned long long last;
    context_t *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        abort();
    *ctx = (context_t){.next = contexts, .device = device, .alive = 1, .id = ++last};
    contexts = ctx;
    paper.contexts++;
    return ctx;
}

void paper_context_destroy(context_t *ctx)
{
    ctx->alive = 0;
}

int cuDevicePrimaryCtxRetain(void **out, int device)
{
    int r = begin();
    if (!r && !primary[device])
        primary[device] = paper_context_new(device);
    *out = primary[device];
    return end(r);
}

int cuCtxGetCurrent(void **out)
{
    int r = begin();
    *out = current();
    return end(r);
}

#ifndef PAPER_OLD
int cuCtxGetId(context_t *ctx, unsigned long long *out)
{
    int r = begin();
    *out = ctx->id;
    return end(r);
}
#endif

int cuCtxGetDevice(int *out)
{
    int r = begin();
    if (!r)
        r = need_context();
    if (!r)
        *out = current()->device;
    return end(r);
}

int cuCtxPushCurrent_v2(context_t *ctx)
{
    int r = begin();
    if (!r)
        r = paper.push_fails ? paper.push_fails : !ctx->alive ? CONTEXT_IS_DESTROYED : depth == DEPTH ? INVALID_CONTEXT : OK;
    if (!r)
        stack[depth++] = ctx;
    return end(r);
}

int cuCtxPopCurrent_v2(void **out)
{
    int r = begin();
    if (!r && !depth)
        r = INVALID_CONTEXT;
    if (!r)
        *out = stack[--depth];
    return end(r);
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

static int allocate(uintptr_t *out, size_t n, int managed)
{
    int r = begin();
    void *p;
    if (!r)
        r = need_context();
    if (!r && paper.alloc_fails)
        r = paper.alloc_fails;
    if (!r && posix_memalign(&p, 512, n))
        r = OUT_OF_MEMORY;
    if (!r) {
        *slot(blocks) = (block_t){p, n, current(), current()->device, managed, paper.no_context};
        paper.live++;
        paper.alloc_device = current()->device;
        *out = (uintptr_t)p;
    }
    return end(r);
}

int cuMemAlloc_v2(uintptr_t *out, size_t n)
{
    return allocate(out, n, 0);
}

#ifndef PAPER_OLD
int cuMemAllocManaged(uintptr_t *out, size_t n, unsigned flags)
{
    return flags == 1 ? allocate(out, n, 1) : INVALID_VALUE;
}
#endif

/* Is the current context one that may touch this memory? */
static int fits(const block_t *b)
{
    return b->no_context ? current()->device == b->device : current() == b->ctx;
}

int cuMemFree_v2(uintptr_t ptr)
{
    int r = begin();
    block_t *b = find(blocks, (void *)ptr);
    if (!r)
        r = need_context();
    if (!r && (!b || b->base != (void *)ptr))
        r = INVALID_VALUE;
    if (!r && !fits(b))
        r = INVALID_CONTEXT;
    if (!r) {
        free(b->base);
        b->base = NULL;
        paper.live--;
    }
    return end(r);
}

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
    int r = begin();
    if (!r)
        r = need_context();
    if (!r && paper.register_fails)
        r = paper.register_fails;
    if (!r && flags != 1)
        r = INVALID_VALUE;
    for (int i = 0; i < BLOCKS && !r; i++)
        if (pins[i].base && pins[i].base < (uint8_t *)p + n && (uint8_t *)p < pins[i].base + pins[i].n)
            r = ALREADY_REGISTERED;
    if (!r) {
        *slot(pins) = (block_t){p, n, current(), current()->device, 0, 0};
        paper.registered++;
        paper.registers++;
        paper.registered_bytes += n;
    }
    return end(r);
}

int cuMemHostUnregister(void *p)
{
    int r = begin();
    block_t *b = find(pins, p);
    if (!r)
        r = need_context();
    if (!r && (!b || b->base != p))
        r = NOT_REGISTERED;
    if (!r && b->ctx != current())
        r = INVALID_CONTEXT;
    if (!r) {
        paper.registered--;
        paper.registered_bytes -= b->n;
        b->base = NULL;
    }
    return end(r);
}

/* One attribute of an address; INVALID_VALUE where it has none. */
static int attribute_of(void *out, int attribute, const void *p)
{
    const block_t *b = find(blocks, p), *pin = find(pins, p);
    if (!b && !pin)
        return INVALID_VALUE;
    switch (attribute) {
    case 1:
        *(void **)out = b && b->no_context ? NULL : b ? b->ctx : pin->ctx;
        return b && b->no_context ? INVALID_VALUE : OK;
    case 2:
        *(unsigned *)out = b ? 2 : 1;
        return OK;
    case 8:
        *(unsigned *)out = b && b->managed;
        return OK;
    case 9:
        *(int *)out = b ? b->device : pin->device;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

int cuPointerGetAttribute(void *out, int attribute, uintptr_t ptr)
{
    int r = begin();
    return end(r ? r : attribute_of(out, attribute, (void *)ptr));
}

int cuPointerGetAttributes(unsigned n, const int *attributes, void **outs, uintptr_t ptr)
{
    int r = begin();
    for (unsigned i = 0; i < n && !r; i++)
        if (attribute_of(outs[i], attributes[i], (void *)ptr)) {
            if (attributes[i] == 9)
                *(int *)outs[i] = -2;
            else
                *(unsigned *)outs[i] = 0;
        }
    return end(r);
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

int cuStreamCreate(stream_t **out, unsigned flags)
{
    int r = begin();
    if (!r)
        r = need_context();
    if (!r && flags != 1)
        r = INVALID_VALUE;
    if (!r) {
        *out = calloc(1, sizeof **out);
        if (!*out)
            abort();
        (*out)->next = streams;
        streams = *out;
        (*out)->ctx = current();
        (*out)->alive = 1;
        paper.streams++;
        paper.live_streams++;
    }
    return end(r);
}

int cuStreamDestroy_v2(stream_t *s)
{
    int r = begin();
    if (!r)
        r = s->alive && s->ctx->alive ? OK : INVALID_HANDLE;
    if (!r) {
        s->alive = 0;
        paper.live_streams--;
    }
    return end(r);
}

/* What a copy's side needs of the context, and the key of its bytes. */
static int side(const void *p, size_t n, uint8_t *key)
{
    const block_t *b = find(blocks, p);
    *key = b && !b->managed ? KEY : 0;
    if (b && n > b->n - (size_t)((const uint8_t *)p - b->base))
        return INVALID_VALUE;
    return OK;
}

int cuMemcpyAsync(uintptr_t dst, uintptr_t src, size_t n, stream_t *s)
{
    int r = begin();
    uint8_t key;
    const block_t *to = find(blocks, (void *)dst), *from = find(blocks, (void *)src);
    if (!r)
        r = need_context();
    if (!r && !(s->alive && s->ctx->alive))
        r = INVALID_HANDLE;
    if (!r && (s->ctx != current() || s->waiting))
        r = INVALID_HANDLE;
    if (!r && paper.copy_fails)
        r = paper.copy_fails;
    if (!r && (to || from) && !(to && fits(to)) && !(from && fits(from)))
        r = INVALID_CONTEXT;
    if (!r)
        r = side((void *)dst, n, &key);
    if (!r)
        r = side((void *)src, n, &key);
    if (!r) {
        s->waiting = 1;
        s->dst = (uint8_t *)dst;
        s->src = (uint8_t *)src;
        s->n = n;
    }
    return end(r);
}

int cuCtxSynchronize(void)
{
    int r = begin();
    if (!r)
        r = need_context();
    if (!r)
        paper.context_waits++;
    return end(r);
}

int cuStreamSynchronize(stream_t *s)
{
    int r = begin();
    uint8_t to = 0, from = 0;
    if (!r)
        r = need_context();
    if ((uintptr_t)s == 1) {
        paper.default_waits += !r;
        return end(r);
    }
    if (!r && !(s->alive && s->ctx->alive))
        r = INVALID_HANDLE;
    if (!r && s->waiting) {
        side(s->dst, s->n, &to);
        side(s->src, s->n, &from);
        for (size_t i = 0; i < s->n; i++)
            s->dst[i] = s->src[i] ^ to ^ from;
        s->waiting = 0;
        paper.copies++;
    }
    return end(r);
}

/* --- for the test --------------------------------------------------------------------------------------------------------- */

unsigned paper_default_waits(void)
{
    return paper.default_waits;
}

unsigned paper_context_waits(void)
{
    return paper.context_waits;
}

int paper_depth(void)
{
    return depth;
}
