/* store/state.h - what store keeps: per runtime, per endpoint; a server with its clients and blocks; a client's stores,
 * requests and blocks.
 *
 * The client's side belongs to the driver, except where it says otherwise: of several shards to that of the endpoint, and
 * mirrors to the head's. The server's side is the head's. Drivers of all shards change it, each for its peers, and any thread
 * that asks for statistics reads it: the lock of the head's store_state_t is held for each request, timer and completion.
 * Nothing calls back while it is held. */
#ifndef WEFTI_STORE_STATE_H
#define WEFTI_STORE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <weft/am.h>
#include <weft/config.h>
#include <weft/extend.h>
#include <weft/policy.h>
#include <weft/rma.h>
#include <weft/runtime.h>
#include <weft/store.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/slots.h"
#include "base/handle.h"
#include "base/opts.h"
#include "base/rng.h"
#include "store/store.h"
#include "store/wire.h"

/* Requests of one endpoint that may be under way. A server drops the connection to a peer that has so many times more of them,
 * which no library of ours does: what it owes to one peer is bounded. */
#define STORE_ASKS 64u
#define STORE_OWED (4u * STORE_ASKS)
#define STORE_CLIENTS_PER_EP 64u

/* --- per runtime, per endpoint  --------------------------------------------------------------------------------------- */

#define STORE_UNANSWERED 16u

typedef struct store_state store_state_t;
struct store_state {
    weft_runtime_t *rt;          /* a shard */
    store_state_t *head;         /* of the first shard: itself, where there is one */
    wefti_list_t stores;         /* weft_store_t.all_link: those that the program has; the driver's */
    wefti_list_t alarms;         /* store_alarm_t.link: alarm.c; under the head's lock */
    _Atomic uint32_t under_way;  /* operations of ours, below, whose completion has not been delivered yet */
    uint8_t secret[32];          /* ids are made of it; written once */
    _Atomic uint64_t ids;
    /* endpoints to break, since there was no memory to answer them: serve.c; under the head's lock */
    weft_ext_call_t break_call;
    uint32_t n_unanswered;
    weft_ep_id_t unanswered[STORE_UNANSWERED];
    /* the head's */
    pthread_mutex_t lock;        /* of `server` and all that is its own */
    weft_store_server_t *server; /* NULL: we serve nothing */
    wefti_list_t mirrors;        /* weft_mirror_t.link; the driver's */
    store_state_t *shards[WEFT_SHARDS_MAX]; /* written while the runtime opens */
    wefti_rng_t rng;             /* the driver's */
    weft_op_t handle_op[2];
};

extern const weft_ext_t wefti_store_ext; /* store.c */
/* Of a runtime that stays for as long as this is looked at. NULL: it was opened before this library was loaded. */
static inline store_state_t *store_state(const weft_runtime_t *rt)
{
    return (store_state_t *)weft_ext_state(rt, &wefti_store_ext);
}
static inline void store_begin(store_state_t *ss) { atomic_fetch_add_explicit(&ss->under_way, 1, memory_order_relaxed); }
static inline void store_end(store_state_t *ss) { atomic_fetch_sub_explicit(&ss->under_way, 1, memory_order_relaxed); }

typedef struct store_ep {
    /* ours: what we ask of the peer */
    wefti_slots_t asked;         /* id -> store_ask_t, cancelled ones too until they are answered */
    wefti_list_t waiting, sent;  /* store_ask_t.link */
    wefti_list_t stores;         /* weft_store_t.ep_link */
    /* the peer's: what it asks of us */
    wefti_list_t clients;        /* store_client_t.ep_link; under the head's lock */
    uint32_t n_clients;          /* likewise */
    uint32_t owed;               /* replies that have not left; the driver's */
} store_ep_t;

static inline store_ep_t *store_ep(const weft_ep_t *ep) { return (store_ep_t *)weft_ext_ep_state(ep, &wefti_store_ext); }

/* The state of the shard whose driver this is; NULL: it is none. alarm.c */
store_state_t *wefti_store_here(const store_state_t *ss);

/* alarm.c: a timer of the server's side, on the shard whose driver set it last. All of it under the lock. */
typedef struct store_alarm store_alarm_t;
typedef void (*store_alarm_fn)(void *user, uint64_t when);
/* Have fn called, with the lock, once: at `when`, or soon after, which it is told. *alarm: the caller's, NULL at first; it is
 * NULL again when the alarm is stopped, or its shard has closed. One that is set is moved: on the driver that set it that cannot
 * fail; on another it is set anew there. WEFT_ERR_NOMEM: as it was. */
