/* am/state.h - what am keeps: per runtime, per id, per endpoint, per operation, per message that stays a while.
 *
 * Everything belongs to the driver of the runtime, except the few fields of a message that say otherwise. */
#ifndef WEFTI_AM_STATE_H
#define WEFTI_AM_STATE_H

#include <stdatomic.h>
#include <string.h>
#include <weft/am.h>

#include "am/am.h"
#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/spares.h"
#include "conn/conn.h"

/* --- on the lane ----------------------------------------------------------------------------------------------------------- */

enum {
    REC_EAGER = WEFTI_REC_AM_FIRST, /* am_head_t, with F_CONFIRM the answer's id (8 bytes), the header padded to 8, the payload */
    REC_ANNOUNCE,                   /* am_announce_t, the header; the payload is announced */
    REC_HEAD,                       /* wefti_word_t, then bytes of a header that is too long for the record of its message */
    REC_ANSWER,                     /* am_answer_t: what became of a message */
    REC_CREDIT,                     /* wefti_word_t */
    REC_STARVED                     /* wefti_word_t */
};

enum {
    F_CONFIRM = 1, /* EAGER: an answer is wanted; ANSWER: it is one to such a message, else to an announcement */
    F_REPLY = 2,   /* EAGER, ANNOUNCE: the sender expects messages back */
    F_PARTS = 4,   /* EAGER, ANNOUNCE: the header came in HEAD records before; HEAD: more of it */
    F_ALL = 7
};

typedef struct am_head {
    wefti_word_t word;
    uint32_t id;          /* aligned to 8, with header_len: written and read as one */
    uint32_t header_len;
} am_head_t;

typedef struct am_announce {
    wefti_word_t word;
    uint64_t payload; /* filled in by wefti_out_announce() */
    uint32_t id;
    uint32_t header_len;
} am_announce_t;

typedef struct am_answer {
    wefti_word_t word;
    uint64_t about;   /* the id of the confirmation, or of the payload */
    uint32_t reason;  /* 0: it was taken */
    uint32_t zero;
} am_answer_t;

#define AM_HEADER_INLINE 1920u /* of an announcement: what fits beside am_announce_t, as wefti_out_announce() wants it */
#define AM_COST 256u           /* what a message that stays costs its receiver beside its bytes; both sides count with it */
#define AM_EAGER_COST 12288u   /* what one with a payload may cost and go whole: the least window there is (16 KiB), less its
                                  last quarter */
_Static_assert(AM_COST + WEFT_AM_HEADER_MAX <= AM_EAGER_COST, "a message without a payload fits every window");

static inline uint32_t am_pad(uint32_t n) { return (n + 7u) & ~7u; }

typedef struct am_msg am_msg_t;

/* --- per runtime, per id --------------------------------------------------------------------------------------------------- */

/* What there is for one id: made when somebody asks for it or a message waits, freed when there is nothing left. */
typedef struct am_port {
    uint32_t id;
    weft_am_fn fn;
    void *user;
    wefti_list_t posted;      /* receives of this id from any endpoint, oldest first (am_recv_t.owner_link) */
    wefti_list_t arrived;     /* messages that wait (am_msg_t.port_link) */
    wefti_list_t drain_link;  /* in am_state_t.drains: it has a handler, and messages from before */
} am_port_t;

#define AM_NEAR 256       /* ids below are found without hashing, */
#define AM_OWN 16         /* and so many of the library's own */
#define AM_CLASSES 7      /* of blocks: 256 bytes to 16 KiB */
#define AM_SPARES 256     /* blocks of a class that are kept for reuse */

