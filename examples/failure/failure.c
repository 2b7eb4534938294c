/* examples/failure/failure.c - a peer that dies, and an endpoint that finds it again.
 *
 * The child listens, answers one message and is killed; a second child takes its place at the same address. The parent's
 * endpoint learns of the death at once, its hook says "reconnect", and the same endpoint goes on. Both sides prove a key. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

static const char key[] = "not a very secret key";

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static weft_runtime_t *open_runtime(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.key = key;
    opts.key_len = sizeof key - 1;
    opts.heartbeat_ns = WEFT_SECOND;
    MUST(weft_runtime_open(&opts, &rt));
    return rt;
}

/* Answers with its pid, for ever. */
static void serve(const char *uri)
{
    weft_runtime_t *rt = open_runtime();
    weft_listener_t *listener;
    MUST(weft_listen(rt, uri, NULL, &listener));
    for (;;) {
        weft_op_t op = WEFT_OP_INIT;
        MUST(weft_listener_accept(listener, &op));
        MUST(weft_op_wait(&op, WEFT_FOREVER));
        weft_ep_t *ep = weft_op_ep(&op);
        pid_t pid = getpid();
        char question;
        while (!weft_msg_recv(ep, &question, 1, 1, WEFT_TAG_FULL, &op) && !weft_op_wait(&op, WEFT_FOREVER)) {
            if (weft_msg_send(ep, &pid, sizeof pid, 2, &op) || weft_op_wait(&op, WEFT_FOREVER))
                break;
        }
        weft_ep_close(ep, NULL);
    }
}

static pid_t start_server(const char *uri)
{
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0)
        serve(uri);
    return pid;
}

static weft_on_failure_t try_again(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep;
    (void)user;
    printf("the peer is lost (%s): reconnect\n", weft_status_name(why));
    return WEFT_RECONNECT;
}

static weft_status_t ask(weft_ep_t *ep, pid_t *pid)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    send.timeout_ns = recv.timeout_ns = 10 * WEFT_SECOND;
    weft_status_t status = weft_msg_send(ep, "?", 1, 1, &send);
    if (!status)
        status = weft_op_wait(&send, WEFT_FOREVER);
    if (!status)
        status = weft_msg_recv(ep, pid, sizeof *pid, 2, WEFT_TAG_FULL, &recv);
    return status ? status : weft_op_wait(&recv, WEFT_FOREVER);
}

int main(void)
{
    char uri[64];
    pid_t answered;
    snprintf(uri, sizeof uri, "unix://@weft-example-failure-%d", (int)getpid());
    pid_t first = start_server(uri); /* before a runtime is opened here */
    pid_t second_go[2];
    if (pipe(second_go))
        return 1;
    pid_t second = fork();
    if (second == 0) { /* waits for its turn, then takes the address over */
        char go;
        close(second_go[1]);
        if (read(second_go[0], &go, 1) == 1)
            serve(uri);
        _exit(0);
    }
    close(second_go[0]);

    weft_runtime_t *rt = open_runtime();
    weft_ep_opts_t opts = WEFT_EP_OPTS_INIT;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    opts.hooks.failed = try_again;
    MUST(weft_ep_open(rt, uri, &opts, &op, &ep)); /* the first one may not listen yet: it is tried again */
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    weft_ep_id_t id = weft_ep_id(ep);

    MUST(ask(ep, &answered));
    printf("the %s server answered\n", answered == first ? "first" : "other");

    weft_op_t recv = WEFT_OP_INIT;
    char never;
    MUST(weft_msg_recv(ep, &never, 1, 9, WEFT_TAG_FULL, &recv)); /* nothing will ever match this one */
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    printf("a receive that waited ends with %s\n", weft_status_name(weft_op_wait(&recv, 10 * WEFT_SECOND)));
    if (write(second_go[1], "!", 1) != 1)
        return 1;

    MUST(ask(ep, &answered)); /* waits until the endpoint is back */
    printf("the %s server answered, on the same endpoint: %s\n", answered == second ? "second" : "wrong",
           weft_ep_id(ep) == id ? "yes" : "no");

    MUST(weft_ep_close(ep, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_runtime_close(rt));
    kill(second, SIGKILL);
    waitpid(second, NULL, 0);
    return answered == second ? 0 : 1;
}
