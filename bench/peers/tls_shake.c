/* bench/peers/tls_shake.c - two ends of plain OpenSSL meet over TCP: what a handshake costs them.
 *
 *     tls_shake full|resumed --certs DIR [--seconds S] [--count N] [--no-pin]
 *
 *   full     both show certificates, and prove their private keys
 *   resumed  by a session of an earlier meeting, with a new exchange of keys: no certificates, no signatures
 *
 * A meeting begins with connect() over loopback and ends when both ends have done their part; what the client needs for the
 * next one comes after that, and counts for cpu_us. One thread drives both ends (shake.h). avg_us and p50_us are the time of a
 * meeting, cpu_us the processor time of both ends, the median. One line of JSON. Mutual TLS 1.3 with AES-128-GCM (tls.h).
 * tests/tools/tools_bench_tls.py runs it. */
#include "shake.h"
#include "tls.h"

typedef struct both {
    peer_t peer;
    shake_t shake;
    SSL_CTX *context[2];  /* the client's, the server's */
    SSL_SESSION *session; /* what the client was given last; NULL: nothing yet */
    bool resumed;
    int listener;
    struct sockaddr_in at;
} both_t;

static int index_of_both;

static int on_session(SSL *ssl, SSL_SESSION *session)
{
    both_t *b = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), index_of_both);
    SSL_SESSION_free(b->session);
    b->session = session;
    return 1; /* it is ours */
}

/* One step of an end; true: its part of the handshake is done. */
static bool step(both_t *b, SSL *s)
{
    const int rc = SSL_do_handshake(s);
    if (rc == 1)
        return true;
    tls_waits(&b->peer, s, rc, "the handshake");
    return false;
}

static void meet(both_t *b, bool again)
{
    const peer_t *p = &b->peer;
    const uint64_t deadline = peer_now_ns() + PEER_LIMIT_S * PEER_SECOND;
    SSL *s[2];
    int fd[2];
    char none;
    shake_begin(&b->shake);
    fd[0] = tls_dial(p, &b->at);
    fd[1] = tls_socket(p, accept(b->listener, NULL, NULL));
    for (int i = 0; i < 2; i++)
        s[i] = tls_end(p, b->context[i], fd[i], i);
    if (again)
        tls_must(p, SSL_set_session(s[0], b->session) == 1, "a session");
    SSL_SESSION_free(b->session);
    b->session = NULL;
    while (!step(b, s[0]) | !step(b, s[1]))
        if (peer_now_ns() > deadline)
            peer_die(p, "the handshake", "does not end");
    shake_met(&b->shake);
    while (!b->session) {
        tls_waits(p, s[0], SSL_read(s[0], &none, 1), "the session");
        if (peer_now_ns() > deadline)
            peer_die(p, "the session", "does not come");
    }
    shake_end(&b->shake);
    tls_check(p, s[0]);
    tls_must(p, (bool)SSL_session_reused(s[0]) == again && (bool)SSL_session_reused(s[1]) == again,
             "what kind of handshake it was");
    for (int i = 0; i < 2; i++) {
        SSL_set_quiet_shutdown(s[i], 1);
        SSL_shutdown(s[i]);
        SSL_free(s[i]);
        close(fd[i]);
    }
}

int main(int argc, char **argv)
{
    static both_t b = {.peer = {.name = "tls_shake", .ways = "full|resumed", .takes_certs = true}};
    peer_options(&b.peer, argc, argv);
    if (!b.peer.certs) {
        fprintf(stderr, "tls_shake: --certs DIR is needed\n");
        return 2;
    }
    b.resumed = !strcmp(b.peer.way, "resumed");
    peer_pin(&b.peer, 1);
    b.listener = tls_listen(&b.peer, &b.at);
    index_of_both = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    for (int i = 0; i < 2; i++)
        b.context[i] = tls_context(&b.peer, i);
    SSL_CTX_set_ex_data(b.context[0], index_of_both, &b);
    SSL_CTX_set_session_cache_mode(b.context[0], SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(b.context[0], on_session);
    SSL_CTX_set_session_id_context(b.context[1], (const unsigned char *)"bench", 5);
    SSL_CTX_set_num_tickets(b.context[1], 1);
    meet(&b, false); /* and load what is loaded once */
    for (b.shake.n = 0; !shake_enough(&b.peer, &b.shake);)
        meet(&b, b.resumed);
    shake_print(&b.peer, &b.shake, TLS_SUITE);
    SSL_SESSION_free(b.session);
    for (int i = 0; i < 2; i++)
        SSL_CTX_free(b.context[i]);
    close(b.listener);
    return 0;
}
