/* tools/perf/options.c - the command line of `weft perf`.
 *
 * Nothing is opened before the whole command line has been understood. tests/tools/tools_options.py checks it. */
#include <string.h>

#include "perf.h"

#define DEFAULT_LISTEN "tcp://127.0.0.1:13337"
#define DEFAULT_FORK "tcp://127.0.0.1:0"
#define HOUR (3600 * WEFT_SECOND)
#define MANY UINT64_C(100000000000)

static const char *const test_names[PERF_TESTS] = {"end",     "tag_lat",  "tag_bw",    "tag_rate", "idle",        "am_lat",
                                                   "am_bw",   "am_rate",  "rma_get",   "rma_put",  "rma_put_lat", "rma_fadd",
                                                   "rma_cas", "rma_swap", "rma_batch", "rpc_lat",  "rpc_rate",    "rpc_tensor"};

const char *perf_test_name(perf_test_t test)
{
    return test < PERF_TESTS ? test_names[test] : "?";
}

/* --- values ---------------------------------------------------------------------------------------------- */

static bool add_test(perf_opts_t *o, const char *word)
{
    for (int t = PERF_TAG_LAT; t < PERF_TESTS; t++) {
        if (strcmp(word, test_names[t]))
            continue;
        if (o->n_tests == PERF_TESTS) {
            tool_error("--test names more than %d tests", PERF_TESTS);
            return false;
        }
        o->tests[o->n_tests++] = (perf_test_t)t;
        return true;
    }
    const char *near = tool_nearest(word, test_names + 1, PERF_TESTS - 1);
    tool_error("there is no test \"%s\"%s%s%s (there are tag_lat, tag_bw, tag_rate, am_lat, am_bw, am_rate, idle, "
               "rma_get, _put, _put_lat, _fadd, _cas, _swap and _batch, and rpc_lat, _rate and _tensor)",
               word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return false;
}

static bool add_size(perf_opts_t *o, uint64_t size)
{
    if (o->n_sizes == PERF_MAX_SIZES) {
        tool_error("--size names more than %d sizes", PERF_MAX_SIZES);
        return false;
    }
    o->sizes[o->n_sizes++] = size;
    return true;
}

static bool add_sizes(perf_opts_t *o, const char *word)
{
    uint64_t low, high;
    char first[32];
    const char *dash = strchr(word, '-');
    if (tool_parse_size(word, &low) && low <= (uint64_t)1 << 46)
        return add_size(o, low);
    if (dash && (size_t)(dash - word) < sizeof first) {
        memcpy(first, word, (size_t)(dash - word));
        first[dash - word] = '\0';
        if (tool_parse_size(first, &low) && tool_parse_size(dash + 1, &high) && low && low <= high && high <= (uint64_t)1 << 46) {
            for (uint64_t size = low; size <= high; size *= 2)
                if (!add_size(o, size))
                    return false;
            return true;
        }
    }
    tool_error("\"%s\" is not a size; give bytes like 8, 4k or 1M, or a range like 8-1M", word);
    return false;
}

/* Call add for each word of a list by commas. */
static bool each_word(perf_opts_t *o, const char *list, bool (*add)(perf_opts_t *o, const char *word))
{
    while (true) {
        size_t n = strcspn(list, ",");
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), list);
        if (!add(o, word))
            return false;
        if (!list[n])
            return true;
        list += n + 1;
    }
}

