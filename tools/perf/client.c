/* tools/perf/client.c - the client: opens the endpoints, warms up, measures, reports.
 *
 * For each test and size there are runs of growing length, which also warm up, until one takes long enough to be believed.
 * Then one run takes --seconds, or exactly --iters. A run that fails is not reported, and the exit status is 1.
 * tests/tools/tools_perf.py and tests/tools/tools_peer_loss.py check it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

#define OPEN_BATCH 256 /* endpoints in their hello at one time */

typedef struct client {
    perf_link_t link;
    const perf_opts_t *opts;
    perf_histogram_t *histogram;
    perf_reply_t reply;
    weft_op_t reply_op;
    uint64_t run; /* number of the last one */
    bool failed;  /* something was said about it */
    int rc;       /* the exit status if it failed */
    bool head_shown;
    weft_rma_path_t path; /* of the last run of remote memory */
    perf_ways_t ways;     /* of the last run, on this side */
} client_t;

static bool lost(client_t *c, weft_status_t st, const char *doing)
{
    if (!c->failed)
        perf_link_lost(&c->link, st, doing);
    c->failed = true;
    return false;
}

/* --- opening --------------------------------------------------------------------------------------------- */

static uint64_t new_session_id(void)
{
    /* Two clients of one server must have different ones. */
    return tool_now() ^ (uint64_t)getpid() << 40;
}

/* Open endpoints [first, first + n) and say hello on each. */
static bool open_batch(client_t *c, const char *uri, uint64_t session, uint64_t first, uint64_t n, uint64_t total)
{
    perf_link_t *l = &c->link;
    weft_op_t *connects = calloc(n, sizeof *connects), *hellos = calloc(n, sizeof *hellos);
    perf_hello_t *bodies = calloc(n, sizeof *bodies);
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_status_t st = connects && hellos && bodies ? WEFT_OK : WEFT_ERR_NOMEM;
    for (uint64_t i = 0; i < n && !st; i++) {
        weft_ep_t *ep;
        eo.no_retry = true;
        st = weft_ep_open(l->rt, uri, &eo, &connects[i], &ep);
        if (st) {
            tool_error_status(st, "cannot connect to %s", uri);
            c->rc = tool_exit_status(st);
            c->failed = true;
            break;
        }
        if (!perf_link_add(l, ep)) {
            c->failed = true;
            st = weft_ep_abort(ep, &connects[i]);
            st = WEFT_ERR_NOMEM;
            break;
        }
        bodies[i] = (perf_hello_t){PERF_MAGIC, session, first + i, total};
        st = weft_msg_send(ep, &bodies[i], sizeof bodies[i], PERF_HELLO_TAG, &hellos[i]);
    }
    for (uint64_t i = 0; i < n && !st; i++) {
        st = weft_op_wait(&connects[i], l->timeout_ns);
        if (!st)
            st = weft_op_wait(&hellos[i], l->timeout_ns);
    }
    if (st) {
        char doing[300];
        snprintf(doing, sizeof doing, "connecting to %s", uri);
        lost(c, st, doing);
        /* The operations are on these arrays: end them first. */
        perf_link_drop(l, false);
        weft_runtime_close(l->rt);
        l->rt = NULL;
    }
    free(connects);
    free(hellos);
    free(bodies);
    return !st;
}

static bool await_reply(client_t *c, uint64_t kind, const char *doing)
{
    weft_status_t st = weft_op_wait(&c->reply_op, c->link.timeout_ns); /* may take long, so it must not spin */
    if (st)
        return lost(c, st, doing);
    if (!perf_reply_ok(&c->reply, c->reply_op.len))
        return lost(c, WEFT_ERR_PROTOCOL, doing);
    if (c->reply.kind == PERF_REFUSED) {
        perf_progress(NULL);
        tool_error("the server refused: %s", c->reply.text);
        c->failed = true;
        return false;
    }
    if (c->reply.kind != kind || (kind == PERF_DONE && c->reply.run != c->run))
        return lost(c, WEFT_ERR_PROTOCOL, doing);
    return true;
}

static bool post_reply(client_t *c, const char *doing)
{
    weft_status_t st = weft_msg_recv(c->link.eps[0], &c->reply, sizeof c->reply, PERF_REPLY_TAG, WEFT_TAG_FULL, &c->reply_op);
    return st ? lost(c, st, doing) : true;
}

