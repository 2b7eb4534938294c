/* bench/peers/load.h - the load for servers that echo over TCP: options, the clients, who runs on which core, and the acceptor.
 *
 * epoll_echo.c and uring_echo.c include it, and have of their own how a thread of the server waits, reads and answers. So both
 * are asked the same by the same clients. The program that was started forks the server and then the clients; all die with it.
 *
 * A client has K connections, each with W requests under way. It sends as many requests as it has got answers, with one write.
 * Each request begins with its number on that connection, and an answer that is not the next one ends the program with status 1.
 * An answer counts if it is seen between two times that are the same for all clients. The first of them comes when every
 * connection has had an answer, and a short warm-up is over.
 *
 * Every server thread and every client has a core of its own if there are enough for all; otherwise the kernel chooses, as in
 * weft perf. What is shared by the processes is in one page of memory. */
#ifndef WEFT_BENCH_LOAD_H
#define WEFT_BENCH_LOAD_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "peer.h"

#define LOAD_MAX 256           /* threads of the server, and clients */
#define LOAD_BYTES (64u << 10) /* the most that is under way on a connection: what a socket's buffers always take */
#define LOAD_EVENTS 256

typedef struct load load_t;

typedef struct load_thread {   /* of the server */
    load_t *load;
    unsigned nth;
    atomic_uint connections;
    int fd;                    /* an epoll instance, or where the acceptor writes descriptors */
    int far;                   /* the other end of that */
    pthread_t thread;
} load_thread_t;

typedef struct load_shared {
    atomic_uint ready;         /* clients that have had an answer on every connection */
    _Atomic uint64_t start, stop; /* nanoseconds of the monotonic clock; 0: not yet */
    _Atomic uint64_t calls[LOAD_MAX];
} load_shared_t;

struct load {
    peer_t peer;               /* name, size, window, seconds, pin */
    uint64_t threads, clients, connections;
    bool spin, in_threads;
    const char *more;          /* options of the program itself, for the usage */
    bool (*option)(const char *name, const char *value);
    void (*open)(load_thread_t *t);         /* before the first connection, on the acceptor */
    void (*take)(load_thread_t *t, int fd); /* a connection for this thread, on the acceptor */
    void (*serve)(load_thread_t *t);        /* until the end */
    int listener;
    struct sockaddr_in at;
    load_shared_t *shared;
    load_thread_t server[LOAD_MAX];
    pid_t pids[LOAD_MAX];
    unsigned n_pids;
};

static inline void load_must(const load_t *l, bool good, const char *what)
{
    if (!good)
        peer_die(&l->peer, what, strerror(errno));
}

/* --- options and cores ----------------------------------------------------------------------------------- */

static inline void load_options(load_t *l, int argc, char **argv)
{
    peer_t *p = &l->peer;
    p->size = 64;
    p->window = l->threads = l->clients = l->connections = 1;
    p->seconds = 1;
    p->pin = true;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool flag = true;
        if (!strcmp(name, "--spin"))
            l->spin = true;
        else if (!strcmp(name, "--client-threads"))
            l->in_threads = true;
        else if (!strcmp(name, "--no-pin"))
            p->pin = false;
        else
            flag = false;
        if (flag)
            continue;
        if (!strcmp(name, "--threads")) {
            l->threads = peer_number(p, name, value, 1, LOAD_MAX);
        } else if (!strcmp(name, "--clients")) {
            l->clients = peer_number(p, name, value, 1, LOAD_MAX);
        } else if (!strcmp(name, "--connections")) {
            l->connections = peer_number(p, name, value, 1, 25000);
        } else if (!strcmp(name, "--window")) {
            p->window = peer_number(p, name, value, 1, LOAD_BYTES / 8);
        } else if (!strcmp(name, "--size")) {
            p->size = peer_number(p, name, value, 8, LOAD_BYTES);
        } else if (!strcmp(name, "--seconds") && value && (p->seconds = atof(value)) > 0 && p->seconds <= 600) {
        } else if (!l->option || !value || !l->option(name, value)) {
            fprintf(stderr,
                    "%s: %s is no option, or its value is not right\n"
                    "usage: %s [--threads S] [--clients C] [--connections K] [--window W] [--size BYTES] [--seconds S] [--spin]\n"
                    "       [--client-threads] [--no-pin]%s\n",
                    p->name, name, p->name, l->more ? l->more : "");
            exit(2);
        }
        i++;
    }
    if (p->size * p->window > LOAD_BYTES) {
        fprintf(stderr, "%s: at most %u bytes can be under way on a connection\n", p->name, LOAD_BYTES);
        exit(2);
    }
}

