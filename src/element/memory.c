/* element/memory.c - memory elements: a region, a store for what is allocated beside it, a listener, and connections.
 *
 *     OPEN --close--> CLOSING: the region is revoked, the store stops, connections are hung up --the last has ended--> gone
 *
 * The region is made before the listener, so that a peer that connects finds it. One that is named goes by its place too: nobody
 * knows a port that the system chooses before it has that name. Every connection is accepted; one that has ended
 * is closed. A close tells the peers, and does not wait for one that does not answer.
 *
 * Connections come and go on the drivers of their shards; the close is the head's. A connection is hung up by whoever takes it
 * off the list of guests: the hook that hears of its end, or the close. One that comes while the listener closes goes at once.
 *
 * Promise: when a close is complete nothing is left. Memory that was not closed goes with its runtime.
 * tests/wire/element_memory.c, tests/wire/store_shards.c. */
#include <stddef.h>
#include <stdio.h>

#include "element/memory.h"

#define LISTEN "tcp://127.0.0.1:0"
#define HANG_UP_NS WEFT_SECOND
enum { MIRROR_PART = 64 }; /* what a mirror takes beside its bytes: see spare_for() */

typedef struct guest {
    wefti_list_t link;
    weft_memory_t *memory;
    weft_ep_t *ep;
    weft_op_t close;
} guest_t;

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_memory_t, ended);

static weft_memory_t *memory_new(void)
{
    weft_memory_t *m = (weft_memory_t *)wefti_handle_take(&handles);
    if (!m)
        return NULL;
    if (m->handle.uses == 1)
        pthread_mutex_init(&m->lock, NULL);
    memset(m->uri, 0, sizeof m->uri);
    memset(&m->es, 0, sizeof *m - offsetof(weft_memory_t, es));
    m->ended = false;
    atomic_store(&m->handle.open, 1);
    return m;
}

weft_status_t wefti_memory_lock(weft_memory_t *m)
{
    weft_status_t st = weft_ext_check(m->rt);
    if (st)
        return st;
    pthread_mutex_lock(&m->lock);
    if (!m->ended)
        return WEFT_OK;
    pthread_mutex_unlock(&m->lock);
    return weft_fail(WEFT_ERR_CLOSED, "the memory element was closed");
}

static void memory_free(weft_memory_t *m)
{
    pthread_mutex_lock(&m->lock);
    m->ended = true;
    pthread_mutex_unlock(&m->lock);
    wefti_list_splice(&m->leaving, &m->guests);
    for (wefti_list_t *l; (l = wefti_list_pop(&m->leaving));)
        wefti_free(wefti_container_of(l, guest_t, link));
    weft_buffer_drop(m->buffer); /* its region has ended */
    wefti_handle_free(&handles, m);
}

void wefti_memories_free(element_state_t *es)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&es->memories));)
        memory_free(wefti_container_of(l, weft_memory_t, link));
}

/* --- who is connected  ------------------------------------------------------------------------------------------------ */

static void hang_up(weft_memory_t *m, guest_t *g, weft_ep_t *ep);

static void accepted(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    weft_memory_t *m = (weft_memory_t *)user;
    guest_t *g = (guest_t *)wefti_calloc(1, sizeof *g);
    (void)listener;
    if (!g) {
        weft_ep_abort(ep, NULL);
        return;
    }
    g->memory = m;
    g->ep = ep;
    pthread_mutex_lock(&m->lock);
    bool closing = m->closing;
    wefti_list_push_back(closing ? &m->leaving : &m->guests, &g->link);
    m->n_guests++;
    m->accepted++;
    pthread_mutex_unlock(&m->lock);
    if (closing) /* the listener is not gone before this: `left` is not 0 */
        hang_up(m, g, ep);
}

/* Under the lock. */
static guest_t *find_guest(weft_memory_t *m, const weft_ep_t *ep)
{
    wefti_list_each(l, &m->guests) {
        guest_t *g = wefti_container_of(l, guest_t, link);
        if (g->ep == ep)
            return g;
    }
    return NULL;
}