static bool open_endpoints(client_t *c, const char *uri)
{
    uint64_t session = new_session_id(), total = c->opts->endpoints;
    for (uint64_t at = 0; at < total;) {
        uint64_t n = at == 0 ? 1 : total - at < OPEN_BATCH ? total - at : OPEN_BATCH;
        if (total > OPEN_BATCH)
            perf_progress("opening endpoint %llu of %llu", (unsigned long long)at + 1, (unsigned long long)total);
        if (!open_batch(c, uri, session, at, n, total))
            return false;
        if (!at)
            c->link.rss_first = perf_rss();
        at += n;
    }
    perf_progress(NULL);
    perf_link_note_transport(&c->link);
    return post_reply(c, "waiting for the server's turn") && await_reply(c, PERF_READY, "waiting for the server's turn");
}

/* --- one run --------------------------------------------------------------------------------------------- */

static bool send_plan(client_t *c, perf_plan_t *plan)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    plan->magic = PERF_MAGIC;
    plan->run = ++c->run;
    if (!post_reply(c, "asking for the next test"))
        return false;
    st = weft_msg_send(c->link.eps[0], plan, sizeof *plan, PERF_CONTROL_TAG, &op);
    if (!st && (st = weft_op_wait(&op, c->link.timeout_ns)) && !weft_op_done(&op)) {
        tool_cancel(&op);
    }
    return st ? lost(c, st, "asking for the next test") : true;
}

/* *run_out has elapsed_ns; its memory is gone. */
static bool run_once(client_t *c, perf_plan_t *plan, perf_histogram_t *histogram, perf_run_t *run_out)
{
    perf_link_t *l = &c->link;
    const char *doing = perf_test_name((perf_test_t)plan->test);
    perf_ways_t before;
    perf_run_t run;
    weft_status_t st = perf_run_new(&run, l, plan, false);
    if (st) {
        perf_progress(NULL);
        tool_error("%s%s", run.refusal, run.advice);
        c->failed = true;
        return false;
    }
    if (run.rma)
        plan->offer = run.rma->offer;
    if (!send_plan(c, plan) || !await_reply(c, PERF_READY, doing) || !post_reply(c, doing)) {
        perf_run_free(&run);
        return false;
    }
    run.plan.run = plan->run;
    run.histogram = histogram;
    run.watch = &c->reply_op;
    if (histogram)
        memset(histogram, 0, sizeof *histogram);
    st = run.rma ? perf_rma_attach(&run, &c->reply.offer) : run.rpc ? perf_rpc_attach(&run) : WEFT_OK;
    before = perf_ways_now(l);
    if (!st)
        st = perf_client_loop(l, &run, &c->reply_op);
    if (st) {
        lost(c, st, doing);
        perf_rma_drop(&run);
        perf_rpc_drop(&run);
        perf_link_drop(l, false);
        perf_run_free(&run);
        return false;
    }
    if (run.rma)
        c->path = run.rma->path;
    c->ways = perf_ways_since(l, &before);
    run_out->elapsed_ns = run.elapsed_ns;
    run_out->cpu_ns = run.cpu_ns;
    perf_run_free(&run);
    return await_reply(c, PERF_DONE, doing);
}

/* --- one test and size ----------------------------------------------------------------------------------- */

perf_plan_t perf_plan_new(const perf_opts_t *o, perf_test_t test, uint64_t size)
{
    static const uint64_t windows[PERF_TESTS] = {
        [PERF_TAG_BW] = 32,  [PERF_TAG_RATE] = 256, [PERF_AM_BW] = 32,    [PERF_AM_RATE] = 256,
        [PERF_RMA_PUT] = 32, [PERF_RPC_RATE] = 256, [PERF_RPC_TENSOR] = 4};
    perf_plan_t plan = {.test = test, .size = size, .window = o->window, .outstanding = o->outstanding, .shuffle = o->shuffle};
    plan.answer = test == PERF_AM_LAT && o->answer != UINT64_MAX ? o->answer : size;
    if (perf_is_latency(test) || test == PERF_IDLE || test == PERF_RPC_LAT)
        plan.window = 1;
    if (!plan.window)
        plan.window = windows[test] ? windows[test] : 1;
    if (!plan.outstanding)
        plan.outstanding = plan.window;
    if (test != PERF_TAG_BW && test != PERF_TAG_RATE)
        plan.shuffle = 0;
    if (perf_is_am(test)) {
        plan.header = o->header;
        plan.view = o->view;
        plan.kept = o->kept;
    }
    if (perf_is_rma(test)) {
        uint64_t least = size ? size : 1;
        if (perf_is_atomic(test)) /* each endpoint has words of its own: only what is posted on one is in order */
            least *= o->endpoints;
        plan.region = o->region > least && test != PERF_RMA_PUT_LAT ? o->region / least * least : least;
        plan.batch = test == PERF_RMA_BATCH ? o->batch : 1;
        plan.path = o->path;
    }
    if (o->stream) {
        uint64_t most = plan.window > plan.outstanding ? plan.window : plan.outstanding;
        if (perf_is_atomic(test)) /* their sums are checked by their order, and operations that wait for a stream have none */
            most = plan.window = plan.outstanding = 1;
        plan.stream = o->stream;
        plan.streams = perf_is_latency(test) ? 1 : o->streams < most ? o->streams : most;
    }
    memcpy(plan.send_kind, o->send_kind, sizeof plan.send_kind);
    memcpy(plan.recv_kind, o->recv_kind, sizeof plan.recv_kind);
    return plan;
}

