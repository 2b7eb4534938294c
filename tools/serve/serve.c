/* tools/serve/serve.c - `weft serve`: a demo service, for weft call and for programs to try.
 *
 * The runtime's own threads do the work, one for each shard, with the threads of the service if it has some; the main thread
 * sleeps until a signal. Then the service is drained: new calls are sent elsewhere, calls under way are answered. A second
 * signal ends it at once. Signals are blocked before the first thread starts, so that none is lost. tests/tools/tools_serve.py
 * checks it. */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DRAINING 30 /* seconds */
#define CLOSING (3 * WEFT_SECOND)
#define ENTERING (2 * WEFT_SECOND) /* how long the registry may take before a sentence is written */

typedef struct serve {
    /* options */
    const char *name, *instance, *registry_uri;
    tool_texts_t listen;
    tool_net_t net;
    char pick[64]; /* where to listen by default */
    uint64_t threads;
    bool no_registry, no_key_needed, json;
    /* what is open */
    weft_runtime_t *rt;
    weft_registry_t *registry;
    weft_service_t *service;
    weft_listener_t *listeners[TOOL_TEXTS_MAX];
    unsigned n_listeners;
    uint64_t began;
} serve_t;

/* --- opening -------------------------------------------------------------------------------------------- */

/* TOOL_OK or the exit status. */
static int open_service(serve_t *s)
{
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_status_t st;
    so.instance = s->instance;
    so.threads = (uint32_t)s->threads;
    st = weft_service_open(s->rt, s->name, &so, &s->service);
    if (st) {
        s->service = NULL;
        tool_error_status(st, "the service %s cannot be offered", s->name);
        return tool_exit_status(st);
    }
    st = calc_serve(s->rt, s->service, s->threads > 0);
    if (st)
        tool_error_status(st, "the functions of %s cannot be offered", s->name);
    return st ? TOOL_FAILED : TOOL_OK;
}

/* TOOL_OK or the exit status. */
static int listen_all(serve_t *s)
{
    int rc = TOOL_OK;
    snprintf(s->pick, sizeof s->pick, "tcp://127.0.0.1:0,unix://@weft-serve-%ld", (long)getpid());
    if (!s->listen.n)
        s->listen.at[s->listen.n++] = s->pick;
    while (!rc && s->n_listeners < s->listen.n) {
        rc = tool_listen(s->rt, s->listen.at[s->n_listeners], &s->listeners[s->n_listeners]);
        s->n_listeners += !rc;
    }
    return rc;
}

static void found(const weft_entry_t *entry, void *user)
{
    serve_t **s = user;
    if (*s && !strcmp(entry->instance, weft_service_instance((*s)->service)))
        *s = NULL; /* that is us */
}

/* Ask the registry until it has the entry, so that others find the service when its address is printed. TOOL_OK or
 * the exit status. */
static int publish(serve_t *s)
{
    uint64_t until = tool_now() + ENTERING;
    serve_t *missing = s;
    weft_status_t st;
    if (s->no_registry)
        return TOOL_OK;
    st = weft_registry_open(s->rt, s->registry_uri, NULL, &s->registry);
    if (st) {
        s->registry = NULL;
        tool_error_status(st, "the registry%s%s cannot be used", s->registry_uri ? " " : "",
                          s->registry_uri ? s->registry_uri : "");
        return st == WEFT_ERR_INVALID || st == WEFT_ERR_UNSUPPORTED ? TOOL_USAGE : TOOL_FAILED;
    }
    st = weft_service_publish(s->service, s->registry, NULL);
    if (st) {
        tool_error_status(st, "the service cannot be entered in the registry");
        return TOOL_FAILED;
    }
    while (missing && tool_now() < until) {
        struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
        weft_op_t op = WEFT_OP_INIT;
        op.timeout_ns = ENTERING;
        if (tool_do_through(weft_registry_find(s->registry, s->name, found, &missing, &op), &op) || missing)
            nanosleep(&pause, NULL);
    }
    if (missing)
        tool_error("the registry does not have %s@%s yet: it is not reached, or another has that name; it is entered as soon as "
                   "it can be",
                   s->name, weft_service_instance(s->service));
    return TOOL_OK;
}

