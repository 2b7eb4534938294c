/* element/replicas_member.c - the connections to memory elements that are replicas of each other.
 *
 *     PAUSE --> DIALLING --> OPENING a store --> UP --lost--> CLOSING --> PAUSE ...
 *                   \------------\--it failed---------------^      \--for good--> GONE
 *
 * A member that was lost is dialled again while the route is in use. If its host refuses the connection for two seconds, the
 * element is dead, since a living one listens. Silence proves nothing: the network may be down.
 *
 * Promise: a member is UP exactly while its store can be used, as far as is known here. tests/fault/element_replicas.c. */
#include "base/rng.h"
#include "element/replicas.h"

#define PAUSE_FIRST (50 * WEFT_MILLISECOND)
#define PAUSE_MOST (500 * WEFT_MILLISECOND)
#define DEAD_NS (2 * WEFT_SECOND)
enum { DEAD_TRIES = 3 };

static void dial(member_t *m);

bool wefti_member_dead(const member_t *m)
{
    return m->state != MEMBER_UP && m->refused >= DEAD_TRIES && weft_now(m->r->route.es->rt) - m->refused_since >= DEAD_NS;
}

static void rest(member_t *m)
{
    weft_runtime_t *rt = m->r->route.es->rt;
    m->state = MEMBER_PAUSE;
    if (weft_ext_timer_set(rt, &m->timer, weft_now(rt) + wefti_rng_jitter(&element_state(rt)->rng, m->pause)))
        m->state = MEMBER_GONE; /* no memory for the timer: it is not dialled again */
    m->pause = m->pause < PAUSE_MOST / 2 ? m->pause * 2 : PAUSE_MOST;
}

static void closed(weft_op_t *op, void *user)
{
    member_t *m = (member_t *)user;
    element_route_t *route = &m->r->route;
    (void)op;
    if (route->left || route->over)
        m->state = MEMBER_GONE;
    else
        rest(m);
    wefti_route_unref(route); /* the endpoint's */
    wefti_route_op_done(route);
}

static void hang_up(member_t *m, bool now)
{
    weft_ep_t *ep = m->ep;
    m->ep = NULL;
    m->state = MEMBER_CLOSING;
    if (!wefti_route_hang_up(&m->r->route, ep, now, &m->close, closed, m))
        m->state = MEMBER_GONE;
}

/* It is not UP, or not any more. */
static void fail(member_t *m, weft_status_t why)
{
    bool refused = why == WEFT_ERR_REFUSED;
    m->tried = true;
    m->why = why;
    if (refused && !m->refused)
        m->refused_since = weft_now(m->r->route.es->rt);
    m->refused = refused ? m->refused + 1 : 0;
    if (m->store)
        weft_store_leave(m->store); /* a mirror that still has it finds out by itself */
    m->store = NULL;
    wefti_leases_end(&m->leases);
    if (m->ep)
        hang_up(m, false);
    else
        rest(m);
    wefti_replicas_count(m->r);
    wefti_replicas_turn(m->r);
}

static void lost(weft_ep_t *ep, weft_status_t why, void *user)
{
    member_t *m = (member_t *)user;
    element_route_t *route = &m->r->route;
    if (m->ep != ep || route->over || route->left)
        return;
    wefti_route_ref(route);
    fail(m, why ? why : WEFT_ERR_PEER);
    wefti_route_unref(route);
}

static void store_opened(weft_op_t *op, void *user)
{
    member_t *m = (member_t *)user;
    element_route_t *route = &m->r->route;
    weft_store_t *store = op->status ? NULL : (weft_store_t *)op->buf;
    if (m->state != MEMBER_OPENING) { /* given up meanwhile */
        if (store)
            weft_store_leave(store);
    } else if (!store) {
        fail(m, op->status);
    } else {
        m->state = MEMBER_UP;
        m->store = store;
        m->tried = true;
        m->why = WEFT_OK;
        m->refused = 0;
        m->pause = PAUSE_FIRST;
        wefti_replicas_count(m->r);
        wefti_replicas_turn(m->r);
    }
    wefti_route_op_done(route);
}

static void connected(weft_op_t *op, void *user)
{
    member_t *m = (member_t *)user;
    element_route_t *route = &m->r->route;
    if (m->state == MEMBER_DIALLING && op->status) {
        fail(m, op->status);
    } else if (m->state == MEMBER_DIALLING) {
        m->state = MEMBER_OPENING;
        wefti_route_op(route, &m->store_op, store_opened, m);
        weft_status_t st = weft_store_open(m->ep, NULL, &m->store_op);
        if (st) {
            wefti_route_op_done(route);
            fail(m, st);
        }
    }
    wefti_route_op_done(route);
}

static void dial(member_t *m)
{
    m->state = MEMBER_DIALLING;
    weft_status_t st = wefti_route_dial(&m->r->route, m->uri, &m->connect, connected, lost, m, &m->ep);
    if (st)
        fail(m, st);
}

static void due(weft_ext_timer_t *timer)
{
    member_t *m = wefti_container_of(timer, member_t, timer);
    if (m->state == MEMBER_PAUSE)
        dial(m);
}

void wefti_member_begin(member_t *m)
{
    m->timer.fn = due;
    m->pause = PAUSE_FIRST;
    dial(m);
}

void wefti_member_end(member_t *m, bool now)
{
    weft_ext_timer_stop(m->r->route.es->rt, &m->timer);
    if (m->store)
        weft_store_close(m->store, NULL);
    m->store = NULL;
    wefti_leases_end(&m->leases);
    if (m->ep)
        hang_up(m, now);
    else if (m->state != MEMBER_CLOSING)
        m->state = MEMBER_GONE;
}
