/* tools/perf/rma.c - the loops of remote memory, and how the two sides come to it.
 *
 * The server of a run exposes a region and sends a key for it with READY; the client attaches it on every endpoint. In
 * rma_put_lat the client has a region too, whose key is in the plan.
 *
 * rma_get, rma_put             read and write, `window` not complete at a time, all out of and into the same bytes unless
 *                              --region says otherwise: as in ucx_perftest (ucp_get, ucp_put_bw).
 * rma_fadd, rma_cas, rma_swap  the same with words, each of which counts the operations on it; they are checked by that.
 * rma_batch                    reads, --batch of them in one post; counted and timed as single reads.
 * rma_put_lat                  ping-pong: each side writes a number into the last byte of the other's region, and waits for the
 *                              answer by looking at its own, with progress in between, as in ucx_perftest (ucp_put_lat). Half
 *                              of a round trip.
 *
 * The clock stops when the last operation is complete: then the bytes are in place. Then both sides check all of their memory.
 * The server only drives until the client says that it is done. However a run ends, remotes are closed before endpoints, and
 * the region after them. tests/tools/tools_perf.py and tests/tools/tools_peer_loss.py check
 * it. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* Accesses of mapped memory never make anyone call progress; the end of the peer shows there, and what is packed leaves there. */
#define BATCH 256
#define TOUCH_STEP ((size_t)1 << 20) /* complete at once */
#define FILL 0x5a                    /* what run.c puts into what is written, and into what is read */

/* --- regions and remotes --------------------------------------------------------------------------------- */

bool perf_rma_expose(perf_run_t *run, void *at, const weft_mem_kind_t *kind, int fill)
{
    perf_rma_t *r = run->rma;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    size_t len = sizeof r->offer.key;
    weft_status_t st;
    if (run->plan.test == PERF_RMA_PUT_LAT && kind && !(kind->flags & WEFT_MEM_CPU)) {
        snprintf(run->refusal, sizeof run->refusal, "no processor can look at %s memory, which rma_put_lat does", kind->name);
        return false;
    }
    ro.len = run->plan.region;
    ro.buf = at;
    ro.kind = kind;
    st = weft_region_new(run->link->rt, &ro, &r->region);
    if (!st)
        st = weft_region_key(r->region, NULL, r->offer.key, &len);
    if (!st) {
        r->offer.len = len;
        r->memory = (perf_pages_t){.at = at ? at : weft_region_base(r->region), .size = run->plan.region, .kind = kind};
        if (!at)
            st = perf_memory_fill(run->link, &r->memory, fill);
    }
    if (st)
        snprintf(run->refusal, sizeof run->refusal, "there can be no region of %llu bytes: %s",
                 (unsigned long long)run->plan.region, weft_status_text(st));
    return !st;
}

/* Attach on one endpoint. What arrives after we stopped waiting is let go. */
static weft_status_t attach_one(perf_link_t *l, weft_ep_t *ep, const perf_offer_t *offer, uint64_t path, weft_remote_t **out)
{
    weft_remote_opts_t ro = WEFT_REMOTE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    ro.path = (weft_rma_path_t)path;
    st = weft_remote_attach(ep, offer->key, offer->len, &ro, &op);
    if (st)
        return st;
    st = weft_op_wait(&op, l->timeout_ns);
    if (!weft_op_done(&op)) {
        tool_cancel(&op);
        if (!op.status)
            weft_remote_drop(weft_op_remote(&op));
        return st;
    }
    if (!st)
        *out = weft_op_remote(&op);
    return st;
}

/* The first touch of a page of a mapping is a fault, which is no part of an access: ucx_perftest has it in its warm-up, and a
 * run of ours has a mapping of its own. Memory of a GPU has no such faults, and reading it here would be counted as a way. */
static weft_status_t touch_mapping(perf_link_t *l, weft_remote_t *remote, uint64_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = WEFT_OK;
    char *stage = malloc(TOUCH_STEP);
    if (!stage)
        return WEFT_ERR_NOMEM;
    for (uint64_t at = 0; at < len && !st; at += TOUCH_STEP) {
        st = weft_rma_read(remote, at, stage, len - at < TOUCH_STEP ? len - at : TOUCH_STEP, &op);
        if (!st && (st = weft_op_wait(&op, l->timeout_ns)) && !weft_op_done(&op)) {
            tool_cancel(&op);
        }
        weft_runtime_progress(l->rt);
    }
    free(stage);
    return st;
}

