/* weft/extend.h - for libraries that offer operations of their own on a runtime.
 *
 * A library such as libweft-elements needs more than a program does: state of its own for each runtime and each endpoint, word
 * of endpoints that come and go, and operations that a program posts, waits for and cancels like all others. This header has
 * that, and the two libraries meet nowhere else. examples/extend is a whole extension in one file.
 *
 * The driver is the thread that drives the runtime: inside a callback, a hook, a timer or weft_ext_call() one is on it. Functions
 * that say "driver only" do nothing elsewhere, and return WEFT_ERR_STATE where they return a status.
 *
 * A runtime with several shards (weft/runtime.h) has a driver for each. The program's runtime is the first of them, the head, and
 * the others are runtimes too, which only extensions see. An extension is the head's alone and hears only of the head's
 * endpoints, unless it says `shards`: then every shard has it, with state of its own, and hooks, calls, timers and operations
 * belong to the shard that they name.
 *
 * Before 1.0 this header may change with each minor version: build an extension against the version that it runs with. */
#ifndef WEFT_EXTEND_H
#define WEFT_EXTEND_H

#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_ep weft_ep_t;

/* --- an extension ------------------------------------------------------------------------------------------------ */

/* What an extension is. Static: it is used as long as the process lives. Hooks may be NULL; all but ep_new and closed run on the
 * driver. */
typedef struct weft_ext {
    size_t size;
    const char *name;        /* for sentences and the log */
    uint64_t capability;     /* a bit that peers find in weft_ep_info_t.peer_capabilities. Default is: none. Bits 32 to 63 are
                                free for programs */
    size_t state_size;       /* bytes of state per runtime, zeroed: `state` below. At most 2^30 */
    size_t ep_state_size;    /* bytes of state per endpoint, zeroed: `ep_state` below. At most 2^30 */
    bool shards;             /* every shard has it, the head first; shards close before the head. Default is: only the head */

    /* A runtime opens; nobody uses it yet. It may do what a callback may: set handlers and timers, post operations, listen, open
     * endpoints, which have no state of extensions that were registered after this one. It cannot wait or close the runtime:
     * WEFT_ERR_STATE. An error makes weft_runtime_open() fail with it, and `closed` is not called. */
    weft_status_t (*open)(weft_runtime_t *rt, void *state);
    /* The runtime closes: begin to end everything. Called again after each progress until `idle` says true. No operation can be
     * posted any more; those of the extension have to be completed, with WEFT_ERR_CLOSED where nothing better is known. Those
     * that were tracked and wait when all extensions are idle are asked to end by cancel(). */
    void (*shutdown)(weft_runtime_t *rt, void *state);
    /* Nothing of the extension is under way on this runtime any more. NULL: always true. */
    bool (*idle)(weft_runtime_t *rt, void *state);
    /* The runtime has ended; the state is freed after this. On the thread that closes. */
    void (*closed)(weft_runtime_t *rt, void *state);

    void (*ep_new)(weft_ep_t *ep, void *ep_state);  /* initialise the state, and do nothing else. On the thread that opens it */
    void (*ep_up)(weft_ep_t *ep, void *ep_state);   /* it is connected, for the first time or again: send what waits */
    /* It cannot be used any more, or not until it is connected again: complete what waits for the peer, with `why`. Also called
     * when it closes or is aborted, once or twice. So it may have nothing to complete. */
    void (*ep_down)(weft_ep_t *ep, void *ep_state, weft_status_t why);
    void (*ep_free)(weft_ep_t *ep, void *ep_state); /* its memory goes after this */
} weft_ext_t;
#define WEFT_EXT_INIT WEFT_INIT(weft_ext_t)

/* Make an extension known: every runtime that is opened after this has it. Registering it again does nothing. Those that were
 * registered first are the last to be shut down, so register what yours is made of before it.
 *
 * Owns:    *ext stays the caller's and has to stay as it is. A shared library that registers one must not be unloaded (-z
 *          nodelete).
 * Threads: any.
 * Fails:   WEFT_ERR_INVALID (no name, a capability that is more than one bit or the library's own, too much state),
 *          WEFT_ERR_LIMIT (there are eight). */
WEFT_API weft_status_t weft_ext_register(const weft_ext_t *ext);

/* The state of an extension. NULL: the runtime was opened before the extension was registered, or is closed. Any thread that is
 * on the driver or between weft_ext_enter() and weft_ext_leave(). */
WEFT_API void *weft_ext_state(const weft_runtime_t *rt, const weft_ext_t *ext);
/* The same of an endpoint; NULL also once the endpoint is gone. Driver only. */
WEFT_API void *weft_ext_ep_state(const weft_ep_t *ep, const weft_ext_t *ext);

/* The head: the runtime that the program has. That of one with one shard is itself. NULL for NULL. Any thread. */
WEFT_API weft_runtime_t *weft_ext_head(const weft_runtime_t *rt);
/* The shard that has the endpoint, for calls, timers and operations on its driver. NULL for NULL. Any thread. */
WEFT_API weft_runtime_t *weft_ext_ep_shard(const weft_ep_t *ep);

