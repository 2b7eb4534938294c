/* store/server.c - a server: its beginning, its end, its counters. serve.c has what it answers.
 *
 *     SERVING --close--> CLOSING (its blocks are being freed, requests are refused) --> gone
 *
 * tests/wire/store_basic.c. */
#include <sys/resource.h>

#include "store/state.h"

static weft_status_t take_opts(const weft_store_server_opts_t *given, weft_store_server_opts_t *o)
{
    weft_status_t st = wefti_opts_read(given, o, sizeof *o, "weft_store_server_opts_t");
    if (st)
        return st;
    o->size = sizeof *o;
    if (!o->bytes || o->bytes > UINT64_C(1) << 56)
        return weft_fail(WEFT_ERR_INVALID, "a server has 1 byte to 64 PiB to give out, not %llu", (unsigned long long)o->bytes);
    if (!o->client_bytes)
        o->client_bytes = o->bytes;
    if (!o->client_blocks)
        o->client_blocks = 4096;
    if (!o->blocks)
        o->blocks = 65536;
    if (!o->clients)
        o->clients = 1024;
    if (!o->lease_ns)
        o->lease_ns = 30 * WEFT_SECOND;
    if (o->blocks > 1u << 24 || o->clients > 1u << 24)
        return weft_fail(WEFT_ERR_INVALID, "a server has at most 16777216 blocks and as many clients");
    if (o->lease_ns < WEFT_MILLISECOND || o->lease_ns > 86400 * WEFT_SECOND)
        return weft_fail(WEFT_ERR_INVALID, "a lease is 1 ms to 1 day, not %llu ns", (unsigned long long)o->lease_ns);
    return WEFT_OK;
}

/* A block that others map has a file descriptor; the last quarter of those is left to everything else. */
static uint32_t most_mapped(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > UINT32_MAX)
        return UINT32_MAX;
    return (uint32_t)(limit.rlim_cur - limit.rlim_cur / 4);
}

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_store_server_t, rt);

static weft_status_t serve_on(weft_runtime_t *rt, const weft_store_server_opts_t *o, weft_store_server_t **server_out)
{
    store_state_t *ss = store_state(rt);
    weft_status_t st = WEFT_OK;
    if (!ss)
        return wefti_store_no_state(rt);
    weft_store_server_t *s = (weft_store_server_t *)wefti_handle_new(&handles);
    if (!s)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a server");
    s->rt = rt;
    s->ss = ss;
    s->opts = *o;
    s->born = weft_now(rt);
    s->max_mapped = most_mapped();
    s->stats.size = sizeof s->stats;
    wefti_slots_init(&s->blocks, o->blocks);
    wefti_list_init(&s->client_list);
    wefti_list_init(&s->block_list);
    wefti_list_init(&s->later);
    wefti_store_random_id(ss, s->id);
    wefti_store_random_id(ss, s->hash_key);
    pthread_mutex_lock(&ss->lock);
    if (weft_ext_closing(rt)) /* a server that comes before that is ended by shutdown */
        st = weft_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", weft_runtime_name(rt));
    else if (ss->server)
        st = weft_fail(WEFT_ERR_STATE, "the runtime \"%s\" has a server already; close that first", weft_runtime_name(rt));
    else
        ss->server = s;
    pthread_mutex_unlock(&ss->lock);
    if (st)
        wefti_handle_free(&handles, s);
    else
        *server_out = s;
    return st;
}

weft_status_t weft_store_serve(weft_runtime_t *rt, const weft_store_server_opts_t *opts, weft_store_server_t **server_out)
{
    weft_store_server_opts_t o;
    if (!rt || !server_out)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "where the server goes" : "the runtime");
    weft_status_t st = take_opts(opts, &o);
    if (!st)
        st = weft_ext_enter(rt);
    if (st)
        return st;
    st = serve_on(rt, &o, server_out);
    weft_ext_leave(rt);
    return st;
}
static void server_free(weft_store_server_t *s)
{
    s->ss->server = NULL;
    wefti_store_later_down(s, 0);
    wefti_map_free(&s->clients);
    wefti_slots_free(&s->blocks);
    wefti_free(s->names.at);
    wefti_handle_free(&handles, s); /* threads inside do not wait for the lock, which we hold */
}

void wefti_store_server_settle(weft_store_server_t *s)
{
    if (!s->closing || s->n_freeing || s->n_setting || !wefti_list_empty(&s->block_list))
        return;
    weft_op_t *op = s->close_op;
    server_free(s);
    if (op)
        weft_ext_op_complete(op, WEFT_OK, 0);
}

static void clients_end(weft_store_server_t *s)
{
    for (wefti_list_t *l; (l = wefti_list_first(&s->client_list));)
        wefti_store_client_end(wefti_container_of(l, store_client_t, link), false);
}

