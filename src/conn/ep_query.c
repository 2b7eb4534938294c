/* conn/ep_query.c - what the rooms above and the program ask of an endpoint, and what its operations say when they fail. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "conn/ep.h"

/* --- sentences ------------------------------------------------------------------------------------------------------------- */

uint64_t wefti_ep_explain(wefti_epx_t *ep, const char *where, weft_status_t why, const char *text)
{
    const wefti_peer_t *peer = atomic_load(&ep->peer);
    ep->pub.why_detail = wefti_ep_state(ep) == WEFT_EP_CONNECTING || !peer
                             ? wefti_detail_format("%s: %s (%s)", where, weft_status_text(why), text)
                             : wefti_detail_format("%s, the peer \"%s\", is lost: %s", where, peer->name, text);
    return ep->pub.why_detail;
}

uint64_t wefti_ep_sentence(const weft_ep_t *pub, const char *text)
{
    const wefti_epx_t *ep = wefti_epx((weft_ep_t *)(uintptr_t)pub);
    const wefti_peer_t *peer = atomic_load(&ep->peer);
    if (pub->rt->why) /* the endpoint itself ends, and says why */
        return 0;
    if (peer && ep->link)
        return wefti_detail_format("%s, the peer \"%s\": %s", ep->link->where, peer->name, text);
    return wefti_detail_format("%s%s%s", ep->dial ? ep->dial->uris : "", ep->dial ? ": " : "", text);
}

void wefti_ep_says(weft_ep_t *pub, const char *fmt, ...)
{
    char text[WEFTI_DETAIL_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    uint64_t sentence = wefti_ep_sentence(pub, text);
    if (sentence)
        pub->rt->why_next = sentence;
}

void wefti_ep_complete(weft_ep_t *ep, weft_op_t *op, weft_status_t status)
{
    if (status == WEFT_ERR_TIMEOUT && ep)
        wefti_ep_says(ep, "%s", weft_status_text(status));
    wefti_op_complete_why(op, status, status && ep ? wefti_ep_detail(ep, status) : 0);
}

weft_status_t wefti_ep_fail_gone(const weft_ep_t *ep)
{
    return wefti_fail(WEFT_ERR_CLOSED, "the endpoint %llu was closed", (unsigned long long)ep->id);
}

/* --- for the rooms above --------------------------------------------------------------------------------------------------- */

/* What the endpoint failed with, and its sentence. */
static weft_status_t fail_as_it_did(const weft_ep_t *pub)
{
    char text[WEFTI_DETAIL_MAX];
    weft_status_t why = pub->why ? pub->why : WEFT_ERR_PEER;
    return wefti_fail(why, "%s", wefti_detail_get(pub->why_detail, text) ? text : weft_status_text(why));
}

weft_status_t wefti_ep_check_of(const weft_ep_t *ep, weft_runtime_t **rt)
{
    if (!ep) {
        *rt = wefti_head(*rt);
        return WEFT_OK;
    }
    if (!wefti_same_runtime(ep->rt, *rt))
        return wefti_fail(WEFT_ERR_INVALID, "the endpoint is of another runtime");
    *rt = ep->rt;
    return wefti_ep_check(ep);
}

static weft_status_t fail_peer_closed(const weft_ep_t *pub)
{
    return wefti_fail(WEFT_ERR_CLOSED, "the peer closed the endpoint %llu", (unsigned long long)pub->id);
}

weft_status_t wefti_ep_lost(const weft_ep_t *pub)
{
    const wefti_epx_t *ep = wefti_epx(pub);
    switch (wefti_ep_state(ep)) {
    case WEFT_EP_FAILED: /* why, only the driver can look at */
        return ep->hooks.failed ? WEFT_OK
                                : wefti_fail(WEFT_ERR_PEER, "the peer of the endpoint %llu is lost", (unsigned long long)pub->id);
    case WEFT_EP_PEER_CLOSED:
        return fail_peer_closed(pub);
    case WEFT_EP_CLOSING:
        return wefti_ep_fail_gone(pub);
    default:
        return WEFT_OK;
    }
}

weft_status_t wefti_ep_may_wait(const weft_ep_t *pub)
{
    const wefti_epx_t *ep = wefti_epx((weft_ep_t *)(uintptr_t)pub);
    switch (wefti_ep_state(ep)) {
    case WEFT_EP_CONNECTING:
    case WEFT_EP_UP:
    case WEFT_EP_RECONNECTING:
        return WEFT_OK;
    case WEFT_EP_FAILED: /* the hook may still reconnect it: a post in reaction to the failure waits for the answer */
        return ep->asking && ep->hooks.failed ? WEFT_OK : fail_as_it_did(pub);
    case WEFT_EP_PEER_CLOSED:
        return fail_peer_closed(pub);
    default:
        return wefti_ep_fail_gone(pub);
    }
}

void wefti_ep_drained(weft_ep_t *pub)
{
    wefti_epx_t *ep = wefti_epx(pub);
    if (ep->close_stage != WEFTI_CLOSE_NOT)
        wefti_ep_kick(ep);
}

static bool doom(wefti_epx_t *ep, const char *text, bool by_peer)
{
    if (!ep->link || ep->link->state != WEFTI_LINK_UP || ep->doom)
        return false;
    ep->doom = WEFT_ERR_PROTOCOL;
    ep->doom_text = text;
    ep->doomed_by_peer = by_peer;
    ep->link->deliver = false;
    wefti_ep_kick(ep);
    return true;
}

void wefti_ep_protocol_error(weft_ep_t *ep, const char *what)
{
    if (doom(wefti_epx(ep), what, true))
        wefti_warn("%s broke the protocol: %s", wefti_epx(ep)->link->where, what);
}

void wefti_ep_cannot(weft_ep_t *ep, const char *what)
{
    if (doom(wefti_epx(ep), what, false))
        wefti_warn("the connection with %s is given up: %s", wefti_epx(ep)->link->where, what);
}

weft_ep_t *wefti_ep_next(weft_runtime_t *rt, uint32_t *at)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    weft_ep_t *found = NULL;
    pthread_mutex_lock(&conn->lock);
    while (!found && *at < conn->slots.n) {
        const wefti_slot_t *slot = &conn->slots.at[(*at)++];
        wefti_epx_t *ep = slot->generation & 1 ? slot->value : NULL;
        found = ep && !ep->starting ? &ep->pub : NULL; /* one that starts may be freed again by the thread that opens it */
    }
    pthread_mutex_unlock(&conn->lock);
    return found;
}

