/* mem/streams.c - gates in streams of CUDA: an operation that begins behind a stream's work, and holds work of a stream back.
 *
 * Before: an event is recorded in the stream by the posting thread. The gate is open if it has passed already; else it is
 * looked at with the copies of the runtime (copies.c). An event of the program's is looked at as it is, so that the program
 * keeps it, and records nothing else with it, until the operation is complete.
 *
 * After: the stream is told to wait until a word of page-locked memory has reached a number (cuStreamWaitValue32). The
 * operation's end writes the number there, whatever the end is. Words are used again with higher numbers: a stream that has not
 * passed an earlier wait passes it all the same. No thread waits, and nothing but that stream, and what the device has in the
 * same queue: so such streams are counted (cuda_waits.c). A wait is in the queue of the work before it, which may be a copy.
 * There are few queues for copies, and our own need them. So from the stream on that makes a device crowded, a byte of ours is
 * filled first: that brings the wait to a queue of kernels. It is not done before, because a kernel takes its turn with those of
 * other processes: an operation in a stream takes 143 us with it and 27 us without.
 *
 * Promise: whatever becomes of an operation, its end writes the number once. tests/wire/msg_streams.c. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "mem/cuda.h"

#define PAGE 4096u
#define WORDS (PAGE / sizeof(uint32_t))
#define BLOCKS 64u

typedef struct gate {
    wefti_gate_t gate;      /* first, so that the two pointers are one */
    wefti_copy_t copy;      /* by which it is looked at */
    cu_context_t ctx;       /* of its own event */
    cu_event_t event;       /* NULL: there is none (any more) */
    bool own;               /* the event is ours */
    bool watched;           /* it is with the copies */
    bool ended;             /* its operation is over: it goes when the copies let go of it */
    _Atomic uint32_t *word; /* NULL: no stream waits for it */
    uint32_t number;
    int device; /* of that stream */
    struct wefti_cuda_waiting *waiting;
} gate_t;

/* --- words ------------------------------------------------------------------------------------------------------------------ */

/* Of the whole process, for a gate may end after its runtime: they are never given back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t *blocks[BLOCKS];
static uint16_t free_words[BLOCKS * WORDS];
static unsigned n_blocks, n_free;

static _Atomic uint32_t *word_take(void)
{
    _Atomic uint32_t *word = NULL;
    pthread_mutex_lock(&lock);
    if (!n_free && n_blocks < BLOCKS) {
        void *page = wefti_aligned_alloc(PAGE, PAGE);
        if (page && wefti_cuda_pin(page, PAGE)) {
            memset(page, 0, PAGE);
            for (unsigned i = 0; i < WORDS; i++)
                free_words[n_free++] = (uint16_t)(n_blocks * WORDS + i);
            blocks[n_blocks++] = page;
        } else {
            wefti_free(page);
        }
    }
    if (n_free) {
        unsigned i = free_words[--n_free];
        word = &blocks[i / WORDS][i % WORDS];
    }
    pthread_mutex_unlock(&lock);
    return word;
}

static void word_put(_Atomic uint32_t *word)
{
    pthread_mutex_lock(&lock);
    for (unsigned b = 0; b < n_blocks; b++)
        if (word >= blocks[b] && word < blocks[b] + WORDS)
            free_words[n_free++] = (uint16_t)(b * WORDS + (unsigned)(word - blocks[b]));
    pthread_mutex_unlock(&lock);
}

/* --- making one ------------------------------------------------------------------------------------------------------------- */

/* Be in the context of a stream; for a default stream that is the caller's. */
static cu_result_t enter_stream(cu_stream_t stream, bool *pushed)
{
    cu_context_t ctx = NULL;
    if ((uintptr_t)stream <= CU_STREAM_PER_THREAD || !wefti_cu.stream_context)
        return wefti_cuda_enter_any(pushed);
    cu_result_t r = wefti_cu.stream_context(stream, &ctx);
    if (!r)
        r = wefti_cu.ctx_push(ctx);
    *pushed = !r;
    return r;
}

static cu_result_t record(gate_t *g, cu_stream_t stream)
{
    bool pushed;
    cu_result_t r = enter_stream(stream, &pushed);
    if (r)
        return r;
    r = wefti_cu.ctx_current(&g->ctx);
    if (!r)
        r = wefti_cu.event_new(&g->event, CU_EVENT_NO_TIMING);
    if (!r) {
        g->own = true;
        r = wefti_cu.event_record(g->event, stream);
    }
    wefti_cuda_leave(pushed);
    return r;
}

