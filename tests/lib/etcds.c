/* tests/lib/etcds.c - see etcds.h. */
#include "etcds.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ports.h"

static void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

bool etcd_there(void)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        char file[512];
        size_t n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/etcd", (int)n, path);
        if (!access(file, X_OK))
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

static int socket_at(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {5, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("no socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

bool etcd_post(const etcd_server_t *s, const char *path, const char *body, char *reply, size_t cap)
{
    char head[256];
    int fd = socket_at(s->port);
    if (fd < 0)
        return false;
    snprintf(head, sizeof head, "POST %s HTTP/1.0\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path, strlen(body));
    bool sent = send(fd, head, strlen(head), MSG_NOSIGNAL) == (ssize_t)strlen(head) &&
                send(fd, body, strlen(body), MSG_NOSIGNAL) == (ssize_t)strlen(body);
    size_t n = 0;
    for (ssize_t got; sent && n < cap - 1 && (got = recv(fd, reply + n, cap - 1 - n, 0)) > 0;)
        n += (size_t)got;
    reply[n] = 0;
    close(fd);
    char *start = strstr(reply, "\r\n\r\n");
    if (!start || strncmp(reply, "HTTP/1.", 7) != 0)
        return false;
    memmove(reply, start + 4, strlen(start + 4) + 1);
    return true;
}

/* Removes the directory when the test is gone, whatever ended it: the kernel closes the other end of the pipe. */
static void leave_a_broom(const char *dir)
{
    int fds[2];
    char c;
    if (pipe2(fds, O_CLOEXEC))
        die("no pipe");
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        die("no process");
    if (pid) {
        close(fds[0]);
        return; /* the other end is not closed before the test ends */
    }
    char command[128];
    setsid();
    signal(SIGALRM, SIG_IGN);
    close(fds[1]);
    while (read(fds[0], &c, 1) > 0)
        ;
    for (int i = 0; i < 50; i++) { /* the server may be writing still, for a moment */
        snprintf(command, sizeof command, "rm -rf '%s' 2>/dev/null", dir);
        if (!system(command))
            break;
        usleep(100000);
    }
    _exit(0);
}

static bool launch(etcd_server_t *s)
{
    char cert[96], key[96], data[128], client[64], peer[64], cluster[80], log[96], reply[4096];
    snprintf(data, sizeof data, "%s/data", s->dir);
    snprintf(log, sizeof log, "%s/log", s->dir);
    snprintf(client, sizeof client, "%s://127.0.0.1:%d", s->tls ? "https" : "http", s->port);
    snprintf(cert, sizeof cert, "%s/cert.pem", s->dir);
    snprintf(key, sizeof key, "%s/key.pem", s->dir);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", s->peer_port);
    snprintf(cluster, sizeof cluster, "default=%s", peer);
    fflush(NULL);
    pid_t test = getpid();
    s->pid = fork();
    if (s->pid < 0)
        die("no process for etcd");
    if (!s->pid) {
        int fd = open(log, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != test)
            _exit(1);
        alarm(0);
        dup2(fd, 1);
        dup2(fd, 2);
        execlp("etcd", "etcd", "--data-dir", data, "--listen-client-urls", client, "--advertise-client-urls", client,
               "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
               "--heartbeat-interval", "20", "--election-timeout", "200", s->tls ? "--cert-file" : NULL, cert, "--key-file", key,
               (char *)NULL);
        _exit(127);
    }
    for (double end = now() + 20; now() < end; usleep(10000)) {
        int status;
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
            s->pid = 0;
            return false;
        }
        int fd = s->tls ? socket_at(s->port) : -1; /* it listens before it can serve, and is asked again */
        if (fd >= 0) {
            close(fd);
            return true;
        }
        if (!s->tls && etcd_post(s, "/v3/kv/range", "{\"key\":\"YQ==\"}", reply, sizeof reply) && strstr(reply, "raft_term"))
            return true;
    }
    die("etcd does not answer");
    return false;
}

static void make_dir(etcd_server_t *s)
{
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/weft-etcd-XXXXXX");
    if (!mkdtemp(s->dir))
        die("no directory for etcd");
    leave_a_broom(s->dir);
}

static void launch_new(etcd_server_t *s)
{
    for (int tries = 0; tries < 5; tries++) { /* a program that is none of ours may have taken a port */
        s->port = ports_take();
        s->peer_port = ports_take();
        snprintf(s->uri, sizeof s->uri, "%s://127.0.0.1:%d", s->tls ? "etcd+https" : "etcd", s->port);
        if (launch(s))
            return;
        etcd_forget(s);
    }
    die("etcd does not start");
}

void etcd_new(etcd_server_t *s)
{
    make_dir(s);
    launch_new(s);
}

bool etcd_new_tls(etcd_server_t *s)
{
    char command[512];
    make_dir(s);
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test "
             "-addext subjectAltName=IP:127.0.0.1 -keyout '%s/key.pem' -out '%s/cert.pem' 2>/dev/null",
             s->dir, s->dir);
    if (system(command))
        return false;
    s->tls = true;
    launch_new(s);
    return true;
}

void etcd_start(etcd_server_t *s)
{
    for (int tries = 0; tries < 5; tries++) {
        if (launch(s))
            return;
        usleep(200000);
    }
    die("etcd does not start again");
}

void etcd_forget(etcd_server_t *s)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s/data'", s->dir);
    if (system(command))
        die("what etcd had cannot be removed");
}

void etcd_kill(etcd_server_t *s)
{
    if (!s->pid)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void etcd_end(etcd_server_t *s)
{
    etcd_kill(s);
    etcd_forget(s);
}

static void base64(const void *bytes, size_t n, char *text, size_t cap)
{
    sodium_bin2base64(text, cap, bytes, n, sodium_base64_VARIANT_ORIGINAL);
}

static void must_post(const etcd_server_t *s, const char *path, const char *body, char *reply, size_t cap)
{
    if (!etcd_post(s, path, body, reply, cap) || strstr(reply, "\"error\""))
        die("etcd refuses what a test asks of it");
}

void etcd_put(const etcd_server_t *s, const char *key, const void *value, size_t n)
{
    size_t cap = 4 * n / 3 + 8;
    char key64[1024], reply[4096], *value64 = malloc(cap), *body = malloc(cap + 2048);
    if (!value64 || !body)
        die("no memory for a test");
    base64(key, strlen(key), key64, sizeof key64);
    base64(value, n, value64, cap);
    snprintf(body, cap + 2048, "{\"key\":\"%s\",\"value\":\"%s\"}", key64, value64);
    must_post(s, "/v3/kv/put", body, reply, sizeof reply);
    free(value64);
    free(body);
}

void etcd_delete(const etcd_server_t *s, const char *key)
{
    char key64[1024], body[1200], reply[4096];
    base64(key, strlen(key), key64, sizeof key64);
    snprintf(body, sizeof body, "{\"key\":\"%s\"}", key64);
    must_post(s, "/v3/kv/deleterange", body, reply, sizeof reply);
}

void etcd_compact(const etcd_server_t *s)
{
    char reply[4096], body[64];
    must_post(s, "/v3/kv/range", "{\"key\":\"YQ==\"}", reply, sizeof reply);
    const char *at = strstr(reply, "\"revision\":\"");
    if (!at)
        die("etcd does not say its revision");
    snprintf(body, sizeof body, "{\"revision\":\"%lld\",\"physical\":true}", atoll(at + 12));
    must_post(s, "/v3/kv/compaction", body, reply, sizeof reply);
}