weft_status_t wefti_store_alarm_set(store_state_t *ss, store_alarm_t **alarm, uint64_t when, store_alarm_fn fn, void *user);
/* Is it set by the driver that this is? */
bool wefti_store_alarm_here(const store_state_t *ss, const store_alarm_t *alarm);
void wefti_store_alarm_stop(store_alarm_t **alarm); /* NULL is allowed */
void wefti_store_alarms_free(store_state_t *ss);    /* the shard has closed */

/* --- a server  -------------------------------------------------------------------------------------------------------- */

/* Who asked, to reply to later. */
typedef struct store_asker {
    weft_ep_id_t ep;
    uint64_t id;
    uint8_t kind;
} store_asker_t;

/* Names in order: names.c. */
typedef struct store_held store_held_t;
typedef struct store_names {
    store_held_t **at;
    size_t n, cap;
} store_names_t;

struct weft_store_server {
    wefti_handle_t handle;       /* open until the program closes it */
    weft_runtime_t *rt;          /* up to here it can be read when it was freed */
    store_state_t *ss;
    weft_store_server_opts_t opts;
    uint8_t id[WEFT_STORE_ID];
    uint8_t hash_key[16];        /* of the map of clients, whose ids strangers choose */
    wefti_map_t clients;         /* keyed hash of its id -> store_client_t */
    wefti_list_t client_list;    /* store_client_t.link */
    uint32_t n_clients;
    wefti_slots_t blocks;        /* id -> store_held_t, those that are being freed not */
    wefti_list_t block_list;     /* store_held_t.link, the same */
    store_names_t names;
    uint64_t reserved;           /* address space of all blocks */
    uint32_t n_mapped, max_mapped; /* blocks that cost a file descriptor */
    uint32_t n_freeing;          /* blocks whose memory is not back yet */
    uint64_t back_bytes;         /* of used_bytes: theirs */
    wefti_list_t later;          /* requests that wait for them: later.c */
    uint32_t n_setting;          /* revokes that a reply waits for: replica.c */
    uint64_t born;
    weft_store_stats_t stats;    /* what is counted; used_bytes and shared_blocks too */
    bool closing;
    weft_op_t *close_op;         /* NULL: nobody waits */
};

typedef struct store_client {
    weft_store_server_t *server;
    uint8_t id[WEFT_STORE_ID];
    uint64_t key;                /* in the map */
    weft_ep_t *ep;               /* over which it is here now; NULL: none */
    store_ep_t *at;              /* of `ep` */
    wefti_list_t link, ep_link;
    wefti_list_t paid;           /* store_held_t.paid_link: blocks that count against it, shared ones too */
    uint64_t lease_ns;
    uint64_t until;              /* its lease, where that runs */
    store_alarm_t *lease;
    bool timed;                  /* its lease runs while `ep` is there, too */
    uint64_t bytes, back_bytes;  /* back: of those that are being freed */
    uint32_t n_blocks, back_blocks;
} store_client_t;

typedef struct store_replica store_replica_t; /* replica.c */

/* A block. */
struct store_held {
    weft_store_server_t *server;
    uint64_t id;
    weft_region_t *region;
    uint64_t len, max_len;
    uint64_t charge;             /* len in whole pages */
    uint64_t reserved;
    uint64_t born;
    store_client_t *payer;       /* NULL: its lease is over. Of one that is not shared: the owner */
    uint64_t who;                /* whose peer allocated it: wefti_store_who() */
    bool shared, mapped;
    store_replica_t *replica;    /* NULL: it is none */
    wefti_list_t link, paid_link;
    /* while it is freed */
    bool freeing;
    weft_op_t free_op;
    store_asker_t asker;         /* .ep 0: nobody */
    uint8_t name_len;            /* 0: it has none */
    char name[WEFT_RMA_NAME_MAX];
};

