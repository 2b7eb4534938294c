/* tools/key/x509.c - makes an authority and certificates of it, with OpenSSL's libcrypto: the only file that calls it.
 *
 * It is loaded when it is needed: the command does not link it. Keys are of the curve P-256. The certificate of an authority can
 * sign certificates and nothing else; the others are for both ends of connections and sign nothing.
 * tests/tools/tools_key_cluster.py checks them with the program `openssl`. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "key.h"

bool key_is_host(const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    size_t n = strlen(host);
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return true;
    const char *last = strrchr(host, '.');
    bool digits = strspn(last ? last + 1 : host, "0123456789") == strlen(last ? last + 1 : host);
    if (last && digits) /* 999.1.1.1, 10.0.1: it looks like an address and is none, and no name of a host ends so */
        return false;
    bool good = n && n <= 253 && isalnum((unsigned char)host[0]) && isalnum((unsigned char)host[n - 1]);
    for (size_t i = 0; i < n; i++)
        good = good && (isalnum((unsigned char)host[i]) || strchr("-._", host[i])) && strncmp(host + i, "..", 2) != 0;
    return good;
}

void key_pem_free(key_pem_t *pem)
{
    if (pem->key)
        explicit_bzero(pem->key, strlen(pem->key));
    free(pem->key);
    free(pem->cert);
    *pem = (key_pem_t){0};
}

#ifndef WEFT_OPENSSL

bool key_x509_ready(void)
{
    tool_error("this weft was built without OpenSSL; install its headers (Debian: libssl-dev) and build it again");
    return false;
}

/* What follows is for those for whom key_x509_ready() was true. */
key_ca_t *key_ca_new(key_pem_t *pem_out)
{
    (void)pem_out;
    return NULL;
}

key_ca_t *key_ca_read(const char *cert, const char *cert_path, const char *key, const char *key_path, key_pem_t *pem_out)
{
    (void)cert, (void)cert_path, (void)key, (void)key_path, (void)pem_out;
    return NULL;
}

void key_ca_free(key_ca_t *ca)
{
    (void)ca;
}

bool key_cert_new(key_ca_t *ca, const char *name, const char *const *hosts, size_t n_hosts, unsigned days, key_pem_t *pem_out)
{
    (void)ca, (void)name, (void)hosts, (void)n_hosts, (void)days, (void)pem_out;
    return false;
}

#else

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#define LIBRARY "libcrypto.so.3"
#define SERIAL_SIZE 16
#define EARLIER (-3600L) /* seconds: clocks of machines differ */

#define CALLS(X) \
    X(ASN1_STRING_set) \
    X(ASN1_TIME_compare) \
    X(ASN1_TIME_to_tm) \
    X(BIO_ctrl) \
    X(BIO_free) \
    X(BIO_new) \
    X(BIO_new_mem_buf) \
    X(BIO_s_mem) \
    X(ERR_clear_error) \
    X(ERR_peek_error) \
    X(ERR_reason_error_string) \
    X(EVP_PKEY_Q_keygen) \
    X(EVP_PKEY_free) \
    X(EVP_sha256) \
    X(PEM_read_bio_PrivateKey) \
    X(PEM_read_bio_X509) \
    X(PEM_write_bio_PrivateKey) \
    X(PEM_write_bio_X509) \
    X(X509V3_EXT_conf_nid) \
    X(X509V3_set_ctx) \
    X(X509_EXTENSION_free) \
    X(X509_NAME_add_entry_by_txt) \
    X(X509_add_ext) \
    X(X509_check_ca) \
    X(X509_check_private_key) \
    X(X509_cmp_current_time) \
    X(X509_free) \
    X(X509_get0_notAfter) \
    X(X509_get_serialNumber) \
    X(X509_get_subject_name) \
    X(X509_getm_notAfter) \
    X(X509_getm_notBefore) \
    X(X509_gmtime_adj) \
    X(X509_new) \
    X(X509_set1_notAfter) \
    X(X509_set_issuer_name) \
    X(X509_set_pubkey) \
    X(X509_set_version) \
    X(X509_sign) \
    X(X509_time_adj_ex)

static struct {
#define MEMBER(name) __typeof__(&name) name;
    CALLS(MEMBER)
#undef MEMBER
} ssl;

struct key_ca {
    X509 *cert;
    EVP_PKEY *key;
};

bool key_x509_ready(void)
{
    static const struct {
        const char *name;
        void *at;
    } calls[] = {
#define CALL(name) {#name, &ssl.name},
        CALLS(CALL)
#undef CALL
    };
    void *so = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        tool_error("certificates need OpenSSL 3 (" LIBRARY "), which does not load: %s (Debian: apt install libssl3)", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(so, calls[i].name);
        if (!found) {
            tool_error("the " LIBRARY " of this machine has no %s: OpenSSL 3.0 or later is needed", calls[i].name);
            return false;
        }
        memcpy(calls[i].at, &found, sizeof found);
    }
    /* cppcheck-suppress resourceLeak ; it stays loaded */
    return true;
}