/* A byte of device memory in the context that is current; 0: none. One for each context, for its life. */
static cu_ptr_t scratch(void)
{
    static struct {
        unsigned long long context;
        cu_ptr_t at;
    } all[16];
    static unsigned n;
    unsigned long long id;
    cu_ptr_t at = 0;
    if (wefti_cuda_context_id(&id))
        return 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n; i++)
        if (all[i].context == id)
            at = all[i].at;
    if (!at && n < sizeof all / sizeof *all && !wefti_cu.mem_alloc(&at, 1)) {
        all[n].context = id;
        all[n++].at = at;
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* In the stream's context. */
static cu_result_t hold_back_here(gate_t *g, cu_stream_t stream, weft_status_t *limit_out)
{
    cu_device_t device;
    cu_ptr_t byte;
    cu_result_t r = wefti_cu.ctx_device(&device);
    if (r)
        return r;
    g->device = device < wefti_cuda_devices ? device : 0;
    *limit_out = wefti_cuda_wait_begin(g->device, stream, &g->waiting);
    if (*limit_out)
        return CU_SUCCESS;
    if (wefti_cuda_crowded(g->device) && wefti_cu.fill_async && (byte = scratch()))
        (void)wefti_cu.fill_async(byte, 0, 1, stream); /* the stream's own fault shows in the next call */
    g->number = atomic_load_explicit(g->word, memory_order_relaxed) + 1;
    return wefti_cu.stream_until(stream, (cu_ptr_t)(uintptr_t)g->word, g->number, 0);
}

static cu_result_t hold_back(gate_t *g, cu_stream_t stream, weft_status_t *limit_out)
{
    bool pushed;
    cu_result_t r = enter_stream(stream, &pushed);
    if (r)
        return r;
    r = hold_back_here(g, stream, limit_out);
    wefti_cuda_leave(pushed);
    return r;
}

static void event_drop(gate_t *g)
{
    if (g->event && g->own && wefti_cuda_in_use() && !wefti_cu.ctx_push(g->ctx)) {
        wefti_cu.event_free(g->event);
        wefti_cuda_leave(true);
    }
    g->event = NULL;
}

static void gate_free(gate_t *g)
{
    event_drop(g);
    if (g->waiting)
        wefti_cuda_wait_end(g->device, g->waiting);
    if (g->word)
        word_put(g->word);
    wefti_free(g);
}

/* Is what comes before it done? */
static cu_result_t passed(gate_t *g)
{
    cu_result_t r = g->event ? wefti_cu.event_query(g->event) : CU_SUCCESS;
    g->gate.closed = r == CU_NOT_READY;
    return r == CU_NOT_READY ? CU_SUCCESS : r;
}

/* A stream or an event that CUDA does not know, or knows no more, is a mistake of the program's. */
static weft_status_t refuse(gate_t *g, cu_result_t r, const char *field)
{
    gate_free(g);
    if (wefti_cuda_stale(r) || r == CU_INVALID_VALUE)
        return wefti_fail(WEFT_ERR_INVALID, "op.streams: `%s` is no handle that CUDA knows: %s", field, wefti_cuda_words(r));
    return wefti_fail(WEFT_ERR_SYSTEM, "op.streams: `%s`: %s", field, wefti_cuda_words(r));
}

static weft_status_t make(weft_runtime_t *rt, const weft_op_streams_t *given, wefti_gate_t **gate_out)
{
    weft_op_streams_t s;
    (void)rt;
    weft_status_t st = wefti_opts_read(given, &s, sizeof s, "weft_op_streams_t");
    if (!st)
        st = wefti_cuda_use(NULL);
    if (st)
        return st;
    if (s.before && s.before_event)
        return wefti_fail(WEFT_ERR_INVALID, "an operation begins behind a stream or behind an event, not behind both");
    if (s.after && !wefti_cu.stream_until)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "this CUDA driver cannot let a stream wait for an operation (before CUDA 12)");
    gate_t *g = wefti_calloc(1, sizeof *g);
    if (!g || (s.after && !(g->word = word_take()))) {
        wefti_free(g);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an operation in a stream");
    }
    g->event = s.before_event;
    cu_result_t r = s.before ? record(g, s.before) : CU_SUCCESS;
    if (!r)
        r = passed(g);
    if (r)
        return refuse(g, r, s.before ? "before" : "before_event");
    r = s.after ? hold_back(g, s.after, &st) : CU_SUCCESS;
    if (r)
        return refuse(g, r, "after");
    if (st) {
        gate_free(g);
        return st;
    }
    *gate_out = &g->gate;
    return WEFT_OK;
}

/* --- looking at it ---------------------------------------------------------------------------------------------------------- */

static void looked(wefti_copy_t *copy, weft_status_t status)
{
    gate_t *g = wefti_container_of(copy, gate_t, copy);
    void (*opened)(weft_op_t *, weft_status_t) = g->gate.opened;
    weft_op_t *op = g->gate.op;
    g->watched = false;
    if (g->ended) {
        gate_free(g);
        return;
    }
    g->gate.closed = false;
    g->gate.opened = NULL;
    if (opened)
        opened(op, status); /* the gate may be gone */
}

static weft_status_t watch(weft_runtime_t *rt, wefti_gate_t *gate)
{
    gate_t *g = wefti_container_of(gate, gate_t, gate);
    g->copy.done = looked;
    weft_status_t st = wefti_copy_begin(rt, &g->copy);
    if (st)
        return st;
    wefti_copy_await(rt, &g->copy, &wefti_mem_kind_cuda, g->event);
    wefti_copy_end(rt, &g->copy);
    g->watched = true;
    return WEFT_OK;
}

static void end(wefti_gate_t *gate)
{
    gate_t *g = wefti_container_of(gate, gate_t, gate);
    if (g->word) {
        atomic_store_explicit(g->word, g->number, memory_order_release);
        wefti_cuda_wait_end(g->device, g->waiting);
        g->waiting = NULL;
    }
    g->ended = true;
    if (g->watched)
        g->copy.event = NULL; /* nobody waits for the stream: it may never come so far, and its event may be the program's */
    if (!g->watched)
        gate_free(g);
}

const wefti_gate_ops_t wefti_cuda_gates = {.make = make, .watch = watch, .end = end};
