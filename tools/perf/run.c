/* tools/perf/run.c - the memory of one run: operations, buffers, the order of tags.
 *
 * Operations are in pages from mmap(), buffers are of the kinds that the plan names (memory.c). All of it is written before
 * the clock starts. The session owns it, and frees it when no operation uses it (after perf_link_drop() if the run failed).
 * tests/tools/tools_perf.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* Each returns NULL after a refusal. */
static void *take(perf_run_t *run, const char *kind, uint64_t size, int fill)
{
    perf_pages_t *p = &run->pages[run->n_pages];
    bool none;
    const char *fault = perf_memory_get(run->link, kind, size, fill, p, &none);
    if (fault) {
        snprintf(run->refusal, sizeof run->refusal, "%s", fault);
        if (none)
            run->advice = "; use another --memory";
        return NULL;
    }
    run->n_pages++;
    return p->at;
}

static void *take_table(perf_run_t *run, uint64_t n, size_t each)
{
    return take(run, "host", n * each, 0);
}

/* An operation that waits for a stream is not the endpoint's yet: it does not end with that. */
static void cancel_waiting(perf_run_t *run)
{
    for (uint64_t i = 0; run->sends && i < run->n_sends; i++)
        tool_cancel(&run->sends[i]);
    for (uint64_t i = 0; run->recvs && i < run->n_recvs; i++)
        tool_cancel(&run->recvs[i]);
}

void perf_run_free(perf_run_t *run)
{
    char refusal[sizeof run->refusal];
    const char *advice = run->advice;
    memcpy(refusal, run->refusal, sizeof refusal);
    if (run->streams && run->link->rt)
        cancel_waiting(run);
    if (run->am)
        perf_am_end(run);
    if (run->rma)
        perf_rma_end(run);
    if (run->rpc)
        perf_rpc_end(run);
    for (unsigned i = 0; i < run->n_pages; i++)
        if (run->link->rt || !run->pages[i].kind) /* what came from a pool went with its runtime */
            perf_memory_put(&run->pages[i]);
    if (run->am)
        free(run->am->waiting);
    free(run->am);
    free(run->rma);
    free(run->rpc);
    free(run->order);
    perf_streams_free(run);
    memset(run, 0, sizeof *run);
    memcpy(run->refusal, refusal, sizeof refusal);
    run->advice = advice;
}

