/* bench/peers/zmq_echo.c - ZeroMQ doing what Weft's calls do: a DEALER that asks, a ROUTER that answers with what it was sent.
 *
 *     zmq_echo tcp|ipc [--size N] [--window N] [--seconds S] [--count N] [--no-pin]
 *
 * `window` requests are under way at a time; avg_us is the total time / requests, and with a window of 1 p50_us that of the
 * median one. TCP over loopback, or a Unix socket. One line of JSON.
 *
 * It is what a careful program would do with libzmq: one I/O thread each, no high-water marks, frames that are handed on and
 * not copied in the server, and a client that takes all answers there are before it sends again, so that ZeroMQ packs what it
 * can. Both block where there is nothing to do: a loop that polls would keep the I/O thread from its core. peer.h has the two
 * processes; tests/tools/tools_peers.py runs it. */
#include <zmq.h>

#include "peer.h"

typedef struct side {
    peer_t peer;
    void *context, *socket;
    char *request;
} side_t;

static void must(const side_t *s, bool good, const char *what)
{
    if (!good)
        peer_die(&s->peer, what, zmq_strerror(zmq_errno()));
}

static void open_socket(side_t *s, int type)
{
    const int none = 0, soon = 200; /* milliseconds: how often a side that waits looks around */
    s->context = zmq_ctx_new();
    must(s, s->context, "a context");
    s->socket = zmq_socket(s->context, type);
    must(s, s->socket, "a socket");
    zmq_setsockopt(s->socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(s->socket, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(s->socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(s->socket, ZMQ_RCVTIMEO, &soon, sizeof soon);
}

/* --- the server ------------------------------------------------------------------------------------------ */

/* Each request is two frames: who asks, and the bytes. Both go back as they are. Until the client ends it. */
static void serve(side_t *s)
{
    zmq_msg_t who, what;
    zmq_msg_init(&who);
    zmq_msg_init(&what);
    while (true) {
        if (zmq_msg_recv(&who, s->socket, 0) < 0) {
            must(s, zmq_errno() == EAGAIN || zmq_errno() == EINTR, "a receive");
            continue;
        }
        must(s, zmq_msg_recv(&what, s->socket, 0) >= 0, "a receive");
        must(s, zmq_msg_send(&who, s->socket, ZMQ_SNDMORE) >= 0, "an answer");
        must(s, zmq_msg_send(&what, s->socket, 0) >= 0, "an answer");
    }
}

static void be_server(side_t *s, int fd)
{
    char address[256];
    size_t n = sizeof address;
    if (!strcmp(s->peer.way, "tcp"))
        snprintf(address, sizeof address, "tcp://127.0.0.1:*");
    else
        snprintf(address, sizeof address, "ipc://@weft-zmq-echo-%ld", (long)getpid()); /* no file: nothing to leave behind */
    open_socket(s, ZMQ_ROUTER);
    must(s, !zmq_bind(s->socket, address), address);
    must(s, !zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, address, &n), "the address");
    peer_tell(&s->peer, fd, address);
    serve(s);
}

/* --- the client ------------------------------------------------------------------------------------------ */

/* Take one answer: false if there is none and nobody wants to wait. */
static bool take(side_t *s, zmq_msg_t *answer, bool wait)
{
    uint64_t deadline = 0;
    while (zmq_msg_recv(answer, s->socket, wait ? 0 : ZMQ_DONTWAIT) < 0) {
        must(s, zmq_errno() == EAGAIN || zmq_errno() == EINTR, "an answer");
        if (!wait)
            return false;
        deadline = deadline ? deadline : peer_now_ns() + PEER_LIMIT_S * PEER_SECOND;
        peer_look_around(&s->peer, deadline);
    }
    if (zmq_msg_size(answer) != s->peer.size || (s->peer.size && *(char *)zmq_msg_data(answer) != 0x5a))
        peer_die(&s->peer, "an answer", "is not what was sent");
    return true;
}

static uint64_t run(void *user, uint64_t count)
{
    side_t *s = user;
    const uint64_t start = peer_now_ns(), window = s->peer.window;
    uint64_t sent = 0, taken = 0, before = peer_ticks();
    zmq_msg_t answer;
    zmq_msg_init(&answer);
    while (taken < count) {
        for (; sent < count && sent - taken < window; sent++)
            must(s, zmq_send(s->socket, s->request, s->peer.size, 0) >= 0, "a request");
        take(s, &answer, true);
        taken++;
        if (window == 1)
            before = peer_sample(&s->peer, before);
        else
            while (taken < sent && take(s, &answer, false))
                taken++;
    }
    zmq_msg_close(&answer);
    return peer_now_ns() - start;
}

static void be_client(side_t *s, int fd)
{
    char address[256];
    peer_told(&s->peer, fd, address, sizeof address);
    s->request = malloc(s->peer.size + 1);
    if (!s->request)
        peer_die(&s->peer, "a request", "out of memory");
    memset(s->request, 0x5a, s->peer.size + 1);
    if (s->peer.window == 1)
        peer_keep_samples(&s->peer);
    open_socket(s, ZMQ_DEALER);
    must(s, !zmq_connect(s->socket, address), address);
    peer_measure(&s->peer, run, s, false);
    zmq_close(s->socket);
    zmq_ctx_term(s->context);
    free(s->request);
    free(s->peer.samples);
}

int main(int argc, char **argv)
{
    side_t s = {.peer = {.name = "zmq_echo", .ways = "tcp|ipc", .size = 64, .window = 1}};
    int fds[2];
    peer_options(&s.peer, argc, argv);
    if (pipe(fds))
        peer_die(&s.peer, "a pipe", strerror(errno));
    if (peer_fork(&s.peer)) {
        close(fds[0]);
        be_server(&s, fds[1]);
    }
    close(fds[1]);
    be_client(&s, fds[0]);
    peer_end(&s.peer);
    return 0;
}
