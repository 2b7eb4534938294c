/* tools/session.c - the runtime of a command, signals, and waiting.
 *
 * SIGINT, SIGTERM and SIGHUP reach the main thread only, and only set a number: every wait looks at it, so that whoever began something
 * also undoes it. Waits are in slices, since a signal does not end one of the library's. A second signal changes nothing: what is
 * undone after the first is bounded in time. tests/tools/tools_mem_loss.py holds it. */
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
            weft_op_cancel(op);
            return weft_op_wait(op, WEFT_FOREVER);
        }
    }
    return op->status;
}

uint64_t tool_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * WEFT_SECOND + (uint64_t)ts.tv_nsec;
}

/* --- the runtime and what is configured ---------------------------------------------------------------------- */

weft_status_t tool_runtime_open(weft_progress_mode_t progress, const char *transports, uint64_t heartbeat_ns,
                                weft_runtime_t **rt_out)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    sigset_t set, before;
    weft_status_t st;
    ro.progress = progress;
    ro.transports = transports;
    ro.heartbeat_ns = heartbeat_ns;
    tool_raise_file_limit();
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of write() */
    tool_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, &before); /* threads inherit it */
    st = weft_runtime_open(&ro, rt_out);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st)
        tool_error_status(st, "the runtime cannot be opened");
    return st;
}

typedef struct wanted {
    const char *name;
    char *value; /* a copy, NULL if it is empty */
} wanted_t;

static void look(const weft_config_var_t *var, void *user)
{
    wanted_t *w = user;
    if (!strcmp(var->name, w->name) && var->value && *var->value)
        w->value = strdup(var->value);
}

char *tool_configured(const char *name)
{
    wanted_t w = {.name = name};
    weft_status_t st = weft_config_each(look, &w);
    (void)st; /* a value that does not parse is named when the runtime is opened */
    return w.value;
}

bool tool_has_key(void)
{
    char *value = tool_configured("WEFT_KEY_FILE");
    free(value);
    return value != NULL;
}

bool tool_use_key_file(const char *path)
{
    if (!setenv("WEFT_KEY_FILE", path, 1))
        return true;
    tool_error("out of memory");
    return false;
}
