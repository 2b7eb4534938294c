/* tools/perf/link.c - the runtime and the endpoints of one side, waiting, and what is said when the other side is gone.
 *
 * Every wait is bounded by --timeout, and ends at once when the operation fails. The library promises that within the
 * heartbeat bound when the other side is lost. After a run that failed perf_link_drop() is called: when it returns, no
 * operation and no buffer of the run is in use. tests/tools/tools_peer_loss.py checks it. */
#include "perf.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

uint64_t perf_rss(void)
{
    unsigned long long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t perf_cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return ((uint64_t)u.ru_utime.tv_sec + (uint64_t)u.ru_stime.tv_sec) * WEFT_SECOND +
           ((uint64_t)u.ru_utime.tv_usec + (uint64_t)u.ru_stime.tv_usec) * WEFT_MICROSECOND;
}

int perf_link_open(perf_link_t *l, const perf_opts_t *opts, const char *peer)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    weft_status_t st;
    memset(l, 0, sizeof *l);
    l->opts = opts;
    l->peer = peer;
    l->threaded = opts->threaded || opts->shards;
    l->timeout_ns = opts->timeout_ns;
    /* On a single processor spinning keeps the other side from answering. With --fork the other side has its own. */
    l->yield = opts->crowded || (!opts->pin && perf_cores() < 2);
    tool_raise_file_limit();
    ro.progress = opts->threaded ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER;
    ro.transports = opts->net.transports;
    ro.heartbeat_ns = opts->net.heartbeat_ns;
    ro.shards = opts->shards ? (uint32_t)opts->shards : 1; /* whatever is configured: figures are to be compared */
    if (opts->shards)
        ro.progress = WEFT_PROGRESS_THREAD;
    if (opts->pin && opts->shards) /* a thread of the runtime stays where it may be when it begins */
        perf_pin_to(opts->core, (unsigned)opts->shards);
    else if (opts->pin)
        perf_pin(opts->core + opts->cores - 1);
    st = weft_runtime_open(&ro, &l->rt);
    if (opts->pin && !opts->shards)
        perf_pin(opts->core);
    if (st) {
        tool_error_status(st, "the runtime cannot be opened");
        return ro.transports ? tool_exit_status(st) : TOOL_FAILED; /* without the option it is the configuration that is wrong */
    }
    l->rss_before = perf_rss();
    return TOOL_OK;
}

bool perf_link_add(perf_link_t *l, weft_ep_t *ep)
{
    if (l->n_eps == l->cap_eps) {
        uint64_t cap = l->cap_eps ? 2 * l->cap_eps : 8;
        weft_ep_t **eps = realloc(l->eps, cap * sizeof *eps);
        if (!eps) {
            tool_error("out of memory for %llu endpoints", (unsigned long long)cap);
            return false;
        }
        l->eps = eps;
        l->cap_eps = cap;
    }
    l->eps[l->n_eps++] = ep;
    return true;
}

void perf_link_note_transport(perf_link_t *l)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    if (!l->n_eps || weft_ep_get_info(l->eps[0], &info))
        return;
    snprintf(l->transport, sizeof l->transport, "%s", info.transport);
    snprintf(l->cipher, sizeof l->cipher, "%s", info.cipher);
}

void perf_link_drop(perf_link_t *l, bool graceful)
{
    weft_op_t *ops = l->n_eps ? calloc(l->n_eps, sizeof *ops) : NULL;
    uint64_t deadline = tool_now() + l->timeout_ns;
    for (uint64_t i = 0; i < l->n_eps; i++) {
        weft_op_t *op = ops ? &ops[i] : NULL;
        weft_status_t st = graceful ? weft_ep_close(l->eps[i], op) : weft_ep_abort(l->eps[i], op);
        (void)st; /* it is down already */
    }
    if (l->n_eps && !ops) { /* no memory to wait with: closing the runtime ends every operation too */
        weft_runtime_close(l->rt);
        l->rt = NULL;
    }
    for (uint64_t i = 0; ops && i < l->n_eps; i++) {
        uint64_t now = tool_now();
        weft_op_wait(&ops[i], now < deadline ? deadline - now : 0);
        if (!weft_op_done(&ops[i])) {
            /* The operations are in `ops`. Closing the runtime completes them, so free it after that. */
            tool_error("an endpoint did not close within --timeout; giving up on all of them");
            weft_runtime_close(l->rt);
            l->rt = NULL;
            break;
        }
    }
    free(ops);
    free(l->eps);
    l->eps = NULL;
    l->n_eps = l->cap_eps = 0;
}

void perf_link_close(perf_link_t *l)
{
    perf_link_drop(l, true);
    if (l->rt)
        weft_pool_free(l->pool);
    weft_runtime_close(l->rt);
    l->rt = NULL;
}

static const char *advice(weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_REFUSED:
        return "; start the other side first: weft perf --listen URI";
    case WEFT_ERR_PEER:
    case WEFT_ERR_CLOSED:
        return "; see what the other side said";
    case WEFT_ERR_UNSUPPORTED:
        return "; --path mapped needs a server of this user on this host, --memory host and --transports shm";
    case WEFT_ERR_LIMIT:
        return "; raise the limit (ulimit -n) or use fewer --endpoints";
    case WEFT_ERR_NOMEM:
        return "; use a smaller --size or --window";
    default:
        return tool_advice(st);
    }
}

void perf_link_lost(perf_link_t *l, weft_status_t st, const char *doing)
{
    perf_progress(NULL);
    if (st == WEFT_ERR_LIMIT && !strncmp(weft_last_error(), "op.streams", 10)) /* --streams: that says it all */
        tool_error("failed while %s: %s", doing, weft_last_error());
    else if (st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED)
        tool_error("lost %s while %s: %s%s", l->peer, doing, weft_status_text(st), advice(st));
    else
        tool_error("failed while %s: %s%s", doing, weft_status_text(st), advice(st));
}

weft_status_t perf_await_slow(perf_link_t *l, weft_op_t *op)
{
    uint64_t deadline;
    if (l->threaded)
        return weft_op_wait(op, l->timeout_ns);
    deadline = tool_now() + l->timeout_ns;
    while (tool_now() < deadline) {
        for (unsigned spin = 0; spin < (l->yield ? 64 : 1024); spin++) { /* on a busy machine a yield takes long */
            if (weft_op_done(op))
                return op->status;
            if (!weft_runtime_progress(l->rt) && l->yield)
                sched_yield();
        }
    }
    return WEFT_ERR_PENDING;
}