static void ended(weft_ep_t *ep, weft_status_t why, void *user)
{
    weft_memory_t *m = (weft_memory_t *)user;
    (void)why;
    pthread_mutex_lock(&m->lock);
    guest_t *g = find_guest(m, ep);
    if (g) {
        wefti_list_remove(&g->link);
        m->n_guests--;
    }
    pthread_mutex_unlock(&m->lock);
    if (!g) /* its close is under way */
        return;
    wefti_free(g);
    weft_ep_close(ep, NULL);
}

/* --- closing  --------------------------------------------------------------------------------------------------------- */

/* On the head's driver. */
static void finish(weft_memory_t *m)
{
    weft_op_t *op = m->close.op;
    if (m->abandoned) { /* hooks may come until the runtime is gone */
        if (op)
            weft_ext_op_complete(op, WEFT_ERR_CLOSED, 0);
        m->close.op = NULL;
        return;
    }
    pthread_mutex_lock(&m->es->lock);
    if (wefti_list_linked(&m->link))
        wefti_list_remove(&m->link);
    pthread_mutex_unlock(&m->es->lock);
    memory_free(m);
    if (op)
        weft_ext_op_complete(op, WEFT_OK, 0);
}

static void last_called(weft_ext_call_t *call)
{
    weft_memory_t *m = wefti_container_of(call, weft_memory_t, last_call);
    element_state_t *es = m->es;
    finish(m);
    element_end(es);
}

static void step(weft_memory_t *m)
{
    if (atomic_fetch_sub(&m->left, 1) != 1)
        return;
    if (!weft_runtime_shard(m->rt)) {
        finish(m);
        return;
    }
    element_begin(m->es); /* the room is not idle while the call is on its way */
    m->last_call.fn = last_called;
    if (weft_ext_call(m->rt, &m->last_call))
        element_end(m->es); /* it goes with the runtime */
}

static void part_done(weft_op_t *op, void *user)
{
    weft_memory_t *m = (weft_memory_t *)user;
    element_state_t *es = m->es;
    (void)op;
    step(m);
    element_end(es);
}

static void hung_up(weft_op_t *op, void *user)
{
    guest_t *g = (guest_t *)user;
    weft_memory_t *m = g->memory;
    element_state_t *es = m->es;
    (void)op;
    pthread_mutex_lock(&m->lock);
    wefti_list_remove(&g->link);
    m->n_guests--;
    pthread_mutex_unlock(&m->lock);
    wefti_free(g);
    step(m);
    element_end(es);
}

static void begin(weft_memory_t *m, weft_op_t *op, weft_op_fn fn, void *user)
{
    element_op(m->es, op, fn, user);
    atomic_fetch_add(&m->left, 1);
}

/* The post failed: the runtime closes. */
static void not_begun(weft_memory_t *m, weft_status_t st)
{
    if (!st)
        return;
    atomic_store(&m->abandoned, true);
    atomic_fetch_sub(&m->left, 1); /* not the last: our caller has one */
    element_end(m->es);
}

/* A guest that is among those that leave. */
static void hang_up(weft_memory_t *m, guest_t *g, weft_ep_t *ep)
{
    begin(m, &g->close, hung_up, g);
    g->close.timeout_ns = HANG_UP_NS;
    not_begun(m, weft_ep_close(ep, &g->close));
}

/* The next one to hang up; NULL: there is none. */
static guest_t *next_to_leave(weft_memory_t *m)
{
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    wefti_list_t *l = wefti_list_pop(&m->guests);
    if (l)
        wefti_list_push_back(&m->leaving, l);
    pthread_mutex_unlock(&m->lock);
    return l ? wefti_container_of(l, guest_t, link) : NULL;
}

