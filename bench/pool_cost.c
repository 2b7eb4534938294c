/* bench/pool_cost.c - what it costs to run a function on a thread of its service, beside the same function on the driver.
 *
 *     pool_cost [--seconds S] [--clients N] [--threads T] [--window W]
 *
 *   inline_us, pool_us          the median round trip of one client that has one call under way
 *   inline_rate, pool_rate      calls a second of N clients, each with W calls under way
 *   inline_sleeps, pool_sleeps  how often threads of the server slept, per call of the N clients
 *   inline_cpu_us, pool_cpu_us  processor time of the server per call of the N clients, with what it spends spinning
 *
 * Other programs on the machine change the last two less than the others.
 *
 * The server is a process, its runtime has a thread of its own, and the service has T threads. Each client is a process. The
 * function adds two numbers, so what is measured is the way to the thread and back. One line of JSON.
 * tests/tools/tools_pool_cost.py runs it. */
#include <inttypes.h>
#include <sys/resource.h>
#include <weft/weft.h>

#include "peers/peer.h"

#define ON_DRIVER "add(a: i32, b: i32) -> i32"
#define ON_THREADS "add_on_threads(a: i32, b: i32) -> i32"
#define USAGE "usage(time: bool) -> u64"
#define CLIENTS_MAX 64
#define WINDOW_MAX 256
#define SAMPLES 65536u

typedef struct result {
    uint64_t calls, sleeps, cpu_us; /* the latter two: of the server, while this client called */
    double median_us;
} result_t;

typedef struct cost {
    double seconds;
    uint64_t clients, threads, window;
    char uri[512];
} cost_t;

static void must(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "pool_cost: %s: %s (%s)\n", what, weft_status_text(st), weft_last_error());
    exit(1);
}

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "pool_cost: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A child that ends with its parent. */
static pid_t child(void)
{
    pid_t parent = getpid(), pid = fork();
    check(pid >= 0, "fork");
    if (!pid && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    return pid;
}

static void gone(pid_t pid)
{
    int status;
    check(waitpid(pid, &status, 0) == pid, "waiting for a process");
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        exit(1); /* it has said why */
}

/* --- the server ------------------------------------------------------------------------------------------ */

static void on_add(weft_request_t *request, void *user)
{
    const weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    (void)user;
    must(weft_request_reply(request, &sum, 1), "a reply");
}

static uint64_t us(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

/* Processor time in microseconds, or how often a thread slept. */
static void on_usage(weft_request_t *request, void *user)
{
    struct rusage u;
    (void)user;
    check(!getrusage(RUSAGE_SELF, &u), "getrusage");
    const weft_value_t n = weft_u64(request->args[0].b ? us(u.ru_utime) + us(u.ru_stime) : (uint64_t)u.ru_nvcsw);
    must(weft_request_reply(request, &n, 1), "a reply");
}

/* Serve until the other end of `until` is closed. */
static void serve(const cost_t *c, int uri, int until)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t on_threads = WEFT_FUNCTION_OPTS_INIT;
    weft_runtime_t *rt;
    weft_service_t *service;
    weft_listener_t *listener;
    weft_op_t close = WEFT_OP_INIT;
    char none;
    ro.progress = WEFT_PROGRESS_THREAD;
    ro.transports = "shm";
    so.threads = (uint32_t)c->threads;
    on_threads.threads = true;
    must(weft_runtime_open(&ro, &rt), "a runtime");
    must(weft_service_open(rt, "pool", &so, &service), "a service");
    must(weft_service_add(service, ON_DRIVER, on_add, NULL, NULL), ON_DRIVER);
    must(weft_service_add(service, ON_THREADS, on_add, NULL, &on_threads), ON_THREADS);
    must(weft_service_add(service, USAGE, on_usage, NULL, NULL), USAGE);
    must(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener), "listening");
    const char *at = weft_listener_uri(listener);
    check(write(uri, at, strlen(at)) == (ssize_t)strlen(at), "write");
    check(read(until, &none, 1) == 0, "read");
    must(weft_service_close(service, &close), "closing");
    must(weft_op_wait(&close, 10 * WEFT_SECOND), "closing");
    must(weft_runtime_close(rt), "closing");
}

/* --- a client -------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint64_t usage(weft_method_t *method, bool time)
{
    weft_reply_t reply = WEFT_REPLY_INIT;
    const weft_value_t arg = weft_bool(time);
    must(weft_call_wait(method, &arg, 1, NULL, 10 * WEFT_SECOND, &reply), USAGE);
    uint64_t n = reply.values[0].u64;
    weft_reply_release(&reply);
    return n;
}

static weft_op_t ops[WINDOW_MAX];
static weft_reply_t replies[WINDOW_MAX];
static uint64_t began[WINDOW_MAX];
static uint32_t took[SAMPLES];

static void begin(weft_method_t *add, uint64_t i)
{
    static const weft_value_t args[2] = {{.type = WEFT_T_I32, .i32 = 25}, {.type = WEFT_T_I32, .i32 = 17}};
    ops[i] = (weft_op_t)WEFT_OP_INIT;
    began[i] = peer_now_ns();
    must(weft_call(add, args, 2, &replies[i], &ops[i]), "a call");
}

/* Wait for the oldest call, and return when it was seen to end. */
static uint64_t end(uint64_t i)
{
    must(weft_op_wait(&ops[i], 10 * WEFT_SECOND), "a call");
    check(replies[i].values[0].i32 == 42, "a wrong sum");
    weft_reply_release(&replies[i]);
    return peer_now_ns();
}

