/* fabric/tls/peer.c - the certificate of a peer: whom it names, and whether it is believed.
 *
 * The name is the first one in its SAN that is a name of something: a host's, a URI or an email address. The authority says that
 * it may have it. That it can be shown and compared is looked at here: a NUL in it has made one name pass for another before. Nor
 * is one a name that means more than itself to a policy. tests/fault/tls_certs.c. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/keys.h"
#include "base/log.h"
#include "fabric/fabric.h"
#include "fabric/tls/internal.h"

bool wefti_tls_peer(const SSL *ssl, tls_peer_t *out)
{
    STACK_OF(X509) *chain = wefti_ssl.SSL_get_peer_cert_chain(ssl);
    out->cert = wefti_ssl.SSL_get1_peer_certificate(ssl);
    out->chain = chain ? wefti_ssl.X509_chain_up_ref(chain) : NULL;
    if (out->cert && (!chain || out->chain))
        return true;
    wefti_tls_peer_free(out);
    return false;
}

void wefti_tls_peer_free(tls_peer_t *p)
{
    while (p->chain && wefti_ssl.OPENSSL_sk_num((const OPENSSL_STACK *)p->chain))
        wefti_ssl.X509_free(wefti_ssl.OPENSSL_sk_pop((OPENSSL_STACK *)p->chain));
    if (p->chain)
        wefti_ssl.OPENSSL_sk_free((OPENSSL_STACK *)p->chain);
    if (p->cert)
        wefti_ssl.X509_free(p->cert);
    *p = (tls_peer_t){0};
}

/* It will stand in logs and be compared: no NUL, no blank, no sign that moves a cursor. */
static bool is_plain(const unsigned char *text, int n)
{
    for (int i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

/* In a policy a `*` is any text, and "anonymous" is who has no name. */
static bool is_reserved(const unsigned char *text, int n)
{
    return memchr(text, '*', (size_t)n) || ((size_t)n == strlen(WEFTI_ANONYMOUS) && !memcmp(text, WEFTI_ANONYMOUS, (size_t)n));
}

/* Whom a certificate names: "" nobody. False: it has names, which cannot be read: not the same as having none. */
static bool find_name(X509 *cert, char name_out[TLS_NAME])
{
    int many = -1;
    *name_out = '\0';
    GENERAL_NAMES *names = wefti_ssl.X509_get_ext_d2i(cert, NID_subject_alt_name, &many, NULL);
    if (!names && many != -1)
        return false;
    int n = names ? wefti_ssl.OPENSSL_sk_num((const OPENSSL_STACK *)names) : 0;
    for (int i = 0; i < n && !*name_out; i++) {
        const GENERAL_NAME *name = wefti_ssl.OPENSSL_sk_value((const OPENSSL_STACK *)names, i);
        if (name->type != GEN_DNS && name->type != GEN_URI && name->type != GEN_EMAIL)
            continue;
        int len = wefti_ssl.ASN1_STRING_length(name->d.ia5);
        const unsigned char *text = wefti_ssl.ASN1_STRING_get0_data(name->d.ia5);
        if (len > 0 && len < TLS_NAME && is_plain(text, len) && !is_reserved(text, len)) {
            memcpy(name_out, text, (size_t)len);
            name_out[len] = '\0';
        }
    }
    if (names)
        wefti_ssl.GENERAL_NAMES_free(names);
    return true;
}

void wefti_guard_name(wefti_guard_t *g, char *buf, size_t cap)
{
    char name[TLS_NAME] = "";
    if (atomic_load(&g->ready) && tls_has_files(g)) {
        pthread_mutex_lock(&g->lock);
        X509 *cert = wefti_ssl.SSL_CTX_get0_certificate(g->wires);
        if (cert)
            (void)find_name(cert, name);
        tls_left_nothing();
        pthread_mutex_unlock(&g->lock);
    }
    snprintf(buf, cap, "%s", name);
}

bool wefti_tls_remember_peer(tls_stream_t *s)
{
    if (!wefti_tls_peer(s->ssl, &s->peer) || !s->peer.cert || !find_name(s->peer.cert, s->name))
        return false;
    if (!s->name[0])
        wefti_info("tls: the peer's certificate has no name that could be its identity (DNS, URI or email in the subject "
                   "alternative name): it is " WEFTI_ANONYMOUS);
    return true;
}

weft_status_t wefti_tls_believe(const tls_peer_t *p, SSL_CTX *by, int side, SSL *anew)
{
    weft_status_t st = WEFT_ERR_NOMEM;
    X509_STORE_CTX *c = wefti_ssl.X509_STORE_CTX_new();
    if (!c || !wefti_ssl.X509_STORE_CTX_init(c, wefti_ssl.SSL_CTX_get_cert_store(by), p->cert, p->chain) ||
        !wefti_ssl.X509_STORE_CTX_set_default(c, side == WEFTI_SIDE_DIALLER ? "ssl_server" : "ssl_client"))
        goto out;
    X509_VERIFY_PARAM *how = wefti_ssl.X509_STORE_CTX_get0_param(c);
    if (anew && !wefti_ssl.X509_VERIFY_PARAM_set1(how, wefti_ssl.SSL_get0_param(anew)))
        goto out;
    wefti_ssl.X509_VERIFY_PARAM_set_auth_level(how, TLS_SECURITY_LEVEL);
    if (!anew)
        wefti_ssl.X509_STORE_CTX_set_flags(c, X509_V_FLAG_NO_CHECK_TIME);
    if (wefti_ssl.X509_verify_cert(c) == 1)
        st = WEFT_OK;
    else
        st = wefti_fail(WEFT_ERR_AUTH, "the peer's certificate is not accepted any more: %s",
                        wefti_ssl.X509_verify_cert_error_string(wefti_ssl.X509_STORE_CTX_get_error(c)));
out:
    if (st == WEFT_ERR_NOMEM)
        wefti_fail(st, "no memory to look at the peer's certificate again");
    if (c)
        wefti_ssl.X509_STORE_CTX_free(c);
    tls_left_nothing(); /* also for who is in the middle of a handshake: OpenSSL would take it for that one's failure */
    return st;
}
