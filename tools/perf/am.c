/* tools/perf/am.c - the loops of active messages: handlers that answer, and handlers that take.
 *
 * am_lat   ping-pong from within the handlers at both ends, as active messages are used. Timed like tag_lat. With --answer the
 *          answer has another size.
 * am_bw    one way into a handler that takes the payload: it reads a payload that is here in place, and pulls one that waits at
 *          the sender, all into the same buffer (as in ucx_perftest), `outstanding` at a time. tests.c has the sender.
 * am_rate  the same with small messages.
 *
 * --memory other than host at the receiver: every payload is moved there, small ones too. --view: each is viewed instead, and
 * both of its ends are looked at. --kept: each is kept, and released on a later turn of the runtime.
 *
 * Everything here runs in progress, on the thread that drives. The thread that measures waits for `over`, a timer that is
 * cancelled when the count is full. Handlers do not notice a lost peer, but the session's next receive fails: `watch`. The
 * memory of the run stays until perf_am_end() has removed the handler. tests/tools/tools_perf.py and
 * tests/tools/tools_peer_loss.py check it. */
#include <sched.h>
#include <stdlib.h>

#include "perf.h"

#define FILL 0x5a /* what run.c puts into what is sent */
#define NEVER (UINT64_C(1000000) * WEFT_SECOND)

static void fail(perf_run_t *run, weft_status_t st)
{
    if (!run->am->status)
        run->am->status = st;
    weft_op_cancel(&run->am->over);
}

/* --- sending from a handler ------------------------------------------------------------------------------ */

static void send_next(perf_run_t *run, weft_ep_t *ep)
{
    perf_am_t *a = run->am;
    weft_op_t *op = &run->sends[a->send_at];
    weft_status_t st;
    if (__builtin_expect(!weft_op_done(op), 0)) {
        /* An answer may arrive before the send that it answers is complete. */
        a->retry_ep = ep;
        st = weft_timer_start(run->link->rt, 0, &a->retry);
    } else {
        a->send_at = a->send_at + 1 == run->n_sends ? 0 : a->send_at + 1;
        st = op->status;
        if (!st)
            st = weft_am_send(ep, PERF_AM_ID, run->header, run->plan.header, run->send_buf, run->send_size, op);
        if (++a->sent == run->plan.count && a->server)
            weft_op_cancel(&a->over);
    }
    if (__builtin_expect(st, 0))
        fail(run, st);
}

static void on_retry(weft_op_t *op, void *user)
{
    perf_run_t *run = user;
    if (op->status)
        fail(run, op->status);
    else
        send_next(run, run->am->retry_ep);
}

/* --- taking ---------------------------------------------------------------------------------------------- */

/* A message was taken. */
static inline void arrived(perf_run_t *run, weft_ep_t *ep)
{
    perf_am_t *a = run->am;
    uint64_t taken = a->taken + 1;
    __atomic_store_n(&a->taken, taken, __ATOMIC_RELAXED);
    if (run->plan.test == PERF_AM_LAT) {
        if (a->server) {
            send_next(run, ep);
        } else {
            if (run->histogram) {
                uint64_t now = perf_ticks();
                perf_record(run->histogram, now - a->before);
                a->before = now;
            }
            if (taken < run->plan.count) {
                a->ep_at = a->ep_at + 1 == run->link->n_eps ? 0 : a->ep_at + 1;
                send_next(run, run->link->eps[a->ep_at]);
            }
        }
    }
    if (taken == run->plan.count && !(a->server && run->plan.test == PERF_AM_LAT)) /* there the last answer ends it */
        weft_op_cancel(&a->over);
}

static void release_later(perf_am_t *a)
{
    for (unsigned i = 0; i < a->n_later; i++)
        weft_am_release(a->later[i]);
    a->n_later = 0;
}

static void on_sweep(weft_op_t *op, void *user)
{
    (void)op;
    release_later(user);
}

/* Release a kept message on a later turn. In caller mode drive() does it; a runtime with its own thread needs a timer. */
static void later(perf_run_t *run, weft_am_t *msg)
{
    perf_am_t *a = run->am;
    if (a->n_later == PERF_LATER)
        release_later(a);
    a->later[a->n_later++] = msg;
    if (run->link->threaded && weft_op_done(&a->sweep)) {
        weft_status_t st = weft_timer_start(run->link->rt, 0, &a->sweep);
        if (st)
            fail(run, st);
    }
}

