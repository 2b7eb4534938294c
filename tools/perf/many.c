/* tools/perf/many.c - --clients: one server and many clients, each a process: calls a second of all together.
 *
 * The processes meet on a board, memory that all of them map. The parent writes a point there, a test and a size; the server
 * opens its service for it; the clients attach and warm up; all measure between the same two moments, and each leaves its count
 * and its histogram. So nothing but calls is on the way while they measure. Whoever fails says why and ends, and the parent,
 * which looks for that while it waits, ends the others. tests/tools/tools_perf.py checks it. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf.h"

#define OVER UINT32_MAX
#define CHUNK_NS (5 * WEFT_MILLISECOND) /* calls between two looks at the clock take about that long */

typedef struct part {
    uint64_t calls, elapsed_ns;
    double endpoint_bytes;
    perf_histogram_t histogram;
} part_t;

typedef struct board {
    _Atomic uint32_t point;      /* the parent's: counted from 1, OVER: there are no more */
    _Atomic uint32_t listening;  /* the server's: its address is there */
    _Atomic uint32_t serving;    /* and the point that its service is for */
    _Atomic uint32_t warm, done; /* how many clients are */
    _Atomic uint64_t begin;      /* when they measure; 0: not known yet */
    uint64_t end;
    perf_plan_t plan;
    double server_endpoint_bytes;
    char uri[512], transport[32], cipher[40];
    part_t parts[];
} board_t;

typedef struct crew {
    const perf_opts_t *opts;
    board_t *board;
    size_t size;
    pid_t *pids; /* the server, then the clients */
    unsigned n;
} crew_t;

/* What each of n endpoints takes of this process's memory. */
static double bytes_each(const perf_link_t *l, uint64_t n)
{
    const uint64_t now = perf_rss();
    return now > l->rss_before ? (double)(now - l->rss_before) / (double)n : 0;
}

/* --- the server ----------------------------------------------------------------------------------------------- */

static void accepted(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener; /* it ends with the runtime */
    (void)ep;
    atomic_fetch_add((_Atomic uint64_t *)user, 1); /* the runtime's thread may call this */
}

/* Drive, or let the runtime's thread drive, for a millisecond. */
static weft_status_t serve_a_while(perf_link_t *l)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_timer_start(l->rt, WEFT_MILLISECOND, &op);
    return st ? st : weft_op_wait(&op, WEFT_FOREVER);
}

static int serve_points(perf_link_t *l, board_t *b, const _Atomic uint64_t *n_eps)
{
    const uint64_t all = l->opts->clients * l->opts->endpoints;
    perf_run_t run = {0};
    weft_status_t st = WEFT_OK;
    for (uint32_t at = 0, next; !st && (next = atomic_load(&b->point)) != OVER; st = serve_a_while(l)) {
        if (atomic_load(n_eps) == all && b->server_endpoint_bytes <= 0)
            b->server_endpoint_bytes = bytes_each(l, all);
        if (next == at)
            continue;
        if (at)
            perf_run_free(&run);
        at = next;
        if (perf_run_new(&run, l, &b->plan, true)) {
            tool_error("%s", run.refusal);
            return TOOL_FAILED;
        }
        atomic_store(&b->serving, at);
    }
    if (atomic_load(&b->serving))
        perf_run_free(&run);
    if (st)
        tool_error_status(st, "the server cannot go on");
    return st ? TOOL_FAILED : TOOL_OK;
}

static int server(const perf_opts_t *opts, board_t *b)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *listener;
    perf_link_t link;
    _Atomic uint64_t n_eps = 0;
    int rc = perf_link_open(&link, opts, "the clients");
    if (rc)
        return rc;
    lo.accept = accepted;
    lo.user = &n_eps;
    weft_status_t st = weft_listen(link.rt, opts->uri, &lo, &listener);
    if (st) {
        tool_error_status(st, "cannot listen on %s", opts->uri);
        rc = tool_exit_status(st);
    } else {
        snprintf(b->uri, sizeof b->uri, "%s", weft_listener_uri(listener));
        atomic_store(&b->listening, 1);
        rc = serve_points(&link, b, &n_eps);
    }
    perf_link_close(&link);
    return rc;
}

/* --- a client ----------------------------------------------------------------------------------------------- */

static weft_status_t connect_all(perf_link_t *l, const char *uri)
{
    for (uint64_t i = 0; i < l->opts->endpoints; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        weft_status_t st = weft_ep_open(l->rt, uri, NULL, &op, &ep);
        if (!st && !perf_link_add(l, ep))
            st = WEFT_ERR_NOMEM;
        if (!st)
            st = weft_op_wait(&op, l->timeout_ns);
        if (st) {
            if (!weft_op_done(&op)) /* it is on this stack */
                tool_cancel(&op);
            return st;
        }
    }
    perf_link_note_transport(l);
    return WEFT_OK;
}

