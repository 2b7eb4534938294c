/* bench/peers/tls_echo.c - OpenSSL over TCP and nothing else: the yardstick that Weft over TLS is held against.
 *
 *     tls_echo lat|bw|echo --certs DIR [--size N] [--window N] [--seconds S] [--count N] [--no-pin]
 *
 *   lat    ping-pong; avg_us is half of a round trip
 *   bw     one way, one message behind the other, until the server says that all have arrived; 1 MiB if not told
 *   echo   requests that the server sends back, `window` of them under way at a time: as many go with one write as answers have
 *          come with one read. avg_us is the total time / requests, and with a window of 1 p50_us that of the median one
 *
 * Two processes by fork, one core each like `weft perf --fork`: the child is the server. One connection over loopback: mutual TLS
 * 1.3 with AES-128-GCM (tls.h). One line of JSON.
 *
 * It is what a careful program would do with OpenSSL: one thread each that nobody else touches and that never sleeps, reads of
 * what there is into a buffer that takes several records, writes as large as they come. It has no frames, no failure detection
 * and no flow control. A run of `bw` begins with the number of its bytes. tests/tools/tools_bench_tls.py runs it. */
#include "tls.h"

#define BUFFER (256u << 10)
#define ECHO_BYTES (64u << 10) /* the most that is under way: what a socket's buffers always take */

typedef enum echo_mode { LAT, BW, ECHO } echo_mode_t;

typedef struct side {
    peer_t peer;
    echo_mode_t mode;
    size_t size;
    SSL *ssl;
    char *out, *in;
    uint64_t deadline; /* of the wait that goes on; 0: none does */
    uint32_t spins;
} side_t;

/* --- bytes ----------------------------------------------------------------------------------------------- */

/* Nothing could be read or written: is it not too late? */
static void wait_more(side_t *s)
{
    if (++s->spins & 0xfffff)
        return;
    s->deadline = s->deadline ? s->deadline : peer_now_ns() + PEER_LIMIT_S * PEER_SECOND;
    if (s->peer.child)
        peer_look_around(&s->peer, s->deadline);
    else if (peer_now_ns() > s->deadline)
        peer_die(&s->peer, "the client", "said nothing for too long");
}

/* What there is, at most n bytes; 0: there is nothing yet. */
static size_t read_some(side_t *s, char *to, size_t n)
{
    size_t got = 0;
    const int rc = SSL_read_ex(s->ssl, to, n, &got);
    if (rc == 1) {
        s->deadline = 0;
        return got;
    }
    tls_waits(&s->peer, s->ssl, rc, "a receive");
    wait_more(s);
    return 0;
}

static void read_all(side_t *s, char *to, size_t n)
{
    for (size_t at = 0; at < n;)
        at += read_some(s, to + at, n - at);
}

static void write_all(side_t *s, const char *from, size_t n)
{
    for (size_t at = 0, did = 0; at < n; at += did, did = 0) {
        const int rc = SSL_write_ex(s->ssl, from + at, n - at, &did);
        if (rc == 1) {
            s->deadline = 0;
            continue;
        }
        tls_waits(&s->peer, s->ssl, rc, "a send");
        wait_more(s);
    }
}

static void check(const side_t *s, const char *message)
{
    if (s->size && (message[0] != 0x5a || message[s->size - 1] != 0x5a))
        peer_die(&s->peer, "a message", "is not what was sent");
}

/* --- the server ------------------------------------------------------------------------------------------ */

/* Until the client ends it. */
static _Noreturn void serve(side_t *s)
{
    uint64_t bytes;
    size_t n;
    while (true) {
        switch (s->mode) {
        case LAT:
            read_all(s, s->in, s->size);
            write_all(s, s->in, s->size);
            break;
        case ECHO:
            n = read_some(s, s->in, BUFFER);
            write_all(s, s->in, n);
            break;
        default:
            read_all(s, (char *)&bytes, sizeof bytes);
            for (; bytes; bytes -= n) {
                n = read_some(s, s->in, bytes < BUFFER ? (size_t)bytes : BUFFER);
                if (n && s->in[n - 1] != 0x5a)
                    peer_die(&s->peer, "a message", "is not what was sent");
            }
            write_all(s, s->out, 1);
        }
    }
}

/* --- the client ------------------------------------------------------------------------------------------ */

