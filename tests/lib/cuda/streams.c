/* tests/lib/cuda/streams.c - streams made of paper, and when what was given to them is done.
 *
 *     given --its turn, and what it waits for--> running for op->takes --somebody looks--> done
 *
 * A stream's clock is when its last work was done, had somebody looked at once; so looking late makes nothing later. The default
 * stream of a context and its blocking streams wait for each other by the order in which they were given work. A context in which
 * a copy failed, or which was destroyed, does nothing any more: what its streams had is dropped. */
#include <stdlib.h>

#include "parts.h"

static stream_t *streams; /* also those that were destroyed and have work left */
static uint64_t last_seq;

/* --- finding them --------------------------------------------------------------------------------------------------------- */

static stream_t *stream_new(context_t *ctx)
{
    stream_t **at = &streams, *s = pp_new(sizeof *s);
    s->ctx = ctx;
    while (*at)
        at = &(*at)->next;
    *at = s;
    return s;
}

/* A default stream of the current context: of all threads, or this one's. */
static stream_t *default_stream(int thread)
{
    stream_t *s = streams;
    while (s && !(s->ctx == pp_current() && (thread ? s->thread == thread : s->is_default)))
        s = s->next;
    if (!s) {
        s = stream_new(pp_current());
        s->is_default = !thread;
        s->thread = thread;
        s->blocking = thread != 0;
    }
    return s;
}

/* NULL: there is none of that handle. */
static stream_t *find(void *handle)
{
    stream_t *s;
    if ((uintptr_t)handle <= 2)
        s = pp_current() ? default_stream((uintptr_t)handle == 2 ? pp_thread() : 0) : NULL;
    else
        s = pp_handle_get('S', handle);
    return s && s->ctx->alive ? s : NULL;
}

int pp_stream_here(void *handle, stream_t **out)
{
    *out = find(handle);
    return *out && (*out)->ctx == pp_current() ? OK : INVALID_HANDLE;
}

/* --- work ----------------------------------------------------------------------------------------------------------------- */

/* --- queues --------------------------------------------------------------------------------------------------------------- */

enum { KERNELS, TO_DEVICE, FROM_DEVICE, ENGINES };

static int engine_of(const stream_t *s, const op_t *op)
{
    if (op->kind == FILL || op->kind == FREE)
        return KERNELS;
    if (op->kind != COPY)
        return s->engine;
    return !op->dst.block == !op->src.block ? KERNELS : op->dst.block ? TO_DEVICE : FROM_DEVICE;
}

/* Is any work of the context in that queue? */
static bool is_used(const context_t *ctx, int engine, unsigned queue)
{
    for (const stream_t *o = streams; o; o = o->next)
        for (const op_t *op = o->ctx == ctx ? o->first : NULL; op; op = op->next)
            if (op->engine == engine && op->queue == queue)
                return true;
    return false;
}

static void choose_queue(stream_t *s, op_t *op)
{
    static unsigned turn;
    unsigned n = s->engine = op->engine = engine_of(s, op);
    n = n == KERNELS || paper.queues < 2 ? paper.queues : paper.queues / 2;
    for (const op_t *o = s->first; o; o = o->next)
        if (o->engine == op->engine) {
            op->queue = o->queue;
            return;
        }
    for (op->queue = 0; op->queue < n; op->queue++)
        if (!is_used(s->ctx, op->engine, op->queue))
            return;
    op->queue = turn++ % n;
}

uint64_t pp_post(stream_t *s, const op_t *op)
{
    op_t *mine = pp_new(sizeof *mine);
    *mine = *op;
    mine->seq = ++last_seq;
    mine->posted = pp_now();
    if (paper.queues)
        choose_queue(s, mine);
    if (s->last)
        s->last->next = mine;
    else
        s->first = mine;
    s->last = mine;
    return mine->seq;
}

static void finish(stream_t *s, int64_t at)
{
    op_t *op = s->first;
    s->clock = at;
    if (op->kind == RECORD) {
        op->marker->done = true;
        op->marker->at = at;
    }
    pp_marker_put(op->marker);
    s->first = op->next;
    if (!s->first)
        s->last = NULL;
    free(op);
}

/* Does the order between the default stream and blocking ones hold it up? */
static bool after_others(const stream_t *s, uint64_t seq)
{
    if (!s->is_default && !s->blocking)
        return false;
    for (const stream_t *o = streams; o; o = o->next)
        if (o != s && o->ctx == s->ctx && o->first && o->first->seq < seq && (s->is_default ? o->blocking : o->is_default))
            return true;
    return false;
}

/* Does another stream of its queue hold it up? */
static bool behind_others(const stream_t *s, const op_t *op)
{
    for (const stream_t *o = paper.queues ? streams : NULL; o; o = o->next)
        for (const op_t *before = o != s && o->ctx == s->ctx ? o->first : NULL; before; before = before->next)
            if (before->seq < op->seq && before->engine == op->engine && before->queue == op->queue)
                return true;
    return false;
}

