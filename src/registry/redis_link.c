/* registry/redis_link.c - a connection to a Redis server: the only file that calls hiredis.
 *
 * hiredis writes commands and reads replies. The socket is ours, so that every wait has an end: whatever the server does, or does not
 * do, nothing here takes longer than the caller allows. Its library is loaded at run time, as that of CUDA is: a program that has no
 * Redis does not need it. Its header is needed to build, since replies are not laid out the same in all of its versions; the library
 * that is loaded is the one of that header.
 *
 *     no link --dial--> open --any failure--> of no use, until wefti_redis_hang_up() --> no link
 *
 * Promise: bytes from the server are bounded, in size by REPLY_MAX, in number by ELEMENTS_MAX; a server that is stopped costs its
 * deadline. tests/fault/registry_redis.c, tests/fault/registry_redis_hostile.c. */
#include "registry/redis.h"

#ifndef WEFT_HIREDIS

weft_status_t wefti_redis_load(void)
{
    return wefti_fail(WEFT_ERR_UNSUPPORTED,
                      "this Weft was built without hiredis, and so without redis://; install libhiredis-dev and build it again");
}

#else

#include <dlfcn.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libhiredis.so." TEXT(HIREDIS_SONAME)

enum { REPLY_MAX = 16 << 20, ELEMENTS_MAX = 1 << 20, READ_SIZE = 65536 };

/* --- the library ------------------------------------------------------------------------------------------------------------ */

#define HIREDIS_CALLS(X) \
    X(redisReaderCreate) \
    X(redisReaderFree) \
    X(redisReaderFeed) \
    X(redisReaderGetReply) \
    X(redisFormatCommandArgv) \
    X(redisFreeCommand) \
    X(freeReplyObject)

static struct {
#define MEMBER(name) __typeof__(&name) name;
    HIREDIS_CALLS(MEMBER)
#undef MEMBER
} lib;

/* hiredis makes an array as long as the server says before any of it is here, and walks through all of it to free it. Ours are never nested. */
#if HIREDIS_MAJOR >= 1
typedef size_t elements_t;
#else
typedef int elements_t;
#endif

static redisReplyObjectFunctions objects; /* hiredis's own, but for arrays */
static void *(*make_array)(const redisReadTask *task, elements_t n);

static void *bounded_array(const redisReadTask *task, elements_t n)
{
    if (n <= (task->parent ? 0 : ELEMENTS_MAX))
        return make_array(task, n);
    ((redis_link_t *)task->privdata)->too_many = true;
    return NULL;
}

