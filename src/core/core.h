/* core/core.h - the runtime and its operations, as the rooms above see them.
 *
 * One thread at a time drives a runtime: it holds `driver`. Everything that is not marked as any-thread belongs to whoever
 * drives, so nothing here needs a lock. Three ways to hold it:
 *   - the runtime's own thread (WEFT_PROGRESS_THREAD) holds it for as long as it lives;
 *   - a caller (CALLER, LOOP) takes it for the length of one post, one progress, or one wait;
 *   - a callback runs on a thread that already holds it.
 * A post by a thread that cannot have it at once goes through the inbox, and the driver starts the operation. wefti_ask() is the one way
 * to have something done there and wait for it.
 *
 * The end: weft_runtime_close() takes the driver's place, ends everything, closes the inbox, and waits for whoever is `inside`: threads
 * that wait or look at tables of the runtime without driving it. The memory of a runtime stays one (base/handle.h), so that a thread
 * that comes too late finds a closed runtime and not another object. tests/unit/core_close.c.
 *
 * States of an operation (opx->state):
 *
 *     IDLE --post--> POSTED --complete--> READY --deliver--> DONE --post--> POSTED ...
 *                     |  \--- (no fn, no queue, no watcher) --> DONE
 *                     \--cancel--> ASKED --complete--> READY
 *     a link's next: POSTED --the step before succeeded--> LINKED --its own post--> POSTED
 *
 * Only the driver moves it from POSTED on, except POSTED -> ASKED. Bits beside the state say who else holds it: INBOX (it sits in
 * the inbox, to be started or cancelled; completion waits in READY until the inbox has let go of it), QUEUED (it is in its
 * completion queue), WAITED (a thread sleeps until it is done, and must be woken), HOOKED (a callback was attached after the post);
 * STOPPED, with IDLE or LINKED, says that it was cancelled before its post; GROUPED, with IDLE, that it is a member of a group and not posted
 * yet. After the store of DONE, and the pop from its queue, the library does not touch the operation again; its owner may free it or post
 * it anew.
 * tests/unit/core_op.c and tests/sim hold us to exactly one walk per post. */
#ifndef WEFTI_CORE_H
#define WEFTI_CORE_H

#include <assert.h>
#include <stdatomic.h>
#include <weft/extend.h>
#include <weft/op.h>
#include <weft/runtime.h>

#include "base/config.h"
#include "base/detail.h"
#include "base/handle.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mpsc.h"
#include "base/rng.h"
#include "fabric/fabric.h"

/* --- operations ------------------------------------------------------------------------------------------------------- */

enum {
    WEFTI_OP_IDLE = 0, WEFTI_OP_POSTED = 1, WEFTI_OP_READY = 2, WEFTI_OP_DONE = 3, WEFTI_OP_ASKED = 4, WEFTI_OP_LINKED = 5,
    WEFTI_OP_STATE = 7, /* mask of the above */
    WEFTI_OP_WAITED = 8, WEFTI_OP_INBOX = 16, WEFTI_OP_QUEUED = 32, WEFTI_OP_HOOKED = 64, WEFTI_OP_STOPPED = 128,
    WEFTI_OP_GROUPED = 256
};

/* What a room says about the operations it starts: static const, one per kind of operation. Extensions have the same. */
typedef weft_op_kind_t wefti_op_kind_t;

/* Told of a completion instead of fn and queue: groups, links, rooms that post on their own behalf. Runs on the driver, from the
 * ready list, once, after the operation became DONE: if it is not the watcher's own, its owner may have freed it, and only
 * rt->told (its status) is there to look at. */
typedef void (*wefti_watch_fn)(weft_op_t *op, void *arg);

