/* conn/beat.c - heartbeats: when they begin. fabric/sock/beat.c sends and reads them, and ends the wire of a silent peer.
 *
 * We send from the moment the lane is connected, since the peer may be up already and our program may not drive. We listen
 * when the link is up. With heartbeat_by = program a timer here sends them, which runs only while the runtime is driven.
 *
 * Promise: a peer that was stopped or cut off fails its endpoint within heartbeat_ns; one that runs does not.
 * tests/fault/conn_alive.c, conn_stop.c, conn_partition.c. */
#include "conn/ep.h"

/* Send the heartbeats that are due. Each link has its own ticks: a peer with a long bound reads so seldom that it would fall
 * behind if it got the heartbeats of one with a short bound. */
static void walk(wefti_timer_t *t)
{
    wefti_conn_t *conn = wefti_container_of(t, wefti_conn_t, beat);
    uint64_t now = conn->rt->now;
    conn->beat_at = 0;
    wefti_list_each(it, &conn->links) {
        wefti_link_t *link = wefti_container_of(it, wefti_link_t, all);
        if (!link->beat_due || !link->wire)
            continue;
        if (link->beat_due <= now) {
            conn->fabric->ops->wire_beat_once(link->wire);
            link->beat_due = (now / link->beat_ns + 1) * link->beat_ns;
        }
        if (!conn->beat_at || link->beat_due < conn->beat_at)
            conn->beat_at = link->beat_due;
    }
    if (conn->beat_at) /* it was in the heap a moment ago: there is space */
        (void)wefti_timer_at(conn->rt, t, conn->beat_at);
}

/* Our own timer fires by then. */
static weft_status_t fire_by(wefti_conn_t *conn, uint64_t at)
{
    if (conn->beat_at && conn->beat_at <= at)
        return WEFT_OK;
    conn->beat.fn = walk;
    weft_status_t st = wefti_timer_at(conn->rt, &conn->beat, at);
    if (!st)
        conn->beat_at = at;
    return st;
}

weft_status_t wefti_beat_begin(wefti_link_t *link)
{
    wefti_conn_t *conn = link->conn;
    uint64_t ours = conn->rt->config.heartbeat, theirs = link->shake->peer.heartbeat_ns, least = ours < theirs ? ours : theirs;
    bool by_hand = conn->rt->beats_by_program;
    if (link->beat_ns || !link->wire)
        return WEFT_OK;
    uint64_t every = least / WEFTI_BEATS;
    weft_status_t st = conn->fabric->ops->wire_beat(link->wire, every, by_hand);
    uint64_t due = wefti_now(conn->rt) + every;
    if (!st && by_hand)
        st = fire_by(conn, due);
    if (st)
        return st;
    link->beat_ns = every;
    link->beat_due = by_hand ? due : 0;
    return WEFT_OK;
}

void wefti_beat_watch(wefti_link_t *link)
{
    wefti_wire_t *wire = link->trunk ? link->trunk->wire : link->wire;
    if (wire)
        link->conn->fabric->ops->wire_watch(wire, link->conn->rt->config.heartbeat);
}
