/* conn/link.c - one connection or one attempt at one: a wire, a handshake, a lane.
 *
 *     dialler:   DIALLING -> HELLO -> JOIN -> RISING -> UP -> [LINGER] -> DEAD
 *     listener:              HELLO -> JOIN -> RISING -> UP -> [LINGER] -> DEAD
 *
 * handshake.c moves it to UP, close.c to LINGER; wefti_link_drop() makes it DEAD. A dead link, and its endpoint, stay until
 * the fabric has said lane_closed for each lane it had: transfers may still be under way. A link that was never up has no
 * traffic, so its endpoint may leave it behind (detach).
 *
 * Promise: a wire and a lane are closed exactly once; nothing is done with a link after it was freed. tests/sim's fabric
 * aborts on any call on something closed. */
#include <string.h>

#include "conn/ep.h"

static void link_patience(wefti_timer_t *t)
{
    wefti_link_t *link = wefti_container_of(t, wefti_link_t, timer);
    weft_runtime_t *rt = link->conn->rt;
    switch (link->state) {
    case WEFTI_LINK_LINGER:
        wefti_link_drop(link);
        break;
    case WEFTI_LINK_JOIN:
    case WEFTI_LINK_RISING:
        if (link->lane) {
            wefti_warn("the lane (%s) to %s did not come up in time: transports here are \"%s\", interfaces \"%s\"; set "
                       "WEFT_TRANSPORTS or WEFT_INTERFACES to what both sides can use",
                       link->lane->transport->name, link->where, rt->config.transports ? rt->config.transports : "all",
                       rt->config.interfaces ? rt->config.interfaces : "all");
            wefti_link_lost(link, WEFT_ERR_UNREACHABLE, "the lane did not come up in time");
            break;
        } /* fall through */
    default:
        wefti_link_lost(link, WEFT_ERR_TIMEOUT,
                        link->state == WEFTI_LINK_DIALLING ? "no answer to the call" : "no answer in the hello");
    }
}

wefti_link_t *wefti_link_new(wefti_conn_t *conn, int side, const char *where)
{
    wefti_link_t *link = wefti_calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->conn = conn;
    link->side = (uint8_t)side;
    link->state = side == WEFTI_SIDE_DIALLER ? WEFTI_LINK_DIALLING : WEFTI_LINK_HELLO;
    link->timer.fn = link_patience;
    wefti_list_init(&link->newcomer);
    wefti_list_init(&link->member);
    wefti_list_init(&link->turn);
    link->where = wefti_strdup(where);
    link->shake = wefti_calloc(1, sizeof *link->shake);
    if (!link->where || !link->shake) {
        wefti_free(link->where);
        wefti_free(link->shake);
        wefti_free(link);
        return NULL;
    }
    wefti_list_push_back(&conn->links, &link->all);
    atomic_fetch_add(&conn->rt->connections, 1);
    return link;
}

void wefti_link_free_now(wefti_link_t *link)
{
    if (wefti_list_linked(&link->all))
        wefti_list_remove(&link->all);
    if (link->ep && link->ep->link == link)
        link->ep->link = NULL;
    wefti_shake_free(link->shake);
    wefti_free(link->where);
    if (!link->is_trunk)
        atomic_fetch_sub(&link->conn->rt->connections, 1);
    wefti_free(link);
}

void wefti_link_close_lane(wefti_link_t *link)
{
    wefti_lane_t *lane = link->lane;
    link->lane = NULL;
    link->got_up = false;
    link->owed = 0;
    lane->ops->lane_close(lane);
    wefti_trunk_leave(link);
}

void wefti_link_drop(wefti_link_t *link)
{
    if (link->state == WEFTI_LINK_DEAD)
        return;
    link->state = WEFTI_LINK_DEAD;
    link->deliver = false;
    wefti_listener_leave(link);
    wefti_timer_stop(link->conn->rt, &link->timer);
    wefti_trunk_leave(link); /* before the lane: a carrier is there as long as its guests */
    if (link->lane)
        wefti_link_close_lane(link);
    if (link->wire) {
        wefti_wire_t *wire = link->wire;
        link->wire = NULL;
        link->conn->fabric->ops->wire_close(wire);
    }
    if (!link->lanes) {
        wefti_list_remove(&link->all);
        wefti_list_push_back(&link->conn->dead, &link->all);
        wefti_conn_kick(link->conn);
    }
}

