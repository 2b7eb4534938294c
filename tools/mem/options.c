/* tools/mem/options.c - the command lines of `weft mem`.
 *
 * Nothing is opened before the whole command line has been understood. tests/tools/tools_mem.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "mem.h"

#define DEFAULT_LISTEN "tcp://127.0.0.1:13337"
#define SHORTEST (100 * WEFT_MILLISECOND)

/* --- what is configured ----------------------------------------------------------------------------------- */

/* WEFT_MEM_SERVER: several servers are separated by blanks, since commas separate the addresses of one. */
static bool configured_servers(mem_opts_t *o)
{
    char *save = NULL;
    o->server_text = tool_configured("WEFT_MEM_SERVER");
    if (!o->server_text)
        return true;
    for (char *uri = strtok_r(o->server_text, " \t", &save); uri; uri = strtok_r(NULL, " \t", &save))
        if (!tool_texts_add(&o->servers, "server", uri))
            return false;
    return true;
}

/* --- all of it --------------------------------------------------------------------------------------------- */

/* False after a sentence. */
static bool wrong(const char *why)
{
    tool_error("%s", why);
    return false;
}

static bool finish_serve(mem_opts_t *o)
{
    if (!o->bytes)
        return wrong("say how much memory to give out: --size 4G");
    if (o->quota_bytes > o->bytes)
        return wrong("--quota-bytes is more than --size; leave it out if one client may have all of it");
    if (!o->listen.n)
        o->listen.at[o->listen.n++] = DEFAULT_LISTEN;
    return true;
}

/* A name that the server would refuse without a reason. */
static bool name_is_fit(const char *name)
{
    size_t n = strlen(name);
    for (const char *c = name; *c;) {
        size_t len = tool_harmless(c, strlen(c), false);
        if (!len) {
            tool_error("a block's name is UTF-8 without control characters, and this one is not so from byte %td on", c - name);
            return false;
        }
        c += len;
    }
    if (!n || n > WEFT_RMA_NAME_MAX)
        tool_error("a block's name has 1 to %u bytes, and this one has %zu", WEFT_RMA_NAME_MAX, n);
    return n && n <= WEFT_RMA_NAME_MAX;
}

static bool servers_fit(const mem_opts_t *o, bool put, bool get)
{
    if (!o->servers.n)
        return wrong("say where the server is: --server URI, or the variable WEFT_MEM_SERVER");
    if (o->checksums && !o->mirror)
        return wrong("--checksums goes with --mirror");
    if (o->mirror && o->servers.n > WEFT_MIRROR_MAX) {
        tool_error("a mirror has at most %u servers, and %u are named", WEFT_MIRROR_MAX, o->servers.n);
        return false;
    }
    if (o->mirror && put && o->servers.n < 2)
        return wrong("--mirror needs two or three servers: give --server several times");
    if ((put || get) && !o->mirror && o->servers.n > 1) {
        tool_error("%u servers are named: give one, or say --mirror", o->servers.n);
        return false;
    }
    return true;
}

typedef struct form {
    const tool_command_t *command;
    int (*fn)(const mem_opts_t *opts);
    size_t min_words, max_words;
    size_t first_name, n_names; /* which words are names of blocks */
} form_t;

static bool finish_client(const form_t *f, mem_opts_t *o)
{
    if (!o->servers.n && !configured_servers(o))
        return false;
    if (o->words.n < f->min_words || o->words.n > f->max_words) {
        tool_error("it is used like this: %s %s", f->command->full_name, f->command->usage);
        return false;
    }
    if (!servers_fit(o, f->fn == mem_put, f->fn == mem_get))
        return false;
    for (size_t i = f->first_name; i < o->words.n && i - f->first_name < f->n_names; i++)
        if (!name_is_fit(o->words.at[i]))
            return false;
    return true;
}

static int run(const form_t *f, int argc, char **argv)
{
    mem_opts_t o = {.stats_ns = UINT64_MAX, .timeout_ns = 30 * WEFT_SECOND};
    o.net.configured_shards = f->command == &mem_serve_command;
    int rc = tool_options(f->command, argc, argv, &o, &o.words);
    if (rc == TOOL_GO)
        rc = (f->fn == mem_serve ? finish_serve(&o) : finish_client(f, &o)) ? f->fn(&o) : TOOL_USAGE;
    free(o.server_text);
    return rc;
}

static int run_serve(int argc, char **argv)
{
    return run(&(form_t){&mem_serve_command, mem_serve, 0, 0, 0, 0}, argc, argv);
}

static int run_put(int argc, char **argv)
{
    return run(&(form_t){&mem_put_command, mem_put, 2, 2, 1, 1}, argc, argv);
}

static int run_get(int argc, char **argv)
{
    return run(&(form_t){&mem_get_command, mem_get, 2, 2, 0, 1}, argc, argv);
}

static int run_ls(int argc, char **argv)
{
    return run(&(form_t){&mem_ls_command, mem_ls, 0, 1, 0, 0}, argc, argv);
}

static int run_stat(int argc, char **argv)
{
    return run(&(form_t){&mem_stat_command, mem_stat, 0, 1, 0, 1}, argc, argv);
}

static int run_rm(int argc, char **argv)
{
    return run(&(form_t){&mem_rm_command, mem_rm, 1, SIZE_MAX, 0, SIZE_MAX}, argc, argv);
}

/* --- tables ------------------------------------------------------------------------------------------------ */