static result_t call(const cost_t *c, const char *function, uint64_t window, double seconds)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_client_t *client;
    weft_method_t *add, *used;
    weft_op_t checked = WEFT_OP_INIT, close = WEFT_OP_INIT;
    result_t r = {0};
    ro.transports = "shm";
    must(weft_runtime_open(&ro, &rt), "a runtime");
    must(weft_client_open(rt, c->uri, NULL, &client), "a client");
    must(weft_client_method(client, function, &add), function);
    must(weft_client_method(client, USAGE, &used), USAGE);
    must(weft_method_check(add, NULL, &checked), function);
    must(weft_op_wait(&checked, 10 * WEFT_SECOND), function);
    r.sleeps = usage(used, false);
    r.cpu_us = usage(used, true);
    uint64_t stop = peer_now_ns() + (uint64_t)(seconds * 1e9), now = 0;
    for (uint64_t i = 0; i < window; i++)
        begin(add, i);
    do {
        uint64_t i = r.calls % window;
        now = end(i);
        took[r.calls++ % SAMPLES] = (uint32_t)(now - began[i]);
        begin(add, i);
    } while (now < stop);
    for (uint64_t i = 0; i < window; i++)
        (void)end((r.calls + i) % window);
    r.sleeps = usage(used, false) - r.sleeps;
    r.cpu_us = usage(used, true) - r.cpu_us;
    uint64_t n = r.calls < SAMPLES ? r.calls : SAMPLES;
    qsort(took, n, sizeof took[0], by_size);
    r.median_us = took[n / 2] / 1e3;
    must(weft_client_close(client, &close), "closing");
    must(weft_op_wait(&close, 10 * WEFT_SECOND), "closing");
    must(weft_runtime_close(rt), "closing");
    return r;
}

/* So many clients at the same time: their calls together, and what the last one saw. */
static result_t run(const cost_t *c, const char *function, uint64_t clients, uint64_t window, double seconds)
{
    pid_t pids[CLIENTS_MAX];
    int fds[2];
    result_t all = {0}, one;
    check(!pipe(fds), "pipe");
    for (uint64_t i = 0; i < clients; i++)
        if (!(pids[i] = child())) {
            one = call(c, function, window, seconds);
            check(write(fds[1], &one, sizeof one) == (ssize_t)sizeof one, "write");
            _exit(0);
        }
    close(fds[1]);
    for (uint64_t i = 0; i < clients && read(fds[0], &one, sizeof one) == (ssize_t)sizeof one; i++) {
        all.calls += one.calls;
        all.sleeps = one.sleeps;
        all.cpu_us = one.cpu_us;
        all.median_us = one.median_us;
    }
    close(fds[0]);
    for (uint64_t i = 0; i < clients; i++)
        gone(pids[i]);
    return all;
}

/* --- both ------------------------------------------------------------------------------------------------ */

static bool number(const char *text, double min, double max, double *out)
{
    char *rest;
    *out = strtod(text, &rest);
    return rest != text && !*rest && *out >= min && *out <= max;
}

static bool options(int argc, char **argv, cost_t *c)
{
    double v;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return false;
        if (!strcmp(argv[i], "--seconds") && number(argv[i + 1], 0.01, 60, &v))
            c->seconds = v;
        else if (!strcmp(argv[i], "--clients") && number(argv[i + 1], 1, CLIENTS_MAX, &v))
            c->clients = (uint64_t)v;
        else if (!strcmp(argv[i], "--threads") && number(argv[i + 1], 1, 256, &v))
            c->threads = (uint64_t)v;
        else if (!strcmp(argv[i], "--window") && number(argv[i + 1], 1, WINDOW_MAX, &v))
            c->window = (uint64_t)v;
        else
            return false;
    }
    return true;
}

static void print(const char *name, const cost_t *c, const result_t *r)
{
    double n = (double)r->calls;
    printf("\"%s_rate\": %.0f, \"%s_sleeps\": %.4f, \"%s_cpu_us\": %.3f, ", name, n * 4 / c->seconds, name, (double)r->sleeps / n,
           name, (double)r->cpu_us / n);
}

int main(int argc, char **argv)
{
    cost_t c = {.seconds = 1, .clients = 4, .threads = 2, .window = 1};
    int uri[2], until[2];
    pid_t server;
    if (!options(argc, argv, &c)) {
        fputs("usage: pool_cost [--seconds S] [--clients N] [--threads T] [--window W]\n", stderr);
        return 2;
    }
    check(!pipe(uri) && !pipe(until), "pipe");
    if (!(server = child())) {
        close(until[1]);
        serve(&c, uri[1], until[0]);
        _exit(0);
    }
    close(uri[1]);
    ssize_t n = read(uri[0], c.uri, sizeof c.uri - 1);
    check(n > 0, "the server did not start");
    result_t inline_one = run(&c, ON_DRIVER, 1, 1, c.seconds / 4), pool_one = run(&c, ON_THREADS, 1, 1, c.seconds / 4);
    result_t inline_all = run(&c, ON_DRIVER, c.clients, c.window, c.seconds / 4);
    result_t pool_all = run(&c, ON_THREADS, c.clients, c.window, c.seconds / 4);
    printf("{\"test\": \"pool_cost\", \"clients\": %" PRIu64 ", \"threads\": %" PRIu64 ", \"window\": %" PRIu64
           ", \"inline_us\": %.2f, \"pool_us\": %.2f, ",
           c.clients, c.threads, c.window, inline_one.median_us, pool_one.median_us);
    print("inline", &c, &inline_all);
    print("pool", &c, &pool_all);
    printf("\"seconds\": %g}\n", c.seconds);
    close(until[1]);
    gone(server);
    return 0;
}
