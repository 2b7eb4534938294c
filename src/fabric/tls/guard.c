/* fabric/tls/guard.c - what a runtime proves with, and whom it believes.
 *
 * Two contexts of OpenSSL's: one for wires, with the certificate and the authorities or with the pre-shared key, and one for the
 * connections of lanes, whose keys are made of the wire's secret. Both are made by the first that needs them. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/tls/internal.h"

#define SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define SUITES_OF_KEYS "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256" /* a key is for one hash */
#define READ_BYTES (65u << 10)                                               /* of one recv(): four whole records */

static char *copy(const char *text)
{
    return text && *text ? wefti_strdup(text) : NULL;
}

wefti_guard_t *wefti_guard_new(const wefti_config_t *config)
{
    wefti_guard_t *g = wefti_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    atomic_init(&g->shares, 1);
    g->off = config->tls && !strcmp(config->tls, "off");
    g->required = config->tls && !strcmp(config->tls, "required");
    pthread_mutex_init(&g->lock, NULL);
    wefti_list_init(&g->met);
    const char *files[TLS_FILES] = {config->tls_cert, config->tls_key, config->tls_ca, config->tls_crl};
    for (int i = 0; i < TLS_FILES; i++) {
        g->file[i] = copy(files[i]);
        if (!g->file[i] && files[i] && *files[i]) {
            wefti_guard_free(g);
            return NULL;
        }
    }
    return g;
}

wefti_guard_t *wefti_guard_keep(wefti_guard_t *g)
{
    if (g)
        atomic_fetch_add_explicit(&g->shares, 1, memory_order_relaxed);
    return g;
}

void wefti_guard_free(wefti_guard_t *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->shares, 1, memory_order_acq_rel) > 1)
        return;
    wefti_tls_unwatch(g);
    wefti_tls_forget(g);
    if (g->wires)
        wefti_ssl.SSL_CTX_free(g->wires);
    if (g->lanes)
        wefti_ssl.SSL_CTX_free(g->lanes);
    for (int i = 0; i < TLS_FILES; i++)
        wefti_free(g->file[i]);
    wefti_keys_free(g->keys);
    wefti_guard_free(g->keys_of);
    wefti_free(g->spare);
    pthread_mutex_destroy(&g->lock);
    wefti_free(g);
}

weft_status_t wefti_guard_keys(wefti_guard_t *g, const wefti_keys_t *keys)
{
    wefti_keys_t *copied = keys ? wefti_keys_copy(keys) : NULL;
    if (keys && !copied)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for keys");
    pthread_mutex_lock(&g->lock);
    wefti_keys_t *old = g->keys;
    g->keys = copied;
    g->has_keys = keys;
    pthread_mutex_unlock(&g->lock);
    wefti_keys_free(old);
    return WEFT_OK;
}

void wefti_guard_keys_of(wefti_guard_t *g, wefti_guard_t *of)
{
    g->keys_of = wefti_guard_keep(of);
    g->has_keys = of->has_keys;
}

SSL_CTX *wefti_tls_wires(wefti_guard_t *g)
{
    pthread_mutex_lock(&g->lock);
    SSL_CTX *c = g->wires;
    wefti_ssl.SSL_CTX_up_ref(c);
    pthread_mutex_unlock(&g->lock);
    return c;
}

/* What both have in common; `more` are modes. NULL: no memory. */
static SSL_CTX *context(const char *suites, long more)
{
    SSL_CTX *c = wefti_ssl.SSL_CTX_new(wefti_ssl.TLS_method());
    if (!c)
        return NULL;
    wefti_ssl.SSL_CTX_set_security_level(c, TLS_SECURITY_LEVEL);
    wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL);
    wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL);
    wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_MODE, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | more, NULL);
    wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
    wefti_ssl.SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
    wefti_ssl.SSL_CTX_set_num_tickets(c, 0);
    wefti_ssl.SSL_CTX_set_session_id_context(c, (const unsigned char *)TLS_CONTEXT, sizeof TLS_CONTEXT - 1);
    wefti_ssl.SSL_CTX_set_psk_use_session_callback(c, wefti_tls_key_used);
    wefti_ssl.SSL_CTX_set_psk_find_session_callback(c, wefti_tls_key_found);
    /* an empty list of authorities believes nobody: without certificates it has to be the key */
    wefti_ssl.SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    wefti_ssl.SSL_CTX_set_ciphersuites(c, suites);
    return c;
}

static weft_status_t bad_file(const char *what, const char *variable, const char *file)
{
    return wefti_fail(WEFT_ERR_INVALID, "the %s in \"%s\" (%s) cannot be used: %s", what, file, variable, wefti_ssl_why());
}