static const char *why(void)
{
    const char *reason = ssl.ERR_reason_error_string(ssl.ERR_peek_error());
    return reason ? reason : "OpenSSL gives no reason";
}

/* --- parts of a certificate ---------------------------------------------------------------------------------------- */

static bool say_until(const X509 *cert, key_pem_t *pem)
{
    struct tm tm;
    return ssl.ASN1_TIME_to_tm(ssl.X509_get0_notAfter(cert), &tm) == 1 &&
           strftime(pem->until, sizeof pem->until, "%Y-%m-%d", &tm) > 0;
}

/* Random, positive, and without zeros in front. */
static bool set_serial(X509 *cert)
{
    unsigned char bytes[SERIAL_SIZE];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40);
    return ssl.ASN1_STRING_set(ssl.X509_get_serialNumber(cert), bytes, sizeof bytes) == 1;
}

static bool add(X509 *cert, X509 *issuer, int what, const char *value)
{
    X509V3_CTX c = {0};
    ssl.X509V3_set_ctx(&c, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = ssl.X509V3_EXT_conf_nid(NULL, &c, what, value);
    bool good = e && ssl.X509_add_ext(cert, e, -1) == 1;
    if (e)
        ssl.X509_EXTENSION_free(e);
    return good;
}

/* "DNS:server,IP:10.0.0.1"; the texts are those that key_is_host() allows. NULL: no memory. */
static char *names_text(const char *name, const char *const *hosts, size_t n_hosts)
{
    size_t cap = strlen(name) + sizeof "DNS:", n = 0;
    unsigned char address[sizeof(struct in6_addr)];
    for (size_t i = 0; i < n_hosts; i++)
        cap += strlen(hosts[i]) + sizeof ",DNS:";
    char *text = malloc(cap);
    if (!text)
        return NULL;
    n = (size_t)snprintf(text, cap, "DNS:%s", name);
    for (size_t i = 0; i < n_hosts; i++) {
        bool ip = inet_pton(AF_INET, hosts[i], address) == 1 || inet_pton(AF_INET6, hosts[i], address) == 1;
        n += (size_t)snprintf(text + n, cap - n, ",%s:%s", ip ? "IP" : "DNS", hosts[i]);
    }
    return text;
}

/* What all certificates have, and the key that is theirs. */
static bool begin(X509 *cert, EVP_PKEY *key, const char *name, unsigned days)
{
    return ssl.X509_set_version(cert, X509_VERSION_3) == 1 && set_serial(cert) &&
           ssl.X509_gmtime_adj(ssl.X509_getm_notBefore(cert), EARLIER) &&
           ssl.X509_time_adj_ex(ssl.X509_getm_notAfter(cert), (int)days, 0, NULL) && ssl.X509_set_pubkey(cert, key) == 1 &&
           ssl.X509_NAME_add_entry_by_txt(ssl.X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name, -1,
                                          -1, 0) == 1;
}

/* A copy of what is in there, with a zero behind it; and the BIO is gone. */
static char *text_of(BIO *bio)
{
    char *data = NULL, *text = NULL;
    long n = bio ? ssl.BIO_ctrl(bio, BIO_CTRL_INFO, 0, &data) : 0;
    if (n > 0 && data && (text = malloc((size_t)n + 1))) {
        memcpy(text, data, (size_t)n);
        text[n] = '\0';
    }
    if (bio)
        ssl.BIO_free(bio);
    return text;
}

static bool take_texts(X509 *cert, EVP_PKEY *key, key_pem_t *pem)
{
    BIO *a = ssl.BIO_new(ssl.BIO_s_mem()), *b = ssl.BIO_new(ssl.BIO_s_mem());
    bool good = a && b && ssl.PEM_write_bio_X509(a, cert) == 1 &&
                ssl.PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL) == 1 && say_until(cert, pem);
    pem->cert = text_of(a);
    pem->key = text_of(b);
    if (good && pem->cert && pem->key)
        return true;
    key_pem_free(pem);
    return false;
}

/* --- authorities ------------------------------------------------------------------------------------------------------ */

void key_ca_free(key_ca_t *ca)
{
    if (!ca)
        return;
    if (ca->cert)
        ssl.X509_free(ca->cert);
    if (ca->key)
        ssl.EVP_PKEY_free(ca->key);
    free(ca);
}

/* So that two authorities are not taken for one another. */
static bool ca_name(char *name, size_t cap)
{
    unsigned number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return false;
    snprintf(name, cap, "weft cluster %08x", number);
    return true;
}

