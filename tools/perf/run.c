/* tools/perf/run.c - the memory of one run: operations, buffers, the order of tags.
 *
 * Pages come straight from the kernel and go straight back, so that resident memory before and after a run can be compared. All
 * of it is touched before the clock starts, and progress is made meanwhile: a side that is silent while it clears gigabytes
 * would be taken for dead. Owned by the session; freed only when no operation uses it (after perf_link_drop() if the run
 * failed). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "perf.h"

#define TOUCH_STEP ((size_t)16 << 20)

static void *take_pages(perf_run_t *run, perf_link_t *l, size_t size, int fill)
{
    char *at;
    size = (size + 4095) & ~(size_t)4095;
    if (!size)
        size = 4096;
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    run->pages[run->n_pages++] = (perf_pages_t){at, size};
    for (size_t done = 0; done < size; done += TOUCH_STEP) {
        memset(at + done, fill, size - done < TOUCH_STEP ? size - done : TOUCH_STEP);
        weft_runtime_progress(l->rt);
    }
    return at;
}

void perf_run_free(perf_run_t *run)
{
    for (unsigned i = 0; i < run->n_pages; i++)
        munmap(run->pages[i].at, run->pages[i].size);
    free(run->order);
    memset(run, 0, sizeof *run);
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

weft_status_t perf_run_new(perf_run_t *run, perf_link_t *l, const perf_plan_t *plan, bool server)
{
    bool pingpong = plan->test == PERF_TAG_LAT, idle = plan->test == PERF_IDLE;
    memset(run, 0, sizeof *run);
    run->plan = *plan;
    /* Ping-pong keeps two receives per endpoint posted: the next one is in place before the peer can answer. A stream has at
     * least one per endpoint, and as many on each. */
    if (pingpong) {
        run->n_recvs = run->n_sends = 2 * l->n_eps;
    } else if (!idle) {
        run->n_recvs = (plan->outstanding + l->n_eps - 1) / l->n_eps * l->n_eps;
        run->n_sends = plan->window;
    }
    if (pingpong || !server) {
        run->sends = take_pages(run, l, run->n_sends * sizeof(weft_op_t), 0);
        run->send_buf = take_pages(run, l, plan->size, 0x5a);
        if (!run->sends || !run->send_buf)
            goto err_free;
    }
    if (pingpong || server) {
        run->recvs = take_pages(run, l, run->n_recvs * sizeof(weft_op_t), 0);
        run->recv_eps = take_pages(run, l, run->n_recvs * sizeof(weft_ep_t *), 0);
        run->recv_buf = take_pages(run, l, plan->size, 0xa5);
        if (!run->recvs || !run->recv_eps || !run->recv_buf)
            goto err_free;
        for (uint64_t i = 0; i < run->n_recvs; i++)
            run->recv_eps[i] = l->eps[i % l->n_eps];
    }
    if (plan->shuffle && run->n_recvs) {
        run->order = new_order(run->n_recvs);
        if (!run->order)
            goto err_free;
    }
    return WEFT_OK;

err_free:
    perf_run_free(run);
    return WEFT_ERR_NOMEM;
}
