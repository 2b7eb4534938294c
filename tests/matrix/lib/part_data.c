/* tests/matrix/lib/part_data.c - parts of a world: memory, messages, regions. */
#include <stdlib.h>
#include <string.h>

#include "part.h"

void pool_open(side_t *s)
{
    weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
    void *buf;
    o.arena_bytes = 1 << 20;
    must(weft_pool_new(s->rt, &o, &s->pool), "weft_pool_new");
    must(weft_pool_get(s->pool, 100, &buf), "weft_pool_get");
    atomic_store(&s->pooled, buf);
}

void pool_close(side_t *s)
{
    weft_pool_put(s->pool, atomic_exchange(&s->pooled, NULL));
    must(weft_pool_free(s->pool), "weft_pool_free");
}

void reg_open(side_t *s)
{
    weft_mem_reg_t *reg;
    must(weft_mem_alloc(NULL, BIG, &s->reg_memory), "weft_mem_alloc");
    must(weft_mem_register(s->rt, s->reg_memory, BIG, &reg), "weft_mem_register");
    s->reg = reg;
}

void reg_close(side_t *s)
{
    weft_mem_unregister(s->reg, true);
}

static bool claimed(void *arg)
{
    side_t *s = (side_t *)arg;
    weft_msg_envelope_t envelope;
    weft_msg_t *msg;
    if (weft_msg_claim(s->rt, s->ep, 99, WEFT_TAG_FULL, &envelope, &msg))
        return false;
    s->msg = msg;
    return true;
}

void msg_open(side_t *s)
{
    weft_op_t claim = WEFT_OP_INIT, make = WEFT_OP_INIT, made = WEFT_OP_INIT;
    must(weft_msg_send(s->other->ep, "claim me", 8, 99, &claim), "weft_msg_send");
    must(weft_msg_send(s->other->ep, "make me", 7, 98, &make), "weft_msg_send");
    world_wait(s->w, &claim, "sending a message");
    world_wait(s->w, &make, "sending a message");
    world_until(s->w, claimed, s, "a message to claim");
    must(weft_msg_recv_alloc(s->rt, s->ep, 100, 98, WEFT_TAG_FULL, &made), "weft_msg_recv_alloc");
    world_wait(s->w, &made, "receiving a message");
    atomic_store(&s->made, made.buf);
}

void msg_close(side_t *s)
{
    weft_msg_drop_claimed(s->msg);
}

void am_open(side_t *s)
{
    static char payload[BIG];
    weft_op_t op = WEFT_OP_INIT;
    must(weft_am_send(s->other->ep, 99, "head", 4, payload, sizeof payload, &s->am_sent), "weft_am_send");
    must(weft_am_take(s->rt, s->ep, 99, &op), "weft_am_take");
    world_wait(s->w, &op, "taking an active message");
    s->am = (weft_am_t *)op.buf;
}

/* On both sides: as long as one is held, its sender's endpoint does not close. */
void am_close(side_t *s)
{
    weft_am_release(s->am);
    weft_am_release(s->other->am);
    world_end(s->w, &s->am_sent, "sending an active message that was released");
    world_end(s->w, &s->other->am_sent, "sending an active message that was released");
}

void region_open(side_t *s)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = BIG;
    o.max_len = 4 * BIG;
    o.name = "region";
    must(weft_region_new(s->rt, &o, &s->region), "weft_region_new");
    s->region_key_len = sizeof s->region_key;
    must(weft_region_key(s->region, NULL, s->region_key, &s->region_key_len), "weft_region_key");
}

void region_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_region_free(s->region, &op), "weft_region_free");
    world_wait(s->w, &op, "freeing a region");
}

/* Over shared memory it is mapped, otherwise checked: both paths are tested. */
void remote_open(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    o.path = strcmp(s->w->transports, "shm") ? WEFT_RMA_CHECKED : WEFT_RMA_MAPPED;
    must(weft_remote_attach(s->ep, s->other->region_key, s->other->region_key_len, &o, &op), "weft_remote_attach");
    world_wait(s->w, &op, "attaching a region's key");
    s->remote = (weft_remote_t *)op.buf;
}

void remote_close(side_t *s)
{
    weft_remote_drop(s->remote);
}

void sig_open(side_t *s)
{
    must(weft_sig_parse("add(a: i32, b: i32) -> i32", &s->sig), "weft_sig_parse");
}