static weft_status_t close_start(weft_op_t *op)
{
    weft_store_server_t *s = *weft_ext_scratch(op, weft_store_server_t *);
    store_state_t *ss = s->ss;
    (void)weft_ext_op_track(
        op); /* without memory for its deadline it goes on: the handle is closed, and nobody could close it again */
    pthread_mutex_lock(&ss->lock);
    s->closing = true;
    s->close_op = op;
    wefti_store_later_again(s); /* they are refused */
    clients_end(s);
    for (wefti_list_t *l; (l = wefti_list_first(&s->block_list));)
        wefti_store_block_free(wefti_container_of(l, store_held_t, link), NULL);
    wefti_store_server_settle(s);
    pthread_mutex_unlock(&ss->lock);
    return WEFT_OK;
}

/* Nobody waits any more; the memory is given back all the same. */
static void close_cancel(weft_op_t *op, weft_status_t why)
{
    weft_store_server_t *s = *weft_ext_scratch(op, weft_store_server_t *);
    s->close_op = NULL;
    weft_ext_op_complete(op, why, 0);
}

static const weft_op_kind_t close_kind = {.name = "store server close", .start = close_start, .cancel = close_cancel};

static void free_op(weft_op_t *op, void *user)
{
    (void)user;
    wefti_free(op);
}

/* The runtime of a server that is open: it stays until weft_ext_leave(). WEFT_ERR_CLOSED, _FORKED. */
static weft_status_t join(weft_store_server_t *server, weft_runtime_t **rt_out)
{
    if (!server)
        return weft_fail(WEFT_ERR_INVALID, "the server is NULL");
    if (!wefti_handle_enter(&server->handle))
        return weft_fail(WEFT_ERR_CLOSED, "the server was closed");
    *rt_out = server->rt;
    weft_status_t st = weft_ext_enter(server->rt);
    wefti_handle_leave(&server->handle);
    return st;
}

static weft_status_t close_it(weft_runtime_t *rt, weft_store_server_t *server, weft_op_t *op)
{
    weft_op_t *own = NULL;
    if (!op) {
        op = own = (weft_op_t *)wefti_calloc(1, sizeof *own);
        if (!own)
            return weft_fail(WEFT_ERR_NOMEM, "no memory to close a server");
        own->fn = free_op;
    }
    weft_status_t st = weft_ext_op_prepare(rt, op, &close_kind);
    if (!st) {
        *weft_ext_scratch(op, weft_store_server_t *) = server;
        st = weft_ext_op_start(op);
    }
    if (st)
        wefti_free(own);
    return st;
}

weft_status_t weft_store_server_close(weft_store_server_t *server, weft_op_t *op)
{
    weft_runtime_t *rt;
    weft_status_t st = join(server, &rt);
    if (st)
        return st;
    if (!wefti_handle_close(&server->handle)) {
        st = weft_fail(WEFT_ERR_CLOSED, "the server is being closed already");
    } else {
        st = close_it(rt, server, op);
        if (st) /* nothing was started: undo */
            wefti_handle_reopen(&server->handle);
    }
    weft_ext_leave(rt);
    return st;
}

weft_status_t weft_store_server_get_stats(weft_store_server_t *server, weft_store_stats_t *stats_out)
{
    weft_store_stats_t all;
    weft_runtime_t *rt;
    if (!server || !stats_out || !stats_out->size)
        return weft_fail(WEFT_ERR_INVALID,
                         server ? "statistics go to a struct made with WEFT_STORE_STATS_INIT" : "the server is NULL");
    weft_status_t st = join(server, &rt);
    if (st)
        return st;
    store_state_t *ss = store_state(rt);
    pthread_mutex_lock(&ss->lock);
    if (ss->server == server)
        wefti_store_server_count(server, &all);
    else
        st = weft_fail(WEFT_ERR_CLOSED, "the server was closed");
    pthread_mutex_unlock(&ss->lock);
    weft_ext_leave(rt);
    if (st)
        return st;
    wefti_opts_write(stats_out, &all, sizeof all);
    return WEFT_OK;
}

void wefti_store_server_shutdown(store_state_t *ss)
{
    pthread_mutex_lock(&ss->lock);
    weft_store_server_t *s = ss->server;
    if (s) {
        bool waits = s->closing;
        s->closing = true;
        for (wefti_list_t *l; (l = wefti_list_first(&s->block_list));) /* before their owners end, who would free them */
            wefti_store_block_forget(wefti_container_of(l, store_held_t, link));
        clients_end(s);
        if (waits)
            wefti_store_server_settle(s);
    }
    pthread_mutex_unlock(&ss->lock);
}

void wefti_store_server_gone(store_state_t *ss)
{
    if (ss->server)
        server_free(ss->server);
}