/* --- a runtime that may be closed at any time -------------------------------------------------------------------- */

/* Keep the runtime from ending until weft_ext_leave(): for calls that look at state of their own, on any thread. For moments,
 * since weft_runtime_close() waits, ten seconds at most, also on this very thread. Then it returns WEFT_ERR_STATE: everything
 * has ended, and it has to be called again after weft_ext_leave(). Fails: WEFT_ERR_INVALID, WEFT_ERR_CLOSED, WEFT_ERR_FORKED;
 * then it is not to be left. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ext_enter(weft_runtime_t *rt);
WEFT_API void weft_ext_leave(weft_runtime_t *rt);
/* Is the runtime there? WEFT_OK, or WEFT_ERR_INVALID, WEFT_ERR_CLOSED, WEFT_ERR_FORKED with a sentence in weft_last_error(). A
 * pointer to a runtime may be asked about at any time. Take no lock of your own before it says WEFT_OK: in a forked child a
 * lock may be held for ever. Any thread. */
WEFT_API weft_status_t weft_ext_check(const weft_runtime_t *rt);
/* weft_runtime_close() has begun: nothing can be posted any more. Any thread. */
WEFT_API bool weft_ext_closing(const weft_runtime_t *rt);
/* Tells runtimes apart that have, one after the other, the same address. Any thread. */
WEFT_API uint32_t weft_ext_use(const weft_runtime_t *rt);
/* n random bytes, fit for secrets. On a simulated network they follow from its seed: there driver only. */
WEFT_API void weft_ext_random(weft_runtime_t *rt, void *buf, size_t n);
/* May this thread wait? WEFT_ERR_STATE inside a callback. For calls that post and wait: ask before the post. Any thread. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ext_may_wait(void);

/* --- on the driver ----------------------------------------------------------------------------------------------- */

/* A function to run on the driver. Zeroed once and with `fn` set by the caller, who keeps it until fn runs. fn may free it, or
 * hand it to weft_ext_call() again. */
typedef struct weft_ext_call {
    weft_op_t node; /* the library's */
    void (*fn)(struct weft_ext_call *call);
} weft_ext_call_t;

/* Run call->fn on the driver: within this call if this thread is the driver or can become it, else soon. Calls of one thread
 * run in their order. Unlike weft_runtime_call() it works while the runtime closes, and allocates nothing. Any thread. Fails:
 * WEFT_ERR_STATE (fn has not run yet since the call was last posted), and WEFT_ERR_INVALID, WEFT_ERR_CLOSED, WEFT_ERR_FORKED:
 * fn will not run. */
WEFT_API weft_status_t weft_ext_call(weft_runtime_t *rt, weft_ext_call_t *call);

/* A timer. Zeroed and with `fn` set by the caller, who keeps it while it is set. */
typedef struct weft_ext_timer {
    uint64_t when; /* what it was set to, rounded up to an even number; not to be written */
    uint64_t priv; /* the library's */
    void (*fn)(struct weft_ext_timer *timer);
} weft_ext_timer_t;

/* Have timer->fn called on the driver, once, at `when`, a time of weft_now(), or soon after. A timer that is set already is
 * moved, which cannot fail. Driver only. Fails: WEFT_ERR_NOMEM, WEFT_ERR_STATE. */
WEFT_API weft_status_t weft_ext_timer_set(weft_runtime_t *rt, weft_ext_timer_t *timer, uint64_t when);
/* It is not called any more. Driver only. Stopping one that is not set does nothing. */
WEFT_API void weft_ext_timer_stop(weft_runtime_t *rt, weft_ext_timer_t *timer);

/* --- operations -------------------------------------------------------------------------------------------------- */

/* A kind of operation: static const. Its functions run on the driver.
 *
 *     st = weft_ext_op_prepare(rt, op, &kind);            may it be posted?
 *     if (!st) {
 *         *weft_ext_scratch(op, mine_t) = ...;             what start() needs
 *         st = weft_ext_op_start(op);                     start() runs, now or on the driver soon
 *     }
 *     return st;                                          then, once, weft_ext_op_complete(op, status, sentence) */
