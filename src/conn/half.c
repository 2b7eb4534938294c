/* conn/half.c - our half of a lane, as the handshake needs it: made, joined to the peer's, given up.
 *
 * A half may be a guest of a lane to the same peer (fabric.h: carrier), if the transport has such a lane and the trunk (trunk.c)
 * takes it. One that comes to nothing is followed by one that shares nothing, over the same transport; so sharing is never the
 * reason why two runtimes have no connection.
 *
 * Promise: after false there is no lane. tests/wire/conn_connect.c, conn_shared.c; tests/sim. */
#include <stdatomic.h>
#include <string.h>

#include "conn/ep.h"

/* A Unix socket, or a tunnel, may lead to another network: then what follows goes over one. */
static bool elsewhere(const wefti_link_t *link)
{
    return memcmp(link->shake->peer.host, link->conn->host, sizeof link->conn->host) != 0;
}

static weft_status_t make(wefti_link_t *link, wefti_transport_t *transport, wefti_meeting_t *with, uint8_t *addr, size_t *n)
{
    wefti_lane_t *lane;
    wefti_auth_lane_secret(&link->shake->auth, with->secret);
    bool met_over_tls = link->wire && link->wire->stream;
    with->only_here = link->wire && link->wire->guarded;
    with->tls = met_over_tls || (with->only_here && elsewhere(link) && link->shake->auth.keyed);
    if (met_over_tls) { /* the lane belongs to this connection, whatever was proved inside it */
        uint8_t key[WEFTI_SECRET_SIZE];
        link->conn->fabric->ops->wire_secret(link->wire, key);
        wefti_mac(key, "weft lane of tls", with->secret, sizeof with->secret, with->secret);
        explicit_bzero(key, sizeof key);
    }
    weft_status_t st = transport->ops->lane_new(transport, with, link, addr, n, &lane);
    explicit_bzero(with->secret, sizeof with->secret);
    if (st)
        return st;
    link->lane = lane;
    link->lanes++;
    if (lane->carrier && !wefti_trunk_join(link)) {
        wefti_link_close_lane(link);
        return WEFT_ERR_UNREACHABLE;
    }
    return WEFT_OK;
}

bool wefti_half_make(wefti_link_t *link, wefti_transport_t *transport, const wefti_hello_transport_t *caps,
                     const wefti_lane_msg_t *join, uint8_t *addr, size_t *n)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    wefti_shake_t *s = link->shake;
    const wefti_wire_t *wire = link->wire;
    if (wire && transport->in_the_clear && (wire->stream || (wire->guarded && elsewhere(link)))) {
        s->in_the_clear = true;
        if (wire->guarded && !atomic_flag_test_and_set(&warned))
            wefti_warn(
                "%s is not used with %s, nor with others elsewhere: it cannot be encrypted, and what leaves this host has to "
                "be; WEFT_TLS=off allows it",
                transport->name, link->where);
        s->why_not = WEFT_ERR_UNSUPPORTED;
        return false;
    }
    wefti_meeting_t with = {.side = link->side, .caps = caps->caps, .caps_n = caps->caps_len};
    memcpy(with.binding, s->auth.transcript, sizeof with.binding);
    memcpy(with.peer, s->peer.uuid, sizeof with.peer);
    with.alone = s->alone || !memcmp(s->peer.uuid, link->conn->uuid, sizeof with.peer);
    if (join) {
        with.join = join->addr;
        with.join_n = join->addr_len;
    }
    weft_status_t st = make(link, transport, &with, addr, n);
    if (st && link->side == WEFTI_SIDE_DIALLER && !with.alone && transport->ops->lane_offer) {
        with.alone = true;
        st = make(link, transport, &with, addr, n);
    }
    if (st) {
        wefti_info("no lane over %s for %s: %s", transport->name, link->where, weft_status_text(st));
        s->why_not = st;
        return false;
    }
    if (link->side == WEFTI_SIDE_DIALLER && !link->guest && transport->ops->lane_offer)
        wefti_trunk_joins(link);
    return true;
}

bool wefti_half_connect(wefti_link_t *link, const uint8_t *addr, size_t n)
{
    weft_status_t st = link->lane->ops->lane_connect(link->lane, addr, n);
    if (!st)
        return true;
    wefti_info("the lane over %s to %s cannot be joined: %s", link->lane->transport->name, link->where, weft_status_text(st));
    link->shake->why_not = st;
    wefti_half_give_up(link);
    return false;
}

void wefti_half_give_up(wefti_link_t *link)
{
    wefti_shake_t *s = link->shake;
    if (link->guest) {
        s->alone = true;
        if (s->transport_at)
            s->transport_at--;
    }
    wefti_link_close_lane(link);
}
