/* tools/element/memory.c - `weft element memory`: a memory element in a process of its own.
 *
 * It opens the element, says its durl in one line, and serves until a signal comes. The runtime's own thread does all the work.
 * The durl has the right to the memory in it, so it goes to one place only: standard output, or the descriptor that a launcher
 * names. Once it has been said nothing else is written there but the statistics at the end. tests/tools/tools_element.py holds
 * it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "element.h"
#include "session.h"

#define DEFAULT_NAME "memory"
#define DEFAULT_LISTEN "tcp://127.0.0.1:0"
#define BYTES_MAX ((uint64_t)1 << 46)
#define CLOSING (5 * WEFT_SECOND)

enum {
    OPT_SIZE = 1,
    OPT_NAME,
    OPT_LISTEN,
    OPT_SPARE,
    OPT_LEASE,
    OPT_MIRRORED,
    OPT_NAMED,
    OPT_UNMAPPED,
    OPT_REPORT_FD,
    OPT_JSON,
    OPT_NO_KEY_NEEDED,
    OPT_KEY_FILE,
    OPT_TLS,
    OPT_HEARTBEAT,
    OPT_HELP
};

static const tool_opt_t options[] = {
    {OPT_SIZE, "size", "BYTES", "how much memory: 64M, 4G (needed)"},
    {OPT_NAME, "name", "NAME", "the element's name (default " DEFAULT_NAME ")"},
    {OPT_LISTEN, "listen", "URI",
     "where to listen (default " DEFAULT_LISTEN "): tcp://HOST:PORT, unix://PATH,\nunix://@NAME; port 0 picks one"},
    {OPT_SPARE, "spare", "BYTES", "so much more, for allocations with a lease (default: none)"},
    {OPT_LEASE, "lease", "TIME", "how long those outlive a user that was lost (default 30s)"},
    {OPT_MIRRORED, "mirrored", NULL, "be one of two or three replicas: the durls of all of them together reach the memory"},
    {OPT_NAMED, "named", NULL, "whoever can connect reaches the memory by its name, without the region key in the durl"},
    {OPT_UNMAPPED, "unmapped", NULL, "users on this machine do not map the memory: every access is checked by this process"},
    {OPT_REPORT_FD, "report-fd", "FD", "for launchers: one JSON object a line to this descriptor, nothing to standard output"},
    {OPT_JSON, "json", NULL, "one JSON object a line: the durl, and statistics at the end"},
    {OPT_NO_KEY_NEEDED, "no-key-needed", NULL, "listen without a key where other machines can connect"},
    {OPT_KEY_FILE, "key-file", "PATH", "file with the pre-shared key; the element and its users need the same"},
    {OPT_TLS, "tls", "LIST", "transports: all, shm, tcp, or a list of those and of UCX's names (default: as configured)"},
    {OPT_HEARTBEAT, "heartbeat", "TIME", "a peer silent for this long is lost (default: as configured)"},
    {OPT_HELP, "help", NULL, "this"},
    {0, NULL, NULL, NULL},
};

typedef struct memory {
    weft_memory_opts_t mo;
    const char *tls;
    uint64_t heartbeat_ns;
    uint64_t report_fd; /* UINT64_MAX: none */
    bool json, no_key_needed, help;
    FILE *out;
    weft_runtime_t *rt;
    weft_memory_t *memory;
} memory_t;

void element_memory_help(FILE *f)
{
    fputs("Usage: weft element memory --size BYTES [options]\n\n"
          "Serves so many bytes, which are zero at first, until it is told to end. The line that it prints, a durl, is what the "
          "users of the\n"
          "memory are configured with; it is also the right to it, so keep it to them.\n\n",
          f);
    tool_args_help(options, f);
}

static bool wrong(const tool_args_t *a, const char *name, const char *right)
{
    tool_error("--%s %s is not %s", name, a->value, right);
    return false;
}

/* False after a sentence. */
static bool take(memory_t *m, const tool_args_t *a, int id)
{
    struct stat st;
    switch (id) {
    case OPT_SIZE:
        return (tool_parse_size(a->value, &m->mo.bytes) && m->mo.bytes && m->mo.bytes <= BYTES_MAX) ||
               wrong(a, "size", "a number of bytes, such as 64M");
    case OPT_NAME:
        m->mo.name = a->value;
        return true;
    case OPT_LISTEN:
        m->mo.uri = a->value;
        return true;
    case OPT_SPARE:
        return (tool_parse_size(a->value, &m->mo.spare) && m->mo.spare <= BYTES_MAX) ||
               wrong(a, "spare", "a number of bytes, such as 64M");
    case OPT_LEASE:
        return tool_parse_time(a->value, &m->mo.lease_ns) || wrong(a, "lease", "a time, such as 30s");
    case OPT_MIRRORED:
        return m->mo.mirrored = true;
    case OPT_NAMED:
        return m->mo.named = true;
    case OPT_UNMAPPED:
        return m->mo.unmapped = true;
    case OPT_REPORT_FD:
        if (!tool_parse_count(a->value, 0, 1 << 20, &m->report_fd))
            return wrong(a, "report-fd", "the number of a descriptor");
        if (fstat((int)m->report_fd, &st))
            return wrong(a, "report-fd", "open: a launcher gives a descriptor that this process inherits");
        return true;
    case OPT_JSON:
        return m->json = true;
    case OPT_NO_KEY_NEEDED:
        return m->no_key_needed = true;
    case OPT_KEY_FILE:
        return tool_use_key_file(a->value);
    case OPT_TLS:
        m->tls = a->value;
        return true;
    case OPT_HEARTBEAT:
        return tool_parse_time(a->value, &m->heartbeat_ns) || wrong(a, "heartbeat", "a time, such as 5s");
    case OPT_HELP:
        return m->help = true;
    default:
        return false;
    }
}

