/* tests/lib/certs.c - see certs.h. */
#include "certs.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SURE(cond) \
    do { \
        if (!(cond)) { \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #cond); \
            exit(1); \
        } \
    } while (0)

static char folder[32];
static pid_t made_by;

static void clean(void)
{
    char text[64];
    if (getpid() != made_by)
        return;
    snprintf(text, sizeof text, "rm -rf %s", folder);
    if (system(text))
        fprintf(stderr, "%s is left\n", folder);
}

const char *certs_folder(void)
{
    if (!folder[0]) {
        strcpy(folder, "/tmp/weft-certs-XXXXXX");
        SURE(mkdtemp(folder));
        made_by = getpid();
        atexit(clean);
    }
    return folder;
}

const char *certs_file(const char *name, const char *end)
{
    static char texts[8][128];
    static unsigned n;
    char *text = texts[n++ % 8];
    snprintf(text, sizeof *texts, "%s/%s.%s", certs_folder(), name, end);
    return text;
}

static EVP_PKEY *read_key(const char *name)
{
    FILE *f = fopen(certs_file(name, "key"), "r");
    SURE(f);
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    SURE(key);
    fclose(f);
    return key;
}

static X509 *read_cert(const char *name)
{
    FILE *f = fopen(certs_file(name, "crt"), "r");
    SURE(f);
    X509 *cert = PEM_read_X509(f, NULL, NULL, NULL);
    SURE(cert);
    fclose(f);
    return cert;
}

static void extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    SURE(e && X509_add_ext(cert, e, -1));
    X509_EXTENSION_free(e);
}

static void name_it(X509 *cert, X509 *issuer, const cert_t *c)
{
    size_t cap = 64 + (c->san ? strlen(c->san) : 0) + 32 * (size_t)c->names, n = 0;
    char *text = malloc(cap);
    SURE(text);
    n = (size_t)snprintf(text, cap, "%s", c->san ? c->san : "");
    for (unsigned i = 0; i < c->names; i++)
        n += (size_t)snprintf(text + n, cap - n, "%sDNS:n%u.example", n ? "," : "", i);
    if (n)
        extend(cert, issuer, NID_subject_alt_name, text);
    free(text);
    if (!c->nul)
        return;
    int at;
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    SURE(names);
    ASN1_IA5STRING *first = sk_GENERAL_NAME_value(names, 0)->d.ia5;
    char *bytes = malloc((size_t)ASN1_STRING_length(first));
    SURE(bytes && c->nul < (unsigned)ASN1_STRING_length(first));
    memcpy(bytes, ASN1_STRING_get0_data(first), (size_t)ASN1_STRING_length(first));
    bytes[c->nul] = 0;
    SURE(ASN1_STRING_set(first, bytes, ASN1_STRING_length(first)));
    at = X509_get_ext_by_NID(cert, NID_subject_alt_name, -1);
    X509_EXTENSION_free(X509_delete_ext(cert, at));
    SURE(X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, 0) == 1);
    GENERAL_NAMES_free(names);
    free(bytes);
}

void certs_make(const cert_t *c)
{
    EVP_PKEY *key = c->rsa ? EVP_RSA_gen((unsigned)c->rsa) : EVP_EC_gen("P-256");
    X509 *cert = X509_new(), *issuer = c->by ? read_cert(c->by) : cert;
    EVP_PKEY *signs = c->by ? read_key(c->by) : key;
    bool dated = c->from || c->to;
    uint64_t serial;
    SURE(key && cert && RAND_bytes((void *)&serial, sizeof serial) == 1);
    SURE(X509_set_version(cert, 2) && ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), serial >> 1));
    SURE(X509_time_adj_ex(X509_getm_notBefore(cert), dated ? c->from : -1, 0, NULL));
    SURE(X509_time_adj_ex(X509_getm_notAfter(cert), dated ? c->to : c->seconds ? 0 : 2, c->seconds, NULL));
    SURE(X509_set_pubkey(cert, key));
    const unsigned char *cn = (const unsigned char *)(c->common ? c->common : c->name);
    SURE(X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8, cn, -1, -1, 0));
    SURE(X509_set_issuer_name(cert, X509_get_subject_name(issuer)));
    if (c->ca)
        extend(cert, issuer, NID_basic_constraints, "critical,CA:TRUE");
    extend(cert, issuer, NID_subject_key_identifier, "hash");
    name_it(cert, issuer, c);
    if (c->usage)
        extend(cert, issuer, NID_ext_key_usage, c->usage);
    SURE(X509_sign(cert, signs, c->sha1 ? EVP_sha1() : EVP_sha256()));

    FILE *f = fopen(certs_file(c->name, "crt"), "w");
    SURE(f && PEM_write_X509(f, cert));
    if (c->chain) {
        X509 *next = read_cert(c->chain);
        SURE(PEM_write_X509(f, next));
        X509_free(next);
    }
    fclose(f);
    f = fopen(certs_file(c->name, "key"), "w");
    SURE(f && !fchmod(fileno(f), 0600) && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL));
    fclose(f);
    if (c->by) {
        X509_free(issuer);
        EVP_PKEY_free(signs);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
}

void certs_usual(void)
{
    certs_make(&(cert_t){.name = "ca", .ca = true});
    certs_make(&(cert_t){.name = "node", .by = "ca", .san = "DNS:node.example,DNS:localhost,IP:127.0.0.1,IP:::1"});
}

void certs_use(const char *name, const char *ca)
{
    if (name) {
        setenv("WEFT_TLS_CERT", certs_file(name, "crt"), 1);
        setenv("WEFT_TLS_KEY", certs_file(name, "key"), 1);
    } else {
        unsetenv("WEFT_TLS_CERT");
        unsetenv("WEFT_TLS_KEY");
    }
    if (ca)
        setenv("WEFT_TLS_CA", certs_file(ca, "crt"), 1);
    else
        unsetenv("WEFT_TLS_CA");
}