/* The private part of weft_op_t. may_alias: to the program it is an array of numbers, and that is how it is zeroed. */
typedef struct __attribute__((may_alias)) wefti_opx {
    _Atomic uint32_t state;
    uint32_t flags;               /* WEFTI_OPF_* */
    weft_runtime_t *rt;
    const wefti_op_kind_t *kind;
    wefti_list_t link;            /* the room's list while POSTED, the ready list while READY */
    wefti_watch_fn watch;         /* set while a group or link watches */
    uint64_t room[17];            /* the room's own state: see wefti_op_scratch() */
    /* From here on what most operations never touch: with many under way, every line touched is a cache miss. */
    void *watch_arg;
    wefti_mpsc_node_t handed;     /* in the inbox, or in its completion queue */
    union {
        wefti_list_t token_link;
        uint64_t detail;          /* of one that is complete and failed: base/detail.h; 0: there is none */
    };
    wefti_heap_node_t timer;
    weft_op_fn late_fn;           /* with HOOKED: weft_op_attach() */
} wefti_opx_t;

enum {
    WEFTI_OPF_TIMED = 1,
    WEFTI_OPF_TOKEN = 2,
    WEFTI_OPF_INBOX_START = 4, /* it sits in the inbox to be started */
    WEFTI_OPF_STEP = 8,        /* on the ready list, and not complete: a link's next, or a function to run */
    WEFTI_OPF_LINKED = 16,     /* posted by a link's step */
    WEFTI_OPF_STOPPED = 32     /* it was cancelled before it was posted, and is not started yet */
};

_Static_assert(sizeof(wefti_opx_t) <= sizeof(((weft_op_t *)0)->priv), "weft_op_t.priv is too small");
_Static_assert(sizeof(weft_op_t) == 320, "weft_op_t is part of the ABI");

static inline wefti_opx_t *wefti_opx(weft_op_t *op) { return (wefti_opx_t *)(void *)op->priv; }
static inline weft_op_t *wefti_op_of_link(wefti_list_t *link)
{
    return wefti_container_of(wefti_container_of(link, wefti_opx_t, link), weft_op_t, priv);
}
static inline weft_op_t *wefti_op_of_handed(wefti_mpsc_node_t *node)
{
    return wefti_container_of(wefti_container_of(node, wefti_opx_t, handed), weft_op_t, priv);
}
static inline void *wefti_op_scratch_at(weft_op_t *op) { return wefti_opx(op)->room; }
#define wefti_op_scratch(op, type) ((type *)wefti_op_scratch_at(op))
#define wefti_op_of_scratch(ptr) \
    wefti_container_of(wefti_container_of((ptr), wefti_opx_t, room), weft_op_t, priv)
#define WEFTI_OP_ROOM_SIZE sizeof(((wefti_opx_t *)0)->room)

/* --- the runtime ------------------------------------------------------------------------------------------------------ */

typedef struct wefti_timer {
    wefti_heap_node_t node; /* key: when, in fabric time */
    void (*fn)(struct wefti_timer *t);
} wefti_timer_t;

/* What a room above keeps per runtime. Attached once, by src/open.c, before anything else happens; lower rooms first. */
typedef struct wefti_room {
    void (*shutdown)(weft_runtime_t *rt); /* the runtime closes: force everything down. Called from the top room down, then again
                                             after each progress until every room says idle */
    bool (*idle)(weft_runtime_t *rt);     /* nothing left that the fabric could still touch */
    void (*free)(weft_runtime_t *rt);     /* from the top room down */
    void (*stats)(weft_runtime_t *rt, weft_runtime_stats_t *stats);
} wefti_room_t;

enum {
    WEFTI_ROOM_MEM, WEFTI_ROOM_CONN, WEFTI_ROOM_MSG, WEFTI_ROOM_AM, WEFTI_ROOM_RMA, WEFTI_ROOM_REGISTRY, WEFTI_ROOM_RPC,
    WEFTI_ROOM_EXTEND,
    WEFTI_ROOM_N
};

struct weft_runtime {
    wefti_handle_t handle;
    /* These outlive the runtime: a thread that comes too late may touch them in its memory's next life. */
    _Atomic uint32_t inside;       /* threads inside, beside the driver: close waits for them */
    _Atomic uint32_t done_seq;     /* futex: bumped when a WAITED operation is done and when the driver is handed on */
    _Atomic uint32_t cancelling;   /* threads between asking an operation to end and handing it in: the inbox is not closed before */
    _Atomic uint32_t waiters;      /* threads asleep or about to be, and WEFTI_HANDED: one of them was told to take the driver */
    _Atomic bool virtual_time;     /* the fabric has no fd to sleep on: its clock is read every time */
    char name[128];

