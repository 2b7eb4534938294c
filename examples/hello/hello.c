/* examples/hello/hello.c - two processes greet each other.
 *
 * The parent listens on a port the system picks and tells the child its address through a pipe; the child connects, sends, and
 * waits for the answer. fork() comes before weft_runtime_open(): a runtime belongs to the process that opened it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

enum { TAG_QUESTION = 1, TAG_ANSWER = 2 };

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static void ask(const char *uri)
{
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    char answer[64];

    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_ep_open(rt, uri, NULL, NULL, &ep)); /* returns at once: what is posted waits for the peer */
    MUST(weft_msg_send(ep, "who is there?", 14, TAG_QUESTION, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_msg_recv(ep, answer, sizeof answer, TAG_ANSWER, WEFT_TAG_FULL, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    printf("got %d bytes: %s\n", (int)op.len, answer);

    MUST(weft_ep_close(ep, &op)); /* loses nothing that was sent */
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_runtime_close(rt));
}

static void answer(int to_child)
{
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_ep_t *ep;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    char question[64];

    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener)); /* port 0: the system picks one */
    dprintf(to_child, "%s", weft_listener_uri(listener));
    close(to_child);

    MUST(weft_listener_accept(listener, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    ep = weft_op_ep(&op);
    MUST(weft_msg_recv(ep, question, sizeof question, TAG_QUESTION, WEFT_TAG_FULL, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_ep_get_info(ep, &info));
    printf("%s asks over %s: %s\n", info.peer_name, info.transport, question);
    fflush(stdout);
    MUST(weft_msg_send(ep, "a friend", 9, TAG_ANSWER, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));

    MUST(weft_ep_close(ep, &op));
    MUST(weft_op_wait(&op, 10 * WEFT_SECOND));
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
}

int main(void)
{
    int pipe_fds[2], status;
    if (pipe(pipe_fds)) {
        perror("pipe");
        return 1;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        char uri[128];
        close(pipe_fds[1]);
        ssize_t n = read(pipe_fds[0], uri, sizeof uri - 1);
        if (n <= 0)
            return 1; /* the parent has said why */
        uri[n] = '\0';
        ask(uri);
        return 0;
    }
    close(pipe_fds[0]);
    answer(pipe_fds[1]);
    if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}
