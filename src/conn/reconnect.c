/* conn/reconnect.c - a lost endpoint that is to come back, under the same id.
 *
 * The dialling side calls again, with pauses that double and jitter; the accepting side waits for a hello with the cookie it
 * gave out. Both for reconnect_ns at most. Operations that were under way have failed by then; those posted meanwhile wait.
 *
 * A peer may come back before we have noticed that it left. Its join is held (ep->resumer) until the old lane is read empty
 * and closed and the hook has answered. If the answer is no, or the cookie fits nothing, the peer becomes a new endpoint.
 *
 * Promise: nothing is sent twice; only a peer with its cookie and its identity resumes an endpoint. tests/wire/conn_reconnect.c,
 * conn_identity.c. */
#include <sodium.h>
#include <string.h>

#include "conn/ep.h"

#define PAUSE_MOST (5 * WEFT_SECOND)

static void pause_then_dial(wefti_epx_t *ep)
{
    weft_runtime_t *rt = ep->conn->rt;
    wefti_dial_t *d = ep->dial;
    uint64_t now = wefti_now(rt), at = now + wefti_rng_jitter(&rt->rng, d->pause_ns);
    d->pause_ns = d->pause_ns < PAUSE_MOST / 2 ? d->pause_ns * 2 : PAUSE_MOST;
    if (now >= ep->until || wefti_timer_at(rt, &ep->timer, at < ep->until ? at : ep->until))
        wefti_ep_give_up(ep, ep->pub.why);
}

void wefti_reconnect_begin(wefti_epx_t *ep)
{
    weft_runtime_t *rt = ep->conn->rt;
    wefti_ep_set_state(ep, WEFT_EP_RECONNECTING);
    uint64_t now = wefti_now(rt);
    ep->until = ep->reconnect_ns < UINT64_MAX - now ? now + ep->reconnect_ns : UINT64_MAX;
    if (ep->dial) {
        ep->dial->pause_ns = ep->dial->first_pause_ns;
        pause_then_dial(ep);
    } else if (wefti_timer_at(rt, &ep->timer, ep->until)) {
        wefti_ep_give_up(ep, ep->pub.why);
    } /* a peer that waits for it gets it at the end of this step */
}

void wefti_reconnect_failed(wefti_epx_t *ep, weft_status_t why)
{
    if (wefti_ep_dial_is_final(why))
        wefti_ep_give_up(ep, why);
    else
        pause_then_dial(ep);
}

void wefti_reconnect_timer(wefti_epx_t *ep)
{
    if (ep->dial && wefti_now(ep->conn->rt) < ep->until) {
        wefti_ep_dial_round(ep);
        return;
    }
    if (ep->link) /* it came back too late */
        wefti_link_abandon(ep->link);
    wefti_ep_give_up(ep, ep->pub.why);
}

wefti_epx_t *wefti_reconnect_find(wefti_link_t *link, bool *wait_out)
{
    wefti_conn_t *conn = link->conn;
    const wefti_hello_t *h = &link->shake->peer;
    pthread_mutex_lock(&conn->lock);
    wefti_epx_t *ep = wefti_id_shard(h->resume_id) == wefti_shard_number(conn->rt)
                          ? wefti_slots_get(&conn->slots, wefti_id_slot(h->resume_id))
                          : NULL;
    pthread_mutex_unlock(&conn->lock);
    if (!ep || ep->dial || !ep->was_up || ep->close_stage != WEFTI_CLOSE_NOT ||
        sodium_memcmp(ep->cookie, h->cookie, sizeof ep->cookie) ||
        strcmp(atomic_load(&ep->peer)->identity, wefti_link_identity(link))) /* a cookie may have been overheard */
        return NULL;
    weft_ep_state_t state = wefti_ep_state(ep);
    if (state == WEFT_EP_RECONNECTING)
        return ep;
    if (state != WEFT_EP_UP && !ep->asking)
        return NULL;
    if (ep->resumer) /* the newest of its tries is the one that counts */
        wefti_link_abandon(ep->resumer);
    ep->resumer = link;
    link->ep = ep;
    *wait_out = true;
    if (state == WEFT_EP_UP)
        wefti_ep_dying(ep); /* the peer has given its old lane up, whatever the wire says */
    return NULL;
}
