/* tests/fault/lib/raw.c - see raw.h. */
#include "raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAGIC 0x31544657u /* "WFT1" */

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void must(bool fact, const char *what)
{
    if (!fact) {
        perror(what);
        exit(1);
    }
}

int raw_connect(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a), "raw connect");
    return fd;
}

int raw_listen(uint16_t *port_out)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 16) &&
             !getsockname(fd, (struct sockaddr *)&a, &len),
         "raw listen");
    *port_out = ntohs(a.sin_port);
    return fd;
}

int raw_accept(int listener)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};
    must(poll(&p, 1, 5000) == 1, "raw accept");
    int fd = accept(listener, NULL, NULL);
    must(fd >= 0, "raw accept");
    return fd;
}

void raw_send(int fd, const void *bytes, size_t n)
{
    uint32_t head[2] = {FRAME_MAGIC, (uint32_t)n};
    if (send(fd, head, sizeof head, MSG_NOSIGNAL) < 0 || (n && send(fd, bytes, n, MSG_NOSIGNAL) < 0))
        return; /* hung up on: the test finds out by reading */
}

/* 1 all, 0 end, -1 time is over */
static int get(int fd, void *buf, size_t n, double end, weft_runtime_t *rt)
{
    size_t have = 0;
    while (have < n) {
        ssize_t r = recv(fd, (char *)buf + have, n - have, MSG_DONTWAIT);
        if (r == 0 || (r < 0 && errno != EAGAIN))
            return 0;
        if (r > 0)
            have += (size_t)r;
        if (rt)
            weft_runtime_progress(rt);
        if (now() > end)
            return -1;
    }
    return 1;
}

long raw_recv(int fd, void *buf, size_t cap, double seconds, weft_runtime_t *rt)
{
    double end = now() + seconds;
    uint32_t head[2];
    int st = get(fd, head, sizeof head, end, rt);
    if (st <= 0)
        return st;
    must(head[0] == FRAME_MAGIC && head[1] <= cap, "raw frame");
    st = get(fd, buf, head[1], end, rt);
    return st <= 0 ? st : (long)head[1];
}

wefti_hello_t raw_hello(void)
{
    wefti_hello_t h;
    memset(&h, 0, sizeof h);
    h.min_version = WEFTI_PROTOCOL_MIN;
    h.max_version = WEFTI_PROTOCOL_MAX;
    memset(h.nonce, 7, sizeof h.nonce);
    h.heartbeat_ns = 5 * WEFT_SECOND;
    h.recv_window = 65536;
    h.name_len = 3;
    memcpy(h.name, "raw", 4);
    return h;
}

void raw_run(weft_runtime_t *rt, double seconds)
{
    /* and as many turns as a machine that has nothing else to do would take, or about */
    double end = now() + seconds;
    for (unsigned turns = 0; turns < seconds * 2e4 || now() < end; turns++)
        weft_runtime_progress(rt);
}