void wefti_link_detach(wefti_link_t *link)
{
    wefti_epx_t *ep = link->ep;
    if (!ep)
        return;
    if (ep->link == link)
        ep->link = NULL;
    if (ep->resumer == link)
        ep->resumer = NULL;
    link->ep = NULL;
}

void wefti_link_abandon(wefti_link_t *link)
{
    wefti_link_detach(link);
    wefti_link_drop(link);
}

void wefti_link_lost(wefti_link_t *link, weft_status_t why, const char *text)
{
    wefti_epx_t *ep = link->ep;
    if (link->state == WEFTI_LINK_DEAD)
        return;
    if (link->state == WEFTI_LINK_LINGER) {
        wefti_link_drop(link);
        return;
    }
    if (link->state == WEFTI_LINK_UP) {
        wefti_info("lost %s: %s (%s)", link->where, text, weft_status_name(why));
        uint64_t was = wefti_why(link->conn->rt, wefti_ep_explain(ep, link->where, why, text));
        if (wefti_ep_state(ep) == WEFT_EP_CLOSING)
            wefti_close_lost(ep, why);
        else
            wefti_ep_fail(ep, why);
        wefti_why(link->conn->rt, was);
        return;
    }
    if (why == WEFT_ERR_AGAIN && ep && ep->dial) { /* the listener is there, and too busy */
        ep->dial->nobody = true;
        why = WEFT_ERR_REFUSED;
    }
    wefti_log(why == WEFT_ERR_AUTH || why == WEFT_ERR_VERSION ? WEFT_LOG_WARN : WEFT_LOG_INFO, "no connection %s %s: %s (%s)",
              link->side == WEFTI_SIDE_DIALLER ? "to" : "from", link->where, text, weft_status_name(why));
    if (ep && ep->dial)
        wefti_ep_explain(ep, link->where, why, text);
    if (link->wire && link->state != WEFTI_LINK_DIALLING)
        wefti_shake_refuse(link, why, text);
    wefti_link_abandon(link);
    if (!ep)
        return;
    if (ep->dial)
        wefti_ep_dial_next(ep, why);
    else if (!ep->was_up)
        wefti_ep_free(ep); /* nobody has heard of it */
    /* else an endpoint that its peer tried to resume: it goes on waiting */
}

/* --- conn's own records ---------------------------------------------------------------------------------------------------- */

static bool send_record(wefti_link_t *link, uint8_t kind, uint64_t count, size_t n)
{
    uint8_t *rec = link->lane ? link->lane->ops->reserve(link->lane, n) : NULL;
    if (!rec)
        return false;
    memset(rec, 0, n);
    rec[0] = kind;
    if (n == 16)
        memcpy(rec + 8, &count, sizeof count);
    link->lane->ops->commit(link->lane, n);
    return true;
}

void wefti_link_owe(wefti_link_t *link, uint8_t what)
{
    link->owed |= what;
    wefti_link_flush(link);
}

void wefti_link_flush(wefti_link_t *link)
{
    if ((link->owed & WEFTI_OWE_UP) && send_record(link, WEFTI_REC_UP, 0, 8)) {
        link->owed &= (uint8_t)~WEFTI_OWE_UP;
        wefti_shake_rise(link);
    }
    if (link->owed & WEFTI_OWE_UP)
        return;
    if ((link->owed & WEFTI_OWE_CLOSE) && send_record(link, WEFTI_REC_CLOSE, link->close_count, 16))
        link->owed &= (uint8_t)~WEFTI_OWE_CLOSE;
    if ((link->owed & WEFTI_OWE_ACK) && send_record(link, WEFTI_REC_CLOSE_ACK, link->ack_count, 16))
        link->owed &= (uint8_t)~WEFTI_OWE_ACK;
}
