/* tests/lib/ports.c - see ports.h. ports.py does the same for Python's tests, and the two know of each other. */
#include "ports.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LOWEST = 2000, MANY = 4000 };

/* The first port that the system gives out by itself. */
static int first_given_out(void)
{
    int first = 32768;
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    if (f) {
        if (fscanf(f, "%d", &first) != 1)
            first = 32768;
        fclose(f);
    }
    return first > LOWEST + MANY ? first : 32768;
}

/* A socket without a file is the note that a port is taken: it is gone with its process, however that ends. */
static bool note(int port)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int n = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "weft-test-port-%d", port);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n))) {
        close(fd);
        return false;
    }
    return true;
}

static bool nobody_has(int port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool free = fd >= 0 && !bind(fd, (struct sockaddr *)&in, sizeof in);
    close(fd);
    return free;
}

uint16_t ports_take(void)
{
    int below = first_given_out();
    for (int i = 0; i < MANY; i++) {
        int port = below - 1 - (getpid() * 7 + i) % MANY;
        if (note(port) && nobody_has(port))
            return (uint16_t)port;
    }
    fprintf(stderr, "there is no port for a test\n");
    exit(1);
}

bool ports_tls(void)
{
    return getenv("TEST_WEFT_TLS") != NULL;
}

const char *ports_tcp(void)
{
    return ports_tls() ? "tls://127.0.0.1:0" : "tcp://127.0.0.1:0";
}

const char *ports_local(const char *name)
{
    static char names[4][100];
    static unsigned n;
    char *out = names[n++ % 4];
    snprintf(out, sizeof *names, "unix://@weft-test-%s-%d", name, (int)getpid());
    return out;
}

/* Ends the test where it cannot. */
static int at(const char *local, bool listens, int backlog)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const char *name = local + strlen("unix://@");
    size_t n = strlen(name);
    memcpy(un.sun_path + 1, name, n);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        (listens ? !bind(fd, (struct sockaddr *)&un, len) && !listen(fd, backlog) : !connect(fd, (struct sockaddr *)&un, len)))
        return fd;
    perror(local);
    exit(1);
}

int ports_connect(const char *local)
{
    return at(local, false, 0);
}

int ports_listen(const char *local, int backlog)
{
    return at(local, true, backlog);
}
