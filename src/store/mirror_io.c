/* store/mirror_io.c - reads and writes, block by block.
 *
 * An operation is cut into pieces of one block, of which so many are under way at a time (MIR_READS, MIR_WRITES). A piece has bytes of its own:
 * those of a write are copied when the piece is made, those of a read when they have come and match. So an operation that is cancelled ends at
 * once, and what its pieces have begun goes on to its end: a write that reached one member reaches all.
 *
 *     read:   ask one member, another one if it is lost, silent, or has a copy that does not match
 *     write:  wait for the block -> (a part of it: read it, put the part in) -> write to every member -> all have it, and nobody is being fenced
 *
 * A block has one piece that changes it at a time, in the order in which they were made; the others wait (locks[]).
 *
 * Promise: a write is complete when every member has it; each block of it is whole, in every copy, at every moment.
 * tests/sim/mirror_history.c holds us to it. */
#include "store/mirror_state.h"

static uint64_t place(const mir_piece_t *p)
{
    return p->block * mir_stride(p->m->checksums);
}

/* --- pieces ------------------------------------------------------------------------------------------------------------------------ */

static wefti_list_t *lock_list(weft_mirror_t *m, uint64_t block)
{
    return &m->locks[block % MIR_LOCKS];
}

/* Of the pieces of its block the first one has it. */
static mir_piece_t *first_of(weft_mirror_t *m, uint64_t block)
{
    wefti_list_each(l, lock_list(m, block)) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, lock_link);
        if (p->block == block)
            return p;
    }
    return NULL;
}

bool wefti_mirror_has_lock(const mir_piece_t *p)
{
    return !p->locks || first_of(p->m, p->block) == p;
}

mir_piece_t *wefti_mirror_piece(weft_mirror_t *m, uint8_t kind, uint64_t block)
{
    wefti_list_t *spare = kind == PIECE_AGREE ? NULL : wefti_list_pop(&m->spare);
    size_t n = kind == PIECE_AGREE ? WEFT_MIRROR_MAX : 1;
    mir_piece_t *p;
    if (spare) {
        p = wefti_container_of(spare, mir_piece_t, link);
        m->n_spare--;
    } else {
        p = (mir_piece_t *)wefti_malloc(sizeof *p + n * MIR_STRIDE);
    }
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    p->m = m;
    p->kind = kind;
    p->block = block;
    p->stage = STAGE_READ;
    p->patience = m->lease_ns / 4;
    p->locks = kind != PIECE_READ;
    wefti_list_push_back(&m->pieces, &p->link);
    if (p->locks)
        wefti_list_push_back(lock_list(m, block), &p->lock_link);
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
    if (p->kind != PIECE_AGREE && m->n_spare < MIR_SCAN && m->phase != MIR_GONE) {
        m->n_spare++;
        wefti_list_push_front(&m->spare, &p->link);
    } else {
        wefti_free(p);
    }
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
        mir_piece_t *next = first_of(m, p->block);
        if (next)
            wefti_mirror_piece_ready(next);
    }
    m->n_reads -= p->kind == PIECE_READ;
    m->n_writes -= p->kind == PIECE_WRITE;
    m->n_mends -= p->mend;
    m->again = true;
    if (p->out) /* cancelled: it lets go soon */
        for (unsigned i = 0; i < WEFT_MIRROR_MAX; i++) {
            if (p->out & 1u << i)
                weft_op_cancel(&p->to[i].op);
        }
    else
        piece_free(p);
}

void wefti_mirror_piece_retry(mir_piece_t *p, weft_status_t st)
{
    if (p->retries >= MIR_RETRIES && p->io && p->stage == STAGE_READ) {
        wefti_mirror_io_fail(p->io, st); /* and the piece with it */
        return;
    }
    p->retries += p->retries < MIR_RETRIES;
    mir_at(p->m, &p->m->retry_at, weft_now(p->m->rt) + MIR_AGAIN);
}

/* --- accesses ------------------------------------------------------------------------------------------------------------------------ */

/* A copy has come: is it one? */
static bool came(mir_piece_t *p, mir_member_t *mb)
{
    weft_mirror_t *m = p->m;
    if (!m->checksums || wefti_mirror_good(p->bytes, p->block))
        return true;
    uint64_t left_out;
    if (wefti_rarely_may(&m->rarely, mir_index(mb), weft_now(NULL), &left_out))
        weft_log(WEFT_LOG_WARN, "mirror %s: block %llu does not match its checksum at member %u (and %llu others since the last line)",
                 m->name, (unsigned long long)p->block, mir_index(mb), (unsigned long long)left_out);
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

static void write_answer(mir_piece_t *p, mir_member_t *mb, uint32_t use, weft_status_t st)
{
    if (!st) {
        if (use == mb->use) /* else another member may be in its place */
            p->have |= mir_bit(mb);
    } else if (st == WEFT_ERR_TIMEOUT && use == mb->use) {
        wefti_mirror_lose(mb, st); /* only those that are refilled have a time */
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
    m->again = true;
    if (p->over) {
        if (!p->out)
            piece_free(p);
    } else {
        if (op->status != WEFT_ERR_NOMEM && op->status != WEFT_ERR_LIMIT && op->status != WEFT_ERR_AGAIN)
            wefti_mirror_piece_ready(p);
        if (p->kind == PIECE_AGREE || (p->kind == PIECE_COPY && p->stage == STAGE_WRITE))
            wefti_mirror_fix_answer(p, mb, op->status);
        else if (p->stage == STAGE_READ)
            read_answer(p, mb, to->use, op->status);
        else
            write_answer(p, mb, to->use, op->status);
    }
    wefti_mirror_turn(m);
}

weft_status_t wefti_mirror_access(mir_piece_t *p, mir_member_t *mb, bool write, uint8_t *bytes, uint32_t from, uint32_t n,
                                  uint64_t timeout_ns)
{
    mir_access_t *to = &p->to[mir_index(mb)];
    to->p = p;
    to->use = mb->use;
    to->op.fn = on_access;
    to->op.user = to;
    to->op.timeout_ns = timeout_ns;
    weft_status_t st = write ? weft_rma_write(mb->remote, place(p) + from, bytes + from, n, &to->op)
                             : weft_rma_read(mb->remote, place(p) + from, bytes + from, n, &to->op);
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
                return false; /* whoever brings one back wakes us */
            }
            if (!(usable & ~p->bad)) {
                if (!wefti_mirror_find_more(m, p->bad, &p->sought))
                    *failed_out = WEFT_ERR_CORRUPT;
                return false;
            }
            p->tried = 0; /* nobody was fast enough */
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

/* --- reads --------------------------------------------------------------------------------------------------------------------------- */

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
            wefti_mirror_mend(p->m, p->block);
        piece_done(p);
    } else if (failed) {
        wefti_mirror_io_fail(p->io, failed);
    }
}

