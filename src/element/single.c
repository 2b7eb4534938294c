/* element/single.c - the route to one memory element: an endpoint, and the element's memory attached over it.
 *
 *     DIALLING --> ATTACHING --> UP --the endpoint is lost, or the element has left--> over
 *
 * The memory is attached by the durl's region key; without one, as the memory that is served at that place, whatever it is
 * called, or else by the element's name. Leases of memory that is allocated there use the same endpoint.
 *
 * Promise: every io that was given to it ends. tests/wire/element_basic.c, tests/fault/element_lost.c. */
#include <stdio.h>

#include "element/state.h"

typedef struct single {
    element_route_t route;
    weft_ep_t *ep;
    weft_op_t connect, attach, close;
    element_leases_t leases;
    char address[512];
    bool asked_name; /* nothing there goes by the place */
} single_t;

static single_t *single_of(element_route_t *route)
{
    return wefti_container_of(route, single_t, route);
}

/* It cannot be used any more. */
static void over(single_t *s, weft_status_t why)
{
    element_route_t *route = &s->route;
    if (route->over)
        return;
    route->over = true;
    route->why = why;
    if (route->t)
        wefti_transport_down(route->t, route, why);
}

/* --- becoming usable  ------------------------------------------------------------------------------------------------- */

static void attached(weft_op_t *op, void *user);

/* By the region's key, or without one by a name. */
static void attach(single_t *s, const uint8_t *key, size_t len, const char *name)
{
    wefti_route_op(&s->route, &s->attach, attached, s);
    weft_status_t st =
        len ? weft_remote_attach(s->ep, key, len, NULL, &s->attach) : weft_remote_find(s->ep, name, NULL, &s->attach);
    if (st) {
        wefti_route_op_done(&s->route);
        over(s, st);
    }
}

/* A durl of Scad says where an element is, under any name; another element of that process may have the name. */
static void ask_place(single_t *s, const weft_durl_t *d)
{
    char place[ELEMENT_PLACE_MAX];
    wefti_durl_place(d, place);
    s->asked_name = !*place;
    attach(s, NULL, 0, *place ? place : d->name);
}

/* Nothing goes by the place: its owner only knows names. False: it was asked. */
static bool ask_name(single_t *s, const weft_durl_t *d)
{
    if (s->asked_name || d->region_key_len)
        return false;
    s->asked_name = true;
    attach(s, NULL, 0, d->name);
    return true;
}

static void attached(weft_op_t *op, void *user)
{
    single_t *s = (single_t *)user;
    element_route_t *route = &s->route;
    weft_transport_t *t = route->t;
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    if (!op->status)
        route->remote = (weft_remote_t *)op->buf;
    if (!t || route->over) {
        ;
    } else if (op->status == WEFT_ERR_NOTFOUND && ask_name(s, &t->durl)) {
        ;
    } else if (op->status) {
        over(s, op->status);
    } else if (t->durl.bytes > op->len) {
        weft_log(WEFT_LOG_WARN, "transport %s: the memory has %llu bytes, and its durl says %llu", t->name,
                 (unsigned long long)op->len, (unsigned long long)t->durl.bytes);
        wefti_transport_has(t, op->len);
        over(s, WEFT_ERR_RANGE);
    } else {
        weft_remote_get_info(route->remote, &info);
        route->len = op->len;
        route->path = info.path;
        route->up = true;
        wefti_transport_up(t, route);
    }
    wefti_route_op_done(route);
}

static weft_memory_t *own_memory(const weft_transport_t *t)
{
    return wefti_transport_is_own(&t->durl) ? t->memory : NULL;
}

static void connected(weft_op_t *op, void *user)
{
    single_t *s = (single_t *)user;
    element_route_t *route = &s->route;
    weft_transport_t *t = route->t;
    weft_memory_t *own = t ? own_memory(t) : NULL;
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t len;
    if (t && !route->over && op->status)
        over(s, op->status);
    else if (t && !route->over && own && wefti_memory_key(own, key, &len))
        attach(s, key, len, NULL);
    else if (t && !route->over && t->durl.region_key_len)
        attach(s, t->durl.region_key, t->durl.region_key_len, NULL);
    else if (t && !route->over)
        ask_place(s, &t->durl);
    wefti_route_op_done(route);
}

static void lost(weft_ep_t *ep, weft_status_t why, void *user)
{
    single_t *s = (single_t *)user;
    if (s->ep == ep)
        over(s, why ? why : WEFT_ERR_PEER);
}

