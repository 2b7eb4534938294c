/* fabric/tls/stream.c - one end of one connection under TLS.
 *
 * OpenSSL reads the socket itself (bio.c), and stops at the first read that brought less than its buffer takes. What it writes is
 * gathered, all records of one send, and leaves with one send().
 *
 *     handshake --done--> messages --the peer's end, or bytes that are not right--> over
 *
 * The keys of a direction are renewed long before they have encrypted as much as AES-GCM allows.
 *
 * Promise: a byte that is told is the peer's, in its order; what was changed, dropped, repeated or cut off on the way is an
 * error. tests/wire/tls.c, tests/fault/tls_flips.c. */
#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/fabric.h"
#include "fabric/tls/internal.h"

#define RECORD 16384u                    /* bytes of a record at most */
#define RECORD_MORE 256u                 /* that encryption adds at most */
#define RECORDS_MOST (UINT64_C(1) << 22) /* under one key; AES-GCM allows 2^24.5 of full length */

/* --- making and freeing ------------------------------------------------------------------------------------------- */

static weft_status_t no_memory(void)
{
    return wefti_fail(WEFT_ERR_NOMEM, "no memory for TLS on a connection");
}

static tls_stream_t *stream_new(wefti_guard_t *g, bool wire, int side)
{
    tls_stream_t *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->guard = wefti_guard_keep(g);
    s->wire = wire;
    s->side = side;
    s->by_key = !wire || !tls_has_files(g);
    if (wire)
        wefti_tls_look(g);
    SSL_CTX *wires = wire ? wefti_tls_wires(g) : NULL;
    s->ssl = wefti_ssl.SSL_new(wire ? wires : g->lanes);
    wefti_ssl.SSL_CTX_free(wires); /* NULL is allowed */
    BIO *bio = s->ssl && wefti_ssl.SSL_set_ex_data(s->ssl, 0, s) ? wefti_tls_bio(s) : NULL;
    if (!bio) {
        tls_left_nothing();
        wefti_stream_free(&s->base);
        return NULL;
    }
    wefti_ssl.SSL_set_bio(s->ssl, bio, bio);
    if (side == WEFTI_SIDE_DIALLER)
        wefti_ssl.SSL_set_connect_state(s->ssl);
    else
        wefti_ssl.SSL_set_accept_state(s->ssl);
    return s;
}

weft_status_t wefti_stream_wire(wefti_guard_t *g, int side, const char *host, uint16_t port, wefti_stream_t **out)
{
    tls_stream_t *s = stream_new(g, true, side);
    if (!s)
        return no_memory();
    if (side == WEFTI_SIDE_DIALLER) /* names are in the SAN; a star stands for a whole label */
        wefti_ssl.SSL_set_hostflags(s->ssl, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    bool named = !host || s->by_key || wefti_ssl.X509_VERIFY_PARAM_set1_ip_asc(wefti_ssl.SSL_get0_param(s->ssl), host) ||
                 wefti_ssl.SSL_set1_host(s->ssl, host);
    if (named && host && !s->by_key)
        wefti_tls_resume(s, host, port);
    tls_left_nothing();
    if (!named) {
        wefti_stream_free(&s->base);
        return no_memory();
    }
    *out = &s->base;
    return WEFT_OK;
}

weft_status_t wefti_stream_dials(wefti_guard_t *g, uint64_t id, const uint8_t secret[WEFTI_SECRET_SIZE], wefti_stream_t **out)
{
    tls_stream_t *s = stream_new(g, false, WEFTI_SIDE_DIALLER);
    if (!s)
        return no_memory();
    s->id = id;
    memcpy(s->secret, secret, sizeof s->secret);
    *out = &s->base;
    return WEFT_OK;
}

weft_status_t wefti_stream_dialled(wefti_guard_t *g, wefti_stream_find_fn find, void *user, wefti_stream_t **out)
{
    tls_stream_t *s = stream_new(g, false, WEFTI_SIDE_LISTENER);
    if (!s)
        return no_memory();
    s->find = find;
    s->user = user;
    *out = &s->base;
    return WEFT_OK;
}

/* Its buffer is for the next one that needs it. */
static void give_back(tls_stream_t *s)
{
    if (!s->wire && !s->guard->spare && s->out_cap == TLS_OUT_BYTES)
        s->guard->spare = s->out;
    else
        wefti_free(s->out);
    s->out = NULL;
    s->out_at = s->out_cap = 0;
}

void wefti_stream_free(wefti_stream_t *stream)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    if (!s)
        return;
    if (!s->wire && s->guard->hot == s) /* a wire may be another shard's than its guard */
        s->guard->hot = NULL;
    if (s->ssl) {
        wefti_ssl.SSL_free(s->ssl);
        tls_left_nothing();
    }
    wefti_tls_peer_free(&s->peer);
    wefti_free(s->whom);
    give_back(s);
    wefti_guard_free(s->guard);
    explicit_bzero(s->secret, sizeof s->secret);
    wefti_free(s);
}

