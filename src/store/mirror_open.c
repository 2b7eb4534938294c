/* store/mirror_open.c - becoming the writer of a mirror: making one, or taking one over.
 *
 *     MAKING ------------------------------------------------+
 *        \--one failed--> UNDOING                             v
 *     ASKING --all members answer--> TAKING --> AGREEING --> FIRST --all accept--> UP
 *        ^---- PAUSING <--someone else does the same--/
 *
 * In both cases there is a moment in which this writer has every member and readers have none. A writer that takes over needs
 * every member of the newest configuration that it finds: one that does not answer may be in a newer one, with a writer that
 * goes on. It stores an attempt on all of them, which fences the writer before it. Each member has every write that was
 * complete, so what differs between them was not. Their copies are made the same (mirror_fix.c), and the first configuration is
 * set.
 *
 * Promise: of two that take over at once, at most one succeeds. tests/sim/mirror_history.c. */
#include "store/mirror_state.h"

static void ask_all(weft_mirror_t *m, uint8_t phase, uint8_t what)
{
    m->phase = phase;
    mir_each(mb, m) {
        mb->asked = false;
        mb->got = WEFT_OK;
    }
    mir_each(mb, m)
        if (mb->store)
            wefti_mirror_ask(mb, what);
}

void wefti_mirror_open_begin(weft_mirror_t *m)
{
    wefti_store_random_id(store_state(m->rt), m->id);
    m->again = true;
    if (!m->writer) {
        m->phase = MIR_ASKING;
        wefti_mirror_find(m);
        return;
    }
    if (!m->make) {
        ask_all(m, MIR_ASKING, STORE_R_GET);
        return;
    }
    m->epoch = 1; /* an attempt at configuration 0: the first one is 1 */
    memcpy(&m->origin, m->id, sizeof m->origin);
    wefti_mirror_record(m, m->epoch, WEFTI_REPLICA_REFILLING, &m->rec);
    mir_each(mb, m)
        if (mb->store)
            memcpy(m->rec.members[m->rec.n_members++], mb->server, WEFT_STORE_ID);
    ask_all(m, MIR_MAKING, STORE_R_MAKE);
}

void wefti_mirror_open_asked(mir_member_t *mb, uint8_t what, weft_status_t st)
{
    mb->got = st;
    if (what == STORE_R_GET && !st && !wefti_mirror_sane(&mb->answer))
        mb->got = WEFT_ERR_CORRUPT;
    if (st || (what != STORE_R_MAKE && what != STORE_R_SET))
        return;
    mb->asked = true;
    mb->epoch = mb->m->rec.epoch;
    wefti_mirror_ask(mb, ASK_ATTACH);
}

/* --- taking over  ----------------------------------------------------------------------------------------------------- */

/* What it means that nobody has a record of it that counts. */
static weft_status_t nothing(const weft_mirror_t *m)
{
    weft_status_t st = WEFT_ERR_NOTFOUND;
    for (unsigned i = 0; i < WEFT_MIRROR_MAX; i++) {
        const mir_member_t *mb = &m->at[i];
        if (mb->store && mb->got != WEFT_ERR_NOTFOUND)
            st = st == WEFT_ERR_NOTFOUND ? (mb->got ? mb->got : WEFT_ERR_STALE) : st;
    }
    return st;
}

static mir_member_t *by_server(weft_mirror_t *m, const uint8_t server[WEFT_STORE_ID])
{
    mir_each(mb, m)
        if (mb->store && !memcmp(mb->server, server, WEFT_STORE_ID))
            return mb;
    return NULL;
}

/* Does this server have what the record says? */
static bool has(const mir_member_t *mb, const wefti_replica_t *rec)
{
    const wefti_replica_t *own = &mb->answer.rec;
    return !mb->got && own->origin == rec->origin && mir_config(own->epoch) <= mir_config(rec->epoch);
}

/* How many of its members are not to be had. One that was being refilled may know of a later configuration: then it counts as
 * well. */
static uint32_t missing_of(weft_mirror_t *m, const wefti_replica_t *rec)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rec->n_members; i++) {
        const mir_member_t *mb = by_server(m, rec->members[i]);
        n += !mb || !has(mb, rec);
    }
    mir_each(mb, m)
        n += mb->store && !mb->got && mb->answer.rec.origin == rec->origin &&
             mir_config(mb->answer.rec.epoch) > mir_config(rec->epoch) && !wefti_mirror_lists(rec, mb->server);
    return n;
}

/* The newest record: of the latest configuration; of a mirror that has all of its members rather than of one that was never
 * made whole. */
static const wefti_replica_t *newest(weft_mirror_t *m)
{
    const wefti_replica_t *best = NULL;
    mir_each(mb, m) {
        const wefti_replica_t *r = &mb->answer.rec;
        if (!mb->store || mb->got || !wefti_mirror_lists(r, mb->server))
            continue;
        bool better = !best || mir_config(r->epoch) > mir_config(best->epoch);
        if (!better && mir_config(r->epoch) == mir_config(best->epoch)) {
            bool whole = !missing_of(m, r), was_whole = !missing_of(m, best);
            better = whole != was_whole ? whole : r->epoch > best->epoch;
        }
        best = better ? r : best;
    }
    return best;
}

