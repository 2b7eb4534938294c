/* tools/perf/tests.c - the loops that are measured, from both sides: those of tag messages, and what all have in common.
 *
 * They are written as a careful user of the library would write them: operations in arrays that are posted again and again,
 * receives posted ahead, weft_op_done() and weft_runtime_progress() in caller mode, weft_op_wait() where the runtime has its
 * own thread.
 *
 * tag_lat   ping-pong. One tick reading per round trip, as in ucx_perftest; half of it goes into the histogram.
 *           In a stream (--stream) each side posts send and receive in the order in which they happen, and the server does
 *           not wait for the one to post the other: a receive that is posted ahead would hold up the answer behind it.
 * tag_bw    one way, `window` sends not complete at a time, one buffer at each side (as in ucx_perftest). The clock stops when
 *           the server's DONE is here, so that everything has arrived.
 * tag_rate  the same with small messages and a larger window.
 * am_*      in am.c, but for the sender of a stream, which is here.
 * rma_*     in rma.c. rpc_*: in rpc.c.
 * idle      nothing, and what that costs.
 *
 * Any operation that fails ends the loop with its status; operations still under way are the caller's to end (perf_link_drop). */
#include "perf.h"

/* Sends that are complete at once never make anyone call progress; packed ones leave, and credit comes in, only there. */
#define BATCH 256

static inline uint64_t run_tag(const perf_run_t *run)
{
    return run->plan.run << 32;
}

static weft_status_t post_recv(perf_run_t *run, uint64_t slot)
{
    uint64_t tag = run_tag(run) + (run->order ? slot : 0);
    return weft_msg_recv(run->recv_eps[slot], run->recv_buf, run->plan.size, tag, WEFT_TAG_FULL, &run->recvs[slot]);
}

static weft_status_t post_first_recvs(perf_run_t *run)
{
    uint64_t n = run->plan.count < run->n_recvs ? run->plan.count : run->n_recvs;
    /* In the order they will be taken: messages of one tag match receives as they were posted. */
    for (uint64_t i = 0; i < n; i++) {
        weft_status_t st = post_recv(run, run->order ? run->order[i] : i);
        if (st)
            return st;
    }
    return WEFT_OK;
}

/* --- ping-pong ------------------------------------------------------------------------------------------- */

static weft_status_t pong(perf_link_t *l, perf_run_t *run)
{
    const uint64_t count = run->plan.count, size = run->plan.size, tag = run_tag(run);
    uint64_t slot = 0;
    for (uint64_t i = 0; i < count; i++) {
        weft_status_t st = perf_await(l, &run->recvs[slot]);
        if (!st)
            st = perf_await(l, &run->sends[slot]);
        if (!st)
            st = weft_msg_send(run->recv_eps[slot], run->send_buf, size, tag, &run->sends[slot]);
        /* The answer first; the receive after next is posted while it is on its way. */
        if (!st && i + run->n_recvs < count)
            st = post_recv(run, slot);
        if (st)
            return st;
        if (++slot == run->n_recvs)
            slot = 0;
    }
    return perf_await_all(l, run->sends, run->n_sends);
}

static weft_status_t ping(perf_link_t *l, perf_run_t *run)
{
    const uint64_t count = run->plan.count, size = run->plan.size, tag = run_tag(run);
    perf_histogram_t *h = run->histogram;
    uint64_t slot = 0, last = 0, before, after;
    weft_status_t st = post_first_recvs(run);
    if (st)
        return st;
    before = perf_ticks();
    for (uint64_t i = 0; i < count; i++) {
        st = perf_await(l, &run->sends[slot]);
        if (!st)
            st = weft_msg_send(run->recv_eps[slot], run->send_buf, size, tag, &run->sends[slot]);
        /* The receive that the last answer took is posted again while this message is on its way. */
        if (!st && i && i - 1 + run->n_recvs < count)
            st = post_recv(run, last);
        if (!st)
            st = perf_await(l, &run->recvs[slot]);
        if (st)
            return st;
        if (h) {
            after = perf_ticks();
            perf_record(h, after - before);
            before = after;
        }
        last = slot;
        if (++slot == run->n_recvs)
            slot = 0;
    }
    return perf_await_all(l, run->sends, run->n_sends);
}

/* --- ping-pong in a stream ------------------------------------------------------------------------------- */

/* Does the stream keep the order of a ping-pong? */
static bool in_order(const perf_run_t *run)
{
    return run->plan.test == PERF_TAG_LAT && run->plan.stream == PERF_BOTH;
}

