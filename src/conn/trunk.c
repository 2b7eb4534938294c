/* conn/trunk.c - one wire for all links between two runtimes whose lanes share rings.
 *
 * Each endpoint begins with a wire and a hello of its own. Where its lane is made as a guest of another one (fabric.h: carrier),
 * the wire of the first of them is enough: it shows the death of the peer, or its silence, for all. That wire then belongs to a
 * trunk, a link without endpoint and lane, of which all those links are members; the trunk goes with its last member. A guest's
 * own wire is closed by both sides when the guest is up.
 *
 *     dialler                                    listener
 *     JOIN: a guest of that carrier       --->   joins its half, and is silent: records would find no half to arrive at
 *                                         <---   LANE
 *     joins its half; UP over the lane    --->   is up; UP over the lane; closes the wire
 *     is up; closes the wire              <---
 *
 * So the dialler may see its wire end before UP arrives, and goes on. The listener may not.
 *
 * Of several endpoints that are opened at one time to the same runtime, the first makes a lane of its own, and the others wait
 * for it before they ask for theirs; if it comes to nothing, the next is the first. They wait no longer than they would for the
 * answer itself: the link's timer runs.
 *
 * Promise: the end of the trunk's wire is the end of each member's connection, as that of its own wire would be; a member that
 * leaves disturbs no other; one in its hello goes on alone. tests/wire/conn_shared.c, tests/fault/conn_shared.c. */
#include <string.h>

#include "conn/ep.h"

/* --- the trunk ------------------------------------------------------------------------------------------------------------- */

static void add(wefti_link_t *trunk, wefti_link_t *link)
{
    link->trunk = trunk;
    wefti_list_push_back(&trunk->member, &link->member);
}

/* Take the wire of the first link for all that follow. NULL: no memory. */
static wefti_link_t *begin(wefti_link_t *first, wefti_lane_t *carrier)
{
    wefti_link_t *trunk = wefti_link_new(first->conn, first->side, first->where);
    if (!trunk)
        return NULL;
    wefti_shake_free(trunk->shake);
    trunk->shake = NULL;
    trunk->state = WEFTI_LINK_TRUNK;
    trunk->is_trunk = true;
    atomic_fetch_sub(&first->conn->rt->connections, 1);
    trunk->wire = first->wire;
    trunk->wire->user = trunk;
    first->wire = NULL;
    trunk->beat_ns = first->beat_ns;
    trunk->beat_due = first->beat_due;
    first->beat_due = 0;
    trunk->carrier = carrier;
    carrier->user = trunk;
    add(trunk, first);
    return trunk;
}

bool wefti_trunk_join(wefti_link_t *link)
{
    wefti_lane_t *carrier = link->lane->carrier;
    wefti_link_t *trunk = carrier->user;
    if (trunk && trunk->state != WEFTI_LINK_TRUNK) { /* the link of the lane that was first */
        bool lives = (trunk->state == WEFTI_LINK_UP || trunk->state == WEFTI_LINK_RISING) && trunk->wire;
        trunk = lives ? begin(trunk, carrier) : NULL;
    }
    if (!trunk)
        return false;
    add(trunk, link);
    link->guest = true;
    return true;
}

/* Nobody can join it any more. The carrier is still there: its guests are, or are closed in this very progress. The trunk itself
 * is dropped by the work, since somebody may be walking through the links. */
static void end(wefti_link_t *trunk)
{
    wefti_wire_t *wire = trunk->wire;
    trunk->wire = NULL;
    trunk->carrier->user = NULL;
    trunk->carrier->ops->lane_offer(trunk->carrier, NULL);
    if (wire)
        trunk->conn->fabric->ops->wire_close(wire);
    wefti_list_push_back(&trunk->conn->spent, &trunk->turn);
    wefti_conn_kick(trunk->conn);
}

void wefti_trunk_leave(wefti_link_t *link)
{
    wefti_link_t *trunk = link->trunk;
    link->guest = false;
    if (wefti_list_linked(&link->turn)) {
        wefti_list_remove(&link->turn);
        wefti_conn_kick(link->conn);
    }
    if (!trunk)
        return;
    link->trunk = NULL;
    wefti_list_remove(&link->member);
    if (wefti_list_empty(&trunk->member))
        end(trunk);
}