static bool value_there(const op_t *op)
{
    uint32_t is = __atomic_load_n((uint32_t *)op->arg, __ATOMIC_ACQUIRE) ^ (uint32_t)op->width;
    switch (op->flags) {
    case 0:
        return (int32_t)(is - op->value) >= 0;
    case 1:
        return is == op->value;
    case 2:
        return is & op->value;
    default:
        return ~(is | op->value);
    }
}

/* Was the device memory that it names freed or unmapped? */
static bool is_gone(const op_t *op)
{
    const block_t *b = op->dst.block ? pp_block(op->dst.at) : NULL;
    return op->dst.block && (!b || b->id != op->dst.block);
}

/* When the first work of a stream is done; INT64_MAX: not yet known. */
static int64_t due(const stream_t *s, int64_t now)
{
    const op_t *op = s->first;
    int64_t at = op->posted > s->clock ? op->posted : s->clock;
    if (s->held || s->calling || after_others(s, op->seq) || behind_others(s, op))
        return INT64_MAX;
    if (op->kind == WAIT_EVENT) {
        if (!op->marker->done)
            return INT64_MAX;
        at = op->marker->at > at ? op->marker->at : at;
    }
    if (op->kind == WAIT_VALUE) {
        if (!is_gone(op) && !value_there(op))
            return INT64_MAX;
        at = now;
    }
    return op->takes > INT64_MAX - at ? INT64_MAX : at + op->takes;
}

static void run_first(stream_t *s, int64_t at)
{
    const op_t *op = s->first;
    bool gone = is_gone(op);
    int r = OK;
    switch (op->kind) {
    case COPY:
        r = pp_op_copy(op);
        break;
    case FILL:
        r = pp_op_fill(op);
        break;
    case WRITE_VALUE:
        if (!gone)
            __atomic_store_n((uint32_t *)op->arg, op->value ^ (uint32_t)op->width, __ATOMIC_RELEASE);
        r = gone ? ILLEGAL_ADDRESS : OK;
        break;
    case WAIT_VALUE:
        r = gone ? ILLEGAL_ADDRESS : OK;
        break;
    case FREE:
        if (!gone)
            pp_block_free(pp_block(op->dst.at));
        break;
    case CALL:
        s->calling = true;
        pp_calling(true);
        op->fn(op->arg);
        pp_calling(false);
        s->calling = false;
        break;
    default:
        break;
    }
    finish(s, at);
    if (r && !s->ctx->error)
        s->ctx->error = r;
}

/* Nothing more is done in its context. */
static bool is_dead(const stream_t *s)
{
    return !s->ctx->alive || s->ctx->error;
}

/* Do what is due on one stream. true: something was. */
static bool run_stream(stream_t *s)
{
    bool any = false;
    while (s->first && !s->calling) {
        int64_t now = pp_now(), at = is_dead(s) ? now : due(s, now);
        if (at > now)
            break;
        any = true;
        if (is_dead(s)) {
            finish(s, now);
            continue;
        }
        bool called = s->first->kind == CALL;
        run_first(s, at);
        if (called)
            break; /* without the lock for a while: look at everything again */
    }
    return any;
}

