/* tools/mem/options.c - the command lines of `weft mem`.
 *
 * Whatever is wrong gets one sentence with the value and what would be right, and exit status 2. Nothing is opened before all of
 * it has been understood. tests/tools/tools_mem.py holds it. */
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum {
    OPT_SIZE = 1,
    OPT_LISTEN,
    OPT_QUOTA_BYTES,
    OPT_QUOTA_BLOCKS,
    OPT_BLOCKS,
    OPT_CLIENTS,
    OPT_LEASE,
    OPT_UNMAPPED,
    OPT_STATS_EVERY,
    OPT_NO_KEY_NEEDED,
    OPT_SERVER,
    OPT_REPLACE,
    OPT_FORCE,
    OPT_MIRROR,
    OPT_CHECKSUMS,
    OPT_DETAIL,
    OPT_JSON,
    OPT_KEY_FILE,
    OPT_TLS,
    OPT_HEARTBEAT,
    OPT_TIMEOUT,
    OPT_HELP
};

#define DEFAULT_LISTEN "tcp://127.0.0.1:13337"
#define BYTES_MAX ((uint64_t)1 << 46)

/* clang-format off: one option a line */
#define OPTIONS_OF_ALL \
    {OPT_KEY_FILE, "key-file", "PATH", "file with the pre-shared key; the server and its clients need the same"}, \
        {OPT_TLS, "tls", "LIST", "transports: all, shm, tcp, or a list of those and of UCX's names (default: as configured)"}, \
        {OPT_HEARTBEAT, "heartbeat", "TIME", "a peer silent for this long is lost (default: as configured)"}, \
        {OPT_HELP, "help", NULL, "this"}, \
    { \
        0, NULL, NULL, NULL \
    }
#define OPTIONS_OF_CLIENTS \
    {OPT_SERVER, "server", "URI", "where the server is (default: the variable WEFT_MEM_SERVER); may be given several times"}, \
        {OPT_JSON, "json", NULL, "one JSON object a line instead of text"}, \
        {OPT_TIMEOUT, "timeout", "TIME", "the longest that one request may take (default 30s); data takes as long as it takes"}, \
        OPTIONS_OF_ALL
/* clang-format on */

static const tool_opt_t serve_options[] = {
    {OPT_SIZE, "size", "BYTES", "how much memory to give out in all: 512M, 4G (needed)"},
    {OPT_LISTEN, "listen", "URI",
     "where to listen (default " DEFAULT_LISTEN "); may be given several times:\n"
     "tcp://HOST:PORT, unix://PATH, unix://@NAME; port 0 picks one"},
    {OPT_QUOTA_BYTES, "quota-bytes", "BYTES", "the most memory for one client (default: all of it)"},
    {OPT_QUOTA_BLOCKS, "quota-blocks", "N", "the most blocks for one client (default 4096)"},
    {OPT_BLOCKS, "blocks", "N", "the most blocks in all (default 65536)"},
    {OPT_CLIENTS, "clients", "N", "the most clients at one time (default 1024)"},
    {OPT_LEASE, "lease", "TIME", "a client that is lost for so long loses what it did not share (default 30s)"},
    {OPT_UNMAPPED, "unmapped", NULL, "clients on this machine may not map blocks: every access goes through the server"},
    {OPT_STATS_EVERY, "stats-every", "TIME",
     "a line of statistics so often; 0 for none (default 10s on a terminal and with --json,\nelse none)"},
    {OPT_NO_KEY_NEEDED, "no-key-needed", NULL,
     "listen without a key where other machines can connect: all of them may read and write\nall blocks"},
    {OPT_JSON, "json", NULL, "one JSON object a line: where it listens, statistics, and a summary"},
    OPTIONS_OF_ALL,
};

static const tool_opt_t put_options[] = {
    {OPT_REPLACE, "replace", NULL, "in place of a block of that name, once all of it is there"},
    {OPT_MIRROR, "mirror", NULL, "put it on all of two or three servers, so that none of them can lose it"},
    {OPT_CHECKSUMS, "checksums", NULL, "with --mirror: every 4 KiB carry a checksum that is verified when they are read"},
    OPTIONS_OF_CLIENTS,
};

static const tool_opt_t get_options[] = {
    {OPT_FORCE, "force", NULL, "overwrite FILE if it is there"},
    {OPT_MIRROR, "mirror", NULL, "it was put with --mirror: read it from whichever of the servers answers"},
    OPTIONS_OF_CLIENTS,
};

static const tool_opt_t ls_options[] = {
    {OPT_DETAIL, "l", NULL, "also how long each is, its age, whose it is, and how many have it open"},
    OPTIONS_OF_CLIENTS,
};

