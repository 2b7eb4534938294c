/* element/route.c - routes: the connections of a transport, whatever they are made of (single.c, replicas.c).
 *
 *     made --> up --> over (lost)          parted: the transport has another route
 *         \--> over (failed)               left: parted, nothing is under way any more, and its connections are being hung up
 *
 * A route is counted: its transport, its ios, threads that read through it, its own operations and its open endpoints each have a
 * reference. So a transport may part from it at any moment, and a thread that copies from mapped memory keeps it.
 *
 * Promise: a route is left exactly once, and freed after everything that could call it. tests/wire/element_life.c. */
#include "element/state.h"

#define HANG_UP_NS WEFT_SECOND

void wefti_route_init(element_route_t *route, const element_route_ops_t *ops, weft_transport_t *t)
{
    route->ops = ops;
    route->es = t->es;
    route->t = t;
    route->action = t->action;
    wefti_action_ref(route->action);
    atomic_init(&route->refs, 1);
    pthread_mutex_lock(&route->es->lock);
    wefti_list_push_back(&route->es->routes, &route->link);
    pthread_mutex_unlock(&route->es->lock);
}

/* It is on no list any more. */
static void route_free(element_route_t *route)
{
    weft_remote_drop(route->remote);
    wefti_free(route);
}

void wefti_route_unref(element_route_t *route)
{
    if (!route || atomic_fetch_sub_explicit(&route->refs, 1, memory_order_acq_rel) != 1)
        return;
    weft_action_t *action = route->action;
    pthread_mutex_lock(&route->es->lock);
    wefti_list_remove(&route->link);
    pthread_mutex_unlock(&route->es->lock);
    route_free(route);
    wefti_action_unref(action);
}

void wefti_route_leave_if_idle(element_route_t *route)
{
    if (route->t || route->n_ios || route->left)
        return;
    route->left = true;
    route->ops->leave(route);
}

void wefti_route_part(element_route_t *route)
{
    if (!route)
        return;
    route->t = NULL;
    wefti_route_leave_if_idle(route);
    wefti_route_unref(route);
}

void wefti_route_op(element_route_t *route, weft_op_t *op, weft_op_fn fn, void *user)
{
    element_op(route->es, op, fn, user);
    wefti_route_ref(route);
}

void wefti_route_op_done(element_route_t *route)
{
    element_end(route->es);
    wefti_route_unref(route);
}

weft_status_t wefti_route_dial(element_route_t *route, const char *uri, weft_op_t *op, weft_op_fn connected,
                               void (*lost)(weft_ep_t *ep, weft_status_t why, void *user), void *user, weft_ep_t **ep_out)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.hooks.closed = lost;
    o.hooks.user = user;
    o.no_retry = true; /* the element may be found elsewhere by now */
    o.shard = 1;       /* transports have one driver, the head's */
    wefti_route_op(route, op, connected, user);
    wefti_route_ref(route); /* the endpoint's */
    weft_status_t st = weft_ep_open(route->es->rt, uri, &o, op, ep_out);
    if (st) {
        *ep_out = NULL;
        wefti_route_op_done(route);
        wefti_route_unref(route);
    }
    return st;
}

bool wefti_route_hang_up(element_route_t *route, weft_ep_t *ep, bool now, weft_op_t *op, weft_op_fn closed, void *user)
{
    wefti_route_op(route, op, closed, user);
    op->timeout_ns = HANG_UP_NS;
    if (!(now ? weft_ep_abort(ep, op) : weft_ep_close(ep, op)))
        return true;
    weft_ep_close(ep, NULL);
    wefti_route_op_done(route);
    return false;
}

/* Those that are left at the end of the runtime: their endpoints were forced down, and their hooks were not called. A
 * remote may be dropped after its runtime has ended. */
void wefti_routes_free(element_state_t *es)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&es->routes));)
        route_free(wefti_container_of(l, element_route_t, link));
}