/* --- moving bytes ------------------------------------------------------------------------------------------------- */

bool wefti_stream_flush(wefti_stream_t *stream, int fd)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    while (s->base.waits) {
        ssize_t n = send(fd, s->out + s->out_at, s->base.waits, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        s->out_at += (size_t)n;
        s->base.waits -= (size_t)n;
    }
    if (s->out)
        give_back(s);
    return true;
}

/* OpenSSL's buffers of a lane's stream, 80 KiB, stay with it until another lane's stream is used. They would cost two allocations
 * a message otherwise, and each of many streams would have some. */
static void have_buffers(tls_stream_t *s)
{
    wefti_guard_t *g = s->guard;
    if (s->wire || g->hot == s)
        return;
    if (g->hot)
        (void)wefti_ssl.SSL_free_buffers(g->hot->ssl); /* it keeps half a record */
    g->hot = s;
}

static void begin(tls_stream_t *s, int fd)
{
    s->fd = fd;
    s->dry = false;
    have_buffers(s);
    if (wefti_ssl.ERR_peek_error()) /* clearing costs four times as much as looking */
        wefti_ssl.ERR_clear_error();
}

/* A call of OpenSSL's failed: the errno of it, 0 at the end of what the peer had to say. */
static int why_not(tls_stream_t *s)
{
    switch (wefti_ssl.SSL_get_error(s->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        break;
    }
    if (!s->error) {
        s->error = s->eof ? ECONNRESET : EBADMSG;
        if (!s->eof) {
            bool alert = ERR_GET_REASON(wefti_ssl.ERR_peek_error()) >= SSL_AD_REASON_OFFSET;
            wefti_fail(WEFT_ERR_AUTH, "%s: %s",
                       alert ? "the peer ended TLS, and says why" : "what came over TLS is not what the peer sent",
                       wefti_ssl_why());
            wefti_info("tls: a connection ends: %s", weft_last_error());
        }
    }
    tls_left_nothing();
    return s->error;
}

/* It was over before, perhaps for another thread: the sentence is for this one. */
static ssize_t was_over(const tls_stream_t *s)
{
    if (s->error == EBADMSG)
        wefti_fail(WEFT_ERR_AUTH, "the connection's TLS has ended: what came was not what the peer sent, or the peer said so");
    errno = s->error;
    return -1;
}

static ssize_t failed(int err)
{
    errno = err;
    return err ? -1 : 0;
}

/* Long before the keys are worn. */
static void renew_keys(tls_stream_t *s)
{
    if (++s->records < RECORDS_MOST)
        return;
    s->records = 0;
    (void)wefti_ssl.SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
}

ssize_t wefti_stream_send(wefti_stream_t *stream, int fd, const struct iovec *v, unsigned n)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    size_t all = 0;
    if (s->error)
        return was_over(s);
    if (s->base.waits && !wefti_stream_flush(stream, fd))
        return -1;
    begin(s, fd);
    for (unsigned i = 0; i < n; i++) {
        for (size_t at = 0, done; at < v[i].iov_len; at += done, all += done) {
            size_t most = v[i].iov_len - at < RECORD ? v[i].iov_len - at : RECORD;
            if (s->base.waits + most + RECORD_MORE > TLS_OUT_BYTES)
                goto full;
            renew_keys(s);
            if (!wefti_ssl.SSL_write_ex(s->ssl, (const uint8_t *)v[i].iov_base + at, most, &done)) {
                int err = why_not(s);
                if (!all)
                    return failed(err ? err : EPIPE);
                goto full;
            }
        }
    }
full:
    (void)wefti_stream_flush(stream, fd); /* what it does not take waits, and an error is the next call's */
    return (ssize_t)all;
}