static weft_status_t pong_in_stream(perf_link_t *l, perf_run_t *run)
{
    const uint64_t count = run->plan.count, size = run->plan.size, tag = run_tag(run);
    uint64_t slot = 0, last = 0;
    weft_status_t st;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t next = slot + 1 == run->n_recvs ? 0 : slot + 1;
        st = weft_msg_send(run->recv_eps[slot], run->send_buf, size, tag, &run->sends[slot]);
        /* The next pair is posted while this one is on its way, when the one before is complete. */
        if (!st && i)
            st = perf_await(l, &run->recvs[last]);
        if (!st && i)
            st = perf_await(l, &run->sends[last]);
        if (!st && i + 1 < count)
            st = post_recv(run, next);
        if (st)
            return st;
        last = slot;
        slot = next;
    }
    st = perf_await(l, &run->recvs[last]);
    return st ? st : perf_await(l, &run->sends[last]);
}

static weft_status_t ping_in_stream(perf_link_t *l, perf_run_t *run)
{
    const uint64_t count = run->plan.count, size = run->plan.size, tag = run_tag(run);
    perf_histogram_t *h = run->histogram;
    uint64_t slot = 0, before = perf_ticks(), after;
    for (uint64_t i = 0; i < count; i++) {
        weft_status_t st = perf_await(l, &run->sends[slot]);
        if (!st)
            st = weft_msg_send(run->recv_eps[slot], run->send_buf, size, tag, &run->sends[slot]);
        if (!st)
            st = post_recv(run, slot);
        if (!st)
            st = perf_await(l, &run->recvs[slot]);
        if (st)
            return st;
        if (h) {
            after = perf_ticks();
            perf_record(h, after - before);
            before = after;
        }
        if (++slot == run->n_recvs)
            slot = 0;
    }
    return perf_await_all(l, run->sends, run->n_sends);
}

/* --- one way --------------------------------------------------------------------------------------------- */

static weft_status_t sink(perf_link_t *l, perf_run_t *run)
{
    const uint64_t count = run->plan.count;
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t slot = run->order ? run->order[at] : at;
        weft_status_t st = perf_await(l, &run->recvs[slot]);
        if (!st && i + run->n_recvs < count)
            st = post_recv(run, slot);
        if (st)
            return st;
        if (++at == run->n_recvs)
            at = 0;
    }
    return WEFT_OK;
}

/* Inline, so that each kind of message has its own loop without branches. */
static inline __attribute__((always_inline)) weft_status_t source_of(perf_link_t *l, perf_run_t *run, const bool am)
{
    const uint64_t count = run->plan.count, size = run->plan.size, tag = run_tag(run);
    const uint64_t step = run->n_sends < BATCH ? run->n_sends : BATCH;
    perf_histogram_t *h = run->histogram;
    uint64_t op_at = 0, recv_at = 0, ep_at = 0, batch = 0, before = perf_ticks();
    weft_status_t st;
    for (uint64_t i = 0; i < count; i++) {
        weft_op_t *op = &run->sends[op_at];
        uint64_t slot = run->order ? run->order[recv_at] : 0;
        weft_ep_t *ep = run->order ? l->eps[slot % l->n_eps] : l->eps[ep_at];
        st = perf_await(l, op);
        if (!st)
            st = am ? weft_am_send(ep, PERF_AM_ID, run->header, run->plan.header, run->send_buf, size, op)
                    : weft_msg_send(ep, run->send_buf, size, tag + slot, op);
        if (st)
            return st;
        if (++op_at == run->n_sends)
            op_at = 0;
        if (++recv_at == run->n_recvs)
            recv_at = 0;
        if (++ep_at == l->n_eps)
            ep_at = 0;
        if (++batch == step) {
            batch = 0;
            weft_runtime_progress(l->rt);
            if (h) {
                uint64_t after = perf_ticks();
                if (i >= run->n_sends) /* before that, posting fills the window and waits for nothing */
                    perf_record(h, (after - before) / step);
                before = after;
            }
        }
    }
    return perf_await_all(l, run->sends, run->n_sends < count ? run->n_sends : count);
}

static weft_status_t source(perf_link_t *l, perf_run_t *run)
{
    return perf_is_am(run->plan.test) ? source_of(l, run, true) : source_of(l, run, false);
}

/* --- nothing --------------------------------------------------------------------------------------------- */

