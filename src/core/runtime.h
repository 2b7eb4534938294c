/* core/runtime.h - the runtime, and how a thread becomes its driver. The rooms include core/core.h.
 *
 * One thread at a time drives a runtime: it holds `driver`. Everything that is not marked as any-thread belongs to the driver,
 * so nothing here needs a lock. Three ways to be it:
 *   - the runtime's own thread (WEFT_PROGRESS_THREAD) is the driver for as long as it lives;
 *   - a caller (CALLER, LOOP) takes it for the length of one post, one progress, or one wait;
 *   - a callback runs on a thread that already is the driver.
 * Other threads reach the driver through the inbox (inbox.c).
 *
 * The end: weft_runtime_close() becomes the driver, ends everything, closes the inbox, and waits for the threads that are
 * inside: those that wait or look at tables of the runtime without driving it (handle.inside). The memory of a runtime stays
 * one (base/handle.h), so that a thread that comes too late finds a closed runtime and not another object.
 * tests/unit/core_close.c. */
#ifndef WEFTI_CORE_RUNTIME_H
#define WEFTI_CORE_RUNTIME_H

#include <time.h>
#include <weft/runtime.h>

#include "base/changed.h"
#include "base/config.h"
#include "base/hands.h"
#include "base/detail.h"
#include "base/handle.h"
#include "base/keys.h"
#include "base/log.h"
#include "base/rng.h"
#include "core/op.h"
#include "fabric/fabric.h"

typedef struct wefti_timer {
    wefti_heap_node_t node; /* key: when, in fabric time */
    void (*fn)(struct wefti_timer *t);
} wefti_timer_t;

/* What a room above keeps per runtime. src/open.c attaches the rooms, lower ones first, before anything else happens. */
typedef struct wefti_room {
    void (*shutdown)(weft_runtime_t *rt); /* the runtime closes: force everything down. Called from the top room down, and again
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

typedef struct wefti_busy {
    clockid_t clock;               /* of the thread, once it has one: its processor time */
    bool has_clock;
    uint64_t at, used;             /* when it was last looked at, and what the thread had used then, in ns */
    uint32_t permille;             /* of the time before that */
} wefti_busy_t;

struct weft_runtime {
    wefti_handle_t handle;         /* its `inside`: threads inside, beside the driver. Close waits for them */
    /* These outlive the runtime: a thread that comes too late may touch them in its memory's next life. */
    _Atomic uint32_t done_seq;     /* futex: bumped when a WAITED operation is done and when the driver is handed on */
    _Atomic uint32_t waiters;      /* threads asleep or about to be, and WEFTI_HANDED: one was told to become the driver */
    _Atomic uint32_t across;       /* of the head: threads that wait there for what other shards do, too */
    weft_queue_t *_Atomic pushing; /* the queue that its driver pushes to just now */
    _Atomic bool virtual_time;     /* the fabric has no fd to sleep on: its clock is read every time */
    /* shards.h: these as well */
    weft_runtime_t *_Atomic head;  /* of whose shards it is one: itself, unless another was opened first */
    _Atomic uint32_t n_shards;     /* of the head; 1 in others */
    _Atomic uint32_t shard;        /* its number */
    _Atomic bool closing_shards;   /* of the head: a thread closes it and the others */
    weft_runtime_t *_Atomic shards[WEFT_SHARDS_MAX]; /* of the head; the first is itself */
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
    uint64_t why, why_next;        /* detail of what fails now, and of the next that does: wefti_why() */
    wefti_fault_t fault;           /* why something below has failed: wefti_fault() */
    uint64_t ops_completed;
    uint64_t ops_at_once;          /* posted on the driver, and not counted in ops_posted */
    uint32_t armed;                /* weft_runtime_arm() succeeded and nobody progressed since. Not beside `delivering`: a load of
                                      both would wait for the store of one */

    /* touched by other threads, also by those that come too late */
    _Alignas(64) wefti_mpsc_t inbox;
    _Atomic uint32_t sleeping;     /* the driver is about to sleep or asleep in the kernel */
    _Atomic int32_t handed_in;     /* in the inbox, or about to be: it is not closed before this is 0. Outlives the runtime */
    _Atomic uint64_t ops_posted;   /* the first field behind handed_in that begins as zero */

    /* core's own, the driver's */
    _Alignas(64) wefti_list_t own; /* operations of core under way: timers and groups; through opx->link */
    bool ending;                   /* it is in wefti_shutdown() */
    _Atomic bool given_up;         /* it has ended, but a thread stayed inside: another weft_runtime_close() goes on */
    const void *armed_by;          /* the thread of the foreign loop that armed it and did not progress since */
    uint32_t long_rounds;          /* rounds and deliveries that may have taken long */
    int64_t coarse_tick;           /* coarse clock when it was last read */

    /* the rest */
    void *thread;                  /* thread.c's */
    wefti_config_t config;
    wefti_hands_user_t hands;      /* those that help with long copies: base/hands.h */
    uint64_t spin_ns;              /* config.spin, or the default of its mode */
    bool beats_by_program;         /* heartbeats are sent only while it is driven */
    wefti_keys_t *keys;            /* the pre-shared keys; NULL: it has none, nor will it have any. Others after
                                      wefti_keys_renew() */
    bool keys_in_file;             /* they are those of config.key_file */
    bool keys_bad, keys_warned;    /* what is in the file now cannot be used; and that was said */
    wefti_changed_t keys_seen;     /* the file, when it was read */
    bool has_key;                  /* keys is not NULL */
    wefti_rng_t rng;
    uint64_t sleeps, wakeups, rescued_wakeups;
    _Atomic uint64_t rescued_waits; /* rescued_wakeups of threads that do not drive */
    _Atomic uint32_t connections;  /* conn's, with those that are on their way to this shard */
    wefti_busy_t busy;             /* shards.c: what its thread has used */
    wefti_list_t queues;           /* completion queues, to be cut off at close */
    wefti_list_t fork_link;        /* fork.c's */
    _Atomic uint32_t queues_lock;
    const struct wefti_gate_ops *gates; /* gate.h; NULL: there is no device */
    const wefti_room_t *rooms[WEFTI_ROOM_N];
    void *room_state[WEFTI_ROOM_N];
};

