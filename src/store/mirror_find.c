/* store/mirror_find.c - which members a reader may read from.
 *
 * A round asks every server. The record with the highest epoch ever seen says who the members are. Of the servers that answered,
 * a reader attaches those that this record lists, that are in the same configuration, and that gave a key. Once it has found
 * one, it waits only a moment (MIR_GATHER) for servers that might know a newer record.
 *
 * A member that is no longer good shows it: its remote is stale, or its server is lost. Then there is another round, while reads
 * go on at the other members. There is also another round if no copy at hand matches its checksum and a server is left that is
 * not attached. A round that finds nothing is repeated after a while, as long as a server may still get something. Reads
 * without a deadline then end with WEFT_ERR_STALE after two leases: the writer is gone, and nobody has taken over.
 *
 * Promise: no read from a member that the highest epoch seen does not list. tests/sim/mirror_history.c. */
#include "store/mirror_state.h"

static bool current(const weft_mirror_t *m, const mir_member_t *mb)
{
    return wefti_mirror_lists(&m->rec, mb->server) && mir_config(mb->epoch) == mir_config(m->epoch) &&
           mir_config(m->accepted) == mir_config(m->epoch);
}

void wefti_mirror_find(weft_mirror_t *m)
{
    m->seek = m->again = true;
}

bool wefti_mirror_find_more(weft_mirror_t *m, uint8_t bad, bool *sought)
{
    bool more = false, coming = m->seek;
    if (m->writer)
        return false;
    mir_each(mb, m) {
        if (!mb->store || mir_usable(mb) || bad & mir_bit(mb))
            continue;
        more = true;
        coming = coming || mb->asking || mb->fresh;
    }
    if (!more || (*sought && !coming))
        return false;
    if (!coming)
        wefti_mirror_find(m);
    *sought = *sought || !coming;
    return true;
}

/* --- answers  --------------------------------------------------------------------------------------------------------- */

static void told(mir_member_t *mb)
{
    weft_mirror_t *m = mb->m;
    const wefti_replica_t *r = &mb->answer.rec;
    if (!wefti_mirror_sane(&mb->answer)) {
        mb->got = WEFT_ERR_CORRUPT;
        return;
    }
    if (m->rec.n_members && r->origin != m->origin &&
        r->epoch <= m->accepted) { /* another mirror of that name, whose making failed */
        mb->got = WEFT_ERR_NOTFOUND;
        return;
    }
    mb->epoch = r->epoch;
    m->epoch = r->epoch > m->epoch ? r->epoch : m->epoch;
    if (!wefti_mirror_lists(r, mb->server)) { /* it is being refilled: its bytes do not count, but its record does */
        mb->answer.key_len = 0;
        return;
    }
    if (m->rec.n_members && r->epoch <= m->accepted)
        return;
    if (m->phase == MIR_UP &&
        (r->len != m->len || r->origin != m->origin || !!(r->flags & WEFTI_REPLICA_CHECKSUMS) != m->checksums)) {
        wefti_mirror_die(m, WEFT_ERR_STALE); /* another one of that name */
        return;
    }
    uint64_t highest = m->epoch;
    wefti_mirror_adopt(m, r);
    m->epoch = highest;
    m->accepted = r->epoch;
    m->rec = *r;
}

void wefti_mirror_find_asked(mir_member_t *mb, uint8_t what, weft_status_t st)
{
    if (what == STORE_R_GET) {
        mb->asked = false;
        mb->fresh = true;
        mb->got = st;
        if (!st)
            told(mb);
    } else if (what == ASK_ATTACH) {
        mb->state = mb->remote ? WEFT_MEMBER_UP : WEFT_MEMBER_LOST;
        if (st)
            mb->got = st;
        mir_wake(mb->m);
    }
}

static void judge(mir_member_t *mb)
{
    weft_mirror_t *m = mb->m;
    bool good = current(m, mb);
    if (mb->fresh)
        good = good && !mb->got && mb->answer.key_len;
    if (good && mb->remote && mb->renew_epoch != mb->epoch)
        wefti_mirror_drop_remote(mb); /* what was given out before a set is stale */
    if (!good) {
        wefti_mirror_drop_remote(mb);
        mb->state = wefti_mirror_lists(&m->rec, mb->server) ? WEFT_MEMBER_LOST : WEFT_MEMBER_FENCED;
    } else if (mb->fresh && !mb->remote && !mb->asking) {
        mb->renew_epoch = mb->epoch;
        wefti_mirror_ask(mb, ASK_ATTACH);
    }
    mb->fresh = false;
}