static bool learn_objects(void)
{
    redisReader *reader = lib.redisReaderCreate();
    if (!reader)
        return false;
    objects = *reader->fn;
    make_array = objects.createArray;
    objects.createArray = bounded_array;
    lib.redisReaderFree(reader);
    return true;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;
static char why_not[256];

static void load(void)
{
    void *so = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(why_not, sizeof why_not, "redis:// needs " LIBRARY ", which is not here (Debian: apt install libhiredis%s)",
                 TEXT(HIREDIS_SONAME));
        return;
    }
#define FIND(name) \
    lib.name = (__typeof__(&name))dlsym(so, #name); \
    if (!lib.name) { \
        snprintf(why_not, sizeof why_not, LIBRARY " is here, but has no %s", #name); \
        dlclose(so); \
        return; \
    }
    HIREDIS_CALLS(FIND)
#undef FIND
    if (!learn_objects())
        snprintf(why_not, sizeof why_not, "no memory for redis://");
    else
        loaded = true;
}

weft_status_t wefti_redis_load(void)
{
    pthread_mutex_lock(&lock);
    if (!loaded)
        load();
    bool ok = loaded;
    weft_status_t st = ok ? WEFT_OK : wefti_fail(WEFT_ERR_UNSUPPORTED, "%s", why_not);
    pthread_mutex_unlock(&lock);
    return st;
}

/* --- dialling --------------------------------------------------------------------------------------------------------------- */

/* Until the descriptor is ready, or the time is over: 0. */
static short await(int fd, short events, uint64_t deadline)
{
    for (;;) {
        struct pollfd p = {fd, events, 0};
        uint64_t now = wefti_clock_ns();
        uint64_t ms = now < deadline ? (deadline - now + WEFT_MILLISECOND - 1) / WEFT_MILLISECOND : 0;
        int n = poll(&p, 1, (int)(ms > 60000 ? 60000 : ms));
        if (n > 0)
            return p.revents;
        if (!n && now >= deadline)
            return 0;
        if (n < 0 && errno != EINTR)
            return 0;
    }
}

static weft_status_t status_of(int err)
{
    return err == ENOMEM || err == ENOBUFS  ? WEFT_ERR_NOMEM
           : err == EMFILE || err == ENFILE ? WEFT_ERR_LIMIT
                                            : WEFT_ERR_UNREACHABLE;
}

static weft_status_t attempt(redis_link_t *l, const struct sockaddr *to, socklen_t n, uint64_t deadline, char why[REDIS_WHY])
{
    int err = 0, on = 1;
    socklen_t size = sizeof err;
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        err = errno;
    } else if (connect(fd, to, n)) {
        err = errno;
        if (err == EINPROGRESS)
            err = !await(fd, POLLOUT, deadline) ? ETIMEDOUT : getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size) ? errno : err;
    }
    if (err) {
        snprintf(why, REDIS_WHY, "cannot connect: %s", strerror(err));
        if (fd >= 0)
            close(fd);
        return status_of(err);
    }
    if (to->sa_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    l->fd = fd;
    return WEFT_OK;
}

/* One after the other, each with an equal part of the time that is left. */
static weft_status_t attempts(redis_link_t *l, const struct addrinfo *all, uint16_t port, uint64_t deadline, char why[REDIS_WHY])
{
    weft_status_t st = WEFT_ERR_UNREACHABLE;
    unsigned left = 0;
    for (const struct addrinfo *ai = all; ai; ai = ai->ai_next)
        left++;
    snprintf(why, REDIS_WHY, "it has no address");
    for (const struct addrinfo *ai = all; ai && st; ai = ai->ai_next, left--) {
        struct sockaddr_storage to = {0};
        uint64_t now = wefti_clock_ns();
        if ((ai->ai_family != AF_INET && ai->ai_family != AF_INET6) || ai->ai_addrlen > sizeof to)
            continue;
        memcpy(&to, ai->ai_addr, ai->ai_addrlen);
        if (ai->ai_family == AF_INET)
            ((struct sockaddr_in *)&to)->sin_port = htons(port);
        else
            ((struct sockaddr_in6 *)&to)->sin6_port = htons(port);
        st = attempt(l, (const struct sockaddr *)&to, ai->ai_addrlen, now < deadline ? now + (deadline - now) / left : now, why);
    }
    return st;
}

static weft_status_t dial_name(redis_link_t *l, const redis_address_t *a, uint64_t deadline, char why[REDIS_WHY])
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *numeric = NULL;
    const struct addrinfo *found;
    wefti_lookup_t *lookup;
    if (!getaddrinfo(a->host, NULL, &hints, &numeric)) { /* asks nobody */
        weft_status_t st = attempts(l, numeric, a->port, deadline, why);
        freeaddrinfo(numeric);
        return st;
    }
    weft_status_t st = wefti_lookup_start(a->host, &lookup);
    if (st) {
        snprintf(why, REDIS_WHY, "its name cannot be looked up: %s", weft_status_name(st));
        return st;
    }
    st = await(wefti_lookup_fd(lookup), POLLIN, deadline) ? wefti_lookup_result(lookup, &found) : WEFT_ERR_TIMEOUT;
    if (!st)
        st = attempts(l, found, a->port, deadline, why);
    else
        snprintf(why, REDIS_WHY, st == WEFT_ERR_TIMEOUT ? "its name is not found in time" : "there is no such name");
    wefti_lookup_drop(lookup);
    return st && st != WEFT_ERR_NOMEM && st != WEFT_ERR_LIMIT ? WEFT_ERR_UNREACHABLE : st;
}

weft_status_t wefti_redis_dial(redis_link_t *l, const redis_address_t *a, uint64_t deadline, char why[REDIS_WHY])
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    weft_status_t st;
    memset(l, 0, sizeof *l);
    l->fd = -1;
    if (a->port) {
        st = dial_name(l, a, deadline, why);
    } else {
        memcpy(un.sun_path, a->host, strlen(a->host) + 1); /* its length was checked */
        st = attempt(l, (const struct sockaddr *)&un, sizeof un, deadline, why);
    }
    if (st)
        return st;
    l->reader = lib.redisReaderCreate();
    if (!l->reader) {
        wefti_redis_hang_up(l);
        return WEFT_ERR_NOMEM;
    }
    l->reader->fn = &objects;
    l->reader->privdata = l;
    return WEFT_OK;
}

