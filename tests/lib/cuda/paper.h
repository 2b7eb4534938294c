/* tests/lib/cuda/paper.h - a CUDA driver made of paper: what a test tells it, and what it saw.
 *
 * It is stricter than the real one: what needs a context fails without one, memory is freed and copied only in the context it
 * belongs to, a stream works only in its own, a copy happens when its stream is waited for and not before, and any call in a
 * child of the process that started it aborts. Two devices; device memory is encoded, so that a plain memcpy shows.
 *
 * tests/unit/mem_cuda.c loads it in the place of libcuda.so.1 and reads this with dlsym(.., "paper"). Guarded by `lock`. */
#ifndef PAPER_H
#define PAPER_H

#include <pthread.h>
#include <stddef.h>

typedef struct paper {
    pthread_mutex_t lock;
    /* told */
    int init_fails, alloc_fails, copy_fails, push_fails, register_fails; /* the error such calls end with; 0: none */
    int no_devices, no_managed;
    int no_context; /* what is allocated from now on belongs to a device and to no context, as from a memory pool */
    /* seen */
    unsigned inits, contexts, streams, live_streams, copies, live, registered, registers;
    size_t registered_bytes;
    int alloc_device; /* of the last allocation */
    unsigned default_waits, context_waits; /* for the default stream; for everything in a context */
} paper_t;

extern paper_t paper;

#endif
