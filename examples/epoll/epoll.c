/* examples/epoll/epoll.c - Weft in a program's own epoll loop: no thread of Weft's, and the program's own descriptors beside it.
 *
 * The loop watches two things: the runtime's descriptor and a timerfd of the program. Each tick of the timer sends a message to
 * the program itself; a callback prints what arrives. After five messages the loop ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <weft/weft.h>

enum { TAG = 1, MESSAGES = 5 };

static weft_runtime_t *rt;
static weft_op_t receive = WEFT_OP_INIT;
static char text[64];
static int received;

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

/* Runs inside weft_runtime_progress(). */
static void on_message(weft_op_t *op, void *user)
{
    (void)user;
    MUST(op->status);
    printf("%.*s\n", (int)op->len, text);
    if (++received < MESSAGES)
        MUST(weft_msg_recv_any(rt, text, sizeof text, TAG, WEFT_TAG_FULL, op));
}

/* Do all that Weft has to do now. Returns for how many milliseconds the loop may sleep. */
static int drive(void)
{
    do {
        while (weft_runtime_progress(rt))
            ;
    } while (weft_runtime_arm(rt) == WEFT_ERR_AGAIN); /* something came between the two */
    uint64_t next = weft_runtime_next_timeout(rt);
    return next == WEFT_FOREVER ? -1 : (int)(next / WEFT_MILLISECOND + 1);
}

static void send_one(weft_ep_t *ep, int number)
{
    char line[64];
    int n = snprintf(line, sizeof line, "message %d", number);
    MUST(weft_msg_send(ep, line, (size_t)n, TAG, NULL)); /* NULL: the bytes are copied, nobody waits */
}

static void loop(weft_ep_t *ep)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), sent = 0;
    struct itimerspec every = {.it_interval.tv_nsec = 20000000, .it_value.tv_nsec = 20000000};
    struct epoll_event weft = {.events = EPOLLIN, .data.fd = weft_runtime_fd(rt)}, tick = {.events = EPOLLIN, .data.fd = timer};
    if (epoll < 0 || timer < 0 || timerfd_settime(timer, 0, &every, NULL) ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, weft.data.fd, &weft) || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &tick)) {
        perror("epoll");
        exit(1);
    }
    while (received < MESSAGES) {
        struct epoll_event event;
        int n = epoll_wait(epoll, &event, 1, drive());
        uint64_t ticks;
        if (n == 1 && event.data.fd == timer && read(timer, &ticks, sizeof ticks) == sizeof ticks)
            send_one(ep, ++sent);
    }
    close(timer);
    close(epoll);
}

int main(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_listener_t *listener;
    weft_ep_t *ep;

    opts.progress = WEFT_PROGRESS_LOOP;
    MUST(weft_runtime_open(&opts, &rt));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    MUST(weft_ep_open(rt, weft_listener_uri(listener), NULL, NULL, &ep));
    receive.fn = on_message;
    MUST(weft_msg_recv_any(rt, text, sizeof text, TAG, WEFT_TAG_FULL, &receive));
    loop(ep);
    MUST(weft_runtime_close(rt));
    return 0;
}
