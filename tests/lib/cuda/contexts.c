/* tests/lib/cuda/contexts.c - contexts of the CUDA driver made of paper, and the stack of them that each thread has. */
#include "parts.h"

enum { DEPTH = 16 };

static context_t *primary[DEVICES_MAX], *contexts; /* all there ever were: whoever leaves one behind is not to blame */
static _Thread_local context_t *stack[DEPTH];
static _Thread_local int depth;

context_t *pp_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int pp_need_context(void)
{
    context_t *ctx = pp_current();
    return !ctx ? INVALID_CONTEXT : ctx->alive ? ctx->error : CONTEXT_IS_DESTROYED;
}

static context_t *context_new(int device)
{
    static unsigned long long last;
    context_t *ctx = pp_new(sizeof *ctx);
    *ctx = (context_t){.next = contexts, .device = device, .alive = 1, .id = ++last};
    contexts = ctx;
    paper.contexts++;
    return ctx;
}

static int check_context(const context_t *ctx)
{
    const context_t *at = contexts;
    while (at && at != ctx)
        at = at->next;
    return !at ? INVALID_CONTEXT : at->alive ? OK : CONTEXT_IS_DESTROYED;
}

context_t *paper_context_new(int device)
{
    pthread_mutex_lock(&paper.lock);
    context_t *ctx = context_new(device);
    pthread_mutex_unlock(&paper.lock);
    return ctx;
}

void paper_context_destroy(context_t *ctx)
{
    pthread_mutex_lock(&paper.lock);
    ctx->alive = 0;
    pthread_mutex_unlock(&paper.lock);
}

int cuDevicePrimaryCtxRetain(void **out, int device)
{
    int r = pp_begin(__func__);
    if (!r)
        r = pp_check_device(device);
    if (!r) {
        if (!primary[device])
            primary[device] = context_new(device);
        *out = primary[device];
    }
    return pp_end(r);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    int r = pp_begin(__func__);
    return pp_end(r ? r : pp_check_device(device));
}

int cuCtxCreate_v2(void **out, unsigned flags, int device)
{
    int r = pp_begin(__func__);
    (void)flags;
    if (!r)
        r = pp_check_device(device);
    if (!r && depth == DEPTH)
        r = INVALID_CONTEXT;
    if (!r)
        *out = stack[depth++] = context_new(device);
    return pp_end(r);
}

int cuCtxDestroy_v2(context_t *ctx)
{
    int r = pp_begin(__func__);
    if (!r)
        r = check_context(ctx);
    if (!r && ctx == primary[ctx->device])
        r = INVALID_CONTEXT;
    if (!r) {
        pp_run();
        ctx->alive = 0;
        pp_context_streams_free(ctx);
        pp_context_events_free(ctx);
        pp_context_memory_free(ctx);
        depth -= pp_current() == ctx;
    }
    return pp_end(r);
}

int cuCtxGetCurrent(void **out)
{
    int r = pp_begin(__func__);
    if (!r)
        *out = pp_current();
    return pp_end(r);
}

int cuCtxSetCurrent(context_t *ctx)
{
    int r = pp_begin(__func__);
    if (!r && ctx)
        r = check_context(ctx);
    if (!r) {
        depth -= depth > 0;
        if (ctx)
            stack[depth++] = ctx;
    }
    return pp_end(r);
}

#ifndef PAPER_OLD
int cuCtxGetId(context_t *ctx, unsigned long long *out)
{
    int r = pp_begin(__func__);
    if (!r && !ctx)
        ctx = pp_current();
    if (!r && !ctx)
        r = INVALID_CONTEXT;
    if (!r)
        *out = ctx->id;
    return pp_end(r);
}
#endif

int cuCtxGetDevice(int *out)
{
    int r = pp_begin(__func__); /* it succeeds after a failed copy too */
    if (!r)
        r = !pp_current() ? INVALID_CONTEXT : pp_current()->alive ? OK : CONTEXT_IS_DESTROYED;
    if (!r)
        *out = pp_current()->device;
    return pp_end(r);
}

int cuCtxPushCurrent_v2(context_t *ctx)
{
    int r = pp_begin(__func__);
    if (!r)
        r = paper.push_fails ? paper.push_fails : depth == DEPTH ? INVALID_CONTEXT : check_context(ctx);
    if (!r)
        stack[depth++] = ctx;
    return pp_end(r);
}

int cuCtxPopCurrent_v2(void **out)
{
    int r = pp_begin(__func__);
    if (!r && !depth)
        r = INVALID_CONTEXT;
    if (!r) {
        depth--;
        if (out)
            *out = stack[depth];
    }
    return pp_end(r);
}

int cuCtxEnablePeerAccess(context_t *peer, unsigned flags)
{
    int r = pp_begin_in(__func__);
    if (!r)
        r = flags ? INVALID_VALUE : check_context(peer);
    if (!r && (paper.no_peer || peer->device == pp_current()->device))
        r = PEER_ACCESS_UNSUPPORTED;
    if (!r && pp_current()->peers >> peer->device & 1)
        r = PEER_ACCESS_ALREADY_ENABLED;
    if (!r)
        pp_current()->peers |= 1u << peer->device;
    return pp_end(r);
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
