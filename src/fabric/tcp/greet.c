/* fabric/tcp/greet.c - what the two ends of a connection say before it is a lane's.
 *
 *     dialler                                          acceptor
 *                                               <---   challenge: a nonce of this connection
 *     greeting: which lane, a nonce, MAC        --->   checks the MAC
 *     checks the MAC                            <---   answer: MAC
 *
 * Both MACs are made with the key of the lane: a hash of both lanes' tokens under the secret of the meeting. They cover both
 * nonces, for which of a lane's connections it is, and which side of the wire speaks. So, where there is a pre-shared key,
 * whoever overheard the hello and every greeting can make neither, nor use one again: not on another connection, not for the
 * other kind of connection, not in the other direction. A host that has taken over an address of the peer learns nothing and
 * cannot answer. Without a pre-shared key the secret is known, and the tokens are what a stranger must know: it must have
 * overheard the hello.
 *
 * Promise: a connection becomes a lane's, or its second one, only between the two that met. tests/wire/fabric_tcp_hostile.c,
 * tests/fault/conn_overheard.c. */
#include <string.h>
#include <sys/socket.h>

#include "fabric/tcp/internal.h"

static uint8_t other_side(const tp_lane_t *l)
{
    return l->side == WEFTI_SIDE_DIALLER ? WEFTI_SIDE_LISTENER : WEFTI_SIDE_DIALLER;
}

void wefti_tp_lane_key(tp_lane_t *l)
{
    uint8_t tokens[2 * TP_TOKEN];
    bool dialler = l->side == WEFTI_SIDE_DIALLER;
    memcpy(tokens, dialler ? l->token : l->peer_token, TP_TOKEN);
    memcpy(tokens + TP_TOKEN, dialler ? l->peer_token : l->token, TP_TOKEN);
    wefti_mac(l->key, "weft tcp key", tokens, sizeof tokens, l->key);
}

/* As the one on `side` of the wire makes it. */
static void sign(const tp_lane_t *l, const tp_conn_t *c, const char *label, uint8_t side, uint64_t magic, uint64_t id,
                 uint8_t *out)
{
    uint8_t bytes[17 + 2 * TP_NONCE];
    memcpy(bytes, &magic, 8);
    memcpy(bytes + 8, &id, 8);
    bytes[16] = side;
    memcpy(bytes + 17, c->challenge, TP_NONCE);
    memcpy(bytes + 17 + TP_NONCE, c->nonce, TP_NONCE);
    wefti_mac(l->key, label, bytes, sizeof bytes, out);
}

/* A new socket has space for so few bytes, or is broken. */
static bool say(const tp_conn_t *c, const void *bytes, size_t n)
{
    struct iovec v = {(void *)(uintptr_t)bytes, n};
    return wefti_tp_send(c->fd, c->stream, &v, 1) == (ssize_t)n && !tp_waits(c->stream);
}

bool wefti_tp_say_challenge(tp_conn_t *c)
{
    uint8_t bytes[TP_CHALLENGE_N];
    uint64_t magic = TP_CHALLENGE;
    wefti_fabric_t *f = c->transport->base.fabric;
    f->ops->random(f, c->challenge, sizeof c->challenge);
    memcpy(bytes, &magic, 8);
    memcpy(bytes + 8, c->challenge, TP_NONCE);
    return say(c, bytes, sizeof bytes);
}

static uint64_t kind_of(const tp_conn_t *c)
{
    return c->bulk ? TP_GREET_BULK : TP_GREET_LANE;
}

bool wefti_tp_say_greeting(tp_lane_t *l, tp_conn_t *c)
{
    uint8_t bytes[TP_GREETING_N];
    uint64_t magic, kind = kind_of(c);
    wefti_fabric_t *f = c->transport->base.fabric;
    memcpy(&magic, c->in, 8);
    if (magic != TP_CHALLENGE)
        return false;
    memcpy(c->challenge, c->in + 8, TP_NONCE);
    f->ops->random(f, c->nonce, sizeof c->nonce);
    memcpy(bytes, &kind, 8);
    memcpy(bytes + 8, &l->peer_id, 8);
    memcpy(bytes + 16, c->nonce, TP_NONCE);
    sign(l, c, "weft tcp greeting", l->side, kind, l->peer_id, bytes + 16 + TP_NONCE);
    return say(c, bytes, sizeof bytes);
}

bool wefti_tp_greeting_good(const tp_lane_t *l, tp_conn_t *c)
{
    uint8_t mac[WEFTI_SECRET_SIZE];
    uint64_t magic;
    memcpy(&magic, c->in, 8);
    if (magic != TP_GREET_LANE && magic != TP_GREET_BULK)
        return false;
    memcpy(c->nonce, c->in + 16, TP_NONCE);
    sign(l, c, "weft tcp greeting", other_side(l), magic, l->id, mac);
    if (!wefti_mac_same(mac, c->in + 16 + TP_NONCE, sizeof mac))
        return false;
    c->bulk = magic == TP_GREET_BULK;
    return true;
}

bool wefti_tp_say_answer(tp_lane_t *l, tp_conn_t *c)
{
    uint8_t bytes[TP_ANSWER_N];
    uint64_t magic = TP_ANSWER_OK;
    memcpy(bytes, &magic, 8);
    sign(l, c, "weft tcp answer", l->side, kind_of(c), l->id, bytes + 8);
    return say(c, bytes, sizeof bytes);
}

bool wefti_tp_answer_good(const tp_lane_t *l, const tp_conn_t *c)
{
    uint8_t mac[WEFTI_SECRET_SIZE];
    uint64_t magic;
    memcpy(&magic, c->in, 8);
    sign(l, c, "weft tcp answer", other_side(l), kind_of(c), l->peer_id, mac);
    return magic == TP_ANSWER_OK && wefti_mac_same(mac, c->in + 8, sizeof mac);
}