static const tool_opt_t plain_options[] = {OPTIONS_OF_CLIENTS};

const mem_command_t mem_commands[] = {
    {"serve", "weft mem serve", "--size BYTES [--listen URI]...", "give out memory of this machine", serve_options, 0, 0,
     mem_serve},
    {"put", "weft mem put", "FILE NAME --server URI", "put a file into a block (- is stdin)", put_options, 2, 2, mem_put},
    {"get", "weft mem get", "NAME FILE --server URI", "write a block to a file (- is stdout)", get_options, 2, 2, mem_get},
    {"ls", "weft mem ls", "[PREFIX] [-l] --server URI", "list the blocks whose names begin with PREFIX", ls_options, 0, 1,
     mem_ls},
    {"stat", "weft mem stat", "[NAME] --server URI", "what the server does, or one of its blocks is", plain_options, 0, 1,
     mem_stat},
    {"rm", "weft mem rm", "NAME... --server URI", "remove blocks", plain_options, 1, SIZE_MAX, mem_rm},
};
const size_t mem_n_commands = sizeof mem_commands / sizeof *mem_commands;

void mem_command_help(const mem_command_t *command, FILE *f)
{
    fprintf(f, "Usage: %s %s\n\n%s: %s\n\n", command->full_name, command->usage, command->full_name, command->summary);
    tool_args_help(command->options, f);
}

/* --- values ---------------------------------------------------------------------------------------------- */

static bool take_size(const char *name, const char *text, uint64_t *out)
{
    uint64_t v;
    if (tool_parse_size(text, &v) && v && v <= BYTES_MAX) {
        *out = v;
        return true;
    }
    tool_error("--%s %s is not a size; give bytes like 512M or 4G, at most 64T", name, text);
    return false;
}

static bool take_count(const char *name, const char *text, uint64_t *out)
{
    if (tool_parse_count(text, 1, UINT32_MAX, out))
        return true;
    tool_error("--%s %s is not a number between 1 and %u", name, text, UINT32_MAX);
    return false;
}

static bool take_time(const char *name, const char *text, uint64_t min, uint64_t *out)
{
    uint64_t ns;
    if (tool_parse_time(text, &ns) && (ns >= min || (!ns && !strcmp(name, "stats-every"))) && ns <= 86400 * WEFT_SECOND) {
        *out = ns;
        return true;
    }
    tool_error("--%s %s is not a time between %g s and a day; write it like 250ms, 2s or 0.5", name, text, (double)min / 1e9);
    return false;
}

static bool add(const char *name, const char *text, const char **list, unsigned *n, unsigned max)
{
    if (*n == max) {
        tool_error("--%s is given more than %u times", name, max);
        return false;
    }
    list[(*n)++] = text;
    return true;
}

static bool take(mem_opts_t *o, int id, const char *v)
{
    switch (id) {
    case OPT_SIZE:
        return take_size("size", v, &o->bytes);
    case OPT_LISTEN:
        return add("listen", v, o->listen, &o->n_listen, MEM_MAX_LISTEN);
    case OPT_QUOTA_BYTES:
        return take_size("quota-bytes", v, &o->quota_bytes);
    case OPT_QUOTA_BLOCKS:
        return take_count("quota-blocks", v, &o->quota_blocks);
    case OPT_BLOCKS:
        return take_count("blocks", v, &o->blocks);
    case OPT_CLIENTS:
        return take_count("clients", v, &o->clients);
    case OPT_LEASE:
        return take_time("lease", v, 100 * WEFT_MILLISECOND, &o->lease_ns);
    case OPT_UNMAPPED:
        o->unmapped = true;
        return true;
    case OPT_STATS_EVERY:
        return take_time("stats-every", v, 100 * WEFT_MILLISECOND, &o->stats_ns);
    case OPT_NO_KEY_NEEDED:
        o->no_key_needed = true;
        return true;
    case OPT_SERVER:
        return add("server", v, o->servers, &o->n_servers, MEM_MAX_SERVERS);
    case OPT_REPLACE:
        o->replace = true;
        return true;
    case OPT_FORCE:
        o->force = true;
        return true;
    case OPT_MIRROR:
        o->mirror = true;
        return true;
    case OPT_CHECKSUMS:
        o->checksums = true;
        return true;
    case OPT_DETAIL:
        o->detail = true;
        return true;
    case OPT_JSON:
        o->json = true;
        return true;
    case OPT_KEY_FILE:
        o->key_file = v;
        return true;
    case OPT_TLS:
        o->tls = v;
        return true;
    case OPT_HEARTBEAT:
        return take_time("heartbeat", v, 100 * WEFT_MILLISECOND, &o->heartbeat_ns);
    default:
        return take_time("timeout", v, 100 * WEFT_MILLISECOND, &o->timeout_ns);
    }
}