typedef struct am_state {
    am_port_t *near[AM_NEAR + AM_OWN]; /* by am_near() */
    weft_runtime_t *rt;
    wefti_map_t far;              /* id -> am_port_t, all others */
    uint64_t post_seq;            /* receives are numbered as they are posted */
    wefti_list_t posted;          /* receives of any id from any endpoint */
    wefti_list_t posted_of_any;   /* all receives from any endpoint, of whatever id (am_recv_t.all_link) */
    wefti_list_t arrived;         /* all messages that wait, in order of arrival (am_msg_t.all_link) */
    wefti_list_t kept;            /* all messages that the program has (am_msg_t.all_link) */
    wefti_spares_t spares[AM_CLASSES]; /* blocks */
    uint64_t held_bytes, held_msgs;
    wefti_wants_t *wants;         /* receives from any endpoint of a runtime with several shards; else NULL */

    wefti_list_t drains;
    weft_op_t drain_op;           /* completes at once; its callback hands waiting messages to new handlers */
    bool draining;

    wefti_mpsc_t handed_in;          /* messages with work from other threads */
    _Atomic bool called;
    wefti_call_t call;
} am_state_t;

static inline am_state_t *am_state(weft_runtime_t *rt) { return (am_state_t *)rt->room_state[WEFTI_ROOM_AM]; }

/* --- per endpoint ---------------------------------------------------------------------------------------------------------- */

typedef struct am_ep {
    wefti_outbox_t box;
    uint32_t record_max;      /* largest record of this lane, and at most what is worth copying */
    wefti_list_t posted;      /* receives from this endpoint, of whatever id (am_recv_t.owner_link) */
    wefti_list_t arrived;     /* messages that wait (am_msg_t.ep_link) */
    wefti_list_t kept;        /* messages that the program has (am_msg_t.ep_link) */
    wefti_list_t answers;     /* answers that found no space (am_owed_t) */
    uint32_t parts_len;
    uint8_t *parts;           /* a header that comes in parts: WEFT_AM_HEADER_MAX bytes, from the first one on */
} am_ep_t;

static inline am_ep_t *am_ep(const weft_ep_t *ep) { return (am_ep_t *)ep->traffic[WEFTI_TRAFFIC_AM]; }

/* --- a message ------------------------------------------------------------------------------------------------------------- */

/* Where its payload is. */
enum {
    AT_HERE,    /* in `data`, or there is none */
    AT_SENDER,  /* waits: `in` */
    AT_LENT,    /* readable where the sender has it: `lent`; `in` until it was withdrawn */
    AT_TAKEN,   /* pulled, being pulled, or rejected */
    AT_LOST     /* out of reach: `lost` says why */
};

enum { WORK_REJECT = 1, WORK_RELEASE = 2 };

/* pub is what the program sees. A message that is handled where it arrived lives on the stack of its record's call and has
 * only the fields up to `block`; what stays longer is in a block of its own, with its header and data behind it. */
struct am_msg {
    weft_am_t pub;
    am_state_t *as;
    weft_ep_t *ep;            /* NULL once the endpoint is gone */
    wefti_in_t *in;
    am_msg_t *moved;          /* of one on the stack: the block that keeps it */
    uint64_t confirm;         /* the id of the answer its sender waits for; 0 none */
    uint32_t cost;
    uint32_t reason;          /* of a rejection that another thread asked for */
    uint8_t at;
    bool arrived;             /* waits for someone; else it is the program's */
    bool borrowed;            /* of one on the stack: its block is a pull's that waits for a stream, and the handler has a
                                 reference of its own to it */
    _Atomic bool claimed;     /* pull, view or reject was asked for: any thread */
    weft_status_t lost;
    wefti_list_t ep_link;     /* am_ep_t.arrived or .kept; on the stack while it has `in` */
    bool block;               /* from here on only blocks */

