/* examples/streams/streams.c - functions whose arguments or results are streams of values.
 *
 *     streams                             a server and a client, in two processes of this machine
 *     streams tcp://192.0.2.7:13337       the client, of a server that runs
 *
 * Whoever sends is as fast as whoever receives: 64 values may be on their way, then the sender waits. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

WEFT_FUNCTION_GIVES_STREAM(math_primes, "primes", u64, (u64, below))
WEFT_FUNCTION_TAKES_STREAM(math_total, "total", f64, (f64, values))
WEFT_FUNCTION_BOTH_STREAMS(math_means, "means", f64, (f64, values))

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* --- the server: functions on threads of the service's own, which may wait ---------------------------------------------- */

static bool prime(uint64_t n)
{
    for (uint64_t by = 2; by * by <= n; by++)
        if (n % by == 0)
            return false;
    return true;
}

static math_primes_fn primes;
static weft_code_t primes(weft_request_t *request, void *user, uint64_t below)
{
    weft_op_t op = WEFT_OP_INIT;
    (void)user;
    for (uint64_t n = 2; n < below; n++) {
        if (!prime(n))
            continue;
        weft_status_t status = math_primes_give(request->stream, n, &op);
        if (!status)
            status = weft_op_wait(&op, WEFT_FOREVER); /* while the client is behind */
        if (status)
            return WEFT_CODE_CANCELLED; /* it has enough of them, or is gone */
    }
    return WEFT_CODE_OK; /* the answer ends the stream */
}

/* The mean of what came so far, after each value. */
static math_means_fn means;
static weft_code_t means(weft_request_t *request, void *user)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_item_t item = WEFT_ITEM_INIT;
    double sum = 0;
    (void)user;
    for (unsigned n = 1;; n++) {
        weft_status_t status = weft_stream_recv(request->stream, &item, &op);
        if (!status)
            status = weft_op_wait(&op, WEFT_FOREVER);
        if (status)
            return WEFT_CODE_CANCELLED;
        if (op.len == 0)
            return WEFT_CODE_OK; /* the client sends no more */
        sum += math_means_sent(&item);
        weft_item_release(&item);
        status = math_means_give(request->stream, sum / n, &op);
        if (!status)
            status = weft_op_wait(&op, WEFT_FOREVER);
        if (status)
            return WEFT_CODE_CANCELLED;
    }
}

/* --- the server: a function in progress, which goes on from completion to completion -------------------------------------- */

struct adding {
    weft_request_t *request;
    weft_op_t op;
    weft_item_t item;
    double sum;
};

static void next_value(weft_op_t *op, void *user)
{
    struct adding *a = user;
    weft_status_t status = op->status;
    if (!status && op->len) {
        a->sum += math_total_sent(&a->item);
        weft_item_release(&a->item);
        status = weft_stream_recv(a->request->stream, &a->item, op);
        if (!status)
            return; /* called again when there is one */
    }
    if (!status)
        math_total_reply(a->request, a->sum);
    weft_request_release(a->request); /* answered, or nobody waits for it */
    free(a);
}

static math_total_fn total;
static weft_code_t total(weft_request_t *request, void *user, double *result_out)
{
    struct adding *a = calloc(1, sizeof *a);
    (void)user;
    (void)result_out;
    if (!a)
        return WEFT_CODE_RESOURCE_EXHAUSTED;
    a->request = weft_request_keep(request);
    a->op.fn = next_value;
    a->op.user = a;
    if (a->request) {
        weft_status_t status = weft_stream_recv(a->request->stream, &a->item, &a->op);
        if (!status)
            return WEFT_LATER;
        weft_request_release(a->request); /* nobody waits for it any more */
    }
    free(a);
    return WEFT_LATER; /* it was answered: there was no memory to keep it, or its caller is gone */
}

/* Serve until whoever is at the other end of `until` goes. */
static void serve(int tell, int until)
{
    weft_runtime_opts_t rt_opts = WEFT_RUNTIME_OPTS_INIT;
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t on_thread = WEFT_FUNCTION_OPTS_INIT;
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_service_t *service;
    weft_op_t op = WEFT_OP_INIT;
    char byte;
    rt_opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&rt_opts, &rt));
    opts.threads = 2;
    on_thread.threads = true;
    MUST(weft_service_open(rt, "math", &opts, &service));
    MUST(math_primes_serve(service, primes, NULL, &on_thread));
    MUST(math_means_serve(service, means, NULL, &on_thread));
    MUST(math_total_serve(service, total, NULL, NULL));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    const char *uri = weft_listener_uri(listener);
    check(write(tell, uri, strlen(uri)) > 0, "the client is gone");
    close(tell);
    while (read(until, &byte, 1) > 0)
        ;
    MUST(weft_service_close(service, &op));
    WAIT(op);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
}