weft_status_t perf_rma_attach(perf_run_t *run, const perf_offer_t *offer)
{
    perf_rma_t *r = run->rma;
    perf_link_t *l = run->link;
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    r->remotes = calloc(l->n_eps, sizeof(weft_remote_t *));
    if (!r->remotes)
        return WEFT_ERR_NOMEM;
    for (uint64_t i = 0; i < l->n_eps; i++) {
        weft_status_t st = attach_one(l, l->eps[i], offer, run->plan.path, &r->remotes[i]);
        if (st)
            return st;
        r->n_remotes++;
        if (weft_remote_get_info(r->remotes[i], &info) || info.len != run->plan.region)
            return WEFT_ERR_PROTOCOL;
        if (info.path == WEFT_RMA_MAPPED && !perf_on_gpu(perf_region_kind(&run->plan)) &&
            (st = touch_mapping(l, r->remotes[i], info.len)))
            return st;
        if (!i)
            r->path = info.path;
    }
    return WEFT_OK;
}

void perf_rma_drop(perf_run_t *run)
{
    perf_rma_t *r = run->rma;
    if (!r)
        return;
    for (uint64_t i = 0; i < r->n_remotes; i++)
        weft_remote_drop(r->remotes[i]);
    r->n_remotes = 0;
    free(r->remotes);
    r->remotes = NULL;
}

void perf_rma_end(perf_run_t *run)
{
    perf_rma_t *r = run->rma;
    weft_op_t op = WEFT_OP_INIT;
    if (!run->link->rt)
        return; /* the runtime is closed */
    perf_rma_drop(run);
    perf_finish_drop(run);
    if (r->region && !weft_region_free(r->region, &op))
        weft_op_wait(&op, WEFT_FOREVER);
    r->region = NULL;
}

/* --- streams --------------------------------------------------------------------------------------------- */

static inline uint64_t word_mask(uint64_t size)
{
    return size == 4 ? UINT32_MAX : UINT64_MAX;
}

static inline __attribute__((always_inline)) weft_status_t post(perf_run_t *run, const perf_test_t test, weft_remote_t *remote,
                                                                uint64_t offset, uint64_t turn, weft_op_t *op)
{
    const uint64_t size = run->plan.size, mask = word_mask(size);
    switch (test) {
    case PERF_RMA_GET:
        return weft_rma_read(remote, offset, run->recv_buf, size, op);
    case PERF_RMA_PUT:
        return weft_rma_write(remote, offset, run->send_buf, size, op);
    case PERF_RMA_FADD:
        return weft_rma_atomic(remote, WEFT_RMA_ADD, offset, size, 1, 0, op);
    case PERF_RMA_CAS:
        return weft_rma_atomic(remote, WEFT_RMA_CAS, offset, size, (turn + 1) & mask, turn & mask, op);
    default:
        return weft_rma_atomic(remote, WEFT_RMA_SWAP, offset, size, (turn + 1) & mask, 0, op);
    }
}

/* Inline, so that each test has its own loop without branches. */
static inline __attribute__((always_inline)) weft_status_t stream_of(perf_link_t *l, perf_run_t *run, const perf_test_t test)
{
    const perf_rma_t *r = run->rma;
    const uint64_t count = run->plan.count, size = run->plan.size, window = run->n_sends, places = r->places;
    const uint64_t step = window < BATCH ? window : BATCH;
    perf_histogram_t *h = run->histogram;
    uint64_t op_at = 0, ep_at = 0, place = 0, turn = 0, n = 0, before = perf_ticks();
    weft_status_t st;
    for (uint64_t i = 0; i < count; i++) {
        weft_op_t *op = &run->sends[op_at];
        st = window > 1 ? perf_await(l, op) : WEFT_OK;
        if (!st)
            st = post(run, test, r->remotes[ep_at], place * size, turn, op);
        if (!st && window == 1)
            st = perf_await(l, op);
        if (st)
            return st;
        if (++op_at == window)
            op_at = 0;
        if (++ep_at == r->n_remotes)
            ep_at = 0;
        if (++place == places) {
            place = 0;
            turn++;
        }
        if (window == 1) { /* each of them is timed, as in ucx_perftest */
            if (h) {
                uint64_t after = perf_ticks();
                perf_record(h, after - before);
                before = after;
            }
            if (++n == BATCH) {
                n = 0;
                weft_runtime_progress(l->rt);
            }
        } else if (++n == step) {
            n = 0;
            weft_runtime_progress(l->rt);
            if (h) {
                uint64_t after = perf_ticks();
                if (i >= window) /* before that, posting fills the window and waits for nothing */
                    perf_record(h, (after - before) / step);
                before = after;
            }
        }
    }
    return perf_await_all(l, run->sends, window < count ? window : count);
}

