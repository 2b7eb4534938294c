/* store/mirror_add.c - adding a server in place of one that was lost.
 *
 *     PLACE --a place is free--> ASK --> TAKE --> COPY --every unit is there--> JOIN --the next configuration has it--> done
 *
 * TAKE makes the block at the server, or takes the block of a former member. It is REFILLING, and its record does not list it,
 * so that nobody relies on it before it joins. From COPY on it gets every write, and writes wait for it; a copy and a write of
 * one unit take turns. If it is lost before any server was told of a configuration with it, nobody has to be fenced.
 *
 * Promise: a member that joins has every write that is complete. tests/sim/mirror_history.c, tests/fault/mirror_loss.c. */
#include "store/mirror_state.h"

typedef struct mir_add {
    weft_mirror_t *m;
    weft_store_t *store;
} mir_add_t;

void wefti_mirror_add_end(weft_mirror_t *m, weft_status_t why)
{
    weft_op_t *op = m->add_op;
    m->adding = ADD_NONE;
    m->added = NULL;
    m->add_op = NULL;
    if (m->add_store)
        wefti_store_unref(m->add_store);
    m->add_store = NULL;
    if (m->scan.on && m->scan.kind == PIECE_COPY)
        m->scan.failed = why ? why : WEFT_ERR_CANCELLED;
    mir_wake(m);
    if (op)
        weft_ext_op_complete(op, why, wefti_mirror_why(m, why));
}

static void give_up(mir_member_t *mb, weft_status_t why)
{
    wefti_mirror_leave_store(mb);
    wefti_mirror_add_end(mb->m, why);
}

/* What the server has under that name: nothing, a former member's copy, or something else that must not be overwritten. */
static void found(mir_member_t *mb, weft_status_t st)
{
    weft_mirror_t *m = mb->m;
    const wefti_replica_t *was = &mb->answer.rec;
    wefti_replica_t *r = &m->add_rec;
    if (st && st != WEFT_ERR_NOTFOUND) {
        give_up(mb, st);
        return;
    }
    bool ours = was->origin == m->origin && mb->answer.bytes == mir_bytes(m->len, m->checksums);
    if (!st && (!ours || mir_config(was->epoch) > mir_config(m->accepted))) {
        weft_log(WEFT_LOG_WARN, "mirror %s: the server has a block of that name that is %s: remove it first", m->name,
                 ours ? "newer" : "another's");
        give_up(mb, WEFT_ERR_STATE);
        return;
    }
    uint64_t epoch = (!st && was->epoch > m->accepted ? was->epoch : m->accepted) + 1;
    wefti_mirror_record(m, epoch, WEFTI_REPLICA_REFILLING, r);
    mir_each(other, m)
        if (other->state == WEFT_MEMBER_UP)
            memcpy(r->members[r->n_members++], other->server, WEFT_STORE_ID);
    mb->epoch = was->epoch;
    m->adding = ADD_TAKE;
    wefti_mirror_ask(mb, st ? STORE_R_MAKE : STORE_R_SET);
}

void wefti_mirror_add_asked(mir_member_t *mb, uint8_t what, weft_status_t st)
{
    weft_mirror_t *m = mb->m;
    if (m->adding == ADD_ASK && (what != STORE_R_GET || !m->add_op)) {
        give_up(mb, st ? st : WEFT_ERR_CANCELLED);
    } else if (m->adding == ADD_ASK) {
        found(mb, st);
    } else if (st) {
        give_up(mb, st);
    } else if (what != ASK_ATTACH) {
        mb->epoch = m->add_rec.epoch;
        wefti_mirror_ask(mb, ASK_ATTACH);
    } else {
        mb->state = WEFT_MEMBER_REFILLING;
        m->adding = ADD_COPY;
        wefti_mirror_scan(m, PIECE_COPY);
        mir_wake(m);
    }
}

/* Is there a place without anything under way? */
static void take_place(weft_mirror_t *m)
{
    if (!wefti_mirror_settled(m)) /* its record has to name a configuration that exists */
        return;
    mir_each(mb, m) {
        if ((mb->state && mb->state != WEFT_MEMBER_FENCED) || mb->asking || mb->renewing || mb->under_way)
            continue;
        wefti_mirror_leave_store(mb);
        wefti_mirror_take_store(mb, m->add_store);
        m->add_store = NULL;
        wefti_list_each(l, &m->pieces)
            wefti_container_of(l, mir_piece_t, link)->have &= (uint8_t)~mir_bit(mb);
        m->added = mb;
        m->adding = ADD_ASK;
        wefti_mirror_ask(mb, STORE_R_GET);
        return;
    }
}

