/* fabric/tls/guard.c - what a runtime proves with, and whom it believes.
 *
 * Two contexts of OpenSSL's: one for wires, with the certificate and the authorities or with the pre-shared key, and one for the
 * connections of lanes, whose keys are made of the wire's secret. Both are made by the first that needs them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/tls/internal.h"

#define SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define SUITES_OF_KEYS "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256" /* a key is for one hash */
#define READ_BYTES (65u << 10)                                               /* of one recv(): four whole records */
#define FILE_MOST (INT64_C(64) << 20)                                        /* lists of revoked certificates are the largest */

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
    if (g->wires || g->lanes)
        tls_left_nothing();
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

/* OpenSSL's own list has groups of primes as well, of up to 8,192 bits: a stranger who chooses that one has us compute for 97 ms.
 * A version that does not know all of a list takes none of it. */
static bool set_groups(SSL_CTX *c)
{
    static const char *const lists[] = {"*X25519MLKEM768:*X25519:P-256:P-384", "X25519:P-256:P-384", "P-256:P-384"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_SET_GROUPS_LIST, 0, (void *)(uintptr_t)lists[i]) == 1)
            return true;
    return false;
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
    if (wefti_ssl.SSL_CTX_set_ciphersuites(c, suites) && set_groups(c))
        return c;
    wefti_ssl.SSL_CTX_free(c);
    return NULL;
}

static weft_status_t unreadable(const char *what, const char *variable, const char *file)
{
    return wefti_fail(WEFT_ERR_INVALID, "the %s in \"%s\" (%s) cannot be used: %s", what, file, variable, strerror(errno));
}

static weft_status_t bad_file(const char *what, const char *variable, const char *file)
{
    return wefti_fail(WEFT_ERR_INVALID, "the %s in \"%s\" (%s) cannot be used: %s", what, file, variable, wefti_ssl_why());
}

/* OpenSSL: which password? It would ask at the terminal itself, on the thread that drives all connections. */
static int no_password(char *buf, int size, int writing, void *asked)
{
    (void)buf, (void)size, (void)writing;
    if (asked)
        *(bool *)asked = true;
    return -1;
}

/* OpenSSL would wait at a fifo for somebody to write, and read a device without end. Of a file that it cannot open it does not
 * always say why. */
static weft_status_t check_file(const char *what, const char *variable, const char *file)
{
    struct stat info;
    if (!file)
        return WEFT_OK;
    if (stat(file, &info))
        return unreadable(what, variable, file);
    if (!S_ISREG(info.st_mode))
        return wefti_fail(WEFT_ERR_INVALID, "\"%s\" (%s) is not a regular file", file, variable);
    if (info.st_size > FILE_MOST)
        return wefti_fail(WEFT_ERR_INVALID, "\"%s\" (%s) has %lld bytes, more than 64 MiB", file, variable,
                          (long long)info.st_size);
    int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return unreadable(what, variable, file);
    close(fd);
    return WEFT_OK;
}

static weft_status_t check_files(const wefti_guard_t *g)
{
    static const char *const variables[TLS_FILES] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA", "WEFT_TLS_CRL"};
    static const char *const what[TLS_FILES] = {"certificate", "private key", "authorities", "list of revoked certificates"};
    weft_status_t st = WEFT_OK;
    for (int i = 0; i < TLS_FILES && !st; i++)
        st = check_file(what[i], variables[i], g->file[i]);
    return st;
}

/* As for a key file: what others can read is no secret. */
static weft_status_t check_private(const char *key)
{
    struct stat info;
    if (stat(key, &info) || !(info.st_mode & S_IRWXO))
        return WEFT_OK;
    return wefti_fail(WEFT_ERR_INVALID,
                      "the private key \"%s\" (WEFT_TLS_KEY) has mode %03o; others must not have access to it (chmod 600)", key,
                      (unsigned)info.st_mode & 0777);
}

static bool is_whole(X509 *cert)
{
    return wefti_ssl.X509_check_purpose(cert, -1, 0) == 1 && wefti_ssl.X509_get0_pubkey(cert);
}

/* OpenSSL looks into a certificate once; if there was no memory then it takes it for a bad one, or one without a key, ever after.
 * So all authorities are asked now, and a copy of one that is bad. If that is as bad, it is nobody's authority, and no reason to
 * refuse the rest. */
