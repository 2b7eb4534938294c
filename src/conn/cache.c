/* conn/cache.c - shared endpoints: the same address and source give the same endpoint.
 *
 * The key is the canonical list of addresses with the source, or the peer's id where an address blob was given. Each open of a
 * cached endpoint adds a share and each close takes one; the last close is the real one. An endpoint leaves the cache when
 * either side closes it or it has failed for good; those who share it keep it until they close it. Hooks are those of the
 * first open.
 *
 * Everything here is under conn->lock, because any thread opens and closes.
 * Promise: no endpoint is freed while someone has a share in it. tests/wire/conn_cache.c. */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "conn/ep.h"

weft_status_t wefti_cache_key(const char *uris, const char *source, const uint8_t *uuid, char **key_out)
{
    char hex[2 * WEFTI_UUID_SIZE + 1];
    const char *to = uuid ? sodium_bin2hex(hex, sizeof hex, uuid, WEFTI_UUID_SIZE) : uris;
    size_t size = strlen(to) + (source ? strlen(source) : 0) + 2;
    char *key = wefti_malloc(size);
    if (!key)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the key of a shared endpoint");
    snprintf(key, size, "%s %s", to, source ? source : ""); /* a space is in no address */
    *key_out = key;
    return WEFT_OK;
}

static uint64_t hash_of(const char *key)
{
    return wefti_hash_bytes(key, strlen(key));
}

wefti_epx_t *wefti_cache_take(wefti_conn_t *conn, const char *key)
{
    pthread_mutex_lock(&conn->lock);
    wefti_epx_t *ep = wefti_map_get(&conn->cache, hash_of(key));
    while (ep && strcmp(ep->dial->cache_key, key))
        ep = ep->dial->cache_next;
    if (ep)
        ep->dial->shares++;
    pthread_mutex_unlock(&conn->lock);
    return ep;
}

void wefti_cache_put(wefti_conn_t *conn, wefti_epx_t *ep)
{
    pthread_mutex_lock(&conn->lock);
    wefti_dial_t *d = wefti_ep_is_there(&ep->pub) ? ep->dial : NULL; /* else the runtime was faster to close it */
    if (d && d->cache_key && !d->forgotten) {                        /* its connect may have failed already */
        uint64_t hash = hash_of(d->cache_key);
        wefti_epx_t *next = wefti_map_get(&conn->cache, hash);
        if (!wefti_map_put(&conn->cache, hash, ep)) {
            d->cache_next = next;
            d->cached = true;
        }
    }
    pthread_mutex_unlock(&conn->lock);
}

static void forget_locked(wefti_epx_t *ep)
{
    wefti_conn_t *conn = ep->conn;
    wefti_dial_t *d = ep->dial;
    d->forgotten = true;
    if (!d->cached)
        return;
    uint64_t hash = hash_of(d->cache_key);
    wefti_epx_t *first = wefti_map_get(&conn->cache, hash);
    d->cached = false;
    if (first != ep) {
        while (first->dial->cache_next != ep)
            first = first->dial->cache_next;
        first->dial->cache_next = d->cache_next;
    } else if (d->cache_next) {
        (void)wefti_map_put(&conn->cache, hash, d->cache_next); /* replaces: needs no memory */
    } else {
        wefti_map_take(&conn->cache, hash);
    }
    d->cache_next = NULL;
}

void wefti_cache_forget(wefti_epx_t *ep)
{
    if (!ep->dial || !ep->dial->cache_key)
        return;
    pthread_mutex_lock(&ep->conn->lock);
    forget_locked(ep);
    pthread_mutex_unlock(&ep->conn->lock);
}

bool wefti_cache_release(wefti_epx_t *ep)
{
    bool last = true;
    if (!ep->dial || !ep->dial->cache_key)
        return true;
    pthread_mutex_lock(&ep->conn->lock);
    last = ep->dial->shares && --ep->dial->shares == 0;
    if (last)
        forget_locked(ep); /* under the same lock: nobody finds it between its last close and its end */
    pthread_mutex_unlock(&ep->conn->lock);
    return last;
}
