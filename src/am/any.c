/* am/any.c - receives from any endpoint of a runtime with several shards: the head has them, and each shard looks what is wanted.
 *
 * How they find a message and end is in conn/wants.h. With one shard they are like all others: recv.c.
 * tests/wire/shards_any_am.c. */
#include "am/state.h"

static weft_status_t any_start(weft_op_t *op)
{
    am_recv_t *r = am_recv(op);
    uint64_t mask = r->id == WEFT_AM_ANY_ID ? 0 : UINT64_MAX;
    return wefti_wants_post(am_state(wefti_opx(op)->rt)->wants, op, r->id, mask, &r->want);
}

static void any_cancel(weft_op_t *op, weft_status_t why)
{
    wefti_wants_cancel(am_recv(op)->want, why);
}

const wefti_op_kind_t wefti_am_any_kind = {
    .name = "am receive", .start = any_start, .cancel = any_cancel, .stops = true, .streams = true};

static void *find(weft_runtime_t *rt, uint64_t key, uint64_t mask)
{
    return wefti_am_find_held(am_state(rt), NULL, mask ? (uint32_t)key : WEFT_AM_ANY_ID);
}

static bool give(weft_op_t *op, void *msg)
{
    return wefti_am_meet(op, msg);
}

const wefti_wants_ops_t wefti_am_wants = {WEFTI_TRAFFIC_AM, find, give};

bool wefti_am_offer(am_msg_t *m)
{
    am_state_t *as = m->as;
    return __builtin_expect(as->wants != NULL, 0) && !m->port->fn && wefti_wants_offer(as->wants, as->rt, m->pub.id, m);
}
