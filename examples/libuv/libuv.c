/* examples/libuv/libuv.c - Weft in a libuv loop: a poll handle for its descriptor, a timer for its timeouts, and a prepare
 * handle that arms it.
 *
 * A libuv timer of the program sends a message every 20 ms to the program itself; a callback prints what arrives, and stops the
 * loop after five. */
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>
#include <weft/weft.h>

enum { TAG = 1, MESSAGES = 5 };

static weft_runtime_t *rt;
static weft_ep_t *ep;
static weft_op_t receive = WEFT_OP_INIT;
static char text[64];
static int received, sent;
static uv_poll_t poll_weft;
static uv_prepare_t before_sleep;
static uv_timer_t timeout, tick;

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static void on_message(weft_op_t *op, void *user)
{
    (void)user;
    MUST(op->status);
    printf("%.*s\n", (int)op->len, text);
    if (++received < MESSAGES)
        MUST(weft_msg_recv_any(rt, text, sizeof text, TAG, WEFT_TAG_FULL, op));
    else
        uv_stop(uv_default_loop());
}

static void on_readable(uv_poll_t *handle, int status, int events)
{
    (void)handle, (void)status, (void)events; /* the prepare handle below does the work, before the loop sleeps again */
}

static void on_timeout(uv_timer_t *handle)
{
    (void)handle;
}

/* Before the loop sleeps: do all that Weft has to do, and have the loop wake for Weft's next timer. */
static void on_prepare(uv_prepare_t *handle)
{
    (void)handle;
    do {
        while (weft_runtime_progress(rt))
            ;
    } while (weft_runtime_arm(rt) == WEFT_ERR_AGAIN);
    uint64_t next = weft_runtime_next_timeout(rt);
    if (next == WEFT_FOREVER)
        uv_timer_stop(&timeout);
    else
        uv_timer_start(&timeout, on_timeout, next / WEFT_MILLISECOND + 1, 0);
}

static void on_tick(uv_timer_t *handle)
{
    char line[64];
    int n = snprintf(line, sizeof line, "message %d", ++sent);
    (void)handle;
    MUST(weft_msg_send(ep, line, (size_t)n, TAG, NULL));
}

int main(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_listener_t *listener;
    uv_loop_t *loop = uv_default_loop();

    opts.progress = WEFT_PROGRESS_LOOP;
    MUST(weft_runtime_open(&opts, &rt));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    MUST(weft_ep_open(rt, weft_listener_uri(listener), NULL, NULL, &ep));
    receive.fn = on_message;
    MUST(weft_msg_recv_any(rt, text, sizeof text, TAG, WEFT_TAG_FULL, &receive));

    uv_poll_init(loop, &poll_weft, weft_runtime_fd(rt));
    uv_poll_start(&poll_weft, UV_READABLE, on_readable);
    uv_prepare_init(loop, &before_sleep);
    uv_prepare_start(&before_sleep, on_prepare);
    uv_timer_init(loop, &timeout);
    uv_timer_init(loop, &tick);
    uv_timer_start(&tick, on_tick, 20, 20);
    uv_run(loop, UV_RUN_DEFAULT);

    MUST(weft_runtime_close(rt));
    return 0;
}
