/* store/mirror_piece.c - pieces: one unit of a read, of a write or of a repair, and its accesses to members.
 *
 * Of the pieces that change one unit the first has its lock; the others wait (locks[]). A piece that has ended is freed when no
 * access of it is under way. tests/sim/mirror_history.c. */
#include "store/mirror_state.h"

static uint64_t place(const mir_piece_t *p)
{
    return p->unit * mir_stride(p->m->checksums);
}

/* --- pieces  ---------------------------------------------------------------------------------------------------------- */

static wefti_list_t *lock_list(weft_mirror_t *m, uint64_t unit)
{
    return &m->locks[unit % MIR_LOCKS];
}

/* Of the pieces of its unit the first one has it. */
static mir_piece_t *first_of(weft_mirror_t *m, uint64_t unit)
{
    wefti_list_each(l, lock_list(m, unit)) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, lock_link);
        if (p->unit == unit)
            return p;
    }
    return NULL;
}

bool wefti_mirror_has_lock(const mir_piece_t *p)
{
    return !p->locks || first_of(p->m, p->unit) == p;
}

mir_piece_t *wefti_mirror_piece(weft_mirror_t *m, uint8_t kind, uint64_t unit)
{
    mir_piece_t *p = (mir_piece_t *)(kind == PIECE_AGREE ? wefti_malloc(sizeof *p + WEFT_MIRROR_MAX * MIR_STRIDE)
                                                         : wefti_spares_get(&m->spare, sizeof *p + MIR_STRIDE));
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    p->m = m;
    p->kind = kind;
    p->unit = unit;
    p->step = STEP_READ;
    p->patience = m->lease_ns / 4;
    p->locks = kind != PIECE_READ;
    wefti_list_push_back(&m->pieces, &p->link);
    if (p->locks)
        wefti_list_push_back(lock_list(m, unit), &p->lock_link);
    wefti_mirror_piece_ready(p);
    return p;
}

void wefti_mirror_piece_ready(mir_piece_t *p)
{
    if (!wefti_list_linked(&p->ready_link))
        wefti_list_push_back(&p->m->ready, &p->ready_link);
    p->m->again = true;
}

static void piece_free(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    wefti_list_remove(&p->link);
    if (p->kind != PIECE_AGREE && m->phase != MIR_GONE)
        wefti_spares_put(&m->spare, p, MIR_SCAN);
    else
        wefti_free(p);
}

void wefti_mirror_piece_end(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    if (p->over)
        return;
    p->over = true;
    p->io = NULL;
    if (wefti_list_linked(&p->ready_link))
        wefti_list_remove(&p->ready_link);
    if (p->locks) {
        wefti_list_remove(&p->lock_link);
        mir_piece_t *next = first_of(m, p->unit);
        if (next)
            wefti_mirror_piece_ready(next);
    }
    m->n_reads -= p->kind == PIECE_READ;
    m->n_writes -= p->kind == PIECE_WRITE;
    m->n_mends -= p->mend;
    m->again = true;
    if (p->out) /* it is cancelled, and ends soon */
        for (unsigned i = 0; i < WEFT_MIRROR_MAX; i++) {
            if (p->out & 1u << i)
                weft_op_cancel(&p->to[i].child.op);
        }
    else
        piece_free(p);
}

void wefti_mirror_piece_retry(mir_piece_t *p, weft_status_t st)
{
    if (p->retries >= MIR_RETRIES && p->io && p->step == STEP_READ) {
        wefti_mirror_io_fail(p->io, st); /* and the piece with it */
        return;
    }
    p->retries += p->retries < MIR_RETRIES;
    mir_at(&p->m->retry_at, weft_now(p->m->rt) + MIR_AGAIN);
}

void wefti_mirror_pieces_free(weft_mirror_t *m)
{
    wefti_list_each_safe(l, &m->pieces)
        wefti_mirror_piece_end(wefti_container_of(l, mir_piece_t, link));
    wefti_spares_free(&m->spare);
}

/* --- accesses  -------------------------------------------------------------------------------------------------------- */

/* A copy has come: does it match its checksum? */
static bool came(mir_piece_t *p, mir_member_t *mb)
{
    weft_mirror_t *m = p->m;
    if (!m->checksums || wefti_mirror_good(p->bytes, p->unit))
        return true;
    uint64_t left_out;
    if (wefti_rarely_may(&m->rarely, mir_index(mb), weft_now(NULL), &left_out))
        weft_log(WEFT_LOG_WARN,
                 "mirror %s: unit %llu does not match its checksum at member %u (and %llu others since the last line)", m->name,
                 (unsigned long long)p->unit, mir_index(mb), (unsigned long long)left_out);
    p->bad |= mir_bit(mb);
    return false;
}