/* --- batches --------------------------------------------------------------------------------------------- */

static void set_items(perf_run_t *run)
{
    const perf_rma_t *r = run->rma;
    const weft_rma_item_t item = {.remote = r->remotes[0], .what = WEFT_RMA_DO_READ, .buf = run->recv_buf, .len = run->plan.size};
    for (uint64_t i = 0; i < run->n_sends * run->plan.batch; i++)
        r->items[i] = item;
}

static weft_status_t batches(perf_link_t *l, perf_run_t *run)
{
    const perf_rma_t *r = run->rma;
    const uint64_t count = run->plan.count, size = run->plan.size, window = run->n_sends;
    const uint64_t each = run->plan.batch ? run->plan.batch : 1;
    perf_histogram_t *h = run->histogram;
    uint64_t op_at = 0, ep_at = 0, place = 0, n, before;
    weft_status_t st;
    set_items(run);
    before = perf_ticks();
    for (uint64_t done = 0; done < count; done += n) {
        weft_op_t *op = &run->sends[op_at];
        weft_rma_item_t *items = &r->items[op_at * each];
        n = count - done < each ? count - done : each;
        st = perf_await(l, op);
        if (st)
            return st;
        if (r->places > 1 || r->n_remotes > 1) {
            for (uint64_t i = 0; i < n; i++) {
                items[i].remote = r->remotes[ep_at];
                items[i].offset = place * size;
                if (++place == r->places)
                    place = 0;
            }
        }
        st = weft_rma_batch(items, n, op);
        if (!st && window == 1)
            st = perf_await(l, op);
        if (st)
            return st;
        if (++op_at == window)
            op_at = 0;
        if (++ep_at == r->n_remotes)
            ep_at = 0;
        weft_runtime_progress(l->rt);
        if (h) {
            uint64_t after = perf_ticks();
            if (done >= (window - 1) * each)
                perf_record(h, (after - before) / n);
            before = after;
        }
    }
    return perf_await_all(l, run->sends, window);
}

/* --- ping-pong ------------------------------------------------------------------------------------------- */

/* The number of the nth message: never what the region is filled with, nor what was there before. */
static inline uint8_t number(uint64_t nth)
{
    return (uint8_t)(nth & 0x7f);
}

/* Look at our own memory until it is there. */
static inline weft_status_t look_for(perf_link_t *l, perf_run_t *run, const uint8_t *at, uint8_t wanted)
{
    const unsigned spins = l->threaded || l->yield ? 64 : 4096; /* on a busy machine a yield takes long */
    uint64_t deadline = 0, now;
    weft_status_t st;
    while (true) {
        for (unsigned spin = 0; spin < spins; spin++) {
            if (__atomic_load_n(at, __ATOMIC_ACQUIRE) == wanted)
                return WEFT_OK;
            if (l->threaded)
                sched_yield(); /* the runtime's thread may have to bring it */
            else if (!weft_runtime_progress(l->rt) && l->yield)
                sched_yield();
        }
        if (perf_peer_lost(run, &st))
            return st;
        now = tool_now();
        if (!deadline)
            deadline = now + l->timeout_ns;
        else if (now > deadline)
            return WEFT_ERR_PENDING;
    }
}

static weft_status_t ping_pong(perf_link_t *l, perf_run_t *run, const bool first)
{
    const perf_rma_t *r = run->rma;
    const uint64_t count = run->plan.count, size = run->plan.size;
    const uint8_t *mine = (const uint8_t *)r->memory.at + size - 1;
    uint8_t *last = (uint8_t *)run->send_buf + size - 1;
    perf_histogram_t *h = run->histogram;
    uint64_t ep_at = 0, before = perf_ticks();
    weft_status_t st = WEFT_OK;
    for (uint64_t i = 0; i < count; i++) {
        if (!first)
            st = look_for(l, run, mine, number(i));
        if (!st)
            st = perf_await(l, run->sends);
        if (st)
            return st;
        *last = number(i);
        st = weft_rma_write(r->remotes[ep_at], 0, run->send_buf, size, run->sends);
        if (!st && first)
            st = look_for(l, run, mine, number(i));
        if (st)
            return st;
        if (++ep_at == r->n_remotes)
            ep_at = 0;
        if (h) {
            uint64_t after = perf_ticks();
            perf_record(h, after - before);
            before = after;
        }
    }
    return perf_await(l, run->sends);
}