/* --- writes -------------------------------------------------------------------------------------------------------------------------- */

static void put_in(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    memcpy(p->bytes + p->from, p->user, p->n);
    p->user = NULL;
    p->have = p->tried = p->bad = 0;
    p->stage = STAGE_WRITE;
    if (!m->checksums)
        return;
    /* Later writers' versions are higher: see the choice of mirror_fix.c. */
    uint64_t least = mir_config(m->epoch) << 40;
    m->version = m->version < least ? least + 1 : m->version + 1;
    wefti_mirror_stamp(p->bytes, p->block, m->version);
}

static void write_step(mir_piece_t *p)
{
    weft_mirror_t *m = p->m;
    weft_status_t failed;
    bool all = true;
    if (!wefti_mirror_has_lock(p))
        return;
    if (p->stage == STAGE_READ) {
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
        uint64_t timeout = mb->state == WEFT_MEMBER_REFILLING ? mir_patience(m) : 0; /* no lease tells of its end */
        weft_status_t st = wefti_mirror_access(p, mb, true, p->bytes, 0, mir_stride(m->checksums), timeout);
        if (st)
            write_answer(p, mb, mb->use, st);
    }
    if (all && wefti_mirror_settled(m))
        piece_done(p);
}

/* --- turns --------------------------------------------------------------------------------------------------------------------------- */

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
    uint64_t at = io->offset + io->begun, block = at / WEFT_MIRROR_BLOCK, begins = block * WEFT_MIRROR_BLOCK;
    uint64_t ends = begins + WEFT_MIRROR_BLOCK < m->len ? begins + WEFT_MIRROR_BLOCK : m->len, left = io->len - io->begun;
    mir_piece_t *p = wefti_mirror_piece(m, io->write ? PIECE_WRITE : PIECE_READ, block);
    if (!p)
        return false;
    p->io = op;
    p->user = io->buf + io->begun;
    p->from = (uint32_t)(at - begins);
    p->n = (uint32_t)(left < ends - at ? left : ends - at);
    if (op->timeout_ns && op->timeout_ns / 4 < p->patience) /* there is to be time for another member */
        p->patience = op->timeout_ns / 4 > WEFT_MILLISECOND ? op->timeout_ns / 4 : WEFT_MILLISECOND;
    m->n_reads += !io->write;
    m->n_writes += io->write;
    if (io->write && p->n == ends - begins) {
        memset(p->bytes + p->n, 0, WEFT_MIRROR_BLOCK - p->n);
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

static void begin_of(weft_mirror_t *m, wefti_list_t *list, const uint32_t *n, uint32_t most)
{
    for (wefti_list_t *l; *n < most && (l = wefti_list_first(list));) {
        weft_op_t *op = wefti_container_of(l, mir_io_t, link)->op;
        if (begin_one(op))
            continue;
        if (mir_io(op)->pieces)
            return; /* when one of them is done */
        wefti_mirror_io_fail(op, WEFT_ERR_NOMEM);
    }
    (void)m;
}

void wefti_mirror_begin(weft_mirror_t *m)
{
    begin_of(m, &m->reads, &m->n_reads, MIR_READS);
    begin_of(m, &m->writes, &m->n_writes, MIR_WRITES);
}

/* --- endings ------------------------------------------------------------------------------------------------------------------------- */

/* Nobody waits for its pieces any more: those that have begun to write go on. */
static void let_go(weft_op_t *op)
{
    mir_io_t *io = mir_io(op);
    wefti_list_each_safe(l, &io->m->pieces) {
        mir_piece_t *p = wefti_container_of(l, mir_piece_t, link);
        if (p->io != op)
            continue;
        p->io = NULL;
        if (p->kind == PIECE_READ || p->stage == STAGE_READ)
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

void wefti_mirror_pieces_free(weft_mirror_t *m)
{
    wefti_list_each_safe(l, &m->pieces)
        wefti_mirror_piece_end(wefti_container_of(l, mir_piece_t, link));
    for (wefti_list_t *l; (l = wefti_list_pop(&m->spare));)
        wefti_free(wefti_container_of(l, mir_piece_t, link));
    m->n_spare = 0;
}

/* --- the calls ------------------------------------------------------------------------------------------------------------------------- */

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
    m->again = true;
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