static void announce(const serve_t *s)
{
    const char *instance = weft_service_instance(s->service);
    if (!s->json) {
        printf("%s@%s is reached at ", s->name, instance);
        if (!s->no_registry)
            printf("weft://%s%s", s->name, s->n_listeners ? "," : "");
        for (unsigned i = 0; i < s->n_listeners; i++)
            printf("%s%s", weft_listener_uri(s->listeners[i]), i + 1 < s->n_listeners ? "," : "");
        putchar('\n');
        fflush(stdout);
        return;
    }
    tool_json_t j = tool_json_begin(stdout);
    tool_json_text(&j, "service", s->name);
    tool_json_text(&j, "instance", instance);
    tool_json_open(&j, "listening", '[');
    for (unsigned i = 0; i < s->n_listeners; i++)
        tool_json_text(&j, NULL, weft_listener_uri(s->listeners[i]));
    tool_json_close(&j, ']');
    tool_json_count(&j, "shards", weft_runtime_shards(s->rt));
    tool_json_end(&j);
}

/* --- the end -------------------------------------------------------------------------------------------- */

/* What each shard had, for who wants to know how evenly its clients are spread. */
static void tell_shards(const serve_t *s, tool_json_t *j)
{
    uint32_t n = weft_runtime_shards(s->rt);
    if (j)
        tool_json_open(j, "shards", '[');
    else if (n < 2)
        return;
    for (uint32_t k = 0; k < n; k++) {
        weft_runtime_stats_t st = WEFT_RUNTIME_STATS_INIT;
        if (weft_runtime_get_shard_stats(s->rt, k, &st))
            continue;
        if (!j) {
            printf("shard %u: %llu connections, %llu active messages received\n", k, (unsigned long long)st.connections,
                   (unsigned long long)st.ams_received);
            continue;
        }
        tool_json_open(j, NULL, '{');
        tool_json_count(j, "connections", st.connections);
        tool_json_count(j, "ams_received", st.ams_received);
        tool_json_number(j, "busy", (double)st.busy / 1000, 3);
        tool_json_close(j, '}');
    }
    if (j)
        tool_json_close(j, ']');
}

static void tell_summary(const serve_t *s)
{
    weft_service_stats_t st = WEFT_SERVICE_STATS_INIT;
    double seconds = (double)(tool_now() - s->began) / 1e9;
    if (weft_service_get_stats(s->service, &st))
        return;
    if (!s->json) {
        printf("served for %.1f s: %llu calls, %llu answered (%llu of them with a failure), %llu cancelled, %llu too late, %llu "
               "turned away\n",
               seconds, (unsigned long long)st.requests, (unsigned long long)st.answered, (unsigned long long)st.failed,
               (unsigned long long)st.cancelled, (unsigned long long)st.late, (unsigned long long)st.exhausted + st.refused);
        tell_shards(s, NULL);
        fflush(stdout);
        return;
    }
    tool_json_t j = tool_json_begin(stdout);
    tool_json_open(&j, "summary", '{');
    tool_json_number(&j, "seconds", seconds, 3);
    tool_json_count(&j, "requests", st.requests);
    tool_json_count(&j, "answered", st.answered);
    tool_json_count(&j, "failed", st.failed);
    tool_json_count(&j, "cancelled", st.cancelled);
    tool_json_count(&j, "late", st.late);
    tool_json_count(&j, "exhausted", st.exhausted);
    tool_json_count(&j, "refused", st.refused);
    tool_json_count(&j, "repeated", st.repeated);
    tell_shards(s, &j);
    tool_json_close(&j, '}');
    tool_json_end(&j);
}

