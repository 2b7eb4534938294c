/* rpc/wire.h - what clients and servers say to each other: active messages with two ids, one to the server, one to the client.
 *
 * The header of a message begins with rpc_head_t, 16 bytes; the rest depends on its kind. Numbers are little-endian, and
 * everything is aligned to its size from the beginning of the header. Arguments and results are written by rpc/codec.h.
 * docs/design/wire.md has it all with examples.
 *
 *     to the server                               after the head
 *     BIND      which function?                   rpc_bind_t, service, instance, signature or name; slot and check are 0
 *     CALL      a call without a deadline,        arguments
 *               all of it in the header
 *     CALL_EXT  any call                          rpc_ext_t, what its flags name, arguments
 *     CANCEL    nobody waits for it any more      (slot and check are 0)
 *     to the client
 *     BOUND     this function, or none            rpc_bound_t, signature or message
 *     REPLY     code 0, all of it in the header   results (check is 0, slot too)
 *     REPLY_EXT any reply                         rpc_ext_t, what its flags name, results or rpc_failure_t and message
 *     both
 *     ITEM      a value of its stream             rpc_ext_t, the value (slot is 0, check counts the items from 0)
 *     END       no more of them                   (check: how many there were)
 *     CREDIT    how many may be sent in all       rpc_credit_t
 *
 * Bytes (arguments, results, an item) that do not fit the header are the first bytes of the payload (F_BYTES); the pieces follow
 * them, from the next multiple of 8 on. */
#ifndef WEFTI_RPC_WIRE_H
#define WEFTI_RPC_WIRE_H

#include <stdint.h>
#include <weft/am.h>

#define RPC_AM_TO_SERVER (WEFT_AM_RESERVED + 2)
#define RPC_AM_TO_CLIENT (WEFT_AM_RESERVED + 3)

#define RPC_MAGIC 0x57u
#define RPC_VERSION 1u

enum {
    RPC_BIND = 1,  /* to the server */
    RPC_BOUND = 1, /* to the client */
    RPC_CALL = 2,
    RPC_REPLY = 2,
    RPC_CALL_EXT = 3,
    RPC_REPLY_EXT = 3,
    RPC_CANCEL = 4,
    RPC_ITEM = 5,
    RPC_END = 6,
    RPC_CREDIT = 7
};

typedef struct rpc_head {
    uint8_t magic;
    uint8_t version_kind; /* RPC_VERSION << 4 | kind */
    uint16_t slot;        /* of the function, at the server */
    uint32_t check;       /* of the signature that the caller means, and of the slot's use */
    uint64_t call;        /* the client's number for it: slots of its endpoint */
} rpc_head_t;

/* flags of rpc_ext_t; what they name follows in this order */
#define RPC_F_DEADLINE 1u /* call: u64, ns that are left */
#define RPC_F_ONCE 2u     /* call: rpc_once_t */
#define RPC_F_BYTES 4u    /* all: the bytes are in the payload, bytes_len of them */
#define RPC_F_NOT_RUN 8u  /* reply: the function was not begun */
#define RPC_F_UNBOUND 16u /* reply, with NOT_RUN: that slot and check are none: bind again */
#define RPC_F_FAILED 32u  /* reply: rpc_failure_t and a message follow, no results */
#define RPC_F_MAYBE 64u   /* reply: the function may have run, and did not answer */
typedef struct rpc_ext {
    uint16_t flags;
    uint16_t zero;
    uint32_t bytes_len;
} rpc_ext_t;

typedef struct rpc_once {
    uint64_t client; /* random, never 0 */
    uint64_t seq;    /* of the client, from 1 */
    uint64_t acked;  /* the client has the replies to all below: forget them */
    uint64_t epoch;  /* of the service it was first sent to: no other one runs it */
} rpc_once_t;

typedef struct rpc_failure {
    uint32_t code;
    uint32_t category;
    int32_t value;
    uint32_t zero;
} rpc_failure_t;
#define RPC_MESSAGE_MAX 1000u

typedef struct rpc_bind {
    uint64_t hash;   /* of the signature; 0: only the name or the number is known */
    uint32_t number; /* 0: by name */
    uint8_t service_len, instance_len;
    uint16_t text_len; /* of the signature, or of the name */
} rpc_bind_t;

typedef struct rpc_bound {
    uint32_t code;       /* 0, or why not: the message follows */
    uint32_t number;
    uint64_t epoch;      /* of the service: another one with every opening */
} rpc_bound_t;

typedef struct rpc_credit {
    uint64_t items, bytes; /* in all, since the beginning of the stream */
} rpc_credit_t;

/* A stream begins with so much: items, and bytes of them (as the codec counts: bytes and payload). */
#define RPC_STREAM_ITEMS 64u
#define RPC_STREAM_BYTES (UINT64_C(1) << 20)

#define RPC_OUT_OF_LINE 1024u /* from so many bytes on the data of an argument is a piece of the payload */
#define RPC_INLINE 4096u      /* arguments in the header: more are in the payload */

static inline rpc_head_t rpc_head(unsigned kind, uint64_t call)
{
    return (rpc_head_t){.magic = RPC_MAGIC, .version_kind = (uint8_t)(RPC_VERSION << 4 | kind), .call = call};
}
/* Its kind; 0: it is none of ours. */
static inline unsigned rpc_kind(const rpc_head_t *head)
{
    return head->magic == RPC_MAGIC && head->version_kind >> 4 == RPC_VERSION ? head->version_kind & 15u : 0;
}

#endif
