/* tools/element/memory.c - `weft element memory`: a memory element in a process of its own.
 *
 * It opens the element, writes its durl in one line, and serves until a signal comes. The runtime's own thread does all the
 * work. The durl holds the right to the memory, so it goes to one place only: standard output, or the descriptor that a
 * launcher names. After it only the statistics at the end are written there. tests/tools/tools_element.py checks it. */
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
#define CLOSING (5 * WEFT_SECOND)

typedef struct memory {
    weft_memory_opts_t mo;
    tool_net_t net;
    uint64_t report_fd; /* UINT64_MAX: none */
    bool json, no_key_needed;
    FILE *out;
    weft_runtime_t *rt;
    weft_memory_t *memory;
} memory_t;

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
        tool_json_t j = tool_json_begin(m->out);
        tool_json_text(&j, "durl", text);
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
    if (!m->json || weft_memory_get_stats(m->memory, &s))
        return;
    tool_json_t j = tool_json_begin(m->out);
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
    tool_json_end(&j);
}

static int serve(memory_t *m)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    sigset_t signals;
    int rc;
    tool_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    rc = tool_runtime_open(WEFT_PROGRESS_THREAD, &m->net, &m->rt);
    if (rc)
        return rc;
    st = weft_memory_open(m->rt, &m->mo, &m->memory);
    if (st) {
        tool_error_status(st, "the memory cannot be served");
        rc = tool_exit_status(st);
    } else {
        rc = say_durl(m) ? TOOL_OK : TOOL_FAILED;
        if (!rc) {
            while (sigwaitinfo(&signals, NULL) < 0 && errno == EINTR)
                ;
            say_stats(m);
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

/* --- the command line ---------------------------------------------------------------------------------------- */

static bool take_report_fd(void *opts, const char *value)
{
    memory_t *m = opts;
    struct stat st;
    if (!tool_parse_count(value, 0, 1 << 20, &m->report_fd)) {
        tool_error("--report-fd %s is not the number of a descriptor", value);
        return false;
    }
    if (fstat((int)m->report_fd, &st)) {
        tool_error("--report-fd %s is not open: a launcher gives a descriptor that this process inherits", value);
        return false;
    }
    return true;
}

static int element_memory(int argc, char **argv)
{
    memory_t m = {.mo = WEFT_MEMORY_OPTS_INIT, .report_fd = UINT64_MAX, .out = stdout, .net.configured_shards = true};
    tool_texts_t listen = {.n = 1};
    int rc;
    m.mo.name = DEFAULT_NAME;
    m.mo.uri = DEFAULT_LISTEN;
    rc = tool_options(&element_memory_command, argc, argv, &m, NULL);
    if (rc != TOOL_GO)
        return rc;
    if (!m.mo.bytes) {
        tool_error("say how much memory: --size BYTES");
        return TOOL_USAGE;
    }
    listen.at[0] = m.mo.uri;
    if (!m.no_key_needed && !tool_may_listen(&listen, m.mo.named ? "read and write the memory" : "try region keys"))
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

static const tool_opt_t options[] = {
    {"size", "BYTES", "how much memory: 64M, 4G (needed)", TO_SIZE(memory_t, mo.bytes, 1, TOOL_SIZE_MAX)},
    {"name", "NAME", "the element's name (default " DEFAULT_NAME ")", TO_TEXT(memory_t, mo.name)},
    {"listen", "URI",
     "where to listen (default " DEFAULT_LISTEN
     "): tcp://HOST:PORT, tls://HOST:PORT, unix://PATH, unix://@NAME; port 0 picks one",
     TO_TEXT(memory_t, mo.uri)},
    {"spare", "BYTES", "so much more, for allocations with a lease (default: none)",
     TO_SIZE(memory_t, mo.spare, 0, TOOL_SIZE_MAX)},
    {"lease", "TIME", "how long those outlive a user that was lost (default 30s)", TO_TIME(memory_t, mo.lease_ns, 0, UINT64_MAX)},
    {"mirrored", NULL, "be one of two or three replicas: the durls of all of them together reach the memory",
     TO_FLAG(memory_t, mo.mirrored)},
    {"named", NULL, "whoever can connect reaches the memory by its address or its name, without the region key in the durl",
     TO_FLAG(memory_t, mo.named)},
    {"unmapped", NULL, "users on this machine do not map the memory: every access is checked by this process",
     TO_FLAG(memory_t, mo.unmapped)},
    {TO_GROUP(memory_t, net, tool_shards_options)},
    {"report-fd", "FD", "for launchers: one JSON object a line to this descriptor, nothing to standard output",
     TO_TAKE(take_report_fd)},
    {"json", NULL, "one JSON object a line: the durl, and statistics at the end", TO_FLAG(memory_t, json)},
    {"no-key-needed", NULL, "listen without a key where other machines can connect", TO_FLAG(memory_t, no_key_needed)},
    {TO_GROUP(memory_t, net, tool_net_options)},
    {0},
};

const tool_command_t element_memory_command = {
    .name = "memory",
    .full_name = "weft element memory",
    .summary = "be a memory element: some memory that compute elements read and write",
    .usage = "--size BYTES [options]",
    .about = "Serves so many bytes, which are zero at first, until it is told to end. It prints one line, a durl. The users of "
             "the memory are "
             "configured with it. It is also the right to the memory, so keep it to them.",
    .options = options,
    .run = element_memory,
};