    /* touched by every post and progress; the first five outlive it, too */
    _Alignas(64) _Atomic uint32_t driver; /* 0 free, 1 taken; taken for good once it is closed, and in a forked child */
    _Atomic uint32_t fork_generation; /* WEFTI_CLOSED_GENERATION once it is closed */
    _Atomic uint8_t mode;          /* weft_progress_mode_t */
    _Atomic bool closing;          /* weft_runtime_close() was called */
    _Atomic bool ended;            /* and has ended everything: nobody may come in any more */
    uint32_t quiet;                /* progress calls in a row that found nothing. The first field that begins as zero */
    wefti_fabric_t *fabric;
    wefti_list_t ready;            /* completed operations to deliver */
    wefti_heap_t timers;           /* nodes of wefti_timer_t and of operations */
    uint64_t now;                  /* fabric time when last read */
    uint32_t until_clock;          /* progress calls until the clock is read again */
    bool delivering;               /* inside wefti_progress() */
    uint8_t leave_due;             /* WEFTI_DUE_*: what is to be done before the driver leaves */
    weft_status_t told;            /* status of the operation whose watch runs */
    uint64_t told_detail;          /* and why it failed: base/detail.h */
    uint64_t why, why_next;        /* detail of what fails now, and of the next that does: see wefti_why() */
    uint64_t ops_completed;
    uint64_t ops_at_once;          /* posted on the driver, and not counted in ops_posted */
    uint32_t armed;                /* weft_runtime_arm() succeeded and nobody progressed since. Not beside `delivering`: a load of
                                      both would wait for the store of one */

    /* touched by other threads, also by those that come too late: a post that fails, a push that was the last */
    _Alignas(64) wefti_mpsc_t inbox;
    _Atomic uint32_t sleeping;     /* the driver is about to sleep or asleep in the kernel */
    _Atomic int32_t handed_in;     /* in the inbox, or about to be. For a moment below zero, where a thread came too late */
    _Atomic uint64_t ops_posted;

    /* core's own, the driver's */
    _Alignas(64) wefti_list_t own;              /* operations of core under way: timers, groups, scope closes; through opx->link */
    weft_op_t *linking;            /* LINKED, and its post function has not posted it yet */
    bool ending;                   /* it is in wefti_shutdown() */
    const void *armed_by;          /* the thread of the foreign loop that armed it and did not progress since */
    uint32_t busy;                 /* rounds and deliveries that may have taken long */
    int64_t coarse_tick;           /* coarse clock when it was last read */

    /* the rest */
    void *thread;                  /* core's */
    wefti_config_t config;
    uint64_t spin_ns, heartbeat_ns, connect_timeout_ns, close_timeout_ns;
    bool beats_by_program;         /* heartbeats are sent only while it is driven */
    size_t recv_window, am_window;
    uint32_t am_messages;
    uint64_t am_hold_ns;
    uint32_t max_endpoints;
    uint8_t key[32];               /* hash of the pre-shared key */
    bool has_key;
    wefti_rng_t rng;
    uint64_t sleeps, wakeups, rescued_wakeups;
    _Atomic uint64_t rescued_waits; /* rescued_wakeups of threads that do not drive */
    wefti_list_t queues;           /* completion queues, to be cut off at close */
    wefti_list_t fork_link;        /* fork.c's */
    _Atomic uint32_t queues_lock;
    const wefti_room_t *rooms[WEFTI_ROOM_N];
    void *room_state[WEFTI_ROOM_N];
};

enum { WEFTI_DUE_WAKE = 1 /* a WAITED operation is done */, WEFTI_DUE_POKE = 2 /* a foreign loop sleeps on the fd */ };
#define WEFTI_HANDED (1u << 31)
#define WEFTI_CLOSED_GENERATION UINT32_MAX