/* False: calls were still under way. */
static bool drain(serve_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = DRAINING * WEFT_SECOND;
    if (!tool_do_through(weft_service_drain(s->service, &op), &op))
        return true;
    tool_error("calls were still under way %d s after the service began to end; they are cancelled", DRAINING);
    return false;
}

static void close_all(serve_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = CLOSING;
    if (s->service && !weft_service_close(s->service, &op))
        tool_wait_through(&op);
    for (unsigned i = 0; i < s->n_listeners; i++)
        weft_listener_close(s->listeners[i], NULL);
    if (s->registry && !weft_registry_close(s->registry, &op))
        tool_wait_through(&op);
    weft_runtime_close(s->rt);
}

static int serve(serve_t *s)
{
    sigset_t signals;
    int number, rc;
    if (!s->no_key_needed && !tool_may_listen(&s->listen, "call every function"))
        return TOOL_USAGE;
    tool_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    rc = tool_runtime_open(WEFT_PROGRESS_THREAD, &s->net, &s->rt);
    if (rc)
        return rc;
    s->began = tool_now();
    if (!(rc = open_service(s)) && !(rc = listen_all(s)) && !(rc = publish(s))) {
        announce(s);
        sigwait(&signals, &number);
        /* a second signal ends it at once */
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
        rc = drain(s) ? TOOL_OK : TOOL_FAILED;
        tell_summary(s);
    }
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    close_all(s);
    return rc;
}

/* --- the command line ----------------------------------------------------------------------------------- */

static int run(int argc, char **argv)
{
    serve_t s = {.name = "calc", .net.configured_shards = true};
    int rc = tool_options(&tool_serve_command, argc, argv, &s, NULL);
    if (rc != TOOL_GO)
        return rc;
    if (s.no_registry && s.registry_uri) {
        tool_error("--registry and --no-registry exclude each other");
        return TOOL_USAGE;
    }
    return serve(&s);
}

static const tool_opt_t options[] = {
    {"name", "NAME", "of the service (default calc)", TO_TEXT(serve_t, name)},
    {"instance", "NAME", "its own name among those of the service (default: one is made up)", TO_TEXT(serve_t, instance)},
    {"listen", "URI",
     "where to listen (default: a port of 127.0.0.1 and a Unix socket, both picked); may be given several times: "
     "tcp://HOST:PORT, tls://HOST:PORT, unix://PATH, "
     "unix://@NAME; port 0 picks one",
     TO_TEXTS(serve_t, listen)},
    {"registry", "URI", "where to enter it (default: as configured, WEFT_REGISTRY)", TO_TEXT(serve_t, registry_uri)},
    {"no-registry", NULL, "enter it nowhere: only who knows the address finds it", TO_FLAG(serve_t, no_registry)},
    {"threads", "N", "run functions that compute on so many threads (default 0: on those that drive the runtime)",
     TO_COUNT(serve_t, threads, 0, 1024)},
    {TO_GROUP(serve_t, net, tool_shards_options)},
    {"no-key-needed", NULL, "listen without a key where other machines can connect", TO_FLAG(serve_t, no_key_needed)},
    {"json", NULL, "one JSON object a line: where it is reached, and a summary", TO_FLAG(serve_t, json)},
    {TO_GROUP(serve_t, net, tool_net_options)},
    {0},
};

const tool_command_t tool_serve_command = {
    .name = "serve",
    .full_name = "weft serve",
    .summary = "offer a demo service for weft call to use",
    .usage = "[options]",
    .about = "Offers a demo service until SIGINT or SIGTERM, and prints where it is reached. Its functions are add, sub, mul, "
             "div, mean, upper, "
             "split, scale (a tensor), count, sleep, log, and with streams primes, total and echo; weft call --list weft://calc "
             "shows their "
             "signatures.",
    .options = options,
    .run = run,
};
