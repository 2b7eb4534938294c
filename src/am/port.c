/* am/port.c - who wants what: handlers and receives by id, and the messages that wait for either.
 *
 * A message goes to the handler of its id; else to the receive that was posted first among those of its endpoint, of its id
 * and of any; else it waits. A handler that comes late gets what waits for it from progress, before anything newer: while a
 * port has both a handler and waiting messages, new ones join the end. */
#include "am/state.h"

/* --- ports ----------------------------------------------------------------------------------------------------------------- */

am_port_t *wefti_am_port_far(const am_state_t *as, uint32_t id)
{
    return (am_port_t *)wefti_map_get(&as->far, id);
}

static am_port_t *port_make(am_state_t *as, uint32_t id)
{
    am_port_t *port = am_port(as, id);
    if (port)
        return port;
    port = (am_port_t *)wefti_calloc(1, sizeof *port);
    if (!port)
        return NULL;
    port->id = id;
    wefti_list_init(&port->posted);
    wefti_list_init(&port->arrived);
    uint32_t near = am_near(id);
    if (near < AM_NEAR + AM_OWN) {
        as->near[near] = port;
    } else if (wefti_map_put(&as->far, id, port)) {
        wefti_free(port);
        return NULL;
    }
    return port;
}

/* The ports of small ids stay: there are few, and messages come and go. */
static void port_unuse(am_state_t *as, am_port_t *port)
{
    if (am_near(port->id) < AM_NEAR + AM_OWN || port->fn || !wefti_list_empty(&port->posted) || !wefti_list_empty(&port->arrived))
        return;
    if (wefti_list_linked(&port->drain_link))
        wefti_list_remove(&port->drain_link);
    wefti_map_take(&as->far, port->id);
    wefti_free(port);
}

void wefti_am_ports_free(am_state_t *as)
{
    am_port_t *port;
    size_t at = 0;
    for (unsigned i = 0; i < AM_NEAR + AM_OWN; i++)
        wefti_free(as->near[i]);
    while ((port = (am_port_t *)wefti_map_next(&as->far, &at, NULL)))
        wefti_free(port);
    wefti_map_free(&as->far);
}

/* --- receives -------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_am_post(am_state_t *as, weft_op_t *op)
{
    am_recv_t *r = am_recv(op);
    wefti_list_t *list = &as->posted;
    if (r->ep) {
        list = &am_ep(r->ep)->posted;
    } else if (r->id != WEFT_AM_ANY_ID) {
        am_port_t *port = port_make(as, r->id);
        if (!port)
            return WEFT_ERR_NOMEM;
        list = &port->posted;
    }
    r->seq = as->post_seq++;
    wefti_list_push_back(list, &r->owner_link);
    if (!r->ep)
        wefti_list_push_back(&as->posted_of_any, &r->all_link);
    return WEFT_OK;
}

void wefti_am_unpost(am_state_t *as, weft_op_t *op)
{
    am_recv_t *r = am_recv(op);
    wefti_list_remove(&r->owner_link);
    if (r->ep)
        return;
    wefti_list_remove(&r->all_link);
    if (r->id != WEFT_AM_ANY_ID)
        port_unuse(as, am_port(as, r->id));
}

static am_recv_t *first_of(const wefti_list_t *list)
{
    wefti_list_t *l = wefti_list_first(list);
    return l ? wefti_container_of(l, am_recv_t, owner_link) : NULL;
}

static am_recv_t *older(am_recv_t *a, am_recv_t *b)
{
    return !a || (b && b->seq < a->seq) ? b : a;
}

weft_op_t *wefti_am_take_posted(am_state_t *as, weft_ep_t *ep, uint32_t id)
{
    am_port_t *port = am_port(as, id);
    am_recv_t *found = NULL;
    wefti_list_each(l, &am_ep(ep)->posted) {
        am_recv_t *r = wefti_container_of(l, am_recv_t, owner_link);
        if (r->id == id || r->id == WEFT_AM_ANY_ID) {
            found = r;
            break;
        }
    }
    if (port)
        found = older(found, first_of(&port->posted));
    found = older(found, first_of(&as->posted));
    if (!found)
        return NULL;
    weft_op_t *op = wefti_op_of_scratch(found);
    wefti_am_unpost(as, op);
    return op;
}

/* --- messages -------------------------------------------------------------------------------------------------------------- */