/* As for a key file: what others can read is no secret. What is not there at all is OpenSSL's to tell. */
static weft_status_t check_private(const char *key)
{
    struct stat info;
    if (stat(key, &info) || !(info.st_mode & S_IRWXO))
        return WEFT_OK;
    return wefti_fail(WEFT_ERR_INVALID,
                      "the private key \"%s\" (WEFT_TLS_KEY) has mode %03o; others must not have access to it (chmod 600)", key,
                      (unsigned)info.st_mode & 0777);
}

static weft_status_t certificates(const wefti_guard_t *g, SSL_CTX *c)
{
    const char *cert = g->file[TLS_CERT], *key = g->file[TLS_KEY], *ca = g->file[TLS_CA], *crl = g->file[TLS_CRL];
    if (!cert || !key || !ca)
        return wefti_fail(WEFT_ERR_INVALID,
                          "certificates need three files: WEFT_TLS_CERT has %s, WEFT_TLS_KEY has %s, WEFT_TLS_CA has %s",
                          cert ? "one" : "none", key ? "one" : "none", ca ? "one" : "none");
    wefti_ssl.ERR_clear_error();
    if (wefti_ssl.SSL_CTX_use_certificate_chain_file(c, cert) != 1)
        return bad_file("certificate", "WEFT_TLS_CERT", cert);
    weft_status_t st = check_private(key);
    if (st)
        return st;
    if (wefti_ssl.SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1)
        return bad_file("private key", "WEFT_TLS_KEY", key);
    if (wefti_ssl.SSL_CTX_check_private_key(c) != 1)
        return wefti_fail(WEFT_ERR_INVALID, "the private key in \"%s\" is not that of the certificate in \"%s\"", key, cert);
    wefti_tls_resumable(c);
    if (wefti_ssl.SSL_CTX_load_verify_locations(c, ca, NULL) != 1)
        return bad_file("authorities", "WEFT_TLS_CA", ca);
    if (!crl)
        return WEFT_OK;
    X509_STORE *store = wefti_ssl.SSL_CTX_get_cert_store(c);
    X509_LOOKUP *lookup = wefti_ssl.X509_STORE_add_lookup(store, wefti_ssl.X509_LOOKUP_file());
    if (!lookup || wefti_ssl.X509_load_crl_file(lookup, crl, X509_FILETYPE_PEM) < 1)
        return bad_file("list of revoked certificates", "WEFT_TLS_CRL", crl);
    wefti_ssl.X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return WEFT_OK;
}

weft_status_t wefti_tls_read(const wefti_guard_t *g, SSL_CTX **out)
{
    bool files = tls_has_files(g);
    SSL_CTX *c = context(files ? SUITES : SUITES_OF_KEYS, SSL_MODE_RELEASE_BUFFERS);
    weft_status_t st = c ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for TLS");
    if (!st && files)
        st = certificates(g, c);
    if (st) {
        if (c)
            wefti_ssl.SSL_CTX_free(c);
        return st;
    }
    *out = c;
    return WEFT_OK;
}

bool wefti_guard_demands(const wefti_guard_t *g)
{
    return g->required || (!g->off && (g->has_keys || tls_has_files(g)));
}

weft_status_t wefti_guard_check(wefti_guard_t *g)
{
    if (g->has_keys && !tls_has_files(g))
        return WEFT_OK;
    weft_status_t st = wefti_guard_ready(g);
    return st == WEFT_ERR_UNSUPPORTED ? WEFT_OK : st;
}

void wefti_tls_version(char *buf, size_t cap)
{
    snprintf(buf, cap, "%s", wefti_ssl_load() ? weft_last_error() : wefti_ssl.OpenSSL_version(OPENSSL_VERSION));
}

weft_status_t wefti_guard_ready(wefti_guard_t *g)
{
    if (atomic_load(&g->ready))
        return WEFT_OK;
    if (!tls_has_files(g) && !g->has_keys)
        return wefti_fail(WEFT_ERR_INVALID,
                          "%s needs something to prove who we are: a key (WEFT_KEY_FILE; weft key new makes "
                          "one), or certificates (WEFT_TLS_CERT, WEFT_TLS_KEY, WEFT_TLS_CA)",
                          g->required ? "TLS, which WEFT_TLS=required asks for," : "tls://");
    weft_status_t st = wefti_ssl_load();
    if (st)
        return st;
    SSL_CTX *wires;
    wefti_tls_seen(g);
    st = wefti_tls_read(g, &wires);
    if (st)
        return st;
    g->wires = wires;
    atomic_store(&g->ready, true);
    wefti_tls_watch(g);
    return WEFT_OK;
}

weft_status_t wefti_guard_ready_for_lanes(wefti_guard_t *g)
{
    if (g->lanes)
        return WEFT_OK;
    weft_status_t st = wefti_ssl_load();
    if (st)
        return st;
    g->lanes = context(SUITES_OF_KEYS, 0); /* stream.c says who has buffers */
    if (!g->lanes)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for TLS");
    wefti_ssl.SSL_CTX_set_default_read_buffer_len(g->lanes, READ_BYTES);
    return WEFT_OK;
}
