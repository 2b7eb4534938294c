/* conn/beat.c - heartbeats: learning within a bound that a peer fell silent.
 *
 * One timer per runtime walks the endpoints. It ticks at an eighth of the smallest bound in force; an endpoint that said
 * nothing for a quarter of the smaller of both sides' bounds sends a BEAT, so that either side hears at least three before it
 * would worry. One that heard nothing for seven eighths of its own bound is lost: with the tick's own grain the peer's silence
 * is then between 7/8 of the bound and the bound. The way of a message only sets two flags (pub.spoke, pub.heard); the walk
 * reads and clears them.
 *
 * If the runtime itself was not driven (a debugger, SIGSTOP, a caller that computed), the silence may be its own: a walk that
 * comes more than two ticks late starts the count anew for everyone who has not been heard by then, though not more than twice
 * without a word from them: a process that is starved all the time would otherwise never find anyone dead.
 *
 * Promise: a stopped or unreachable peer fails its endpoint within heartbeat_ns of driven time. tests/fault/conn_stop.c,
 * conn_partition.c. */
#include "conn/ep.h"

enum { EXCUSES = 2 };

static void walk(wefti_timer_t *t)
{
    wefti_conn_t *conn = wefti_container_of(t, wefti_conn_t, beat);
    weft_runtime_t *rt = conn->rt;
    uint64_t now = rt->now, bound = rt->heartbeat_ns, least = UINT64_MAX;
    bool stalled = now - conn->beat_last > 3 * conn->beat_ns;
    conn->beat_last = now;
    if (stalled)
        wefti_debug("the runtime was not driven for a while: peers get their full bound again");
    wefti_list_each_safe(it, &conn->eps) {
        wefti_epx_t *ep = wefti_container_of(it, wefti_epx_t, all);
        wefti_link_t *link = ep->link;
        if (!link || link->state != WEFTI_LINK_UP || ep->dying)
            continue;
        if (ep->beat_ns < least)
            least = ep->beat_ns;
        if (ep->pub.heard) {
            ep->pub.heard = 0;
            ep->last_heard = now;
            ep->excused = 0;
        } else if (stalled && ep->excused < EXCUSES) {
            ep->last_heard = now;
            ep->excused++;
        }
        if (ep->pub.spoke) {
            ep->pub.spoke = 0;
            ep->last_spoke = now;
        } else if (now - ep->last_spoke + ep->beat_ns / 2 >= 2 * ep->beat_ns && wefti_link_beat(link)) {
            ep->pub.spoke = 0;
            ep->last_spoke = now;
        }
        if (now - ep->last_heard + ep->beat_ns / 2 >= bound - bound / 8)
            wefti_link_lost(link, WEFT_ERR_PEER, "it has been silent for the heartbeat bound");
    }
    conn->beat_ns = least == UINT64_MAX ? 0 : least;
    if (conn->beat_ns)
        (void)wefti_timer_at(rt, t, now + conn->beat_ns); /* it was in the heap a moment ago: there is room */
}

weft_status_t wefti_beat_begin(wefti_epx_t *ep, uint64_t peer_heartbeat_ns)
{
    wefti_conn_t *conn = ep->conn;
    weft_runtime_t *rt = conn->rt;
    uint64_t now = wefti_now(rt), least = rt->heartbeat_ns < peer_heartbeat_ns ? rt->heartbeat_ns : peer_heartbeat_ns;
    ep->beat_ns = least / 8 ? least / 8 : 1;
    ep->last_heard = ep->last_spoke = now;
    ep->pub.heard = ep->pub.spoke = 0;
    if (conn->beat_ns && conn->beat_ns <= ep->beat_ns)
        return WEFT_OK;
    conn->beat.fn = walk;
    weft_status_t st = wefti_timer_at(rt, &conn->beat, now + ep->beat_ns);
    if (st)
        return st;
    conn->beat_ns = ep->beat_ns;
    conn->beat_last = now;
    return WEFT_OK;
}
