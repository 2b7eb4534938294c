/* tests/lib/cuda/parts.h - what the files of the CUDA driver made of paper share. All of it with paper.lock held. */
#ifndef PAPER_PARTS_H
#define PAPER_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "paper.h"
#pragma GCC visibility pop

#pragma GCC visibility push(hidden)

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801
};
enum { DEVICES_MAX = 8, KEY = 0x3c, FD_TYPE = 1 };

/* --- paper.c: calls; contexts.c ------------------------------------------------------------------------------------------- */

typedef struct context {
    struct context *next;
    int device, alive;
    int error;      /* of a copy that failed: every later call in it ends with this */
    unsigned peers; /* devices whose memory it may use, as bits */
    unsigned long long id;
} context_t;

extern int pp_devices;
extern bool pp_strict;

int pp_begin(const char *function);    /* begin a call: the lock is held until pp_end(), whatever it returns */
int pp_begin_in(const char *function); /* and it needs a context */
int pp_end(int r);
int pp_fails(const char *what); /* what PAPER_FAIL or paper_fail() says of it */
int pp_check_device(int device);
context_t *pp_current(void);
int pp_need_context(void);
int pp_thread(void);      /* this thread's number, from 1 */
void pp_pause(void);      /* let others have the lock for a moment */
void pp_calling(bool on); /* a host function runs in this thread, without the lock: it may make no calls */
int64_t pp_now(void);
void *pp_new(size_t n); /* zeroed; aborts without memory */

/* --- space.c: addresses, and handles that are never used again ------------------------------------------------------------ */

typedef struct range {
    uint8_t *base;
    size_t n;
} range_t;

typedef struct ranges { /* sorted by address; none overlaps another */
    range_t **at;
    size_t count, room;
} ranges_t;

range_t *pp_find(const ranges_t *in, const void *p);
size_t pp_find_from(const ranges_t *in, const void *p); /* the index of the first that ends after p */
bool pp_overlaps(const ranges_t *in, const void *p, size_t n);
void pp_insert(ranges_t *in, range_t *r);
void pp_remove(ranges_t *in, range_t *r);

/* Addresses of devices lie in one range of the process. Each has a second one, its view, which this driver itself uses. */
size_t pp_page(size_t n);                                /* rounded up */
void *pp_space_take(size_t n, size_t align, void *hint); /* NULL: there is no such range free */
void pp_space_give(void *base);
bool pp_space_has(const void *p);
uint8_t *pp_view(const void *p);
bool pp_space_map(void *base, size_t n, int fd, bool cpu);
void pp_space_unmap(void *base, size_t n);

void *pp_handle_new(int kind, void *object);
void *pp_handle_get(int kind, const void *handle); /* NULL: no such thing, or no more */
void pp_handle_drop(const void *handle);
void *pp_handle_next(int kind, size_t *i); /* the next one from index *i; NULL: no more */

/* --- memory.c, vmm.c, ipc.c ----------------------------------------------------------------------------------------------- */

typedef enum { PLAIN, MANAGED, POOL, MAPPED, IMPORTED } sort_t;

typedef struct block {
    range_t range; /* first: it is in pp_blocks by this */
    sort_t sort;
    context_t *ctx;
    int device, no_context;
    uint64_t id;     /* never that of another one in this process */
    uint64_t secret; /* of what was exported or imported; else 0 */
    int fd;          /* of what was exported; else -1 */
    unsigned opens, access;
    bool freeing;
    struct physical *physical;
} block_t;

extern ranges_t pp_blocks;
extern size_t pp_used[DEVICES_MAX];

block_t *pp_block(const void *p);
block_t *pp_block_new(void *base, size_t n, sort_t sort, context_t *ctx, int device);
void pp_block_drop(block_t *b); /* its mapping stays */
void pp_block_free(block_t *b);
void pp_context_memory_free(context_t *ctx);
bool pp_fits(const block_t *b);           /* may the current context touch it? */
bool pp_covered(const void *p, size_t n); /* is all of that device memory? */
int pp_take_memory(int device, size_t n);
uint32_t *pp_word(uintptr_t p, uint32_t *key_out); /* a value of device memory or of registered host memory; NULL: neither */
int pp_memfd(const char *name, size_t n);
uint64_t pp_secret(void);
bool pp_fd_is(int fd, const char *name); /* is that the memory file of that name? */
range_t *pp_reservation(const void *p);
unsigned pp_handle_types(const block_t *b);
uint64_t pp_physical_id(const block_t *b);
block_t *pp_wait_unused(block_t *b); /* until no queued work names it; NULL: it went with its context meanwhile */

/* --- streams.c, events.c, copies.c ---------------------------------------------------------------------------------------- */

typedef struct marker { /* one recording of an event */
    unsigned refs;
    bool done;
    int64_t at;
} marker_t;

typedef struct place {
    uint8_t *at;
    size_t pitch;
    uint64_t block; /* 0: memory of the host */
} place_t;

typedef enum { COPY, FILL, RECORD, WAIT_EVENT, WAIT_VALUE, WRITE_VALUE, CALL, FREE } kind_t;

typedef struct op {
    struct op *next;
    kind_t kind;
    uint64_t seq;          /* over all streams */
    int64_t posted, takes; /* when; how long it takes once its turn has come */
    place_t dst, src;
    size_t width, height;
    bool flat, by_program;
    int engine; /* with paper.queues: which sort of queue it is in, and which of them */
    unsigned queue;
    uint32_t value;
    unsigned flags;
    marker_t *marker;
    void (*fn)(void *arg);
    void *arg;
} op_t;

typedef struct stream {
    struct stream *next;
    context_t *ctx;
    void *handle;
    op_t *first, *last;
    bool closed, held, calling; /* a host function of it runs */
    bool blocking;              /* it waits for the default stream, and that for it */
    bool is_default;
    int thread;    /* the thread whose default stream it is; else 0 */
    int engine;    /* of its last work */
    int64_t clock; /* when its last work was done */
} stream_t;

int pp_stream_here(void *handle, stream_t **out); /* one that the current context may give work to */
uint64_t pp_post(stream_t *s, const op_t *op);
void pp_run(void);
int pp_wait_for(stream_t *s, uint64_t seq); /* one that stays: a context's default stream */
bool pp_pending(uint64_t block);
void pp_free_waits(void); /* a call that waits for every stream of the process: count it if one waits for a value */
void pp_context_streams_free(context_t *ctx), pp_context_events_free(context_t *ctx);
void pp_marker_put(marker_t *m);

int pp_op_copy(const op_t *op);
int pp_op_fill(const op_t *op);

#pragma GCC visibility pop

/* what follows in a .c: functions of the driver are looked up by name, and declared by those who call them in their own words */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC visibility push(default)

#endif
