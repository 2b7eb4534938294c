/* element/replicas.c - the route to several memory elements with the same bytes: a mirror on their stores.
 *
 *     GATHER --all have answered, or were tried--> OPENING --> OPEN --no good any more, a write and we are no writer, or
 *                                                    ^  |       |     a second without a write--+
 *                                                    |  +-failed+                               v
 *                                                    +--PAUSE <-+---------------------------- CLOSING
 *
 * The mirror is opened to read. The first transport makes it: at all elements, or not at all. For a write the mirror is closed
 * and opened again to write, which fences the writer before. If another transport fences us, the next write opens it again. A
 * writer that has not written for a second closes the mirror, so that others can take over without comparing all copies.
 *
 * A mirror whose writer died serves nobody until someone has taken over: a reader that finds it so does that (`repair`). A mirror
 * without one of its members can be taken over only if the host of that member says that it is dead (`force`:
 * wefti_member_dead()). The writer adds members again that are UP and no longer in the mirror.
 *
 * While no mirror is open, ios are HELD; an io whose mirror ended is held again. If none can be opened for 20 s the route is
 * over, and with it all of its ios.
 *
 * Promise: every io ends. While replicas are left that are known to have everything, it ends with the right bytes.
 * tests/fault/element_replicas.c. */
#include "element/replicas.h"

#include "base/rng.h"

#define GATHER_NS (500 * WEFT_MILLISECOND)
#define PAUSE_NS (20 * WEFT_MILLISECOND)
#define PAUSE_MOST (500 * WEFT_MILLISECOND)
#define TROUBLE_NS (20 * WEFT_SECOND)
#define IDLE_NS WEFT_SECOND
#define SEAL_NS (3 * WEFT_SECOND)
#define ADD_NS WEFT_SECOND
enum { FORCE_TRIES = 3 };

static weft_runtime_t *rt_of(const replicas_t *r)
{
    return r->route.es->rt;
}

static unsigned n_up(replicas_t *r)
{
    unsigned n = 0;
    each_member(m, r) n += m->state == MEMBER_UP;
    return n;
}

/* Why is one not UP? */
static weft_status_t missing_why(replicas_t *r)
{
    each_member(m, r) if (m->state != MEMBER_UP && m->why) return m->why;
    return WEFT_ERR_PEER;
}

void wefti_replicas_count(replicas_t *r)
{
    weft_transport_t *t = r->route.t;
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    if (!t)
        return;
    if (r->mirror)
        weft_mirror_get_info(r->mirror, &info);
    pthread_mutex_lock(&t->lock);
    t->stats.replicas = n_up(r);
    t->stats.failovers = r->failovers + info.failovers;
    pthread_mutex_unlock(&t->lock);
}

void wefti_replicas_at(replicas_t *r, uint64_t when)
{
    if (weft_ext_timer_set(rt_of(r), &r->timer, when))
        wefti_replicas_over(r, WEFT_ERR_NOMEM);
}

void wefti_replicas_over(replicas_t *r, weft_status_t why)
{
    element_route_t *route = &r->route;
    if (route->over)
        return;
    route->over = true;
    route->why = why;
    weft_ext_timer_stop(rt_of(r), &r->timer);
    wefti_route_ref(route);
    wefti_replicas_held(r, why);
    if (route->t)
        wefti_transport_down(route->t, route, why);
    wefti_route_unref(route);
}

static void again_later(replicas_t *r, weft_status_t why)
{
    weft_runtime_t *rt = rt_of(r);
    uint64_t pause = r->tries < 5 ? PAUSE_NS << r->tries : PAUSE_MOST;
    r->trouble = why;
    r->tries++;
    r->phase = MIRROR_PAUSE;
    wefti_replicas_at(r, weft_now(rt) + wefti_rng_jitter(&element_state(rt)->rng, pause));
}

/* --- closing the mirror  ---------------------------------------------------------------------------------------------- */

static void hang_up_all(replicas_t *r, bool now)
{
    r->phase = MIRROR_NONE;
    each_member(m, r) wefti_member_end(m, now);
}

static void mirror_closed(weft_op_t *op, void *user)
{
    replicas_t *r = (replicas_t *)user;
    (void)op; /* it is gone, whatever the status */
    if (r->route.left) {
        hang_up_all(r, false);
    } else if (r->fenced) { /* another one writes: let it finish */
        r->fenced = false;
        again_later(r, WEFT_ERR_STALE);
    } else {
        r->phase = MIRROR_PAUSE;
        wefti_replicas_turn(r);
    }
    wefti_route_op_done(&r->route);
}

static void close_mirror(replicas_t *r)
{
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    weft_mirror_t *mirror = r->mirror;
    if (!weft_mirror_get_info(mirror, &info))
        r->failovers += info.failovers;
    r->mirror = NULL;
    r->writes = r->broken = false;
    r->add_at = 0;
    r->phase = MIRROR_CLOSING;
    wefti_route_op(&r->route, &r->op, mirror_closed, r);
    r->op.timeout_ns = SEAL_NS;
    if (!weft_mirror_close(mirror, &r->op))
        return;
    /* the runtime closes, and ends it */
    r->phase = MIRROR_NONE;
    wefti_route_op_done(&r->route);
}