/* serve.c */
void wefti_store_request(weft_am_t *am, void *user);  /* a handler of active messages */
/* Answer a request, now or later. ss: the head's. Under the lock. False: it is none. */
bool wefti_store_serve(store_state_t *ss, weft_ep_t *ep, const void *bytes, size_t n);
void wefti_store_reply(store_state_t *ss, weft_ep_id_t to, const store_reply_t *reply);
void wefti_store_break_called(weft_ext_call_t *call); /* store_state_t.break_call */
void wefti_store_server_count(weft_store_server_t *s, weft_store_stats_t *out); /* under the lock */

/* rules.c, under the lock. A number for the identity of a peer; 0: it is gone. */
uint64_t wefti_store_who(const weft_ep_t *ep);
/* Does the policy allow the request? WEFT_ERR_PERMISSION; _LIMIT: it would have more bytes than a rule lets it. *rights_out is
 * set where it may have less than all. */
weft_status_t wefti_store_rules(const weft_store_server_t *s, const store_client_t *c, weft_ep_t *ep, const store_request_t *q,
                                uint32_t *rights_out);
bool wefti_store_rules_lists(const store_held_t *b, const store_client_t *c, weft_ep_t *ep); /* may it hear of the block? */

/* server.c */
void wefti_store_server_settle(weft_store_server_t *s); /* something ended: it may be closed and gone after this */
void wefti_store_server_shutdown(store_state_t *ss);
void wefti_store_server_gone(store_state_t *ss); /* the runtime has ended, and a server that is still there with it */

/* lease.c */
/* NULL: none, or its lease is over */
store_client_t *wefti_store_client(weft_store_server_t *s, const uint8_t id[WEFT_STORE_ID]);
/* A new one, or one that comes back. WEFT_ERR_LIMIT, _NOMEM. */
weft_status_t wefti_store_client_open(weft_store_server_t *s, weft_ep_t *ep, const uint8_t id[WEFT_STORE_ID], uint64_t lease_ns,
                                      bool timed, store_client_t **client_out);
void wefti_store_client_renew(store_client_t *c);
/* It ends: what is its own is freed. expired: counted as that. */
void wefti_store_client_end(store_client_t *c, bool expired);
void wefti_store_clients_down(weft_ep_t *ep); /* the endpoint is down; under the lock */

/* blocks.c */
#define STORE_PAGE UINT64_C(4096)
/* WEFT_ERR_INVALID, _STATE, _LIMIT, _NOMEM */
weft_status_t wefti_store_block_new(weft_store_server_t *s, store_client_t *c, const store_request_t *q, bool shared,
                                    bool unmapped, store_held_t **block_out);
weft_status_t wefti_store_block_extend(store_held_t *b, store_client_t *c, uint64_t len); /* WEFT_ERR_RANGE, _LIMIT */
/* It gets that name and belongs to nobody. WEFT_ERR_INVALID, _STATE, _NOMEM. */
weft_status_t wefti_store_block_share(store_held_t *b, const store_client_t *c, const store_request_t *q);
/* Give its memory back. `asker` (may be NULL) gets its reply when that is done. */
void wefti_store_block_free(store_held_t *b, const store_asker_t *asker);
void wefti_store_block_forget(store_held_t *b); /* the runtime closes, and its region with it */
void wefti_store_block_unpaid(store_held_t *b); /* its payer ends; it stays */
/* Fill in the reply: its numbers and a key (key has WEFT_REGION_KEY_MAX bytes). */
weft_status_t wefti_store_block_tell(store_held_t *b, uint32_t rights, uint8_t *key, store_reply_t *reply);
void wefti_store_block_count(const store_held_t *b, weft_store_stats_t *stats); /* add what was done to it */

/* It asks for memory that is not there, and will be when what is being freed is gone. */
bool wefti_store_block_fits_later(const weft_store_server_t *s, const store_client_t *c, const store_request_t *q);

/* later.c */
/* Keep the request until memory is back, if it then fits. False: it is to be answered now. */
bool wefti_store_later(weft_store_server_t *s, const store_client_t *c, weft_ep_id_t ep, const store_request_t *q,
                       const void *bytes, size_t n);
void wefti_store_later_again(weft_store_server_t *s); /* a block is gone, or nobody is to wait any longer */
/* That endpoint (0: every one) is not answered any more: forget what it asked for. */
void wefti_store_later_down(weft_store_server_t *s, weft_ep_id_t ep);

