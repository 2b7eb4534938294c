/* core/op.h - the private part of an operation: its states, its kind, its scratch. The rooms include core/core.h.
 *
 * States (opx->state):
 *
 *     IDLE --post--> POSTED --complete--> READY --deliver--> DONE --post--> POSTED ...
 *                     |  \--- (no fn, no queue, no watcher) --> DONE
 *                     \--cancel--> ASKED --complete--> READY
 *
 * Only the driver moves an operation from POSTED on, except POSTED -> ASKED. Bits beside the state say who else holds it:
 *     INBOX    it is in the inbox, to be started or cancelled. A completion waits in READY until the inbox has released it.
 *     QUEUED   it is in its completion queue
 *     WAITED   a thread sleeps until it is done, and must be woken
 *     HOOKED   weft_op_attach() set a callback after the post
 *     STOPPED  with IDLE: it was cancelled before its post
 *     GROUPED  with IDLE: it is a member of a group, and not posted yet
 * and for members of a group of a runtime with several shards (group.c):
 *     LEAVING  with IDLE: its group is letting it go just now. A post waits
 *     UNWANTED with IDLE: its group is over, and it is being posted
 * After the store of DONE, and the pop from its queue, the library does not touch it again: its owner may free it or post it
 * anew. tests/unit/core_op.c and tests/sim check that each post goes through these states exactly once. */
#ifndef WEFTI_CORE_OP_H
#define WEFTI_CORE_OP_H

#include <stdatomic.h>
#include <weft/extend.h>
#include <weft/op.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/mpsc.h"

enum {
    WEFTI_OP_IDLE = 0, WEFTI_OP_POSTED = 1, WEFTI_OP_READY = 2, WEFTI_OP_DONE = 3, WEFTI_OP_ASKED = 4,
    WEFTI_OP_STATE = 7, /* mask of the above */
    WEFTI_OP_WAITED = 8, WEFTI_OP_INBOX = 16, WEFTI_OP_QUEUED = 32, WEFTI_OP_HOOKED = 64, WEFTI_OP_STOPPED = 128,
    WEFTI_OP_GROUPED = 256, WEFTI_OP_LEAVING = 512, WEFTI_OP_UNWANTED = 1024
};

/* What a room says about one kind of its operations: static const. Extensions have the same. */
typedef weft_op_kind_t wefti_op_kind_t;

/* Told of a completion instead of fn and queue: groups. Runs on the driver, from the ready list, once, after the operation
 * became DONE. Its owner may have freed it by then: only rt->told (its status) can be looked at. */
typedef void (*wefti_watch_fn)(weft_op_t *op, void *arg);

/* may_alias: to the program it is an array of numbers, and that is how it is zeroed. */
typedef struct __attribute__((may_alias)) wefti_opx {
    _Atomic uint32_t state;
    uint32_t flags;               /* WEFTI_OPF_* */
    weft_runtime_t *rt;
    const wefti_op_kind_t *kind;
    wefti_list_t link;            /* the room's list while POSTED, the ready list while READY */
    wefti_watch_fn watch;         /* set while a group watches */
    uint64_t scratch[17];         /* the room's own state: wefti_op_scratch() */
    /* From here on what most operations never touch: with many under way, every line touched is a cache miss. */
    void *watch_arg;
    wefti_mpsc_node_t handed;     /* in the inbox, or in its completion queue */
    union {
        wefti_list_t token_link;
        uint64_t detail;          /* of one that is complete and failed: base/detail.h; 0: there is none */
    };
    wefti_heap_node_t timer;
    weft_op_fn late_fn;           /* with HOOKED: weft_op_attach() */
    struct wefti_gate *gate;      /* with WEFTI_OPF_GATE */
} wefti_opx_t;

enum {
    WEFTI_OPF_TIMED = 1,
    WEFTI_OPF_TOKEN = 2,
    WEFTI_OPF_INBOX_START = 4, /* it is in the inbox to be started */
    WEFTI_OPF_STEP = 8,        /* on the ready list, and not complete: a function to run */
    WEFTI_OPF_STOPPED = 16,    /* it was cancelled before it was posted, and is not started yet */
    WEFTI_OPF_GATE = 32,       /* it has a gate: core/gate.h */
    WEFTI_OPF_GROUPED = 64     /* its post has taken GROUPED off: group.c */
};

#define WEFTI_OP_SCRATCH_SIZE sizeof(((wefti_opx_t *)0)->scratch)

_Static_assert(sizeof(wefti_opx_t) <= sizeof(((weft_op_t *)0)->priv), "weft_op_t.priv is too small");
_Static_assert(sizeof(weft_op_t) == 336, "weft_op_t is part of the ABI");
/* What is read of an operation that was never posted; the rest is written before it is read. */
_Static_assert(offsetof(weft_op_t, priv) + offsetof(wefti_opx_t, scratch) <= WEFT_OP_FRESH, "WEFT_OP_FRESH is too small");

static inline wefti_opx_t *wefti_opx(weft_op_t *op) { return (wefti_opx_t *)(void *)op->priv; }
#define wefti_op_of(ptr, member) wefti_container_of(wefti_container_of((ptr), wefti_opx_t, member), weft_op_t, priv)
static inline weft_op_t *wefti_op_of_link(wefti_list_t *link) { return wefti_op_of(link, link); }
static inline void *wefti_op_scratch_at(weft_op_t *op) { return wefti_opx(op)->scratch; }
#define wefti_op_scratch(op, type) ((type *)wefti_op_scratch_at(op))
#define wefti_op_of_scratch(ptr) wefti_op_of(ptr, scratch)

#endif
