/* tools/mem/serve.c - `weft mem serve`: gives out memory of this machine.
 *
 * The runtime's own thread does all the work; the main thread sleeps until a signal or the next line of statistics. Signals
 * are blocked before the first thread starts, so that none is lost between two waits. tests/tools/tools_mem.py and
 * tests/tools/tools_mem_loss.py check it. */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mem.h"

#define STATS_DEFAULT (10 * WEFT_SECOND)
#define CLOSING (10 * WEFT_SECOND)

typedef struct serve {
    const mem_opts_t *opts;
    weft_runtime_t *rt;
    weft_store_server_t *server;
    weft_listener_t *listeners[TOOL_TEXTS_MAX];
    unsigned n_listeners;
    weft_store_stats_t last; /* as of the last line */
    bool shown;              /* a line of statistics is on the terminal */
} serve_t;

/* --- statistics --------------------------------------------------------------------------------------------- */

static void wipe(serve_t *s)
{
    if (s->shown)
        fputs("\r\033[K", stderr);
    s->shown = false;
}

static void stats_json(const weft_store_stats_t *st, const char *what)
{
    tool_json_t j = tool_json_begin(stdout);
    tool_json_open(&j, what, '{');
    mem_stats_json(&j, st);
    tool_json_close(&j, '}');
    tool_json_end(&j);
}

static void stats_line(serve_t *s, const weft_store_stats_t *st)
{
    char used[32], all[32], in[32], out[32];
    double seconds = (double)(st->uptime_ns - s->last.uptime_ns) / 1e9;
    bool terminal = tool_is_terminal(stderr);
    FILE *f = terminal ? stderr : stdout;
    if (seconds <= 0)
        return;
    wipe(s);
    fprintf(f, "%s of %s in %llu blocks, %llu clients; in %s/s, out %s/s, %.0f accesses/s, %llu refused%s",
            mem_size_text((double)st->used_bytes, used, sizeof used), mem_size_text((double)st->bytes, all, sizeof all),
            (unsigned long long)st->blocks, (unsigned long long)st->clients,
            mem_size_text((double)(st->bytes_written - s->last.bytes_written) / seconds, in, sizeof in),
            mem_size_text((double)(st->bytes_read - s->last.bytes_read) / seconds, out, sizeof out),
            (double)(st->reads + st->writes + st->atomics - s->last.reads - s->last.writes - s->last.atomics) / seconds,
            (unsigned long long)st->refused, terminal ? "" : "\n");
    s->shown = terminal;
    fflush(f);
}

static void tell_stats(serve_t *s)
{
    weft_store_stats_t st = WEFT_STORE_STATS_INIT;
    if (weft_store_server_get_stats(s->server, &st))
        return;
    if (s->opts->json)
        stats_json(&st, "stats");
    else
        stats_line(s, &st);
    s->last = st;
}

static void tell_summary(serve_t *s)
{
    weft_store_stats_t st = WEFT_STORE_STATS_INIT;
    char in[32], out[32], age[32];
    wipe(s);
    if (weft_store_server_get_stats(s->server, &st))
        return;
    if (s->opts->json) {
        stats_json(&st, "summary");
        return;
    }
    printf(
        "served for %s: %llu blocks given out, %llu of them left, %llu times opened; %s written, %s read, %llu leases ran out, "
        "%llu refused\n",
        mem_age_text(st.uptime_ns, age, sizeof age), (unsigned long long)st.allocs, (unsigned long long)st.blocks,
        (unsigned long long)st.opens, mem_size_text((double)st.bytes_written, in, sizeof in),
        mem_size_text((double)st.bytes_read, out, sizeof out), (unsigned long long)st.expired_clients,
        (unsigned long long)st.refused);
    fflush(stdout);
}

/* --- serving ------------------------------------------------------------------------------------------------ */

static void announce(const serve_t *s)
{
    if (s->opts->json) {
        tool_json_t j = tool_json_begin(stdout);
        tool_json_open(&j, "listening", '[');
        for (unsigned i = 0; i < s->n_listeners; i++)
            tool_json_text(&j, NULL, weft_listener_uri(s->listeners[i]));
        tool_json_close(&j, ']');
        tool_json_count(&j, "bytes", s->opts->bytes);
        tool_json_count(&j, "shards", weft_runtime_shards(s->rt));
        tool_json_end(&j);
        return;
    }
    for (unsigned i = 0; i < s->n_listeners; i++)
        printf("listening on %s\n", weft_listener_uri(s->listeners[i]));
    fflush(stdout);
}

/* TOOL_OK or the exit status. */
static int open_all(serve_t *s)
{
    const mem_opts_t *o = s->opts;
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_status_t st;
    int rc = TOOL_OK;
    so.bytes = o->bytes;
    so.client_bytes = o->quota_bytes;
    so.client_blocks = (uint32_t)o->quota_blocks;
    so.blocks = (uint32_t)o->blocks;
    so.clients = (uint32_t)o->clients;
    so.lease_ns = o->lease_ns;
    so.unmapped = o->unmapped;
    st = weft_store_serve(s->rt, &so, &s->server);
    if (st) {
        tool_error_status(st, "the memory cannot be served");
        return TOOL_FAILED;
    }
    while (!rc && s->n_listeners < o->listen.n) {
        rc = tool_listen(s->rt, o->listen.at[s->n_listeners], &s->listeners[s->n_listeners]);
        s->n_listeners += !rc;
    }
    return rc;
}

/* Until a signal comes. */
static void serve(serve_t *s, const sigset_t *signals)
{
    uint64_t every = s->opts->stats_ns;
    if (every == UINT64_MAX)
        every = s->opts->json || tool_is_terminal(stderr) ? STATS_DEFAULT : 0;
    while (true) {
        struct timespec ts = {.tv_sec = (time_t)(every / WEFT_SECOND), .tv_nsec = (long)(every % WEFT_SECOND)};
        if (sigtimedwait(signals, NULL, every ? &ts : NULL) > 0)
            return;
        if (errno == EAGAIN)
            tell_stats(s);
        if (ferror(stdout))
            return; /* the reader of the statistics is gone */
    }
}

static void close_all(serve_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = CLOSING;
    for (unsigned i = 0; i < s->n_listeners; i++)
        weft_listener_close(s->listeners[i], NULL);
    if (s->server && !weft_store_server_close(s->server, &op))
        weft_op_wait(&op, WEFT_FOREVER);
    weft_runtime_close(s->rt);
}

int mem_serve(const mem_opts_t *opts)
{
    serve_t s = {.opts = opts, .last = WEFT_STORE_STATS_INIT};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    sigset_t signals;
    int rc;
    if (!opts->no_key_needed && !tool_may_listen(&opts->listen, "read and write every block"))
        return TOOL_USAGE;
    if (pages > 0 && page > 0 && opts->bytes / (uint64_t)page > (uint64_t)pages)
        tool_error("--size is more than the memory of this machine: when that is used up, the system ends processes, and perhaps "
                   "this one");
    tool_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    rc = tool_runtime_open(WEFT_PROGRESS_THREAD, &opts->net, &s.rt);
    if (rc)
        return rc;
    rc = open_all(&s);
    if (!rc) {
        announce(&s);
        serve(&s, &signals);
        tell_summary(&s);
    }
    /* a second signal ends it at once */
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    close_all(&s);
    return rc;
}
