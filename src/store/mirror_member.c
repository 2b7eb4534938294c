/* store/mirror_member.c - the members of a mirror: what is asked of them, their leases, and the configurations they are in.
 *
 * A member, as a writer sees it:
 *
 *     (empty) --open--> UP --no answer--> LOST --its lease is over, the others have the next configuration--> FENCED
 *                        ^                                                                                      |
 *                        +------------------------- REFILLING <-------------------------add--------------------+
 *
 * While a configuration is set, its members are `resetting`: their servers make every remote stale before they answer, and the
 * writer attaches the new key. Accesses that fail meanwhile are repeated. A member that does not accept is LOST too, and its
 * lease is waited out: its server may have accepted, and only the answer was lost. A member that says that it is stale is not
 * lost yet: see doubt().
 *
 * A member that was refilled comes into a configuration last, when all others have accepted: it was not in the one before, and
 * cannot tell whether this is still the writer. From the moment that any server was told of a configuration with it, it counts
 * (`listed`): if it is lost then, a configuration without it has to follow. docs/design/mirrors.md explains all of it.
 *
 * A server serves until stamp + lease_ns, for the last stamp that the writer handed back. It made that stamp before the stamp
 * came here (`heard`), so its lease is over at heard + lease_ns. The writer waits an eighth longer, for clocks that differ.
 *
 * Promise: no write is complete while a server that lacks it may answer a reader. tests/sim/mirror_history.c. */
#include "store/mirror_state.h"

/* --- asking  ---------------------------------------------------------------------------------------------------------- */

static void asked(mir_member_t *mb, uint8_t what, weft_status_t st)
{
    weft_mirror_t *m = mb->m;
    const wefti_replica_answer_t *a = &mb->answer;
    bool told = what == STORE_R_GET || what == STORE_R_MAKE || what == STORE_R_SET;
    if (told && (!st || st == WEFT_ERR_AGAIN)) {
        mb->stamp = a->stamp;
        mb->heard = weft_now(m->rt);
    }
    if (what == ASK_ATTACH && !st && mb->ask.op.len < mir_bytes(m->len, m->checksums))
        st = WEFT_ERR_CORRUPT;
    if (what == ASK_ATTACH && mb->ask.op.buf) {
        wefti_mirror_drop_remote(mb);
        if (!st && !m->state && m->phase != MIR_GONE)
            mb->remote = (weft_remote_t *)mb->ask.op.buf;
        else
            weft_remote_drop((weft_remote_t *)mb->ask.op.buf);
        mb->ask.op.buf = NULL;
    }
    m->again = true;
    if (m->state || m->phase == MIR_GONE)
        return;
    if (mb == m->added && (m->adding == ADD_ASK || m->adding == ADD_TAKE)) {
        wefti_mirror_add_asked(mb, what, st);
    } else if (mb->resetting && what == STORE_R_SET && st == WEFT_ERR_AGAIN && mb->again++ < 8) {
        wefti_mirror_ask(mb, STORE_R_SET);
    } else if (mb->resetting && what == STORE_R_SET && !st) {
        mb->epoch = m->rec.epoch;
        wefti_mirror_ask(mb, ASK_ATTACH);
    } else if (mb->resetting && st) {
        wefti_mirror_lose(mb, st);
    } else if (mb->resetting) {
        mb->resetting = false;
        mb->state = WEFT_MEMBER_UP;
        mir_wake(m);
    } else if (!m->writer) {
        wefti_mirror_find_asked(mb, what, st);
    } else if (m->phase < MIR_AGREEING) {
        wefti_mirror_open_asked(mb, what, st);
    } else if (m->phase == MIR_SEALING) {
        mb->got = st;
    } else { /* it was lost meanwhile */
        wefti_mirror_drop_remote(mb);
    }
}

static void on_answer(weft_op_t *op, void *user)
{
    mir_member_t *mb = (mir_member_t *)user;
    uint8_t what = mb->asking;
    mb->asking = ASK_NONE;
    mb->m->children--;
    if (op->status)
        op->buf = NULL;
    asked(mb, what, op->status);
    wefti_mirror_turn(mb->m);
}