/* --- the client ----------------------------------------------------------------------------------------------------------- */

static void all_primes(weft_client_t *client)
{
    math_primes_call_t call = WEFT_CALL_ZERO;
    weft_item_t item = WEFT_ITEM_INIT;
    weft_op_t op = WEFT_OP_INIT;
    uint64_t n = 0, last = 0;
    MUST(math_primes_open(client, 10000, &call));
    for (;;) {
        MUST(weft_stream_recv(call.stream, &item, &op));
        WAIT(op);
        if (op.len == 0)
            break; /* the end of the stream */
        last = math_primes_given(&item);
        n++;
        weft_item_release(&item);
    }
    WAIT(call.op); /* what the call itself came to */
    weft_reply_release(&call.reply);
    weft_stream_release(call.stream);
    printf("client: %" PRIu64 " primes below 10000, the last is %" PRIu64 "\n", n, last);
    check(n == 1229 && last == 9973, "there are others");
}

static void some_primes(weft_client_t *client)
{
    math_primes_call_t call = WEFT_CALL_ZERO;
    weft_item_t item = WEFT_ITEM_INIT;
    weft_op_t op = WEFT_OP_INIT;
    MUST(math_primes_open(client, UINT64_MAX, &call));
    for (int i = 0; i < 10; i++) {
        MUST(weft_stream_recv(call.stream, &item, &op));
        WAIT(op);
        weft_item_release(&item);
    }
    weft_stream_release(call.stream); /* enough: the call is cancelled, and the function hears of it */
    check(weft_op_wait(&call.op, 10 * WEFT_SECOND) == WEFT_ERR_CANCELLED, "the call went on");
    weft_reply_release(&call.reply);
    printf("client: ten primes were enough\n");
}

static void add_up(weft_client_t *client)
{
    enum { AT_ONCE = 16, N = 1000 };
    math_total_call_t call = WEFT_CALL_ZERO;
    static weft_op_t ops[AT_ONCE];
    MUST(math_total_open(client, &call));
    for (int i = 0; i < N; i++) { /* several are on their way at a time; they keep their order */
        WAIT(ops[i % AT_ONCE]);
        MUST(math_total_send(call.stream, i + 1, &ops[i % AT_ONCE]));
    }
    MUST(weft_stream_end(call.stream, NULL));
    WAIT(call.op);
    printf("client: the numbers to %d are %.0f together\n", N, math_total_result(&call));
    check(math_total_result(&call) == N * (N + 1) / 2, "they are not");
    for (int i = 0; i < AT_ONCE; i++)
        WAIT(ops[i]);
    weft_reply_release(&call.reply);
    weft_stream_release(call.stream);
}

static void ask_for_means(weft_client_t *client)
{
    static const double values[] = {4, 8, 3};
    math_means_call_t call = WEFT_CALL_ZERO;
    weft_item_t item = WEFT_ITEM_INIT;
    weft_op_t op = WEFT_OP_INIT;
    MUST(math_means_open(client, &call));
    for (int i = 0; i < 3; i++) {
        MUST(math_means_send(call.stream, values[i], &op));
        WAIT(op);
        MUST(weft_stream_recv(call.stream, &item, &op));
        WAIT(op);
        printf("client: after %.0f the mean is %.0f\n", values[i], math_means_given(&item));
        weft_item_release(&item);
    }
    MUST(weft_stream_end(call.stream, NULL));
    WAIT(call.op);
    weft_reply_release(&call.reply);
    weft_stream_release(call.stream);
}

static void ask(const char *uri)
{
    weft_runtime_t *rt;
    weft_client_t *client;
    weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.service = "math";
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_client_open(rt, uri, &opts, &client));
    all_primes(client);
    some_primes(client);
    add_up(client);
    ask_for_means(client);
    MUST(weft_client_close(client, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
}

int main(int argc, char **argv)
{
    int uri_pipe[2], life_pipe[2], status;
    char uri[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2) {
        ask(argv[1]);
        return 0;
    }
    if (pipe(uri_pipe) || pipe(life_pipe)) {
        perror("pipe");
        return 1;
    }
    pid_t child = fork(); /* before weft_runtime_open(): a runtime belongs to the process that opened it */
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        close(uri_pipe[0]);
        close(life_pipe[1]);
        serve(uri_pipe[1], life_pipe[0]);
        return 0;
    }
    close(uri_pipe[1]);
    close(life_pipe[0]);
    ssize_t n = read(uri_pipe[0], uri, sizeof uri - 1);
    check(n > 0, "the server did not begin");
    uri[n] = '\0';
    ask(uri);
    close(life_pipe[1]);
    return waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status);
}
