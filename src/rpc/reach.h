/* rpc/reach.h - how a client finds its servers: what reach.c and target.c share. */
#ifndef WEFTI_RPC_REACH_H
#define WEFTI_RPC_REACH_H

#include "rpc/client.h"

#define RPC_PAUSE_MOST (5 * WEFT_SECOND) /* between two tries */

/* Of a client that finds its servers itself; its `reach`. */
typedef struct reach {
    weft_client_t *client;
    weft_runtime_t *rt;
    wefti_call_t call;         /* to its beginning */
    weft_registry_t *registry; /* NULL: at an address */
    bool configured;           /* it is the runtime's, counted */
    weft_watch_t *watch;
    weft_op_t look; /* asks the registry again */
    bool looking;   /* it is under way */
    bool closing;
    wefti_list_t targets;
    uint32_t most; /* connected at a time */
    uint64_t first_pause;
    wefti_timer_t fill_timer, look_timer;
    weft_status_t why; /* how the last try failed, and where; for people */
    char where[WEFTI_REACH_MAX];
    char address[]; /* "": through the registry */
} reach_t;

enum { TARGET_IDLE, TARGET_DIALLING, TARGET_UP, TARGET_CLOSING, TARGET_PAUSE };
typedef struct target {
    wefti_list_t link;
    reach_t *reach;       /* NULL: the runtime closes, and only conn knows it still */
    rpc_server_t *server; /* while UP, and not lost yet */
    weft_ep_t *ep;        /* DIALLING, UP */
    uint8_t state;
    bool gone;
    uint32_t load;
    uint64_t pause; /* the next one */
    uint64_t up_at;
    wefti_timer_t timer; /* always armed: so that arming it cannot fail */
    weft_op_t connect, close;
    char instance[RPC_NAME];
    char address[];
} target_t;

/* target.c. NULL: no memory. */
target_t *wefti_rpc_target_new(reach_t *r, const char *instance, const char *address, uint32_t load);
void wefti_rpc_target_free(target_t *t);
/* Let go of its connection, whatever became of it. */
void wefti_rpc_target_hang_up(target_t *t, weft_status_t why);
/* It went: no new calls; when the last that is under way has ended, its connection goes, and it too. */
void wefti_rpc_target_leave(target_t *t);
/* It is back where it was, before it was gone. */
void wefti_rpc_target_stay(target_t *t, uint32_t load);
/* Connect, while fewer are connected than may be: now, or after everything that is to be said now. */
void wefti_rpc_reach_fill(reach_t *r);
void wefti_rpc_reach_fill_soon(reach_t *r);
void wefti_rpc_reach_fill_due(wefti_timer_t *timer);
/* reach.c: a client that closes is free of it when nothing is left. */
void wefti_rpc_reach_finish(reach_t *r);

#endif