/* Look at the runtime's key file. True: it has others now, and so has rt->keys. What cannot be used is told of in the log, if it
 * is still there at the next look, and the keys stay as they are. Driver. */
bool wefti_keys_renew(weft_runtime_t *rt);

enum { WEFTI_DUE_WAKE = 1 /* a WAITED operation is done */, WEFTI_DUE_POKE = 2 /* a foreign loop sleeps on the fd */ };
#define WEFTI_HANDED (1u << 31)
#define WEFTI_CLOSED_GENERATION UINT32_MAX

/* What this thread drives now, or NULL. */
extern _Thread_local weft_runtime_t *wefti_driven __attribute__((tls_model("initial-exec")));
extern uint32_t wefti_fork_generation; /* bumped in every forked child; never WEFTI_CLOSED_GENERATION */

/* How many idle threads may help its driver to copy: base/hands.h. None in virtual time, where every run is the same. */
static inline uint32_t wefti_hands_of(const weft_runtime_t *rt)
{
    return rt->virtual_time || !rt->config.copy_threads ? 0 : wefti_hands_free(rt->config.copy_threads);
}

/* Open on a given fabric (taken over, also on error), with opts over config (taken over too). src/open.c and tests. */
weft_status_t wefti_runtime_open_on(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                    weft_runtime_t **rt_out);
void wefti_runtime_attach(weft_runtime_t *rt, int room, const wefti_room_t *ops, void *state);
/* Start its thread, if it has one, after the rooms were attached. */
weft_status_t wefti_runtime_start(weft_runtime_t *rt);
/* Check opts and lay them over config. For src/open.c, which needs the transports before there is a fabric. */
weft_status_t wefti_runtime_merge_opts(const weft_runtime_opts_t *opts, wefti_config_t *config);

/* --- driving ---------------------------------------------------------------------------------------------------------------- */

static inline weft_progress_mode_t wefti_mode(const weft_runtime_t *rt)
{
    return (weft_progress_mode_t)atomic_load_explicit(&rt->mode, memory_order_relaxed);
}
static inline bool wefti_closing(const weft_runtime_t *rt) { return atomic_load_explicit(&rt->closing, memory_order_relaxed); }
/* The runtime is of no use to the caller: it is closed, or this is a forked child. */
static inline bool wefti_gone(const weft_runtime_t *rt)
{
    return atomic_load_explicit(&rt->fork_generation, memory_order_relaxed) != wefti_fork_generation;
}
weft_status_t wefti_fail_gone(const weft_runtime_t *rt); /* WEFT_ERR_CLOSED or _FORKED, with a sentence */

/* Become the driver if that is possible without waiting. If true, call wefti_leave() with the same `was` soon; until then the
 * runtime is open. */
static inline bool wefti_enter(weft_runtime_t *rt, weft_runtime_t **was)
{
    *was = wefti_driven;
    if (*was == rt)
        return true; /* inside a callback, or the runtime's thread */
    /* looked at first: an exchange that fails takes the line away from the driver, which uses it all the time */
    if (wefti_mode(rt) == WEFT_PROGRESS_THREAD || atomic_load_explicit(&rt->driver, memory_order_relaxed) ||
        atomic_exchange_explicit(&rt->driver, 1, memory_order_acquire))
        return false;
    wefti_driven = rt;
    return true;
}
void wefti_settle(weft_runtime_t *rt);     /* do what is due before the driver leaves */
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

/* A thread whose earlier posts are still in the inbox must not overtake them. */
static inline bool wefti_may_pass_inbox(const weft_runtime_t *rt, const weft_runtime_t *was)
{
    return was == rt || wefti_mpsc_seems_empty(&rt->inbox);
}
/* wefti_enter() for what must not overtake the earlier posts of this thread: false if some may still be in the inbox. */
static inline bool wefti_enter_to_post(weft_runtime_t *rt, weft_runtime_t **was)
{
    if (!wefti_enter(rt, was))
        return false;
    if (__builtin_expect(wefti_may_pass_inbox(rt, *was), 1))
        return true;
    wefti_leave(rt, *was);
    return false;
}

/* For a thread that looks at tables of the runtime (not at what is the driver's) without driving it: the runtime stays until
 * wefti_part(). WEFT_ERR_CLOSED, _FORKED; the runtime must not be NULL. Short: close waits for it. */
weft_status_t wefti_join_slow(weft_runtime_t *rt);
static inline void wefti_part(weft_runtime_t *rt) { atomic_fetch_sub(&rt->handle.inside, 1); }
static inline weft_status_t wefti_join(weft_runtime_t *rt)
{
    atomic_fetch_add(&rt->handle.inside, 1);
    return __builtin_expect(atomic_load(&rt->ended) || wefti_gone(rt), 0) ? wefti_join_slow(rt) : WEFT_OK;
}

#endif
