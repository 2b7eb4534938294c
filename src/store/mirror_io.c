/* store/mirror_io.c - reads and writes, unit by unit.
 *
 * An operation is cut into pieces of one unit. At most MIR_READS and MIR_WRITES of them are under way at a time. A piece has
 * bytes of its own: those of a write are copied when the piece is made, those of a read when they have come and match. So a
 * cancelled operation ends at once, while its pieces go on: a write that reached one member reaches all.
 *
 *     read:   ask one member; ask another if it is lost, silent, or has a copy that does not match
 *     write:  wait for the unit's lock -> (a part of a unit: read it, put the part in) -> write to every member
 *             -> all have it, and nobody is being fenced
 *
 * Promise: a write is complete when every member has it. Each unit is whole, in every copy, at every moment.
 * tests/sim/mirror_history.c. */
#include "store/mirror_state.h"

/* --- reads  ----------------------------------------------------------------------------------------------------------- */

/* A piece is done: and its operation, if it was the last. */
static void piece_done(mir_piece_t *p)
{
    weft_op_t *op = p->io;
    wefti_mirror_piece_end(p);
    if (!op)
        return;
    mir_io_t *io = mir_io(op);
    io->pieces--;
    if (io->pieces || io->begun < io->len)
        return;
    wefti_list_remove(&mir_io(op)->link);
    op->len = io->len;
    weft_ext_op_complete(op, WEFT_OK, 0);
}

static void read_step(mir_piece_t *p)
{
    weft_status_t failed;
    if (wefti_mirror_read_one(p, &failed)) {
        memcpy(p->user, p->bytes + p->from, p->n);
        if (p->bad && p->m->writer)
            wefti_mirror_mend(p->m, p->unit);
        piece_done(p);
    } else if (failed) {
        wefti_mirror_io_fail(p->io, failed);
    }
}

/* --- writes  ---------------------------------------------------------------------------------------------------------- */

static void put_in(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    memcpy(p->bytes + p->from, p->user, p->n);
    p->user = NULL;
    p->have = p->tried = p->bad = 0;
    p->step = STEP_WRITE;
    if (!m->checksums)
        return;
    /* Later writers' versions are higher: see the choice of mirror_fix.c. */
    uint64_t least = mir_config(m->epoch) << 40;
    m->version = m->version < least ? least + 1 : m->version + 1;
    wefti_mirror_stamp(p->bytes, p->unit, m->version);
}

static void write_step(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    weft_status_t failed;
    bool all = true;
    if (!wefti_mirror_has_lock(p))
        return;
    if (p->step == STEP_READ) {
        if (!p->io) { /* it was cancelled before anything of it was written */
            wefti_mirror_piece_end(p);
            return;
        }
        if (!wefti_mirror_read_one(p, &failed)) {
            if (failed)
                wefti_mirror_io_fail(p->io, failed);
            return;
        }
        put_in(p);
    }
    mir_each(mb, m) {
        if (!mir_gets(mb) || p->have & mir_bit(mb))
            continue;
        all = false;
        if (p->out & mir_bit(mb) || !mb->remote || mb->resetting)
            continue;
        uint64_t timeout = mb->state == WEFT_MEMBER_REFILLING ? mir_patience(m) : 0; /* it has no lease that would end */
        weft_status_t st = wefti_mirror_access(p, mb, true, p->bytes, 0, mir_stride(m->checksums), timeout);
        if (st)
            wefti_mirror_write_answer(p, mb, st);
    }
    if (all && wefti_mirror_settled(m))
        piece_done(p);
}

/* --- turns  ----------------------------------------------------------------------------------------------------------- */

void wefti_mirror_pieces_step(weft_mirror_t *m)
{
    if (m->wake) {
        m->wake = false;
        wefti_list_each(l, &m->pieces) {
            mir_piece_t *p = wefti_container_of(l, mir_piece_t, link);
            if (!p->over)
                wefti_mirror_piece_ready(p);
        }
    }
    wefti_list_t now;
    wefti_list_init(&now);
    wefti_list_splice(&now, &m->ready);
    for (wefti_list_t *l; (l = wefti_list_pop(&now));) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, ready_link);
        if (p->kind == PIECE_READ)
            read_step(p);
        else if (p->kind == PIECE_WRITE)
            write_step(p);
        else
            wefti_mirror_fix_step(p);
    }
}

/* The next piece of an operation. false: no memory. */
static bool begin_one(weft_op_t *op)
{
    mir_io_t *io = mir_io(op);
    weft_mirror_t *m = io->m;
    uint64_t at = io->offset + io->begun, unit = at / WEFT_MIRROR_UNIT, begins = unit * WEFT_MIRROR_UNIT;
    uint64_t ends = begins + WEFT_MIRROR_UNIT < m->len ? begins + WEFT_MIRROR_UNIT : m->len, left = io->len - io->begun;
    mir_piece_t *p = wefti_mirror_piece(m, io->write ? PIECE_WRITE : PIECE_READ, unit);
    if (!p)
        return false;
    p->io = op;
    p->user = io->buf + io->begun;
    p->from = (uint32_t)(at - begins);
    p->n = (uint32_t)(left < ends - at ? left : ends - at);
    if (op->timeout_ns && op->timeout_ns / 4 < p->patience) /* to have time for another member */
        p->patience = op->timeout_ns / 4 > WEFT_MILLISECOND ? op->timeout_ns / 4 : WEFT_MILLISECOND;
    m->n_reads += !io->write;
    m->n_writes += io->write;
    if (io->write && p->n == ends - begins) {
        memset(p->bytes + p->n, 0, WEFT_MIRROR_UNIT - p->n);
        put_in(p);
    }
    io->pieces++;
    io->begun += p->n;
    if (io->begun == io->len) {
        wefti_list_remove(&mir_io(op)->link);
        wefti_list_push_back(&m->begun, &mir_io(op)->link);
    }
    return true;
}