/* names.c */
int wefti_store_names_order(const char *a, size_t a_len, const char *b, size_t b_len); /* < 0: a comes before b */
weft_status_t wefti_store_names_add(store_names_t *names, store_held_t *b); /* WEFT_ERR_STATE: it is taken; _NOMEM */
void wefti_store_names_remove(store_names_t *names, store_held_t *b);
store_held_t *wefti_store_names_find(const store_names_t *names, const char *name, size_t n);
/* Index of the first that is not before `name`; exact_out (may be NULL): it is that one. */
size_t wefti_store_names_from(const store_names_t *names, const char *name, size_t n, bool *exact_out);

/* replica.c */
void wefti_store_replica_request(weft_store_server_t *s, store_client_t *c, const store_asker_t *to, const store_request_t *q);
void wefti_store_replica_free(store_held_t *b);

/* --- a client  -------------------------------------------------------------------------------------------------------- */

typedef struct store_ask store_ask_t;

/* It outlives its runtime, if blocks of it do. */
struct weft_store {
    wefti_handle_t handle;       /* open until the program closes it or leaves */
    weft_runtime_t *rt;          /* its endpoint's shard; up to here it can be read when it was freed */
    uint32_t rt_use;             /* weft_ext_use(rt): another number is another runtime */
    store_state_t *ss;           /* of rt, while that is there */
    weft_ep_t *ep;               /* NULL once it is down; the driver's */
    weft_ep_id_t ep_id;
    uint8_t id[WEFT_STORE_ID], server[WEFT_STORE_ID];
    uint64_t lease_ns;           /* written before the program has it */
    _Atomic int32_t state;       /* weft_status_t */
    _Atomic uint32_t refs;       /* the program's, one per request, one per block */
    bool manual, fresh;          /* fresh: the id is one that we made */
    bool renewing;
    weft_ext_timer_t renew;
    wefti_list_t all_link, ep_link;
    store_ask_t *bye;            /* for the close, which cannot fail because there is no memory */
};

/* What a block reaches: a new one with each extension, the old ones stay with the block, for those who still use them. */
typedef struct store_reach {
    struct store_reach *older;
    weft_remote_t *remote;
    uint64_t len;
    uint32_t key_len;
    uint8_t key[];
} store_reach_t;

struct weft_block {
    wefti_handle_t handle;       /* open until the program frees or drops it; the last field that can be read when it was freed */
    weft_store_t *store;
    uint64_t id;
    _Atomic(store_reach_t *) reach;
    _Atomic uint32_t refs;       /* the program's, and one per request about it */
};

typedef enum store_ask_state {
    ASK_NEW,
    ASK_WAITING,  /* store_ep_t.waiting: for the connection, or for others to be answered */
    ASK_SENT,     /* store_ep_t.sent: `id` awaits its reply */
    ASK_ATTACHING /* on no list */
} store_ask_state_t;

/* One request. It lives until it was answered, or its endpoint is down, and nothing of it is under way below. */
struct store_ask {
    store_ask_state_t state;
    weft_op_t *op;               /* NULL: nobody waits (any more) */
    weft_store_t *store;         /* a reference */
    weft_block_t *block;         /* a reference, or NULL */
    store_reach_t *reach;        /* while it is attached */
    wefti_list_t link;
    uint64_t id;
    uint8_t kind;
    bool sending, owning;        /* `am`, `own` is under way */
    bool over;                   /* free it when nothing of it is under way any more */
    bool repeat;                 /* send it again when `am` is done */
    bool renewal;                /* the store's own */
    uint64_t sentence;           /* what its operation says if it fails; 0: nothing more than its status */
    uint8_t again;               /* FIND: so often it was asked again */
    void *out;                   /* the caller's: statistics, a wefti_replica_answer_t */
    weft_block_fn fn;            /* LIST */
    void *fn_user;
    uint64_t count;
    weft_op_t am, attach, own;   /* own: stands for the program's, where it gave none */
    store_request_t q;           /* name and after point to `names` */
    char names[2][WEFT_RMA_NAME_MAX + 1];
    uint8_t bytes[STORE_REQUEST_MAX];
};

/* refusal.c */
/* what it says when it now completes */
uint64_t wefti_store_refusal(const store_ask_t *a, const weft_ep_t *ep, const store_reply_t *p);

/* ask.c */
/* A request, not sent. name may be NULL; store: NULL for one that is kept for later, wefti_store_ask_of() gives it one. NULL:
 * no memory. */
