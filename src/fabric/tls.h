/* fabric/tls.h - TLS 1.3 over a connected socket, by OpenSSL, for fabric/sock, fabric/tcp and fabric/real.c only.
 *
 * OpenSSL is loaded by the first that needs it: a runtime that speaks to nobody over TLS has none of it in its process.
 *
 *   a guard    what a runtime has: its certificate and whom it believes, or its key. Opened by the first `tls://`.
 *   a stream   one end of one connection. Its owner has the socket; the stream reads and writes it when it is told to.
 *
 * Two kinds of stream. The wire's proves who the two are: by certificates on both sides, or by the pre-shared key. From it comes
 * a secret that only the two have (wefti_stream_secret). The connections of a lane prove that they belong to that meeting, by a
 * key made of this secret: they need no certificate, and nobody else can have one.
 *
 * No other version than 1.3, no key exchange without new keys (ECDHE), no early data, no renegotiation.
 *
 * One thread at a time for each stream, and for all lanes' streams of a guard. Wires' streams of a guard that is ready may be
 * made and used by several threads at a time: the shards of a runtime share that of a listener. */
#ifndef WEFTI_TLS_H
#define WEFTI_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <weft/status.h>

#include "base/config.h"
#include "base/keys.h"

typedef struct wefti_guard wefti_guard_t;

typedef struct wefti_stream {
    size_t waits; /* bytes that are encrypted and that the socket has not taken yet: wefti_stream_flush() */
    bool sums;    /* it is none of TLS but one of fabric/tcp/sums.c: no function here is for it */
} wefti_stream_t;

/* --- what a runtime has ------------------------------------------------------------------------------------------- */

/* The names of files in the configuration are copied; nothing is read yet. NULL: no memory. */
wefti_guard_t *wefti_guard_new(const wefti_config_t *config);
/* Another share of it; each is let go of by one wefti_guard_free(). A stream has one of its own. Both: any thread. */
wefti_guard_t *wefti_guard_keep(wefti_guard_t *g);
void wefti_guard_free(wefti_guard_t *g); /* NULL is allowed */
/* The runtime's pre-shared keys, copied; NULL: it has none. Before the first stream, and when they are others. WEFT_ERR_NOMEM: it
 * has those from before. */
weft_status_t wefti_guard_keys(wefti_guard_t *g, const wefti_keys_t *keys);
/* Its keys are those of another, whatever they become. Before the first stream. */
void wefti_guard_keys_of(wefti_guard_t *g, wefti_guard_t *of);
/* The name in our certificate by which peers know us; "": it has none, or was not read yet. Any thread. */
void wefti_guard_name(wefti_guard_t *g, char *buf, size_t cap);
/* Be ready for tls://. WEFT_ERR_UNSUPPORTED (there is no OpenSSL), _INVALID (neither certificates nor a key, or a file that
 * cannot be used), each with a sentence that says what to do. Cheap to call again. */
weft_status_t wefti_guard_ready(wefti_guard_t *g);
/* Look at the files of every guard of the process that is ready, if nobody has just done so. Changed ones are read again, for
 * wires that are made from now on; what cannot be used is told of in the log, and what was read before stays. How often something
 * has changed until now. Any thread. */
uint64_t wefti_guards_look(void);
/* Must what leaves this host be encrypted, though its address does not ask for it (WEFT_TLS)? */
bool wefti_guard_demands(const wefti_guard_t *g);
/* And what stays on it, too? So it is with certificates and no key: a plain hello proves a key, and of a certificate nothing. */
bool wefti_guard_demands_here(const wefti_guard_t *g);
/* Will it be ready, as far as that is known without OpenSSL? WEFT_ERR_INVALID, _NOMEM. */
weft_status_t wefti_guard_check(wefti_guard_t *g);
/* What there is, for people: OpenSSL's version, or why it is not used. */
void wefti_tls_version(char *buf, size_t cap);
/* Be ready for the connections of lanes, which need neither. WEFT_ERR_UNSUPPORTED, _NOMEM. */
weft_status_t wefti_guard_ready_for_lanes(wefti_guard_t *g);