static weft_status_t look_into(X509_STORE *store)
{
    const OPENSSL_STACK *all = (const OPENSSL_STACK *)wefti_ssl.X509_STORE_get0_objects(store);
    for (int i = 0; i < wefti_ssl.OPENSSL_sk_num(all); i++) {
        X509 *cert = wefti_ssl.X509_OBJECT_get0_X509(wefti_ssl.OPENSSL_sk_value(all, i));
        if (!cert || is_whole(cert))
            continue;
        X509 *copied = wefti_ssl.X509_dup(cert);
        bool no_memory = !copied || is_whole(copied);
        wefti_ssl.X509_free(copied); /* NULL is allowed */
        if (no_memory)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory for the authorities");
    }
    return WEFT_OK;
}

static weft_status_t certificates(const wefti_guard_t *g, SSL_CTX *c)
{
    const char *cert = g->file[TLS_CERT], *key = g->file[TLS_KEY], *ca = g->file[TLS_CA], *crl = g->file[TLS_CRL];
    if (!cert || !key || !ca)
        return wefti_fail(WEFT_ERR_INVALID,
                          "certificates need three files: WEFT_TLS_CERT has %s, WEFT_TLS_KEY has %s, WEFT_TLS_CA has %s",
                          cert ? "one" : "none", key ? "one" : "none", ca ? "one" : "none");
    weft_status_t st = check_files(g);
    if (st)
        return st;
    wefti_ssl.ERR_clear_error();
    wefti_ssl.SSL_CTX_set_default_passwd_cb(c, no_password);
    if (wefti_ssl.SSL_CTX_use_certificate_chain_file(c, cert) != 1)
        return bad_file("certificate", "WEFT_TLS_CERT", cert);
    st = check_private(key);
    if (st)
        return st;
    bool encrypted = false;
    wefti_ssl.SSL_CTX_set_default_passwd_cb_userdata(c, &encrypted);
    int loaded = wefti_ssl.SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM);
    wefti_ssl.SSL_CTX_set_default_passwd_cb_userdata(c, NULL);
    if (loaded != 1 && encrypted)
        return wefti_fail(
            WEFT_ERR_INVALID,
            "the private key in \"%s\" (WEFT_TLS_KEY) is encrypted; Weft asks nobody for a password, so write it to a "
            "file that only its owner can read: (umask 077; openssl pkey -in \"%s\" -out NEW.key)",
            key, key);
    if (loaded != 1)
        return bad_file("private key", "WEFT_TLS_KEY", key);
    if (wefti_ssl.SSL_CTX_check_private_key(c) != 1)
        return wefti_fail(WEFT_ERR_INVALID, "the private key in \"%s\" is not that of the certificate in \"%s\"", key, cert);
    wefti_tls_resumable(c);
    if (wefti_ssl.SSL_CTX_load_verify_locations(c, ca, NULL) != 1)
        return bad_file("authorities", "WEFT_TLS_CA", ca);
    X509_STORE *store = wefti_ssl.SSL_CTX_get_cert_store(c);
    st = look_into(store);
    if (st || !crl)
        return st;
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
    if (st)
        wefti_ssl.SSL_CTX_free(c); /* NULL is allowed */
    else
        *out = c;
    tls_left_nothing();
    return st;
}

bool wefti_guard_demands(const wefti_guard_t *g)
{
    return g->required || (!g->off && (g->has_keys || tls_has_files(g)));
}

bool wefti_guard_demands_here(const wefti_guard_t *g)
{
    return !g->off && !g->has_keys && tls_has_files(g);
}

weft_status_t wefti_guard_check(wefti_guard_t *g)
{
    if (g->has_keys && !tls_has_files(g))
        return WEFT_OK;
    weft_status_t st = wefti_guard_ready(g);
    return st == WEFT_ERR_UNSUPPORTED && !wefti_guard_demands_here(g) ? WEFT_OK : st;
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
    bool first = false;
    pthread_mutex_lock(&g->lock); /* two shards of one listener may come here at once */
    if (!atomic_load(&g->ready)) {
        wefti_tls_seen(g);
        st = wefti_tls_read(g, &g->wires);
        first = !st;
        atomic_store(&g->ready, first);
    }
    pthread_mutex_unlock(&g->lock);
    if (first)
        wefti_tls_watch(g);
    return st;
}

weft_status_t wefti_guard_ready_for_lanes(wefti_guard_t *g)
{
    if (g->lanes)
        return WEFT_OK;
    weft_status_t st = wefti_ssl_load();
    if (st)
        return st;
    g->lanes = context(SUITES_OF_KEYS, 0); /* stream.c says who has buffers */
    tls_left_nothing();
    if (!g->lanes)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for TLS");
    wefti_ssl.SSL_CTX_set_default_read_buffer_len(g->lanes, READ_BYTES);
    return WEFT_OK;
}
