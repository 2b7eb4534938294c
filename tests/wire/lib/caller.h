/* tests/wire/lib/caller.h - calls byte by byte: a peer that says to a service whatever the test wants, and hears every answer
 * itself. */
#ifndef WEFT_TEST_CALLER_H
#define WEFT_TEST_CALLER_H

#include "pair.h"
#include "rpc/wire.h"

enum { CALLER_ANSWERS = 65536, CALLER_MESSAGE = 256 };

/* What came back. */
typedef struct caller_answer {
    unsigned kind;               /* RPC_BOUND, RPC_REPLY, RPC_REPLY_EXT */
    rpc_head_t head;
    unsigned flags;              /* of REPLY_EXT */
    uint32_t code;               /* of a failure, of BOUND */
    int32_t first;               /* the first four bytes of the results */
    uint64_t len;                /* of the payload */
    rpc_bound_t bound;
    char text[CALLER_MESSAGE];   /* message, or signature */
} caller_answer_t;

typedef struct caller {
    pair_t *pair;
    weft_ep_t *ep;
    _Atomic unsigned n;          /* answers */
    _Atomic int hold;            /* keep them, as a peer that does not take them */
    _Atomic unsigned n_held;
    weft_am_t *held[CALLER_ANSWERS];
    caller_answer_t answers[CALLER_ANSWERS];
} caller_t;

/* Take the place of the client's side on pair->rt[1]. */
void caller_open(caller_t *c, pair_t *pair);
void caller_let_go(caller_t *c); /* of what is held; nothing is from now on */

/* A function: by signature (with its hash) or by name. Waits for the answer. */
caller_answer_t caller_bind(caller_t *c, const char *service, const char *signature);
/* Send any bytes. op NULL: fire and forget. */
void caller_send(caller_t *c, const void *header, size_t len, const void *payload, size_t payload_len);
/* CALL, or CALL_EXT where once or left_ns (0: none) is given, with n bytes of arguments. */
void caller_call(caller_t *c, const caller_answer_t *bound, uint64_t call, uint64_t left_ns, const rpc_once_t *once,
                 const void *args, size_t n);
void caller_cancel(caller_t *c, uint64_t call);
/* Wait for the nth answer (from 0). */
const caller_answer_t *caller_answer(caller_t *c, unsigned n);

#endif
