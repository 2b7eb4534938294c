/* fabric/tls/bio.c - what OpenSSL reads and writes: the socket of a stream.
 *
 * A read takes as much as OpenSSL's buffer does, and the first one that brought less is the last of its call: asking again would
 * be a system call for nothing. What is written is gathered, and leaves with wefti_stream_flush(). tests/wire/tls.c. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "fabric/fabric.h"
#include "fabric/tls/internal.h"

#define OUT_MOST (1u << 20) /* that wait because the peer does not read: answers that it asked for */

/* --- looking ------------------------------------------------------------------------------------------------------ */

/* Whoever waits for a peer looks again and again, and to ask OpenSSL costs much more than to ask the socket. So a stream that had
 * nothing the last time asks the socket first. What comes is OpenSSL's next read. False: there is nothing (errno). */
bool wefti_tls_ask(tls_stream_t *s, int fd, uint8_t bytes[TLS_LOOK_BYTES])
{
    ssize_t n = recv(fd, bytes, TLS_LOOK_BYTES, MSG_DONTWAIT);
    if (n > 0) {
        s->looked = bytes;
        s->looked_n = (size_t)n;
    } else if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            s->error = errno;
        return false;
    }
    s->idle = false;
    return true; /* the end is OpenSSL's to judge: it reads it once more */
}

/* OpenSSL's buffer is empty and takes all of it, and then what else the socket has. */
static ssize_t take_looked(tls_stream_t *s, char *buf, size_t n)
{
    size_t part = s->looked_n < n ? s->looked_n : n;
    memcpy(buf, s->looked, part);
    s->looked += part;
    s->looked_n -= part;
    if (part < TLS_LOOK_BYTES || part == n)
        return (ssize_t)part;
    ssize_t more = recv(s->fd, buf + part, n - part, MSG_DONTWAIT);
    return (ssize_t)part + (more > 0 ? more : 0); /* what is wrong, the next read finds again */
}

/* --- what OpenSSL calls ------------------------------------------------------------------------------------------- */

static int bio_read(BIO *bio, char *buf, int n)
{
    tls_stream_t *s = wefti_ssl.BIO_get_data(bio);
    wefti_ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    ssize_t got = -1;
    if (s->looked_n)
        got = take_looked(s, buf, (size_t)n);
    else if (s->dry)
        errno = EAGAIN;
    else
        got = recv(s->fd, buf, (size_t)n, MSG_DONTWAIT);
    s->dry = s->dry || (got > 0 && got < n);
    s->eof = !got;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        wefti_ssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    else if (got < 0)
        s->error = errno;
    return (int)got;
}

static bool has_room(tls_stream_t *s, size_t n)
{
    size_t need = s->out_at + s->base.waits + n;
    if (need > OUT_MOST)
        return false;
    if (!s->out && !s->wire && need <= TLS_OUT_BYTES) {
        s->out = s->guard->spare ? s->guard->spare : wefti_malloc(TLS_OUT_BYTES);
        s->guard->spare = NULL;
        s->out_cap = s->out ? TLS_OUT_BYTES : 0;
        return s->out;
    }
    if (need <= s->out_cap)
        return true;
    uint8_t *grown = wefti_realloc(s->out, need * 2);
    if (!grown)
        return false;
    s->out = grown;
    s->out_cap = need * 2;
    return true;
}

static int bio_write(BIO *bio, const char *bytes, int n)
{
    tls_stream_t *s = wefti_ssl.BIO_get_data(bio);
    wefti_ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (!has_room(s, (size_t)n)) {
        s->error = ENOMEM;
        return -1;
    }
    memcpy(s->out + s->out_at + s->base.waits, bytes, (size_t)n);
    s->base.waits += (size_t)n;
    return n;
}

static long bio_ctrl(BIO *bio, int what, long n, void *p)
{
    const tls_stream_t *s = wefti_ssl.BIO_get_data(bio);
    (void)n;
    (void)p;
    return what == BIO_CTRL_FLUSH ? 1 : what == BIO_CTRL_EOF ? s->eof : 0;
}

static int bio_create(BIO *bio)
{
    wefti_ssl.BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *method;
static void make_method(void)
{
    method = wefti_ssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK | 127, "weft");
    if (!method)
        return;
    wefti_ssl.BIO_meth_set_read(method, bio_read);
    wefti_ssl.BIO_meth_set_write(method, bio_write);
    wefti_ssl.BIO_meth_set_ctrl(method, bio_ctrl);
    wefti_ssl.BIO_meth_set_create(method, bio_create);
}

BIO *wefti_tls_bio(tls_stream_t *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_method);
    BIO *bio = method ? wefti_ssl.BIO_new(method) : NULL;
    if (bio)
        wefti_ssl.BIO_set_data(bio, s);
    return bio;
}