/* Warm up, and find how many iterations fill the time asked for. */
static bool choose_count(client_t *c, perf_plan_t *plan)
{
    const perf_opts_t *o = c->opts;
    const uint64_t least = o->measure_ns / 5 < 50 * WEFT_MILLISECOND ? o->measure_ns / 5 : 50 * WEFT_MILLISECOND;
    perf_run_t run;
    double n, fastest = 0; /* messages a nanosecond */
    bool first = true;
    if (o->iters) {
        plan->count = o->warmup == UINT64_MAX ? o->iters / 10 + 1 : o->warmup;
        if (plan->count && !run_once(c, plan, NULL, &run))
            return false;
        plan->count = o->iters;
        return true;
    }
    for (plan->count = plan->size > 1 << 18 || plan->answer > 1 << 18 ? 4 : 256;; plan->count = (uint64_t)n) {
        if (!run_once(c, plan, NULL, &run))
            return false;
        if (first && run.elapsed_ns >= least) { /* the first run touches and maps memory: it predicts nothing */
            first = false;
            n = (double)plan->count;
            continue;
        }
        first = false;
        n = (double)plan->count / (double)(run.elapsed_ns + 1);
        fastest = n > fastest ? n : fastest;
        if (run.elapsed_ns >= least || plan->count >= UINT64_C(1) << 32)
            break;
        /* Aim at twice the time that is needed, and grow by 16 at most: the first runs are slow and predict too little. */
        n = (double)plan->count * (2.0 * (double)least / (double)(run.elapsed_ns + 1));
        n = n > 16.0 * (double)plan->count ? 16.0 * (double)plan->count : n;
        n = n < 2.0 * (double)plan->count ? 2.0 * (double)plan->count : n;
    }
    /* A disturbed last run predicts too few, and the fastest one too many if it fitted into a buffer. */
    n = (double)plan->count / (double)run.elapsed_ns;
    n = (fastest < 3 * n ? fastest : 3 * n) * (double)o->measure_ns;
    plan->count = n < 1 ? 1 : n > 1e11 ? (uint64_t)1e11 : (uint64_t)n;
    return true;
}

/* (resident bytes now - with one endpoint) / the others; with one only, all that came with it. */
static double endpoint_bytes(uint64_t before, uint64_t first, uint64_t all, uint64_t n)
{
    double more = n > 1 ? (double)all - (double)first : (double)first - (double)before;
    return (more < 0 ? 0 : more) / (double)(n > 1 ? n - 1 : 1);
}