ssize_t wefti_stream_recv(wefti_stream_t *stream, int fd, const struct iovec *v, unsigned n)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    size_t all = 0;
    int err = 0;
    bool ended = false;
    uint8_t bytes[TLS_LOOK_BYTES];
    if (s->error)
        return was_over(s);
    if (s->idle && n && v->iov_len && !wefti_tls_ask(s, fd, bytes))
        return -1;
    begin(s, fd);
    for (unsigned i = 0; i < n && !ended; i++) {
        for (size_t at = 0, done; at < v[i].iov_len; at += done, all += done) {
            if (!wefti_ssl.SSL_read_ex(s->ssl, (uint8_t *)v[i].iov_base + at, v[i].iov_len - at, &done)) {
                err = why_not(s);
                ended = true;
                break;
            }
            if (s->dry && !wefti_ssl.SSL_has_pending(s->ssl)) { /* that was all: asking again would cost half a message */
                ended = true;
                all += done;
                break;
            }
        }
    }
    s->more = !ended && wefti_ssl.SSL_has_pending(s->ssl);
    s->idle = err == EAGAIN && !all && !wefti_ssl.SSL_has_pending(s->ssl);
    if (s->looked_n && !s->error)
        s->error = EBADMSG; /* OpenSSL's buffer was empty, and did not take it: what follows would be another stream */
    s->looked_n = 0;
    if (s->base.waits) /* an answer to a renewal of the peer's keys */
        (void)wefti_stream_flush(stream, fd);
    return all ? (ssize_t)all : failed(err);
}

ssize_t wefti_stream_peek(wefti_stream_t *stream, int fd, void *buf, size_t n)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    size_t got;
    if (s->error)
        return was_over(s);
    s->idle = false;
    begin(s, fd);
    return wefti_ssl.SSL_peek_ex(s->ssl, buf, n, &got) ? (ssize_t)got : failed(why_not(s));
}

bool wefti_stream_has(const wefti_stream_t *stream)
{
    return ((const tls_stream_t *)(const void *)stream)->more;
}

void wefti_stream_end(wefti_stream_t *stream, int fd)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    if (s->error)
        return;
    begin(s, fd);
    (void)wefti_ssl.SSL_shutdown(s->ssl);
    tls_left_nothing();
    (void)wefti_stream_flush(stream, fd);
}

/* --- the handshake ------------------------------------------------------------------------------------------------ */

/* OpenSSL says that the handshake is done: with whom? */
static weft_status_t shaken(tls_stream_t *s)
{
    bool reused = wefti_ssl.SSL_session_reused(s->ssl);
    if (s->by_key)
        return reused ? WEFT_OK : wefti_fail(WEFT_ERR_AUTH, "the peer did not prove the key");
    s->resumed = reused;
    return wefti_tls_remember_peer(s) ? WEFT_OK : wefti_fail(WEFT_ERR_AUTH, "the names in the peer's certificate cannot be read");
}

#define NEEDED \
    "the two need the same key, or certificates that the other believes; who has a key beside certificates shows those, and " \
    "needs both at the other side"