    uint8_t size_class;       /* AM_CLASSES: of its own size */
    _Atomic bool kept;        /* the program has it; not while a handler looks at it that has not kept it */
    _Atomic bool parted;      /* the runtime closed and left it to the program, or the program released it too late for the
                                 driver to know: the second of the two frees it */
    weft_runtime_t *rt;       /* for the program's calls: `as` goes with the runtime */
    _Atomic uint32_t refs;    /* the program's, and one per operation on it that was posted */
    _Atomic uint32_t work;    /* WORK_*: any thread */
    wefti_mpsc_node_t handed; /* as->handed_in */
    wefti_list_t all_link, port_link;
    am_port_t *port;          /* while it waits */
    wefti_timer_t hold;       /* until when its payload may wait */
    wefti_lent_t lent;
    void *own;                /* host memory a view was pulled into */
};

/* An answer that found no space on the lane. `in` is refused when it is on its way; in->user is then this, with AM_OWED set. */
typedef struct am_owed {
    wefti_list_t link;        /* am_ep_t.answers */
    am_answer_t answer;
    wefti_in_t *in;
} am_owed_t;
#define AM_OWED ((uintptr_t)1)

/* The runtime of a message that the program calls with; NULL: it was closed. */
static inline weft_runtime_t *am_msg_runtime(am_msg_t *m)
{
    return !m->block ? m->as->rt : atomic_load(&m->parted) ? NULL : m->rt;
}
static inline am_msg_t *am_msg(weft_am_t *am) { return (am_msg_t *)(void *)am; }
static inline am_msg_t *am_msg_now(weft_am_t *am) /* where it is now */
{
    am_msg_t *m = am_msg(am);
    return m->moved ? m->moved : m;
}

/* --- per operation --------------------------------------------------------------------------------------------------------- */

/* Where a payload goes: a buffer, pieces, or memory to be allocated. */
typedef struct am_into {
    weft_iov_t one;
    const weft_iov_t *iov;    /* NULL: one */
    uint32_t iov_n;
    bool alloc;
    const weft_mem_kind_t *kind; /* to allocate in, or what the program said the memory is */
} am_into_t;

typedef struct am_recv {
    weft_ep_t *ep;            /* NULL: from any */
    wefti_list_t owner_link;  /* am_ep_t.posted, am_port_t.posted or am_state_t.posted */
    wefti_list_t all_link;    /* am_state_t.posted_of_any */
    union {
        uint64_t seq;         /* while it waits */
        weft_ep_t *source;    /* while it pulls */
        wefti_want_t *want;   /* any.c */
    };
    uint32_t id;
    bool take;                /* header first */
    void *header;             /* where the header goes, and how much of it */
    size_t header_cap;
    am_into_t into;           /* op->len: the capacity for the payload, until it is met */
} am_recv_t;

typedef struct am_pull {
    am_msg_t *msg;            /* until it is started; a view's until it is complete */
    weft_ep_t *source;
    am_into_t into;           /* op->len: the capacity until it is started */
    wefti_xfer_t x;
    bool view;
} am_pull_t;

typedef struct am_handle {
    weft_am_fn fn;
    void *user;
    uint32_t id;
} am_handle_t;

_Static_assert(sizeof(am_recv_t) <= WEFTI_OP_SCRATCH_SIZE && sizeof(am_pull_t) <= WEFTI_OP_SCRATCH_SIZE, "they fit an operation");

static inline am_recv_t *am_recv(weft_op_t *op) { return wefti_op_scratch(op, am_recv_t); }
static inline am_pull_t *am_pull(weft_op_t *op) { return wefti_op_scratch(op, am_pull_t); }

/* --- port.c: who wants what ------------------------------------------------------------------------------------------------ */