void wefti_replicas_break(replicas_t *r, weft_status_t why)
{
    r->trouble = why;
    if (r->phase != MIRROR_OPEN)
        return;
    r->broken = true;
    r->fenced = r->writes && why == WEFT_ERR_STALE;
    r->repair = r->repair || (!r->writes && why == WEFT_ERR_STALE); /* no server may serve it: its writer is gone */
}

/* --- opening it  ------------------------------------------------------------------------------------------------------ */

/* Is every missing member known to be dead? A member that is UP and does not have the mirror is not the one that had it: that
 * one is gone. */
static bool missing_are_dead(replicas_t *r)
{
    each_member(m, r) if (m->state != MEMBER_UP && !wefti_member_dead(m)) return false;
    return true;
}

/* It could not be opened. */
static void not_opened(replicas_t *r, weft_status_t why)
{
    switch (why) {
    case WEFT_ERR_NOTFOUND: /* it has never been made, if all of them say so */
        if (n_up(r) < r->n) {
            why = missing_why(r);
        } else if (!r->durl.bytes) {
            weft_log(WEFT_LOG_WARN,
                     "transport %s: its memory has not been made yet, and the durl does not say how large it is: give size",
                     r->durl.name);
            wefti_replicas_over(r, WEFT_ERR_INVALID);
            return;
        }
        r->make = n_up(r) == r->n;
        break;
    case WEFT_ERR_STATE: /* another one makes it */
        r->make = false;
        break;
    case WEFT_ERR_STALE:
        if (r->repair && r->tries >= FORCE_TRIES)
            r->force = missing_are_dead(r);
        r->repair = true;
        break;
    case WEFT_ERR_LIMIT:
    case WEFT_ERR_UNSUPPORTED:
    case WEFT_ERR_CORRUPT:
        wefti_replicas_over(r, why);
        return;
    default:
        break;
    }
    again_later(r, why);
}

static void mirror_opened(weft_op_t *op, void *user)
{
    replicas_t *r = (replicas_t *)user;
    element_route_t *route = &r->route;
    weft_mirror_t *mirror = op->status ? NULL : (weft_mirror_t *)op->buf;
    uint64_t len = op->len;
    weft_status_t st = op->status;
    r->mirror = mirror;
    r->phase = mirror ? MIRROR_OPEN : MIRROR_PAUSE;
    if (route->left) {
        if (mirror)
            close_mirror(r);
        else
            hang_up_all(r, false);
    } else if (route->over) {
        ;
    } else if (!mirror) {
        not_opened(r, st);
    } else if (len < r->durl.bytes) {
        weft_log(WEFT_LOG_WARN, "transport %s: the memory has %llu bytes, and its durl says %llu", r->durl.name,
                 (unsigned long long)len, (unsigned long long)r->durl.bytes);
        if (route->t)
            wefti_transport_has(route->t, len);
        wefti_replicas_over(r, WEFT_ERR_RANGE);
    } else {
        r->make = r->repair = r->force = false;
        r->trouble_since = 0;
        r->tries = 0;
        r->wrote_at = weft_now(rt_of(r));
        route->len = len;
        if (r->writes && route->t)
            wefti_transport_count(route->t, &route->t->stats.takeovers);
        if (!route->up && route->t) {
            route->up = true;
            wefti_transport_up(route->t, route);
        }
        wefti_replicas_turn(r);
    }
    wefti_route_op_done(route);
}

static void open_mirror(replicas_t *r)
{
    weft_runtime_t *rt = rt_of(r);
    weft_store_t *stores[WEFT_MIRROR_MAX];
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    uint64_t now = weft_now(rt);
    o.stores = stores;
    each_member(m, r) if (m->state == MEMBER_UP) stores[o.n_stores++] = m->store;
    if (!r->trouble_since)
        r->trouble_since = now;
    if (!o.n_stores || now - r->trouble_since > (r->route.up ? TROUBLE_NS : r->route.action->connect_ns)) {
        weft_status_t why = r->route.up && !o.n_stores ? WEFT_ERR_PEER : r->trouble ? r->trouble : missing_why(r);
        wefti_replicas_over(r, why == WEFT_ERR_STALE ? WEFT_ERR_PEER : why); /* too few members answer: that may change */
        return;
    }
    r->writes = r->held_writes || r->make || r->repair;
    o.name = r->durl.name;
    o.write = r->writes;
    o.len = r->make ? r->durl.bytes : 0;
    o.force = r->force && missing_are_dead(r); /* members may have come back or fallen silent since then */
    o.checksums = true;
    r->phase = MIRROR_OPENING;
    wefti_route_op(&r->route, &r->op, mirror_opened, r);
    weft_status_t st = weft_mirror_open(rt, &o, &r->op);
    if (st) {
        wefti_route_op_done(&r->route);
        not_opened(r, st);
    }
}