void wefti_trunk_lost(wefti_link_t *trunk, weft_status_t why, const char *text)
{
    wefti_list_t members, *n;
    wefti_list_init(&members);
    wefti_list_splice(&members, &trunk->member);
    wefti_list_each(it, &members)
        wefti_container_of(it, wefti_link_t, member)->trunk = NULL; /* one that is dropped meanwhile takes itself off this list */
    end(trunk);
    while ((n = wefti_list_pop(&members))) {
        wefti_link_t *link = wefti_container_of(n, wefti_link_t, member);
        if (link->guest && link->state < WEFTI_LINK_UP)
            wefti_shake_lane_failed(link, why); /* its own wire may be well: it goes on with a lane of its own */
        else if (text)
            wefti_link_lost(link, why, text);
        else
            wefti_link_wire_ended(link, why);
    }
}

void wefti_trunk_up(wefti_link_t *link, const uint8_t *uuid)
{
    wefti_lane_t *lane = link->lane;
    if (wefti_list_linked(&link->turn)) {
        wefti_list_remove(&link->turn);
        wefti_conn_kick(link->conn);
    }
    if (link->guest && link->wire) {
        wefti_wire_t *wire = link->wire;
        link->wire = NULL;
        link->conn->fabric->ops->wire_close(wire);
    } else if (!link->guest && lane->ops->lane_offer && memcmp(uuid, link->conn->uuid, WEFTI_UUID_SIZE)) {
        lane->ops->lane_offer(lane, uuid);
    }
}

/* --- who is first ---------------------------------------------------------------------------------------------------------- */

/* The same runtime, and where it has several drivers the same one of them: then its transports say the same. */
static bool same_peer(const wefti_link_t *a, const wefti_link_t *b)
{
    const wefti_hello_t *x = &a->shake->peer, *y = &b->shake->peer;
    bool same = x->n_transports == y->n_transports && !memcmp(x->uuid, y->uuid, sizeof x->uuid);
    for (unsigned i = 0; same && i < x->n_transports; i++)
        same = x->transports[i].caps_len == y->transports[i].caps_len &&
               !memcmp(x->transports[i].caps, y->transports[i].caps, x->transports[i].caps_len);
    return same;
}

static bool another_joins(const wefti_link_t *link)
{
    wefti_list_each(it, &link->conn->joining)
        if (same_peer(wefti_container_of(it, wefti_link_t, turn), link))
            return true;
    return false;
}

bool wefti_trunk_wait(wefti_link_t *link)
{
    wefti_conn_t *conn = link->conn;
    wefti_hello_t *peer = &link->shake->peer;
    if (!strcmp(conn->rt->config.share_lanes, "off") || !another_joins(link))
        return false;
    /* It may be one of many: what it does not need goes. */
    wefti_shake_t *less =
        wefti_realloc(link->shake, offsetof(wefti_shake_t, peer.transports) + peer->n_transports * sizeof peer->transports[0]);
    if (less)
        link->shake = less;
    wefti_list_push_back(&conn->waiting, &link->turn);
    return true;
}

void wefti_trunk_joins(wefti_link_t *link)
{
    if (!wefti_list_linked(&link->turn))
        wefti_list_push_back(&link->conn->joining, &link->turn);
}

void wefti_trunk_work(wefti_conn_t *conn)
{
    wefti_list_t turn, *n;
    while ((n = wefti_list_pop(&conn->spent)))
        wefti_link_drop(wefti_container_of(n, wefti_link_t, turn));
    wefti_list_init(&turn);
    wefti_list_splice(&turn, &conn->waiting);
    while ((n = wefti_list_pop(&turn))) {
        wefti_link_t *link = wefti_container_of(n, wefti_link_t, turn);
        if (another_joins(link))
            wefti_list_push_back(&conn->waiting, n);
        else
            wefti_shake_join(link);
    }
}
