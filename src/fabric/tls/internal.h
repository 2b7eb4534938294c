/* fabric/tls/internal.h - what the files of tls share.
 *
 *   openssl.c  the library, loaded
 *   guard.c    what a runtime has: certificates, keys
 *   renew.c    files that change, and peers that are not believed any more
 *   keys.c     keys in the handshake
 *   peer.c     the certificate of a peer: whom it names, and whether it is believed
 *   resume.c   those who have met before
 *   bio.c      what OpenSSL reads and writes
 *   stream.c   one end of one connection */
#ifndef WEFTI_TLS_INTERNAL_H
#define WEFTI_TLS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/changed.h"
#include "base/list.h"
#include "fabric/tls/openssl.h"
#include "fabric/tls.h"

#define TLS_SECURITY_LEVEL 2 /* whatever the machine's openssl.cnf says: no RSA of 1024 bits, no SHA-1 */
#define TLS_CONTEXT "weft" /* to OpenSSL a key is a session, and a session belongs to something */

#define TLS_NAME 256                /* of an identity, with the zero at the end */
#define TLS_OUT_BYTES (160u << 10) /* gathered for one send(), of a lane's stream */
#define TLS_LOOK_BYTES 2048u       /* of the first read of a stream that had nothing the last time */

/* How a dialler's wire names its key: a random number, and the hint of the key for it (base/keys.h). */
enum { TLS_WIRE_FRESH = 16, TLS_WIRE_ID = TLS_WIRE_FRESH + WEFTI_KEY_HINT_SIZE };

enum { TLS_CERT, TLS_KEY, TLS_CA, TLS_CRL, TLS_FILES };

struct wefti_guard {
    _Atomic uint32_t shares;
    char *file[TLS_FILES]; /* their names; NULL: none */
    bool off, required;    /* WEFT_TLS; neither: auto */
    SSL_CTX *lanes;        /* NULL: not ready for them */
    uint8_t *spare;        /* a buffer for encrypted bytes that no stream has now */
    struct tls_stream *hot; /* the lane's stream that was used last: it has OpenSSL's buffers; NULL: none has */
    pthread_mutex_t lock;  /* of what follows */
    wefti_keys_t *keys;    /* a copy of the runtime's; NULL: it has none */
    wefti_guard_t *keys_of; /* another has them; NULL: this one has */
    bool has_keys;         /* is never another */
    _Atomic bool ready;
    SSL_CTX *wires;        /* once it is ready */
    /* renew.c */
    wefti_list_t all;      /* of all guards that have files */
    wefti_changed_t seen[TLS_FILES];
    uint64_t looked;       /* when, in ns */
    bool bad, warned;      /* what is there now cannot be used; and that was said */
    /* resume.c */
    wefti_list_t met;      /* with whom, the latest first */
    unsigned n_met;
};

/* What a peer showed; without a certificate it has proved a key. */
typedef struct tls_peer {
    X509 *cert;
    STACK_OF(X509) *chain; /* what it sent along */
} tls_peer_t;

typedef struct tls_stream {
    wefti_stream_t base;
    wefti_guard_t *guard;
    SSL *ssl;
    int fd; /* during a call */
    int side;
    bool by_key;   /* it must be a key that proves who they are */
    bool wire;     /* heartbeats come from another thread: it shares nothing with other streams */
    bool dry;      /* the socket had no more, in this call */
    bool eof;      /* nor will it have */
    bool more;     /* OpenSSL has more than the last receive took */
    bool idle;     /* the last receive found nothing, and OpenSSL has nothing */
    const uint8_t *looked; /* what came after that, for OpenSSL's next read; in this call */
    size_t looked_n;
    int error;     /* it is over, and why; 0: it is not */
    uint8_t *out;  /* encrypted, out_at to base.waits behind it; NULL: nothing waits */
    size_t out_at, out_cap;
    uint64_t records; /* since the keys were new */
    uint8_t secret[WEFTI_SECRET_SIZE]; /* the key of this stream, once it is known */
    bool has_secret;                   /* wires: it is */
    uint8_t wire_id[TLS_WIRE_ID];      /* wires: how the dialler says which key that is */
    /* lanes */
    uint64_t id;
    wefti_stream_find_fn find;
    void *user;
    tls_peer_t peer;
    char name[TLS_NAME]; /* the peer's */
    bool resumed;   /* they had met before */
    char *whom;     /* wires that dial: "host:port", for the next time; NULL: nothing is kept */
} tls_stream_t;

static inline tls_stream_t *tls_stream_of(const SSL *ssl) { return wefti_ssl.SSL_get_ex_data(ssl, 0); }

/* What OpenSSL says of a failure is on a list of this thread's, which is the program's own OpenSSL's as well: with an entry of
 * ours there, an SSL_get_error() of the program's would speak of an error that it never had. So nothing is left there. */
static inline void tls_left_nothing(void) { wefti_ssl.ERR_clear_error(); }

/* guard.c */
/* A context for wires, of what the files have now. WEFT_ERR_INVALID, _NOMEM, with a sentence. */
weft_status_t wefti_tls_read(const wefti_guard_t *g, SSL_CTX **out);
/* The context for a new wire: to be freed. */
SSL_CTX *wefti_tls_wires(wefti_guard_t *g);
static inline bool tls_has_files(const wefti_guard_t *g)
{
    return g->file[TLS_CERT] || g->file[TLS_KEY] || g->file[TLS_CA] || g->file[TLS_CRL];
}

/* bio.c */
BIO *wefti_tls_bio(tls_stream_t *s); /* NULL: no memory */
/* For a stream that is idle: is there anything? `bytes` is for what comes, until it has been read in this call. */
bool wefti_tls_ask(tls_stream_t *s, int fd, uint8_t bytes[TLS_LOOK_BYTES]);

/* renew.c */
void wefti_tls_seen(wefti_guard_t *g); /* its files are about to be read for the first time */
void wefti_tls_watch(wefti_guard_t *g); /* they could be used: look at them from now on */
void wefti_tls_unwatch(wefti_guard_t *g);
void wefti_tls_look(wefti_guard_t *g); /* a wire is about to be made: has a file changed? */

/* keys.c: what OpenSSL calls for a key. */
int wefti_tls_key_used(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n, SSL_SESSION **session);
int wefti_tls_key_found(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **session);

/* peer.c */
/* A share of what the peer showed, to be freed. False: no memory. */
bool wefti_tls_peer(const SSL *ssl, tls_peer_t *out);
void wefti_tls_peer_free(tls_peer_t *p);
/* Keeps what the peer showed, and its name in s->name; "" where it has none. False: no memory, or its names cannot be read. */
bool wefti_tls_remember_peer(tls_stream_t *s);
/* Is what it showed believed by this context? `side` is ours. `anew`: judged as in the handshake of this connection, by its host
 * and by the time; NULL: neither counts any more. WEFT_ERR_AUTH, _NOMEM, with a sentence. */
weft_status_t wefti_tls_believe(const tls_peer_t *p, SSL_CTX *by, int side, SSL *anew);

/* resume.c */
void wefti_tls_resumable(SSL_CTX *c);  /* a context for wires with certificates: who meets by it may meet faster next time */
void wefti_tls_resume(tls_stream_t *s, const char *host, uint16_t port); /* a wire is about to dial: have they met before? */
void wefti_tls_forget(wefti_guard_t *g); /* everybody; under its lock, where it has one by now */

#endif