/* The same permutation on both sides. */
static uint32_t *new_order(uint64_t n)
{
    uint32_t *order = malloc(n * sizeof *order);
    uint64_t state = 88172645463325252u;
    if (!order)
        return NULL;
    for (uint64_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = n; i > 1; i--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint64_t j = state % i;
        uint32_t t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
    return order;
}

/* Tag messages: receives, and whose message each takes. */
static bool take_recvs(perf_run_t *run, perf_link_t *l)
{
    run->recvs = take_table(run, run->n_recvs, sizeof(weft_op_t));
    run->recv_eps = run->recvs ? take_table(run, run->n_recvs, sizeof(weft_ep_t *)) : NULL;
    if (!run->recv_eps)
        return false;
    for (uint64_t i = 0; i < run->n_recvs; i++)
        run->recv_eps[i] = l->eps[i % l->n_eps];
    return true;
}

/* Active messages: what fetches payloads. */
static bool take_slots(perf_run_t *run, bool server)
{
    run->am = calloc(1, sizeof *run->am);
    if (!run->am)
        return false;
    run->am->server = server;
    run->am->in_place = !run->plan.view && !strcmp(run->plan.recv_kind, "host");
    run->am->slots = take_table(run, run->n_recvs, sizeof(perf_slot_t));
    return run->am->slots;
}

/* Remote memory: a region of the kind that the test moves bytes from or to, and what the client has of its own. */
static bool take_rma(perf_run_t *run, bool server)
{
    const perf_plan_t *plan = &run->plan;
    const bool reads = plan->test == PERF_RMA_GET || plan->test == PERF_RMA_BATCH;
    const bool lat = plan->test == PERF_RMA_PUT_LAT, atomic = perf_is_atomic(plan->test);
    const char *there = perf_region_kind(plan), *here = reads ? plan->recv_kind : plan->send_kind;
    run->rma = calloc(1, sizeof *run->rma);
    if (!run->rma)
        return false;
    run->rma->places = plan->size ? plan->region / plan->size : 1;
    if (server || lat) {
        const bool own = strcmp(there, "host"); /* "host" is the library's to make: what peers on this host can map */
        const int fill = reads ? 0x5a : atomic ? 0 : 0xa5;
        void *at = own ? take(run, there, plan->region, fill) : NULL;
        if ((own && !at) || !perf_rma_expose(run, at, own ? run->pages[run->n_pages - 1].kind : NULL, fill))
            return false;
    }
    if (server && !lat)
        return true;
    run->sends = take_table(run, run->n_sends, sizeof(weft_op_t));
    if (!run->sends)
        return false;
    if (plan->test == PERF_RMA_BATCH && !(run->rma->items = take_table(run, run->n_sends * plan->batch, sizeof(weft_rma_item_t))))
        return false;
    if (reads) {
        run->recv_page = (int)run->n_pages;
        run->recv_buf = take(run, here, plan->size, 0xa5);
        return run->recv_buf;
    }
    if (!atomic)
        run->send_buf = take(run, here, plan->size, 0x5a);
    return atomic || run->send_buf;
}

/* Calls: a service, or what asks it. */
static bool take_rpc(perf_run_t *run, bool server)
{
    run->rpc = calloc(1, sizeof *run->rpc);
    if (!run->rpc)
        return false;
    if (server)
        return perf_rpc_serve(run);
    run->sends = take_table(run, run->n_sends, sizeof(weft_op_t));
    run->rpc->replies = run->sends ? take_table(run, run->n_sends, sizeof(weft_reply_t)) : NULL;
    run->send_buf = run->rpc->replies ? take(run, run->plan.send_kind, run->plan.size, 0x5a) : NULL;
    return run->send_buf;
}

static bool take_all(perf_run_t *run, perf_link_t *l, bool server)
{
    const perf_plan_t *plan = &run->plan;
    const bool pingpong = perf_is_latency(plan->test), am = perf_is_am(plan->test);
    if (perf_is_rma(plan->test))
        return take_rma(run, server);
    if (perf_is_rpc(plan->test))
        return take_rpc(run, server);
    if (pingpong || !server) {
        run->sends = take_table(run, run->n_sends, sizeof(weft_op_t));
        run->send_buf = run->sends ? take(run, plan->send_kind, run->send_size, 0x5a) : NULL;
        run->header = run->send_buf ? take(run, "host", plan->header, 0x3c) : NULL;
        if (!run->header)
            return false;
    }
    if (pingpong || server) {
        if (am ? !take_slots(run, server) : !take_recvs(run, l))
            return false;
        run->recv_page = (int)run->n_pages;
        if (plan->view)
            run->recv_page = -1;
        else if (!(run->recv_buf = take(run, plan->recv_kind, run->recv_size, 0xa5)))
            return false;
    }
    if (plan->shuffle && run->n_recvs)
        run->order = new_order(run->n_recvs);
    return run->order || !plan->shuffle || !run->n_recvs;
}

/* Each operation has a stream. Receives of one endpoint have the same one if there are several endpoints: so each takes the
 * message that is next in the order of the sender, and none waits for one that is sent behind its own. */
static void set_streams(perf_run_t *run, const perf_link_t *l)
{
    for (uint64_t i = 0; run->sends && i < run->n_sends; i++)
        perf_streams_set(run, &run->sends[i], i);
    for (uint64_t i = 0; run->recvs && i < run->n_recvs; i++)
        perf_streams_set(run, &run->recvs[i], l->n_eps > 1 ? i % l->n_eps : i);
    for (uint64_t i = 0; run->am && run->am->slots && i < run->n_recvs; i++)
        perf_streams_set(run, &run->am->slots[i].op, i);
}

weft_status_t perf_run_new(perf_run_t *run, perf_link_t *l, const perf_plan_t *plan, bool server)
{
    memset(run, 0, sizeof *run);
    run->plan = *plan;
    run->link = l;
    run->recv_page = -1;
    run->send_size = server ? plan->answer : plan->size;
    run->recv_size = server ? plan->size : plan->answer;
    snprintf(run->refusal, sizeof run->refusal, "there is no memory for messages of %llu bytes", (unsigned long long)plan->size);
    run->advice = "; use a smaller --size or --window, or another --memory";
    if (plan->test == PERF_IDLE)
        return WEFT_OK;
    perf_memory_begin(plan);
    /* Ping-pong keeps two receives per endpoint posted: the next one is in place before the peer can answer. A stream has at
     * least one per endpoint, and as many on each. */
    if (plan->test == PERF_AM_LAT) {
        run->n_recvs = run->n_sends = 4 * l->n_eps;
    } else if (perf_is_rma(plan->test) || perf_is_rpc(plan->test)) {
        run->n_sends = plan->window;
    } else if (plan->test == PERF_TAG_LAT) {
        run->n_recvs = run->n_sends = 2 * l->n_eps;
    } else {
        run->n_recvs = perf_is_am(plan->test) ? plan->outstanding : (plan->outstanding + l->n_eps - 1) / l->n_eps * l->n_eps;
        run->n_sends = plan->window;
    }
    if (perf_streams_new(run) && take_all(run, l, server)) {
        if (run->streams)
            set_streams(run, l);
        return WEFT_OK;
    }
    perf_run_free(run);
    return WEFT_ERR_NOMEM;
}
