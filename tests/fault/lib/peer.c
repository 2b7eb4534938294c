/* tests/fault/lib/peer.c - see peer.h. */
#include "peer.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

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

static void child(int uri_fd, const char *transports, uint64_t heartbeat_ns, void (*life)(weft_runtime_t *, weft_ep_t *))
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

void peer_start(peer_t *peer, const char *transports, uint64_t heartbeat_ns, void (*life)(weft_runtime_t *, weft_ep_t *))
{
    int fds[2];
    weft_op_t accept = WEFT_OP_INIT;
    if (pipe(fds)) {
        perror("pipe");
        exit(1);
    }
    fflush(NULL);
    peer->pid = fork(); /* before there is a runtime here */
    if (peer->pid == 0) {
        close(fds[1]);
        child(fds[0], transports, heartbeat_ns, life);
    }
    close(fds[0]);
    peer->rt = open_runtime(transports, heartbeat_ns);
    must(weft_listen(peer->rt, "tcp://127.0.0.1:0", NULL, &peer->listener), "weft_listen");
    must(weft_listener_accept(peer->listener, &accept), "weft_listener_accept");
    const char *uri = weft_listener_uri(peer->listener);
    if (write(fds[1], uri, strlen(uri)) < 0)
        perror("write");
    close(fds[1]);
    must(peer_wait(peer, &accept, 15), "accept");
    peer->ep = (weft_ep_t *)accept.buf;
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
            kill(peer->pid, SIGKILL);
            exit(1);
        }
    }
    return op->status;
}

void peer_run(peer_t *peer, double seconds)
{
    for (double end = now() + seconds; now() < end;)
        weft_runtime_progress(peer->rt);
}

void peer_end(peer_t *peer)
{
    weft_op_t op = WEFT_OP_INIT;
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
    if (peer->ep) {
        must(weft_ep_abort(peer->ep, &op), "weft_ep_abort");
        peer_wait(peer, &op, 10);
    }
    must(weft_listener_close(peer->listener, NULL), "weft_listener_close");
    must(weft_runtime_close(peer->rt), "weft_runtime_close");
}

void peer_live(weft_runtime_t *rt)
{
    for (;;)
        weft_runtime_progress(rt);
}