/* This thread runs on the nth core: server threads have the first ones, then the clients. */
static inline void load_pin(const load_t *l, unsigned nth)
{
    cpu_set_t allowed;
    if (!sched_getaffinity(0, sizeof allowed, &allowed) && (uint64_t)CPU_COUNT(&allowed) >= l->threads + l->clients)
        peer_pin(&l->peer, nth);
}

/* A child that ends with its parent. */
static inline bool load_fork(load_t *l)
{
    pid_t parent = getpid(), pid = fork();
    load_must(l, pid >= 0, "fork");
    if (!pid && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    if (pid)
        l->pids[l->n_pids++] = pid;
    return !pid;
}

static inline void load_no_delay(const load_t *l, int fd)
{
    const int on = 1;
    load_must(l, !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
}

/* --- the server ------------------------------------------------------------------------------------------ */

static inline void *load_server_thread(void *arg)
{
    load_thread_t *t = (load_thread_t *)arg;
    load_pin(t->load, t->nth);
    t->load->serve(t);
    return NULL;
}

/* Accept, and hand each connection to the thread with the fewest. Until somebody ends it. */
static inline void load_server(load_t *l)
{
    for (unsigned i = 0; i < l->threads; i++) {
        load_thread_t *t = &l->server[i];
        t->load = l;
        t->nth = i;
        l->open(t);
        load_must(l, !(errno = pthread_create(&t->thread, NULL, load_server_thread, t)), "a thread");
    }
    while (true) {
        int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        load_must(l, fd >= 0, "accept");
        load_no_delay(l, fd);
        load_thread_t *least = &l->server[0];
        for (unsigned i = 1; i < l->threads; i++)
            if (atomic_load(&l->server[i].connections) < atomic_load(&least->connections))
                least = &l->server[i];
        atomic_fetch_add(&least->connections, 1);
        l->take(least, fd);
    }
}

/* --- a client -------------------------------------------------------------------------------------------- */

typedef struct load_conn {
    int fd;
    uint32_t have;             /* bytes of answers that are not whole */
    uint64_t sent, answered;
    char *in;                  /* size * window bytes */
} load_conn_t;

typedef struct load_client {
    load_t *load;
    unsigned nth;
    int epoll;
    load_conn_t *conns;
    char *out;
    pthread_t thread;
} load_client_t;

static inline void load_connect(load_client_t *c, load_conn_t *n)
{
    const load_t *l = c->load;
    const struct timeval limit = {.tv_sec = PEER_LIMIT_S};
    struct epoll_event e = {.events = EPOLLIN, .data = {.ptr = n}};
    n->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    load_must(l, n->fd >= 0, "a socket");
    load_must(l, !setsockopt(n->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
    load_must(l, !setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), "SO_SNDTIMEO");
    load_must(l, !connect(n->fd, (const struct sockaddr *)&l->at, sizeof l->at), "connect");
    load_no_delay(l, n->fd);
    n->in = (char *)malloc(l->peer.size * l->peer.window);
    load_must(l, n->in != NULL, "a connection");
    load_must(l, !epoll_ctl(c->epoll, EPOLL_CTL_ADD, n->fd, &e), "epoll_ctl");
}

/* So many requests, with one write. */
static inline void load_ask(const load_client_t *c, load_conn_t *n, uint64_t count)
{
    const size_t size = c->load->peer.size, bytes = count * size;
    ssize_t did;
    for (uint64_t i = 0; i < count; i++, n->sent++)
        memcpy(c->out + i * size, &n->sent, sizeof n->sent);
    for (size_t at = 0; at < bytes; at += did > 0 ? (size_t)did : 0) {
        did = send(n->fd, c->out + at, bytes - at, MSG_NOSIGNAL);
        load_must(c->load, did > 0 || errno == EINTR, "a request");
    }
}

/* Take the answers that are here; how many. */
static inline uint64_t load_answers(const load_client_t *c, load_conn_t *n, bool wait)
{
    const size_t size = c->load->peer.size, cap = size * c->load->peer.window;
    const ssize_t got = recv(n->fd, n->in + n->have, cap - n->have, wait ? 0 : MSG_DONTWAIT);
    uint64_t number, count = 0;
    if (got < 0 && (errno == EINTR || (errno == EAGAIN && !wait)))
        return 0;
    if (!got)
        peer_die(&c->load->peer, "the server", "is gone");
    load_must(c->load, got > 0, "an answer");
    n->have += (uint32_t)got;
    for (; (count + 1) * size <= n->have; count++) {
        memcpy(&number, n->in + count * size, sizeof number);
        if (number != n->answered++ || (size > 8 && n->in[(count + 1) * size - 1] != 0x5a))
            peer_die(&c->load->peer, "an answer", "is not what was sent");
    }
    n->have -= (uint32_t)(count * size);
    memmove(n->in, n->in + count * size, n->have);
    return count;
}

/* One turn: answers of all connections that have some, and as many new requests; how many. */
static inline uint64_t load_turn(const load_client_t *c)
{
    const load_t *l = c->load;
    struct epoll_event events[LOAD_EVENTS];
    uint64_t all = 0, count;
    if (l->connections == 1) {
        count = load_answers(c, c->conns, !l->spin);
        if (count)
            load_ask(c, c->conns, count);
        return count;
    }
    const int n = epoll_wait(c->epoll, events, LOAD_EVENTS, l->spin ? 0 : PEER_LIMIT_S * 1000);
    load_must(l, n >= 0 || errno == EINTR, "epoll_wait");
    if (!n && !l->spin)
        peer_die(&l->peer, "the server", "said nothing for too long");
    for (int i = 0; i < n; i++) {
        load_conn_t *conn = (load_conn_t *)events[i].data.ptr;
        count = load_answers(c, conn, false);
        if (count)
            load_ask(c, conn, count);
        all += count;
    }
    return all;
}

static inline void *load_client(void *arg)
{
    load_client_t *c = (load_client_t *)arg;
    load_t *l = c->load;
    load_shared_t *s = l->shared;
    uint64_t calls = 0, start, stop, now;
    load_pin(l, (unsigned)l->threads + c->nth);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->conns = (load_conn_t *)calloc(l->connections, sizeof *c->conns);
    c->out = (char *)malloc(l->peer.size * l->peer.window);
    load_must(l, c->epoll >= 0 && c->conns && c->out, "a client");
    memset(c->out, 0x5a, l->peer.size * l->peer.window);
    for (uint64_t i = 0; i < l->connections; i++)
        load_connect(c, &c->conns[i]);
    for (uint64_t i = 0; i < l->connections; i++)
        load_ask(c, &c->conns[i], l->peer.window);
    for (uint64_t i = 0; i < l->connections; i++)
        while (!c->conns[i].answered)
            load_turn(c);
    atomic_fetch_add(&s->ready, 1);
    while (!(start = atomic_load(&s->start)))
        load_turn(c);
    stop = atomic_load(&s->stop);
    do {
        const uint64_t got = load_turn(c);
        now = peer_now_ns();
        if (now >= start && now < stop)
            calls += got;
    } while (now < stop);
    atomic_store(&s->calls[c->nth], calls);
    return NULL;
}

/* This process is client `first`, or all of them in threads. */
static inline void load_be_clients(load_t *l, unsigned first, unsigned n)
{
    static load_client_t clients[LOAD_MAX];
    for (unsigned i = 0; i < n; i++) {
        clients[i] = (load_client_t){.load = l, .nth = first + i};
        load_must(l, !(errno = pthread_create(&clients[i].thread, NULL, load_client, &clients[i])), "a thread");
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(clients[i].thread, NULL);
}

/* --- the program that was started ------------------------------------------------------------------------ */

static inline void load_end(load_t *l)
{
    for (unsigned i = 0; i < l->n_pids; i++)
        if (l->pids[i]) {
            kill(l->pids[i], SIGKILL);
            waitpid(l->pids[i], NULL, 0);
        }
}

/* Ends the program if one of the children did not end well, or the server ended at all; how many clients are still there. */
static inline unsigned load_look(load_t *l)
{
    unsigned live = 0;
    for (unsigned i = 0; i < l->n_pids; i++) {
        int status = 0;
        if (l->pids[i] && waitpid(l->pids[i], &status, WNOHANG) == l->pids[i]) {
            l->pids[i] = 0;
            if (i == 0 || status) {
                if (i == 0 || WIFSIGNALED(status)) /* others have said why */
                    fprintf(stderr, "%s: %s is gone\n", l->peer.name, i ? "a client" : "the server");
                load_end(l);
                exit(1);
            }
        }
        live += i && l->pids[i];
    }
    return live;
}

static inline void load_until(load_t *l, uint64_t when)
{
    uint64_t now;
    while ((now = peer_now_ns()) < when) {
        load_look(l);
        usleep((useconds_t)((when - now) / 1000 < 50000 ? (when - now) / 1000 + 1 : 50000));
    }
}

static inline void load_listen(load_t *l)
{
    socklen_t n = sizeof l->at;
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    l->shared = (load_shared_t *)mmap(NULL, sizeof *l->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    load_must(l, l->shared != MAP_FAILED, "memory");
    l->at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    load_must(l, l->listener >= 0 && !bind(l->listener, (const struct sockaddr *)&l->at, sizeof l->at) &&
                     !listen(l->listener, 4096) && !getsockname(l->listener, (struct sockaddr *)&l->at, &n), "listening");
}

/* Everything. `kind`: what the line of JSON says of the server. */
static inline int load_run(load_t *l, const char *kind)
{
    uint64_t calls = 0, deadline = peer_now_ns() + PEER_LIMIT_S * PEER_SECOND;
    struct timespec used[2];
    clockid_t clock;
    const unsigned processes = l->in_threads ? 1 : (unsigned)l->clients;
    load_listen(l);
    if (load_fork(l)) {
        load_server(l);
        _exit(0);
    }
    close(l->listener);
    for (unsigned i = 0; i < processes; i++)
        if (load_fork(l)) {
            load_be_clients(l, i, l->in_threads ? (unsigned)l->clients : 1);
            _exit(0);
        }
    while (atomic_load(&l->shared->ready) < l->clients) {
        load_look(l);
        if (peer_now_ns() > deadline) {
            fprintf(stderr, "%s: the clients were not all answered in time\n", l->peer.name);
            load_end(l);
            exit(1);
        }
        usleep(1000);
    }
    load_must(l, !clock_getcpuclockid(l->pids[0], &clock), "the server's clock");
    const uint64_t start = peer_now_ns() + (uint64_t)((l->peer.seconds < 0.8 ? l->peer.seconds / 4 : 0.2) * 1e9);
    const uint64_t stop = start + (uint64_t)(l->peer.seconds * 1e9);
    atomic_store(&l->shared->stop, stop);
    atomic_store(&l->shared->start, start);
    load_until(l, start);
    clock_gettime(clock, &used[0]);
    load_until(l, stop);
    clock_gettime(clock, &used[1]);
    for (deadline = stop + (PEER_LIMIT_S + 10) * PEER_SECOND; load_look(l);) {
        if (peer_now_ns() > deadline)
            peer_die(&l->peer, "a client", "did not end in time");
        usleep(500);
    }
    load_end(l);
    for (unsigned i = 0; i < l->clients; i++)
        calls += atomic_load(&l->shared->calls[i]);
    const double us = (double)(used[1].tv_sec - used[0].tv_sec) * 1e6 + (double)(used[1].tv_nsec - used[0].tv_nsec) / 1e3;
    if (!calls)
        peer_die(&l->peer, "the clients", "had no answer in that time");
    printf("{\"server\": \"%s\", \"threads\": %llu, \"clients\": %llu, \"connections\": %llu, \"window\": %llu, \"size\": %llu, "
           "\"calls_s\": %.0f, \"server_us\": %.3f}\n",
           kind, (unsigned long long)l->threads, (unsigned long long)l->clients, (unsigned long long)l->connections,
           (unsigned long long)l->peer.window, (unsigned long long)l->peer.size, (double)calls / l->peer.seconds,
           us / (double)calls);
    return 0;
}

#endif
