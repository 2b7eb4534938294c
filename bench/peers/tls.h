/* bench/peers/tls.h - what the programs on plain OpenSSL share: a context with a certificate and the authority that is believed,
 * TLS 1.3 with the cipher that Weft has, and the two ends of a TCP connection over loopback.
 *
 * The files are what `weft key cluster DIR bench=127.0.0.1` makes. Both sides show the same one, and check the other's. */
#ifndef WEFT_BENCH_TLS_H
#define WEFT_BENCH_TLS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "peer.h"

#define TLS_SUITE "TLS_AES_128_GCM_SHA256"
#define TLS_NAME "bench" /* of the certificate's files */

static inline void tls_must(const peer_t *p, bool good, const char *what)
{
    if (good)
        return;
    const unsigned long e = ERR_peek_error();
    peer_die(p, what, e ? ERR_error_string(e, NULL) : strerror(errno));
}

/* Mutual TLS 1.3, for one side. */
static inline SSL_CTX *tls_context(const peer_t *p, bool server)
{
    char cert[4200], key[4200], ca[4200];
    SSL_CTX *c = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    tls_must(p, c != NULL, "a context");
    snprintf(cert, sizeof cert, "%s/" TLS_NAME ".crt", p->certs);
    snprintf(key, sizeof key, "%s/" TLS_NAME ".key", p->certs);
    snprintf(ca, sizeof ca, "%s/ca.crt", p->certs);
    tls_must(p, SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1, "TLS 1.3");
    tls_must(p, SSL_CTX_set_ciphersuites(c, TLS_SUITE) == 1, TLS_SUITE);
    tls_must(p, SSL_CTX_use_certificate_chain_file(c, cert) == 1, cert);
    tls_must(p, SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) == 1, key);
    tls_must(p, SSL_CTX_load_verify_locations(c, ca, NULL) == 1, ca);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return c;
}

/* One end of a connection. */
static inline SSL *tls_end(const peer_t *p, SSL_CTX *c, int fd, bool server)
{
    SSL *s = SSL_new(c);
    tls_must(p, s && SSL_set_fd(s, fd) == 1, "one end of TLS");
    if (server) {
        SSL_set_accept_state(s);
    } else {
        SSL_set_connect_state(s);
        tls_must(p, X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s), "127.0.0.1") == 1, "the host of the certificate");
    }
    return s;
}

/* It says so if bytes have to come or go first, and ends the program if anything else is wrong. */
static inline void tls_waits(const peer_t *p, SSL *s, int rc, const char *what)
{
    const int e = SSL_get_error(s, rc);
    tls_must(p, e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE, what);
}

/* Both show what they have: the cipher, and each other's certificates. */
static inline void tls_check(const peer_t *p, SSL *s)
{
    tls_must(p, !strcmp(SSL_get_cipher_name(s), TLS_SUITE) && SSL_version(s) == TLS1_3_VERSION, "the cipher");
    tls_must(p, SSL_get0_peer_certificate(s) && SSL_get_verify_result(s) == X509_V_OK, "the peer's certificate");
}

/* --- TCP over loopback ----------------------------------------------------------------------------------- */

static inline int tls_listen(const peer_t *p, struct sockaddr_in *at)
{
    socklen_t n = sizeof *at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    tls_must(p, fd >= 0 && !bind(fd, (struct sockaddr *)at, n) && !listen(fd, 64) && !getsockname(fd, (struct sockaddr *)at, &n),
             "listening");
    return fd;
}

/* It takes what there is, and nobody waits in the kernel. */
static inline int tls_socket(const peer_t *p, int fd)
{
    const int on = 1;
    tls_must(p, fd >= 0 && !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "a socket");
    tls_must(p, !fcntl(fd, F_SETFL, O_NONBLOCK), "a socket");
    return fd;
}

static inline int tls_dial(const peer_t *p, const struct sockaddr_in *at)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    tls_must(p, fd >= 0 && !connect(fd, (const struct sockaddr *)at, sizeof *at), "connect");
    return tls_socket(p, fd);
}

#endif
