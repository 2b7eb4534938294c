/* store/mirror.c - the life of a mirror: its turns and its end.
 *
 * A mirror belongs to the program from the completion of its opening until weft_mirror_close(), and lives until nothing of it is
 * under way. One that cannot go on (`state`: every member is lost, another writer has taken over, the runtime closes) completes
 * everything that waits, and stays until it is closed.
 *
 * A turn does everything that has become possible: members and configurations, the opening, the search of a reader, a server
 * that is added, new pieces, pieces that wait, the close. One timer starts the next turn.
 *
 * Promise: every operation ends once, and a mirror that is closed leaves nothing behind. tests/sim/mirror_history.c. */
#include "store/mirror_state.h"

void wefti_mirror_die(weft_mirror_t *m, weft_status_t why)
{
    if (m->state)
        return;
    weft_log(WEFT_LOG_INFO, "mirror %s ends: %s", m->name, weft_status_name(why));
    m->state = why;
    m->again = true;
}

/* --- operations of ours  ---------------------------------------------------------------------------------------------- */

void wefti_mirror_came_home(weft_ext_call_t *call)
{
    weft_mirror_t *m = wefti_container_of(call, weft_mirror_t, home_call);
    mir_child_t *last = atomic_exchange_explicit(&m->home, NULL, memory_order_acquire), *first = NULL;
    while (last) {
        mir_child_t *before = last->next;
        last->next = first;
        first = last;
        last = before;
    }
    while (first) { /* each is counted: the mirror stays until the last one was told */
        mir_child_t *c = first;
        first = c->next;
        c->fn(&c->op, c->user);
    }
}

/* On the driver of whoever carried it out. */
static void child_done(weft_op_t *op, void *user)
{
    mir_child_t *c = (mir_child_t *)user;
    weft_mirror_t *m = c->m;
    if (!m->sharded || !weft_runtime_shard(m->rt)) {
        c->fn(op, c->user);
        return;
    }
    mir_child_t *before = atomic_load_explicit(&m->home, memory_order_relaxed);
    do
        c->next = before; /* from the exchange on it is the head's */
    while (!atomic_compare_exchange_weak_explicit(&m->home, &before, c, memory_order_acq_rel, memory_order_relaxed));
    if (!before) /* who finds others there is brought along; the head is there longer than its other shards */
        (void)weft_ext_call(m->rt, &m->home_call);
}

void wefti_mirror_child(mir_child_t *c, weft_mirror_t *m, weft_op_fn fn, void *user, uint64_t timeout_ns)
{
    c->m = m;
    c->fn = fn;
    c->user = user;
    c->op.fn = child_done;
    c->op.user = c;
    c->op.timeout_ns = timeout_ns;
}

/* --- endings  --------------------------------------------------------------------------------------------------------- */

static void stop(weft_mirror_t *m)
{
    m->renew_at = m->fence_at = m->retry_at = m->find_at = WEFT_FOREVER;
    m->scan.on = false;
    wefti_mirror_pieces_free(m);
    mir_each(mb, m) {
        wefti_mirror_drop_remote(mb);
        if (mb->asking)
            weft_op_cancel(&mb->ask.op);
        if (mb->renewing)
            weft_op_cancel(&mb->renewal.op);
    }
}

uint64_t wefti_mirror_why(const weft_mirror_t *m, weft_status_t why)
{
    static const struct {
        weft_status_t status;
        const char *text;
    } says[] = {
        {WEFT_ERR_STALE, "another writer took it over, or too few of its members answer to be sure that none did; open it again"},
        {WEFT_ERR_PEER, "no member is left that has it"},
        {WEFT_ERR_CORRUPT, "no member has a copy that matches its checksum"},
        {WEFT_ERR_NOTFOUND, "no member has one of that name"},
        {WEFT_ERR_STATE, "there is one of that name already"},
        {WEFT_ERR_LIMIT, "a member has no room for it"},
        {WEFT_ERR_TIMEOUT, "its members have not answered in time"},
    };
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (says[i].status == why)
            return weft_ext_sentence(NULL, "the mirror \"%.64s\": %s", m->name ? m->name : "", says[i].text);
    return 0;
}

/* Tell everyone. */
static void bury(weft_mirror_t *m)
{
    weft_op_t *op = m->open_op;
    m->buried = true;
    wefti_mirror_io_fail_all(m, true, true, m->state);
    wefti_mirror_add_end(m, m->state);
    stop(m);
    if (m->phase == MIR_CLOSING || m->phase == MIR_SEALING) {
        m->close_status = m->state;
        m->phase = MIR_GONE;
    }
    if (!op)
        return;
    m->open_op = NULL;
    m->phase = MIR_GONE; /* the program never had it */
    op->buf = NULL;
    weft_ext_op_complete(op, m->state, wefti_mirror_why(m, m->state));
}

static void gone(weft_mirror_t *m)
{
    weft_op_t *op = m->close_op;
    weft_status_t st = m->close_status;
    uint64_t detail = wefti_mirror_why(m, st);
    wefti_list_remove(&m->link);
    weft_ext_timer_stop(m->rt, &m->timer);
    wefti_mirror_free(m);
    if (op)
        weft_ext_op_complete(op, st, detail);
}

