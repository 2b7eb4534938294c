/* core/core.h - the runtime and its operations, as the rooms above see them. op.h: what an operation is; runtime.h: what a
 * runtime is, and how a thread becomes its driver; post.h: how an operation is posted and completed. */
#ifndef WEFTI_CORE_H
#define WEFTI_CORE_H

#include "core/post.h"
#include "core/shards.h"

/* Run call->fn on the driver: now if this thread is or can become it, else through the inbox. *call is kept by the caller until
 * it ran; fn may free it. False: the runtime is closed, and fn will not run. */
typedef struct wefti_call {
    weft_op_t op; /* an inbox node */
    void (*fn)(struct wefti_call *call);
} wefti_call_t;
bool wefti_call_on_driver(weft_runtime_t *rt, wefti_call_t *call);
/* The same, but never now: other work of the driver has its turn before. */
bool wefti_call_later(weft_runtime_t *rt, wefti_call_t *call);

/* Run answer(arg) on the driver and wait until it has run. Its status, with its sentence. Inside a callback of the runtime it
 * runs at once; inside one of another runtime it is refused, since two such callbacks could wait for each other:
 * WEFT_ERR_STATE. Also WEFT_ERR_CLOSED, _FORKED: it did not run. */
weft_status_t wefti_ask(weft_runtime_t *rt, weft_status_t (*answer)(void *arg), void *arg);

/* Calls that post and wait: `wefti_sync_begin(&op, timeout)`, the post, `wefti_sync_end(&op, status of the post)`.
 * WEFT_ERR_STATE inside a callback. The time is the operation's own, so that the buffers are the caller's again when the call
 * returns. */
weft_status_t wefti_sync_begin(weft_op_t *op, uint64_t timeout_ns);
weft_status_t wefti_sync_end(weft_op_t *op, weft_status_t posted);

/* Arm (or re-arm) a timer at fabric time `when`. WEFT_ERR_NOMEM. Driver only. */
weft_status_t wefti_timer_at(weft_runtime_t *rt, wefti_timer_t *t, uint64_t when);
void wefti_timer_stop(weft_runtime_t *rt, wefti_timer_t *t);
/* Reads the clock. rt->now is cheaper and a little old. */
uint64_t wefti_now(weft_runtime_t *rt);

/* Progress once: fabric, inbox, timers, deliveries. Driver only. */
unsigned wefti_progress(weft_runtime_t *rt);

#endif
