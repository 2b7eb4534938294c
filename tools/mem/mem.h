/* tools/mem/mem.h - `weft mem`: what its files share.
 *
 *   options.c  the command lines                        show.c   sizes, names, progress, statistics
 *   mem.c      which of them, and what failures mean    serve.c  the server
 *   link.c     runtime, servers                         flow.c   a window of transfers, to a block or to a mirror
 *   put.c      a file into a block                      get.c    a block into a file
 *   list.c     ls, stat, rm
 *
 * Clients are driven by the runtime's own thread: whatever a file, a pipe or a terminal takes its time for, the lease is
 * renewed and the server hears from us. */
#ifndef WEFT_TOOLS_MEM_H
#define WEFT_TOOLS_MEM_H

#include <weft/mirror.h>

#include "../session.h"

/* Beside those of every command. Ended by a signal: 128 and its number. */
enum { MEM_NO_BLOCK = 3, MEM_NO_SERVER = 4 };

/* --- options --------------------------------------------------------------------------------------------- */

typedef struct mem_opts {
    bool json;
    tool_net_t net;
    uint64_t timeout_ns; /* of one request; data takes as long as it takes */
    /* the server */
    tool_texts_t listen;
    uint64_t bytes, quota_bytes, quota_blocks, blocks, clients, lease_ns;
    uint64_t stats_ns; /* between two lines of statistics; 0: none, UINT64_MAX: not said */
    bool unmapped, no_key_needed;
    /* clients */
    tool_texts_t servers;
    bool replace, force, mirror, checksums, detail;
    tool_words_t words; /* names and files, in order */
    char *server_text;  /* what `servers` points into when they were configured */
} mem_opts_t;

int mem_serve(const mem_opts_t *opts);
int mem_put(const mem_opts_t *opts);
int mem_get(const mem_opts_t *opts);
int mem_ls(const mem_opts_t *opts);
int mem_stat(const mem_opts_t *opts);
int mem_rm(const mem_opts_t *opts);

extern const tool_command_t mem_serve_command, mem_put_command, mem_get_command, mem_ls_command, mem_stat_command, mem_rm_command;

/* --- the link to the servers ----------------------------------------------------------------------------- */

typedef struct mem_server {
    const char *uri;
    weft_ep_t *ep;
    weft_store_t *store;
} mem_server_t;

typedef struct mem_link {
    const mem_opts_t *opts;
    weft_runtime_t *rt;
    weft_pool_t *pool;
    mem_server_t servers[TOOL_TEXTS_MAX];
    unsigned n_servers; /* those that answered */
} mem_link_t;

/* Open the runtime and a store at every server, or say why not. With `some`, servers that do not answer are left out, after a
 * sentence. TOOL_OK, or the exit status; then nothing is open. */
int mem_link_open(mem_link_t *l, const mem_opts_t *opts, bool some);
/* Close everything. `clean`: the leases are ended, which takes a moment. */
void mem_link_close(mem_link_t *l, bool clean);

/* One sentence about what failed, with advice, and the exit status that says so. A signal gets no sentence. */
int mem_failed(weft_status_t st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- transfers -------------------------------------------------------------------------------------------- */

#define MEM_CHUNK  ((size_t)4 << 20)
#define MEM_WINDOW 8

typedef struct mem_slot {
    weft_op_t op;
    char *buf;
    uint64_t offset;
    size_t len;
} mem_slot_t;

/* Reads or writes of one block or mirror, MEM_WINDOW of them at a time, that end in the order they began. */
typedef struct mem_flow {
    mem_link_t *link;
    weft_remote_t *remote; /* one of the two; may be changed for what is posted later */
    weft_mirror_t *mirror;
    mem_slot_t slots[MEM_WINDOW];
    uint64_t began, ended; /* slots: began - ended are under way */
} mem_flow_t;

bool mem_flow_init(mem_flow_t *f, mem_link_t *l);
/* Ends what is under way, and gives the buffers back. */
void mem_flow_free(mem_flow_t *f);
/* A slot to fill and to post: NULL while all are under way. */
mem_slot_t *mem_flow_free_slot(mem_flow_t *f);
weft_status_t mem_flow_write(mem_flow_t *f, uint64_t offset, size_t len);
weft_status_t mem_flow_read(mem_flow_t *f, uint64_t offset, size_t len);
/* Wait for the oldest: WEFT_OK and *slot_out, whose bytes are good until the next post; NULL when none is under way. */
weft_status_t mem_flow_next(mem_flow_t *f, mem_slot_t **slot_out);

/* A mirror on all servers of the link; len 0: it is there already. */
weft_status_t mem_mirror_open(mem_link_t *l, const char *name, uint64_t len, bool write, weft_mirror_t **mirror_out);

/* --- showing ---------------------------------------------------------------------------------------------- */

/* "1.5 GiB", "17 B". Returns buf. */
const char *mem_size_text(double bytes, char *buf, size_t cap);
/* "3d 4h", "12 s". */
const char *mem_age_text(uint64_t ns, char *buf, size_t cap);

typedef struct mem_meter {
    const char *verb, *name;
    uint64_t total; /* 0: not known */
    uint64_t start_ns, shown_ns;
    bool terminal, shown;
} mem_meter_t;

void mem_meter_start(mem_meter_t *m, const char *verb, const char *name, uint64_t total, bool quiet);
void mem_meter_show(mem_meter_t *m, uint64_t done);
/* Takes the bar away; seconds since the start. */
double mem_meter_end(mem_meter_t *m);

/* What a put or a get came to: a line on stdout, or on stderr where stdout has the bytes. */
void mem_report_transfer(const mem_opts_t *opts, FILE *f, const char *verb, const char *name, uint64_t bytes, double seconds,
                         const char *path);

void mem_stats_json(tool_json_t *j, const weft_store_stats_t *s);

#endif