/* --- closing  --------------------------------------------------------------------------------------------------------- */

static void close_turn(weft_mirror_t *m)
{
    if (m->phase == MIR_CLOSING) {
        if (!wefti_list_empty(&m->writes) || m->adding || !wefti_mirror_settled(m))
            return;
        wefti_list_each(l, &m->pieces)
            if (!wefti_container_of(l, mir_piece_t, link)->over)
                return;
        m->phase = MIR_SEALING;
        m->renew_at = WEFT_FOREVER;
        mir_each(mb, m) {
            mb->got = WEFT_OK;
            if (mb->state == WEFT_MEMBER_UP)
                wefti_mirror_ask(mb, STORE_R_SEAL);
        }
    }
    if (m->phase != MIR_SEALING || wefti_mirror_asks(m))
        return;
    mir_each(mb, m)
        if (mb->state == WEFT_MEMBER_UP && mb->got && !m->close_status)
            m->close_status = mb->got;
    m->phase = MIR_GONE;
    stop(m);
}

void wefti_mirror_close_begin(weft_mirror_t *m)
{
    m->again = true;
    wefti_mirror_io_fail_all(m, true, false, WEFT_ERR_CLOSED);
    if (!m->writer || m->state) {
        wefti_mirror_io_fail_all(m, true, true, WEFT_ERR_CLOSED);
        m->close_status = m->writer ? m->state : WEFT_OK;
        m->phase = MIR_GONE;
        stop(m);
        return;
    }
    m->phase = MIR_CLOSING;
    if (m->add_op) {
        weft_ext_op_complete(m->add_op, WEFT_ERR_CLOSED, 0);
        m->add_op = NULL;
    }
    wefti_mirror_add_abort(m);
}

/* --- turns  ----------------------------------------------------------------------------------------------------------- */

static void show(weft_mirror_t *m)
{
    weft_mirror_info_t i = WEFT_MIRROR_INFO_INIT;
    i.len = m->len;
    i.epoch = mir_config(m->epoch);
    i.writer = m->writer;
    i.checksums = m->checksums;
    i.state = m->state;
    mir_each(mb, m)
        if (mb->state)
            i.member[i.members++] = (weft_member_state_t)mb->state;
    uint64_t bytes = m->scan.on && m->scan.kind == PIECE_COPY ? m->scan.done * WEFT_MIRROR_UNIT : 0;
    i.refilled = bytes < m->len ? bytes : m->len;
    i.failovers = m->failovers;
    i.mended = m->mended;
    pthread_mutex_lock(&m->lock);
    m->shown = i;
    pthread_mutex_unlock(&m->lock);
}

static void arm(weft_mirror_t *m)
{
    uint64_t when = m->renew_at < m->fence_at ? m->renew_at : m->fence_at;
    when = m->retry_at < when ? m->retry_at : when;
    when = m->find_at < when ? m->find_at : when;
    if (when == WEFT_FOREVER)
        weft_ext_timer_stop(m->rt, &m->timer);
    else if (weft_ext_timer_set(m->rt, &m->timer, when))
        wefti_mirror_die(m, WEFT_ERR_NOMEM);
}

void wefti_mirror_turn(weft_mirror_t *m)
{
    m->again = true;
    if (m->turning)
        return;
    m->turning = true;
    while (m->again) {
        m->again = false;
        if (m->state && !m->buried)
            bury(m);
        if (!m->state && m->phase != MIR_GONE) {
            wefti_mirror_config_turn(m);
            wefti_mirror_open_turn(m);
            wefti_mirror_find_turn(m);
        }
        if (!m->state && m->phase != MIR_GONE) {
            wefti_mirror_add_turn(m);
            wefti_mirror_scan_turn(m);
            wefti_mirror_begin(m);
            wefti_mirror_pieces_step(m);
            close_turn(m);
        }
        if (!m->again)
            arm(m); /* without memory for the timer the mirror ends */
    }
    m->turning = false;
    if (m->phase == MIR_GONE && !m->children && !atomic_load(&m->coming))
        gone(m);
    else
        show(m);
}

void wefti_mirror_on_timer(weft_ext_timer_t *t)
{
    weft_mirror_t *m = wefti_container_of(t, weft_mirror_t, timer);
    uint64_t now = weft_now(m->rt);
    if (m->fence_at <= now)
        m->fence_at = WEFT_FOREVER;
    if (m->find_at <= now)
        m->find_at = WEFT_FOREVER;
    if (m->retry_at <= now) {
        m->retry_at = WEFT_FOREVER;
        mir_wake(m);
    }
    if (m->renew_at <= now)
        wefti_mirror_renew(m);
    wefti_mirror_turn(m);
}

void wefti_mirror_shutdown(weft_runtime_t *rt)
{
    wefti_list_each_safe(l, &store_state(rt)->mirrors) {
        weft_mirror_t *m = wefti_container_of(l, weft_mirror_t, link);
        wefti_handle_shut(&m->handle);
        wefti_mirror_die(m, WEFT_ERR_CLOSED);
        if (!m->buried)
            bury(m);
        m->phase = MIR_GONE;
        stop(m);
        wefti_mirror_turn(m);
    }
}
