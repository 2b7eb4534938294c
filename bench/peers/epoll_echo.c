/* bench/peers/epoll_echo.c - the least program on epoll that does what calls do: it answers requests over TCP, on many threads.
 *
 *     epoll_echo [--threads S] [--clients C] [--connections K] [--window W] [--size BYTES] [--seconds S] [--spin]
 *                [--client-threads] [--no-pin]
 *
 * The server has S threads, each with an epoll instance of its own, and one acceptor, which hands each connection to the thread
 * with the fewest. A thread reads all that a connection has and answers with one write. It sleeps in epoll_wait() where there is
 * nothing to do; with --spin nobody sleeps. C clients are processes of their own (--client-threads: threads of one process), with
 * K connections each and W requests of 64 B under way on each connection.
 *
 * One line of JSON: calls_s are the calls of all clients in a second, server_us the processor time of the server for a call.
 * It has no frames, no failure detection and no flow control: this is the bound for a server on sockets. load.h has the clients;
 * tests/tools/tools_echo.py runs it. It needs nothing but a C compiler: gcc -O2 -pthread -D_GNU_SOURCE epoll_echo.c */
#include "load.h"

static void open_epoll(load_thread_t *t)
{
    t->fd = epoll_create1(EPOLL_CLOEXEC);
    load_must(t->load, t->fd >= 0, "an epoll instance");
}

static void take(load_thread_t *t, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data = {.fd = fd}};
    load_must(t->load, !epoll_ctl(t->fd, EPOLL_CTL_ADD, fd, &e), "epoll_ctl");
}

/* What is there goes back: false if the connection is over. */
static bool answer(int fd, char *bytes)
{
    const ssize_t got = recv(fd, bytes, LOAD_BYTES, MSG_DONTWAIT);
    ssize_t did;
    if (got <= 0)
        return got && (errno == EAGAIN || errno == EINTR);
    for (ssize_t at = 0; at<got; at += did> 0 ? did : 0) {
        did = send(fd, bytes + at, (size_t)(got - at), MSG_NOSIGNAL);
        if (did < 0 && errno != EINTR)
            return false;
    }
    return true;
}

static void serve(load_thread_t *t)
{
    static _Thread_local char bytes[LOAD_BYTES];
    struct epoll_event events[LOAD_EVENTS];
    while (true) {
        const int n = epoll_wait(t->fd, events, LOAD_EVENTS, t->load->spin ? 0 : -1);
        load_must(t->load, n >= 0 || errno == EINTR, "epoll_wait");
        for (int i = 0; i < n; i++)
            if (!answer(events[i].data.fd, bytes)) {
                close(events[i].data.fd);
                atomic_fetch_sub(&t->connections, 1);
            }
    }
}

int main(int argc, char **argv)
{
    static load_t l = {.peer = {.name = "epoll_echo"}, .open = open_epoll, .take = take, .serve = serve};
    load_options(&l, argc, argv);
    return load_run(&l, "epoll");
}
