/* tests/lib/cuda/paper.h - a CUDA driver made of paper: what a test tells it, and what it saw.
 *
 * It is stricter than the real one: what needs a context fails without one, memory is freed and copied only in the context it
 * belongs to, a stream works only in its own, and any call in a child of the process that started it aborts. Device memory is
 * encoded, so that a plain memcpy shows; with PAPER_STRICT=1 in the environment it crashes.
 *
 * Without PAPER_THREAD there is no thread: what was given to a stream is done when it is due and somebody looks. Any query or
 * synchronise of a stream, an event or a context does first what is due in this process, in the order of each stream, behind
 * the events and values that the stream waits for. Memory that cuIpcGetMemHandle or a file descriptor gives away is shared with
 * other processes that run this driver.
 *
 * Environment, read when it is loaded:
 *     PAPER_DEVICES=2 (at most 8)   PAPER_MEMORY=bytes of each device (1 GiB)   PAPER_NO_PEER=1   PAPER_STRICT=1
 *     PAPER_THREAD=microseconds from one look of its own to the next (0: it has no thread)
 *     PAPER_QUEUES=8 (0)   PAPER_COPY_NS=0   PAPER_COPY_NS_PER_KIB=0   PAPER_FAIL="function:after:error:times,.."
 *
 * A test loads it in the place of libcuda.so.1 (use.h does) and reads this with dlsym(.., "paper"). Guarded by `lock`.
 * tests/unit/paper_cuda.c. */
#ifndef PAPER_H
#define PAPER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef struct paper {
    pthread_mutex_t lock;
    /* told */
    int init_fails, alloc_fails, copy_fails, push_fails, register_fails; /* the error such calls end with; 0: none */
    int no_devices, no_managed;
    int no_context; /* what is allocated from now on belongs to a device and to no context, as from a memory pool */
    /* seen */
    unsigned inits, contexts, streams, live_streams, copies, live, registered, registers;
    size_t registered_bytes;
    int alloc_device;                      /* of the last allocation */
    unsigned default_waits, context_waits; /* for the default stream; for everything in a context */

    /* told */
    uint64_t copy_ns, copy_ns_per_kib; /* how long an asynchronous copy takes; 0: it is due at the next look */
    size_t memory;                     /* of each device, for this process */
    int no_peer;
    /* seen */
    unsigned exports;                            /* IPC handles and file descriptors that were given out */
    unsigned imports, live_imports;              /* times that one was opened; memory of others that is open now */
    unsigned events, live_events, live_physical; /* made ever; there now; what cuMemCreate made, or an fd, and is still there */
    unsigned copies_by_engine;                   /* in two dimensions; or linear, 64 KiB or more, with host memory on one side */
    unsigned copies_by_kernel;                   /* the other ones: both together are `copies` */
    unsigned program_copies;                     /* cuMemcpyDtoH, cuMemcpyHtoD, cuMemsetD8: in none of the other counts */
    unsigned waits;                              /* calls of cuStreamSynchronize, cuEventSynchronize and cuCtxSynchronize */
    unsigned free_waits;                         /* frees and closes of memory that a queued copy still named: they wait for it */
    uint64_t bytes_d2d, bytes_h2d, bytes_d2h;

    /* told; last, because tests in Python know where the others are */
    /* Kernels and copies within a device go through so many queues, copies to it and copies from it through half as many each;
     * 0: each stream has its own. A stream that has no work left is put into a free queue, or where there is none into one of
     * the others. What waits, or writes a value, is in the queue of the work before it. So it was measured on an H200. */
    unsigned queues;
    /* seen: frees, closes and unregistrations while a stream waited for a value. The real one lets them wait for it, and with
     * them all other calls of the process; this one goes on. */
    unsigned stuck_frees;
} paper_t;

extern paper_t paper;

struct context;

/* A context that a program made itself; one that its owner destroyed, of which the memory stays counted as live. */
struct context *paper_context_new(int device);
void paper_context_destroy(struct context *ctx);
int paper_depth(void); /* of this thread's stack of contexts */
unsigned paper_default_waits(void), paper_context_waits(void);

/* The function of that name succeeds `after` more times, then fails `times` times (negative: always) with `error`. times 0: all
 * that was said of it is forgotten. "copy" is an asynchronous copy when it is done: its error comes out of what waits for it, and
 * of every later call in that context. */
void paper_fail(const char *function, unsigned after, int error, int times);

/* Fill device memory in the order of a stream, delay_ns after its turn has come: what a program's kernel would do. */
int paper_kernel(void *stream, uintptr_t dst, size_t n, int byte, uint64_t delay_ns);

/* Nothing is done on a stream from the one to the other. */
int paper_hold(void *stream);
int paper_release(void *stream);

#endif