/* Keep a message until a slot is free. False: no memory. */
static bool queue_up(perf_am_t *a, weft_am_t *msg)
{
    if (a->n_waiting == a->cap_waiting) {
        uint64_t cap = a->cap_waiting ? 2 * a->cap_waiting : 64;
        weft_am_t **grown = malloc(cap * sizeof(weft_am_t *));
        if (!grown)
            return false;
        for (uint64_t i = 0; i < a->n_waiting; i++)
            grown[i] = a->waiting[(a->waiting_at + i) & (a->cap_waiting - 1)];
        free(a->waiting);
        a->waiting = grown;
        a->waiting_at = 0;
        a->cap_waiting = cap;
    }
    a->waiting[(a->waiting_at + a->n_waiting++) & (a->cap_waiting - 1)] = msg;
    return true;
}

static weft_am_t *first_in_queue(perf_am_t *a)
{
    a->n_waiting--;
    return a->waiting[a->waiting_at++ & (a->cap_waiting - 1)];
}

/* Fetch the payload of `am`, which is `msg` if it was kept. */
static void fetch(perf_run_t *run, weft_am_t *am, weft_am_t *msg)
{
    perf_am_t *a = run->am;
    perf_slot_t *slot = a->idle;
    weft_status_t st;
    a->idle = slot->next;
    slot->msg = msg;
    slot->ep = am->ep;
    a->pulled = !run->plan.view;
    st = run->plan.view ? weft_am_view(am, &slot->op) : weft_am_pull(am, run->recv_buf, run->recv_size, &slot->op);
    if (st) {
        slot->next = a->idle;
        a->idle = slot;
        weft_am_release(msg);
        fail(run, st);
    }
}

static void on_fetched(weft_op_t *op, void *user)
{
    perf_slot_t *slot = user;
    perf_run_t *run = slot->run;
    perf_am_t *a = run->am;
    weft_status_t st = op->status;
    if (!st && run->plan.view) {
        const volatile char *at = op->buf;
        if (op->len != run->recv_size || at[0] != FILL || at[op->len - 1] != FILL)
            st = WEFT_ERR_PROTOCOL;
    }
    /* Before the answer: then a lent buffer is back when the answer arrives. */
    if (slot->msg && run->plan.kept && !st)
        later(run, slot->msg);
    else
        weft_am_release(slot->msg);
    slot->next = a->idle;
    a->idle = slot;
    if (st || a->status) {
        fail(run, st);
        return;
    }
    arrived(run, slot->ep);
    if (a->n_waiting) {
        weft_am_t *msg = first_in_queue(a);
        fetch(run, msg, msg);
    }
}

/* Not read in place. */
static void take_whole(perf_run_t *run, weft_am_t *am)
{
    perf_am_t *a = run->am;
    weft_am_t *msg = NULL;
    if (run->plan.view || run->plan.kept || !a->idle) {
        msg = weft_am_keep(am);
        if (!msg) {
            fail(run, WEFT_ERR_NOMEM);
            return;
        }
    }
    if (a->idle) {
        fetch(run, msg ? msg : am, msg);
    } else if (!queue_up(a, msg)) {
        weft_am_release(msg);
        fail(run, WEFT_ERR_NOMEM);
    }
}

static void on_message(weft_am_t *am, void *user)
{
    perf_run_t *run = user;
    perf_am_t *a = run->am;
    if (__builtin_expect(am->len != run->recv_size || am->header_len != run->plan.header || a->status, 0)) {
        fail(run, WEFT_ERR_PROTOCOL);
        return;
    }
    if (__builtin_expect(am->len && !(a->in_place && am->data), 0)) {
        take_whole(run, am);
        return;
    }
    if (run->plan.kept) {
        weft_am_t *msg = weft_am_keep(am);
        if (!msg) {
            fail(run, WEFT_ERR_NOMEM);
            return;
        }
        later(run, msg);
    }
    arrived(run, am->ep);
}

/* --- waiting --------------------------------------------------------------------------------------------- */

/* Drive until `over` is complete, the peer is gone, or nothing arrived for --timeout. */
static weft_status_t drive(perf_link_t *l, perf_run_t *run)
{
    perf_am_t *a = run->am;
    weft_status_t st;
    while (true) {
        uint64_t seen = a->taken, deadline = tool_now() + l->timeout_ns;
        do {
            for (unsigned spin = 0; spin < (l->yield ? 64 : 4096); spin++) { /* on a busy machine a yield takes long */
                if (weft_op_done(&a->over))
                    return a->status;
                if (!weft_runtime_progress(l->rt) && l->yield)
                    sched_yield();
                if (a->n_later)
                    release_later(a);
            }
            if (perf_peer_lost(run, &st))
                return st;
        } while (tool_now() < deadline);
        if (a->taken == seen)
            return WEFT_ERR_PENDING;
    }
}

