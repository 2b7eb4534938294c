/* tests/wire/lib/spread.h - a runtime with several shards, and a peer with one connection or more to each of them. */
#ifndef WIRE_SPREAD_H
#define WIRE_SPREAD_H

#include <weft/weft.h>

enum { SPREAD_SHARDS = 4, SPREAD_PEERS = 12 };

typedef struct spread {
    weft_runtime_t *server, *client;        /* with shards; with one */
    weft_ep_t *theirs[SPREAD_PEERS];        /* the server's endpoints, on all shards */
    weft_ep_t *ours[SPREAD_PEERS];          /* the client's ends of the same connections */
} spread_t;

/* A runtime over these transports; failures end the test, here and below. */
weft_runtime_t *spread_runtime(uint32_t shards, const char *transports, weft_progress_mode_t progress);
/* Wait for an operation, for a minute at most, if it was posted. */
weft_status_t spread_done(weft_status_t posted, weft_op_t *op);
/* The region with this name, by this path; its status, and NULL where it is not WEFT_OK. */
weft_status_t spread_attach(weft_ep_t *ep, const char *name, weft_rma_path_t path, weft_remote_t **remote_out);

/* `way`: "tcp" or "shm". Checks that every shard has an endpoint. */
void spread_open(spread_t *s, const char *way);
/* Closes what is not NULL. */
void spread_close(spread_t *s);
/* The number of the shard that has this endpoint of the server. */
unsigned spread_shard(const weft_ep_t *ep);
/* No wait and no sleep of this runtime ended only because it looks again after a while. */
void spread_check_wakeups(weft_runtime_t *rt);

#endif