/* Call until that moment, and a chunk longer at most; *calls_out: how many. */
static weft_status_t call_until(perf_link_t *l, perf_run_t *run, uint64_t end, uint64_t *calls_out)
{
    weft_status_t st = WEFT_OK;
    *calls_out = 0;
    while (!st && tool_now() < end) {
        st = perf_rpc_client(l, run);
        *calls_out += run->plan.count;
    }
    return st;
}

/* Also finds how many calls make a chunk. */
static weft_status_t warm_up(perf_link_t *l, perf_run_t *run)
{
    const uint64_t end = tool_now() + l->opts->measure_ns / 5;
    weft_status_t st = WEFT_OK;
    run->plan.count = run->plan.window > 1 ? 4 * run->plan.window : 1; /* times are taken once the window is full */
    while (!st) {
        uint64_t before = tool_now();
        st = perf_rpc_client(l, run);
        if (tool_now() - before >= CHUNK_NS / 2)
            break;
        run->plan.count *= 2;
    }
    uint64_t calls;
    return st ? st : call_until(l, run, end, &calls);
}

static weft_status_t measure(perf_link_t *l, perf_run_t *run, board_t *b, part_t *part)
{
    weft_status_t st = perf_rpc_attach(run);
    if (!st)
        st = warm_up(l, run);
    if (st)
        return st;
    atomic_fetch_add(&b->warm, 1);
    while (!atomic_load(&b->begin))
        usleep(100);
    while (tool_now() < atomic_load(&b->begin)) {}
    memset(&part->histogram, 0, sizeof part->histogram);
    run->histogram = &part->histogram;
    st = call_until(l, run, b->end, &part->calls);
    part->elapsed_ns = tool_now() - atomic_load(&b->begin); /* of all the same, also if this one came late */
    if (!st)
        atomic_fetch_add(&b->done, 1);
    return st;
}

static int client_points(perf_link_t *l, board_t *b, part_t *part)
{
    for (uint32_t at = 0;; at++) {
        perf_run_t run;
        while (atomic_load(&b->point) == at || (atomic_load(&b->point) != OVER && atomic_load(&b->serving) == at))
            usleep(100);
        if (atomic_load(&b->point) == OVER)
            return TOOL_OK;
        weft_status_t st = perf_run_new(&run, l, &b->plan, false);
        if (st) {
            tool_error("%s%s", run.refusal, run.advice);
            return TOOL_FAILED;
        }
        st = measure(l, &run, b, part);
        if (st) {
            perf_link_lost(l, st, perf_test_name((perf_test_t)b->plan.test));
            perf_rpc_drop(&run);
            perf_link_drop(l, false); /* the run's memory is in use until then */
        }
        perf_run_free(&run);
        if (st)
            return TOOL_FAILED;
    }
}

static int client(const perf_opts_t *opts, board_t *b, unsigned nth)
{
    part_t *part = &b->parts[nth];
    perf_link_t link;
    int rc = perf_link_open(&link, opts, "the server");
    if (rc)
        return rc;
    weft_status_t st = connect_all(&link, b->uri);
    if (st) {
        perf_link_lost(&link, st, "connecting");
        perf_link_drop(&link, false);
        rc = TOOL_FAILED;
    } else {
        part->endpoint_bytes = bytes_each(&link, link.n_eps);
        if (!nth) {
            memcpy(b->transport, link.transport, sizeof b->transport);
            memcpy(b->cipher, link.cipher, sizeof b->cipher);
        }
        rc = client_points(&link, b, part);
    }
    perf_link_close(&link);
    return rc;
}

/* --- the parent ----------------------------------------------------------------------------------------------- */

/* A process of ours ends with its parent. */
static bool start(crew_t *c, unsigned nth)
{
    perf_opts_t own = *c->opts;
    const pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        tool_error("cannot fork: %s", strerror(errno));
        return false;
    }
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(TOOL_FAILED);
        tool_name = nth ? "weft perf (client)" : "weft perf (server)";
        own.core = nth * own.cores;
        if (nth && own.shards) {
            own.core = (unsigned)own.shards + (nth - 1) * own.cores;
            own.shards = 0;
        }
        int rc = nth ? client(&own, c->board, nth - 1) : server(&own, c->board);
        fflush(NULL);
        _exit(rc);
    }
    c->pids[nth] = pid;
    c->n = nth + 1;
    return true;
}