/* The same while the runtime's thread drives. */
static weft_status_t sleep_over(perf_link_t *l, perf_run_t *run)
{
    perf_am_t *a = run->am;
    weft_op_t *ops[2] = {&a->over, run->watch};
    while (true) {
        uint64_t seen = __atomic_load_n(&a->taken, __ATOMIC_RELAXED);
        size_t which;
        weft_status_t st = weft_op_wait_any(ops, 2, l->timeout_ns, &which);
        if (weft_op_done(&a->over))
            return a->status;
        if (st == WEFT_ERR_PENDING && __atomic_load_n(&a->taken, __ATOMIC_RELAXED) != seen)
            continue;
        if (st || perf_peer_lost(run, &st))
            return st;
        ops[1] = NULL; /* the server is done, but its last messages are still on the way */
    }
}

static weft_status_t wait_over(perf_link_t *l, perf_run_t *run)
{
    weft_status_t st = l->threaded ? sleep_over(l, run) : drive(l, run);
    tool_cancel(&run->am->over);
    return st ? st : perf_await_all(l, run->sends, run->sends ? run->n_sends : 0);
}

/* --- both sides ------------------------------------------------------------------------------------------ */

weft_status_t perf_am_prepare(perf_link_t *l, perf_run_t *run)
{
    perf_am_t *a = run->am;
    weft_op_t done = WEFT_OP_INIT;
    weft_status_t st;
    for (uint64_t i = run->n_recvs; i-- > 0;) {
        perf_slot_t *slot = &a->slots[i];
        slot->op.fn = on_fetched;
        slot->op.user = slot;
        slot->run = run;
        slot->next = a->idle;
        a->idle = slot;
    }
    a->retry.fn = on_retry;
    a->retry.user = run;
    a->sweep.fn = on_sweep;
    a->sweep.user = a;
    st = weft_timer_start(l->rt, NEVER, &a->over);
    if (!st)
        st = weft_am_handle(l->rt, PERF_AM_ID, on_message, run, &done);
    if (st)
        return st;
    a->handling = true;
    st = perf_await(l, &done);
    if (!weft_op_done(&done)) {
        tool_cancel(&done);
    }
    return st;
}

weft_status_t perf_am_server(perf_link_t *l, perf_run_t *run)
{
    weft_status_t st = wait_over(l, run);
    /* Bytes that did not arrive make figures worthless. */
    if (!st && run->am->pulled && !perf_memory_check(&run->pages[run->recv_page], run->plan.size, FILL))
        st = WEFT_ERR_PROTOCOL;
    return st;
}

weft_status_t perf_am_ping(perf_link_t *l, perf_run_t *run)
{
    /* The first message is sent from progress too: from here on only the driving thread touches the run. */
    weft_status_t st;
    run->am->before = perf_ticks();
    run->am->retry_ep = l->eps[0];
    st = weft_timer_start(l->rt, 0, &run->am->retry);
    return st ? st : wait_over(l, run);
}

void perf_am_end(perf_run_t *run)
{
    perf_am_t *a = run->am;
    weft_op_t done = WEFT_OP_INIT, fence = WEFT_OP_INIT, *timers[] = {&a->over, &a->retry, &a->sweep};
    if (!run->link->rt)
        return; /* the runtime is closed */
    if (a->handling && !weft_am_handle(run->link->rt, PERF_AM_ID, NULL, NULL, &done))
        weft_op_wait(&done, WEFT_FOREVER);
    for (unsigned i = 0; i < sizeof timers / sizeof *timers; i++) {
        tool_cancel(timers[i]);
    }
    for (uint64_t i = 0; run->streams && a->slots && i < run->n_recvs; i++) /* those that wait for a stream */
        tool_cancel(&a->slots[i].op);
    /* A wait may end before the callback has run. When a timer that was started later is complete, it has. */
    if (!weft_timer_start(run->link->rt, 0, &fence))
        weft_op_wait(&fence, WEFT_FOREVER);
    release_later(a);
    while (a->n_waiting)
        weft_am_release(first_in_queue(a));
}