/* --- streams ------------------------------------------------------------------------------------------------------ */

/* A wire's. `side`: WEFTI_SIDE_DIALLER or _LISTENER. `host`: whom the dialler wants to meet, a name or an address, to be found
 * in the other's certificate; NULL for a listener. If they met there by certificates within the last hour, the handshake is a
 * short one. After wefti_guard_ready(). WEFT_ERR_NOMEM. */
weft_status_t wefti_stream_wire(wefti_guard_t *g, int side, const char *host, uint16_t port, wefti_stream_t **out);

/* A lane's, of the one who dials: `id` is what the other one knows the lane by. WEFT_ERR_NOMEM. */
weft_status_t wefti_stream_dials(wefti_guard_t *g, uint64_t id, const uint8_t secret[WEFTI_SECRET_SIZE], wefti_stream_t **out);
/* The secret of the lane with this id; false: there is no such lane. */
typedef bool (*wefti_stream_find_fn)(void *user, uint64_t id, uint8_t secret[WEFTI_SECRET_SIZE]);
/* A lane's, of the one who is dialled: by whom, it learns from the first bytes. WEFT_ERR_NOMEM. */
weft_status_t wefti_stream_dialled(wefti_guard_t *g, wefti_stream_find_fn find, void *user, wefti_stream_t **out);

/* NULL is allowed. The socket is the owner's, and stays open. */
void wefti_stream_free(wefti_stream_t *s);

/* One step of the handshake. WEFT_OK: it is done. WEFT_ERR_AGAIN: it needs bytes of the peer's, or, if s->waits, space in the
 * socket. WEFT_ERR_AUTH: the peer is not who it should be, or does not believe us; WEFT_ERR_PROTOCOL: it does not speak TLS as we
 * do; WEFT_ERR_PEER: the connection ended. Each with a sentence. */
weft_status_t wefti_stream_shake(wefti_stream_t *s, int fd);

/* As sendmsg() and recvmsg() do, without waiting: bytes that were taken, or -1 and errno. A send takes no bytes (EAGAIN) while
 * earlier ones wait, and may take bytes that wait then. EBADMSG: what came was changed on the way, or does not belong here. At
 * the end of what the peer had to say, a receive says 0; ECONNRESET if it was cut off. */
ssize_t wefti_stream_send(wefti_stream_t *s, int fd, const struct iovec *v, unsigned n);
ssize_t wefti_stream_recv(wefti_stream_t *s, int fd, const struct iovec *v, unsigned n);
/* The same, and the bytes stay where they are. */
ssize_t wefti_stream_peek(wefti_stream_t *s, int fd, void *buf, size_t n);
/* Are there bytes for a receive that the socket no longer has? An event of the socket does not tell of them. */
bool wefti_stream_has(const wefti_stream_t *s);
/* Give the socket what waits. False: it took not all of it (errno). */
bool wefti_stream_flush(wefti_stream_t *s, int fd);
/* Tell the peer that this was all. */
void wefti_stream_end(wefti_stream_t *s, int fd);

/* --- facts of a stream whose handshake is done --------------------------------------------------------------------- */

/* A secret that only the two ends of this very connection can make. */
void wefti_stream_secret(wefti_stream_t *s, uint8_t out[WEFTI_SECRET_SIZE]);
const char *wefti_stream_cipher(const wefti_stream_t *s); /* "TLS_AES_128_GCM_SHA256" */
/* Who the peer is: the first name of its certificate; "": it proved the key. */
const char *wefti_stream_peer(const wefti_stream_t *s);
/* Was the handshake a short one, since they had met before? */
bool wefti_stream_resumed(const wefti_stream_t *s);
/* Would its certificate be believed by what its guard has now? Its time does not count any more. WEFT_ERR_AUTH, _NOMEM, with a
 * sentence. Another thread may use the stream meanwhile. */
weft_status_t wefti_stream_welcome(const wefti_stream_t *s);

#endif