static void drain_soon(am_state_t *as, am_port_t *port);

bool wefti_am_hold(am_msg_t *m)
{
    am_state_t *as = m->as;
    am_port_t *port = port_make(as, m->pub.id);
    if (!port)
        return false;
    m->arrived = true;
    m->port = port;
    wefti_list_push_back(&port->arrived, &m->port_link);
    wefti_list_push_back(&as->arrived, &m->all_link);
    wefti_list_push_back(&am_ep(m->ep)->arrived, &m->ep_link);
    am_ep(m->ep)->box.unreceived++;
    if (port->fn)
        drain_soon(as, port);
    return true;
}

void wefti_am_unhold(am_msg_t *m)
{
    am_port_t *port = m->port;
    m->arrived = false;
    m->port = NULL;
    wefti_list_remove(&m->port_link);
    wefti_list_remove(&m->all_link);
    wefti_list_remove(&m->ep_link);
    am_ep(m->ep)->box.unreceived--;
    port_unuse(m->as, port);
}

/* A handler's messages are not for receives, even if it has not got them yet. */
static bool wanted(const am_msg_t *m, uint32_t id)
{
    return (id == WEFT_AM_ANY_ID || id == m->pub.id) && !m->port->fn;
}

am_msg_t *wefti_am_find_held(am_state_t *as, weft_ep_t *ep, uint32_t id)
{
    if (ep) {
        wefti_list_each(l, &am_ep(ep)->arrived) {
            am_msg_t *m = wefti_container_of(l, am_msg_t, ep_link);
            if (wanted(m, id))
                return m;
        }
        return NULL;
    }
    if (id != WEFT_AM_ANY_ID) {
        am_port_t *port = am_port(as, id);
        wefti_list_t *l = port && !port->fn ? wefti_list_first(&port->arrived) : NULL;
        return l ? wefti_container_of(l, am_msg_t, port_link) : NULL;
    }
    wefti_list_each(l, &as->arrived) {
        am_msg_t *m = wefti_container_of(l, am_msg_t, all_link);
        if (wanted(m, id))
            return m;
    }
    return NULL;
}

/* --- handlers -------------------------------------------------------------------------------------------------------------- */

static void hand_over(am_port_t *port, am_msg_t *m)
{
    wefti_am_unhold(m);
    /* The program may keep and release it in its handler, from this thread or another: the handler's own reference keeps it
     * until it returns. */
    wefti_am_give(m);
    atomic_store(&m->refs, 2);
    m->kept = false;
    port->fn(&m->pub, port->user);
    if (!m->kept)
        wefti_am_unref(m);
    wefti_am_unref(m);
}

/* Everything that waited when it began; what a handler adds waits for the next time. */
static void drain(weft_op_t *op, void *user)
{
    am_state_t *as = (am_state_t *)user;
    wefti_list_t ports;
    (void)op;
    as->draining = false;
    wefti_list_init(&ports);
    wefti_list_splice(&ports, &as->drains);
    for (wefti_list_t *l; (l = wefti_list_pop(&ports));) {
        uint32_t id = wefti_container_of(l, am_port_t, drain_link)->id;
        am_port_t *port;
        /* Looked up each time: a handler may take itself away, and with its last message the port goes. */
        while ((port = am_port(as, id)) && port->fn && (l = wefti_list_first(&port->arrived)))
            hand_over(port, wefti_container_of(l, am_msg_t, port_link));
    }
}

