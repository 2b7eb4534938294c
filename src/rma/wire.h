/* rma/wire.h - what two runtimes share: the records on a lane, and the control page of a region that is mapped. */
#ifndef WEFTI_RMA_WIRE_H
#define WEFTI_RMA_WIRE_H

#include <stdatomic.h>
#include <stdint.h>

#include "conn/conn.h"

/* --- on the lane ------------------------------------------------------------------------------------------------------- */

/* docs/design/wire.md has them byte by byte. Every request has an id of its poster's and is answered once; answers may come in
 * any order. */
enum {
    REC_ATTACH = WEFTI_REC_RMA_FIRST, /* rma_attach_t, a region's key or (F_NAME) a name: answered by ATTACHED or DONE */
    REC_ATTACHED,                     /* rma_attached_t, a map handle for the mapping */
    REC_DROP,                         /* rma_drop_t: no answer */
    REC_READ,                         /* rma_request_t: answered by DATA, PAYLOAD or DONE */
    REC_WRITE,                        /* rma_request_t, with F_TELL the value (8 bytes), the bytes: answered by DONE */
    REC_WRITE_BIG,                    /* rma_big_t; the bytes are announced: answered by DONE */
    REC_ATOMIC,                       /* rma_atomic_t: answered by VALUE or DONE */
    REC_NOTIFY,                       /* rma_atomic_t, operand the value: the bytes are there already: answered by DONE */
    REC_DONE,                         /* rma_reply_t: it came to `status` */
    REC_DATA,                         /* rma_reply_t, the bytes */
    REC_VALUE,                        /* rma_reply_t, 8 bytes: the word before */
    REC_PAYLOAD,                      /* rma_payload_t: the bytes of a read are announced */
    REC_REVOKED                       /* rma_drop_t: the grant is stale. Answered by DROP if it has a fabric key */
};

enum { F_NAME = 1, F_MAP = 2 /* ATTACH: the sender could map it */, F_TELL = 4 /* WRITE, WRITE_BIG */,
       F_NATIVE = 8 /* ATTACH: the sender could use a fabric key */,
       F_FAR = 16 /* ATTACH, with F_MAP: the sender could import device memory */ };

typedef struct rma_request {
    uint8_t kind, what;       /* what: F_TELL, or weft_rma_atomic_t */
    uint16_t zero;
    uint32_t width;           /* of an atomic; else 0 */
    uint64_t id, grant, offset, len;
} rma_request_t;

typedef struct rma_atomic {
    rma_request_t req;
    uint64_t operand, compare;
} rma_atomic_t;

typedef struct rma_big {
    uint8_t kind, what;
    uint16_t zero;
    uint32_t zero2;
    uint64_t payload;         /* filled in by wefti_out_announce() */
    uint64_t id, grant, offset, value;
} rma_big_t;

typedef struct rma_payload {
    uint8_t kind, zero[7];
    uint64_t payload;
    uint64_t id;
} rma_payload_t;

typedef struct rma_reply {
    uint8_t kind, zero;
    int16_t status;           /* weft_status_t */
    uint32_t zero2;
    uint64_t id;
} rma_reply_t;

typedef struct rma_attach {
    uint8_t kind, flags;
    uint16_t zero;
    uint32_t len;             /* of what follows */
    uint64_t id;
} rma_attach_t;

typedef struct rma_attached {
    rma_reply_t reply;
    uint64_t grant, len, generation;
    uint32_t rights, slot;    /* slot: of the control page */
    uint64_t stamp;           /* of the slot; 0: no mapping, and so are the next two */
    uint64_t map_bytes;       /* of the memfd, the control page included */
    uint64_t map_offset;      /* of the part's first byte in it; 0: it is in device memory, and an export follows the handle */
} rma_attached_t;             /* a map handle follows, where stamp is not 0; else, with F_NATIVE, perhaps a fabric key */

typedef struct rma_drop {
    uint8_t kind, zero[7];
    uint64_t grant;
} rma_drop_t;

/* How much a peer may ask without having been answered. Both sides count with it: the owner holds no more for a full lane. */
#define RMA_REQUESTS 1024u
#define RMA_SERVING (4 * RMA_REQUESTS) /* payloads: the peer may know of the end of one before we do */
#define RMA_REPLY_BYTES (2u << 20)
#define RMA_INLINE 8192u       /* of a read: what may come back in a record, and counts against RMA_REPLY_BYTES */
#define RMA_GRANTS 4096u       /* remotes of one endpoint */

/* --- a mapped region --------------------------------------------------------------------------------------------------- */

/* The first page of the memfd of a region that can be mapped. A slot belongs to one grant. An access sets busy (by an exchange,
 * which is a full barrier, and a lock among the threads of its process), checks that stamp is still its grant's, touches the
 * memory, and clears busy. The owner revokes a grant by storing 0 to stamp and waiting until busy is 0. A slot whose peer was
 * lost while busy is never used again. */
typedef struct rma_slot {
    _Alignas(64) _Atomic uint32_t busy; /* the peer's */
    uint32_t zero;
    _Atomic uint64_t stamp;             /* the owner's */
} rma_slot_t;

#define RMA_CONTROL 4096u
#define RMA_SLOTS (RMA_CONTROL / sizeof(rma_slot_t) - 1)
typedef struct rma_control {
    uint64_t magic;                     /* RMA_MAGIC */
    _Alignas(64) rma_slot_t slots[RMA_SLOTS];
} rma_control_t;
#define RMA_MAGIC UINT64_C(0x31616d7274666577) /* "weftrma1" */
_Static_assert(sizeof(rma_control_t) == RMA_CONTROL, "the control page is a page");

#endif