/* What this thread drives now, or NULL. */
extern _Thread_local weft_runtime_t *wefti_driven __attribute__((tls_model("initial-exec")));
extern uint32_t wefti_fork_generation; /* bumped in every forked child; never WEFTI_CLOSED_GENERATION */

/* Open on a given fabric (taken over, also on error), with opts over config (config is taken over too). src/open.c and tests. */
weft_status_t wefti_runtime_open_on(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                    weft_runtime_t **rt_out);
/* Start what drives it (the thread), after the rooms were attached. */
weft_status_t wefti_runtime_start(weft_runtime_t *rt);
void wefti_runtime_attach(weft_runtime_t *rt, int room, const wefti_room_t *ops, void *state);
/* Check opts and lay them over config; the strings of `config` may then come from opts (copied). For src/open.c, which needs the
 * transports before there is a fabric. */
weft_status_t wefti_runtime_merge_opts(const weft_runtime_opts_t *opts, wefti_config_t *config);

/* --- driving ------------------------------------------------------------------------------------------------------------ */

static inline weft_progress_mode_t wefti_mode(const weft_runtime_t *rt)
{
    return (weft_progress_mode_t)atomic_load_explicit(&rt->mode, memory_order_relaxed);
}

/* Become the driver if that is possible without waiting. If true, call wefti_leave() with the same `was` soon; until then the runtime is
 * open. */
static inline bool wefti_enter(weft_runtime_t *rt, weft_runtime_t **was)
{
    *was = wefti_driven;
    if (*was == rt)
        return true; /* inside a callback, or the runtime's thread */
    if (wefti_mode(rt) == WEFT_PROGRESS_THREAD || atomic_exchange_explicit(&rt->driver, 1, memory_order_acquire))
        return false;
    wefti_driven = rt;
    return true;
}
void wefti_settle(weft_runtime_t *rt); /* do what is due before the driver leaves */
void wefti_leave_slow(weft_runtime_t *rt); /* after it left: someone used the inbox meanwhile, or waits to drive */
static inline void wefti_leave(weft_runtime_t *rt, weft_runtime_t *was)
{
    if (was == rt)
        return;
    if (__builtin_expect(rt->leave_due, 0))
        wefti_settle(rt);
    wefti_driven = was;
    /* seq_cst so that an inbox push that saw `driver` taken is seen here, or its pusher sees it free; the same with a waiter */
    atomic_store(&rt->driver, 0);
    if (__builtin_expect(!wefti_mpsc_empty_and_open(&rt->inbox) || atomic_load(&rt->waiters), 0))
        wefti_leave_slow(rt);
}
/* The runtime is of no use to the caller: it is closed, or this is a forked child. */
static inline bool wefti_gone(const weft_runtime_t *rt)
{
    return atomic_load_explicit(&rt->fork_generation, memory_order_relaxed) != wefti_fork_generation;
}
weft_status_t wefti_fail_gone(const weft_runtime_t *rt); /* WEFT_ERR_CLOSED or _FORKED, with a sentence */
static inline bool wefti_closing(const weft_runtime_t *rt) { return atomic_load_explicit(&rt->closing, memory_order_relaxed); }

/* For a thread that looks at tables of the runtime (not at what is the driver's) without driving it: the runtime stays until
 * wefti_part(). WEFT_ERR_CLOSED, _FORKED; the runtime must not be NULL. Short: close waits for it. */
weft_status_t wefti_join_slow(weft_runtime_t *rt);
static inline weft_status_t wefti_join(weft_runtime_t *rt)
{
    atomic_fetch_add(&rt->inside, 1);
    return __builtin_expect(atomic_load(&rt->ended) || wefti_gone(rt), 0) ? wefti_join_slow(rt) : WEFT_OK;
}
static inline void wefti_part(weft_runtime_t *rt) { atomic_fetch_sub(&rt->inside, 1); }

