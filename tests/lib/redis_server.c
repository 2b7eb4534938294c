/* tests/lib/redis_server.c - see redis_server.h. */
#include "redis_server.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ports.h"

static void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static const char *program(void)
{
    static const char *const all[] = {"/usr/bin/redis-server", "/usr/local/bin/redis-server", "/usr/bin/redis-check-rdb"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!access(all[i], X_OK))
            return all[i];
    return NULL;
}

bool redis_server_here(void)
{
    return program() != NULL;
}

static int dial(const redis_server_t *s)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct timeval limit = {20, 0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(un.sun_path, sizeof un.sun_path, "%s/redis.sock", s->folder);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof un)) {
        close(fd);
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

void redis_server_again(redis_server_t *s)
{
    char port[16], path[96];
    snprintf(port, sizeof port, "%d", s->port);
    snprintf(path, sizeof path, "%s/redis.sock", s->folder);
    unlink(path);
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        die("no process for a Redis server");
    if (!pid) {
        int nothing = open("/dev/null", O_RDWR);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(nothing, 0);
        dup2(nothing, 1);
        alarm(0);
        /* the name it is called by decides what it is */
        execl(program(), "redis-server", "--bind", "127.0.0.1", "--port", port, "--unixsocket", path, "--save", "",
              "--appendonly", "no", "--dir", s->folder, "--daemonize", "no", "--requirepass", s->password,
              "--notify-keyspace-events", s->events, (char *)NULL);
        _exit(127);
    }
    s->pid = pid;
    for (int i = 0;; i++) {
        int status, fd = dial(s);
        if (fd >= 0) {
            close(fd);
            return;
        }
        if (waitpid(pid, &status, WNOHANG) == pid || i > 4000)
            die("the Redis server does not come up");
        usleep(5000);
    }
}

void redis_server_start(redis_server_t *s, const char *password, const char *events)
{
    char who[40] = "";
    memset(s, 0, sizeof *s);
    snprintf(s->folder, sizeof s->folder, "/tmp/weft-redis-XXXXXX");
    if (!mkdtemp(s->folder))
        die("no folder for a Redis server");
    snprintf(s->password, sizeof s->password, "%s", password ? password : "");
    snprintf(s->events, sizeof s->events, "%s", events ? events : "");
    if (password)
        snprintf(who, sizeof who, ":%s@", s->password);
    s->port = ports_take();
    snprintf(s->tcp, sizeof s->tcp, "redis://%s127.0.0.1:%d", who, s->port);
    snprintf(s->local, sizeof s->local, "redis+unix://%s%s/redis.sock", who, s->folder);
    redis_server_again(s);
}

void redis_server_kill(redis_server_t *s)
{
    if (s->pid) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
    }
    s->pid = 0;
}

static void line(int fd, char *reply, size_t cap)
{
    size_t n = 0;
    while (n + 1 < cap && recv(fd, &reply[n], 1, 0) == 1 && reply[n] != '\n')
        n += reply[n] != '\r';
    reply[n] = 0;
}

const char *redis_server_say(redis_server_t *s, const char *command)
{
    static char reply[256];
    char text[1024];
    int fd = dial(s);
    if (fd < 0)
        die("the Redis server of a test cannot be reached");
    if (*s->password) {
        snprintf(text, sizeof text, "AUTH %s\r\n", s->password);
        if (write(fd, text, strlen(text)) < 0)
            die("the Redis server of a test does not listen");
        line(fd, reply, sizeof reply);
    }
    snprintf(text, sizeof text, "%s\r\n", command);
    if (write(fd, text, strlen(text)) < 0)
        die("the Redis server of a test does not listen");
    line(fd, reply, sizeof reply);
    close(fd);
    return reply;
}

void redis_server_end(redis_server_t *s)
{
    char command[128];
    redis_server_kill(s);
    snprintf(command, sizeof command, "rm -rf '%s'", s->folder);
    if (system(command))
        die("the folder of a Redis server cannot be removed");
}