typedef struct weft_op_kind {
    const char *name; /* begins the sentences of weft_op_error() */
    /* Start it. It may complete the operation, or leave it under way. An error that depends neither on the peer nor on time is
     * returned by weft_ext_op_start(), and the operation is as before: WEFT_ERR_INVALID, WEFT_ERR_NOMEM, WEFT_ERR_AGAIN,
     * WEFT_ERR_LIMIT, WEFT_ERR_FORKED, WEFT_ERR_STATE, WEFT_ERR_UNSUPPORTED, WEFT_ERR_RANGE, WEFT_ERR_TRUNCATED, WEFT_ERR_RIGHTS.
     * With any other, or if start() ran later, it completes with the error and the sentence of weft_last_error(). A start() that
     * has completed the operation returns WEFT_OK: an error is only logged then. Also called while the runtime closes. */
    weft_status_t (*start)(weft_op_t *op);
    /* It has to end early: `why` is WEFT_ERR_CANCELLED, WEFT_ERR_TIMEOUT, or WEFT_ERR_CLOSED if the runtime closes and shutdown()
     * did not end it. Complete it, now or when its buffers are free. May be called again (a timeout after a cancel), never after
     * completion. */
    void (*cancel)(weft_op_t *op, weft_status_t why);
    /* start() returned an error that nobody was told: let go of what the post gave it, and complete it. NULL: complete it. */
    void (*failed)(weft_op_t *op, weft_status_t st);
    void (*skip)(weft_op_t *op); /* with `stops`: called in place of start(), before failed(). NULL: nothing is */
    bool stops;   /* one that was cancelled before it started is not started. Default is: it is started, then cancelled */
    bool by_post; /* weft_ext_op_start() returns every error of a start() that it calls itself; one that runs later completes the
                     operation as ever. For operations that are not a program's */
    bool streams; /* with `stops`: its operations may have op->streams. start() runs when the stream has come so far */
    bool gates;   /* the library's own: the same, but start() runs at once */
} weft_op_kind_t;

#define WEFT_EXT_SCRATCH 136 /* bytes of an operation that belong to its kind, from prepare to completion */

/* Check an operation that is about to be posted. It is not under way before weft_ext_op_start(), and has to be started or taken
 * back. Any thread. Fails: WEFT_ERR_INVALID (a NULL; both fn and queue), WEFT_ERR_STATE (it is under way), WEFT_ERR_CLOSED,
 * WEFT_ERR_FORKED. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ext_op_prepare(weft_runtime_t *rt, weft_op_t *op, const weft_op_kind_t *kind);
/* Start an operation that was prepared. On an error nothing is under way, and no completion comes. Exception: one that is under
 * way already stays so, and this returns WEFT_ERR_STATE. Any thread. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ext_op_start(weft_op_t *op);
/* Take one back that was prepared and will not be started. One that is under way stays so. Any thread. */
WEFT_API void weft_ext_op_unprepare(weft_op_t *op);
/* WEFT_EXT_SCRATCH bytes for what its kind has to know of it, aligned for any type. They hold what was there before until they
 * are written. */
WEFT_API void *weft_ext_op_scratch(weft_op_t *op);
#define weft_ext_scratch(op, type) ((type *)weft_ext_op_scratch(op))
/* From start(), once it is clear that the operation waits: from here on its deadline, its token and the end of the runtime end
 * it, by cancel(). Not needed for what completes within start(). Driver only. Fails: WEFT_ERR_NOMEM, WEFT_ERR_STATE (it is not
 * under way). */
WEFT_API weft_status_t weft_ext_op_track(weft_op_t *op);
/* From start() of a kind without `stops`: WEFT_ERR_CANCELLED, with a sentence, if it was cancelled before it was started. */
WEFT_API weft_status_t weft_ext_op_may_start(weft_op_t *op);
/* Complete an operation that was started. One that is complete already stays as it is. The program may free it or post it again
 * from here on. sentence: of weft_ext_sentence(), for weft_op_error(); 0: that of the endpoint that ends, inside ep_down, and
 * else the text of the status. Driver only. */
WEFT_API void weft_ext_op_complete(weft_op_t *op, weft_status_t status, uint64_t sentence);

/* The short path, for what is done within the posting call, on any thread. True: the runtime is there, the operation may be
 * posted, and nobody has to be called when it completes. Then do the work, and complete it with weft_ext_op_done(); or prepare
 * it after all. */
WEFT_API bool weft_ext_op_plain(weft_runtime_t *rt, weft_op_t *op);
WEFT_API void weft_ext_op_done(weft_runtime_t *rt, weft_op_t *op, weft_status_t status);

/* --- sentences --------------------------------------------------------------------------------------------------- */

/* Remember a sentence on a failure: its number, for weft_ext_op_complete(). With an endpoint it begins with the peer's address
 * and name. The process remembers the last thousand. ep NULL: any thread, else driver only. 0 where there is none to remember. */
WEFT_API WEFT_PRINTF(2, 3) uint64_t weft_ext_sentence(const weft_ep_t *ep, const char *fmt, ...);
/* The number of the sentence of an operation that is complete and failed; 0: there is none. To pass on what an operation below
 * said. */
WEFT_API uint64_t weft_ext_op_sentence(const weft_op_t *op);

/* --- endpoints --------------------------------------------------------------------------------------------------- */

/* May an operation wait for this peer? WEFT_OK: it is connected, or may yet be. Else what it ends with, with a sentence in
 * weft_last_error(). Driver only. */
WEFT_API weft_status_t weft_ext_ep_usable(const weft_ep_t *ep);
/* End the connection: `why` is WEFT_ERR_PROTOCOL if the peer sent what it must not, and anything else if it is this side that
 * cannot go on. Operations on the endpoint fail with WEFT_ERR_PROTOCOL, soon. `what` is in the log and in weft_op_error(); it
 * has to stay. Driver only. */
WEFT_API void weft_ext_ep_break(weft_ep_t *ep, weft_status_t why, const char *what);

#ifdef __cplusplus
}
#endif
#endif
