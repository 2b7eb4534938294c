/* mem/cuda_copies.c - copies by CUDA that do not wait: streams of a runtime's own, and events that tell their end.
 *
 * For each context that a runtime copies in there are six streams: to, from and within the device, short copies and long ones,
 * so that a short one does not wait behind a long one, and both directions of the bus are used at once. Streams do not wait for
 * the default stream, nor it for them.
 *
 * A copy ends with a mark on its last stream: the device writes the copy's number to a word of page-locked memory, so that a look
 * is a load. With a driver that cannot do that (before CUDA 12) it is an event, and a look asks the driver (0.25 us): then only
 * for the oldest copy of each stream, since those of one stream end in order. If the pieces of a copy are on several streams,
 * each is made to wait for the one before. A failure writes no number: so now and then the stream itself is asked.
 *
 * Short copies between host and device go as two rows (cuMemcpy2DAsync). The driver does a plain copy of less than 64 KiB with a
 * kernel, which has to wait for this process's share of the GPU: with two processes on it that is 150 us. Rows go to a copy
 * engine, which waits for nobody: 7 us.
 *
 * A context that its owner destroys takes streams and events with it: the copies under way fail, and the next one finds a new
 * context. tests/unit/mem_copies.c runs this against a fake driver, tests/gpu against the real one. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "mem/cuda.h"

#define ROWS_MAX (64u << 10)  /* shorter copies go as rows */
#define LONG_MIN (512u << 10) /* these and longer ones have streams of their own */
#define PAGE 4096u
#define SPARE_MAX 64
#define ASK_EVERY 512 /* looks at a number that does not come, until its stream is asked */
#define WORD_STEP 64u /* bytes from one word to the next: each has a cache line of its own */

typedef struct stream {
    struct context *of;
    cu_stream_t stream;         /* NULL: not made yet */
    uint32_t posted, ended;     /* copies, by their number; ended: as far as is known, where there is no word */
    uint64_t looked;            /* the round in which it was found busy */
    _Atomic uint32_t *word;     /* where the device writes the number of the last copy that ended */
    wefti_cuda_detour_t detour; /* of copies within the device */
    bool events;                /* it cannot: events tell */
} stream_t;

typedef struct context {
    wefti_list_t link;
    unsigned long long id;
    cu_context_t ctx;
    cu_device_t device;
    uint32_t under_way; /* copies that have an event of it */
    bool lost;          /* its owner has destroyed it */
    stream_t streams[WEFTI_COPY_WAYS * 2];
    void *words; /* of all of them; NULL: none */
    bool pinned;
    cu_event_t spare[SPARE_MAX];
    unsigned n_spare;
} context_t;

typedef struct state {
    wefti_list_t contexts;
} state_t;

weft_status_t wefti_cuda_copies_open(void **state_out)
{
    state_t *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return WEFT_ERR_NOMEM;
    wefti_list_init(&s->contexts);
    *state_out = s;
    return WEFT_OK;
}

static void context_free(context_t *c)
{
    wefti_list_remove(&c->link);
    if (!c->lost && wefti_cuda_in_use() && !wefti_cu.ctx_push(c->ctx)) {
        for (unsigned i = 0; i < c->n_spare; i++)
            wefti_cu.event_free(c->spare[i]);
        for (int i = 0; i < WEFTI_COPY_WAYS * 2; i++)
            if (c->streams[i].stream)
                wefti_cu.stream_free(c->streams[i].stream);
        wefti_cuda_leave(true);
    }
    for (int i = 0; i < WEFTI_COPY_WAYS * 2; i++)
        wefti_cuda_detour_free(&c->streams[i].detour);
    if (c->pinned)
        wefti_cuda_unpin_free(c->words, PAGE);
    else
        wefti_free(c->words);
    wefti_free(c);
}

void wefti_cuda_copies_close(void *state)
{
    state_t *s = state;
    wefti_list_each_safe(l, &s->contexts)
        context_free(wefti_container_of(l, context_t, link));
    wefti_free(s);
}