static void sweep(void)
{
    for (stream_t **at = &streams, *s; (s = *at);) {
        if (s->closed && !s->first && !s->calling) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
}

void pp_run(void)
{
    for (bool any = true; any;) {
        any = false;
        for (stream_t *s = streams; s && !any; s = s->next)
            any = run_stream(s);
    }
    sweep();
}

bool pp_pending(uint64_t block)
{
    for (const stream_t *s = streams; s; s = s->next)
        for (const op_t *op = s->first; op; op = op->next)
            if (op->kind != FREE && (op->dst.block == block || op->src.block == block))
                return true;
    return false;
}

void pp_free_waits(void)
{
    pp_run();
    for (const stream_t *s = streams; s; s = s->next)
        if (s->first && s->first->kind == WAIT_VALUE && !is_gone(s->first) && !value_there(s->first)) {
            paper.stuck_frees++;
            return;
        }
}

/* Is all that a stream was given up to seq done? The default one is asked for blocking ones too. */
static bool is_done(const stream_t *s, uint64_t seq)
{
    return !(s->first && s->first->seq <= seq) && !(s->is_default && after_others(s, seq + 1));
}

int pp_wait_for(stream_t *s, uint64_t seq)
{
    pp_run();
    while (s->first && s->first->seq <= seq) {
        pp_pause();
        pp_run();
    }
    return s->ctx->error;
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

int cuStreamCreate(void **out, unsigned flags)
{
    int r = pp_begin_in(__func__);
    if (!r && flags > 1)
        r = INVALID_VALUE;
    if (!r) {
        stream_t *s = stream_new(pp_current());
        s->blocking = !flags;
        *out = s->handle = pp_handle_new('S', s);
        paper.streams++;
        paper.live_streams++;
    }
    return pp_end(r);
}

static void stream_close(stream_t *s)
{
    pp_handle_drop(s->handle);
    s->closed = true;
    paper.live_streams--;
}

int cuStreamDestroy_v2(void *handle)
{
    int r = pp_begin(__func__);
    stream_t *s = r ? NULL : (uintptr_t)handle > 2 ? find(handle) : NULL;
    if (!r && !s)
        r = INVALID_HANDLE;
    if (!r) {
        stream_close(s); /* what it was given is still done */
        s->held = false;
        pp_run();
    }
    return pp_end(r);
}

void pp_context_streams_free(context_t *ctx)
{
    for (stream_t *s = streams; s; s = s->next)
        if (s->ctx == ctx && !s->closed) {
            if (s->handle)
                stream_close(s);
            s->closed = true;
        }
    pp_run();
}

int cuStreamQuery(void *handle)
{
    int r = pp_begin_in(__func__);
    if (!r && !find(handle))
        r = INVALID_HANDLE;
    if (!r) {
        pp_run();
        const stream_t *s = find(handle); /* unlocked meanwhile, if there was a host function */
        r = !s ? INVALID_HANDLE : s->ctx->error ? s->ctx->error : is_done(s, last_seq) ? OK : NOT_READY;
    }
    return pp_end(r);
}

int cuStreamSynchronize(void *handle)
{
    int r = pp_begin_in(__func__);
    if (!r && !find(handle))
        r = INVALID_HANDLE;
    if (!r) {
        const stream_t *s;
        uint64_t seq = last_seq;
        paper.waits++;
        paper.default_waits += (uintptr_t)handle <= 1;
        for (pp_run(); (s = find(handle)) && !s->ctx->error && !is_done(s, seq); pp_run())
            pp_pause();
        r = s ? s->ctx->error : INVALID_HANDLE;
    }
    return pp_end(r);
}

int cuCtxSynchronize(void)
{
    int r = pp_begin_in(__func__);
    if (!r) {
        context_t *ctx = pp_current();
        uint64_t seq = last_seq;
        paper.waits++;
        paper.context_waits++;
        for (bool more = true; more;) {
            pp_run();
            more = false;
            for (const stream_t *s = streams; s && !more; s = s->next)
                more = s->ctx == ctx && s->first && s->first->seq <= seq;
            if (more)
                pp_pause();
        }
        r = ctx->error;
    }
    return pp_end(r);
}

static int post_value(int r, kind_t kind, void *handle, uintptr_t at, uint32_t value, unsigned flags)
{
    stream_t *s;
    uint32_t key, *word = NULL;
    if (!r)
        r = pp_stream_here(handle, &s);
    if (!r && !(word = pp_word(at, &key)))
        r = INVALID_VALUE;
    if (!r) {
        const block_t *b = pp_block((void *)at);
        op_t op = {.kind = kind, .dst = {.at = (void *)at, .block = b ? b->id : 0}, .value = value, .flags = flags};
        op.arg = word;
        op.width = key;
        pp_post(s, &op);
    }
    return r;
}

#ifndef PAPER_BARE
int cuStreamWaitValue32_v2(void *handle, uintptr_t at, uint32_t value, unsigned flags)
{
    int r = pp_begin_in(__func__);
    return pp_end(post_value(r ? r : flags > 3 ? INVALID_VALUE : OK, WAIT_VALUE, handle, at, value, flags));
}
#endif

int cuStreamWriteValue32_v2(void *handle, uintptr_t at, uint32_t value, unsigned flags)
{
    int r = pp_begin_in(__func__);
    return pp_end(post_value(r ? r : flags > 1 ? INVALID_VALUE : OK, WRITE_VALUE, handle, at, value, flags));
}

int cuLaunchHostFunc(void *handle, void (*fn)(void *arg), void *arg)
{
    stream_t *s;
    int r = pp_begin_in(__func__);
    if (!r)
        r = fn ? pp_stream_here(handle, &s) : INVALID_VALUE;
    if (!r)
        pp_post(s, &(op_t){.kind = CALL, .fn = fn, .arg = arg});
    return pp_end(r);
}

/* --- for the test --------------------------------------------------------------------------------------------------------- */

static int set_held(int r, void *handle, bool held)
{
    if (!r)
        pp_run();
    stream_t *s = r ? NULL : find(handle);
    if (!r && !s)
        r = INVALID_HANDLE;
    if (!r) {
        if (s->held && !held)
            s->clock = pp_now(); /* what takes time begins now */
        s->held = held;
    }
    return pp_end(r);
}

int paper_hold(void *handle)
{
    return set_held(pp_begin(__func__), handle, true);
}

int paper_release(void *handle)
{
    return set_held(pp_begin(__func__), handle, false);
}

int cuStreamGetCtx(void *handle, void **out)
{
    int r = pp_begin(__func__);
    stream_t *s = r ? NULL : find(handle);
    if (!r && !s)
        r = INVALID_HANDLE;
    if (!r)
        *out = s->ctx;
    return pp_end(r);
}
