/* msg/any.c - receives from any endpoint of a runtime with several shards: the head has them, and each shard looks what is
 * wanted.
 *
 * How they find a message and end is in conn/wants.h. With one shard they are like all others: recv.c.
 * tests/wire/shards_any.c. */
#include "msg/state.h"

static weft_status_t any_start(weft_op_t *op)
{
    msg_recv_t *r = msg_recv(op);
    return wefti_wants_post(msg_state(wefti_opx(op)->rt)->wants, op, op->tag, r->mask, &r->want);
}

static void any_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_wants_cancel(msg_recv(op)->want, why);
}

const wefti_op_kind_t wefti_msg_any_kind = {
    .name = "msg receive", .start = any_start, .cancel = any_cancel, .stops = true, .streams = true};

static void *find(weft_runtime_t *rt, uint64_t key, uint64_t mask)
{
    return wefti_msg_find_held(msg_state(rt), NULL, key, mask);
}

static bool give(weft_op_t *op, void *msg)
{
    return wefti_msg_deliver_held(op, msg);
}

const wefti_wants_ops_t wefti_msg_wants = {WEFTI_TRAFFIC_MSG, find, give};