void wefti_mirror_add_turn(weft_mirror_t *m)
{
    switch (m->adding) {
    case ADD_PLACE:
        take_place(m);
        break;
    case ADD_COPY:
        if (m->scan.on)
            break;
        if (m->scan.failed) {
            wefti_mirror_lose(m->added, m->scan.failed);
            break;
        }
        m->adding = ADD_JOIN;
        /* fall through */
    case ADD_JOIN:
        if (!wefti_mirror_settled(m))
            break;
        if (m->added->state == WEFT_MEMBER_REFILLING)
            wefti_mirror_set(m);
        else
            wefti_mirror_add_end(m, WEFT_OK);
        break;
    default:
        break;
    }
}

void wefti_mirror_add_abort(weft_mirror_t *m)
{
    if (m->adding == ADD_PLACE)
        wefti_mirror_add_end(m, WEFT_ERR_CANCELLED);
    else if (m->adding == ADD_ASK || m->adding == ADD_TAKE)
        weft_op_cancel(&m->added->ask.op);
    else if (m->adding == ADD_COPY)
        wefti_mirror_lose(m->added, WEFT_ERR_CANCELLED);
}

/* --- the call  -------------------------------------------------------------------------------------------------------- */

static weft_status_t may_add(const weft_mirror_t *m, const weft_store_t *store)
{
    bool place = false;
    if (m->state || m->phase != MIR_UP)
        return m->state ? m->state : WEFT_ERR_CLOSED;
    if (m->adding)
        return weft_fail(WEFT_ERR_STATE, "a server is being added already: wait for that");
    for (const mir_member_t *mb = m->at; mb < m->at + WEFT_MIRROR_MAX; mb++) {
        if (mir_gets(mb) && !memcmp(mb->server, store->server, WEFT_STORE_ID))
            return weft_fail(WEFT_ERR_STATE, "this server is a member already");
        place = place || !mir_gets(mb);
    }
    return place ? WEFT_OK : weft_fail(WEFT_ERR_LIMIT, "the mirror has %u members already", WEFT_MIRROR_MAX);
}

static weft_status_t add_start(weft_op_t *op)
{
    const mir_add_t *a = weft_ext_scratch(op, mir_add_t);
    weft_mirror_t *m = a->m;
    weft_store_t *store = a->store;
    weft_status_t st = may_add(m, store);
    if (!st)
        st = weft_ext_op_track(op);
    st = wefti_mirror_came(op, st);
    if (st) {
        wefti_store_unref(store);
        return st;
    }
    m->add_store = store;
    m->add_op = op;
    m->adding = ADD_PLACE;
    wefti_mirror_turn(m);
    return WEFT_OK;
}

static void add_cancel(weft_op_t *op, weft_status_t why)
{
    weft_mirror_t *m = weft_ext_scratch(op, mir_add_t)->m;
    m->add_op = NULL;
    weft_ext_op_complete(op, why, 0);
    wefti_mirror_add_abort(m);
    wefti_mirror_turn(m);
}

static const weft_op_kind_t add_kind = {.name = "mirror add", .start = add_start, .cancel = add_cancel};

weft_status_t weft_mirror_add(weft_mirror_t *mirror, weft_store_t *store, weft_op_t *op)
{
    if (!mirror || !store || !op)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", !mirror ? "the mirror" : !store ? "the store" : "the operation");
    weft_status_t st = wefti_mirror_enter(mirror);
    if (st)
        return st;
    st = mirror->writer ? wefti_store_hold(store, mirror->rt)
                        : weft_fail(WEFT_ERR_RIGHTS, "this mirror was opened to read: open it with `write`");
    bool held = !st;
    st = wefti_mirror_prepare(mirror, op, &add_kind, st);
    if (st) {
        if (held)
            wefti_store_unref(store);
        return st;
    }
    *weft_ext_scratch(op, mir_add_t) = (mir_add_t){.m = mirror, .store = store};
    st = wefti_mirror_go(mirror, op);
    if (st && weft_ext_scratch(op, mir_add_t)->m) /* it did not begin */
        wefti_store_unref(store);
    return st;
}
