/* conn/recheck.c - see recheck.h.
 *
 * The timer only marks endpoints (ep->unsure) and kicks them: the work ends those that are not welcome, since whoever is on the
 * stack may be walking through them. So a source is asked once for each endpoint, and once more as it comes up.
 *
 * Promise: within two rounds of the timer an endpoint whose peer is not welcome is lost, and its operations have completed; one
 * that is welcome is not disturbed. tests/wire/conn_recheck.c. */
#include "conn/recheck.h"

#include <stdio.h>

#include "conn/ep.h"

static weft_status_t ask(const wefti_rechecks_t *r, weft_ep_t *ep)
{
    weft_status_t st = WEFT_OK;
    for (unsigned i = 0; i < r->n && !st; i++)
        st = r->of[i].welcome(r->of[i].user, ep);
    return st;
}

static void look(wefti_conn_t *conn)
{
    wefti_list_each(it, &conn->eps) {
        wefti_epx_t *ep = wefti_container_of(it, wefti_epx_t, all);
        if (ep->link && ep->link->state == WEFTI_LINK_UP) {
            ep->unsure = true;
            wefti_ep_kick(ep);
        }
    }
}

static void tick(wefti_timer_t *t)
{
    wefti_rechecks_t *r = wefti_container_of(t, wefti_rechecks_t, timer);
    bool any = false;
    for (unsigned i = 0; i < r->n; i++)
        any = (r->of[i].changed && r->of[i].changed(r->of[i].user)) || any;
    if (any)
        look(r->conn);
    if (!r->conn->shut) /* it was in the heap a moment ago: there is space */
        (void)wefti_timer_at(r->conn->rt, t, r->conn->rt->now + WEFTI_RECHECK_NS);
}

weft_status_t wefti_recheck_add(weft_runtime_t *rt, const wefti_recheck_t *source)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    wefti_rechecks_t *r = &conn->rechecks;
    if (r->n == WEFTI_RECHECK_MOST)
        return wefti_fail(WEFT_ERR_LIMIT, "a runtime asks %d places at most whether its peers are still welcome",
                          (int)WEFTI_RECHECK_MOST);
    if (source->changed && !r->ticks) {
        r->conn = conn;
        r->timer.fn = tick;
        weft_status_t st = wefti_timer_at(rt, &r->timer, wefti_now(rt) + WEFTI_RECHECK_NS);
        if (st)
            return st;
        r->ticks = true;
    }
    r->of[r->n++] = *source;
    return WEFT_OK;
}

void wefti_recheck_now(weft_runtime_t *rt)
{
    look(wefti_conn_of(rt));
}

void wefti_recheck_step(wefti_epx_t *ep)
{
    ep->unsure = false;
    if (!ep->link || ep->link->state != WEFTI_LINK_UP)
        return;
    weft_status_t st = ask(&ep->conn->rechecks, &ep->pub);
    if (!st)
        return;
    char text[WEFTI_DETAIL_MAX];
    snprintf(text, sizeof text, "%s", weft_last_error());
    wefti_link_lost(ep->link, st, text);
}

weft_status_t wefti_recheck_rising(wefti_epx_t *ep)
{
    return ask(&ep->conn->rechecks, &ep->pub);
}

void wefti_recheck_stop(wefti_conn_t *conn)
{
    if (conn->rechecks.ticks)
        wefti_timer_stop(conn->rt, &conn->rechecks.timer);
}