static void words_new(context_t *c)
{
    if (!wefti_cu.stream_write)
        return;
    c->words = wefti_aligned_alloc(PAGE, PAGE);
    if (!c->words)
        return;
    memset(c->words, 0, PAGE);
    c->pinned = wefti_cuda_pin(c->words, PAGE);
    for (int i = 0; c->pinned && i < WEFTI_COPY_WAYS * 2; i++) {
        c->streams[i].word = (_Atomic uint32_t *)(void *)((char *)c->words + (size_t)i * WORD_STEP);
        c->streams[i].events = false;
    }
}

/* The context that is current. */
static cu_result_t context_here(state_t *s, context_t **out)
{
    unsigned long long id = 0;
    cu_result_t r = wefti_cuda_context_id(&id);
    if (r)
        return r;
    wefti_list_each(l, &s->contexts) {
        context_t *c = wefti_container_of(l, context_t, link);
        if (c->id == id && !c->lost) {
            *out = c;
            return CU_SUCCESS;
        }
    }
    context_t *c = wefti_calloc(1, sizeof *c);
    if (!c)
        return CU_OUT_OF_MEMORY;
    c->id = id;
    r = wefti_cu.ctx_current(&c->ctx);
    if (!r)
        r = wefti_cu.ctx_device(&c->device);
    if (r) {
        wefti_free(c);
        return r;
    }
    for (int i = 0; i < WEFTI_COPY_WAYS * 2; i++) {
        c->streams[i].of = c;
        c->streams[i].events = true;
    }
    words_new(c);
    wefti_list_push_back(&s->contexts, &c->link);
    *out = c;
    return CU_SUCCESS;
}

/* A call said that a context or a stream is none. Is it so for the whole context? Then its owner has destroyed it, or reset its
 * device, and everything in it is gone: what is still under way is told so at the next look. `in_use` is not freed. */
static bool lost(context_t *c, const void *in_use)
{
    cu_result_t r = wefti_cu.ctx_push(c->ctx);
    bool gone = r != CU_SUCCESS;
    if (!gone) {
        for (int i = 0; i < WEFTI_COPY_WAYS * 2 && !gone; i++)
            gone = c->streams[i].stream && wefti_cuda_stale(wefti_cu.stream_query(c->streams[i].stream));
        wefti_cuda_leave(true);
    }
    if (!gone)
        return false;
    c->lost = true;
    if (!c->under_way && !(in_use && ((const stream_t *)in_use)->of == c))
        context_free(c);
    return true;
}

static cu_result_t event_take(context_t *c, cu_event_t *out)
{
    if (c->n_spare) {
        *out = c->spare[--c->n_spare];
        return CU_SUCCESS;
    }
    return wefti_cu.event_new(out, CU_EVENT_NO_TIMING);
}

/* In the context. */
static void event_put(context_t *c, cu_event_t event)
{
    if (c->n_spare < SPARE_MAX)
        c->spare[c->n_spare++] = event;
    else
        wefti_cu.event_free(event);
}

/* From anywhere. */
static void event_back(context_t *c, cu_event_t event)
{
    if (c->n_spare < SPARE_MAX) {
        c->spare[c->n_spare++] = event;
    } else if (!wefti_cu.ctx_push(c->ctx)) {
        wefti_cu.event_free(event);
        wefti_cuda_leave(true);
    }
}

/* --- one piece -------------------------------------------------------------------------------------------------------------- */

static cu_side_t side(const void *ptr, bool host, size_t pitch)
{
    return (cu_side_t){.type = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                       .host = host ? (void *)(uintptr_t)ptr : NULL,
                       .device = host ? 0 : (cu_ptr_t)(uintptr_t)ptr,
                       .pitch = pitch};
}

static cu_result_t post_rows(void *dst, bool dst_host, const void *src, bool src_host, size_t n, cu_stream_t stream)
{
    cu_rows_t rows = {.src = side(src, src_host, n / 2), .dst = side(dst, dst_host, n / 2), .width = n / 2, .height = 2};
    return wefti_cu.copy_rows_async(&rows, stream);
}

/* An odd number of bytes is two copies, of which the second repeats a byte. */
cu_result_t wefti_cuda_post(void *dst, bool dst_host, const void *src, bool src_host, size_t n, cu_stream_t stream)
{
    if (n >= ROWS_MAX || n < 2 || dst_host == src_host)
        return wefti_cu.copy_async((cu_ptr_t)(uintptr_t)dst, (cu_ptr_t)(uintptr_t)src, n, stream);
    cu_result_t r = post_rows(dst, dst_host, src, src_host, n & ~(size_t)1, stream);
    if (!r && (n & 1))
        r = post_rows((char *)dst + n - 2, dst_host, (const char *)src + n - 2, src_host, 2, stream);
    return r;
}

