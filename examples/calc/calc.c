/* examples/calc/calc.c - a service with typed functions, and a client of it.
 *
 *     calc                             a server and a client, in two processes of this machine
 *     calc tcp://192.0.2.7:13337       the client, of a server that runs
 *
 * calc.h declares the functions, once for both. */
#include "calc.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

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

/* --- the server: functions that answer at once ------------------------------------------------------------------------- */

static calc_add_fn add;
static weft_code_t add(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *sum_out)
{
    (void)request;
    (void)user;
    *sum_out = (int32_t)((uint32_t)a + (uint32_t)b);
    return WEFT_CODE_OK;
}

static calc_divide_fn divide;
static weft_code_t divide(weft_request_t *request, void *user, int32_t a, int32_t b, calc_divide_result_t *result_out)
{
    (void)user;
    if (b == 0)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "b is 0");
    if (a == INT32_MIN && b == -1)
        return WEFT_CODE_OUT_OF_RANGE;
    result_out->quotient = a / b;
    result_out->rest = a % b;
    return WEFT_CODE_OK;
}

/* A result is copied when the function returns: a buffer of the function's own will do. */
static calc_upper_fn upper;
static weft_code_t upper(weft_request_t *request, void *user, weft_string_t text, weft_string_t *result_out)
{
    static char letters[4096]; /* functions run one after the other, if they are not given threads */
    (void)user;
    if (text.n > sizeof letters)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "the text is too long");
    for (size_t i = 0; i < text.n; i++)
        letters[i] = (char)toupper((unsigned char)text.data[i]);
    *result_out = weft_string_n(letters, text.n);
    return WEFT_CODE_OK;
}

static calc_mean_fn mean;
static weft_code_t mean(weft_request_t *request, void *user, weft_f64s_t values, double *mean_out)
{
    (void)user;
    if (values.n == 0)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "there are no values");
    for (size_t i = 0; i < values.n; i++)
        *mean_out += values.data[i] / (double)values.n;
    return WEFT_CODE_OK;
}

/* Where a program keeps its state, `user` brings it. */
static calc_count_fn count;
static weft_code_t count(weft_request_t *request, void *user, uint64_t by, uint64_t *count_out)
{
    uint64_t *counter = user;
    (void)request;
    *count_out = *counter += by;
    return WEFT_CODE_OK;
}

static calc_log_fn take_line;
static weft_code_t take_line(weft_request_t *request, void *user, weft_string_t line)
{
    (void)request;
    (void)user;
    printf("server: a client says: %.*s\n", (int)line.n, line.data);
    return WEFT_CODE_OK;
}

/* --- the server: tensors ------------------------------------------------------------------------------------------------ */

struct scaled {
    weft_op_t op;
    weft_tensor_t image;
};

/* The reply has left, and the image can go. */
static void scaled_sent(weft_op_t *op, void *user)
{
    struct scaled *scaled = user;
    (void)op;
    free(scaled->image.data);
    free(scaled);
}

/* A large result is better sent from where it is: the function answers itself, and is told when the memory is its own again. */
static calc_scale_fn scale;
static weft_code_t scale(weft_request_t *request, void *user, const weft_tensor_t *image, float by,
                         const weft_tensor_t **result_out)
{
    uint64_t bytes;
    (void)user;
    (void)result_out;
    if (image->code != 2 || image->bits != 32 || image->device_type != 1 || !weft_tensor_compact(image))
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "scale() wants f32, compact, in the memory of the host");
    if (weft_tensor_bytes(image, &bytes) != WEFT_OK)
        return WEFT_CODE_INVALID_ARGUMENT;
    struct scaled *scaled = calloc(1, sizeof *scaled);
    float *to = malloc(bytes ? bytes : 1);
    if (!scaled || !to) {
        free(scaled);
        free(to);
        return WEFT_CODE_RESOURCE_EXHAUSTED;
    }
    const float *from = (const float *)((const char *)image->data + image->byte_offset);
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = from[i] * by;
    scaled->image = *image; /* the same shape */
    scaled->image.data = to;
    scaled->image.byte_offset = 0;
    scaled->op.fn = scaled_sent;
    scaled->op.user = scaled;
    if (calc_scale_reply_from(request, &scaled->image, &scaled->op) != WEFT_OK)
        scaled_sent(&scaled->op, scaled);
    return WEFT_LATER;
}