static weft_status_t idle(perf_link_t *l, perf_run_t *run)
{
    weft_op_t timer = WEFT_OP_INIT;
    uint64_t start = tool_now(), cpu = perf_cpu_ns();
    weft_status_t st = weft_timer_start(l->rt, run->plan.idle_ns, &timer);
    if (!st) {
        st = weft_op_wait(&timer, run->plan.idle_ns + l->timeout_ns);
        if (!weft_op_done(&timer)) {
            tool_cancel(&timer);
        }
    }
    run->cpu_ns = perf_cpu_ns() - cpu;
    run->elapsed_ns = tool_now() - start;
    return st;
}

/* --- a server that is only there ------------------------------------------------------------------------- */

weft_status_t perf_finish_expect(perf_link_t *l, perf_run_t *run)
{
    return weft_msg_recv(l->eps[0], NULL, 0, PERF_FINISH_TAG, WEFT_TAG_FULL, &run->finish);
}

weft_status_t perf_finish_await(perf_link_t *l, perf_run_t *run)
{
    weft_status_t st;
    do /* for as long as the client takes: it fails when the client is gone */
        st = perf_await(l, &run->finish);
    while (!weft_op_done(&run->finish));
    return st;
}

weft_status_t perf_finish_tell(perf_link_t *l)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_msg_send(l->eps[0], NULL, 0, PERF_FINISH_TAG, &op);
    if (!st && (st = weft_op_wait(&op, l->timeout_ns)) && !weft_op_done(&op)) {
        tool_cancel(&op);
    }
    return st;
}

void perf_finish_drop(perf_run_t *run)
{
    tool_cancel(&run->finish);
}

/* --- both sides ------------------------------------------------------------------------------------------ */

weft_status_t perf_server_prepare(perf_link_t *l, perf_run_t *run)
{
    if (perf_is_am(run->plan.test))
        return perf_am_prepare(l, run);
    if (perf_is_rma(run->plan.test))
        return perf_rma_prepare(l, run);
    if (perf_is_rpc(run->plan.test))
        return perf_finish_expect(l, run);
    /* No answer before READY: what is sent on an endpoint keeps its place there, and an answer waits for its message. */
    if (in_order(run))
        return post_recv(run, 0);
    return run->plan.test == PERF_IDLE ? WEFT_OK : post_first_recvs(run);
}

weft_status_t perf_server_loop(perf_link_t *l, perf_run_t *run)
{
    weft_status_t st;
    switch (run->plan.test) {
    case PERF_IDLE:
        return idle(l, run);
    case PERF_TAG_LAT:
        st = in_order(run) ? pong_in_stream(l, run) : pong(l, run);
        break;
    case PERF_TAG_BW:
    case PERF_TAG_RATE:
        st = sink(l, run);
        break;
    default:
        return perf_is_am(run->plan.test)    ? perf_am_server(l, run)
               : perf_is_rma(run->plan.test) ? perf_rma_server(l, run)
                                             : perf_rpc_server(l, run);
    }
    /* Bytes that did not arrive make figures worthless. */
    return st || perf_memory_check(&run->pages[run->recv_page], run->plan.size, 0x5a) ? st : WEFT_ERR_PROTOCOL;
}

weft_status_t perf_client_loop(perf_link_t *l, perf_run_t *run, weft_op_t *done)
{
    const bool latency = perf_is_latency(run->plan.test), rma = perf_is_rma(run->plan.test), rpc = perf_is_rpc(run->plan.test);
    uint64_t start;
    weft_status_t st;
    if (run->plan.test == PERF_IDLE) {
        st = idle(l, run);
        return st ? st : perf_await(l, done);
    }
    if (run->plan.test == PERF_AM_LAT && (st = perf_am_prepare(l, run)))
        return st;
    start = tool_now();
    if (rma)
        st = perf_rma_client(l, run);
    else if (rpc)
        st = perf_rpc_client(l, run);
    else if (!latency)
        st = source(l, run);
    else if (run->plan.test == PERF_TAG_LAT)
        st = in_order(run) ? ping_in_stream(l, run) : ping(l, run);
    else
        st = perf_am_ping(l, run);
    if (!st && !latency && !rma && !rpc)
        st = perf_await(l, done);
    run->elapsed_ns = tool_now() - start;
    if (!st && run->histogram && !run->histogram->n) /* the window was never full: the average is all that is known */
        perf_record(run->histogram, (uint64_t)((double)run->elapsed_ns / (double)run->plan.count / perf_tick_ns()));
    if (!st && rma)
        st = perf_rma_finish(l, run);
    if (!st && rpc)
        st = perf_finish_tell(l);
    return st ? st : perf_await(l, done);
}
