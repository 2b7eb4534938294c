/* examples/extend/extend.c - a program that uses a library on top of libweft: ping.c, which is written with weft/extend.h alone.
 *
 * Both ends are in one process here: two runtimes, each with a thread of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

#include "ping.h"

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

int main(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *here, *there;
    weft_listener_t *listener;
    weft_ep_t *ep, *accepted;
    weft_op_t op = WEFT_OP_INIT;
    opts.progress = WEFT_PROGRESS_THREAD;

    MUST(ping_register()); /* before the runtimes */
    MUST(weft_runtime_open(&opts, &here));
    MUST(weft_runtime_open(&opts, &there));
    MUST(weft_listen(there, "tcp://127.0.0.1:0", NULL, &listener));
    MUST(weft_ep_connect(here, weft_listener_uri(listener), NULL, 10 * WEFT_SECOND, &ep));
    MUST(weft_listener_accept_wait(listener, 10 * WEFT_SECOND, &accepted));

    op.timeout_ns = 5 * WEFT_SECOND;
    MUST(ping(ep, &op)); /* an operation like any other: wait for it, cancel it, give it a deadline or a callback */
    MUST(weft_op_wait(&op, WEFT_FOREVER));
    printf("the peer answered within a second: %s\n", op.len < WEFT_SECOND ? "yes" : "no");

    MUST(weft_runtime_close(there));
    MUST(ping(ep, &op));
    printf("and after it was closed: %s\n", weft_status_name(weft_op_wait(&op, WEFT_FOREVER)));
    MUST(weft_runtime_close(here));
    return 0;
}
