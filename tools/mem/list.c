/* tools/mem/list.c - `weft mem ls`, `stat` and `rm`.
 *
 * Each asks every server that is named, one after another, and goes on after a failure; the exit status is that of the first
 * failure. tests/tools/tools_mem.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "mem.h"

typedef struct entry {
    char name[WEFT_RMA_NAME_MAX + 1];
    uint64_t len, max_len, age_ns, attached;
    bool shared, ours;
} entry_t;

/* The runtime's thread fills it until the operation is complete. */
typedef struct listing {
    entry_t *entries;
    size_t n, cap;
    const char *only; /* the one name that is wanted; NULL: all */
    bool no_memory;
} listing_t;

static void collect(const weft_block_info_t *info, void *user)
{
    listing_t *l = user;
    entry_t *e;
    if (l->only && strcmp(info->name, l->only))
        return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        e = l->no_memory ? NULL : realloc(l->entries, cap * sizeof *e);
        if (!e) {
            l->no_memory = true;
            return;
        }
        l->entries = e;
        l->cap = cap;
    }
    e = &l->entries[l->n++];
    snprintf(e->name, sizeof e->name, "%s", info->name);
    e->len = info->len;
    e->max_len = info->max_len;
    e->age_ns = info->age_ns;
    e->attached = info->attached;
    e->shared = info->shared;
    e->ours = info->ours;
}

static weft_status_t fetch(const mem_opts_t *opts, const mem_server_t *s, const char *prefix, listing_t *l)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    op.timeout_ns = opts->timeout_ns;
    st = tool_do(weft_store_list(s->store, prefix, collect, l, &op), &op);
    return st ? st : l->no_memory ? WEFT_ERR_NOMEM : WEFT_OK;
}

static void entry_json(const mem_server_t *s, const entry_t *e)
{
    tool_json_t j = tool_json_begin(stdout);
    tool_json_text(&j, "server", s->uri);
    tool_json_text(&j, "name", e->name);
    tool_json_count(&j, "bytes", e->len);
    tool_json_count(&j, "max_bytes", e->max_len);
    tool_json_number(&j, "age", (double)e->age_ns / 1e9, 3);
    tool_json_text(&j, "owner", e->shared ? "shared" : e->ours ? "ours" : "a client");
    tool_json_count(&j, "attached", e->attached);
    tool_json_end(&j);
}

static void heading(const mem_opts_t *opts, const mem_server_t *s, unsigned i)
{
    if (opts->servers.n > 1 && !opts->json)
        printf("%s%s:\n", i ? "\n" : "", s->uri);
}

static int rm_one(const mem_opts_t *opts, const mem_server_t *s);

/* Call one for each server; the first failure counts. */
static int each_server(const mem_opts_t *opts, int (*one)(const mem_opts_t *opts, const mem_server_t *s))
{
    mem_link_t link;
    int rc = mem_link_open(&link, opts, false);
    if (rc)
        return rc;
    for (unsigned i = 0; i < link.n_servers && !tool_signal(); i++) {
        int done;
        if (one != rm_one)
            heading(opts, &link.servers[i], i);
        done = one(opts, &link.servers[i]);
        rc = rc ? rc : done;
    }
    mem_link_close(&link, true);
    return tool_signal() ? 128 + tool_signal() : rc;
}

/* --- ls ------------------------------------------------------------------------------------------------------ */

static int ls_one(const mem_opts_t *opts, const mem_server_t *s)
{
    listing_t l = {0};
    weft_status_t st = fetch(opts, s, opts->words.n ? opts->words.at[0] : NULL, &l);
    for (size_t i = 0; i < l.n && !st; i++) {
        const entry_t *e = &l.entries[i];
        char size[32], age[32];
        if (opts->json) {
            entry_json(s, e);
            continue;
        }
        if (opts->detail)
            printf("%10s %8s %-8s %4llu open  ", mem_size_text((double)e->len, size, sizeof size),
                   mem_age_text(e->age_ns, age, sizeof age),
                   e->shared ? "shared"
                   : e->ours ? "ours"
                             : "client's",
                   (unsigned long long)e->attached);
        puts(e->name);
    }
    free(l.entries);
    return st ? mem_failed(st, "the blocks at %s cannot be listed", s->uri) : TOOL_OK;
}

int mem_ls(const mem_opts_t *opts)
{
    return each_server(opts, ls_one);
}

/* --- stat ---------------------------------------------------------------------------------------------------- */

