/* tools/run/asks.c - what elements of this machine ask the launcher while they run: a Unix socket in the scratch directory.
 *
 * A client sends one line and gets one back. The kernel says who it is: it must be the same user, in the process group of a
 * running compute element. A line that is too long ends the connection. What is asked is nobody's business here: invoke.c
 * answers it, on this machine or on another. tests/tools/tools_run_invoke.py checks it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "run.h"

#define LINE_MAX_BYTES ((size_t)1 << 20)
#define CLIENTS_MAX 1024

typedef struct client {
    run_source_t source; /* first: epoll has it */
    run_proc_t *who;     /* NULL: not an element of this run; it is refused after its request */
    uint64_t question;   /* its number, never 0 */
    bool asked;          /* its line has come, and the answer is due */
    run_text_t heard;
    struct client *next;
} client_t;

static client_t *clients, *gone; /* gone: epoll may have told of it already */
static unsigned n_clients;
static uint64_t n_questions;

static void client_free(client_t *c)
{
    client_t **at = &clients;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    n_clients--;
    run_unwatch(&c->source);
    run_free(&c->heard);
    c->source.fd = -1;
    c->next = gone;
    gone = c;
}

/* A line of this length fits into an empty socket; a client that does not read it does not need it. */
static void send_line(int fd, const char *line, size_t n)
{
    (void)!send(fd, line, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void refuse(int fd, const char *why)
{
    run_text_t line = {0};
    run_answer_line(&line, false, "error", why);
    send_line(fd, line.p, line.n);
    run_free(&line);
}

void run_serve_answer(run_proc_t *p, uint64_t question, const char *line, size_t n)
{
    client_t *c = clients;
    (void)p;
    while (c && c->question != question)
        c = c->next;
    if (!c)
        return; /* it has hung up */
    send_line(c->source.fd, line, n);
    client_free(c);
}

static void ask(client_t *c, const char *line, size_t n)
{
    c->asked = true;
    if (c->who && !c->who->over) {
        c->who->run->news->asked(c->who, c->question, line, n);
        return;
    }
    refuse(c->source.fd, "only elements of this run are answered");
    client_free(c);
}

static void client_ready(run_source_t *s, uint32_t events)
{
    client_t *c = (client_t *)s;
    char piece[16384], *newline;
    ssize_t n;
    if (c->asked && events & EPOLLHUP) {
        client_free(c); /* it does not wait for the answer */
        return;
    }
    n = recv(s->fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0 && !c->asked)
        run_add(&c->heard, piece, (size_t)n);
    newline = c->heard.n ? memchr(c->heard.p, '\n', c->heard.n) : NULL;
    if (newline && !c->asked)
        ask(c, c->heard.p, (size_t)(newline - c->heard.p));
    else if (c->asked && !n) /* it has said all that it had to say, and may wait for the answer */
        epoll_ctl(s->run->epoll, EPOLL_CTL_MOD, s->fd, &(struct epoll_event){.data.ptr = s});
    else if (n <= 0 || c->heard.n > LINE_MAX_BYTES)
        client_free(c);
}

/* Which element is it? */
static run_proc_t *who_is(run_t *run, int fd)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    pid_t group;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid() || cred.pid <= 0)
        return NULL;
    group = getpgid(cred.pid);
    for (run_proc_t *p = run->procs; p; p = p->next)
        if (p->host == &run->here && !p->over && !p->element->memory && p->pid == group)
            return p;
    return NULL;
}

static void server_ready(run_source_t *s, uint32_t events)
{
    struct sockaddr_un from;
    socklen_t n = sizeof from;
    int fd = accept4(s->fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    run_proc_t *who = fd >= 0 ? who_is(s->run, fd) : NULL;
    client_t *c;
    (void)events;
    if (fd < 0)
        return;
    if (n_clients == CLIENTS_MAX) {
        refuse(fd, "too many ask at once");
        close(fd);
        return;
    }
    c = run_alloc(sizeof *c);
    c->who = who;
    c->question = ++n_questions;
    c->next = clients;
    clients = c;
    n_clients++;
    if (!run_watch(s->run, &c->source, fd, EPOLLIN, client_ready))
        client_free(c);
}

void run_serve_reap(void)
{
    while (gone) {
        client_t *c = gone;
        gone = c->next;
        free(c);
    }
}

bool run_serve_open(run_t *run)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    run->socket_path = run_printf("%s/launcher", run->scratch);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", run->socket_path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64) ||
        !run_watch(run, &run->server, fd, EPOLLIN, server_ready)) {
        tool_error("no socket for elements can be made at %s: %s", run->socket_path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    return true;
}

void run_serve_close(run_t *run)
{
    while (clients)
        client_free(clients);
    run_serve_reap();
    run_unwatch(&run->server);
    if (run->socket_path)
        unlink(run->socket_path);
}
