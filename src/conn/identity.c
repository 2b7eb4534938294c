/* conn/identity.c - by what two who meet know each other: which key is proved, and the name of who has it.
 *
 * The dialler proves the first of its keys and gives a hint which one that is; the listener finds it among its own, and proves
 * the same. It is copied for the length of the hello, for the runtime may have others by its end. A certificate's name counts
 * before that of a key.
 *
 * The files that keys and certificates come from are looked at by recheck.c's timer, if there are any: those who meet later use
 * what is there then, and whoever proved something that is not accepted any more loses his connection.
 *
 * Promise: an identity is that of a key or certificate that the peer proved in this very hello. tests/wire/conn_identity.c,
 * tests/wire/tls_renew.c. */
#include <stdio.h>
#include <string.h>

#include "conn/ep.h"

void wefti_shake_own_key(wefti_link_t *link, wefti_hello_t *h)
{
    const weft_runtime_t *rt = link->conn->rt;
    if (!rt->has_key || link->side != WEFTI_SIDE_DIALLER)
        return;
    link->shake->key = rt->keys->at[0];
    wefti_key_hint(&link->shake->key, WEFTI_HELLO_HINT, h->nonce, sizeof h->nonce, h->hint);
}

bool wefti_shake_their_key(wefti_link_t *link)
{
    const weft_runtime_t *rt = link->conn->rt;
    const wefti_hello_t *h = &link->shake->peer;
    const wefti_key_t *key = rt->has_key ? wefti_keys_find(rt->keys, WEFTI_HELLO_HINT, h->nonce, sizeof h->nonce, h->hint) : NULL;
    if (key)
        link->shake->key = *key;
    return key || !rt->has_key;
}

wefti_wire_t *wefti_link_secured(const wefti_link_t *link)
{
    wefti_wire_t *wire = link->wire ? link->wire : link->trunk ? link->trunk->wire : NULL;
    return wire && wire->stream ? wire : NULL;
}

const char *wefti_link_identity(const wefti_link_t *link)
{
    wefti_wire_t *wire = wefti_link_secured(link);
    const char *name = wire ? link->conn->fabric->ops->wire_peer(wire) : "";
    return *name || !link->shake->auth.keyed ? name : link->shake->key.name;
}

weft_status_t wefti_link_admitted(wefti_link_t *link)
{
    const weft_listener_t *l = link->listener;
    const wefti_wire_t *wire = link->wire && link->wire->stream ? link->wire : NULL;
    weft_status_t st = l->admits.fn ? l->admits.fn(link->shake->peer.name, link->where, l->user) : WEFT_OK;
    if (st || link->state == WEFTI_LINK_DEAD || !l->admits.peer)
        return st;
    weft_newcomer_t peer = {.size = sizeof peer,
                            .name = link->shake->peer.name,
                            .address = link->where,
                            .identity = wefti_link_identity(link),
                            .cipher = wire ? link->conn->fabric->ops->wire_cipher(link->wire) : "",
                            .authenticated = wire || link->shake->auth.keyed};
    return l->admits.peer(&peer, l->user);
}

size_t wefti_ep_identity(weft_runtime_t *rt, weft_ep_id_t id, char *buf, size_t cap)
{
    size_t n = 0;
    if (cap)
        buf[0] = 0;
    if (wefti_id_shard(id) >= wefti_n_shards(rt))
        return 0;
    rt = wefti_shard(rt, wefti_id_shard(id));
    if (wefti_join(rt))
        return 0;
    wefti_conn_t *conn = wefti_conn_of(rt);
    pthread_mutex_lock(&conn->lock);
    wefti_epx_t *ep = wefti_slots_get(&conn->slots, wefti_id_slot(id));
    const wefti_peer_t *peer = ep ? atomic_load(&ep->peer) : NULL;
    if (peer) {
        n = strlen(peer->identity);
        snprintf(buf, cap, "%s", peer->identity);
    }
    pthread_mutex_unlock(&conn->lock);
    wefti_part(rt);
    return n;
}

void wefti_own_identity(const weft_runtime_t *rt, char *buf, size_t cap)
{
    *buf = '\0';
    if (rt->fabric->ops->guard_name)
        rt->fabric->ops->guard_name(rt->fabric, buf, cap);
    if (!*buf && rt->has_key)
        snprintf(buf, cap, "%s", rt->keys->at[0].name);
}

/* --- what changes ---------------------------------------------------------------------------------------------------------- */

static bool changed(void *user)
{
    wefti_conn_t *conn = user;
    weft_runtime_t *rt = conn->rt;
    const wefti_fabric_ops_t *ops = rt->fabric->ops;
    bool any = rt->keys_in_file && wefti_keys_renew(rt);
    if ((any || conn->keys_due) && ops->guard_keys) {
        conn->keys_due = ops->guard_keys(rt->fabric, rt->keys);
        if (conn->keys_due && any)
            wefti_warn("TLS goes on with the keys from before: %s", weft_last_error());
    }
    uint64_t changes = ops->guards_look ? ops->guards_look() : 0;
    any = any || changes != conn->guard_changes;
    conn->guard_changes = changes;
    return any;
}

static weft_status_t welcome(void *user, weft_ep_t *pub)
{
    const wefti_conn_t *conn = user;
    const wefti_epx_t *ep = wefti_epx(pub);
    const wefti_peer_t *peer = atomic_load(&wefti_epx(pub)->peer);
    if (peer && peer->by_key && !wefti_keys_have(conn->rt->keys, peer->key, peer->key_name))
        return wefti_fail(WEFT_ERR_AUTH, "the key \"%s\" that the peer proved is no longer one of ours", peer->key_name);
    const wefti_link_t *link = ep->link && ep->link->trunk ? ep->link->trunk : ep->link;
    return link && link->wire && link->wire->stream ? conn->fabric->ops->wire_welcome(link->wire) : WEFT_OK;
}

weft_status_t wefti_identity_watch(wefti_conn_t *conn)
{
    const wefti_fabric_ops_t *ops = conn->rt->fabric->ops;
    if (conn->watches)
        return WEFT_OK;
    conn->guard_changes = ops->guards_look ? ops->guards_look() : 0;
    weft_status_t st = wefti_recheck_add(conn->rt, &(wefti_recheck_t){changed, welcome, conn});
    conn->watches = !st;
    return st;
}

weft_status_t wefti_identity_begin(wefti_conn_t *conn)
{
    const weft_runtime_t *rt = conn->rt;
    const wefti_fabric_ops_t *ops = rt->fabric->ops;
    const char *files[] = {rt->config.tls_cert, rt->config.tls_key, rt->config.tls_ca, rt->config.tls_crl};
    bool any = rt->keys_in_file;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        any = any || (files[i] && *files[i]);
    weft_status_t st = ops->guard_keys ? ops->guard_keys(rt->fabric, rt->keys) : WEFT_OK;
    return st || !any ? st : wefti_identity_watch(conn);
}