static int stat_block(const mem_opts_t *opts, const mem_server_t *s)
{
    listing_t l = {.only = opts->words.at[0]};
    char size[32], most[32], age[32];
    weft_status_t st = fetch(opts, s, opts->words.at[0], &l);
    if (!st && !l.n)
        st = WEFT_ERR_NOTFOUND;
    if (st) {
        free(l.entries);
        return mem_failed(st, "%s at %s", opts->words.at[0], s->uri);
    }
    if (opts->json) {
        entry_json(s, l.entries);
    } else {
        printf("name      %s\nbytes     %llu (%s)\nmost      %llu (%s)\nage       %s\nowner     %s\nopen      %llu\n",
               l.entries->name, (unsigned long long)l.entries->len, mem_size_text((double)l.entries->len, size, sizeof size),
               (unsigned long long)l.entries->max_len, mem_size_text((double)l.entries->max_len, most, sizeof most),
               mem_age_text(l.entries->age_ns, age, sizeof age),
               l.entries->shared ? "nobody: it is shared"
               : l.entries->ours ? "this client"
                                 : "a client, with whose lease it ends",
               (unsigned long long)l.entries->attached);
    }
    free(l.entries);
    return TOOL_OK;
}

static void stats_text(const weft_store_stats_t *t)
{
    char a[32], b[32];
    printf("memory    %s of %s given out\n", mem_size_text((double)t->used_bytes, a, sizeof a),
           mem_size_text((double)t->bytes, b, sizeof b));
    printf("blocks    %llu, of them %llu shared\n", (unsigned long long)t->blocks, (unsigned long long)t->shared_blocks);
    printf("clients   %llu\n", (unsigned long long)t->clients);
    printf("since     %s\n", mem_age_text(t->uptime_ns, a, sizeof a));
    printf("requests  %llu allocated, %llu extended, %llu freed, %llu opened, %llu refused\n", (unsigned long long)t->allocs,
           (unsigned long long)t->extends, (unsigned long long)t->frees, (unsigned long long)t->opens,
           (unsigned long long)t->refused);
    printf("leases    %llu renewals; %llu ran out, with %llu blocks\n", (unsigned long long)t->renewals,
           (unsigned long long)t->expired_clients, (unsigned long long)t->expired_blocks);
    printf("accesses  %llu reads (%s), %llu writes (%s), %llu atomics; those of clients that map blocks are not counted\n",
           (unsigned long long)t->reads, mem_size_text((double)t->bytes_read, a, sizeof a), (unsigned long long)t->writes,
           mem_size_text((double)t->bytes_written, b, sizeof b), (unsigned long long)t->atomics);
}

static int stat_server(const mem_opts_t *opts, const mem_server_t *s)
{
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    op.timeout_ns = opts->timeout_ns;
    st = tool_do(weft_store_query(s->store, &stats, &op), &op);
    if (st)
        return mem_failed(st, "the server at %s cannot be asked", s->uri);
    if (opts->json) {
        tool_json_t j = tool_json_begin(stdout);
        tool_json_text(&j, "server", s->uri);
        mem_stats_json(&j, &stats);
        tool_json_end(&j);
    } else {
        stats_text(&stats);
    }
    return TOOL_OK;
}

int mem_stat(const mem_opts_t *opts)
{
    return each_server(opts, opts->words.n ? stat_block : stat_server);
}

/* --- rm ------------------------------------------------------------------------------------------------------ */

static int rm_one(const mem_opts_t *opts, const mem_server_t *s)
{
    int rc = TOOL_OK;
    for (size_t i = 0; i < opts->words.n && !tool_signal(); i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st;
        int done = TOOL_OK;
        op.timeout_ns = opts->timeout_ns;
        st = tool_do(weft_store_remove(s->store, opts->words.at[i], &op), &op);
        if (st == WEFT_ERR_STATE && !tool_signal())
            done = (tool_error("%s belongs to another client, with whose lease it ends", opts->words.at[i]), TOOL_FAILED);
        else if (st)
            done = mem_failed(st, "removing %s at %s failed", opts->words.at[i], s->uri);
        if (opts->json) {
            tool_json_t j = tool_json_begin(stdout);
            tool_json_text(&j, "server", s->uri);
            tool_json_text(&j, "name", opts->words.at[i]);
            tool_json_text(&j, "status", weft_status_name(st));
            tool_json_end(&j);
        }
        rc = rc ? rc : done;
    }
    return rc;
}

int mem_rm(const mem_opts_t *opts)
{
    return each_server(opts, rm_one);
}