static bool take_kind(const char *text, size_t n, char *out)
{
    char word[64];
    const char *near;
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
    for (unsigned i = 0; i < PERF_KINDS; i++) {
        if (!strcmp(word, perf_kinds[i])) {
            snprintf(out, PERF_KIND_CAP, "%s", perf_kinds[i]);
            return true;
        }
    }
    near = tool_nearest(word, perf_kinds, PERF_KINDS);
    tool_error("--memory: there is no kind \"%s\"%s%s%s (there are host, huge, pinned, cuda, cuda-managed, cuda-async, cuda-vmm, "
               "cuda-fd and pool)",
               word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return false;
}

/* "A" for both, or "A,B": what is sent, and what is received into. */
static bool take_kinds(void *opts, const char *text)
{
    perf_opts_t *o = opts;
    size_t n = strcspn(text, ",");
    const char *second = text[n] ? text + n + 1 : text;
    if (strchr(second, ',') && text[n]) {
        tool_error("--memory %s names more than two kinds; give one for what is sent and one for what is received into", text);
        return false;
    }
    return take_kind(text, n, o->send_kind) && take_kind(second, strlen(second), o->recv_kind);
}

static bool take_path(void *opts, const char *text)
{
    perf_opts_t *o = opts;
    static const char *const words[] = {[WEFT_RMA_ANY] = "any", [WEFT_RMA_MAPPED] = "mapped", [WEFT_RMA_CHECKED] = "checked"};
    for (int i = 0; i < 3; i++) {
        if (!strcmp(text, words[i])) {
            o->path = (weft_rma_path_t)i;
            return true;
        }
    }
    tool_error("--path %s is none of any, mapped and checked", text);
    return false;
}

/* Plain --stream is what a program has that puts kernels and messages into one stream. */
static bool take_stream(void *opts, const char *word)
{
    perf_opts_t *o = opts;
    o->stream = word ? 0 : PERF_BOTH;
    for (unsigned i = PERF_BEFORE; word && i < PERF_STREAM_WORDS; i++)
        if (!strcmp(word, perf_stream_names[i]))
            o->stream = i;
    if (!o->stream)
        tool_error("--stream %s is none of both, before and after; --streams N says how many there are", word);
    return o->stream;
}

static bool take_role(perf_opts_t *o, perf_role_t role, const char *uri)
{
    /* --fork --listen URI is a way to say where the two meet. */
    bool both = (o->role == PERF_FORK && role == PERF_LISTEN) || (o->role == PERF_LISTEN && role == PERF_FORK);
    if (o->role && o->role != role && !both) {
        tool_error("--fork, --listen and --connect exclude each other: give one");
        return false;
    }
    o->role = both ? PERF_FORK : role;
    if (uri)
        o->uri = uri;
    return true;
}

static bool take_fork(void *opts, const char *value)
{
    (void)value;
    return take_role(opts, PERF_FORK, NULL);
}

static bool take_listen(void *opts, const char *uri)
{
    return take_role(opts, PERF_LISTEN, uri);
}

static bool take_connect(void *opts, const char *uri)
{
    return take_role(opts, PERF_CONNECT, uri);
}

static bool take_tests(void *opts, const char *list)
{
    return each_word(opts, list, add_test);
}

static bool take_sizes(void *opts, const char *list)
{
    return each_word(opts, list, add_sizes);
}

static bool take_mode(void *opts, const char *word)
{
    perf_opts_t *o = opts;
    o->threaded = !strcmp(word, "thread");
    if (o->threaded || !strcmp(word, "caller"))
        return true;
    tool_error("--mode %s is neither caller nor thread", word);
    return false;
}

static bool take_idle(void *opts, const char *time)
{
    perf_opts_t *o = opts;
    return add_test(o, "idle") && tool_take_time("idle", time, 10 * WEFT_MILLISECOND, HOUR, &o->measure_ns);
}

static bool take_no_pin(void *opts, const char *value)
{
    (void)value;
    ((perf_opts_t *)opts)->pin = false;
    return true;
}

/* Options of remote memory, and sizes that its tests cannot have. */
static bool finish_rma(perf_opts_t *o)
{
    bool rma = false, batch = false;
    for (unsigned i = 0; i < o->n_tests; i++) {
        rma = rma || perf_is_rma(o->tests[i]);
        batch = batch || o->tests[i] == PERF_RMA_BATCH;
        for (unsigned j = 0; j < o->n_sizes; j++) {
            if (perf_is_atomic(o->tests[i]) && o->sizes[j] != 4 && o->sizes[j] != 8) {
                tool_error("%s is of 4 or 8 bytes: use --size 4 or --size 8, or run it on its own", perf_test_name(o->tests[i]));
                return false;
            }
            if (o->tests[i] == PERF_RMA_PUT_LAT && !o->sizes[j]) {
                tool_error("rma_put_lat writes one byte at least, which the other side waits for; use a larger --size");
                return false;
            }
        }
    }
    if ((o->region || o->path) && !rma) {
        tool_error("--region and --path are for remote memory; add --test rma_get or another of the rma tests");
        return false;
    }
    if (o->batch && !batch) {
        tool_error("--batch is for batches; add --test rma_batch");
        return false;
    }
    if (!o->batch)
        o->batch = 64;
    if (o->window > PERF_MAX_WINDOW / o->batch && batch) {
        tool_error("--window times --batch is more than %d", PERF_MAX_WINDOW);
        return false;
    }
    return true;
}

static bool finish_stream(perf_opts_t *o)
{
    if (!o->stream && o->streams) {
        tool_error("--streams goes with --stream");
        return false;
    }
    if (!o->streams)
        o->streams = 1;
    if (o->stream && o->view) {
        tool_error("a view of a payload cannot take its turn in a stream; leave out --view or --stream");
        return false;
    }
    for (unsigned i = 0; i < o->n_tests && o->stream; i++) {
        if (perf_is_rpc(o->tests[i]) || o->tests[i] == PERF_IDLE) {
            tool_error("%s has no operations that take their turn in a stream; --stream is for tag, am and rma tests",
                       perf_test_name(o->tests[i]));
            return false;
        }
    }
    if (o->stream && (o->window > PERF_HELD * o->streams || o->outstanding > PERF_HELD * o->streams)) {
        tool_error("a stream holds %llu operations; use a smaller --window or --outstanding, or more --streams",
                   (unsigned long long)PERF_HELD);
        return false;
    }
    return true;
}

static bool finish_clients(const perf_opts_t *o)
{
    if (o->shards && !o->clients) {
        tool_error("--shards are of a server that many call: add --clients");
        return false;
    }
    if (!o->clients)
        return true;
    if (o->role != PERF_FORK) {
        tool_error("--clients starts its processes here: it goes with --fork");
        return false;
    }
    if (o->iters) {
        tool_error("with --clients all measure for the same time; use --seconds instead of --iters");
        return false;
    }
    for (unsigned i = 0; i < o->n_tests; i++)
        if (!perf_is_rpc(o->tests[i])) {
            tool_error("%s is for one client; with --clients use --test rpc_lat, rpc_rate or rpc_tensor",
                       perf_test_name(o->tests[i]));
            return false;
        }
    return true;
}

static bool finish(perf_opts_t *o)
{
    bool am = false, am_lat = false, tag = false;
    static const perf_test_t usual[] = {PERF_TAG_LAT, PERF_TAG_BW, PERF_TAG_RATE}, calls[] = {PERF_RPC_LAT, PERF_RPC_RATE};
    if (!o->role) {
        tool_error("say who to be: --fork for both sides on this machine, or --listen and, elsewhere, --connect URI");
        return false;
    }
    if (o->keep && o->role != PERF_LISTEN) {
        tool_error("--keep is for a server: give it with --listen");
        return false;
    }
    if (o->warmup != UINT64_MAX && !o->iters) {
        tool_error("--warmup goes with --iters; without it, the time to warm up is found by measuring");
        return false;
    }
    for (unsigned i = 0; i < o->n_tests; i++) {
        am = am || perf_is_am(o->tests[i]);
        am_lat = am_lat || o->tests[i] == PERF_AM_LAT;
        tag = tag || o->tests[i] == PERF_TAG_BW || o->tests[i] == PERF_TAG_RATE;
    }
    if ((o->header || o->view || o->kept) && !am) {
        tool_error("--header, --view and --kept are for active messages; add --test am_lat, am_bw or am_rate");
        return false;
    }
    if (o->answer != UINT64_MAX && !am_lat) {
        tool_error("--answer is for requests and answers; add --test am_lat");
        return false;
    }
    if (!finish_rma(o) || !finish_stream(o) || !finish_clients(o))
        return false;
    if (o->shuffle && o->n_tests && !tag) {
        tool_error("--shuffle is for tags; add --test tag_bw or tag_rate");
        return false;
    }
    if (!o->n_tests && o->clients) {
        memcpy(o->tests, calls, sizeof calls);
        o->n_tests = sizeof calls / sizeof *calls;
    } else if (!o->n_tests) {
        memcpy(o->tests, usual, sizeof usual);
        o->n_tests = sizeof usual / sizeof *usual;
    }
    if (!o->uri)
        o->uri = o->role == PERF_FORK ? DEFAULT_FORK : DEFAULT_LISTEN;
    return true;
}

int perf_options(int argc, char **argv, perf_opts_t *opts_out)
{
    int rc;
    *opts_out = (perf_opts_t){.pin = true,
                              .endpoints = 1,
                              .warmup = UINT64_MAX,
                              .answer = UINT64_MAX,
                              .measure_ns = WEFT_SECOND,
                              .timeout_ns = 60 * WEFT_SECOND,
                              .send_kind = "host",
                              .recv_kind = "host"};
    rc = tool_options(&tool_perf_command, argc, argv, opts_out, NULL);
    return rc == TOOL_GO && !finish(opts_out) ? TOOL_USAGE : rc;
}

/* --- the table --------------------------------------------------------------------------------------------- */

static const tool_opt_t options[] = {
    {"fork", NULL, "be server and client, in two processes of this machine, on one core each", TO_TAKE(take_fork)},
    {"listen", "[URI]", "be the server (default " DEFAULT_LISTEN "; port 0 picks one); serves one client and ends",
     TO_TAKE(take_listen)},
    {"connect", "URI", "be the client of the server at URI", TO_TAKE(take_connect)},
    {"test", "LIST",
     "tag_lat, tag_bw, tag_rate, am_lat, am_bw, am_rate, rma_get, rma_put, rma_put_lat, rma_fadd, rma_cas, rma_swap, rma_batch, "
     "rpc_lat, "
     "rpc_rate, rpc_tensor, idle (default tag_lat,tag_bw,tag_rate)",
     TO_TAKE(take_tests)},
    {"size", "LIST", "bytes of a message: 8,4k,1M, or 8-1M for each power of two in between (default: a few that suit the test)",
     TO_TAKE(take_sizes)},
    {"window", "N",
     "operations not yet complete at one time (default 32 for tag_bw, am_bw and rma_put, 256 for the rates, 4 for rpc_tensor, 1 "
     "for other rma "
     "tests)",
     TO_COUNT(perf_opts_t, window, 1, PERF_MAX_WINDOW)},
    {"mode", "caller|thread", "who drives the runtimes: the loop that measures, or a thread of their own (default caller)",
     TO_TAKE(take_mode)},
    {"json", NULL, "one JSON object a line instead of a table", TO_FLAG(perf_opts_t, json)},
    {"seconds", "TIME", "about how long to measure each point (default 1s)",
     TO_TIME(perf_opts_t, measure_ns, WEFT_MILLISECOND, HOUR)},
    {"iters", "N", "exactly how many messages to measure, instead of by time", TO_COUNT(perf_opts_t, iters, 1, MANY)},
    {"warmup", "N", "with --iters: how many messages come first (default a tenth)", TO_COUNT(perf_opts_t, warmup, 0, MANY)},
    {"endpoints", "N", "endpoints between the two processes, used in turn (default 1)",
     TO_COUNT(perf_opts_t, endpoints, 1, PERF_MAX_ENDPOINTS)},
    {"shards", "N",
     "with --clients: shards of the server, each a thread with connections of its own (default: none, the server is driven as "
     "--mode says)",
     TO_COUNT(perf_opts_t, shards, 1, WEFT_SHARDS_MAX)},
    {"clients", "N", "with --fork: client processes that call the server at one time, each over --endpoints (rpc tests only)",
     TO_COUNT(perf_opts_t, clients, 1, PERF_MAX_CLIENTS)},
    {"outstanding", "N", "one-way tests: receives kept posted, or payloads pulled at one time (default: as many as the window)",
     TO_COUNT(perf_opts_t, outstanding, 1, PERF_MAX_WINDOW)},
    {"shuffle", NULL, "one-way tests: each receive has a tag of its own, and they are sent in random order",
     TO_FLAG(perf_opts_t, shuffle)},
    {"header", "BYTES", "am tests: bytes of the header, beside those of the payload (default 0)",
     TO_COUNT(perf_opts_t, header, 0, WEFT_AM_HEADER_MAX)},
    {"answer", "BYTES", "am_lat: bytes of what comes back, if not as many as go (default: --size)",
     TO_SIZE(perf_opts_t, answer, 0, TOOL_SIZE_MAX)},
    {"batch", "N", "rma_batch: reads in one post (default 64)", TO_COUNT(perf_opts_t, batch, 1, PERF_MAX_BATCH)},
    {"region", "BYTES", "rma tests: go round in a region of that size (default: always the same bytes)",
     TO_SIZE(perf_opts_t, region, 0, TOOL_SIZE_MAX)},
    {"path", "any|mapped|checked", "rma tests: insist on a way to the memory (default any: the fastest there is)",
     TO_TAKE(take_path)},
    {"memory", "KIND[,KIND]",
     "what the buffers are that are sent, and those received into: host, huge, pinned, cuda, cuda-managed, cuda-async, "
     "cuda-vmm, cuda-fd "
     "or pool (default host); one word counts for both",
     TO_TAKE(take_kinds)},
    {"stream", "[both|before|after]",
     "each operation begins behind a CUDA stream of its process (before), the stream waits for it to complete (after), or both "
     "(the default)",
     TO_TAKE(take_stream)},
    {"streams", "N", "with --stream: streams that the operations of a window take in turn (default 1)",
     TO_COUNT(perf_opts_t, streams, 1, PERF_MAX_STREAMS)},
    {"view", NULL, "am tests: the receiver views payloads instead of taking them", TO_FLAG(perf_opts_t, view)},
    {"kept", NULL, "am tests: the receiver keeps messages, and releases them on a later turn", TO_FLAG(perf_opts_t, kept)},
    {"idle", "TIME", "do nothing for that long and report the processor time it takes", TO_TAKE(take_idle)},
    {"no-pin", NULL, "with --fork: leave the choice of cores to the kernel", TO_TAKE(take_no_pin)},
    {"keep", NULL, "with --listen: serve one client after another", TO_FLAG(perf_opts_t, keep)},
    {"timeout", "TIME", "the longest that one wait may take (default 60s)",
     TO_TIME(perf_opts_t, timeout_ns, 100 * WEFT_MILLISECOND, TOOL_DAY)},
    {TO_GROUP(perf_opts_t, net, tool_net_options)},
    {0},
};

const tool_command_t tool_perf_command = {
    .name = "perf",
    .full_name = "weft perf",
    .summary = "measure latency, bandwidth and message rate between two processes",
    .usage = "--fork [options]\n"
             "--listen [URI] [options]       and, elsewhere,\n"
             "--connect URI [options]",
    .about = "Measures two processes that exchange tag messages or active messages, use each other's memory, or call each "
             "other's functions:\n"
             "  tag_lat      ping-pong; times are half of a round trip, avg is the total time / messages\n"
             "  tag_bw       one way with a window of large messages, until all have arrived\n"
             "  tag_rate     one way with a window of small messages, until all have arrived\n"
             "  am_...       am_lat, am_bw and am_rate: the same with active messages, which handlers answer or take\n"
             "  rma_get      read the server's memory\n"
             "  rma_put      write it\n"
             "  rma_put_lat  ping-pong of writes, each side looking at its memory; times like tag_lat\n"
             "  rma_fadd     atomics on it, of 4 or 8 bytes; so are rma_cas and rma_swap\n"
             "  rma_batch    reads, many in one post; figures are those of one read\n"
             "  rpc_lat      calls answered with their argument, as are those of rpc_rate; a time is that of a whole call\n"
             "  rpc_tensor   calls whose argument is a tensor of --size bytes\n"
             "  idle         nothing; the processor time that takes (see --idle)\n"
             "In the one-way tests a time is that of one message, averaged over a window; in rma tests with a window of 1 it is "
             "that of one whole "
             "operation. MiB/s are 2^20 bytes a second (mb_s in JSON), as in ucx_perftest. Options that shape a test are given "
             "to the client; "
             "--transports, --mode, --heartbeat and --key-file are each side's own.",
    .options = options,
    .run = perf_command,
};