/* --- the server: functions that take their time ------------------------------------------------------------------------- */

struct nap {
    weft_op_t timer;
    weft_request_t *request;
};

static void nap_over(weft_op_t *op, void *user)
{
    struct nap *nap = user;
    if (op->status == WEFT_OK)
        calc_sleep_reply(nap->request);
    weft_request_release(nap->request);
    free(nap);
}

static void nap_unwanted(weft_request_t *request, void *user)
{
    struct nap *nap = user;
    printf("server: a client does not want to sleep any more\n");
    weft_request_fail(request, WEFT_CODE_CANCELLED, NULL);
    weft_op_cancel(&nap->timer);
}

/* It keeps the request and returns; a timer answers. Nobody is in the way of others meanwhile. */
static calc_sleep_fn sleep_a_while;
static weft_code_t sleep_a_while(weft_request_t *request, void *user, uint64_t ms)
{
    weft_runtime_t *rt = user;
    struct nap *nap = calloc(1, sizeof *nap);
    if (!nap)
        return WEFT_CODE_RESOURCE_EXHAUSTED;
    nap->request = weft_request_keep(request);
    if (!nap->request) {
        free(nap);
        return WEFT_LATER; /* there was no memory to keep it, and it was answered so */
    }
    nap->timer.fn = nap_over;
    nap->timer.user = nap;
    if (weft_timer_start(rt, ms * WEFT_MILLISECOND, &nap->timer) != WEFT_OK) {
        weft_request_release(nap->request);
        free(nap);
        return WEFT_LATER;
    }
    weft_request_on_cancel(nap->request, nap_unwanted, nap);
    return WEFT_LATER;
}

/* On a thread of the service's own: it may take as long as it likes, and looks whether anyone still wants to know. */
static calc_factor_fn factor;
static weft_code_t factor(weft_request_t *request, void *user, uint64_t of, uint64_t *factor_out)
{
    (void)user;
    *factor_out = of;
    for (uint64_t f = 2; f <= of / f; f++) {
        if (of % f == 0) {
            *factor_out = f;
            return WEFT_CODE_OK;
        }
        if (f % 65536 == 0 && weft_request_cancelled(request))
            return WEFT_CODE_CANCELLED;
    }
    return WEFT_CODE_OK;
}

/* --- the server: streams, on threads that may wait ------------------------------------------------------------------------ */

static calc_primes_fn primes;
static weft_code_t primes(weft_request_t *request, void *user, uint64_t below)
{
    (void)user;
    for (uint64_t n = 2; n < below; n++) {
        bool prime = true;
        for (uint64_t f = 2; prime && f <= n / f; f++)
            prime = n % f != 0;
        weft_op_t op = WEFT_OP_INIT;
        if (prime && (calc_primes_give(request->stream, n, &op) || weft_op_wait(&op, WEFT_FOREVER)))
            return WEFT_CODE_CANCELLED; /* the client has enough of them, or is gone */
    }
    return WEFT_CODE_OK; /* and the stream ends */
}

static calc_total_fn total;
static weft_code_t total(weft_request_t *request, void *user, double *total_out)
{
    (void)user;
    for (;;) {
        weft_item_t item = WEFT_ITEM_INIT;
        weft_op_t op = WEFT_OP_INIT;
        if (weft_stream_recv(request->stream, &item, &op) || weft_op_wait(&op, WEFT_FOREVER))
            return WEFT_CODE_CANCELLED;
        if (op.len == 0)
            return WEFT_CODE_OK; /* that was all */
        *total_out += calc_total_sent(&item);
        weft_item_release(&item);
    }
}

/* --- the server ------------------------------------------------------------------------------------------------------------ */

