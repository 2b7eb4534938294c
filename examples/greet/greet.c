/* examples/greet/greet.c - the program of the README: it waits for a message, or sends one to the address it is given. */
#include <stdio.h>
#include <weft/weft.h>
#define MUST(call) \
    if (call) \
    return fprintf(stderr, "%s\n", weft_last_error()), 1

int main(int argc, char **argv)
{
    char text[64] = "";
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;

    MUST(weft_runtime_open(NULL, &rt));
    if (argc > 1) {
        MUST(weft_ep_open(rt, argv[1], NULL, NULL, &ep));
        MUST(weft_msg_send_wait(ep, "hello from C", 12, 1, 5 * WEFT_SECOND));
    } else {
        MUST(weft_listen(rt, "tcp://127.0.0.1:13337", NULL, &listener));
        MUST(weft_listener_accept(listener, &op) || weft_op_wait(&op, WEFT_FOREVER));
        ep = weft_op_ep(&op);
        MUST(weft_msg_recv_wait(ep, text, sizeof text - 1, 1, WEFT_TAG_FULL, 5 * WEFT_SECOND, NULL));
        printf("received: %s\n", text);
    }
    MUST(weft_ep_close(ep, &op) || weft_op_wait(&op, 5 * WEFT_SECOND)); /* loses nothing that was sent */
    return weft_runtime_close(rt);
}
