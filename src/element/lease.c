/* element/lease.c - leases: one for each length of time that allocations at an element ask for.
 *
 *     OPENING a store, allocations are HELD --> OPEN --its time is over at the element--> gone; the allocation opens another
 *                                         \--it failed, and so do they--> gone
 *
 * A lease is a client of the element's store (weft/store.h), over an endpoint of the route. The first allocation that asks for
 * its length opens it. It stays until the endpoint is hung up, so that blocks of one program can end at different times. A
 * route has few leases: a program that asks for ever new lengths would fill the store with clients.
 *
 * Promise: every allocation that was given to a lease ends, and no store is left open behind an endpoint.
 * tests/wire/element_lease.c, tests/fault/element_nomem.c. */
#include "element/state.h"

enum { LEASES_MOST = 16 };

struct element_lease {
    element_leases_t *of;
    wefti_list_t link;   /* of->all; unlinked: hung up, and freed when nothing is under way */
    uint64_t ns;         /* asked for; 0: what the element gives */
    bool busy;           /* op is under way, or its end is being told */
    weft_store_t *store; /* NULL: OPENING */
    weft_op_t op;
    weft_op_fn moved; /* what its allocations end with */
    wefti_list_t held;
};

void wefti_leases_init(element_leases_t *leases, element_route_t *route)
{
    leases->route = route;
    wefti_list_init(&leases->all);
}

static void unlink_lease(element_lease_t *lease)
{
    wefti_list_remove(&lease->link);
    lease->of->n--;
}

static void close_lease(element_lease_t *lease)
{
    if (lease->store)
        weft_store_close(lease->store, NULL);
    wefti_free(lease);
}

static void post(element_lease_t *lease, element_io_t *io)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    o.len = io->bytes;
    wefti_io_inner(io, lease->moved);
    weft_status_t st = weft_block_alloc(lease->store, &o, &io->inner);
    if (st) {
        element_end(io->t->es);
        wefti_io_end(io, wefti_io_status(io, st));
    }
}

static void held_go(element_lease_t *lease, weft_status_t st)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&lease->held));) {
        element_io_t *io = wefti_container_of(l, element_io_t, held);
        if (st)
            wefti_io_end(io, wefti_io_status(io, st));
        else
            post(lease, io);
    }
}

/* It is open, or failed: go on with the allocations that wait. That may hang up everything, this lease included. */
static void come_to(element_lease_t *lease, weft_status_t st)
{
    if (st && wefti_list_linked(&lease->link))
        unlink_lease(lease); /* another try opens another lease */
    held_go(lease, st);
    lease->busy = false;
    if (!wefti_list_linked(&lease->link))
        close_lease(lease);
}

static void opened(weft_op_t *op, void *user)
{
    element_lease_t *lease = (element_lease_t *)user;
    element_route_t *route = lease->of->route;
    lease->store = op->status ? NULL : (weft_store_t *)op->buf;
    come_to(lease, op->status ? op->status : wefti_list_linked(&lease->link) ? WEFT_OK : WEFT_ERR_PEER);
    wefti_route_op_done(route);
}

static element_lease_t *find(element_leases_t *leases, uint64_t ns)
{
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    wefti_list_each(l, &leases->all) {
        element_lease_t *lease = wefti_container_of(l, element_lease_t, link);
        if (lease->ns != ns)
            continue;
        if (lease->busy || weft_store_get_info(lease->store, &info) || info.state != WEFT_ERR_STALE)
            return lease;
        unlink_lease(lease); /* its time is over: nobody can use it */
        weft_store_leave(lease->store);
        wefti_free(lease);
        break;
    }
    return NULL;
}

static element_lease_t *lease_new(element_leases_t *leases, uint64_t ns, weft_op_fn moved)
{
    element_lease_t *lease = (element_lease_t *)wefti_calloc(1, sizeof *lease);
    if (!lease)
        return NULL;
    lease->of = leases;
    lease->ns = ns;
    lease->moved = moved;
    wefti_list_init(&lease->held);
    wefti_list_push_back(&leases->all, &lease->link);
    leases->n++;
    return lease;
}

static void open_lease(element_lease_t *lease, weft_ep_t *ep)
{
    element_route_t *route = lease->of->route;
    weft_store_opts_t o = WEFT_STORE_OPTS_INIT;
    o.lease_ns = lease->ns;
    lease->busy = true;
    wefti_route_op(route, &lease->op, opened, lease);
    weft_status_t st = weft_store_open(ep, &o, &lease->op);
    if (st) {
        come_to(lease, st);
        wefti_route_op_done(route);
    }
}

void wefti_lease_alloc(element_leases_t *leases, weft_ep_t *ep, element_io_t *io, weft_op_fn moved)
{
    element_lease_t *lease = find(leases, io->lease_ns);
    if (lease && lease->store) {
        post(lease, io);
        return;
    }
    bool first = !lease;
    if (first && leases->n >= LEASES_MOST) {
        wefti_io_end(io, WEFT_ERR_LIMIT);
        return;
    }
    if (first)
        lease = lease_new(leases, io->lease_ns, moved);
    if (!lease) {
        wefti_io_end(io, WEFT_ERR_NOMEM);
        return;
    }
    io->state = IO_HELD;
    wefti_list_push_back(&lease->held, &io->held);
    if (first)
        open_lease(lease, ep);
}

bool wefti_lease_again(element_io_t *io)
{
    element_route_t *route = io->route;
    if (io->inner.status != WEFT_ERR_STALE || io->tries++ || io->why || route->over)
        return false;
    element_end(io->t->es);
    route->ops->move(route, io);
    return true;
}

void wefti_leases_end(element_leases_t *leases)
{
    for (wefti_list_t *l; (l = wefti_list_first(&leases->all));) {
        element_lease_t *lease = wefti_container_of(l, element_lease_t, link);
        unlink_lease(lease);
        if (!lease->busy)
            close_lease(lease);
    }
}