static void came(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep; /* services answer over every endpoint */
    (void)user;
}

static void went(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

/* Serve until the pipe `until` is closed. */
static void serve(int tell, int until)
{
    weft_runtime_opts_t rt_opts = WEFT_RUNTIME_OPTS_INIT;
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t on_threads = WEFT_FUNCTION_OPTS_INIT;
    weft_listen_opts_t listen_opts = WEFT_LISTEN_OPTS_INIT;
    weft_service_stats_t stats = WEFT_SERVICE_STATS_INIT;
    weft_ep_hooks_t hooks = {.closed = went};
    weft_runtime_t *rt;
    weft_service_t *service;
    weft_listener_t *listener;
    weft_op_t op = WEFT_OP_INIT;
    uint64_t counter = 0;
    char end;
    rt_opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&rt_opts, &rt));

    opts.threads = 2;
    opts.requests = 10000;  /* at one time: one more is answered RESOURCE_EXHAUSTED */
    opts.bytes = 256 << 20; /* of their arguments */
    MUST(weft_service_open(rt, "calc", &opts, &service));
    MUST(calc_add_serve(service, add, NULL, NULL));
    MUST(calc_divide_serve(service, divide, NULL, NULL));
    MUST(calc_upper_serve(service, upper, NULL, NULL));
    MUST(calc_mean_serve(service, mean, NULL, NULL));
    MUST(calc_scale_serve(service, scale, NULL, NULL));
    MUST(calc_count_serve(service, count, &counter, NULL));
    MUST(calc_sleep_serve(service, sleep_a_while, rt, NULL));
    MUST(calc_log_serve(service, take_line, NULL, NULL));
    on_threads.threads = true;
    MUST(calc_factor_serve(service, factor, NULL, &on_threads));
    MUST(calc_primes_serve(service, primes, NULL, &on_threads));
    MUST(calc_total_serve(service, total, NULL, &on_threads));

    listen_opts.accept = came;
    listen_opts.hooks = &hooks;
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", &listen_opts, &listener));
    if (dprintf(tell, "%s", weft_listener_uri(listener)) > 0)
        close(tell);

    if (read(until, &end, 1) < 0)
        perror("read");
    MUST(weft_service_drain(service, &op)); /* no new calls; those under way may end */
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_service_get_stats(service, &stats));
    printf("server: %" PRIu64 " calls, %" PRIu64 " of them failed\n", stats.requests, stats.failed);
    MUST(weft_service_close(service, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
}

/* --- the client ------------------------------------------------------------------------------------------------------------ */

static void values_and_views(weft_client_t *client)
{
    int32_t sum;
    MUST(calc_add(client, 25, 17, &sum));
    printf("client: 25 + 17 = %d\n", sum);
    check(sum == 42, "that is not the sum");

    calc_divide_result_t divided;
    MUST(calc_divide(client, 100, 7, &divided));
    printf("client: 100 / 7 = %d, and %d is left\n", divided.quotient, divided.rest);

    double values[] = {1, 2, 3, 4}, average;
    MUST(calc_mean(client, weft_f64s(values, 4), &average));
    printf("client: on average %g\n", average);

    weft_string_t loud;
    weft_reply_t reply;
    MUST(calc_upper(client, weft_string("warp and weft"), &loud, &reply));
    printf("client: %.*s\n", (int)loud.n, loud.data); /* the reply has the text */
    weft_reply_release(&reply);

    MUST(calc_log(client, weft_string("that was easy"))); /* returns when it is on its way */
}

static void failures(weft_client_t *client)
{
    calc_divide_result_t divided;
    weft_status_t status = calc_divide(client, 1, 0, &divided);
    if (status != WEFT_OK)
        printf("client: %s\n", weft_last_error()); /* INVALID_ARGUMENT: b is 0 */
    check(status == WEFT_ERR_CALL, "nobody divides by 0");

    calc_divide_call_t call = WEFT_CALL_ZERO;
    MUST(calc_divide_post(client, 1, 0, &call));
    status = weft_op_wait(&call.op, WEFT_FOREVER);
    if (status == WEFT_ERR_CALL && call.reply.code == WEFT_CODE_INVALID_ARGUMENT)
        printf("client: the server did not like it: %s\n", call.reply.message);
    check(call.reply.ran == WEFT_RAN, "the function itself said so");
    weft_reply_release(&call.reply);
}

static void many_at_once(weft_client_t *client)
{
    enum { CALLS = 1000 };
    static calc_add_call_t calls[CALLS]; /* zero, as WEFT_CALL_ZERO */
    long all = 0;
    for (int i = 0; i < CALLS; i++)
        MUST(calc_add_post(client, i, i, &calls[i]));
    for (int i = 0; i < CALLS; i++) {
        MUST(weft_op_wait(&calls[i].op, WEFT_FOREVER));
        all += calc_add_result(&calls[i]);
        weft_reply_release(&calls[i].reply);
    }
    printf("client: %d sums, together %ld\n", CALLS, all);
    check(all == 999000, "a sum is wrong");
}

static void deadlines(weft_client_t *client)
{
    calc_sleep_call_t call = WEFT_CALL_ZERO;
    call.op.timeout_ns = 50 * WEFT_MILLISECOND;
    MUST(calc_sleep_post(client, 60000, &call));
    weft_status_t status = weft_op_wait(&call.op, WEFT_FOREVER);
    printf("client: %s\n", weft_code_name(call.reply.code));
    check(status == WEFT_ERR_TIMEOUT, "that was a long sleep");
    weft_reply_release(&call.reply);

    calc_sleep_call_t other = WEFT_CALL_ZERO;
    MUST(calc_sleep_post(client, 60000, &other));
    weft_op_cancel(&other.op); /* from any thread; the server is told */
    status = weft_op_wait(&other.op, WEFT_FOREVER);
    check(status == WEFT_ERR_CANCELLED, "it should have been cancelled");
    weft_reply_release(&other.reply);
}

static void exactly_once(weft_client_t *client)
{
    weft_call_opts_t opts = WEFT_CALL_OPTS_INIT;
    calc_count_call_t call = WEFT_CALL_ZERO;
    opts.once = true; /* lost replies are asked for again, and the function does not run twice for it */
    call.opts = &opts;
    MUST(calc_count_post(client, 1, &call));
    MUST(weft_op_wait(&call.op, WEFT_FOREVER));
    printf("client: counted to %" PRIu64 "\n", calc_count_result(&call));
    weft_reply_release(&call.reply);
}

static void tensors(weft_client_t *client)
{
    enum { ROWS = 512, COLUMNS = 1024 };
    static float pixels[ROWS * COLUMNS], brighter[ROWS * COLUMNS];
    int64_t shape[] = {ROWS, COLUMNS};
    weft_tensor_t image = {.data = pixels, .device_type = 1, .ndim = 2, .code = 2, .bits = 32, .lanes = 1, .shape = shape};
    weft_call_opts_t opts = WEFT_CALL_OPTS_INIT;
    calc_scale_call_t call = WEFT_CALL_ZERO;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        pixels[i] = (float)i;
    opts.into = brighter; /* where the result goes, without a copy on the way */
    opts.into_cap = sizeof brighter;
    call.opts = &opts;
    MUST(calc_scale_post(client, &image, 1.5f, &call));
    MUST(weft_op_wait(&call.op, WEFT_FOREVER));
    const weft_tensor_t *result = calc_scale_result(&call);
    printf("client: an image of %" PRId64 " x %" PRId64 "\n", result->shape[0], result->shape[1]);
    check(result->data == brighter && brighter[1000] == 1500, "that is not the image");
    weft_reply_release(&call.reply);
}

static void streams(weft_client_t *client)
{
    calc_primes_call_t call = WEFT_CALL_ZERO;
    MUST(calc_primes_open(client, 30, &call));
    printf("client: primes:");
    for (;;) {
        weft_item_t item = WEFT_ITEM_INIT;
        weft_op_t op = WEFT_OP_INIT;
        MUST(weft_stream_recv(call.stream, &item, &op));
        MUST(weft_op_wait(&op, WEFT_FOREVER));
        if (op.len == 0)
            break; /* the end */
        printf(" %" PRIu64, calc_primes_given(&item));
        weft_item_release(&item);
    }
    printf("\n");
    MUST(weft_op_wait(&call.op, WEFT_FOREVER)); /* how it ended */
    weft_stream_release(call.stream);
    weft_reply_release(&call.reply);

    calc_total_call_t sum = WEFT_CALL_ZERO;
    MUST(calc_total_open(client, &sum));
    for (int i = 1; i <= 100; i++) {
        weft_op_t op = WEFT_OP_INIT;
        MUST(calc_total_send(sum.stream, i, &op));
        MUST(weft_op_wait(&op, WEFT_FOREVER)); /* waits while the server has more than it can take */
    }
    MUST(weft_stream_end(sum.stream, NULL));
    MUST(weft_op_wait(&sum.op, WEFT_FOREVER));
    printf("client: 1 + 2 + ... + 100 = %g\n", calc_total_result(&sum));
    weft_stream_release(sum.stream);
    weft_reply_release(&sum.reply);
}

static void reflection(weft_client_t *client)
{
    weft_string_t lines;
    weft_reply_t reply;
    MUST(any_functions(client, weft_string("calc"), &lines, &reply));
    printf("client: the service has\n%.*s", (int)lines.n, lines.data);
    weft_reply_release(&reply);

    weft_method_t *method;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_client_method(client, "add", &method)); /* by its name: the server says the rest */
    MUST(weft_method_check(method, NULL, &op));
    MUST(weft_op_wait(&op, WEFT_FOREVER));
    printf("client: %s\n", weft_sig_text(weft_method_sig(method)));

    weft_value_t args[2];
    char room[64];
    MUST(weft_value_parse(WEFT_T_I32, "25", room, sizeof room, &args[0]));
    MUST(weft_value_parse(WEFT_T_I32, "17", room, sizeof room, &args[1]));
    MUST(weft_call_wait(method, args, 2, NULL, WEFT_SECOND, &reply));
    weft_value_format(&reply.values[0], room, sizeof room);
    printf("client: add(25, 17) = %s\n", room);
    weft_reply_release(&reply);
}