static void close_begin(element_close_t *close)
{
    weft_memory_t *m = wefti_container_of(close, weft_memory_t, close);
    atomic_store(&m->left, 1);
    for (guest_t *g; (g = next_to_leave(m));)
        hang_up(m, g, g->ep);
    if (m->listener) {
        begin(m, &m->listener_op, part_done, m);
        not_begun(m, weft_listener_close(m->listener, &m->listener_op));
    }
    if (m->store) {
        begin(m, &m->store_op, part_done, m);
        not_begun(m, weft_store_server_close(m->store, &m->store_op));
    }
    if (m->region) {
        begin(m, &m->region_op, part_done, m);
        not_begun(m, weft_region_free(m->region, &m->region_op));
    }
    step(m);
}

static const weft_op_kind_t close_kind = {
    .name = "memory close", .start = wefti_element_close_start, .cancel = wefti_element_close_cancel};

weft_status_t weft_memory_close(weft_memory_t *memory, weft_op_t *op)
{
    if (!memory)
        return weft_fail(WEFT_ERR_INVALID, "the memory is NULL");
    weft_runtime_t *rt = memory->rt;
    weft_status_t st = weft_ext_enter(rt);
    if (st)
        return st;
    st = op ? weft_ext_op_prepare(rt, op, &close_kind) : WEFT_OK;
    if (!st) {
        st = wefti_memory_lock(memory);
        if (st && op)
            weft_ext_op_unprepare(op);
    }
    if (!st) { /* we close it, or the runtime does */
        memory->ended = true;
        pthread_mutex_unlock(&memory->lock);
        st = wefti_element_close(rt, &memory->close, op);
    }
    weft_ext_leave(rt);
    return st;
}

/* --- opening  --------------------------------------------------------------------------------------------------------- */

/* How much a store must have for a mirror of so many bytes: its blocks carry checksums and whatever else store keeps with them,
 * and pages are whole. */
static uint64_t spare_for(uint64_t bytes)
{
    return bytes + bytes / MIRROR_PART + (1 << 20);
}

static weft_status_t check(weft_runtime_t *rt, const weft_memory_opts_t *o)
{
    if (!rt)
        return weft_fail(WEFT_ERR_INVALID, "the runtime is NULL");
    if (!o->name || !*o->name || strnlen(o->name, WEFT_DURL_NAME_MAX + 1) > WEFT_DURL_NAME_MAX)
        return weft_fail(WEFT_ERR_INVALID, "a memory element needs a name of 1 to %u bytes", WEFT_DURL_NAME_MAX);
    if (!o->bytes || o->bytes > UINT64_MAX / 4 || o->spare > UINT64_MAX / 4)
        return weft_fail(WEFT_ERR_INVALID, "a memory element has at least one byte, and at most what a machine can have");
    /* what it is called must be readable in its durl */
    weft_durl_t d = WEFT_DURL_INIT;
    size_t len = 0;
    d.impl = WEFT_IMPL_TCP;
    memcpy(d.name, o->name, strlen(o->name));
    return weft_durl_format(&d, NULL, &len);
}

static weft_status_t open_region(weft_memory_t *m, const weft_memory_opts_t *o, const char *place)
{
    weft_region_opts_t r = WEFT_REGION_OPTS_INIT;
    r.len = o->bytes;
    r.unmapped = o->unmapped;
    r.name = place && *place ? place : o->named ? m->name : NULL;
    return weft_region_new(m->rt, &r, &m->region);
}

/* Is it the place of one of the addresses before `end`? */
static bool is_place_of(const char *place, const char *uris, const char *end)
{
    char other[ELEMENT_PLACE_MAX];
    while (*uris && uris != end) {
        wefti_uri_place(&uris, other);
        if (!strcmp(other, place))
            return true;
    }
    return false;
}

/* It also goes by the places of these addresses. `had`, and the places of the addresses `but`, it has already. */
static weft_status_t name_places(weft_memory_t *m, const char *uris, const char *had, const char *but)
{
    weft_status_t st = WEFT_OK;
    char place[ELEMENT_PLACE_MAX];
    for (const char *first = uris; !st && *uris;) {
        const char *here = uris;
        wefti_uri_place(&uris, place);
        if (*place && strcmp(place, had) && !is_place_of(place, but, NULL) && !is_place_of(place, first, here))
            st = weft_region_name(m->region, place);
    }
    return st;
}