static bool measure(void *client, perf_test_t test, uint64_t size)
{
    client_t *c = client;
    const perf_opts_t *o = c->opts;
    perf_plan_t plan = perf_plan_new(o, test, size);
    perf_result_t r = {.test = test,
                       .size = size,
                       .header = plan.header,
                       .answer = plan.answer,
                       .batch = plan.batch,
                       .region = plan.region,
                       .window = plan.window,
                       .outstanding = plan.outstanding,
                       .streams = plan.streams};
    perf_run_t run;
    char text[32], ways[PERF_WAYS_CAP];
    if (test == PERF_IDLE) {
        plan.idle_ns = o->measure_ns;
        perf_progress("idle for %.1f s", (double)o->measure_ns / 1e9);
    } else {
        perf_progress("%s, %s bytes: warming up", perf_test_name(test), tool_size_text(size, text, sizeof text));
        if (!choose_count(c, &plan))
            return false;
        perf_progress("%s, %s bytes: %llu times", perf_test_name(test), tool_size_text(size, text, sizeof text),
                      (unsigned long long)plan.count);
    }
    if (!run_once(c, &plan, c->histogram, &run))
        return false;
    perf_progress(NULL);
    r.iterations = plan.count;
    r.seconds = (double)run.elapsed_ns / 1e9;
    r.histogram = c->histogram;
    r.tick_us = perf_tick_ns() / 1e3 / (perf_is_latency(test) ? 2 : 1);
    r.transport = c->link.transport;
    r.cipher = c->link.cipher;
    r.path = perf_is_rma(test) ? weft_rma_path_name(c->path) : NULL;
    if (test != PERF_IDLE && perf_ways_on_gpu(&plan, &c->ways, &c->reply.ways))
        r.device_path = perf_ways_text(&c->ways, &c->reply.ways, ways, sizeof ways);
    r.endpoints = c->link.n_eps;
    if (test == PERF_IDLE) {
        r.cpu_percent = 100.0 * (double)run.cpu_ns / (double)run.elapsed_ns;
        r.peer_cpu_percent = 100.0 * (double)c->reply.cpu_ns / (double)(c->reply.elapsed_ns ? c->reply.elapsed_ns : 1);
    } else {
        r.avg_us = r.seconds * 1e6 / (double)plan.count / (perf_is_latency(test) ? 2 : 1);
        r.msg_s = 1e6 / r.avg_us;
        r.mb_s = r.msg_s * (double)size / 1048576.0;
    }
    r.endpoint_bytes = endpoint_bytes(c->link.rss_before, c->link.rss_first, perf_rss(), c->link.n_eps);
    r.peer_endpoint_bytes = endpoint_bytes(c->reply.rss_before, c->reply.rss_first, c->reply.rss_all, c->link.n_eps);
    if (!c->head_shown)
        perf_report_head(o, c->link.transport, c->link.cipher);
    c->head_shown = true;
    perf_report(o, &r);
    return true;
}

bool perf_points_each(const perf_opts_t *o, bool (*fn)(void *user, perf_test_t test, uint64_t size), void *user)
{
    static const uint64_t lat[] = {8, 1024, 65536, 1048576}, bw[] = {65536, 1048576, 67108864}, rate[] = {8, 64}, none[] = {0};
    static const uint64_t rma[] = {8, 4096, 1048576, 67108864}, word[] = {8}, small[] = {64, 4096};
    static const uint64_t call[] = {64, 4096, 65536};
    static const struct {
        const uint64_t *sizes;
        unsigned n;
    } usual[PERF_TESTS] = {
        [PERF_TAG_LAT] = {lat, 4},   [PERF_TAG_BW] = {bw, 3},     [PERF_TAG_RATE] = {rate, 2},   [PERF_IDLE] = {none, 1},
        [PERF_RMA_GET] = {rma, 4},   [PERF_RMA_PUT] = {rma, 4},   [PERF_RMA_PUT_LAT] = {lat, 4}, [PERF_RMA_FADD] = {word, 1},
        [PERF_RMA_CAS] = {word, 1},  [PERF_RMA_SWAP] = {word, 1}, [PERF_RMA_BATCH] = {small, 2}, [PERF_AM_LAT] = {lat, 4},
        [PERF_AM_BW] = {bw, 3},      [PERF_AM_RATE] = {rate, 2},  [PERF_RPC_LAT] = {call, 3},    [PERF_RPC_RATE] = {rate, 2},
        [PERF_RPC_TENSOR] = {bw, 3},
    };
    for (unsigned t = 0; t < o->n_tests; t++) {
        perf_test_t test = o->tests[t];
        bool own = o->n_sizes && test != PERF_IDLE;
        unsigned n = own ? o->n_sizes : usual[test].n;
        for (unsigned i = 0; i < n; i++)
            if (!fn(user, test, own ? o->sizes[i] : usual[test].sizes[i]))
                return false;
    }
    return true;
}

int perf_client(const perf_opts_t *opts, const char *uri)
{
    client_t c = {.opts = opts, .rc = TOOL_FAILED};
    perf_plan_t end = {.test = PERF_END, .window = 1, .outstanding = 1};
    int rc;
    perf_ticks_calibrate();
    c.histogram = calloc(1, sizeof *c.histogram);
    if (!c.histogram) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    rc = perf_link_open(&c.link, opts, "the server");
    if (rc)
        goto out_free;
    if (!open_endpoints(&c, uri) || !perf_points_each(opts, measure, &c) || !send_plan(&c, &end) ||
        !await_reply(&c, PERF_DONE, "saying goodbye"))
        rc = c.rc;
    if (rc)
        perf_link_drop(&c.link, false);
    perf_link_close(&c.link);

out_free:
    free(c.histogram);
    return rc;
}