static bool read_options(memory_t *m, int argc, char **argv)
{
    tool_args_t a;
    int id;
    tool_args_init(&a, argc, argv, options);
    while ((id = tool_args_next(&a)) != 0)
        if (id < 0 || !take(m, &a, id))
            return false;
    if (!m->help && !m->mo.bytes) {
        tool_error("say how much memory: --size BYTES");
        return false;
    }
    return true;
}

/* The one line that users are configured with. */
static bool say_durl(memory_t *m)
{
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    weft_status_t st = weft_memory_durl(m->memory, text, &len);
    if (st) {
        tool_error_status(st, "the memory has no durl");
        return false;
    }
    if (m->json) {
        tool_json_t j = {.f = m->out};
        tool_json_open(&j, NULL, '{');
        tool_json_text(&j, "durl", text);
        tool_json_close(&j, '}');
        tool_json_end(&j);
    } else {
        fprintf(m->out, "%s\n", text);
        fflush(m->out);
    }
    explicit_bzero(text, sizeof text);
    if (ferror(m->out)) {
        tool_error("the durl could not be written: %s", strerror(errno));
        return false;
    }
    return true;
}

static void say_stats(memory_t *m)
{
    weft_memory_stats_t s = WEFT_MEMORY_STATS_INIT;
    tool_json_t j = {.f = m->out};
    if (!m->json || weft_memory_get_stats(m->memory, &s))
        return;
    tool_json_open(&j, NULL, '{');
    tool_json_open(&j, "stats", '{');
    tool_json_count(&j, "bytes", s.bytes);
    tool_json_count(&j, "used_bytes", s.used_bytes);
    tool_json_count(&j, "reads", s.reads);
    tool_json_count(&j, "writes", s.writes);
    tool_json_count(&j, "atomics", s.atomics);
    tool_json_count(&j, "bytes_read", s.bytes_read);
    tool_json_count(&j, "bytes_written", s.bytes_written);
    tool_json_count(&j, "refused", s.refused);
    tool_json_close(&j, '}');
    tool_json_close(&j, '}');
    tool_json_end(&j);
}

static int serve(memory_t *m)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    sigset_t signals;
    int rc = TOOL_FAILED;
    tool_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (tool_runtime_open(WEFT_PROGRESS_THREAD, m->tls, m->heartbeat_ns, &m->rt))
        return TOOL_FAILED;
    st = weft_memory_open(m->rt, &m->mo, &m->memory);
    if (st) {
        tool_error_status(st, "the memory cannot be served");
    } else {
        if (say_durl(m)) {
            while (sigwaitinfo(&signals, NULL) < 0 && errno == EINTR)
                ;
            say_stats(m);
            rc = TOOL_OK;
        }
        op.timeout_ns = CLOSING;
        if (!weft_memory_close(m->memory, &op))
            weft_op_wait(&op, WEFT_FOREVER);
    }
    /* a second signal ends it at once */
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    weft_runtime_close(m->rt);
    return rc;
}

int element_memory(int argc, char **argv)
{
    memory_t m = {.mo = WEFT_MEMORY_OPTS_INIT, .report_fd = UINT64_MAX, .out = stdout};
    const char *listen;
    int rc;
    m.mo.name = DEFAULT_NAME;
    m.mo.uri = DEFAULT_LISTEN;
    if (!read_options(&m, argc, argv))
        return TOOL_USAGE;
    if (m.help) {
        element_memory_help(stdout);
        return TOOL_OK;
    }
    listen = m.mo.uri;
    if (!m.no_key_needed && !tool_may_listen(&listen, 1, m.mo.named ? "read and write the memory" : "try region keys"))
        return TOOL_USAGE;
    if (m.report_fd != UINT64_MAX) {
        m.json = true;
        fcntl((int)m.report_fd, F_SETFD, FD_CLOEXEC);
        m.out = fdopen((int)m.report_fd, "w");
        if (!m.out) {
            tool_error("--report-fd: %s", strerror(errno));
            return TOOL_USAGE;
        }
    }
    rc = serve(&m);
    if (m.out != stdout)
        fclose(m.out);
    return rc;
}