static weft_status_t refused(tls_stream_t *s)
{
    unsigned long code = wefti_ssl.ERR_peek_error();
    int reason = ERR_GET_REASON(code);
    long verdict = wefti_ssl.SSL_get_verify_result(s->ssl);
    if (s->eof)
        return wefti_fail(WEFT_ERR_PEER, "the peer ended the connection during the TLS handshake; it may not speak TLS");
    if (s->error && s->error != EBADMSG)
        return wefti_fail(WEFT_ERR_PEER, "the connection failed during the TLS handshake: %s", strerror(s->error));
    if (!s->by_key && (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH))
        return wefti_fail(WEFT_ERR_AUTH, "the peer's certificate is for another host (%s): its SAN has to have what was dialled",
                          wefti_ssl.X509_verify_cert_error_string(verdict));
    if (verdict != X509_V_OK && !s->by_key)
        return wefti_fail(WEFT_ERR_AUTH, "the peer's certificate is not accepted: %s",
                          wefti_ssl.X509_verify_cert_error_string(verdict));
    if (reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION)
        return wefti_fail(WEFT_ERR_PROTOCOL,
                          "the peer does not speak TLS 1.3 there: it has neither a key nor certificates, or it has "
                          "WEFT_TLS=off; give both sides the same");
    if (reason == SSL_R_TLSV1_ALERT_INTERNAL_ERROR)
        return wefti_fail(WEFT_ERR_PROTOCOL, "the peer wants TLS and cannot speak it: is OpenSSL (libssl3) installed there?");
    if (reason >= SSL_AD_REASON_OFFSET)
        return wefti_fail(WEFT_ERR_AUTH, "the peer refuses us in the TLS handshake (%s): " NEEDED, wefti_ssl_why());
    switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
        return wefti_fail(WEFT_ERR_PROTOCOL, "the peer does not speak TLS 1.3: %s", wefti_ssl_why());
    default:
        return wefti_fail(WEFT_ERR_AUTH, "the TLS handshake failed (%s): " NEEDED, wefti_ssl_why());
    }
}

weft_status_t wefti_stream_shake(wefti_stream_t *stream, int fd)
{
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    begin(s, fd);
    int rc = wefti_ssl.SSL_do_handshake(s->ssl);
    int err = rc == 1 ? 0 : wefti_ssl.SSL_get_error(s->ssl, rc);
    weft_status_t st = rc == 1                                                     ? shaken(s)
                       : err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE ? WEFT_ERR_AGAIN
                                                                                   : refused(s);
    tls_left_nothing();
    if (!wefti_stream_flush(stream, fd) && errno != EAGAIN && st == WEFT_ERR_AGAIN)
        return wefti_fail(WEFT_ERR_PEER, "the connection failed during the TLS handshake: %s", strerror(errno));
    return st;
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

void wefti_stream_secret(wefti_stream_t *stream, uint8_t out[WEFTI_SECRET_SIZE])
{
    static const char label[] = "EXPORTER-weft-lanes";
    tls_stream_t *s = (tls_stream_t *)(void *)stream;
    if (wefti_ssl.SSL_export_keying_material(s->ssl, out, WEFTI_SECRET_SIZE, label, sizeof label - 1, NULL, 0, 0) != 1)
        randombytes_buf(out, WEFTI_SECRET_SIZE); /* no memory: then nobody else has it, and the lane does not come up */
    tls_left_nothing();
}

const char *wefti_stream_cipher(const wefti_stream_t *stream)
{
    const tls_stream_t *s = (const tls_stream_t *)(const void *)stream;
    return wefti_ssl.SSL_CIPHER_get_name(wefti_ssl.SSL_get_current_cipher(s->ssl));
}

const char *wefti_stream_peer(const wefti_stream_t *stream)
{
    return ((const tls_stream_t *)(const void *)stream)->name;
}

bool wefti_stream_resumed(const wefti_stream_t *stream)
{
    return ((const tls_stream_t *)(const void *)stream)->resumed;
}