static weft_status_t attach(mir_member_t *mb)
{
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    o.path = WEFT_RMA_CHECKED; /* only there is a unit written and read whole */
    weft_ep_t *ep = wefti_store_find_ep(mb->store);
    return ep ? weft_remote_attach(ep, mb->answer.key, mb->answer.key_len, &o, &mb->ask.op) : WEFT_ERR_PEER;
}

void wefti_mirror_ask(mir_member_t *mb, uint8_t what)
{
    weft_mirror_t *m = mb->m;
    store_request_t q = {.kind = what, .len = mir_bytes(m->len, m->checksums), .epoch = mb->epoch, .stamp = mb->stamp};
    q.rec = mb == m->added && m->adding == ADD_TAKE ? m->add_rec : m->rec;
    memcpy(q.writer, m->id, sizeof q.writer);
    wefti_mirror_child(&mb->ask, m, on_answer, mb, m->writer && m->phase < MIR_FIRST ? MIR_ASK : mir_patience(m));
    mb->ask.op.buf = NULL;
    weft_status_t st =
        what == ASK_ATTACH ? attach(mb) : wefti_store_replica_ask(mb->store, m->name, &q, &mb->answer, &mb->ask.op);
    if (st) {
        mb->ask.op.buf = NULL;
        asked(mb, what, st);
        return;
    }
    mb->asking = what;
    m->children++;
}

bool wefti_mirror_asks(const weft_mirror_t *m)
{
    for (unsigned i = 0; i < WEFT_MIRROR_MAX; i++)
        if (m->at[i].asking)
            return true;
    return false;
}

/* --- places  ---------------------------------------------------------------------------------------------------------- */

void wefti_mirror_take_store(mir_member_t *mb, weft_store_t *store)
{
    mb->store = store;
    memcpy(mb->server, store->server, WEFT_STORE_ID);
}

void wefti_mirror_leave_store(mir_member_t *mb)
{
    wefti_mirror_drop_remote(mb);
    if (mb->store)
        wefti_store_unref(mb->store);
    mb->store = NULL;
    mb->state = 0;
    mb->served = mb->listed = mb->left_out = mb->resetting = mb->lapsed = false;
    mb->epoch = mb->stamp = mb->heard = 0;
}

void wefti_mirror_drop_remote(mir_member_t *mb)
{
    mb->use++;
    weft_remote_drop(mb->remote);
    mb->remote = NULL;
}

/* --- losing  ---------------------------------------------------------------------------------------------------------- */

static void stop_accesses(mir_member_t *mb)
{
    weft_mirror_t *m = mb->m;
    unsigned i = mir_index(mb);
    wefti_mirror_drop_remote(mb);
    wefti_list_each(l, &m->pieces) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, link);
        if (p->out & mir_bit(mb))
            weft_op_cancel(&p->to[i].child.op);
    }
    mir_wake(m);
}

void wefti_mirror_lose(mir_member_t *mb, weft_status_t why)
{
    weft_mirror_t *m = mb->m;
    if (!mir_gets(mb))
        return;
    weft_log(WEFT_LOG_INFO, "mirror %s: member %u is lost: %s", m->name, mir_index(mb), weft_status_name(why));
    mb->why = why;
    mb->state = mb->listed ? WEFT_MEMBER_LOST : WEFT_MEMBER_FENCED;
    mb->left_out = mb->resetting = mb->lapsed = false;
    if (mb->asking)
        weft_op_cancel(&mb->ask.op);
    if (mb->renewing)
        weft_op_cancel(&mb->renewal.op);
    stop_accesses(mb);
    if (mb == m->added)
        wefti_mirror_add_end(m, why);
}

/* It is stale. Perhaps only because one of us was held up for longer than the lease: then it has answered nobody since, lacks
 * nothing that is complete, and goes on with the next configuration. If somebody else is its writer by now it refuses that. */
static void doubt(mir_member_t *mb, weft_status_t why)
{
    if (mb->state != WEFT_MEMBER_UP || !mb->served || why != WEFT_ERR_STALE) {
        wefti_mirror_lose(mb, why);
        return;
    }
    mb->lapsed = true;
    stop_accesses(mb);
}