static bool sign_ca(key_ca_t *ca, const char *name)
{
    X509 *c = ca->cert;
    return begin(c, ca->key, name, KEY_CA_DAYS) && ssl.X509_set_issuer_name(c, ssl.X509_get_subject_name(c)) == 1 &&
           add(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add(c, c, NID_key_usage, "critical,keyCertSign,cRLSign") && add(c, c, NID_subject_key_identifier, "hash") &&
           add(c, c, NID_authority_key_identifier, "keyid") && ssl.X509_sign(c, ca->key, ssl.EVP_sha256()) > 0;
}

key_ca_t *key_ca_new(key_pem_t *pem_out)
{
    char name[64];
    ssl.ERR_clear_error();
    key_ca_t *ca = calloc(1, sizeof *ca);
    if (ca) {
        ca->cert = ssl.X509_new();
        ca->key = ssl.EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    }
    if (ca && ca->cert && ca->key && ca_name(name, sizeof name) && sign_ca(ca, name) && take_texts(ca->cert, ca->key, pem_out))
        return ca;
    tool_error("the authority cannot be made: %s", why());
    key_ca_free(ca);
    return NULL;
}

/* Nobody is asked for a password. */
static int no_password(char *buf, int size, int writing, void *user)
{
    (void)buf, (void)size, (void)writing, (void)user;
    return -1;
}

static bool check_ca(const key_ca_t *ca, const char *cert_path, const char *key_path)
{
    if (!ca->cert)
        tool_error("%s is no certificate: %s", cert_path, why());
    else if (!ca->key)
        tool_error("%s is no private key without a password: %s", key_path, why());
    else if (ssl.X509_check_private_key(ca->cert, ca->key) != 1)
        tool_error("the private key in %s is not that of the certificate in %s", key_path, cert_path);
    else if (ssl.X509_check_ca(ca->cert) != 1)
        tool_error("the certificate in %s is not that of an authority", cert_path);
    else if (ssl.X509_cmp_current_time(ssl.X509_get0_notAfter(ca->cert)) <= 0)
        tool_error("the authority in %s has expired: make a new one in another directory", cert_path);
    else
        return true;
    return false;
}

key_ca_t *key_ca_read(const char *cert, const char *cert_path, const char *key, const char *key_path, key_pem_t *pem_out)
{
    ssl.ERR_clear_error();
    key_ca_t *ca = calloc(1, sizeof *ca);
    BIO *a = ssl.BIO_new_mem_buf(cert, -1), *b = ssl.BIO_new_mem_buf(key, -1);
    bool good = ca && a && b;
    if (good) {
        ca->cert = ssl.PEM_read_bio_X509(a, NULL, no_password, NULL);
        ca->key = ca->cert ? ssl.PEM_read_bio_PrivateKey(b, NULL, no_password, NULL) : NULL;
        good = check_ca(ca, cert_path, key_path) && say_until(ca->cert, pem_out);
    } else {
        tool_error("out of memory");
    }
    if (a)
        ssl.BIO_free(a);
    if (b)
        ssl.BIO_free(b);
    if (good)
        return ca;
    key_ca_free(ca);
    return NULL;
}

/* --- certificates ------------------------------------------------------------------------------------------------------ */

static bool sign(const key_ca_t *ca, X509 *c, EVP_PKEY *key, const char *name, const char *names, unsigned days)
{
    const ASN1_TIME *last = ssl.X509_get0_notAfter(ca->cert);
    if (!begin(c, key, name, days) || ssl.X509_set_issuer_name(c, ssl.X509_get_subject_name(ca->cert)) != 1)
        return false;
    if (ssl.ASN1_TIME_compare(ssl.X509_get0_notAfter(c), last) > 0 && ssl.X509_set1_notAfter(c, last) != 1)
        return false;
    return add(c, ca->cert, NID_basic_constraints, "critical,CA:FALSE") &&
           add(c, ca->cert, NID_key_usage, "critical,digitalSignature") &&
           add(c, ca->cert, NID_ext_key_usage, "serverAuth,clientAuth") && add(c, ca->cert, NID_subject_alt_name, names) &&
           add(c, ca->cert, NID_subject_key_identifier, "hash") && add(c, ca->cert, NID_authority_key_identifier, "keyid") &&
           ssl.X509_sign(c, ca->key, ssl.EVP_sha256()) > 0;
}

bool key_cert_new(key_ca_t *ca, const char *name, const char *const *hosts, size_t n_hosts, unsigned days, key_pem_t *pem_out)
{
    ssl.ERR_clear_error();
    char *names = names_text(name, hosts, n_hosts);
    X509 *cert = ssl.X509_new();
    EVP_PKEY *key = ssl.EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    bool good = names && cert && key && sign(ca, cert, key, name, names, days) && take_texts(cert, key, pem_out);
    if (!good)
        tool_error("the certificate for %s cannot be made: %s", name, why());
    if (key)
        ssl.EVP_PKEY_free(key);
    if (cert)
        ssl.X509_free(cert);
    free(names);
    return good;
}

#endif
