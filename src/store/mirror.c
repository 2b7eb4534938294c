/* store/mirror.c - the life of a mirror: its opening, its turns, its end.
 *
 * It is the program's from the completion of its opening until weft_mirror_close(), and lives on until nothing of it is under way. One that cannot
 * go on (`state`: every member is lost, another writer has taken over, the runtime closes) tells everyone who waits, and stays to be closed.
 *
 * A turn does what has become possible, until nothing more has: members and configurations, the opening, the search of a reader, a server
 * that is added, new pieces, pieces that wait, the close. One timer wakes it for whichever of these comes first.
 *
 * Promise: every operation ends once, and a mirror that is closed leaves nothing behind. tests/sim/mirror_history.c holds us to it. */
#include "store/mirror_state.h"

typedef struct mir_open {
    weft_mirror_t *m;
} mir_open_t;

void wefti_mirror_die(weft_mirror_t *m, weft_status_t why)
{
    if (m->state)
        return;
    weft_log(WEFT_LOG_INFO, "mirror %s ends: %s", m->name, weft_status_name(why));
    m->state = why;
    m->again = true;
}

/* --- endings ----------------------------------------------------------------------------------------------------------------------- */

static void stop(weft_mirror_t *m)
{
    m->renew_at = m->fence_at = m->retry_at = m->find_at = WEFT_FOREVER;
    m->scan.on = false;
    wefti_mirror_pieces_free(m);
    mir_each(mb, m) {
        wefti_mirror_drop_remote(mb);
        if (mb->asking)
            weft_op_cancel(&mb->op);
        if (mb->renewing)
            weft_op_cancel(&mb->renew_op);
    }
}

uint64_t wefti_mirror_why(const weft_mirror_t *m, weft_status_t why)
{
    const char *text;
    switch (why) {
    case WEFT_ERR_STALE:
        text = "another writer took it over, or too few of its members answer to be sure that none did; open it again";
        break;
    case WEFT_ERR_PEER:
        text = "no member is left that has it";
        break;
    case WEFT_ERR_CORRUPT:
        text = "no member has a copy that matches its checksum";
        break;
    case WEFT_ERR_NOTFOUND:
        text = "no member has one of that name";
        break;
    case WEFT_ERR_STATE:
        text = "there is one of that name already";
        break;
    case WEFT_ERR_LIMIT:
        text = "a member has no room for it";
        break;
    case WEFT_ERR_TIMEOUT:
        text = "its members have not answered in time";
        break;
    default:
        return 0;
    }
    return weft_ext_sentence(NULL, "the mirror \"%.64s\": %s", m->name ? m->name : "", text);
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
    m->phase = MIR_GONE; /* nobody ever had it */
    op->buf = NULL;
    weft_ext_op_complete(op, m->state, wefti_mirror_why(m, m->state));
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_mirror_t, rt);

static void mirror_free(weft_mirror_t *m)
{
    wefti_handle_shut(&m->handle);
    mir_each(mb, m)
        wefti_mirror_leave_store(mb);
    wefti_mirror_pieces_free(m);
    pthread_mutex_destroy(&m->lock);
    wefti_free(m->name);
    wefti_handle_free(&handles, m);
}

static void gone(weft_mirror_t *m)
{
    weft_op_t *op = m->close_op;
    weft_status_t st = m->close_status;
    uint64_t detail = wefti_mirror_why(m, st);
    wefti_list_remove(&m->link);
    weft_ext_timer_stop(m->rt, &m->timer);
    mirror_free(m);
    if (op)
        weft_ext_op_complete(op, st, detail);
}

/* --- closing ------------------------------------------------------------------------------------------------------------------------- */

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
                wefti_mirror_ask(mb, ASK_SEAL);
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

static void close_begin(weft_mirror_t *m)
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

/* --- calls on their way to the driver ------------------------------------------------------------------------------------------------- */

weft_status_t wefti_mirror_enter(weft_mirror_t *m)
{
    if (!m)
        return weft_fail(WEFT_ERR_INVALID, "the mirror is NULL");
    if (!wefti_handle_enter(&m->handle))
        return weft_fail(WEFT_ERR_CLOSED, "the mirror was closed");
    weft_status_t st = weft_ext_check(m->rt);
    if (st)
        wefti_handle_leave(&m->handle);
    return st;
}

weft_status_t wefti_mirror_prepare(weft_mirror_t *m, weft_op_t *op, const weft_op_kind_t *kind, weft_status_t st)
{
    if (!st)
        st = weft_ext_op_prepare(m->rt, op, kind);
    if (!st)
        atomic_fetch_add(&m->coming, 1);
    wefti_handle_leave(&m->handle);
    return st;
}

weft_status_t wefti_mirror_go(weft_mirror_t *m, weft_op_t *op)
{
    weft_status_t st = weft_ext_op_start(op);
    if (st && weft_ext_scratch(op, mir_open_t)->m) /* the runtime was closed meanwhile */
        atomic_fetch_sub(&m->coming, 1);
    return st;
}