/* Where an id is in `near`; beyond it: it is far. */
static inline uint32_t am_near(uint32_t id)
{
    uint32_t own = id - WEFT_AM_RESERVED;
    return own < AM_OWN ? AM_NEAR + own : id < AM_NEAR ? id : UINT32_MAX;
}
am_port_t *wefti_am_port_far(const am_state_t *as, uint32_t id);
static inline am_port_t *am_port(const am_state_t *as, uint32_t id)
{
    uint32_t near = am_near(id);
    return __builtin_expect(near < AM_NEAR + AM_OWN, 1) ? as->near[near] : wefti_am_port_far(as, id);
}
weft_status_t wefti_am_post(am_state_t *as, weft_op_t *op);        /* a receive waits; WEFT_ERR_NOMEM */
void wefti_am_unpost(am_state_t *as, weft_op_t *op);
weft_op_t *wefti_am_take_posted(am_state_t *as, weft_ep_t *ep, uint32_t id); /* the oldest that wants it; unposted */
bool wefti_am_hold(am_msg_t *m);                                   /* a block waits for someone; false: no memory */
void wefti_am_unhold(am_msg_t *m);
am_msg_t *wefti_am_find_held(am_state_t *as, weft_ep_t *ep, uint32_t id); /* the oldest for such a receive; stays */
void wefti_am_ports_free(am_state_t *as);
void wefti_am_drain_init(am_state_t *as);

/* --- message.c: the life of one that stays --------------------------------------------------------------------------------- */

/* Make a block of a message on the stack, which is then `moved`. NULL: no memory, nothing changed. Neither arrived nor kept
 * yet, but it counts as held against the window. */
am_msg_t *wefti_am_block(am_msg_t *m);
void wefti_am_give(am_msg_t *m);                                    /* a block (on no list) becomes the program's */
void wefti_am_let_go(am_msg_t *m);                                  /* the end of a block: everything it has goes back */
void wefti_am_unref(am_msg_t *m);                                   /* driver */
void wefti_am_turn_down(am_msg_t *m, uint32_t reason);              /* reject it */
/* The end of a message on the stack: what was not taken is refused, what was asked is answered, its window goes back. */
void wefti_am_finish(am_msg_t *m);
/* Its payload is on its way or out of reach: `in` is no longer the message's. */
void wefti_am_detach(am_msg_t *m, uint8_t at);
void wefti_am_answers_flush(weft_ep_t *ep);
void wefti_am_answers_down(weft_ep_t *ep);
void wefti_am_withdrawn(wefti_in_t *in);
void wefti_am_messages_down(weft_ep_t *ep, weft_status_t why, bool discard);
void wefti_am_messages_orphan(weft_ep_t *ep);
void wefti_am_handed_in(wefti_call_t *call);
void wefti_am_blocks_free(am_state_t *as);

/* --- fetch.c: payloads into the program's memory --------------------------------------------------------------------------- */

/* Move the payload of m (AT_HERE or AT_SENDER) for op, which is complete, or under way as a pull, when this says WEFT_OK;
 * otherwise nothing happened. op's scratch is overwritten. */
weft_status_t wefti_am_fetch(weft_op_t *op, am_msg_t *m, am_into_t into);
/* Check and note where a payload goes. */
weft_status_t wefti_am_into(am_into_t *into, void *buf, size_t cap, const weft_iov_t *iov, size_t iov_n,
                            const weft_mem_kind_t *kind, uint64_t *cap_out);

/* --- any.c: receives from any endpoint of a runtime with several shards ----------------------------------------------------- */

extern const wefti_op_kind_t wefti_am_any_kind;
extern const wefti_wants_ops_t wefti_am_wants;
/* A block that waits (wefti_am_hold()): true if a receive from any endpoint got it. */
bool wefti_am_offer(am_msg_t *m);

/* --- send.c, recv.c, arrive.c ---------------------------------------------------------------------------------------------- */

extern const wefti_outbox_kind_t wefti_am_sends;

/* Give a message to a receive (unposted). false: no memory; op is complete with that, the message is untouched. */
bool wefti_am_meet(weft_op_t *op, am_msg_t *m);
void wefti_am_recv_down(weft_ep_t *ep, weft_status_t why);
void wefti_am_recv_shutdown(am_state_t *as);

void wefti_am_record(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n);
void wefti_am_announced(weft_ep_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n, wefti_in_t *in);

#endif