static void call(const char *uri)
{
    weft_runtime_t *rt;
    weft_client_t *client;
    weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_runtime_open(NULL, &rt));
    opts.service = "calc";
    opts.timeout_ns = 10 * WEFT_SECOND; /* for calls that wait */
    MUST(weft_client_open(rt, uri, &opts, &client));
    values_and_views(client);
    failures(client);
    many_at_once(client);
    deadlines(client);
    exactly_once(client);
    tensors(client);
    streams(client);
    reflection(client);
    MUST(weft_client_close(client, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_runtime_close(rt));
}

int main(int argc, char **argv)
{
    int from_server[2], to_server[2], status;
    char uri[512];
    setvbuf(stdout, NULL, _IOLBF, 0); /* two processes write to it: a line at a time */
    if (argc > 2) {
        fprintf(stderr, "usage: %s [URI]\n", argv[0]);
        return 2;
    }
    if (argc == 2) {
        call(argv[1]);
        return 0;
    }
    if (pipe(from_server) || pipe(to_server)) {
        perror("pipe");
        return 1;
    }
    pid_t server = fork(); /* before weft_runtime_open(): a runtime belongs to the process that opened it */
    if (server < 0) {
        perror("fork");
        return 1;
    }
    if (server == 0) {
        close(from_server[0]);
        close(to_server[1]);
        serve(from_server[1], to_server[0]);
        return 0;
    }
    close(from_server[1]);
    close(to_server[0]);
    ssize_t n = read(from_server[0], uri, sizeof uri - 1);
    if (n <= 0)
        return 1; /* the server has said why */
    uri[n] = '\0';
    call(uri);
    close(to_server[1]);
    if (waitpid(server, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
        return 1;
    return 0;
}