weft_status_t wefti_mirror_came(weft_op_t *op, weft_status_t st)
{
    weft_mirror_t *m = weft_ext_scratch(op, mir_open_t)->m;
    atomic_fetch_sub(&m->coming, 1);
    if (!st)
        return WEFT_OK;
    weft_ext_scratch(op, mir_open_t)->m = NULL;
    wefti_mirror_turn(m);
    return st;
}

static weft_status_t close_start(weft_op_t *op)
{
    weft_mirror_t *m = weft_ext_scratch(op, mir_open_t)->m;
    weft_status_t st = wefti_mirror_came(op, m->phase == MIR_UP ? WEFT_OK : WEFT_ERR_CLOSED);
    if (st)
        return st;
    (void)weft_ext_op_track(
        op); /* its handle is closed: without memory for a deadline it goes on, for nobody could close it again */
    m->close_op = op;
    close_begin(m);
    wefti_mirror_turn(m);
    return WEFT_OK;
}

static void close_cancel(weft_op_t *op, weft_status_t why)
{
    weft_ext_scratch(op, mir_open_t)->m->close_op = NULL; /* it goes on */
    weft_ext_op_complete(op, why, 0);
}

static const weft_op_kind_t close_kind = {.name = "mirror close", .start = close_start, .cancel = close_cancel};

static void close_called(weft_ext_call_t *call)
{
    weft_mirror_t *m = wefti_container_of(call, weft_mirror_t, close_call);
    atomic_fetch_sub(&m->coming, 1);
    if (m->phase == MIR_UP)
        close_begin(m);
    wefti_mirror_turn(m);
}

weft_status_t weft_mirror_close(weft_mirror_t *mirror, weft_op_t *op)
{
    weft_status_t st = wefti_mirror_enter(mirror);
    if (st)
        return st;
    if (!wefti_handle_close(&mirror->handle))
        st = weft_fail(WEFT_ERR_CLOSED, "the mirror is being closed already");
    else if (op && (st = weft_ext_op_prepare(mirror->rt, op, &close_kind)))
        wefti_handle_reopen(&mirror->handle); /* it is as it was */
    else
        atomic_fetch_add(&mirror->coming, 1);
    wefti_handle_leave(&mirror->handle);
    if (st)
        return st;
    if (op) {
        weft_ext_scratch(op, mir_open_t)->m = mirror;
        return wefti_mirror_go(mirror, op);
    }
    mirror->close_call.fn = close_called;
    if (weft_ext_call(mirror->rt, &mirror->close_call))
        atomic_fetch_sub(&mirror->coming, 1);
    return WEFT_OK;
}

/* --- turns --------------------------------------------------------------------------------------------------------------------------- */

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
    uint64_t bytes = m->scan.on && m->scan.kind == PIECE_COPY ? m->scan.done * WEFT_MIRROR_BLOCK : 0;
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
            arm(m); /* or die, for want of memory */
    }
    m->turning = false;
    if (m->phase == MIR_GONE && !m->children && !atomic_load(&m->coming))
        gone(m);
    else
        show(m);
}

static void on_timer(weft_ext_timer_t *t)
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

bool wefti_mirror_idle(weft_runtime_t *rt)
{
    return wefti_list_empty(&store_state(rt)->mirrors);
}

/* --- opening ------------------------------------------------------------------------------------------------------------------------- */

static weft_status_t open_start(weft_op_t *op)
{
    weft_mirror_t *m = weft_ext_scratch(op, mir_open_t)->m;
    weft_status_t st = weft_ext_op_track(op);
    if (st) {
        weft_ext_scratch(op, mir_open_t)->m = NULL;
        mirror_free(m);
        return st;
    }
    m->open_op = op;
    m->prefer = (uint32_t)wefti_rng_below(&store_state(m->rt)->rng, WEFT_MIRROR_MAX);
    wefti_list_push_back(&store_state(m->rt)->mirrors, &m->link);
    wefti_mirror_open_begin(m);
    wefti_mirror_turn(m);
    return WEFT_OK;
}

static void open_cancel(weft_op_t *op, weft_status_t why)
{
    weft_mirror_t *m = weft_ext_scratch(op, mir_open_t)->m;
    wefti_mirror_die(m, why);
    wefti_mirror_turn(m);
}

static const weft_op_kind_t open_kind = {.name = "mirror open", .start = open_start, .cancel = open_cancel};

