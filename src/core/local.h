/* core/local.h - what the files of this room share and nobody else sees.
 *
 * Everything here is for the driver only, unless it says any thread. */
#ifndef WEFTI_CORE_LOCAL_H
#define WEFTI_CORE_LOCAL_H

#include <time.h>

#include "base/futex.h"
#include "core/core.h"

/* How many rounds or deliveries that did something go by between two looks at the coarse clock; enough quiet calls that the
 * fabric may take its time; also set to make it look at everything. */
enum { WEFTI_BUSY_LOOK = 8, WEFTI_QUIET_LONG = 256, WEFTI_QUIET_MANY = 1u << 30 };
/* A sleep ends after this long even if nobody calls: a lost wake-up costs a quarter of a second and shows in rescued_wakeups. */
#define WEFTI_SAFETY_NS (250 * WEFT_MILLISECOND)

static inline uint32_t wefti_op_state(const weft_op_t *op)
{
    return atomic_load_explicit(&wefti_opx((weft_op_t *)(uintptr_t)op)->state, memory_order_acquire);
}
static inline bool wefti_op_state_done(uint32_t state)
{
    state &= WEFTI_OP_STATE;
    return state == WEFTI_OP_DONE || state == WEFTI_OP_IDLE;
}

/* Has the coarse clock moved since it was last asked? */
static inline bool wefti_ticked(weft_runtime_t *rt)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    int64_t tick = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    bool moved = tick != rt->coarse_tick;
    rt->coarse_tick = tick;
    return moved && !rt->virtual_time;
}
/* Something was done that may have taken long: every few times see whether it did. True: timers are due to be looked at. */
static inline bool wefti_did(weft_runtime_t *rt)
{
    if (++rt->long_rounds % WEFTI_BUSY_LOOK || !wefti_ticked(rt))
        return false;
    rt->until_clock = 0;
    return true;
}

/* op.c */
/* Complete one that was not started, with the sentence of this thread's last error if that is about it. */
void wefti_op_failed(weft_op_t *op, weft_status_t st);
/* Ask an operation to end: as weft_op_cancel(), for any reason. */
void wefti_op_ask(weft_op_t *op, weft_status_t why);
/* Deliver up to `most` completed operations, or fewer if their callbacks take long; how many. */
unsigned wefti_deliver(weft_runtime_t *rt, unsigned most);
/* Make DONE of an operation that is not to be touched after this; `queued`: WEFTI_OP_QUEUED or 0. Its callback, or NULL. */
weft_op_fn wefti_op_done(weft_runtime_t *rt, weft_op_t *op, uint32_t queued);
/* Undo prepare for an operation that the closed inbox did not take: nobody has it, also if it was cancelled meanwhile. */
void wefti_op_unpost(weft_op_t *op);
/* Leave timer and token. */
void wefti_op_untrack(weft_op_t *op);

/* inbox.c */
extern const wefti_op_kind_t wefti_call_kind;
bool wefti_inbox_push(weft_runtime_t *rt, weft_op_t *node); /* any thread; false: the runtime is closed */
unsigned wefti_inbox_drain(weft_runtime_t *rt);
/* Wake the threads that wait for operations that are done; those that wait for several shards, too. */
void wefti_wake_waiters(weft_runtime_t *rt);
/* Wake the driver if it sleeps, and whoever waits beside it: the runtime closes. Any thread. */
void wefti_wake_all(weft_runtime_t *rt);
/* Leave without what is due: for calls that change nothing a sleeping loop would have to know. */
void wefti_leave_quietly(weft_runtime_t *rt, weft_runtime_t *was);
/* Wake a thread that waits to drive, if nobody drives and none was woken yet. Any thread. */
void wefti_hand_on(weft_runtime_t *rt);

/* progress.c */
/* Inbox and fabric: the part of progress that an event can announce. */
unsigned wefti_look(weft_runtime_t *rt, bool idle);