/* Run call->fn on the driver: now if this thread is or can become it, else through the inbox. *call is kept by the caller until
 * it ran; fn may free it. False: the runtime is closed, and fn will not run. */
typedef struct wefti_call {
    weft_op_t op; /* an inbox node */
    void (*fn)(struct wefti_call *call);
} wefti_call_t;
bool wefti_call_on_driver(weft_runtime_t *rt, wefti_call_t *call);

/* Run fn(arg) on the driver and wait until it has run. Inside a callback of the runtime it runs at once; inside one of another runtime
 * it is refused, since two such callbacks could wait for each other: WEFT_ERR_STATE. Also WEFT_ERR_CLOSED, _FORKED: fn did not run. */
weft_status_t wefti_ask(weft_runtime_t *rt, void (*fn)(void *arg), void *arg);

/* --- posting and completing ----------------------------------------------------------------------------------------------- */

weft_status_t wefti_op_prepare_slow(weft_runtime_t *rt, weft_op_t *op, uint32_t *flags_out);

/* Check an operation that is about to be posted: WEFT_ERR_STATE if it is under way already, _INVALID (both fn and queue), _CLOSED (the runtime
 * closes), _FORKED. It is not counted yet, and not POSTED before wefti_op_begin(): nobody can cancel what its room has not filled in. */
static inline weft_status_t wefti_op_mark(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_relaxed), flags = 0;
    if (__builtin_expect((state != WEFTI_OP_IDLE && state != WEFTI_OP_DONE) || wefti_closing(rt) || wefti_gone(rt) || op->token ||
                             op->queue,
                         0)) {
        weft_status_t st = wefti_op_prepare_slow(rt, op, &flags);
        if (st)
            return st;
    }
    if (x->rt != rt) /* a link posts what others may already wait for: they look at rt */
        x->rt = rt;
    x->kind = kind;
    x->link.next = NULL;
    x->flags = flags;
    return WEFT_OK;
}

/* It is under way from here on: `state` is POSTED, or POSTED | INBOX, or READY. Before that it may be cancelled at any time, and that sticks,
 * unless it was posted before and is DONE. */
static inline void wefti_op_begin_as(weft_op_t *op, uint32_t state)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t was = atomic_load_explicit(&x->state, memory_order_relaxed);
    if (was == WEFTI_OP_DONE) { /* whoever cancels it sees what its room filled in */
        atomic_store_explicit(&x->state, state, memory_order_release);
        return;
    }
    while (!atomic_compare_exchange_weak_explicit(&x->state, &was, state, memory_order_release, memory_order_relaxed))
        ;
    if (__builtin_expect(was & WEFTI_OP_STOPPED, 0))
        x->flags |= WEFTI_OPF_STOPPED;
}
/* For rooms that neither start it nor hand it to the inbox, but know of it themselves. */
static inline void wefti_op_begin(weft_op_t *op) { wefti_op_begin_as(op, WEFTI_OP_POSTED); }

/* The same, and count it. Any thread. */
static inline weft_status_t wefti_op_prepare(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind)
{
    weft_status_t st = wefti_op_mark(rt, op, kind);
    if (!st)
        atomic_fetch_add_explicit(&rt->ops_posted, 1, memory_order_relaxed);
    return st;
}

/* Undo prepare: the post fails after all. False: someone cancelled it meanwhile, so it has to complete. */
bool wefti_op_unprepare(weft_op_t *op);
/* The same on the driver, for one that was begun: what the post returns. st, or WEFT_OK if it has to complete, which it does with st. */
weft_status_t wefti_op_take_back(weft_op_t *op, weft_status_t st);

/* Prepare on the driver, where counting needs no atomic. */
static inline weft_status_t wefti_op_prepare_here(weft_runtime_t *rt, weft_op_t *op, const wefti_op_kind_t *kind)
{
    weft_status_t st = wefti_op_mark(rt, op, kind);
    rt->ops_at_once += !st;
    return st;
}

/* Hand a prepared operation to the driver: kind->start runs there. Any thread. WEFT_ERR_CLOSED: the runtime was closed meanwhile, and the
 * operation is as it was before it was prepared. */