bool wefti_mirror_failed(mir_member_t *mb, uint32_t use, weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_NOMEM:
    case WEFT_ERR_LIMIT:
    case WEFT_ERR_AGAIN:
        return true;
    case WEFT_OK:
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_CANCELLED:
        return false;
    default:
        break;
    }
    if (use != mb->use || mb->resetting)
        return false;
    if (mb->m->writer) {
        doubt(mb, st);
    } else {
        wefti_mirror_drop_remote(mb);
        mb->state = WEFT_MEMBER_LOST;
        wefti_mirror_find(mb->m);
    }
    return false;
}

/* --- configurations  -------------------------------------------------------------------------------------------------- */

bool wefti_mirror_sane(const wefti_replica_answer_t *a)
{
    const wefti_replica_t *r = &a->rec;
    return r->n_members && r->len && r->len <= MIR_LEN_MAX && a->bytes >= mir_bytes(r->len, r->flags & WEFTI_REPLICA_CHECKSUMS);
}

bool wefti_mirror_lists(const wefti_replica_t *rec, const uint8_t server[WEFT_STORE_ID])
{
    for (uint32_t i = 0; i < rec->n_members; i++)
        if (!memcmp(rec->members[i], server, WEFT_STORE_ID))
            return true;
    return false;
}

void wefti_mirror_adopt(weft_mirror_t *m, const wefti_replica_t *rec)
{
    if (m->phase != MIR_UP) { /* from then on any thread that posts reads them, and they do not change */
        m->len = rec->len;
        m->origin = rec->origin;
        m->checksums = rec->flags & WEFTI_REPLICA_CHECKSUMS;
    }
    m->lease_ns = rec->lease_ns;
    m->epoch = rec->epoch;
}

void wefti_mirror_record(const weft_mirror_t *m, uint64_t epoch, uint32_t flags, wefti_replica_t *rec_out)
{
    *rec_out = (wefti_replica_t){.epoch = epoch, .len = m->len, .origin = m->origin, .lease_ns = m->lease_ns};
    rec_out->flags = flags | (m->checksums ? WEFTI_REPLICA_CHECKSUMS : 0u);
    memcpy(rec_out->writer, m->id, WEFT_STORE_ID);
}

bool wefti_mirror_settled(const weft_mirror_t *m)
{
    bool up = false;
    for (unsigned i = 0; i < WEFT_MIRROR_MAX; i++) {
        if (m->at[i].state == WEFT_MEMBER_LOST || m->at[i].lapsed)
            return false;
        up = up || m->at[i].state == WEFT_MEMBER_UP;
    }
    return up && !m->setting;
}

void wefti_mirror_set(weft_mirror_t *m)
{
    wefti_replica_t *r = &m->rec;
    m->setting = true;
    m->epoch = mir_next_config(m->epoch);
    wefti_mirror_record(m, m->epoch, 0, r);
    mir_each(mb, m) {
        bool joins = mb == m->added && m->adding == ADD_JOIN;
        if (mb->state == WEFT_MEMBER_UP || joins) {
            memcpy(r->members[r->n_members++], mb->server, WEFT_STORE_ID);
            mb->listed = true;
        }
        if (mb->state == WEFT_MEMBER_UP)
            mb->resetting = mb->served = true;
        mb->again = 0;
        mb->lapsed = false;
        mb->left_out = mb->state == WEFT_MEMBER_LOST;
    }
    mir_at(&m->renew_at, weft_now(m->rt) + m->lease_ns / 4);
    weft_log(WEFT_LOG_INFO, "mirror %s: configuration %llu has %u members", m->name, (unsigned long long)mir_config(m->epoch),
             r->n_members);
    mir_each(mb, m)
        if (mb->resetting)
            wefti_mirror_ask(mb, STORE_R_SET);
}