store_ask_t *wefti_store_ask_new(weft_store_t *store, uint8_t kind, const char *name);
void wefti_store_ask_of(store_ask_t *a, weft_store_t *store);
/* The same for a call of the program's, which may come at any time: WEFT_ERR_INVALID (a NULL), _CLOSED, _FORKED, _NOMEM. */
weft_status_t wefti_store_ask_for(weft_store_t *store, const weft_op_t *op, uint8_t kind, const char *name,
                                  store_ask_t **ask_out);
/* A request that is only a kind and a name, posted. `what` the name is of: for a sentence. */
weft_status_t wefti_store_ask_name(weft_store_t *store, uint8_t kind, const char *name, const char *what, weft_op_t *op);
void wefti_store_ask_drop(store_ask_t *a); /* one that was not posted */
/* Post it as `op`; NULL: nobody waits. WEFT_ERR_CLOSED, _FORKED: the runtime is gone. On an error nothing was started, and the
 * request is still the caller's. Any thread. */
weft_status_t wefti_store_ask_post(store_ask_t *a, weft_op_t *op);
/* The same, and on an error it is dropped. */
weft_status_t wefti_store_ask_go(store_ask_t *a, weft_op_t *op);
/* Ask about a replica: q has the kind, STORE_R_*, and its fields (replica.h). *out is borrowed until op completes. The caller has
 * a reference to the store. Any thread. */
weft_status_t wefti_store_replica_ask(weft_store_t *store, const char *name, const store_request_t *q,
                                      wefti_replica_answer_t *out, weft_op_t *op);
void wefti_store_ask_send(store_ask_t *a); /* on the driver; a->op is NULL, or under way */
/* The same for one that was answered, and goes on: when the network has done with its bytes. */
void wefti_store_ask_again(store_ask_t *a);
void wefti_store_ask_end(store_ask_t *a, weft_status_t status); /* completes its operation, if there is one; it may be gone
                                                                   after this */
void wefti_store_replied(weft_am_t *am, void *user); /* a handler of active messages */
void wefti_store_asks_flush(weft_ep_t *ep); /* send as many of the waiting requests as may be under way */
void wefti_store_asks_down(weft_ep_t *ep, weft_status_t why);
weft_status_t wefti_store_check_name(const char *name, const char *what);

/* client.c */
void wefti_store_answer(store_ask_t *a, const store_reply_t *p); /* ends the request, or goes on with it */
void wefti_store_closing(weft_store_t *store);                   /* its close starts */
void wefti_store_random_id(store_state_t *ss, uint8_t id_out[WEFT_STORE_ID]); /* any thread */
void wefti_store_unref(weft_store_t *store);
/* Give back what nobody waited for: STORE_CLOSE, the lease; STORE_FREE, a block. The driver's. */
void wefti_store_give_back(weft_store_t *store, uint8_t kind, uint64_t block);
/* For calls of any thread: the store is open, and stays as it is until wefti_store_leave(), which follows soon.
 * WEFT_ERR_INVALID, _CLOSED, _FORKED. */
weft_status_t wefti_store_enter(const weft_store_t *store);
static inline void wefti_store_leave(const weft_store_t *store)
{
    wefti_handle_leave(&((weft_store_t *)(uintptr_t)store)->handle);
}
/* take a reference to an open store of that runtime */
weft_status_t wefti_store_hold(weft_store_t *store, const weft_runtime_t *rt);
/* For a caller that has a reference. WEFT_ERR_CLOSED, _FORKED: its runtime is gone. */
weft_status_t wefti_store_there(const weft_store_t *store);
weft_ep_t *wefti_store_ep(weft_store_t *store); /* its endpoint, or NULL: it is gone. The driver's */
weft_ep_t *wefti_store_find_ep(const weft_store_t *store); /* the same on any thread; it may go at any time */
void wefti_store_stores_down(weft_ep_t *ep, weft_status_t why);
void wefti_store_stores_shutdown(store_state_t *ss);
void wefti_store_stores_free(store_state_t *ss);

/* block.c */
void wefti_store_block_answer(store_ask_t *a, const store_reply_t *p); /* ALLOC, FIND, EXTEND */
void wefti_store_block_unref(weft_block_t *block);

/* list.c */
void wefti_store_list_answer(store_ask_t *a, const store_reply_t *p);

#endif