static void answered(weft_mirror_t *m)
{
    const wefti_replica_t *best = newest(m);
    if (!best) {
        wefti_mirror_die(m, nothing(m));
        return;
    }
    wefti_replica_t rec = *best, *r = &m->rec;
    uint32_t missing = missing_of(m, &rec);
    wefti_mirror_adopt(m, &rec);
    wefti_mirror_record(m, 0, WEFTI_REPLICA_REFILLING, r);
    m->sealed = true;
    for (uint32_t i = 0; i < rec.n_members; i++) {
        mir_member_t *mb = by_server(m, rec.members[i]);
        if (!mb || !has(mb, &rec))
            continue;
        const wefti_replica_t *own = &mb->answer.rec;
        mb->epoch = own->epoch;
        m->sealed = m->sealed && own->epoch == rec.epoch && own->flags & WEFTI_REPLICA_SEALED;
        m->epoch = own->epoch > m->epoch ? own->epoch : m->epoch;
        memcpy(r->members[r->n_members++], mb->server, WEFT_STORE_ID);
    }
    if (missing && (!m->force || !mir_config(rec.epoch))) { /* a mirror that was never complete has nothing to save */
        weft_log(WEFT_LOG_INFO, "mirror %s: %u of its %u members do not answer%s", m->name, missing, rec.n_members,
                 mir_config(rec.epoch) ? "" : ", and its making was never complete");
        wefti_mirror_die(m, WEFT_ERR_STALE);
        return;
    }
    if (mir_config(m->epoch + 1) != mir_config(m->epoch)) {
        wefti_mirror_die(m, WEFT_ERR_LIMIT);
        return;
    }
    r->epoch = ++m->epoch;
    m->phase = MIR_TAKING;
    mir_each(mb, m) {
        mb->asked = false;
        if (mb->store && wefti_mirror_lists(r, mb->server))
            wefti_mirror_ask(mb, STORE_R_SET);
    }
}

static void again_later(weft_mirror_t *m)
{
    if (++m->tries > MIR_TRIES) {
        wefti_mirror_die(m, WEFT_ERR_STALE);
        return;
    }
    mir_each(mb, m)
        wefti_mirror_drop_remote(mb);
    m->phase = MIR_PAUSING;
    uint64_t now = weft_now(m->rt);
    mir_at(&m->find_at, now + m->lease_ns / 32 + wefti_rng_below(&store_state(m->rt)->rng, m->lease_ns / 8));
}

static void taken(weft_mirror_t *m)
{
    unsigned up = 0;
    mir_each(mb, m) {
        if (!mb->store || !wefti_mirror_lists(&m->rec, mb->server) || mb->asked)
            continue;
        if (mb->got == WEFT_ERR_STALE) {
            again_later(m);
            return;
        }
        if (!m->force) { /* it may have been taken or not: the next open finds out */
            wefti_mirror_die(m, WEFT_ERR_STALE);
            return;
        }
    }
    mir_each(mb, m) {
        if (!mb->store)
            continue;
        if (!wefti_mirror_lists(&m->rec, mb->server)) {
            wefti_mirror_leave_store(mb);
            continue;
        }
        mb->state = mb->remote ? WEFT_MEMBER_UP : WEFT_MEMBER_FENCED; /* it serves nobody: there is no need to wait */
        up += mb->remote != NULL;
    }
    if (!up) {
        wefti_mirror_die(m, WEFT_ERR_PEER);
        return;
    }
    m->phase = MIR_AGREEING;
    m->again = true;
    if (up > 1 && !m->sealed)
        wefti_mirror_scan(m, PIECE_AGREE);
}

static void agreed(weft_mirror_t *m)
{
    bool up = false;
    mir_each(mb, m)
        up = up || mb->state == WEFT_MEMBER_UP;
    if (!up) {
        wefti_mirror_die(m, WEFT_ERR_PEER);
    } else if (!m->scan.on && m->scan.failed) {
        wefti_mirror_die(m, m->scan.failed);
    } else if (!m->scan.on) {
        m->phase = MIR_FIRST;
        wefti_mirror_set(m);
    }
}

/* --- making  ---------------------------------------------------------------------------------------------------------- */

static void made(weft_mirror_t *m)
{
    m->undone = WEFT_OK;
    mir_each(mb, m)
        if (mb->store && mb->got && !m->undone)
            m->undone = mb->got;
    if (m->undone) {
        m->phase = MIR_UNDOING;
        m->again = true;
        mir_each(mb, m)
            if (mb->asked)
                wefti_mirror_ask(mb, STORE_R_UNMAKE);
        return;
    }
    mir_each(mb, m)
        if (mb->store)
            mb->state = WEFT_MEMBER_UP;
    m->phase = MIR_FIRST;
    wefti_mirror_set(m);
}

/* --- a turn  ---------------------------------------------------------------------------------------------------------- */

void wefti_mirror_opened(weft_mirror_t *m)
{
    weft_op_t *op = m->open_op;
    m->phase = MIR_UP;
    m->open_op = NULL;
    m->again = true;
    if (m->writer)
        wefti_mirror_renew(m);
    op->buf = m;
    op->len = m->len;
    weft_ext_op_complete(op, WEFT_OK, 0);
}

void wefti_mirror_open_turn(weft_mirror_t *m)
{
    if (!m->writer || m->phase > MIR_FIRST || wefti_mirror_asks(m) || m->state)
        return;
    switch (m->phase) {
    case MIR_MAKING:
        made(m);
        break;
    case MIR_UNDOING:
        wefti_mirror_die(m, m->undone);
        break;
    case MIR_ASKING:
        answered(m);
        break;
    case MIR_PAUSING:
        if (m->find_at == WEFT_FOREVER)
            ask_all(m, MIR_ASKING, STORE_R_GET);
        break;
    case MIR_TAKING:
        taken(m);
        break;
    case MIR_AGREEING:
        agreed(m);
        break;
    default:
        if (wefti_mirror_settled(m))
            wefti_mirror_opened(m);
    }
}
