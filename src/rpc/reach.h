/* rpc/reach.h - how a client finds its servers: what reach.c and target.c share. */
#ifndef WEFTI_RPC_REACH_H
#define WEFTI_RPC_REACH_H

#include "rpc/client.h"

#define RPC_PAUSE_MOST (5 * WEFT_SECOND) /* between two tries */

/* Of a client that finds its servers itself; its `reach`. */
typedef struct reach {
    weft_client_t *client;
    weft_runtime_t *rt;
    wefti_call_t call;         /* begins it on the driver */
    weft_registry_t *registry; /* NULL: at an address */
    weft_watch_t *watch;
    weft_op_t look; /* asks the registry again */
    bool looking;   /* it is under way */
    bool closing;
    wefti_list_t targets;
    uint32_t most; /* instances connected at a time */
    uint32_t connections; /* to each */
    uint64_t first_pause;
    wefti_timer_t fill_timer, look_timer;
    weft_status_t why; /* how the last try failed, and where: for sentences */
    char where[WEFTI_REACH_MAX];
    char address[]; /* "": through the registry */
} reach_t;

enum { TARGET_IDLE, TARGET_DIALLING, TARGET_UP, TARGET_CLOSING, TARGET_PAUSE };
typedef struct target {
    wefti_list_t link;
    reach_t *reach;       /* NULL: the runtime closes, and only its endpoint refers to it */
    rpc_server_t *server; /* while UP, and not lost yet */
    weft_ep_t *ep;        /* DIALLING, UP */
    uint8_t state;
    bool gone;
    uint32_t load;
    uint32_t nth;         /* connection to its instance; those after the first are made when that is */
    weft_ep_id_t was;     /* what the server called the last one; 0: there was none. The next one goes to the same shard, which
                             remembers calls that were made with `once` */
    uint64_t pause; /* the next one */
    uint64_t up_at;
    wefti_timer_t timer; /* always armed: so that arming it cannot fail */
    weft_op_t connect, close;
    char instance[RPC_NAME];
    char address[];
} target_t;

/* reach.c: weft_client_open() on one shard. */
weft_status_t wefti_rpc_reach_open(weft_runtime_t *rt, const char *uri, const weft_client_opts_t *opts,
                                   weft_client_t **client_out);

/* target.c. NULL: no memory. */
target_t *wefti_rpc_target_new(reach_t *r, const char *instance, uint32_t nth, const char *address, uint32_t load);
void wefti_rpc_target_free(target_t *t);
/* Close its connection, in whatever state it is. */
void wefti_rpc_target_hang_up(target_t *t, weft_status_t why);
/* It is not in the registry any more: no new calls. When the last call has ended, its connection is closed and it is freed. */
void wefti_rpc_target_leave(target_t *t);
/* It is in the registry again before it was freed. */
void wefti_rpc_target_stay(target_t *t, uint32_t load);
/* Connect, while fewer are connected than may be: now, or after the registry has said everything that it has to say now. */
void wefti_rpc_reach_fill(reach_t *r);
void wefti_rpc_reach_fill_soon(reach_t *r);
void wefti_rpc_reach_fill_due(wefti_timer_t *timer);
/* reach.c: something ended; is a client that closes done? */
void wefti_rpc_reach_finish(reach_t *r);

#endif