void wefti_am_drain_init(am_state_t *as)
{
    wefti_list_init(&as->drains);
    as->drain_op.fn = drain;
    as->drain_op.user = as;
}

static void drain_soon(am_state_t *as, am_port_t *port)
{
    if (!wefti_list_linked(&port->drain_link))
        wefti_list_push_back(&as->drains, &port->drain_link);
    if (as->draining || wefti_closing(as->rt))
        return; /* if the runtime closes, nobody gets anything any more */
    as->draining = true;
    wefti_op_soon(as->rt, &as->drain_op);
}

/* What a handler has not got yet when it goes is for the receives that were posted meanwhile. While it is still there, so is
 * the port. */
static void leave_behind(am_state_t *as, am_port_t *port)
{
    wefti_list_each_safe(l, &port->arrived) {
        am_msg_t *m = wefti_container_of(l, am_msg_t, port_link);
        for (weft_op_t *op; (op = wefti_am_take_posted(as, m->ep, port->id)) && !wefti_am_meet(op, m);)
            ; /* one that has no memory leaves it for the next */
    }
}

/* The same for receives that wait on all shards, once the handler is gone. */
static void offer_rest(am_state_t *as, uint32_t id)
{
    am_port_t *port;
    for (wefti_list_t *l; wefti_wants_some(as->wants) && (port = am_port(as, id)) && (l = wefti_list_first(&port->arrived));)
        if (!wefti_am_offer(wefti_container_of(l, am_msg_t, port_link)))
            return;
}

static weft_status_t handle_start(weft_op_t *op)
{
    am_handle_t h = *wefti_op_scratch(op, am_handle_t);
    am_state_t *as = am_state(wefti_opx(op)->rt);
    am_port_t *port = am_port(as, h.id);
    if (!h.fn) {
        if (port) {
            leave_behind(as, port);
            port->fn = NULL;
            port_unuse(as, port);
            offer_rest(as, h.id);
        }
    } else if (port && port->fn) {
        return wefti_fail(WEFT_ERR_STATE, "id %u has a handler; take it away first", h.id);
    } else {
        port = port_make(as, h.id);
        if (!port)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory for one more handler");
        port->fn = h.fn;
        port->user = h.user;
        if (!wefti_list_empty(&port->arrived))
            drain_soon(as, port);
    }
    wefti_op_complete(op, WEFT_OK);
    return WEFT_OK;
}

static const wefti_op_kind_t handle_kind = {.name = "am handle", .start = handle_start, .cancel = wefti_op_no_cancel};

weft_status_t wefti_am_handle(weft_runtime_t *rt, uint32_t id, weft_am_fn fn, void *user, weft_op_t *done)
{
    weft_op_t *own = NULL;
    if (!done) {
        done = own = wefti_op_own();
        if (!own)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to set a handler");
    }
    weft_status_t st = wefti_op_prepare(rt, done, &handle_kind);
    if (!st) {
        *wefti_op_scratch(done, am_handle_t) = (am_handle_t){fn, user, id};
        st = wefti_op_post(rt, done);
    }
    if (st)
        wefti_free(own);
    return st;
}

static weft_status_t handle_on_shard(wefti_part_t *part)
{
    const am_handle_t *h = part->arg;
    return wefti_am_handle(part->rt, h->id, h->fn, h->user, &part->op);
}

weft_status_t weft_am_handle(weft_runtime_t *rt, uint32_t id, weft_am_fn fn, void *user, weft_op_t *done)
{
    if (!rt || id == WEFT_AM_ANY_ID)
        return wefti_fail(WEFT_ERR_INVALID, rt ? "WEFT_AM_ANY_ID is no id a handler could have" : "the runtime is NULL");
    if (!wefti_sharded(rt))
        return wefti_am_handle(rt, id, fn, user, done);
    am_handle_t h = {fn, user, id};
    return wefti_on_all_shards(wefti_head(rt), done, handle_on_shard, &h);
}
