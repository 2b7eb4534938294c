/* conn/beat.c - heartbeats: learning within a bound that a peer fell silent.
 *
 * The fabric does the work (fabric/fabric.h, wire_beat): a thread of the process sends and reads heartbeats on every wire, and ends
 * the wire of a peer that was silent for the bound. This file decides when that begins: sending when the lane is connected, so that
 * a peer that is up already hears us even if our program does not drive; listening when the link is up.
 *
 * A runtime whose own silence is to count as death (heartbeat_by = program) sends its heartbeats from a timer here, which runs only
 * while the runtime is driven. It hears its peers as everyone does.
 *
 * Promise: a peer that was stopped or cut off fails its endpoint within heartbeat_ns; one that runs does not. tests/fault/conn_alive.c,
 * conn_stop.c, conn_partition.c. */
#include "conn/ep.h"

static void walk(wefti_timer_t *t)
{
    wefti_conn_t *conn = wefti_container_of(t, wefti_conn_t, beat);
    uint64_t least = UINT64_MAX;
    wefti_list_each(it, &conn->links) {
        wefti_link_t *link = wefti_container_of(it, wefti_link_t, all);
        if (!link->beat_ns || !link->wire)
            continue;
        conn->fabric->ops->wire_beat_once(link->wire);
        if (link->beat_ns < least)
            least = link->beat_ns;
    }
    conn->beat_ns = least == UINT64_MAX ? 0 : least;
    if (conn->beat_ns) /* it was in the heap a moment ago: there is room */
        (void)wefti_timer_at(conn->rt, t, (conn->rt->now / least + 1) * least);
}

/* Our own timer ticks at least this often. */
static weft_status_t tick_every(wefti_conn_t *conn, uint64_t every)
{
    if (conn->beat_ns && conn->beat_ns <= every)
        return WEFT_OK;
    conn->beat.fn = walk;
    weft_status_t st = wefti_timer_at(conn->rt, &conn->beat, wefti_now(conn->rt) + every);
    if (!st)
        conn->beat_ns = every;
    return st;
}

weft_status_t wefti_beat_begin(wefti_link_t *link)
{
    wefti_conn_t *conn = link->conn;
    uint64_t ours = conn->rt->heartbeat_ns, theirs = link->shake->peer.heartbeat_ns, least = ours < theirs ? ours : theirs;
    bool by_hand = conn->rt->beats_by_program;
    if (link->beat_ns || !link->wire)
        return WEFT_OK;
    uint64_t every = least / WEFTI_BEATS;
    weft_status_t st = conn->fabric->ops->wire_beat(link->wire, every, by_hand);
    if (!st && by_hand)
        st = tick_every(conn, every);
    if (!st)
        link->beat_ns = every;
    return st;
}

void wefti_beat_watch(wefti_link_t *link)
{
    if (link->wire)
        link->conn->fabric->ops->wire_watch(link->wire, link->conn->rt->heartbeat_ns);
}