/* Where to? */
static weft_status_t find_address(single_t *s, const weft_durl_t *d, weft_memory_t *own)
{
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    if (own)
        memcpy(s->address, weft_memory_uri(own), strlen(weft_memory_uri(own)) + 1);
    else if (*d->url)
        memcpy(s->address, d->url, sizeof s->address);
    else if (*d->shm_id)
        snprintf(s->address, sizeof s->address, ELEMENT_SHM_URI, d->shm_id);
    else if (d->region_key_len && !weft_region_key_read(d->region_key, d->region_key_len, &info) && *info.owner)
        memcpy(s->address, info.owner, sizeof info.owner);
    else
        return weft_fail(WEFT_ERR_INVALID, "the durl of %s has neither a url nor a token that says where its owner is", d->name);
    return WEFT_OK;
}

static void begin(element_route_t *route)
{
    single_t *s = single_of(route);
    weft_status_t st = find_address(s, &route->t->durl, own_memory(route->t));
    if (!st)
        st = wefti_route_dial(route, s->address, &s->connect, connected, lost, s, &s->ep);
    if (st)
        over(s, st);
}

/* --- the end  --------------------------------------------------------------------------------------------------------- */

static void closed(weft_op_t *op, void *user)
{
    single_t *s = (single_t *)user;
    (void)op;
    wefti_route_unref(&s->route); /* the endpoint's */
    wefti_route_op_done(&s->route);
}

static void hang_up(single_t *s, bool now)
{
    weft_ep_t *ep = s->ep;
    wefti_leases_end(&s->leases);
    s->ep = NULL;
    if (ep)
        (void)wefti_route_hang_up(&s->route, ep, now, &s->close, closed, s);
}

static void leave(element_route_t *route)
{
    route->over = true;
    hang_up(single_of(route), false);
}

static void hang_up_now(element_route_t *route)
{
    wefti_route_ref(route);
    over(single_of(route), WEFT_ERR_PEER);
    hang_up(single_of(route), true);
    wefti_route_unref(route);
}

/* --- operations  ------------------------------------------------------------------------------------------------------ */

void wefti_single_moved(weft_op_t *inner, void *user)
{
    element_io_t *io = (element_io_t *)user;
    if (io->what == IO_ALLOC && wefti_lease_again(io))
        return;
    weft_status_t st = wefti_io_status(io, inner->status);
    if (io->op) {
        io->op->len = inner->len;
        io->op->tag = inner->tag;
        io->op->from = inner->from;
        if (io->what == IO_ALLOC)
            io->op->buf = inner->status ? NULL : inner->buf;
    }
    for (size_t i = 0; io->what == IO_BATCH && io->op && i < io->n; i++)
        io->items[i].status = wefti_io_status(io, io->rma_items[i].status);
    element_end(io->t->es);
    wefti_io_end(io, st);
}

static weft_status_t post_batch(element_route_t *route, element_io_t *io)
{
    for (size_t i = 0; i < io->n; i++)
        io->rma_items[i].remote = route->remote;
    return weft_rma_batch(io->rma_items, io->n, &io->inner);
}

static void post(element_route_t *route, element_io_t *io)
{
    uint8_t *at = io->buf ? io->buf->base + io->offset : NULL;
    weft_status_t st;
    wefti_io_inner(io, wefti_single_moved);
    switch (io->what) {
    case IO_READ:
        st = weft_rma_read(route->remote, io->addr, at, io->size, &io->inner);
        break;
    case IO_WRITE:
        st = weft_rma_write(route->remote, io->addr, at, io->size, &io->inner);
        break;
    case IO_BATCH:
        st = post_batch(route, io);
        break;
    default:
        st = weft_rma_atomic(route->remote, (weft_rma_atomic_t)io->which, io->addr, io->width, io->operand, io->compare,
                             &io->inner);
    }
    if (st) {
        element_end(route->es);
        wefti_io_end(io, wefti_io_status(io, st));
    }
}

static void move(element_route_t *route, element_io_t *io)
{
    single_t *s = single_of(route);
    if (route->over) {
        wefti_io_end(io, wefti_io_status(io, route->why));
        return;
    }
    if (io->what == IO_READY || (io->what == IO_BATCH && !io->n)) {
        io->op->len = io->what == IO_READY ? route->len : 0;
        wefti_io_end(io, WEFT_OK);
        return;
    }
    if (io->what == IO_ALLOC)
        wefti_lease_alloc(&s->leases, s->ep, io, wefti_single_moved);
    else
        post(route, io);
}

static void stop(element_route_t *route, element_io_t *io)
{
    (void)route;
    if (io->state == IO_MOVING) {
        weft_op_cancel(&io->inner);
        return;
    }
    wefti_list_remove(&io->held);
    wefti_io_end(io, io->why);
}

static const element_route_ops_t ops = {begin, move, stop, hang_up_now, leave};

element_route_t *wefti_single_new(weft_transport_t *t)
{
    single_t *s = (single_t *)wefti_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    wefti_leases_init(&s->leases, &s->route);
    wefti_route_init(&s->route, &ops, t);
    return &s->route;
}