static void ping(side_t *s, uint64_t count)
{
    uint64_t before = peer_ticks();
    for (uint64_t i = 0; i < count; i++) {
        write_all(s, s->out, s->size);
        read_all(s, s->in, s->size);
        check(s, s->in);
        before = peer_sample(&s->peer, before);
    }
}

static void stream(side_t *s, uint64_t count)
{
    const uint64_t bytes = count * s->size;
    char done;
    write_all(s, (const char *)&bytes, sizeof bytes);
    for (uint64_t i = 0; i < count; i++)
        write_all(s, s->out, s->size);
    read_all(s, &done, 1);
}

/* As many requests as answers have come. */
static void ask(side_t *s, uint64_t count)
{
    uint64_t sent = count < s->peer.window ? count : s->peer.window, taken = 0;
    size_t have = 0;
    write_all(s, s->out, sent * s->size);
    while (taken < count) {
        have += read_some(s, s->in + have, BUFFER - have);
        uint64_t whole = have / s->size;
        for (uint64_t i = 0; i < whole; i++)
            check(s, s->in + i * s->size);
        taken += whole;
        have -= whole * s->size;
        memmove(s->in, s->in + whole * s->size, have);
        whole = whole < count - sent ? whole : count - sent;
        sent += whole;
        write_all(s, s->out, whole * s->size);
    }
}

static uint64_t run(void *user, uint64_t count)
{
    side_t *s = user;
    const uint64_t start = peer_now_ns();
    if (s->mode == BW)
        stream(s, count);
    else if (s->mode == LAT || s->peer.window == 1)
        ping(s, count);
    else
        ask(s, count);
    return peer_now_ns() - start;
}

/* --- putting it together --------------------------------------------------------------------------------- */

static char *pages(const side_t *s, size_t n)
{
    char *at = malloc(n);
    if (!at)
        peer_die(&s->peer, "buffers", "out of memory");
    memset(at, 0x5a, n);
    return at;
}

static void meet(side_t *s, int fd)
{
    const bool server = !s->peer.child;
    SSL_CTX *c = tls_context(&s->peer, server);
    s->ssl = tls_end(&s->peer, c, fd, server);
    SSL_CTX_free(c);
    SSL_set_read_ahead(s->ssl, 1);
    SSL_set_default_read_buffer_len(s->ssl, 64 << 10);
    for (int rc; (rc = SSL_do_handshake(s->ssl)) != 1; wait_more(s))
        tls_waits(&s->peer, s->ssl, rc, "the handshake");
    tls_check(&s->peer, s->ssl);
}

static void options(side_t *s, int argc, char **argv)
{
    static const char *const names[] = {"lat", "bw", "echo"};
    *s = (side_t){.peer = {.name = "tls_echo", .ways = "lat|bw|echo", .size = 8, .window = 1, .takes_certs = true}};
    peer_options(&s->peer, argc, argv);
    while (strcmp(names[s->mode], s->peer.way))
        s->mode++;
    if (s->mode == BW && !s->peer.sized)
        s->peer.size = 1 << 20;
    if (s->mode != ECHO)
        s->peer.window = 1;
    s->size = s->peer.size;
    const char *wrong = !s->peer.certs                                             ? "--certs DIR is needed"
                        : !s->size                                                 ? "there are no messages of no bytes"
                        : s->mode == ECHO && s->size * s->peer.window > ECHO_BYTES ? "more than 64 KiB would be under way"
                                                                                   : NULL;
    if (wrong) {
        fprintf(stderr, "tls_echo: %s\n", wrong);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    side_t s;
    struct sockaddr_in at;
    options(&s, argc, argv);
    const int listener = tls_listen(&s.peer, &at);
    const bool server = peer_fork(&s.peer);
    const size_t n = s.mode == ECHO ? s.size * s.peer.window : s.size;
    s.out = pages(&s, n);
    s.in = pages(&s, n > BUFFER ? n : BUFFER);
    if (server) {
        meet(&s, tls_socket(&s.peer, accept(listener, NULL, NULL)));
        serve(&s);
    }
    close(listener);
    if (s.peer.window == 1 && s.mode != BW)
        peer_keep_samples(&s.peer);
    meet(&s, tls_dial(&s.peer, &at));
    peer_measure(&s.peer, run, &s, s.mode == LAT);
    peer_end(&s.peer);
    return 0;
}