/* The copy goes on from one stream to another: that one waits. */
static cu_result_t chain(wefti_copy_t *copy, stream_t *next)
{
    stream_t *before = copy->queue;
    cu_event_t event = NULL;
    cu_result_t r = wefti_cu.ctx_push(before->of->ctx);
    if (r)
        return r;
    r = event_take(before->of, &event);
    if (!r)
        r = wefti_cu.event_record(event, before->stream);
    wefti_cuda_leave(true);
    if (!r)
        r = wefti_cu.stream_after(next->stream, event, 0);
    if (event)
        event_back(before->of, event); /* the wait is for what was recorded, whatever becomes of the event */
    return r;
}

/* One piece, in the context. */
static cu_result_t post(context_t *c, stream_t *to, void *dst, const void *src, size_t n, int way)
{
    if (way == WEFTI_COPY_WITHIN && wefti_cuda_crowded(c->device) && wefti_cuda_detour_ready(&to->detour))
        return wefti_cuda_detour_post(&to->detour, dst, src, n, to->stream);
    return wefti_cuda_post(dst, way == WEFTI_COPY_FROM, src, way == WEFTI_COPY_TO, n, to->stream);
}

static cu_result_t add_here(state_t *s, wefti_copy_t *copy, void *dst, const void *src, size_t n, int way)
{
    context_t *c = NULL;
    cu_result_t r = context_here(s, &c);
    if (r)
        return r;
    stream_t *to = &c->streams[way * 2 + (n >= LONG_MIN)];
    if (!to->stream)
        r = wefti_cu.stream_new(&to->stream, CU_STREAM_NON_BLOCKING);
    if (!r && copy->queue && copy->queue != to)
        r = chain(copy, to);
    void *before = copy->queue;
    if (!r) {
        copy->queue = to; /* also if it fails: half of it may be under way */
        r = post(c, to, dst, src, n, way);
    }
    if (wefti_cuda_stale(r) && lost(c, before))
        copy->queue = before;
    return r;
}

weft_status_t wefti_cuda_copy_add(void *state, wefti_copy_t *copy, void *dst, const void *src, size_t n, int way)
{
    weft_status_t st = wefti_cuda_usable();
    if (st)
        return st;
    wefti_cuda_place_t place = wefti_cuda_place(way == WEFTI_COPY_FROM ? src : dst);
    cu_result_t r = CU_SUCCESS;
    for (int tries = 0; tries < 2; tries++) {
        bool pushed;
        r = wefti_cuda_enter_place(&place, &pushed);
        if (r)
            break;
        r = add_here(state, copy, dst, src, n, way);
        wefti_cuda_leave(pushed);
        if (!wefti_cuda_stale(r) || copy->queue) /* what was added before went with its context */
            break;
    }
    return r ? wefti_cuda_fail(r, "copying CUDA memory", n) : WEFT_OK;
}

/* --- its end ---------------------------------------------------------------------------------------------------------------- */

/* In the context: have its end told. */
static cu_result_t mark(context_t *c, stream_t *s, wefti_copy_t *copy)
{
    cu_result_t r;
    uint32_t number = s->posted + 1 ? s->posted + 1 : 1; /* 0 is none */
    if (!s->events) {
        r = wefti_cu.stream_write(s->stream, (cu_ptr_t)(uintptr_t)s->word, number, 0);
        if (r && !wefti_cuda_stale(r))
            s->events = true; /* this device cannot */
        if (!r)
            copy->number = s->posted = number;
        if (!s->events)
            return r;
    }
    r = event_take(c, &copy->event);
    if (!r)
        r = wefti_cu.event_record(copy->event, s->stream);
    if (!r) {
        copy->number = s->posted = number;
    } else if (copy->event) {
        event_put(c, copy->event);
        copy->event = NULL;
    }
    return r;
}

