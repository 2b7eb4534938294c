/* tools/session.c - the runtime of a command, signals, and waiting.
 *
 * SIGINT, SIGTERM and SIGHUP reach the main thread only, and only set a number. Every wait looks at that number, so that the
 * code that began something also undoes it. A signal does not end a wait of the library, so a wait is made of short ones. A
 * second signal changes nothing: what follows the first takes a bounded time. tests/tools/tools_mem_loss.py checks it. */
#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLICE (50 * WEFT_MILLISECOND)

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    signalled = number;
}

int tool_signal(void)
{
    return signalled;
}

void tool_signals(sigset_t *set)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction act;
        if (!sigaction(numbers[i], NULL, &act) && act.sa_handler != SIG_IGN)
            sigaddset(set, numbers[i]);
    }
}

void tool_handle_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal}; /* no SA_RESTART: reads and writes are to end */
    sigset_t set;
    tool_signals(&set);
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&set, number) == 1)
            sigaction(number, &act, NULL);
}

weft_status_t tool_wait(weft_op_t *op)
{
    while (!weft_op_done(op)) {
        weft_status_t st = weft_op_wait(op, SLICE);
        (void)st; /* a slice that ended is no news */
        if (signalled && !weft_op_done(op)) {
            return tool_cancel(op);
        }
    }
    return weft_op_wait(op, 0); /* its sentence is weft_last_error()'s, also if it was complete from the start */
}

uint64_t tool_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * WEFT_SECOND + (uint64_t)ts.tv_nsec;
}

/* --- the runtime and what is configured ---------------------------------------------------------------------- */

/* A file as the variable of that name has it. */
static bool take_file(const char *variable, const char *path)
{
    if (!setenv(variable, path, 1))
        return true;
    tool_error("out of memory");
    return false;
}

static bool take_key_file(void *net, const char *path)
{
    (void)net;
    return tool_use_key_file(path);
}

static bool take_tls_cert(void *net, const char *path)
{
    (void)net;
    return take_file("WEFT_TLS_CERT", path);
}

static bool take_tls_key(void *net, const char *path)
{
    (void)net;
    return take_file("WEFT_TLS_KEY", path);
}

static bool take_tls_ca(void *net, const char *path)
{
    (void)net;
    return take_file("WEFT_TLS_CA", path);
}

static bool take_tls(void *net, const char *list)
{
    tool_error("--tls is now --transports; it will go in 0.3");
    ((tool_net_t *)net)->transports = list;
    return true;
}

const tool_opt_t tool_net_options[] = {
    {"key-file", "PATH", "file with the pre-shared key; both sides need the same", TO_TAKE(take_key_file)},
    {"tls-cert", "FILE", "the certificate of this side for tls:// (weft key cluster makes it)", TO_TAKE(take_tls_cert)},
    {"tls-key", "FILE", "its private key", TO_TAKE(take_tls_key)},
    {"tls-ca", "FILE", "the authorities whose certificates are accepted", TO_TAKE(take_tls_ca)},
    {"transports", "LIST", "all, shm, tcp, or a list of those and of UCX's names (default: as configured)",
     TO_TEXT(tool_net_t, transports)},
    {"heartbeat", "TIME", "a silent peer is lost within this time (default: as configured)",
     TO_TIME(tool_net_t, heartbeat_ns, 100 * WEFT_MILLISECOND, TOOL_DAY)},
    {"tls", "LIST", NULL, TO_TAKE(take_tls)},
    {0},
};

static bool take_shards(void *net, const char *text)
{
    uint64_t n;
    if (!tool_take_count("shards", text, 0, WEFT_SHARDS_MAX, &n))
        return false;
    ((tool_net_t *)net)->shards = n ? (uint32_t)n : WEFT_SHARDS_AUTO;
    return true;
}

const tool_opt_t tool_shards_options[] = {
    {"shards", "N",
     "threads that drive it, each with connections of its own; 0: one on each core (default: as configured, WEFT_SHARDS)",
     TO_TAKE(take_shards)},
    {0},
};

int tool_runtime_open(weft_progress_mode_t progress, const tool_net_t *net, weft_runtime_t **rt_out)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    sigset_t set, before;
    weft_status_t st;
    ro.progress = progress;
    ro.transports = net->transports;
    ro.heartbeat_ns = net->heartbeat_ns;
    ro.shards = net->shards || net->configured_shards ? net->shards : 1;
    tool_raise_file_limit();
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of write() */
    tool_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, &before); /* threads inherit it */
    st = weft_runtime_open(&ro, rt_out);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st)
        tool_error_status(st, "the runtime cannot be opened");
    /* without the option it is the configuration that is not valid */
    return st && !net->transports ? TOOL_FAILED : tool_exit_status(st);
}

typedef struct wanted {
    const char *name;
    char *value; /* a copy, NULL if it is empty */
    bool known;
} wanted_t;

static void look(const weft_config_var_t *var, void *user)
{
    wanted_t *w = user;
    if (strcmp(var->name, w->name) != 0)
        return;
    w->known = true;
    if (var->value && *var->value)
        w->value = strdup(var->value);
}

char *tool_configured(const char *name)
{
    wanted_t w = {.name = name};
    weft_status_t st = weft_config_each(look, &w);
    (void)st; /* a value that does not parse is named when the runtime is opened */
    if (!w.known)
        tool_error("there is no configuration variable %s: this is a mistake in this command", name);
    return w.value;
}

static bool is_configured(const char *name)
{
    char *value = tool_configured(name);
    free(value);
    return value != NULL;
}

bool tool_has_key(void)
{
    return is_configured("WEFT_KEY_FILE");
}

bool tool_has_certificate(void)
{
    return is_configured("WEFT_TLS_CERT");
}

bool tool_use_key_file(const char *path)
{
    return take_file("WEFT_KEY_FILE", path);
}