/* --- what is configured ----------------------------------------------------------------------------------- */

/* WEFT_MEM_SERVER: several servers are separated by blanks, since commas separate the addresses of one. */
static bool configured_servers(mem_opts_t *o)
{
    char *save = NULL;
    o->server_text = tool_configured("WEFT_MEM_SERVER");
    if (!o->server_text)
        return true;
    for (char *uri = strtok_r(o->server_text, " \t", &save); uri; uri = strtok_r(NULL, " \t", &save))
        if (!add("server", uri, o->servers, &o->n_servers, MEM_MAX_SERVERS))
            return false;
    return true;
}

/* --- all of it --------------------------------------------------------------------------------------------- */

static bool finish_serve(mem_opts_t *o)
{
    if (!o->bytes) {
        tool_error("say how much memory to give out: --size 4G");
        return false;
    }
    if (o->quota_bytes > o->bytes) {
        tool_error("--quota-bytes is more than --size; leave it out if one client may have all of it");
        return false;
    }
    if (!o->n_listen)
        o->listen[o->n_listen++] = DEFAULT_LISTEN;
    return true;
}

/* What the server would refuse without saying why. */
static bool name_is_fit(const char *name)
{
    for (const char *c = name; *c;) {
        size_t n = tool_utf8_len(c);
        if (!n || (unsigned char)*c < 0x20 || *c == 0x7f || (n == 2 && *c == '\xc2' && (unsigned char)c[1] < 0xa0)) {
            tool_error("a block's name is UTF-8 without control characters, and this one is not so from byte %td on", c - name);
            return false;
        }
        c += n;
    }
    if (!*name || strlen(name) > WEFT_RMA_NAME_MAX) {
        tool_error("a block's name has 1 to %u bytes, and this one has %zu", WEFT_RMA_NAME_MAX, strlen(name));
        return false;
    }
    return true;
}

static bool finish_client(const mem_command_t *c, mem_opts_t *o)
{
    bool transfer = c->run == mem_put || c->run == mem_get;
    if (!o->n_servers && !configured_servers(o))
        return false;
    if (o->n_words < c->min_words || o->n_words > c->max_words) {
        tool_error("it is used like this: %s %s", c->full_name, c->usage);
        return false;
    }
    if (!o->n_servers) {
        tool_error("say where the server is: --server URI, or the variable WEFT_MEM_SERVER");
        return false;
    }
    if (o->checksums && !o->mirror) {
        tool_error("--checksums goes with --mirror");
        return false;
    }
    if (o->mirror && o->n_servers > WEFT_MIRROR_MAX) {
        tool_error("a mirror has at most %u servers, and %u are named", WEFT_MIRROR_MAX, o->n_servers);
        return false;
    }
    if (o->mirror && c->run == mem_put && o->n_servers < 2) {
        tool_error("--mirror needs two or three servers: give --server several times");
        return false;
    }
    if (transfer && !o->mirror && o->n_servers > 1) {
        tool_error("%u servers are named: give one, or say --mirror", o->n_servers);
        return false;
    }
    if (transfer)
        return name_is_fit(o->words[c->run == mem_put ? 1 : 0]);
    for (size_t i = 0; i < o->n_words; i++)
        if ((c->run == mem_rm || c->run == mem_stat) && !name_is_fit(o->words[i]))
            return false;
    return true;
}

int mem_options(const mem_command_t *command, int argc, char **argv, mem_opts_t *opts_out, bool *run_out)
{
    mem_opts_t *o = opts_out;
    tool_args_t args;
    int id;
    *o = (mem_opts_t){.stats_ns = UINT64_MAX, .timeout_ns = 30 * WEFT_SECOND};
    *run_out = false;
    o->words = calloc((size_t)argc, sizeof *o->words);
    if (!o->words) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    tool_args_init(&args, argc, argv, command->options);
    args.words = command->max_words > 0;
    while ((id = tool_args_next(&args)) > 0) {
        if (id == OPT_HELP) {
            mem_command_help(command, stdout);
            return TOOL_OK;
        }
        if (id == TOOL_WORD)
            o->words[o->n_words++] = args.value;
        else if (!take(o, id, args.value))
            return TOOL_USAGE;
    }
    if (id < 0)
        return TOOL_USAGE;
    if (o->key_file && !tool_use_key_file(o->key_file))
        return TOOL_FAILED;
    if (!(command->run == mem_serve ? finish_serve(o) : finish_client(command, o)))
        return TOOL_USAGE;
    *run_out = true;
    return TOOL_OK;
}

void mem_options_free(mem_opts_t *opts)
{
    free(opts->words);
    free(opts->server_text);
}
