/* tests/lib/cuda/events.c - events made of paper: each recording of one is a marker, and what waits for it holds that. */
#include <stdlib.h>

#include "parts.h"

typedef struct event {
    context_t *ctx;
    marker_t *marker; /* of the last recording; NULL: none yet */
} event_t;

void pp_marker_put(marker_t *m)
{
    if (m && !--m->refs)
        free(m);
}

static void event_free(void *handle, event_t *e)
{
    pp_handle_drop(handle);
    pp_marker_put(e->marker);
    free(e);
    paper.live_events--;
}

void pp_context_events_free(context_t *ctx)
{
    size_t i = 0;
    for (void *handle; (handle = pp_handle_next('E', &i));) {
        event_t *e = pp_handle_get('E', handle);
        if (e->ctx == ctx)
            event_free(handle, e);
    }
}

int cuEventCreate(void **out, unsigned flags)
{
    int r = pp_begin_in(__func__);
    if (!r && flags > 3)
        r = flags > 7 ? INVALID_VALUE : NOT_SUPPORTED; /* between processes */
    if (!r) {
        event_t *e = pp_new(sizeof *e);
        e->ctx = pp_current();
        *out = pp_handle_new('E', e);
        paper.events++;
        paper.live_events++;
    }
    return pp_end(r);
}

int cuEventDestroy_v2(void *event)
{
    int r = pp_begin(__func__);
    event_t *e = r ? NULL : pp_handle_get('E', event);
    if (!r && !e)
        r = INVALID_HANDLE;
    if (!r)
        event_free(event, e);
    return pp_end(r);
}

int cuEventRecord(void *event, void *handle)
{
    stream_t *s;
    int r = pp_begin_in(__func__);
    if (!r)
        r = pp_stream_here(handle, &s);
    event_t *e = r ? NULL : pp_handle_get('E', event);
    if (!r && (!e || e->ctx != s->ctx))
        r = INVALID_HANDLE;
    if (!r) {
        pp_marker_put(e->marker);
        e->marker = pp_new(sizeof *e->marker);
        e->marker->refs = 2;
        pp_post(s, &(op_t){.kind = RECORD, .marker = e->marker});
    }
    return pp_end(r);
}

int cuEventQuery(void *event)
{
    int r = pp_begin(__func__);
    if (!r) {
        pp_run();
        const event_t *e = pp_handle_get('E', event);
        r = !e                              ? INVALID_HANDLE
            : !e->ctx->alive                ? CONTEXT_IS_DESTROYED
            : e->ctx->error                 ? e->ctx->error
            : !e->marker || e->marker->done ? OK
                                            : NOT_READY;
    }
    return pp_end(r);
}

int cuEventSynchronize(void *event)
{
    int r = pp_begin_in(__func__);
    const event_t *e = r ? NULL : pp_handle_get('E', event);
    if (!r && !e)
        r = INVALID_HANDLE;
    if (!r) {
        const context_t *ctx = e->ctx;
        marker_t *m = e->marker;
        paper.waits++;
        if (m)
            m->refs++;
        for (pp_run(); m && !m->done; pp_run())
            pp_pause();
        pp_marker_put(m);
        r = ctx->error;
    }
    return pp_end(r);
}

int cuStreamWaitEvent(void *handle, void *event, unsigned flags)
{
    stream_t *s;
    int r = pp_begin_in(__func__);
    if (!r)
        r = flags ? INVALID_VALUE : pp_stream_here(handle, &s);
    const event_t *e = r ? NULL : pp_handle_get('E', event);
    if (!r && !e)
        r = INVALID_HANDLE;
    if (!r && e->marker) {
        e->marker->refs++;
        pp_post(s, &(op_t){.kind = WAIT_EVENT, .marker = e->marker});
    }
    return pp_end(r);
}