weft_status_t wefti_op_inbox(weft_op_t *op);

/* A thread whose earlier posts still sit in the inbox must not overtake them. */
static inline bool wefti_may_pass_inbox(const weft_runtime_t *rt, const weft_runtime_t *was)
{
    return was == rt || wefti_mpsc_seems_empty(&rt->inbox);
}

/* For posts that prepare on the driver: become it, if nothing that was posted before is still in the inbox. If true, wefti_leave() soon. */
static inline bool wefti_enter_to_post(weft_runtime_t *rt, weft_runtime_t **was)
{
    if (!wefti_enter(rt, was))
        return false;
    if (__builtin_expect(wefti_may_pass_inbox(rt, *was), 1))
        return true;
    wefti_leave(rt, *was);
    return false;
}

/* A prepared operation could not be started, on the driver: what the caller did wrong and a lack of memory are returned, and the operation
 * is as before the post. What depends on the peer or on time completes it, with kind->failed, and WEFT_OK is returned: a program that looks
 * at the operation sees every such failure there, whenever it happened. */
weft_status_t wefti_op_not_started(weft_op_t *op, weft_status_t st);
/* Complete one that was not started, with the sentence of this thread's last error if that is about it. */
void wefti_op_failed(weft_op_t *op, weft_status_t st);
weft_status_t wefti_op_start_stopped(weft_op_t *op, weft_status_t (*start)(weft_op_t *op));
/* For rooms that begin in another way: was it cancelled before it was posted? */
static inline bool wefti_op_stopped(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    return x->flags & WEFTI_OPF_STOPPED || atomic_load_explicit(&x->state, memory_order_relaxed) & WEFTI_OP_STOPPED;
}
/* For a start() of a kind whose operations do not all stop: WEFT_ERR_CANCELLED if this one was cancelled before it was started. */
static inline weft_status_t wefti_op_may_start(weft_op_t *op)
{
    if (__builtin_expect((atomic_load_explicit(&wefti_opx(op)->state, memory_order_relaxed) & WEFTI_OP_STATE) == WEFTI_OP_ASKED, 0))
        return wefti_fail(WEFT_ERR_CANCELLED, "it was cancelled before it was started");
    return WEFT_OK;
}
/* Start a prepared operation, on the driver. The result is the post's. */
static inline weft_status_t wefti_op_start(weft_op_t *op, weft_status_t (*start)(weft_op_t *op))
{
    wefti_op_begin(op);
    if (__builtin_expect(wefti_opx(op)->flags & WEFTI_OPF_STOPPED, 0))
        return wefti_op_start_stopped(op, start);
    weft_status_t st = start(op);
    return __builtin_expect(st, 0) ? wefti_op_not_started(op, st) : WEFT_OK;
}

/* Start a prepared operation: here and now if this thread is or can become the driver, else through the inbox. `start` is kind->start, named
 * so that the compiler can inline it. */
static inline weft_status_t wefti_op_go_by(weft_runtime_t *rt, weft_op_t *op, weft_status_t (*start)(weft_op_t *op))
{
    weft_runtime_t *was;
    if (!wefti_enter(rt, &was))
        return wefti_op_inbox(op);
    weft_status_t st = wefti_may_pass_inbox(rt, was) ? wefti_op_start(op, start) : wefti_op_inbox(op);
    wefti_leave(rt, was);
    return st;
}
static inline weft_status_t wefti_op_go(weft_runtime_t *rt, weft_op_t *op)
{
    return wefti_op_go_by(rt, op, wefti_opx(op)->kind->start);
}

/* From the room, on the driver, once the operation really waits for something: arms its timeout and joins its token.
 * WEFT_ERR_NOMEM. Never calls kind->cancel from inside, even if the token was cancelled meanwhile: that comes through the inbox.
 * Operations that complete within the posting call never need it. */
weft_status_t wefti_op_track_slow(weft_op_t *op);
static inline weft_status_t wefti_op_track(weft_op_t *op)
{
    return __builtin_expect(op->timeout_ns || op->token, 0) ? wefti_op_track_slow(op) : WEFT_OK;
}

