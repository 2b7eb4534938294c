/* examples/messages/messages.c - every way to send and to receive a tag message, between two runtimes of one process.
 *
 * Each runtime has a thread of its own, so that either side may wait without driving the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

static void connect_two(weft_runtime_t *server, weft_runtime_t *client, weft_listener_t **listener, weft_ep_t **accepted,
                        weft_ep_t **opened)
{
    weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT;
    MUST(weft_listen(server, "tcp://127.0.0.1:0", NULL, listener));
    MUST(weft_listener_accept(*listener, &accept));
    MUST(weft_ep_open(client, weft_listener_uri(*listener), NULL, &connect, opened));
    WAIT(connect);
    WAIT(accept);
    *accepted = accept.buf;
}

/* A tag and a mask: the low byte is the kind, the rest a number that the receiver does not mind. */
static void choose_by_mask(weft_ep_t *from, weft_ep_t *to)
{
    enum { KIND_REPORT = 0x07 };
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char text[32];
    MUST(weft_msg_recv(to, text, sizeof text, KIND_REPORT, 0xff, &recv));
    MUST(weft_msg_send(from, "all is well", 12, 4711 << 8 | KIND_REPORT, &send));
    WAIT(recv);
    printf("report %d: %s\n", (int)(recv.tag >> 8), text);
    WAIT(send);
}

/* A receive that makes its buffer, from whichever peer sends first. */
static void make_it_fit(weft_ep_t *from, weft_runtime_t *at)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    static char large[100000];
    MUST(weft_msg_recv_alloc(at, NULL, 1 << 20, 0, WEFT_TAG_ANY, &recv));
    MUST(weft_msg_send(from, large, sizeof large, 1, &send));
    WAIT(recv);
    WAIT(send);
    printf("made a buffer of %d bytes for endpoint %s\n", (int)recv.len, recv.from ? "that sent it" : "?");
    weft_buf_free(recv.buf);
}

/* Pieces on both sides, cut in different places. */
static void pieces(weft_ep_t *from, weft_ep_t *to)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char head[4] = "", body[32] = "";
    weft_iov_t out[3] = {{"one ", 4}, {"two ", 4}, {"three", 6}}, in[2] = {{head, 3}, {body, sizeof body}};
    weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
    opts.iov = out;
    opts.iov_n = 3;
    opts.tag = 2;
    MUST(weft_msg_recv_iov(weft_ep_runtime(to), to, in, 2, 2, WEFT_TAG_FULL, &recv));
    MUST(weft_msg_send_with(from, &opts, &send));
    WAIT(recv);
    WAIT(send);
    printf("in two pieces: '%s' and '%s'\n", head, body);
}

static void freed(void *buf, void *user)
{
    (void)user;
    free(buf);
}

/* Give the buffer away: no operation to wait for. */
static void give_away(weft_ep_t *from, weft_ep_t *to)
{
    weft_op_t recv = WEFT_OP_INIT;
    char text[16];
    weft_msg_send_opts_t opts = WEFT_MSG_SEND_OPTS_INIT;
    opts.buf = strdup("yours now");
    opts.len = 10;
    opts.tag = 3;
    opts.release = freed;
    MUST(weft_msg_send_with(from, &opts, NULL));
    MUST(weft_msg_recv(to, text, sizeof text, 3, WEFT_TAG_FULL, &recv));
    WAIT(recv);
    printf("given away: %s\n", text);
}

/* Too long for the buffer: the receive says so, and says how long it was. */
static void too_long(weft_ep_t *from, weft_ep_t *to)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char small[4];
    MUST(weft_msg_recv(to, small, sizeof small, 4, WEFT_TAG_FULL, &recv));
    MUST(weft_msg_send(from, "much too long", 14, 4, &send));
    weft_status_t status = weft_op_wait(&recv, 10 * WEFT_SECOND);
    printf("%s: %d bytes did not fit\n", weft_status_name(status), (int)recv.len);
    WAIT(send);
}

int main(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *server, *client;
    weft_listener_t *listener;
    weft_ep_t *accepted, *opened;
    weft_op_t op = WEFT_OP_INIT;
    opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&opts, &server));
    MUST(weft_runtime_open(&opts, &client));
    connect_two(server, client, &listener, &accepted, &opened);

    choose_by_mask(opened, accepted);
    make_it_fit(opened, server);
    pieces(opened, accepted);
    give_away(opened, accepted);
    too_long(opened, accepted);

    MUST(weft_ep_close(opened, &op));
    WAIT(op);
    MUST(weft_ep_close(accepted, &op));
    WAIT(op);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(client));
    MUST(weft_runtime_close(server));
    return 0;
}