/* --- figures of bytes that are not there would be worth nothing ------------------------------------------ */

static bool words_are_right(const perf_run_t *run)
{
    const perf_rma_t *r = run->rma;
    const weft_mem_kind_t *kind = r->memory.kind ? r->memory.kind : weft_mem_host();
    const uint64_t size = run->plan.size, count = run->plan.count;
    for (uint64_t i = 0; i < r->places; i++) {
        uint64_t word = 0, wanted = count / r->places + (i < count % r->places);
        if (weft_mem_copy(&word, weft_mem_host(), (char *)r->memory.at + i * size, kind, size))
            return false;
        if (word != (wanted & word_mask(size)))
            return false;
    }
    return true;
}

/* All that was written to us is here. Its last byte may be there before the others. */
static bool written_is_right(perf_link_t *l, const perf_run_t *run)
{
    const perf_rma_t *r = run->rma;
    const uint64_t size = run->plan.size, deadline = tool_now() + WEFT_SECOND;
    const uint8_t *last = (const uint8_t *)r->memory.at + size - 1;
    while (!perf_memory_check_all(l, &r->memory, size - 1, FILL) || *last != number(run->plan.count - 1))
        if (tool_now() > deadline)
            return false;
    return true;
}

/* What is in our region, now that the other side is done. */
static bool region_is_right(perf_link_t *l, const perf_run_t *run)
{
    const perf_rma_t *r = run->rma;
    const uint64_t size = run->plan.size, touched = run->plan.count < r->places ? run->plan.count : r->places;
    if (perf_is_atomic(run->plan.test))
        return words_are_right(run);
    if (run->plan.test == PERF_RMA_PUT_LAT)
        return written_is_right(l, run);
    return perf_memory_check_all(l, &r->memory, touched * size, FILL);
}

/* --- both sides ------------------------------------------------------------------------------------------ */

weft_status_t perf_rma_prepare(perf_link_t *l, perf_run_t *run)
{
    if (run->plan.test == PERF_RMA_PUT_LAT)
        return perf_rma_attach(run, &run->plan.offer);
    return perf_finish_expect(l, run);
}

weft_status_t perf_rma_server(perf_link_t *l, perf_run_t *run)
{
    weft_status_t st = run->plan.test == PERF_RMA_PUT_LAT ? ping_pong(l, run, false) : perf_finish_await(l, run);
    return st || region_is_right(l, run) ? st : WEFT_ERR_PROTOCOL;
}

weft_status_t perf_rma_client(perf_link_t *l, perf_run_t *run)
{
    switch (run->plan.test) {
    case PERF_RMA_GET:
        return stream_of(l, run, PERF_RMA_GET);
    case PERF_RMA_PUT:
        return stream_of(l, run, PERF_RMA_PUT);
    case PERF_RMA_FADD:
        return stream_of(l, run, PERF_RMA_FADD);
    case PERF_RMA_CAS:
        return stream_of(l, run, PERF_RMA_CAS);
    case PERF_RMA_SWAP:
        return stream_of(l, run, PERF_RMA_SWAP);
    case PERF_RMA_BATCH:
        return batches(l, run);
    default:
        return ping_pong(l, run, true);
    }
}

weft_status_t perf_rma_finish(perf_link_t *l, perf_run_t *run)
{
    const uint64_t last = run->plan.count - 1;
    bool right = true;
    if (run->recv_buf)
        right = perf_memory_check_all(l, &run->pages[run->recv_page], run->plan.size, FILL);
    else if (perf_is_atomic(run->plan.test)) /* what the last one found there */
        right = run->sends[last % run->n_sends].tag == (last / run->rma->places & word_mask(run->plan.size));
    else if (run->plan.test == PERF_RMA_PUT_LAT)
        right = written_is_right(l, run);
    if (!right)
        return WEFT_ERR_PROTOCOL;
    return run->plan.test == PERF_RMA_PUT_LAT ? WEFT_OK : perf_finish_tell(l);
}