void wefti_op_complete_slow(weft_op_t *op);

/* Complete a POSTED operation, on the driver. It must be on no list of the room. */
static inline void wefti_op_complete(weft_op_t *op, weft_status_t status)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t posted = WEFTI_OP_POSTED;
    op->status = status;
    x->rt->ops_completed++;
    if (__builtin_expect(op->fn || op->queue || x->watch || x->flags || status, 0) ||
        !atomic_compare_exchange_strong_explicit(&x->state, &posted, WEFTI_OP_DONE, memory_order_acq_rel, memory_order_relaxed))
        wefti_op_complete_slow(op);
}

/* Begin a prepared operation and complete it with WEFT_OK, on the driver: for what is done within the post. */
static inline void wefti_op_begin_done(weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    if (__builtin_expect(x->flags || !(op->fn || op->queue), 0)) {
        wefti_op_begin(op);
        wefti_op_complete(op, WEFT_OK);
        return;
    }
    op->status = WEFT_OK;
    x->rt->ops_completed++;
    wefti_op_begin_as(op, WEFTI_OP_READY);
    x->flags = 0; /* a cancel that came while it was posted is too late */
    wefti_list_push_back(&x->rt->ready, &x->link);
}

/* What operations that fail from now on say (weft_op_error), until it is set back to what it was: `uint64_t was = wefti_why(rt, detail);
 * ...; wefti_why(rt, was);`. Driver only. */
static inline uint64_t wefti_why(weft_runtime_t *rt, uint64_t detail)
{
    uint64_t was = rt->why;
    rt->why = detail;
    return was;
}

/* Complete one that fails with a detail of its own; 0: none. */
static inline void wefti_op_complete_why(weft_op_t *op, weft_status_t status, uint64_t detail)
{
    if (status && detail)
        wefti_opx(op)->rt->why_next = detail;
    wefti_op_complete(op, status);
}

/* The way of a small message, which is sent within the call that posts it: if the operation can be posted and nobody is to be told,
 * none of the above is needed, only to say that it is done. A member of a group is GROUPED until it is posted, so that it never goes this way. */
static inline bool wefti_op_plain(const weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    uint32_t state = atomic_load_explicit(&x->state, memory_order_relaxed);
    return (state == WEFTI_OP_IDLE || state == WEFTI_OP_DONE) && !wefti_closing(rt) && !wefti_gone(rt) && !op->fn && !op->queue &&
           !op->token && !x->watch;
}
static inline void wefti_op_plain_done(weft_runtime_t *rt, weft_op_t *op)
{
    wefti_opx_t *x = wefti_opx(op);
    op->status = WEFT_OK;
    x->rt = rt;
    rt->ops_at_once++;
    rt->ops_completed++;
    atomic_store_explicit(&x->state, WEFTI_OP_DONE, memory_order_release);
}

/* Calls that post and wait: `wefti_block_begin(&op, timeout)`, the post, `wefti_block_end(&op, status of the post)`. WEFT_ERR_STATE inside a
 * callback. The time is the operation's own, so that the buffers are the caller's again when the call returns. */
weft_status_t wefti_block_begin(weft_op_t *op, uint64_t timeout_ns);
weft_status_t wefti_block_end(weft_op_t *op, weft_status_t posted);

/* --- timers, time ----------------------------------------------------------------------------------------------------------- */

/* Arm (or re-arm) a timer at fabric time `when`. WEFT_ERR_NOMEM. Driver only. */
weft_status_t wefti_timer_at(weft_runtime_t *rt, wefti_timer_t *t, uint64_t when);
void wefti_timer_stop(weft_runtime_t *rt, wefti_timer_t *t);
/* Reads the clock. rt->now is cheaper and a little old. */
uint64_t wefti_now(weft_runtime_t *rt);

/* Progress once: fabric, inbox, timers, deliveries. Driver only. */
unsigned wefti_progress(weft_runtime_t *rt);

#endif