void wefti_redis_hang_up(redis_link_t *l)
{
    if (l->reader)
        lib.redisReaderFree(l->reader);
    if (l->fd >= 0)
        close(l->fd);
    wefti_free(l->out);
    memset(l, 0, sizeof *l);
    l->fd = -1;
}

bool wefti_redis_broken(const redis_link_t *l)
{
    struct pollfd p = {l->fd, POLLIN, 0};
    return l->fd < 0 || poll(&p, 1, 0) != 0;
}

/* --- talking ---------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_redis_say(redis_link_t *l, size_t n, const redis_word_t *words)
{
    const char *at[REDIS_WORDS_MAX];
    size_t sizes[REDIS_WORDS_MAX];
    char *command = NULL;
    if (n > REDIS_WORDS_MAX)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < n; i++) {
        at[i] = (const char *)words[i].at;
        sizes[i] = words[i].n;
    }
    int made = lib.redisFormatCommandArgv(&command, (int)n, at, sizes);
    if (made < 0)
        return WEFT_ERR_NOMEM;
    if (l->out_n + (size_t)made > l->out_cap) {
        size_t cap = 2 * (l->out_n + (size_t)made);
        char *out = (char *)wefti_realloc(l->out, cap);
        if (!out) {
            lib.redisFreeCommand(command);
            return WEFT_ERR_NOMEM;
        }
        l->out = out;
        l->out_cap = cap;
    }
    memcpy(l->out + l->out_n, command, (size_t)made);
    l->out_n += (size_t)made;
    lib.redisFreeCommand(command);
    return WEFT_OK;
}

static weft_status_t lost(int err, char why[REDIS_WHY])
{
    snprintf(why, REDIS_WHY, "the connection is lost: %s", err ? strerror(err) : "it was closed by the server");
    return status_of(err);
}

static weft_status_t send_some(redis_link_t *l, char why[REDIS_WHY])
{
    while (l->out_at < l->out_n) {
        ssize_t n = send(l->fd, l->out + l->out_at, l->out_n - l->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return WEFT_OK;
        if (n <= 0)
            return lost(n ? errno : 0, why);
        l->out_at += (size_t)n;
    }
    l->out_at = l->out_n = 0;
    return WEFT_OK;
}

/* WEFT_ERR_AGAIN: nothing is there. */
static weft_status_t read_some(redis_link_t *l, char why[REDIS_WHY])
{
    char bytes[READ_SIZE];
    ssize_t n;
    do
        n = recv(l->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return WEFT_ERR_AGAIN;
    if (n <= 0)
        return lost(n ? errno : 0, why);
    l->unread += (size_t)n;
    if (l->unread > REPLY_MAX) {
        snprintf(why, REDIS_WHY, "a reply of more than %d bytes", REPLY_MAX);
        return WEFT_ERR_PROTOCOL;
    }
    return lib.redisReaderFeed(l->reader, bytes, (size_t)n) == REDIS_OK ? WEFT_OK : WEFT_ERR_NOMEM;
}

weft_status_t wefti_redis_hear(redis_link_t *l, uint64_t deadline, struct redisReply **reply_out, char why[REDIS_WHY])
{
    for (;;) {
        void *reply = NULL;
        if (lib.redisReaderGetReply(l->reader, &reply) != REDIS_OK) {
            if (l->reader->err == REDIS_ERR_OOM && !l->too_many)
                return WEFT_ERR_NOMEM;
            snprintf(why, REDIS_WHY, l->too_many ? "a reply of too many parts" : "it does not speak Redis's protocol");
            return WEFT_ERR_PROTOCOL;
        }
        if (reply) {
            l->unread = 0; /* of what follows less than one read is here */
            *reply_out = (struct redisReply *)reply;
            return WEFT_OK;
        }
        weft_status_t st = send_some(l, why);
        if (!st)
            st = read_some(l, why);
        if (st == WEFT_ERR_AGAIN && !deadline)
            return st;
        if (st == WEFT_ERR_AGAIN) {
            if (!await(l->fd, (short)(POLLIN | (l->out_at < l->out_n ? POLLOUT : 0)), deadline)) {
                snprintf(why, REDIS_WHY, "it does not answer");
                return WEFT_ERR_UNREACHABLE;
            }
        } else if (st) {
            return st;
        }
        if (deadline && wefti_clock_ns() > deadline) { /* also if it says a byte now and then */
            snprintf(why, REDIS_WHY, "it does not answer in time");
            return WEFT_ERR_UNREACHABLE;
        }
    }
}

void wefti_redis_forget(struct redisReply *reply)
{
    if (reply)
        lib.freeReplyObject(reply);
}

#endif
