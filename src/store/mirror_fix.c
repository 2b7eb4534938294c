/* store/mirror_fix.c - making copies the same: agreement, mending, and the scan over all units.
 *
 * An AGREE piece has its unit to itself. It reads every member's copy, chooses one, and writes it to the members that have
 * another. Where it looks at all units of a mirror with checksums, it reads only the trailers first:
 *
 *     PEEK --trailers differ--> READ --copies differ--> WRITE --> done
 *
 * With checksums it chooses the good copy with the highest version, and writes nothing if none is good. Without checksums it
 * chooses the first member's. A COPY piece reads from one member and writes to the one that is refilled. A unit that is good
 * nowhere is copied as it is, so that it does not hold up the others.
 *
 * A step that fails is repeated: reading or writing a unit twice does no harm. tests/sim/mirror_history.c,
 * tests/fault/mirror_loss.c. */
#include "store/mirror_state.h"

static void end(mir_piece_t *p)
{
    if (p->scan) {
        p->m->scan.under_way--;
        p->m->scan.done++;
    }
    wefti_mirror_piece_end(p);
}

static uint8_t *copy_of(mir_piece_t *p, const mir_member_t *mb)
{
    return p->bytes + (size_t)mir_index(mb) * MIR_STRIDE;
}

/* Read or write at each of these members; false: there is none. */
static bool at_each(mir_piece_t *p, uint8_t members, bool write, uint8_t *bytes)
{
    weft_mirror_t *m = p->m;
    uint32_t from = p->step == STEP_PEEK ? WEFT_MIRROR_UNIT : 0, n = mir_stride(m->checksums) - from;
    mir_each(mb, m) {
        if (!(members & mir_bit(mb)))
            continue;
        weft_status_t st = wefti_mirror_access(p, mb, write, write ? bytes : copy_of(p, mb), from, n, mb->served ? 0 : MIR_ASK);
        if (st)
            wefti_mirror_write_answer(p, mb, st);
    }
    return members;
}

/* --- agreement  ------------------------------------------------------------------------------------------------------- */

static bool all_same(mir_piece_t *p, uint8_t members, uint32_t from)
{
    const uint8_t *first = NULL;
    mir_each(mb, p->m) {
        const uint8_t *copy = copy_of(p, mb) + from;
        if (!(members & mir_bit(mb)))
            continue;
        if (first && memcmp(first, copy, mir_stride(p->m->checksums) - from))
            return false;
        first = first ? first : copy;
    }
    return true;
}

/* The copy that the others are to have; NULL: none is good. */
static uint8_t *choose(mir_piece_t *p, uint8_t members)
{
    uint8_t *best = NULL;
    p->bad = p->differs = 0;
    mir_each(mb, p->m) {
        uint8_t *copy = copy_of(p, mb);
        if (!(members & mir_bit(mb)))
            continue;
        if (!p->m->checksums)
            best = best ? best : copy;
        else if (!wefti_mirror_good(copy, p->unit))
            p->bad |= mir_bit(mb);
        else if (!best || wefti_mirror_version(copy) > wefti_mirror_version(best))
            best = copy;
    }
    mir_each(mb, p->m)
        if (best && members & mir_bit(mb) && memcmp(copy_of(p, mb), best, mir_stride(p->m->checksums)))
            p->differs |= mir_bit(mb);
    return best;
}

static void agree_step(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    uint8_t up = 0;
    mir_each(mb, m)
        if (mir_usable(mb))
            up |= mir_bit(mb);
    if (p->out || (m->phase != MIR_AGREEING && !wefti_mirror_settled(m)))
        return;
    if (p->step == STEP_PEEK) {
        if (at_each(p, (uint8_t)(up & ~p->have), false, NULL))
            return;
        if (all_same(p, up, WEFT_MIRROR_UNIT)) {
            end(p);
            return;
        }
        p->step = STEP_READ;
        p->have = 0;
    }
    if (p->step == STEP_READ) {
        if (at_each(p, (uint8_t)(up & ~p->have), false, NULL))
            return;
        uint8_t *best = choose(p, up);
        if (!p->differs) {
            end(p);
            return;
        }
        p->user = best;
        p->step = STEP_WRITE;
        p->have = 0;
    }
    if (at_each(p, (uint8_t)(p->differs & up & ~p->have), true, p->user))
        return;
    m->mended += (uint64_t)__builtin_popcount(p->bad & p->have);
    end(p);
}

void wefti_mirror_mend(weft_mirror_t *m, uint64_t unit)
{
    if (m->n_mends >= MIR_MENDS || m->phase != MIR_UP)
        return; /* the next read of it comes here too */
    wefti_list_each(l, &m->pieces) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, link);
        if (p->mend && p->unit == unit)
            return;
    }
    mir_piece_t *p = wefti_mirror_piece(m, PIECE_AGREE, unit);
    if (!p)
        return;
    p->mend = true;
    m->n_mends++;
}

/* --- refilling  ------------------------------------------------------------------------------------------------------- */

static void copy_step(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    mir_member_t *to = m->added;
    weft_status_t failed;
    if (!to || m->adding != ADD_COPY || to->state != WEFT_MEMBER_REFILLING) {
        end(p);
        return;
    }
    if (p->out)
        return;
    if (p->step == STEP_READ) {
        if (!wefti_mirror_read_one(p, &failed) && !failed)
            return;
        p->step = STEP_WRITE;
        p->have = 0;
    }
    if (p->have & mir_bit(to)) {
        end(p);
        return;
    }
    weft_status_t st = wefti_mirror_access(p, to, true, p->bytes, 0, mir_stride(m->checksums), mir_patience(m));
    if (st)
        wefti_mirror_write_answer(p, to, st);
}

void wefti_mirror_fix_step(mir_piece_t *p)
{
    if (!wefti_mirror_has_lock(p))
        return;
    if (p->kind == PIECE_AGREE)
        agree_step(p);
    else
        copy_step(p);
}

/* --- all units  ------------------------------------------------------------------------------------------------------ */

void wefti_mirror_scan(weft_mirror_t *m, uint8_t kind)
{
    m->scan = (mir_scan_t){.on = true, .kind = kind, .end = mir_units(m->len)};
    m->again = true;
}

void wefti_mirror_scan_turn(weft_mirror_t *m)
{
    mir_scan_t *s = &m->scan;
    if (!s->on)
        return;
    while (s->under_way < MIR_SCAN && s->next < s->end && !s->failed) {
        mir_piece_t *p = wefti_mirror_piece(m, s->kind, s->next);
        if (!p) {
            if (!s->under_way)
                s->failed = WEFT_ERR_NOMEM;
            break;
        }
        p->scan = true;
        if (s->kind == PIECE_AGREE && m->checksums)
            p->step = STEP_PEEK;
        s->next++;
        s->under_way++;
    }
    if (!s->under_way && (s->next == s->end || s->failed)) {
        s->on = false;
        m->again = true;
    }
}