weft_status_t wefti_cuda_copy_end(void *state, wefti_copy_t *copy)
{
    stream_t *s = copy->queue;
    (void)state;
    copy->number = 0;
    copy->looks = 0;
    if (!s)
        return WEFT_OK; /* nothing was added, or the first piece failed */
    s->of->under_way++;
    if (!wefti_cu.ctx_push(s->of->ctx)) {
        (void)mark(s->of, s, copy); /* if it fails, the next look tries again: nothing else tells when the device is done */
        wefti_cuda_leave(true);
    }
    return WEFT_OK;
}

static cu_result_t ask_once(context_t *c, const stream_t *s)
{
    cu_result_t r = wefti_cu.ctx_push(c->ctx);
    if (r)
        return r;
    r = wefti_cu.stream_query(s->stream);
    wefti_cuda_leave(true);
    return r;
}

/* Ask a stream that wrote no number: CU_NOT_READY, or how all of it ended. An error is believed the second time: the question may
 * have failed, and not the copy, whose memory is then still in use. */
static cu_result_t ask(context_t *c, const stream_t *s)
{
    cu_result_t r = ask_once(c, s);
    return r && r != CU_NOT_READY ? ask_once(c, s) : r;
}

/* Its end could not be marked. */
static cu_result_t mark_again(context_t *c, stream_t *s, wefti_copy_t *copy)
{
    cu_result_t r = wefti_cu.ctx_push(c->ctx);
    if (!r) {
        r = mark(c, s, copy);
        wefti_cuda_leave(true);
    }
    bool gone = r && (wefti_cuda_stale(r) || ++copy->looks > ASK_EVERY); /* a device that takes no mark is of no use */
    return gone ? r : CU_NOT_READY;
}

/* CU_NOT_READY, or how it ended. */
static cu_result_t look(context_t *c, stream_t *s, wefti_copy_t *copy, uint64_t round)
{
    if (c->lost)
        return CU_CONTEXT_IS_DESTROYED;
    if (!copy->number)
        return mark_again(c, s, copy);
    if (!copy->event) {
        if ((int32_t)(atomic_load_explicit(s->word, memory_order_acquire) - copy->number) >= 0)
            return CU_SUCCESS;
        return ++copy->looks % ASK_EVERY ? CU_NOT_READY : ask(c, s);
    }
    if ((int32_t)(s->ended - copy->number) >= 0)
        return CU_SUCCESS;
    cu_result_t r = s->looked == round ? CU_NOT_READY : wefti_cu.event_query(copy->event); /* one before it is not done */
    if (r && r != CU_NOT_READY && ask(c, s) == CU_NOT_READY)
        r = CU_NOT_READY; /* the question failed, not the copy */
    if (r == CU_NOT_READY)
        s->looked = round;
    else
        s->ended = copy->number;
    return r;
}

weft_status_t wefti_cuda_copy_look(void *state, wefti_copy_t *copy, uint64_t round)
{
    stream_t *s = copy->queue;
    (void)state;
    if (!s && copy->event) { /* somebody else's: streams.c */
        cu_result_t r = wefti_cu.event_query(copy->event);
        return r == CU_NOT_READY ? WEFT_ERR_AGAIN : r ? wefti_cuda_fail(r, "waiting for a stream", 0) : WEFT_OK;
    }
    if (!s)
        return WEFT_OK;
    context_t *c = s->of;
    cu_result_t r = look(c, s, copy, round);
    if (r == CU_NOT_READY)
        return WEFT_ERR_AGAIN;
    c->under_way--;
    if (wefti_cuda_stale(r) && (c->lost || lost(c, s))) {
        if (!c->under_way)
            context_free(c);
    } else if (copy->event) {
        event_back(c, copy->event);
    }
    copy->event = NULL;
    return r ? wefti_cuda_fail(r, "copying CUDA memory", 0) : WEFT_OK;
}

/* It may be behind a stream that waits for it, if the program's other streams had the queues that were left (cuda_waits.c). */
void wefti_cuda_copy_stuck(const wefti_copy_t *copy)
{
    const stream_t *s = copy->queue;
    uint32_t n = s ? wefti_cuda_waiting(s->of->device) : 0;
    if (n)
        wefti_warn("mem: no copy on GPU %d ended for seconds, and %u CUDA streams wait for operations: if nothing goes on, set "
                   "CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA begins, or use fewer streams",
                   s->of->device, n);
}