/* Every one that was in it has accepted. */
static void accepted(weft_mirror_t *m)
{
    m->accepted = m->epoch;
    mir_each(mb, m)
        if (mb->state == WEFT_MEMBER_LOST) {
            mb->state = WEFT_MEMBER_FENCED;
            mb->served = mb->listed = mb->left_out = false;
        }
}

void wefti_mirror_config_turn(weft_mirror_t *m)
{
    bool resetting = false, lapsed = false, up = false, lost = false, more = false, stale = false;
    uint64_t when = 0;
    if (!m->writer || m->phase < MIR_FIRST || m->phase >= MIR_SEALING || m->state)
        return;
    mir_each(mb, m) {
        uint64_t over = mb->served ? mb->heard + m->lease_ns + m->lease_ns / 8 : 0;
        resetting = resetting || mb->resetting;
        lapsed = lapsed || mb->lapsed;
        up = up || mb->state == WEFT_MEMBER_UP;
        stale = stale || (mb->state >= WEFT_MEMBER_LOST && mb->why == WEFT_ERR_STALE);
        if (mb->state != WEFT_MEMBER_LOST)
            continue;
        lost = true;
        more = more || !mb->left_out;
        when = over > when ? over : when;
    }
    if (resetting)
        return;
    if (!up) {
        wefti_mirror_die(m, stale ? WEFT_ERR_STALE : WEFT_ERR_PEER);
        return;
    }
    if (m->setting && !more && m->adding == ADD_JOIN && m->added->state == WEFT_MEMBER_REFILLING &&
        wefti_mirror_lists(&m->rec, m->added->server)) {
        /* The new member last: it was not in the configuration before, and does not know whether we are still the writer. */
        m->added->resetting = m->added->served = true;
        wefti_mirror_ask(m->added, STORE_R_SET);
        return;
    }
    if (m->setting) {
        m->setting = false;
        mir_wake(m);
        if (!more) {
            accepted(m);
            return;
        }
    }
    if (!lost && !lapsed)
        return;
    if (weft_now(m->rt) < when)
        mir_at(&m->fence_at, when);
    else
        wefti_mirror_set(m);
}

/* --- leases  ---------------------------------------------------------------------------------------------------------- */

static void on_renewed(weft_op_t *op, void *user)
{
    mir_member_t *mb = (mir_member_t *)user;
    weft_mirror_t *m = mb->m;
    weft_status_t st = op->status;
    mb->renewing = false;
    m->children--;
    if (m->state || m->phase >= MIR_SEALING) {
        /* nothing */
    } else if (!st || st == WEFT_ERR_AGAIN) {
        if (mb->epoch == mb->renew_epoch) { /* else there is a later stamp */
            mb->stamp = mb->renewed.stamp;
            mb->heard = weft_now(m->rt);
        }
        if (st)
            mir_at(&m->renew_at, weft_now(m->rt) + m->lease_ns / 32);
    } else if (mb->epoch == mb->renew_epoch && mb->state == WEFT_MEMBER_UP && !mb->resetting && st != WEFT_ERR_NOMEM &&
               st != WEFT_ERR_CANCELLED) {
        doubt(mb, st);
    }
    wefti_mirror_turn(m);
}

void wefti_mirror_renew(weft_mirror_t *m)
{
    m->renew_at = weft_now(m->rt) + m->lease_ns / 4;
    mir_each(mb, m) {
        if (mb->state != WEFT_MEMBER_UP || !mb->served || mb->lapsed || mb->resetting || mb->renewing)
            continue;
        wefti_mirror_child(&mb->renewal, m, on_renewed, mb, m->lease_ns);
        mb->renew_epoch = mb->epoch;
        store_request_t q = {.kind = STORE_R_RENEW, .epoch = mb->epoch, .stamp = mb->stamp};
        memcpy(q.writer, m->id, sizeof q.writer);
        weft_status_t st = wefti_store_replica_ask(mb->store, m->name, &q, &mb->renewed, &mb->renewal.op);
        if (!st) {
            mb->renewing = true;
            m->children++;
        } else if (st != WEFT_ERR_NOMEM && st != WEFT_ERR_LIMIT) {
            wefti_mirror_lose(mb, st);
        }
    }
}