/* timer.c */
unsigned wefti_timers_run(weft_runtime_t *rt);
/* Its deadline, from now on. WEFT_ERR_NOMEM. */
weft_status_t wefti_op_timer_after(weft_runtime_t *rt, weft_op_t *op, uint64_t ns);
/* Nanoseconds from now to the next timer; WEFT_FOREVER for none. Reads the clock if there is one. */
uint64_t wefti_timers_next(weft_runtime_t *rt);

/* sleep.c */
/* Sleep until an event, a post, the next timer or `until` (fabric time). False: this fabric has nothing to sleep on. */
bool wefti_sleep(weft_runtime_t *rt, uint64_t until);

/* wait.c */
/* What a wait waits for. `done`: is it there? `mark`: the same, and if not, whoever brings it now wakes rt->done_seq, or has
 * his driver do it (WEFTI_DUE_WAKE). Any thread. */
typedef struct wefti_wait {
    bool (*done)(void *arg);
    bool (*mark)(void *arg);
    void *arg;
} wefti_wait_t;
/* WEFT_OK, _PENDING, _STATE (inside a callback), _FORKED, _CLOSED (and what it waits for did not come), _UNSUPPORTED (virtual
 * time, and nothing comes). Any thread. */
weft_status_t wefti_wait(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t timeout_ns);
/* The same for what any shard of a runtime can bring. */
weft_status_t wefti_wait_across(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t timeout_ns);
/* Drive until done(arg), spinning and sleeping as configured. For a thread that is the driver. */
weft_status_t wefti_drive(weft_runtime_t *rt, const wefti_wait_t *what, uint64_t timeout_ns);

/* token.c */
bool wefti_token_cancelled(const weft_token_t *token);
bool wefti_token_takes(const weft_token_t *token, const weft_runtime_t *rt); /* is it of this runtime? */
weft_status_t wefti_token_join(weft_token_t *token, weft_op_t *op); /* WEFT_ERR_NOMEM */
void wefti_token_part(weft_token_t *token, weft_op_t *op);

/* group.c: members of groups of a runtime with several shards, on the thread that posts one */
bool wefti_group_post(weft_op_t *op);   /* it is posted: take GROUPED off. False: its group has let it go */
void wefti_group_unpost(weft_op_t *op); /* it could not be posted, and was not begun: put GROUPED on again */
void wefti_group_left(weft_op_t *op);   /* its group is over and waits for it, but it will not be posted */

/* queue.c */
bool wefti_queue_takes(const weft_queue_t *queue, const weft_runtime_t *rt); /* is it of this runtime? */
void wefti_queue_count(weft_queue_t *queue, int by); /* operations under way that name it; any thread */
void wefti_queue_push(weft_runtime_t *rt, weft_queue_t *queue, weft_op_t *op);
void wefti_queues_cut(weft_runtime_t *rt); /* the runtime closes: queues are on their own from here on */

/* run.c */
void wefti_run_step(weft_op_t *op);

/* thread.c */
weft_status_t wefti_thread_start(weft_runtime_t *rt);
/* Stop and join it; the runtime was shut down on it. Not from the thread itself. False: it is in a callback that has not
 * returned at `bound`, a time of the clock, and goes on. */
bool wefti_thread_stop(weft_runtime_t *rt, uint64_t bound);

/* runtime.c */
void wefti_runtime_release(weft_runtime_t *rt); /* the memory of core, and nothing else: it is closed from here on */

/* close.c */
extern uint64_t wefti_close_bound; /* ns; tests make it shorter */
void wefti_shutdown(weft_runtime_t *rt);

/* opts.c */
weft_status_t wefti_runtime_configure(weft_runtime_t *rt, const weft_runtime_opts_t *opts);

/* fork.c */
void wefti_fork_watch(void); /* any thread */
void wefti_fork_list(weft_runtime_t *rt);   /* it is open: a forked child must not drive it */
void wefti_fork_unlist(weft_runtime_t *rt);

#endif