static void begin_of(wefti_list_t *list, const uint32_t *n, uint32_t most)
{
    for (wefti_list_t *l; *n < most && (l = wefti_list_first(list));) {
        weft_op_t *op = wefti_container_of(l, mir_io_t, link)->op;
        if (begin_one(op))
            continue;
        if (mir_io(op)->pieces)
            return; /* when one of them is done */
        wefti_mirror_io_fail(op, WEFT_ERR_NOMEM);
    }
}

void wefti_mirror_begin(weft_mirror_t *m)
{
    begin_of(&m->reads, &m->n_reads, MIR_READS);
    begin_of(&m->writes, &m->n_writes, MIR_WRITES);
}

/* --- endings  --------------------------------------------------------------------------------------------------------- */

/* Nobody waits for its pieces any more: those that have begun to write go on. */
static void let_go(weft_op_t *op)
{
    mir_io_t *io = mir_io(op);
    wefti_list_each_safe(l, &io->m->pieces) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, link);
        if (p->io != op)
            continue;
        p->io = NULL;
        if (p->kind == PIECE_READ || p->step == STEP_READ)
            wefti_mirror_piece_end(p);
    }
    io->pieces = 0;
    wefti_list_remove(&mir_io(op)->link);
}

void wefti_mirror_io_fail(weft_op_t *op, weft_status_t why)
{
    const weft_mirror_t *m = mir_io(op)->m;
    let_go(op);
    op->len = 0;
    weft_ext_op_complete(op, why, wefti_mirror_why(m, why));
}

void wefti_mirror_io_fail_all(weft_mirror_t *m, bool reads, bool writes, weft_status_t why)
{
    wefti_list_t *lists[] = {&m->reads, &m->writes, &m->begun};
    for (unsigned i = 0; i < 3; i++)
        wefti_list_each_safe(l, lists[i]) {
            weft_op_t *op = wefti_container_of(l, mir_io_t, link)->op;
            if (mir_io(op)->write ? writes : reads)
                wefti_mirror_io_fail(op, why);
        }
}

/* --- the calls  ------------------------------------------------------------------------------------------------------- */

static weft_status_t io_start(weft_op_t *op)
{
    mir_io_t *io = mir_io(op);
    weft_mirror_t *m = io->m;
    weft_status_t st = m->state ? m->state : m->phase != MIR_UP ? WEFT_ERR_CLOSED : weft_ext_op_may_start(op);
    if (!st && io->len)
        st = weft_ext_op_track(op);
    st = wefti_mirror_came(op, st);
    if (st)
        return st;
    if (!io->len) {
        op->len = 0;
        weft_ext_op_complete(op, WEFT_OK, 0);
        return WEFT_OK;
    }
    wefti_list_push_back(io->write ? &m->writes : &m->reads, &mir_io(op)->link);
    wefti_mirror_turn(m);
    return WEFT_OK;
}

static void io_cancel(weft_op_t *op, weft_status_t why)
{
    weft_mirror_t *m = mir_io(op)->m;
    wefti_mirror_io_fail(op, why);
    wefti_mirror_turn(m);
}

static const weft_op_kind_t read_kind = {.name = "mirror read", .start = io_start, .cancel = io_cancel};
static const weft_op_kind_t write_kind = {.name = "mirror write", .start = io_start, .cancel = io_cancel};

static weft_status_t may(const weft_mirror_t *m, uint64_t offset, size_t len, bool write)
{
    if (write && !m->writer)
        return weft_fail(WEFT_ERR_RIGHTS, "this mirror was opened to read: open it with `write`");
    if (offset > m->len || len > m->len - offset)
        return weft_fail(WEFT_ERR_RANGE, "%zu bytes at %llu are not in a mirror of %llu", len, (unsigned long long)offset,
                         (unsigned long long)m->len);
    return WEFT_OK;
}

static weft_status_t post(weft_mirror_t *m, uint64_t offset, void *buf, size_t len, bool write, weft_op_t *op)
{
    if (!m || !op || (!buf && len))
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", !m ? "the mirror" : !op ? "the operation" : "the buffer");
    weft_status_t st = wefti_mirror_enter(m);
    if (st)
        return st;
    st = wefti_mirror_prepare(m, op, write ? &write_kind : &read_kind, may(m, offset, len, write));
    if (st)
        return st;
    *mir_io(op) = (mir_io_t){.m = m, .op = op, .buf = (uint8_t *)buf, .offset = offset, .len = len, .write = write};
    return wefti_mirror_go(m, op);
}

weft_status_t weft_mirror_read(weft_mirror_t *mirror, uint64_t offset, void *buf, size_t len, weft_op_t *op)
{
    return post(mirror, offset, buf, len, false, op);
}

weft_status_t weft_mirror_write(weft_mirror_t *mirror, uint64_t offset, const void *buf, size_t len, weft_op_t *op)
{
    return post(mirror, offset, (void *)(uintptr_t)buf, len, true, op);
}
