/* tests/fault/lib/peer.c - see peer.h. */
#include "peer.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"
#include "ports.h"

enum { PEERS_MAX = 4 };

static weft_runtime_t *open_runtime(const char *transports, uint64_t heartbeat_ns)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.transports = transports;
    opts.heartbeat_ns = heartbeat_ns;
    opts.progress = WEFT_PROGRESS_CALLER;
    must(weft_runtime_open(&opts, &rt), "weft_runtime_open");
    return rt;
}

static void child(int uri_fd, const char *transports, uint64_t heartbeat_ns, peer_life_t life)
{
    char uri[256] = "";
    weft_op_t connect = WEFT_OP_INIT;
    weft_ep_t *ep;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ssize_t n = read(uri_fd, uri, sizeof uri - 1);
    if (n <= 0)
        _exit(1);
    weft_runtime_t *rt = open_runtime(transports, heartbeat_ns);
    must(weft_ep_open(rt, uri, NULL, &connect, &ep), "peer: weft_ep_open");
    must(weft_op_wait(&connect, 10 * WEFT_SECOND), "peer: connect");
    life(rt, ep);
    _exit(0);
}

void peers_start(peer_t *peers, unsigned n, const char *transports, uint64_t heartbeat_ns, const peer_life_t *lives)
{
    int fds[PEERS_MAX][2];
    if (n > PEERS_MAX) {
        fprintf(stderr, "more than %d peers\n", PEERS_MAX);
        exit(1);
    }
    fflush(NULL);
    for (unsigned i = 0; i < n; i++) { /* before there is a runtime here */
        if (pipe(fds[i])) {
            perror("pipe");
            exit(1);
        }
        peers[i] = (peer_t){.pid = fork()};
        if (peers[i].pid < 0) {
            perror("fork");
            exit(1);
        }
        if (peers[i].pid == 0) {
            for (unsigned k = 0; k <= i; k++)
                close(fds[k][1]);
            child(fds[i][0], transports, heartbeat_ns, lives[i]);
        }
        close(fds[i][0]);
    }
    weft_runtime_t *rt = open_runtime(transports, heartbeat_ns);
    weft_listener_t *listener;
    must(weft_listen(rt, ports_tcp(), NULL, &listener), "weft_listen");
    const char *uri = weft_listener_uri(listener);
    for (unsigned i = 0; i < n; i++) { /* one after the other, so that it is known who is who */
        weft_op_t accept = WEFT_OP_INIT;
        peers[i].rt = rt;
        peers[i].listener = listener;
        must(weft_listener_accept(listener, &accept), "weft_listener_accept");
        if (write(fds[i][1], uri, strlen(uri)) < 0)
            perror("write");
        close(fds[i][1]);
        must(peer_wait(&peers[i], &accept, 15), "accept");
        peers[i].ep = (weft_ep_t *)accept.buf;
    }
}

void peer_start(peer_t *peer, const char *transports, uint64_t heartbeat_ns, peer_life_t life)
{
    peers_start(peer, 1, transports, heartbeat_ns, &life);
}

void peer_signal(peer_t *peer, int sig)
{
    kill(peer->pid, sig);
    if (sig == SIGSTOP) {
        int status;
        waitpid(peer->pid, &status, WUNTRACED);
    }
}

weft_status_t peer_wait(peer_t *peer, weft_op_t *op, double seconds)
{
    double end = now() + seconds;
    while (!weft_op_done(op)) {
        weft_runtime_progress(peer->rt);
        if (now() > end) {
            fprintf(stderr, "an operation did not complete within %.1f s\n", seconds);
            if (peer->pid > 0)
                kill(peer->pid, SIGKILL);
            exit(1);
        }
    }
    return op->status;
}

void peer_run(peer_t *peer, double seconds)
{
    /* and as many turns as a machine that has nothing else to do would take, or about */
    double end = now() + seconds;
    for (unsigned turns = 0; turns < seconds * 2e4 || now() < end; turns++)
        weft_runtime_progress(peer->rt);
}

void peers_end(peer_t *peers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (peers[i].pid > 0) {
            kill(peers[i].pid, SIGKILL);
            waitpid(peers[i].pid, NULL, 0);
        }
        if (peers[i].ep) {
            weft_op_t op = WEFT_OP_INIT;
            must(weft_ep_abort(peers[i].ep, &op), "weft_ep_abort");
            peer_wait(&peers[i], &op, 10);
        }
    }
    must(weft_listener_close(peers[0].listener, NULL), "weft_listener_close");
    must(weft_runtime_close(peers[0].rt), "weft_runtime_close");
}

void peer_end(peer_t *peer)
{
    peers_end(peer, 1);
}

void peer_live(weft_runtime_t *rt)
{
    for (;;)
        weft_runtime_progress(rt);
}