static bool take_stats_every(void *opts, const char *value)
{
    mem_opts_t *o = opts;
    uint64_t ns;
    if (!tool_parse_time(value, &ns) || ns)
        return tool_take_time("stats-every", value, SHORTEST, TOOL_DAY, &o->stats_ns);
    o->stats_ns = 0;
    return true;
}

static const tool_opt_t serve_options[] = {
    {"size", "BYTES", "how much memory to give out in all: 512M, 4G (needed)", TO_SIZE(mem_opts_t, bytes, 1, TOOL_SIZE_MAX)},
    {"listen", "URI",
     "where to listen (default " DEFAULT_LISTEN
     "); may be given several times: tcp://HOST:PORT, tls://HOST:PORT, unix://PATH, unix://@NAME; port 0 picks one",
     TO_TEXTS(mem_opts_t, listen)},
    {"quota-bytes", "BYTES", "the most memory for one client (default: all of it)",
     TO_SIZE(mem_opts_t, quota_bytes, 1, TOOL_SIZE_MAX)},
    {"quota-blocks", "N", "the most blocks for one client (default 4096)", TO_COUNT(mem_opts_t, quota_blocks, 1, UINT32_MAX)},
    {"blocks", "N", "the most blocks in all (default 65536)", TO_COUNT(mem_opts_t, blocks, 1, UINT32_MAX)},
    {"clients", "N", "the most clients at one time (default 1024)", TO_COUNT(mem_opts_t, clients, 1, UINT32_MAX)},
    {"lease", "TIME", "a client that is lost for so long loses what it did not share (default 30s)",
     TO_TIME(mem_opts_t, lease_ns, SHORTEST, TOOL_DAY)},
    {"unmapped", NULL, "clients on this machine may not map blocks: every access goes through the server",
     TO_FLAG(mem_opts_t, unmapped)},
    {TO_GROUP(mem_opts_t, net, tool_shards_options)},
    {"stats-every", "TIME", "a line of statistics so often; 0 for none (default 10s on a terminal and with --json, else none)",
     TO_TAKE(take_stats_every)},
    {"no-key-needed", NULL, "listen without a key where other machines can connect: all of them may read and write all blocks",
     TO_FLAG(mem_opts_t, no_key_needed)},
    {"json", NULL, "one JSON object a line: where it listens, statistics, and a summary", TO_FLAG(mem_opts_t, json)},
    {TO_GROUP(mem_opts_t, net, tool_net_options)},
    {0},
};

static const tool_opt_t client_options[] = {
    {"server", "URI", "where the server is (default: the variable WEFT_MEM_SERVER); may be given several times",
     TO_TEXTS(mem_opts_t, servers)},
    {"json", NULL, "one JSON object a line instead of text", TO_FLAG(mem_opts_t, json)},
    {"timeout", "TIME", "the longest that one request may take (default 30s); data takes as long as it takes",
     TO_TIME(mem_opts_t, timeout_ns, SHORTEST, TOOL_DAY)},
    {TO_GROUP(mem_opts_t, net, tool_net_options)},
    {0},
};

static const tool_opt_t put_options[] = {
    {"replace", NULL, "in place of a block of that name, once all of it is there", TO_FLAG(mem_opts_t, replace)},
    {"mirror", NULL, "put it on all of two or three servers, so that none of them can lose it", TO_FLAG(mem_opts_t, mirror)},
    {"checksums", NULL, "with --mirror: every 4 KiB carry a checksum that is verified when they are read",
     TO_FLAG(mem_opts_t, checksums)},
    {.kind = TOOL_GROUP, .group = client_options},
    {0},
};

static const tool_opt_t get_options[] = {
    {"force", NULL, "overwrite FILE if it is there", TO_FLAG(mem_opts_t, force)},
    {"mirror", NULL, "it was put with --mirror: read it from whichever of the servers answers", TO_FLAG(mem_opts_t, mirror)},
    {.kind = TOOL_GROUP, .group = client_options},
    {0},
};

static const tool_opt_t ls_options[] = {
    {"l", NULL, "also how long each is, its age, whose it is, and how many have it open", TO_FLAG(mem_opts_t, detail)},
    {.kind = TOOL_GROUP, .group = client_options},
    {0},
};

/* clang-format off: a command a line */
#define COMMAND(NAME, USAGE, SUMMARY, OPTIONS, WORDS) \
    const tool_command_t mem_##NAME##_command = {.name = #NAME, \
                                                 .full_name = "weft mem " #NAME, \
                                                 .summary = SUMMARY, \
                                                 .usage = USAGE, \
                                                 .about = "weft mem " #NAME ": " SUMMARY, \
                                                 .options = OPTIONS, \
                                                 .words = WORDS, \
                                                 .run = run_##NAME}

COMMAND(serve, "--size BYTES [--listen URI]...", "give out memory of this machine", serve_options, false);
COMMAND(put, "FILE NAME --server URI", "put a file into a block (- is stdin)", put_options, true);
COMMAND(get, "NAME FILE --server URI", "write a block to a file (- is stdout)", get_options, true);
COMMAND(ls, "[PREFIX] [-l] --server URI", "list the blocks whose names begin with PREFIX", ls_options, true);
COMMAND(stat, "[NAME] --server URI", "what the server does, or one of its blocks is", client_options, true);
COMMAND(rm, "NAME... --server URI", "remove blocks", client_options, true);
/* clang-format on */
