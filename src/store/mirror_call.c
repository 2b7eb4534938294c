/* store/mirror_call.c - what a program calls to open, close and look at a mirror, from any thread.
 *
 * A call that is on its way to the driver is counted in `coming`: the mirror stays until it has arrived. */
#include "store/mirror_state.h"

/* In the scratch of an operation: the first field of all of them. */
static weft_mirror_t **mirror_of(weft_op_t *op)
{
    return weft_ext_scratch(op, weft_mirror_t *);
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_mirror_t, rt);

void wefti_mirror_free(weft_mirror_t *m)
{
    wefti_handle_shut(&m->handle);
    mir_each(mb, m)
        wefti_mirror_leave_store(mb);
    wefti_mirror_pieces_free(m);
    pthread_mutex_destroy(&m->lock);
    wefti_free(m->name);
    wefti_handle_free(&handles, m);
}

/* --- calls on their way to the driver  -------------------------------------------------------------------------------- */

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
    if (st && *mirror_of(op)) /* the runtime was closed meanwhile */
        atomic_fetch_sub(&m->coming, 1);
    return st;
}

weft_status_t wefti_mirror_came(weft_op_t *op, weft_status_t st)
{
    weft_mirror_t *m = *mirror_of(op);
    atomic_fetch_sub(&m->coming, 1);
    if (!st)
        return WEFT_OK;
    *mirror_of(op) = NULL;
    wefti_mirror_turn(m);
    return st;
}

static weft_status_t close_start(weft_op_t *op)
{
    weft_mirror_t *m = *mirror_of(op);
    weft_status_t st = wefti_mirror_came(op, m->phase == MIR_UP ? WEFT_OK : WEFT_ERR_CLOSED);
    if (st)
        return st;
    (void)weft_ext_op_track(
        op); /* without memory for its deadline it goes on: the handle is closed, and nobody could close it again */
    m->close_op = op;
    wefti_mirror_close_begin(m);
    wefti_mirror_turn(m);
    return WEFT_OK;
}

static void close_cancel(weft_op_t *op, weft_status_t why)
{
    (*mirror_of(op))->close_op = NULL; /* it goes on */
    weft_ext_op_complete(op, why, 0);
}

static const weft_op_kind_t close_kind = {.name = "mirror close", .start = close_start, .cancel = close_cancel};

static void close_called(weft_ext_call_t *call)
{
    weft_mirror_t *m = wefti_container_of(call, weft_mirror_t, close_call);
    atomic_fetch_sub(&m->coming, 1);
    if (m->phase == MIR_UP)
        wefti_mirror_close_begin(m);
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
        *mirror_of(op) = mirror;
        return wefti_mirror_go(mirror, op);
    }
    mirror->close_call.fn = close_called;
    if (weft_ext_call(mirror->rt, &mirror->close_call))
        atomic_fetch_sub(&mirror->coming, 1);
    return WEFT_OK;
}

/* --- opening  --------------------------------------------------------------------------------------------------------- */

static weft_status_t open_start(weft_op_t *op)
{
    weft_mirror_t *m = *mirror_of(op);
    weft_status_t st = weft_ext_op_track(op);
    if (st) {
        *mirror_of(op) = NULL;
        wefti_mirror_free(m);
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
    weft_mirror_t *m = *mirror_of(op);
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
    m->timer.fn = wefti_mirror_on_timer;
    m->home_call.fn = wefti_mirror_came_home;
    m->sharded = weft_runtime_shards(rt) > 1;
    wefti_list_init(&m->link);
    wefti_list_init(&m->reads);
    wefti_list_init(&m->writes);
    wefti_list_init(&m->begun);
    wefti_list_init(&m->pieces);
    wefti_list_init(&m->ready);
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
            return weft_fail(WEFT_ERR_INVALID, "stores %zu and %zu are of one server: a copy each is what a mirror is for", k, i);
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
    *mirror_of(op) = m;
    st = weft_ext_op_start(op);
    if (!st)
        return WEFT_OK;
    if (!*mirror_of(op))
        return st; /* it was freed where it began */

err_mirror:
    if (m)
        wefti_mirror_free(m);
    return st;
}

weft_status_t weft_mirror_get_info(const weft_mirror_t *mirror, weft_mirror_info_t *info_out)
{
    weft_mirror_t *m = (weft_mirror_t *)(uintptr_t)mirror;
    if (!m || !info_out || !info_out->size)
        return weft_fail(WEFT_ERR_INVALID, "the mirror, or the size of the info, is missing");
    weft_status_t st = wefti_mirror_enter(m);
    if (st)
        return st;
    pthread_mutex_lock(&m->lock);
    weft_mirror_info_t all = m->shown;
    pthread_mutex_unlock(&m->lock);
    wefti_handle_leave(&m->handle);
    wefti_opts_write(info_out, &all, sizeof all);
    return WEFT_OK;
}