static weft_status_t open_store(weft_memory_t *m, const weft_memory_opts_t *o)
{
    weft_store_server_opts_t s = WEFT_STORE_SERVER_OPTS_INIT;
    s.bytes = o->spare + (o->mirrored ? spare_for(o->bytes) : 0);
    s.lease_ns = o->lease_ns;
    s.unmapped = o->unmapped;
    return weft_store_serve(m->rt, &s, &m->store);
}

static weft_status_t open_listener(weft_memory_t *m, const weft_memory_opts_t *o)
{
    weft_listen_opts_t l = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = ended, .user = m};
    l.accept = accepted;
    l.user = m;
    l.hooks = &hooks;
    weft_status_t st = weft_listen(m->rt, o->uri ? o->uri : LISTEN, &l, &m->listener);
    if (st)
        return st;
    size_t len = sizeof m->uri;
    st = weft_listener_copy_uri(m->listener, m->uri, &len);
    if (st == WEFT_ERR_LIMIT)
        return weft_fail(WEFT_ERR_INVALID, "a memory element listens on at most %zu bytes of addresses", sizeof m->uri - 1);
    return st;
}

static weft_status_t open_memory(element_state_t *es, const weft_memory_opts_t *o, const char *place, weft_memory_t **memory_out)
{
    weft_status_t st = WEFT_OK;
    const char *given = o->uri ? o->uri : "", *had = place ? place : "";
    weft_memory_t *m = memory_new();
    if (!m)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a memory element");
    m->es = es;
    m->rt = es->rt;
    m->close.begin = close_begin;
    m->bytes = o->bytes;
    m->spare = o->spare;
    m->mirrored = o->mirrored;
    memcpy(m->name, o->name, strlen(o->name));
    wefti_list_init(&m->guests);
    wefti_list_init(&m->leaving);
    if (!o->mirrored)
        st = open_region(m, o, place);
    if (!st && m->region && o->named)
        st = name_places(m, given, had, "");
    if (!st && (o->mirrored || o->spare))
        st = open_store(m, o);
    if (!st)
        st = open_listener(m, o);
    if (!st && m->region && o->named) /* a port that the system chose */
        st = name_places(m, m->uri, had, given);
    if (!st && m->region) {
        m->key_len = sizeof m->key;
        st = weft_region_key(m->region, NULL, m->key, &m->key_len);
    }
    if (st) { /* guests may have come meanwhile: it closes like any other */
        m->ended = true;
        if (wefti_element_close(m->rt, &m->close, NULL))
            memory_free(m); /* what it has opened goes with the runtime */
        return st;
    }
    pthread_mutex_lock(&es->lock);
    wefti_list_push_back(&es->memories, &m->link);
    pthread_mutex_unlock(&es->lock);
    *memory_out = m;
    return WEFT_OK;
}

weft_status_t wefti_memory_open(weft_runtime_t *rt, const weft_memory_opts_t *opts, const char *place, weft_memory_t **memory_out)
{
    weft_memory_opts_t o;
    element_state_t *es;
    if (!opts || !memory_out)
        return weft_fail(WEFT_ERR_INVALID, opts ? "there is nowhere to put the memory element"
                                                : "a memory element needs options: a name and how many bytes");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_memory_opts_t");
    if (!st)
        st = check(rt, &o);
    if (!st)
        st = wefti_element_enter(rt, &es);
    if (st)
        return st;
    st = open_memory(es, &o, place, memory_out);
    weft_ext_leave(rt);
    return st;
}

weft_status_t weft_memory_open(weft_runtime_t *rt, const weft_memory_opts_t *opts, weft_memory_t **memory_out)
{
    return wefti_memory_open(rt, opts, NULL, memory_out);
}
