/* tests/wire/lib/keeper.h - a memory server and a client of it, on the two runtimes of a pair. Everything here ends the test if
 * it fails. */
#ifndef WEFT_TEST_KEEPER_H
#define WEFT_TEST_KEEPER_H

#include <weft/elements.h>

#include "pair.h"

typedef struct keeper {
    pair_t pair;                 /* rt[0] serves, rt[1] is the client's */
    weft_store_server_t *server;
    weft_store_t *store;
} keeper_t;

/* opts NULL: 64 MiB. lease_ns 0: the server's. */
void keeper_open(keeper_t *k, const pair_way_t *way, const weft_store_server_opts_t *opts, uint64_t lease_ns);
void keeper_close(keeper_t *k);

/* Drive both until op is complete: its status. */
weft_status_t keeper_wait(keeper_t *k, weft_op_t *op);
weft_store_t *keeper_store(keeper_t *k, const weft_store_opts_t *opts);
/* Allocate: the block; or what it came to, in *status_out (may be NULL: it must succeed). */
weft_block_t *keeper_alloc(keeper_t *k, weft_store_t *store, const char *name, uint64_t len, bool shared,
                           weft_status_t *status_out);
weft_block_t *keeper_find(keeper_t *k, weft_store_t *store, const char *name, weft_status_t *status_out);
weft_status_t keeper_extend(keeper_t *k, weft_block_t *block, uint64_t len);
weft_status_t keeper_free(keeper_t *k, weft_block_t *block);
weft_status_t keeper_remove(keeper_t *k, weft_store_t *store, const char *name);
weft_status_t keeper_write(keeper_t *k, weft_remote_t *remote, uint64_t offset, const void *buf, size_t len);
weft_status_t keeper_read(keeper_t *k, weft_remote_t *remote, uint64_t offset, void *buf, size_t len);
/* All of it is zero. */
void keeper_zero(keeper_t *k, weft_remote_t *remote, uint64_t offset, uint64_t len);
weft_store_stats_t keeper_stats(keeper_t *k);

#endif
