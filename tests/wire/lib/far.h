/* tests/wire/lib/far.h - memory of one runtime seen from another: a pair, and regions, keys and remotes on every path that its
 * way has.
 *
 * The owner is far.pair.rt[0]. Everything here that is said to do something ends the test if that fails. */
#ifndef WEFT_TEST_FAR_H
#define WEFT_TEST_FAR_H

#include <weft/rma.h>

#include "pair.h"

/* The ways of a pair, each with the paths there are on it. */
typedef struct far_way {
    const pair_way_t *pair;
    weft_rma_path_t path;
} far_way_t;
enum { FAR_WAYS = 8 };
extern const far_way_t far_ways[FAR_WAYS];
unsigned far_ways_here(void); /* how many of them: those over UCX have no TLS */
#define each_far(way) for (const far_way_t *way = far_ways; way < far_ways + far_ways_here(); way++)

typedef struct far {
    pair_t pair;
    const far_way_t *way;
    weft_op_t op; /* of the last access, for its len and tag */
} far_t;
extern far_t far;

/* On the native path both runtimes have a key, and trust their fabric. */
void far_open(const far_way_t *way, const weft_runtime_opts_t *opts);
void far_close(void);

/* A region of the library's memory, and one with options. */
weft_region_t *far_region(uint64_t len);
weft_region_t *far_region_with(const weft_region_opts_t *opts);
void far_free(weft_region_t *region);
void far_revoke(weft_region_t *region);
weft_region_info_t far_region_info(const weft_region_t *region);
weft_remote_info_t far_info(const weft_remote_t *remote);

typedef struct far_key {
    size_t len;
    uint8_t bytes[WEFT_REGION_KEY_MAX];
} far_key_t;
far_key_t far_key(weft_region_t *region, const weft_region_key_opts_t *opts);

/* Attach over ep, on a path: what it came to. */
weft_status_t far_try(weft_ep_t *ep, const void *key, size_t len, weft_rma_path_t path, weft_remote_t **remote_out);
/* Attach from far.pair.rt[1], on the way's path. */
weft_remote_t *far_attach(weft_region_t *region, const weft_region_key_opts_t *opts);
/* A path by name, and what it came to. */
weft_status_t far_find(const char *name, weft_rma_path_t path, weft_remote_t **remote_out);

/* What a post came to, in the end. */
weft_status_t far_end(weft_status_t posted, weft_op_t *op);
/* One access, in far.op. */
weft_status_t far_read(weft_remote_t *remote, uint64_t offset, void *buf, size_t len);
weft_status_t far_write(weft_remote_t *remote, uint64_t offset, const void *buf, size_t len);
weft_status_t far_atomic(weft_remote_t *remote, weft_rma_atomic_t which, uint64_t offset, size_t width, uint64_t operand,
                         uint64_t compare);
weft_status_t far_flush(weft_remote_t *remote);

#endif
