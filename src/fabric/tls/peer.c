/* fabric/tls/peer.c - the name of a peer that showed a certificate: the first one in its SAN that is a name of something.
 *
 * The authority says that it may have it. That it can be shown and compared is looked at here: a NUL in it has made one name
 * pass for another before. tests/fault/tls_certs.c. */
#include <string.h>

#include "fabric/tls/internal.h"

/* It will stand in logs and be compared: no NUL, no blank, no sign that moves a cursor. */
static bool is_plain(const unsigned char *text, int n)
{
    for (int i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

bool wefti_tls_remember_peer(tls_stream_t *s)
{
    X509 *cert = s->cert = wefti_ssl.SSL_get1_peer_certificate(s->ssl);
    STACK_OF(X509) *chain = wefti_ssl.SSL_get_peer_cert_chain(s->ssl);
    s->chain = chain ? wefti_ssl.X509_chain_up_ref(chain) : NULL;
    if (!cert || (chain && !s->chain))
        return false;
    GENERAL_NAMES *names = wefti_ssl.X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    int n = names ? wefti_ssl.OPENSSL_sk_num((const OPENSSL_STACK *)names) : 0;
    for (int i = 0; i < n && !s->peer[0]; i++) {
        const GENERAL_NAME *name = wefti_ssl.OPENSSL_sk_value((const OPENSSL_STACK *)names, i);
        if (name->type != GEN_DNS && name->type != GEN_URI && name->type != GEN_EMAIL)
            continue;
        int len = wefti_ssl.ASN1_STRING_length(name->d.ia5);
        const unsigned char *text = wefti_ssl.ASN1_STRING_get0_data(name->d.ia5);
        if (len > 0 && (size_t)len < sizeof s->peer && is_plain(text, len))
            memcpy(s->peer, text, (size_t)len);
    }
    if (names)
        wefti_ssl.GENERAL_NAMES_free(names);
    return true;
}
