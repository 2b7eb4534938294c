/* core/gate.h - operations that take their turn in streams of a device (op->streams). The rooms include core/core.h.
 *
 * Core knows no device: mem fills in rt->gates. A gate is made in the post, by the posting thread, so that it stands at the
 * right place in the streams. It is CLOSED until what comes before it there is done, and holds back what comes after it until the
 * operation is complete or was never started.
 *
 * An operation whose gate is closed is parked: its start() runs when the gate opens, with the gate's own kind until then, so that
 * cancelling, deadlines and the end of the runtime find it. A kind with `gates` is started all the same, and its room waits with
 * wefti_gate_watch(), because it has an order to keep. */
#ifndef WEFTI_CORE_GATE_H
#define WEFTI_CORE_GATE_H

#include "core/op.h"

typedef struct wefti_gate wefti_gate_t;
struct wefti_gate {
    const struct wefti_gate_ops *ops;
    void (*opened)(weft_op_t *op, weft_status_t status); /* NULL: nobody waits */
    weft_op_t *op;
    const wefti_op_kind_t *kind; /* the operation's own, while it is parked */
    bool closed;
};

typedef struct wefti_gate_ops {
    /* In the post, any thread. WEFT_ERR_INVALID, _UNSUPPORTED, _NOMEM, _SYSTEM. */
    weft_status_t (*make)(weft_runtime_t *rt, const weft_op_streams_t *streams, wefti_gate_t **gate_out);
    /* On the driver: call gate->opened when it opens, or cannot; from progress. WEFT_ERR_NOMEM. */
    weft_status_t (*watch)(weft_runtime_t *rt, wefti_gate_t *gate);
    /* The operation is over, any thread: what the streams were given after it may go on. The gate is gone. */
    void (*end)(wefti_gate_t *gate);
} wefti_gate_ops_t;

/* Has it to wait? */
static inline bool wefti_gate_closed(weft_op_t *op)
{
    return __builtin_expect(wefti_opx(op)->flags & WEFTI_OPF_GATE, 0) && wefti_opx(op)->gate->closed;
}

weft_status_t wefti_gate_make(weft_runtime_t *rt, weft_op_t *op); /* of prepare */
void wefti_gate_end(weft_op_t *op);
/* Have `opened` called when the gate of an operation opens, once, from progress; not after wefti_gate_forget(). Driver. */
weft_status_t wefti_gate_watch(weft_op_t *op, void (*opened)(weft_op_t *op, weft_status_t status));
void wefti_gate_forget(weft_op_t *op);
/* Let its start() wait for the gate. Driver. */
weft_status_t wefti_gate_park(weft_op_t *op);

#endif