static void read_answer(mir_piece_t *p, mir_member_t *mb, uint32_t use, weft_status_t st)
{
    weft_mirror_t *m = p->m;
    if (!st) {
        if (came(p, mb))
            p->have |= mir_bit(mb);
        return;
    }
    if (wefti_mirror_failed(mb, use, st)) {
        wefti_mirror_piece_retry(p, st);
        return;
    }
    m->failovers++;
    if (st == WEFT_ERR_TIMEOUT) {
        p->tried |= mir_bit(mb);
        m->prefer = (mir_index(mb) + 1) % WEFT_MIRROR_MAX;
        if (!m->writer)
            wefti_mirror_find(m);
    }
}

void wefti_mirror_write_answer(mir_piece_t *p, mir_member_t *mb, weft_status_t st)
{
    uint32_t use = p->to[mir_index(mb)].use;
    if (!st) {
        if (use == mb->use) /* else another member may be in its place */
            p->have |= mir_bit(mb);
    } else if (st == WEFT_ERR_TIMEOUT && use == mb->use) {
        wefti_mirror_lose(mb, st); /* only those that serve nobody have a time */
    } else if (wefti_mirror_failed(mb, use, st)) {
        wefti_mirror_piece_retry(p, st);
        if (p->retries >= MIR_RETRIES)
            wefti_mirror_lose(mb, st);
    }
}

static void on_access(weft_op_t *op, void *user)
{
    mir_access_t *to = (mir_access_t *)user;
    mir_piece_t *p = to->p;
    weft_mirror_t *m = p->m;
    mir_member_t *mb = &m->at[to - p->to];
    p->out &= (uint8_t)~mir_bit(mb);
    mb->under_way--;
    m->children--;
    if (p->over) {
        if (!p->out)
            piece_free(p);
    } else {
        if (op->status != WEFT_ERR_NOMEM && op->status != WEFT_ERR_LIMIT && op->status != WEFT_ERR_AGAIN)
            wefti_mirror_piece_ready(p);
        if (p->kind != PIECE_AGREE && p->step == STEP_READ)
            read_answer(p, mb, to->use, op->status);
        else
            wefti_mirror_write_answer(p, mb, op->status);
    }
    wefti_mirror_turn(m);
}

weft_status_t wefti_mirror_access(mir_piece_t *p, mir_member_t *mb, bool write, uint8_t *bytes, uint32_t from, uint32_t n,
                                  uint64_t timeout_ns)
{
    mir_access_t *to = &p->to[mir_index(mb)];
    to->p = p;
    to->use = mb->use;
    wefti_mirror_child(&to->child, p->m, on_access, to, timeout_ns);
    weft_status_t st = write ? weft_rma_write(mb->remote, place(p) + from, bytes + from, n, &to->child.op)
                             : weft_rma_read(mb->remote, place(p) + from, bytes + from, n, &to->child.op);
    if (st)
        return st;
    p->out |= mir_bit(mb);
    mb->under_way++;
    p->m->children++;
    return WEFT_OK;
}

static mir_member_t *pick(mir_piece_t *p, uint8_t *usable_out)
{
    weft_mirror_t *m = p->m;
    mir_member_t *found = NULL;
    *usable_out = 0;
    for (unsigned k = 0; k < WEFT_MIRROR_MAX; k++) {
        mir_member_t *mb = &m->at[(m->prefer + k) % WEFT_MIRROR_MAX];
        if (!mir_usable(mb))
            continue;
        *usable_out |= mir_bit(mb);
        if (!found && !((p->tried | p->bad) & mir_bit(mb)))
            found = mb;
    }
    return found;
}

bool wefti_mirror_read_one(mir_piece_t *p, weft_status_t *failed_out)
{
    weft_mirror_t *m = p->m;
    *failed_out = WEFT_OK;
    if (p->have)
        return true;
    for (unsigned round = 0; !p->out && round < 2 * WEFT_MIRROR_MAX; round++) {
        uint8_t usable;
        mir_member_t *mb = pick(p, &usable);
        if (!mb) {
            if (!usable) {
                if (!m->writer)
                    wefti_mirror_find(m);
                return false; /* a member that comes back wakes the piece */
            }
            if (!(usable & ~p->bad)) {
                if (!wefti_mirror_find_more(m, p->bad, &p->sought))
                    *failed_out = WEFT_ERR_CORRUPT;
                return false;
            }
            p->tried = 0; /* no member answered in time */
            p->patience = p->patience < 8 * m->lease_ns ? 2 * p->patience : p->patience;
            continue;
        }
        weft_status_t st = wefti_mirror_access(p, mb, false, p->bytes, 0, mir_stride(m->checksums), p->patience);
        if (!st)
            break;
        if (wefti_mirror_failed(mb, mb->use, st)) {
            wefti_mirror_piece_retry(p, st);
            break;
        }
        m->failovers++;
    }
    return false;
}