/* --- for the program ------------------------------------------------------------------------------------------------------- */

weft_ep_id_t weft_ep_id(const weft_ep_t *ep)
{
    return ep ? ep->id : 0;
}

weft_runtime_t *weft_ep_runtime(const weft_ep_t *ep)
{
    return ep ? wefti_head(ep->rt) : NULL;
}

weft_ep_state_t weft_ep_get_state(const weft_ep_t *ep)
{
    return ep ? (weft_ep_state_t)atomic_load(&((weft_ep_t *)(uintptr_t)ep)->state) : WEFT_EP_GONE;
}

weft_ep_t *weft_ep_find(weft_runtime_t *rt, weft_ep_id_t id)
{
    if (!rt || wefti_id_shard(id) >= wefti_n_shards(rt))
        return NULL;
    rt = wefti_shard(rt, wefti_id_shard(id));
    if (wefti_join(rt))
        return NULL;
    wefti_conn_t *conn = wefti_conn_of(rt);
    pthread_mutex_lock(&conn->lock);
    weft_ep_t *ep = wefti_slots_get(&conn->slots, wefti_id_slot(id));
    pthread_mutex_unlock(&conn->lock);
    wefti_part(rt);
    return ep;
}

static weft_ep_info_t info_of(wefti_epx_t *x)
{
    const weft_ep_t *ep = &x->pub;
    const wefti_peer_t *p = atomic_load(&x->peer);
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    info.id = ep->id;
    info.state = weft_ep_get_state(ep);
    info.peer_name = p ? p->name : "";
    info.peer_address = p ? p->address : x->dial ? x->dial->uris : "";
    info.transport = p ? p->transport : "";
    info.peer_capabilities = p ? p->capabilities : 0;
    info.authenticated = p && p->authenticated;
    info.cipher = p ? p->cipher : "";
    info.identity = p ? p->identity : "";
    info.same_host = p && p->same_host;
    EACH_TRAFFIC(x, t)
        if (t->ep_info)
            t->ep_info(&x->pub, &info);
    return info;
}

weft_status_t weft_ep_get_info(const weft_ep_t *ep, weft_ep_info_t *info_out)
{
    if (!ep || !info_out || info_out->size < offsetof(weft_ep_info_t, peer_name))
        return wefti_fail(WEFT_ERR_INVALID, "weft_ep_info_t.size is not set: use WEFT_EP_INFO_INIT");
    weft_runtime_t *rt = ep->rt;
    weft_ep_info_t info;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    wefti_conn_t *conn = wefti_conn_of(rt);
    pthread_mutex_lock(&conn->lock);
    st = wefti_ep_check(ep);
    if (!st)
        info = info_of(wefti_epx(ep));
    pthread_mutex_unlock(&conn->lock);
    wefti_part(rt);
    if (st)
        return st;
    wefti_opts_write(info_out, &info, sizeof info);
    return WEFT_OK;
}