static weft_status_t check(const weft_mirror_opts_t *o)
{
    weft_status_t st = wefti_store_check_name(o->name, "a mirror");
    if (st)
        return st;
    if (!o->stores || !o->n_stores || o->n_stores > WEFT_MIRROR_MAX)
        return weft_fail(WEFT_ERR_INVALID, "a mirror has one to %u stores, not %zu", WEFT_MIRROR_MAX, o->n_stores);
    if (o->len > MIR_LEN_MAX || (o->len && !o->write))
        return weft_fail(WEFT_ERR_INVALID,
                          o->write ? "a mirror of %llu bytes is too long"
                                   : "to make a mirror (of %llu bytes) open it with `write`",
                          (unsigned long long)o->len);
    if (o->lease_ns && (o->lease_ns < WEFTI_REPLICA_LEASE_MIN || o->lease_ns > WEFTI_REPLICA_LEASE_MAX))
        return weft_fail(WEFT_ERR_INVALID, "a lease of %llu ns is not between 1 ms and 1 h", (unsigned long long)o->lease_ns);
    return WEFT_OK;
}

static weft_mirror_t *mirror_new(weft_runtime_t *rt, const weft_mirror_opts_t *o)
{
    weft_mirror_t *m = (weft_mirror_t *)wefti_handle_new(&handles);
    if (!m)
        return NULL;
    m->name = wefti_strdup(o->name);
    if (!m->name) {
        wefti_handle_free(&handles, m);
        return NULL;
    }
    m->rt = rt;
    m->writer = o->write;
    m->make = o->len;
    m->force = o->force;
    m->checksums = o->checksums;
    m->len = o->len;
    m->lease_ns = o->lease_ns ? o->lease_ns : MIR_LEASE;
    m->renew_at = m->fence_at = m->retry_at = m->find_at = WEFT_FOREVER;
    m->timer.fn = on_timer;
    wefti_list_init(&m->link);
    wefti_list_init(&m->reads);
    wefti_list_init(&m->writes);
    wefti_list_init(&m->begun);
    wefti_list_init(&m->pieces);
    wefti_list_init(&m->ready);
    wefti_list_init(&m->spare);
    for (unsigned i = 0; i < MIR_LOCKS; i++)
        wefti_list_init(&m->locks[i]);
    pthread_mutex_init(&m->lock, NULL);
    mir_each(mb, m)
        mb->m = m;
    return m;
}

/* A reference to store i for its member i. */
static weft_status_t take_store(weft_mirror_t *m, size_t i, weft_store_t *store)
{
    if (!store)
        return weft_fail(WEFT_ERR_INVALID, "store %zu is NULL", i);
    weft_status_t st = wefti_store_hold(store, m->rt);
    if (st)
        return st;
    wefti_mirror_take_store(&m->at[i], store);
    for (size_t k = 0; k < i; k++)
        if (!memcmp(m->at[i].server, m->at[k].server, WEFT_STORE_ID))
            return weft_fail(WEFT_ERR_INVALID, "stores %zu and %zu are of one server: a copy each is what a mirror is for", k,
                              i);
    return WEFT_OK;
}

weft_status_t weft_mirror_open(weft_runtime_t *rt, const weft_mirror_opts_t *opts, weft_op_t *op)
{
    weft_mirror_opts_t o;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_mirror_opts_t");
    if (st)
        return st;
    if (!rt || !op || !o.name)
        return weft_fail(WEFT_ERR_INVALID,
                          "a mirror needs a runtime, an operation, and options made with WEFT_MIRROR_OPTS_INIT that have a name");
    st = check(&o);
    if (!st)
        st = weft_ext_op_prepare(rt, op, &open_kind);
    if (st)
        return st;
    weft_mirror_t *m = mirror_new(rt, &o);
    st = m ? WEFT_OK : weft_fail(WEFT_ERR_NOMEM, "no memory for a mirror");
    for (size_t i = 0; i < o.n_stores && !st; i++)
        st = take_store(m, i, o.stores[i]);
    if (st) {
        weft_ext_op_unprepare(op);
        goto err_mirror;
    }
    op->buf = NULL;
    weft_ext_scratch(op, mir_open_t)->m = m;
    st = weft_ext_op_start(op);
    if (!st)
        return WEFT_OK;
    if (!weft_ext_scratch(op, mir_open_t)->m)
        return st; /* it was freed where it began */

err_mirror:
    if (m)
        mirror_free(m);
    return st;
}

weft_status_t weft_mirror_get_info(const weft_mirror_t *mirror, weft_mirror_info_t *info_out)
{
    weft_mirror_t *m = (weft_mirror_t *)(uintptr_t)mirror;
    if (!m || !info_out || !info_out->size)
        return weft_fail(WEFT_ERR_INVALID, "the mirror, or the size of the info, is missing");
    size_t size = info_out->size < sizeof m->shown ? info_out->size : sizeof m->shown;
    weft_status_t st = wefti_mirror_enter(m);
    if (st)
        return st;
    pthread_mutex_lock(&m->lock);
    memcpy(info_out, &m->shown, size);
    pthread_mutex_unlock(&m->lock);
    wefti_handle_leave(&m->handle);
    info_out->size = size;
    return WEFT_OK;
}