/* --- putting members back in  ----------------------------------------------------------------------------------------- */

static void added(weft_op_t *op, void *user)
{
    replicas_t *r = (replicas_t *)user;
    r->adding = false;
    r->add_at = weft_now(rt_of(r)) + ADD_NS;
    if (op->status)
        weft_log(WEFT_LOG_INFO, "transport %s: a replica could not be filled again: %s", r->durl.name,
                 weft_status_text(op->status));
    else if (!r->route.over)
        wefti_replicas_turn(r);
    wefti_route_op_done(&r->route);
}

/* Add a member that is UP and not in the mirror. Only the mirror knows which: it refuses those that it has. */
static void add_missing(replicas_t *r)
{
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    size_t has = 0;
    if (r->adding || r->add_at > weft_now(rt_of(r)) || weft_mirror_get_info(r->mirror, &info))
        return;
    for (size_t i = 0; i < info.members; i++)
        has += info.member[i] == WEFT_MEMBER_UP || info.member[i] == WEFT_MEMBER_LOST;
    each_member(m, r)
    {
        if (has >= n_up(r) || m->state != MEMBER_UP)
            continue;
        wefti_route_op(&r->route, &r->add, added, r);
        r->adding = !weft_mirror_add(r->mirror, m->store, &r->add);
        if (r->adding)
            return;
        wefti_route_op_done(&r->route);
    }
}

/* --- turns  ----------------------------------------------------------------------------------------------------------- */

static void gather(replicas_t *r)
{
    unsigned up = n_up(r);
    bool all = true;
    each_member(m, r) all = all && m->tried;
    if (all && !up)
        wefti_replicas_over(r, missing_why(r));
    else if (all || (up && weft_now(rt_of(r)) >= r->wrote_at + GATHER_NS))
        open_mirror(r);
}

static void open_turn(replicas_t *r)
{
    uint64_t now = weft_now(rt_of(r));
    bool idle = r->writes && !r->flying_writes && !r->held_writes && !r->adding;
    if (r->broken || (r->held_writes && !r->writes) || (idle && now >= r->wrote_at + IDLE_NS)) {
        close_mirror(r);
        return;
    }
    if (idle)
        wefti_replicas_at(r, r->wrote_at + IDLE_NS);
    if (r->writes)
        add_missing(r);
    wefti_replicas_held(r, WEFT_OK);
}

void wefti_replicas_turn(replicas_t *r)
{
    element_route_t *route = &r->route;
    if (route->over || route->left)
        return;
    wefti_route_ref(route);
    switch (r->phase) {
    case MIRROR_GATHER:
        gather(r);
        break;
    case MIRROR_PAUSE:
        open_mirror(r);
        break;
    case MIRROR_OPEN:
        open_turn(r);
        break;
    default:
        break;
    }
    wefti_route_unref(route);
}

static void due(weft_ext_timer_t *timer)
{
    wefti_replicas_turn(wefti_container_of(timer, replicas_t, timer));
}

/* --- as a route  ------------------------------------------------------------------------------------------------------ */

static void begin(element_route_t *route)
{
    replicas_t *r = replicas_of(route);
    r->wrote_at = weft_now(rt_of(r));
    wefti_route_ref(route);
    wefti_replicas_at(r, r->wrote_at + GATHER_NS);
    each_member(m, r) if (!route->over) wefti_member_begin(m);
    wefti_route_unref(route);
}

static void leave(element_route_t *route)
{
    replicas_t *r = replicas_of(route);
    route->over = true;
    weft_ext_timer_stop(rt_of(r), &r->timer);
    if (r->phase == MIRROR_OPEN)
        close_mirror(r);
    if (r->phase == MIRROR_OPENING)
        weft_op_cancel(&r->op);
    if (r->phase != MIRROR_OPENING && r->phase != MIRROR_CLOSING)
        hang_up_all(r, false);
}

static void abort_all(element_route_t *route)
{
    replicas_t *r = replicas_of(route);
    wefti_route_ref(route);
    wefti_replicas_over(r, WEFT_ERR_PEER);
    each_member(m, r) wefti_member_end(m, true);
    wefti_route_unref(route);
}

static const element_route_ops_t ops = {begin, wefti_replicas_move, wefti_replicas_stop, abort_all, leave};

element_route_t *wefti_replicas_new(weft_transport_t *t)
{
    replicas_t *r = (replicas_t *)wefti_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->durl = t->durl;
    r->n = (unsigned)t->durl.n_replicas;
    r->timer.fn = due;
    wefti_list_init(&r->held);
    for (unsigned i = 0; i < r->n; i++) {
        r->members[i].r = r;
        r->members[i].uri = r->durl.replica[i];
        wefti_leases_init(&r->members[i].leases, &r->route);
    }
    wefti_route_init(&r->route, &ops, t);
    return &r->route;
}