/* --- rounds that find nothing  ---------------------------------------------------------------------------------------- */

static bool is_lost(weft_status_t st)
{
    return st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED || st == WEFT_ERR_STALE || st == WEFT_ERR_UNSUPPORTED;
}

static bool anyone_waits(const weft_mirror_t *m)
{
    return m->open_op || !wefti_list_empty(&m->pieces) || !wefti_list_empty(&m->reads);
}

/* End operations without a deadline that have waited for long enough. */
static void give_up(weft_mirror_t *m)
{
    if (m->open_op) {
        if (!m->open_op->timeout_ns)
            wefti_mirror_die(m, WEFT_ERR_STALE);
        return;
    }
    wefti_list_t *lists[] = {&m->reads, &m->begun};
    for (unsigned i = 0; i < 2; i++)
        wefti_list_each_safe(l, lists[i]) {
            weft_op_t *op = wefti_container_of(l, mir_io_t, link)->op;
            if (!op->timeout_ns)
                wefti_mirror_io_fail(op, WEFT_ERR_STALE);
        }
}

static void barren(weft_mirror_t *m, uint64_t now)
{
    bool none = true, all_lost = true;
    weft_status_t first = WEFT_ERR_NOTFOUND;
    m->judged = true;
    mir_each(mb, m) {
        if (!mb->store)
            continue;
        none = none && mb->got; /* nobody has a record of it */
        all_lost = all_lost && is_lost(mb->got);
        first = first == WEFT_ERR_NOTFOUND && mb->got ? mb->got : first;
    }
    if (m->open_op && (all_lost || (none && !m->epoch))) {
        wefti_mirror_die(m, first);
        return;
    }
    if (all_lost) {
        wefti_mirror_io_fail_all(m, true, false, WEFT_ERR_PEER);
        return;
    }
    if (!m->barren_since)
        m->barren_since = now;
    else if (now - m->barren_since > 2 * m->lease_ns)
        give_up(m);
    if (m->state || !anyone_waits(m))
        return;
    m->seek = true;
    m->seek_at = now + (m->lease_ns / 8 > 5 * WEFT_MILLISECOND ? m->lease_ns / 8 : 5 * WEFT_MILLISECOND);
    mir_at(&m->find_at, m->seek_at);
}

/* --- a turn  ---------------------------------------------------------------------------------------------------------- */

static void ask_all(weft_mirror_t *m, uint64_t now)
{
    m->seek = m->judged = false;
    m->seek_at = now + (m->lease_ns / 64 > WEFT_MILLISECOND ? m->lease_ns / 64 : WEFT_MILLISECOND);
    m->found_at = 0;
    mir_each(mb, m)
        if (mb->store && !mb->asking) {
            mb->asked = true;
            wefti_mirror_ask(mb, STORE_R_GET);
        }
}

void wefti_mirror_find_turn(weft_mirror_t *m)
{
    bool waiting = false, found = false, usable = false;
    if (m->writer || m->state || m->phase == MIR_GONE)
        return;
    uint64_t now = weft_now(m->rt);
    if (m->seek && now >= m->seek_at)
        ask_all(m, now);
    else if (m->seek)
        mir_at(&m->find_at, m->seek_at);
    mir_each(mb, m) {
        waiting = waiting || mb->asked;
        found = found || (mb->fresh && !mb->got && mb->answer.key_len);
    }
    if (waiting && found && !m->found_at)
        m->found_at = now;
    if (waiting && !(m->found_at && now >= m->found_at + MIR_GATHER)) {
        if (m->found_at)
            mir_at(&m->find_at, m->found_at + MIR_GATHER);
        return;
    }
    mir_each(mb, m) {
        if (mb->store && mb->fresh) /* a piece in wefti_mirror_find_more() may wait for this one */
            mir_wake(m);
        if (mb->store && (mb->fresh || mb->remote))
            judge(mb);
        usable = usable || mir_usable(mb);
    }
    if (usable) {
        m->barren_since = 0;
        m->judged = true;
        if (m->open_op)
            wefti_mirror_opened(m);
    } else if (!m->judged && !waiting && !m->seek && !wefti_mirror_asks(m)) {
        barren(m, now);
    }
}
