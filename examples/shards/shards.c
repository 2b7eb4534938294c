/* examples/shards/shards.c - a service on many cores: a runtime with four shards, and eight client processes.
 *
 *     shards                           the server and its clients, in processes of this machine
 *     shards tcp://192.0.2.7:13337     one client, of a server that runs
 *
 * visit() runs on the shard of its caller, and several run at the same time: each counts for its shard alone, without a lock.
 * next() is `serial`: one runs at a time, whoever calls, so that its numbers have no gaps. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

enum { SHARDS = 4, CLIENTS = 8, VISITS = 100 };

WEFT_FUNCTION(hits_visit, "visit", u64)
WEFT_FUNCTION(hits_next, "next", u64)
WEFT_FUNCTION_IDEMPOTENT(hits_total, "total", u64)

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* --- the server ------------------------------------------------------------------------------------------------------ */

/* What each shard counts. Only its own thread writes it; others may read it. Two never share a cache line. */
static struct {
    _Alignas(64) _Atomic uint64_t visits;
} counts[WEFT_SHARDS_MAX];

static hits_visit_fn visit;
static weft_code_t visit(weft_request_t *request, void *user, uint64_t *result_out)
{
    (void)user;
    *result_out = atomic_load_explicit(&counts[request->shard].visits, memory_order_relaxed) + 1;
    atomic_store_explicit(&counts[request->shard].visits, *result_out, memory_order_relaxed);
    return WEFT_CODE_OK;
}

static hits_total_fn total;
static weft_code_t total(weft_request_t *request, void *user, uint64_t *result_out)
{
    (void)request;
    (void)user;
    *result_out = 0;
    for (uint32_t k = 0; k < WEFT_SHARDS_MAX; k++)
        *result_out += atomic_load_explicit(&counts[k].visits, memory_order_relaxed);
    return WEFT_CODE_OK;
}

static hits_next_fn next;
static weft_code_t next(weft_request_t *request, void *user, uint64_t *result_out)
{
    uint64_t *last = user; /* no lock: it is serial */
    (void)request;
    *result_out = ++*last;
    return WEFT_CODE_OK;
}

/* Where the clients are. */
static void show(weft_runtime_t *rt)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < weft_runtime_shards(rt); k++) {
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        MUST(weft_runtime_get_shard_stats(rt, k, &stats));
        printf("server: shard %u has %" PRIu64 " connections\n", k, stats.connections);
        n += stats.connections;
    }
    check(n == CLIENTS, "some are lost");
}

/* Tell the clients where, wait for their answers, and let them end. */
static void serve(int tell, int hear, int life)
{
    static uint64_t last;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_function_opts_t serial = WEFT_FUNCTION_OPTS_INIT;
    weft_runtime_t *rt;
    weft_service_t *service;
    weft_listener_t *listener;
    weft_op_t op = WEFT_OP_INIT;
    char done, uri[64];
    opts.shards = SHARDS; /* WEFT_SHARDS_AUTO: one on each core */
    MUST(weft_runtime_open(&opts, &rt));
    MUST(weft_service_open(rt, "hits", NULL, &service));
    MUST(hits_visit_serve(service, visit, NULL, NULL));
    MUST(hits_total_serve(service, total, NULL, NULL));
    serial.serial = true;
    MUST(hits_next_serve(service, next, &last, &serial));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    snprintf(uri, sizeof uri, "%s", weft_listener_uri(listener));
    for (int i = 0; i < CLIENTS; i++)
        check(write(tell, uri, sizeof uri) == sizeof uri, "no client is there");
    for (int i = 0; i < CLIENTS; i++)
        check(read(hear, &done, 1) == 1, "a client failed");
    show(rt);
    close(life);
    MUST(weft_service_close(service, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_runtime_close(rt));
    check(last == CLIENTS * VISITS, "a number was given twice, or not at all");
}

/* --- a client -------------------------------------------------------------------------------------------------------- */

/* done: where to say that all calls were answered; life: the connection stays until its other end is closed. */
static void ask(const char *uri, int done, int life)
{
    weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
    weft_runtime_t *rt;
    weft_client_t *client;
    uint64_t n, before = 0;
    char end;
    opts.service = "hits";
    opts.timeout_ns = 10 * WEFT_SECOND;
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_client_open(rt, uri, &opts, &client));
    for (int i = 0; i < VISITS; i++) {
        MUST(hits_visit(client, &n));
        MUST(hits_next(client, &n));
        check(n > before, "numbers went back");
        before = n;
    }
    MUST(hits_total(client, &n));
    check(n >= VISITS, "visits were lost");
    if (done >= 0)
        check(write(done, "x", 1) == 1 && !read(life, &end, 1), "the server ended");
    else
        printf("client: %" PRIu64 " visits so far\n", n);
    MUST(weft_runtime_close(rt));
}

int main(int argc, char **argv)
{
    int uri_pipe[2], done_pipe[2], life_pipe[2], status, failed = 0;
    char uri[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2) {
        ask(argv[1], -1, -1);
        return 0;
    }
    check(!pipe(uri_pipe) && !pipe(done_pipe) && !pipe(life_pipe), "there are no pipes");
    for (int i = 0; i < CLIENTS; i++) { /* before weft_runtime_open(): a runtime belongs to the process that opened it */
        pid_t child = fork();
        check(child >= 0, "there are no processes");
        if (child == 0) {
            close(life_pipe[1]);
            close(uri_pipe[1]);
            check(read(uri_pipe[0], uri, sizeof uri) == sizeof uri, "the server did not begin");
            ask(uri, done_pipe[1], life_pipe[0]);
            return 0;
        }
    }
    close(done_pipe[1]);
    serve(uri_pipe[1], done_pipe[0], life_pipe[1]);
    for (int i = 0; i < CLIENTS; i++)
        failed |= wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status);
    printf("server: %d clients have made %d visits\n", CLIENTS, CLIENTS * VISITS);
    return failed;
}