/* One has ended before its time: it has said why, unless it was killed. */
static bool one_is_gone(crew_t *c)
{
    int status;
    for (unsigned i = 0; i < c->n; i++) {
        if (!c->pids[i] || waitpid(c->pids[i], &status, WNOHANG) != c->pids[i])
            continue;
        c->pids[i] = 0;
        if (WIFSIGNALED(status))
            tool_error("%s was killed by signal %d (%s)", i ? "a client" : "the server", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
        return true;
    }
    return false;
}

static bool await(crew_t *c, const _Atomic uint32_t *what, uint32_t n, uint64_t more_ns, const char *doing)
{
    const uint64_t deadline = tool_now() + c->opts->timeout_ns + more_ns;
    while (atomic_load(what) != n) {
        if (one_is_gone(c))
            return false;
        if (tool_now() > deadline) {
            tool_error("not all processes are %s within --timeout", doing);
            return false;
        }
        usleep(500);
    }
    return true;
}

/* All of them together. */
static void report(const crew_t *c, perf_histogram_t *all)
{
    const board_t *b = c->board;
    const unsigned n = (unsigned)c->opts->clients;
    perf_result_t r = {.test = (perf_test_t)b->plan.test, .size = b->plan.size, .window = b->plan.window, .histogram = all};
    r.outstanding = b->plan.window;
    r.endpoints = c->opts->endpoints;
    memset(all, 0, sizeof *all);
    for (unsigned i = 0; i < n; i++) {
        const part_t *part = &b->parts[i];
        double seconds = (double)part->elapsed_ns / 1e9;
        r.iterations += part->calls;
        r.seconds = seconds > r.seconds ? seconds : r.seconds;
        r.msg_s += (double)part->calls / seconds;
        for (size_t k = 0; k < sizeof all->counts / sizeof *all->counts; k++)
            all->counts[k] += part->histogram.counts[k];
        all->n += part->histogram.n;
        all->max = part->histogram.max > all->max ? part->histogram.max : all->max;
    }
    r.tick_us = perf_tick_ns() / 1e3;
    r.avg_us = n * 1e6 / r.msg_s;
    r.mb_s = r.msg_s * (double)r.size / 1048576.0;
    r.transport = b->transport;
    r.cipher = b->cipher;
    r.endpoint_bytes = b->parts[0].endpoint_bytes;
    r.peer_endpoint_bytes = b->server_endpoint_bytes;
    perf_report(c->opts, &r);
}

static bool measure_point(void *crew, perf_test_t test, uint64_t size)
{
    crew_t *c = crew;
    board_t *b = c->board;
    const uint32_t n = (uint32_t)c->opts->clients, at = atomic_load(&b->point);
    char text[32];
    b->plan = perf_plan_new(c->opts, test, size);
    atomic_store(&b->warm, 0);
    atomic_store(&b->done, 0);
    atomic_store(&b->begin, 0);
    perf_progress("%s, %s bytes, %u clients", perf_test_name(test), tool_size_text(size, text, sizeof text), n);
    atomic_store(&b->point, at + 1);
    if (!await(c, &b->warm, n, c->opts->measure_ns, "warm"))
        return false;
    uint64_t begin = tool_now() + WEFT_MILLISECOND;
    b->end = begin + c->opts->measure_ns;
    atomic_store(&b->begin, begin);
    if (!await(c, &b->done, n, c->opts->measure_ns, "done"))
        return false;
    perf_progress(NULL);
    perf_histogram_t *all = calloc(1, sizeof *all);
    if (!all) {
        tool_error("out of memory");
        return false;
    }
    if (!at)
        perf_report_head(c->opts, b->transport, b->cipher);
    report(c, all);
    free(all);
    return true;
}

/* Ask them to end, or end them. */
static bool finish(crew_t *c, bool well)
{
    const uint64_t deadline = tool_now() + (well ? 15 : 0) * WEFT_SECOND;
    atomic_store(&c->board->point, OVER);
    for (unsigned i = 0; i < c->n; i++) {
        int status = 0;
        pid_t got = 0;
        if (!c->pids[i])
            continue;
        while (well && !(got = waitpid(c->pids[i], &status, WNOHANG)) && tool_now() < deadline)
            usleep(500);
        if (got != c->pids[i]) {
            kill(c->pids[i], SIGKILL);
            waitpid(c->pids[i], NULL, 0);
        }
        well = well && got == c->pids[i] && WIFEXITED(status) && !WEXITSTATUS(status);
    }
    return well;
}

int perf_many(perf_opts_t *opts)
{
    crew_t c = {.opts = opts, .size = sizeof(board_t) + opts->clients * sizeof(part_t)};
    const unsigned n = (unsigned)opts->clients + 1;
    if (opts->pin && !perf_cores_share(opts, n)) {
        tool_error("%u processes have %u cores: the kernel chooses which runs where", n, perf_cores());
        opts->pin = false;
        opts->crowded = true;
    }
    perf_ticks_calibrate(); /* in the parent, so that all have the same */
    c.pids = calloc(n, sizeof *c.pids);
    void *shared = mmap(NULL, c.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!c.pids || shared == MAP_FAILED) {
        tool_error("out of memory");
        free(c.pids);
        if (shared != MAP_FAILED)
            munmap(shared, c.size);
        return TOOL_FAILED;
    }
    c.board = shared;
    bool well = start(&c, 0) && await(&c, &c.board->listening, 1, 0, "listening");
    for (unsigned i = 1; i < n && well; i++)
        well = start(&c, i);
    well = well && perf_points_each(opts, measure_point, &c);
    perf_progress(NULL);
    well = finish(&c, well);
    munmap(c.board, c.size);
    free(c.pids);
    return well ? TOOL_OK : TOOL_FAILED;
}
