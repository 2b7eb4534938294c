/* tests/sim/lib/model.h - what programs did and may expect: links, their ends, messages, operations.
 *
 * A link is one weft_ep_open() with a listener of its own, so that whoever is accepted there is the other end of it. Every
 * message has a number in its tag and a pattern in its bytes, so that a receive tells which one it got. The model checks, at
 * each completion: once; not too late; the message was sent, is whole, was not received before, and comes in order; buffers
 * are as they should be. After completion the memory of the operation and of its buffers is overwritten, and looked at again
 * at the end. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include "world.h"

#define LINKS_MAX 8
#define ENDS_MAX 32
#define MSGS_MAX 600
#define ACTS_MAX 1200

typedef enum act_kind {
    ACT_SEND, ACT_RECV, ACT_RECV_ALLOC, ACT_CONNECT, ACT_CLOSE, ACT_ABORT, ACT_ACCEPT, ACT_TIMER,
    ACT_OTHER, /* from here on the scenario's own: check() and excused() below */
    ACT_TOLD = 1000 /* and from here on those of them that are told by a callback, not by a queue or by being looked at */
} act_kind_t;

typedef struct link {
    int node[2];              /* who connects, who listens */
    weft_listener_t *listener;
    char uri[128];
    uint32_t seq[2];          /* messages so far, per direction */
    bool hurt;                /* something other than delay happened to it: messages may be lost */
    int connector;            /* the end that was opened, or -1 */
} link_t;

typedef struct end {
    int link, side, node;
    weft_ep_t *ep;            /* NULL once close or abort was called */
    weft_ep_id_t id;
    bool closed;              /* close or abort was called here, */
    uint64_t closed_at;       /* then */
    bool gone;                /* and its operation is complete: nothing may come any more */
    bool drain;               /* keep receiving until it ends */
    bool drained;             /* a draining receive ended with an error: nothing is left */
    bool drained_all;         /* and it was not closed here before that: everything has been received */
    bool draining;            /* such a receive is posted */
    bool failed;
    int live;                 /* operations of it under way */
    int hook_failed, hook_closed;
    uint64_t sent_ok;         /* by this end */
} end_t;

typedef struct msg {
    int end;                  /* who sends it */
    uint64_t tag;
    uint32_t len, seq;
    uint8_t *buf;
    bool owned, no_op;        /* the library releases it; no operation tells of it */
    bool device;              /* its bytes are in fakedev's memory */
    bool done, taken;
    bool asked;               /* cancelled or with a deadline */
    unsigned pieces, released;
    weft_status_t status;
} msg_t;

typedef struct act {
    weft_op_t op;
    act_kind_t kind;
    bool live, cancelled, draining, claimed;
    int node, end, msg;       /* end, msg: -1 for none */
    uint64_t tag, mask;
    uint8_t *buf;             /* of a receive, with a guard behind cap */
    size_t cap;
    bool device;              /* buf is fakedev's memory */
    weft_iov_t iov[4];
    size_t iov_n;
    uint64_t posted_at, bound; /* bound 0: may take for ever */
    bool by_beats;            /* the bound is one of heartbeats: a transfer that began ends when a side finds the other lost */
    uint64_t stopped_before[SIM_NODES_MAX];
    unsigned stops_before[SIM_NODES_MAX];
    uint32_t stamp;           /* order of posting */
    uint64_t taken_before;    /* a close: messages of its end that the peer had received when it was posted */
    void *more;               /* the scenario's; freed with the act */
    bool waits_for_peer;      /* ends when the peer does */
} act_t;

/* A receive that got a message. */
typedef struct got {
    int node, end, filter;    /* end: where it came in; filter: the end it was posted on, or -1 */
    uint64_t tag, mask, msg_tag;
    uint32_t stamp, seq;
} got_t;

typedef struct model {
    sim_net_t net;
    bool peace;               /* nothing but delay: nothing may be lost and nothing may fail */
    uint64_t heartbeat_ns, connect_ns, close_ns, reconnect_ns, slack_ns, pull_ns;
    size_t window;
    bool devices;             /* some buffers are fakedev's */
    link_t links[LINKS_MAX];
    int n_links;
    end_t ends[ENDS_MAX];
    int n_ends;
    msg_t msgs[MSGS_MAX];
    int n_msgs;
    act_t *acts[ACTS_MAX];
    int n_acts, n_live;
    got_t gots[MSGS_MAX];
    int n_gots;
    uint32_t stamp;
    weft_queue_t *queues[SIM_NODES_MAX];
    weft_token_t *tokens[SIM_NODES_MAX];
    /* The scenario's: check an operation of its own that is complete; may one fail with this in a world at peace? */
    void (*check)(struct model *m, act_t *a);
    bool (*excused)(struct model *m, const act_t *a);
    /* Everything is closed and complete, and the world is still there; may be NULL. */
    void (*finished)(struct model *m);
    /* Called after the checks of a completion; `status` as completed. */
    void (*completed)(struct model *m, act_t *a, weft_status_t status);
} model_t;

void model_init(model_t *m, uint64_t seed, int nodes);
/* Everything has been closed: look at it once more, and free it. */
uint64_t model_finish(model_t *m);

/* Operations. A new one gets a way of delivery by the seed; NULL: the table is full. */
act_t *model_act(model_t *m, act_kind_t kind, int node, int end);
/* Report what the posting call returned. */
bool model_posted(model_t *m, act_t *a, weft_status_t status);
/* Find completions that come by no callback: poll and pop. Between turns. */
void model_poll(model_t *m);
/* Cancel it; the model remembers. */
void model_cancel(model_t *m, act_t *a);

/* Messages. */
uint64_t model_tag(int link, int side, uint32_t seq, unsigned class);
#define MODEL_MASK_CLASS UINT64_C(0x7)
#define MODEL_MASK_LINK UINT64_C(0x1ff00)
msg_t *model_msg(model_t *m, int end, size_t len, unsigned class); /* NULL: the table is full */
void model_unsend(model_t *m);                                     /* the last one was not sent after all */
void model_release(void *buf, void *user);                         /* a weft_release_fn; user is the msg_t */
void model_recv_buf(model_t *m, act_t *a, size_t cap);             /* a buffer for a receive, with its guard */
/* A message came in whole: the checks of a receive. filter as in got_t. */
void model_got(model_t *m, const act_t *a, weft_ep_id_t from, uint64_t tag, uint64_t len, const uint8_t *bytes);

end_t *model_end(model_t *m, int link, int side, int node, weft_ep_t *ep, weft_ep_id_t id); /* NULL: the table is full */
/* The end of that link whose endpoint this is, also after it was closed; NULL: not accepted yet. */
end_t *model_end_of_ep(model_t *m, int link, const weft_ep_t *ep);
end_t *model_end_of_id(model_t *m, int node, weft_ep_id_t id);
/* The other side of a link; NULL if nobody was accepted yet. The latest, if there were several. */
end_t *model_peer(model_t *m, const end_t *e);
uint64_t model_taken(const model_t *m, const end_t *sender);
/* Every operation is complete that had to be by now. */
void model_check_bounds(model_t *m);

#endif
