/* tools/mem/link.c - the runtime of a client, its servers, waiting, and signals.
 *
 * SIGINT, SIGTERM and SIGHUP reach the main thread only, and only set a number: every wait looks at it, so that whoever began something
 * also undoes it. Waits are in slices, since a signal does not end one of the library's. A second signal changes nothing: what is
 * undone after the first is bounded in time. tests/tools/tools_mem_loss.py holds it. */
#include <stdlib.h>
#include <string.h>

#include "mem.h"

#define SLICE (50 * WEFT_MILLISECOND)
#define CLOSING (3 * WEFT_SECOND) /* to end a lease and a connection */

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    signalled = number;
}

int mem_signal(void)
{
    return signalled;
}

void mem_signals(sigset_t *set)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction act;
        if (!sigaction(numbers[i], NULL, &act) && act.sa_handler != SIG_IGN)
            sigaddset(set, numbers[i]);
    }
}

static void handle_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal}; /* no SA_RESTART: reads and writes are to end */
    sigset_t set;
    mem_signals(&set);
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&set, number) == 1)
            sigaction(number, &act, NULL);
}

weft_status_t mem_runtime_open(const mem_opts_t *opts, weft_runtime_t **rt_out)
{
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    sigset_t set, before;
    weft_status_t st;
    ro.progress = WEFT_PROGRESS_THREAD;
    ro.transports = opts->tls;
    ro.heartbeat_ns = opts->heartbeat_ns;
    tool_raise_file_limit();
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of write() */
    mem_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, &before); /* threads inherit it */
    st = weft_runtime_open(&ro, rt_out);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st)
        tool_error_status(st, "the runtime cannot be opened");
    return st;
}

weft_status_t mem_wait(weft_op_t *op)
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

weft_status_t mem_wait_through(weft_op_t *op)
{
    return weft_op_wait(op, WEFT_FOREVER);
}

static weft_status_t server_open(mem_link_t *l, mem_server_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    op.timeout_ns = l->opts->timeout_ns;
    st = weft_ep_open(l->rt, s->uri, NULL, &op, &s->ep);
    if (st) {
        s->ep = NULL;
        return st;
    }
    st = mem_wait(&op);
    if (!st)
        st = mem_do(weft_store_open(s->ep, NULL, &op), &op);
    if (!st) {
        s->store = op.buf;
        return WEFT_OK;
    }
    weft_ep_abort(s->ep, NULL);
    s->ep = NULL;
    return st;
}

int mem_link_open(mem_link_t *l, const mem_opts_t *opts, bool some)
{
    int rc = TOOL_FAILED;
    memset(l, 0, sizeof *l);
    l->opts = opts;
    if (mem_runtime_open(opts, &l->rt))
        return TOOL_FAILED;
    handle_signals();
    for (unsigned i = 0; i < opts->n_servers; i++) {
        mem_server_t *s = &l->servers[l->n_servers];
        weft_status_t st;
        *s = (mem_server_t){.uri = opts->servers[i]};
        st = server_open(l, s);
        if (!st) {
            l->n_servers++;
            continue;
        }
        if (st == WEFT_ERR_INVALID)
            rc = (tool_error_status(st, "--server %s", s->uri), TOOL_USAGE);
        else if (st == WEFT_ERR_LIMIT)
            rc = (tool_error("the server at %s has as many clients as it takes", s->uri), MEM_NO_SERVER);
        else
            rc = mem_failed(st, "no memory server answers at %s", s->uri);
        if (!some || mem_signal())
            goto err_close;
    }
    if (l->n_servers)
        return TOOL_OK;

err_close:
    mem_link_close(l, false);
    return rc;
}

void mem_link_close(mem_link_t *l, bool clean)
{
    if (!l->rt)
        return;
    for (unsigned i = 0; i < l->n_servers; i++) {
        mem_server_t *s = &l->servers[i];
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st;
        op.timeout_ns = CLOSING;
        st = weft_store_close(s->store, clean ? &op : NULL);
        if (clean && !st)
            mem_wait_through(&op);
        if (clean && !weft_ep_close(s->ep, &op))
            mem_wait_through(&op);
    }
    weft_pool_free(l->pool);
    weft_runtime_close(l->rt);
    l->rt = NULL;
}
