/* fabric/tls/keys.c - keys in the handshake of TLS: those of a runtime for its wires, and those of lanes.
 *
 * A wire's dialler says which of the keys it proves by a random number and the hint of the key for it (base/keys.h): no two calls
 * look alike, and the name of the key is not sent. The listener proves the same one. A lane's dialler says which lane it is.
 *
 * Promise: whoever is let in by a key has one of them. tests/wire/tls.c, tests/wire/conn_identity.c. */
#include <string.h>
#include <sys/random.h>

#include "fabric/tls/internal.h"

#define HINT "weft tls hint"

static SSL_SESSION *session_of(SSL *ssl, const uint8_t key[WEFTI_SECRET_SIZE])
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const SSL_CIPHER *cipher = wefti_ssl.SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *session = cipher ? wefti_ssl.SSL_SESSION_new() : NULL;
    const unsigned char *context = (const unsigned char *)TLS_CONTEXT;
    if (session && (!wefti_ssl.SSL_SESSION_set1_id_context(session, context, sizeof TLS_CONTEXT - 1) ||
                    !wefti_ssl.SSL_SESSION_set1_master_key(session, key, WEFTI_SECRET_SIZE) ||
                    !wefti_ssl.SSL_SESSION_set_cipher(session, cipher) ||
                    !wefti_ssl.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))) {
        wefti_ssl.SSL_SESSION_free(session);
        session = NULL;
    }
    return session;
}

/* The hello uses the key itself: what TLS gets must say nothing of it. */
static void use_key(tls_stream_t *s, const wefti_key_t *key)
{
    wefti_mac(key->secret, "weft tls key", "", 0, s->secret);
    s->has_secret = true;
}

/* Whose keys a stream uses. */
static wefti_guard_t *keyring(const tls_stream_t *s)
{
    return s->guard->keys_of ? s->guard->keys_of : s->guard;
}

/* A wire dials with the first of our keys. It is called again where the listener wants another key exchange. */
static bool choose_key(tls_stream_t *s)
{
    wefti_guard_t *g = keyring(s);
    if (s->has_secret)
        return true;
    pthread_mutex_lock(&g->lock);
    if (g->keys && getrandom(s->wire_id, TLS_WIRE_FRESH, 0) == TLS_WIRE_FRESH) {
        wefti_key_hint(&g->keys->at[0], HINT, s->wire_id, TLS_WIRE_FRESH, s->wire_id + TLS_WIRE_FRESH);
        use_key(s, &g->keys->at[0]);
    }
    pthread_mutex_unlock(&g->lock);
    return s->has_secret;
}

static bool find_key(tls_stream_t *s, const unsigned char *id, size_t n)
{
    if (n != TLS_WIRE_ID)
        return false;
    wefti_guard_t *g = keyring(s);
    pthread_mutex_lock(&g->lock);
    const wefti_key_t *key = wefti_keys_find(g->keys, HINT, id, TLS_WIRE_FRESH, id + TLS_WIRE_FRESH);
    if (key)
        use_key(s, key);
    pthread_mutex_unlock(&g->lock);
    return key;
}

/* The one who dials shows which key it has. */
int wefti_tls_key_used(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n, SSL_SESSION **session)
{
    tls_stream_t *s = tls_stream_of(ssl);
    (void)md; /* another hash than the key's: OpenSSL leaves the key out by itself */
    *session = NULL;
    if (s->wire && (!s->by_key || !choose_key(s)))
        return 1; /* who has certificates shows them; the hello inside proves the key as well */
    *session = session_of(ssl, s->secret);
    *id = s->wire ? s->wire_id : (const unsigned char *)&s->id;
    *n = s->wire ? sizeof s->wire_id : sizeof s->id;
    return *session != NULL;
}

/* The one who is dialled finds it. None: the handshake goes on by certificates, or ends. */
int wefti_tls_key_found(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **session)
{
    tls_stream_t *s = tls_stream_of(ssl);
    bool known;
    *session = NULL;
    if (s->wire) {
        known = s->by_key && find_key(s, id, n);
    } else {
        known = n == sizeof s->id;
        if (known)
            memcpy(&s->id, id, sizeof s->id);
        known = known && s->find(s->user, s->id, s->secret);
    }
    if (!known)
        return 1;
    *session = session_of(ssl, s->secret);
    return *session != NULL;
}
