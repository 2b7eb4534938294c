/* tests/matrix/lib/world.h - two runtimes in one process that face each other, each with one of everything that a row needs.
 *
 * Both sides have the same, so that either can be called from the other. Everything here that is said to do something ends the
 * cell if that fails. */
#ifndef WEFT_TEST_WORLD_H
#define WEFT_TEST_WORLD_H

#include <stdatomic.h>
#include <weft/elements.h>
#include <weft/weft.h>

/* What a row needs. What that needs itself comes with it. */
enum {
    NEEDS_LISTENER = 1 << 0,   /* listener, and uri */
    NEEDS_EP = 1 << 1,         /* ep, connected with the other side's */
    NEEDS_QUEUE = 1 << 2,      /* queue, empty */
    NEEDS_TOKEN = 1 << 3,      /* token */
    NEEDS_TIMER = 1 << 4,      /* timer, an operation under way that nothing ends soon */
    NEEDS_POOL = 1 << 5,       /* pool, and a buffer of it */
    NEEDS_REG = 1 << 6,        /* reg */
    NEEDS_MSG = 1 << 7,        /* msg, claimed; made, received */
    NEEDS_AM = 1 << 8,         /* am, taken; its payload is still at the sender */
    NEEDS_REGION = 1 << 9,     /* region, and a key for it */
    NEEDS_REMOTE = 1 << 10,    /* remote, of the other side's region */
    NEEDS_REGISTRY = 1 << 11,  /* registry, with an entry of ours */
    NEEDS_WATCH = 1 << 12,     /* watch */
    NEEDS_SERVICE = 1 << 13,   /* service */
    NEEDS_CLIENT = 1 << 14,    /* client of the other side's service, its methods, a reply and the item of a stream */
    NEEDS_REQUEST = 1 << 15,   /* request, kept and not answered; its arguments are still at the caller */
    NEEDS_STREAM = 1 << 16,    /* stream, of a call that the other side does not answer */
    NEEDS_SERVER = 1 << 17,    /* server, of blocks */
    NEEDS_STORE = 1 << 18,     /* store, at the other side's server */
    NEEDS_BLOCK = 1 << 19,     /* block in it, with a name */
    NEEDS_MIRROR = 1 << 20,    /* mirror in it, of one member */
    NEEDS_MEMORY = 1 << 21,    /* memory, an element */
    NEEDS_ACTION = 1 << 22,    /* action, and a transport of it that nobody has configured */
    NEEDS_TRANSPORT = 1 << 23, /* transport to the other side's memory, READY, with a buffer */
    NEEDS_SERVED = 1 << 24,    /* served, a transport that is a server */
    NEEDS_SIG = 1 << 25        /* sig */
};

typedef struct world world_t;
typedef struct side side_t;

struct side {
    world_t *w;
    side_t *other;
    weft_runtime_t *rt;
    _Atomic bool drive;          /* world_drive() drives it */

    weft_listener_t *listener;
    char uri[256];
    weft_ep_t *ep;
    weft_ep_id_t ep_id;
    weft_queue_t *queue;
    weft_token_t *token;
    weft_op_t timer;
    weft_pool_t *pool;
    _Atomic(void *) pooled;
    _Atomic(weft_mem_reg_t *) reg;
    void *reg_memory;

    _Atomic(weft_msg_t *) msg;
    _Atomic(void *) made;        /* a buffer that the library made for a message */
    _Atomic(weft_am_t *) am;
    weft_op_t am_sent;           /* of the other side's am */
    weft_region_t *region;
    uint8_t region_key[WEFT_REGION_KEY_MAX];
    size_t region_key_len;
    weft_remote_t *remote;

    weft_registry_t *registry;
    weft_watch_t *watch;
    weft_service_t *service;
    weft_client_t *client;
    weft_method_t *add, *hold, *talk;
    weft_reply_t reply;          /* of a call that is complete; it holds memory */
    _Atomic bool reply_released;
    weft_item_t item;            /* received; it holds memory */
    _Atomic bool item_released;
    _Atomic(weft_request_t *) request; /* of the other side's call of `hold` */
    weft_reply_t hold_reply;
    weft_op_t hold_op;
    _Atomic(weft_request_t *) talking; /* of the other side's call of `talk` */
    weft_reply_t talk_reply;
    weft_op_t talk_op;
    _Atomic(weft_stream_t *) stream;

    weft_store_server_t *server;
    weft_store_t *store;
    weft_block_t *block;
    weft_mirror_t *mirror;
    weft_memory_t *memory;
    char durl[WEFT_DURL_MAX + 1]; /* of memory */
    weft_action_t *action;
    weft_transport_t *waiting, *transport, *served;
    _Atomic(weft_buffer_t *) buffer; /* a hold on the transport's */
    weft_sig_t *sig;
};

struct world {
    weft_progress_mode_t mode;
    const char *transports;
    uint64_t needs;
    side_t side[2];
};

/* Open both sides in a mode, connected over a transport, with what is needed. */
void world_open(world_t *w, weft_progress_mode_t mode, const char *transports, uint64_t needs);
/* Drive the sides that are to be driven once, or take a little time where there is none. */
void world_drive(world_t *w);
/* Drive until it is complete: it must succeed. `what` is for people. */
void world_wait(world_t *w, weft_op_t *op, const char *what);
/* Drive until it is complete, however that ends. */
weft_status_t world_end(world_t *w, weft_op_t *op, const char *what);
/* Drive until *there, as world_wait(). */
void world_until(world_t *w, bool (*there)(void *arg), void *arg, const char *what);

/* Close everything of a side but its runtime, in order, and wait for each to be closed. The handles stay as they were. */
void world_close_objects(side_t *s);
/* Close its endpoint, and leave all else. */
void world_close_endpoint(side_t *s);
/* Close a runtime, if it is not. */
void world_close_runtime(side_t *s);
/* Both sides still reach each other: bytes go over and back, if they are connected. */
void world_check(world_t *w);

#endif
