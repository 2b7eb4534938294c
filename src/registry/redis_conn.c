/* registry/redis_conn.c - a connection to a Redis server: the only file that calls hiredis.
 *
 * hiredis writes commands, reads replies and owns the socket; we connect it and wait for it, so that every wait has an end. The
 * library is loaded at run time, since a program without Redis does not need it. It must be the version of the header that Weft
 * was built with, because replies are laid out differently in others.
 *
 *     no connection --connect--> open --any failure--> of no use, until wefti_redis_disconnect() --> no connection
 *
 * Promise: a reply has at most REPLY_MAX bytes and ELEMENTS_MAX elements, whatever the server sends; a server that is stopped
 * costs its deadline. tests/fault/registry_redis.c, tests/fault/registry_redis_hostile.c. */
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
#include "registry/redis.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libhiredis.so." TEXT(HIREDIS_SONAME)

enum { REPLY_MAX = 16 << 20, ELEMENTS_MAX = 1 << 20 };

/* --- the library ------------------------------------------------------------------------------------------------------- */

#define CALLS(X) \
    X(redisReaderCreate) \
    X(redisReaderFree) \
    X(redisConnectFd) \
    X(redisFree) \
    X(redisBufferRead) \
    X(redisBufferWrite) \
    X(redisAppendCommandArgv) \
    X(redisGetReplyFromReader) \
    X(freeReplyObject)

static struct {
#define MEMBER(name) __typeof__(&name) name;
    CALLS(MEMBER)
#undef MEMBER
} lib;

/* hiredis allocates an array as long as the server says before its elements are here. Ours are bounded, and never nested. */
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
    ((redis_conn_t *)task->privdata)->too_many = true;
    return NULL;
}

static weft_status_t load(void)
{
    static const char *const files[] = {LIBRARY, NULL};
    static const reg_symbol_t symbols[] = {
#define SYMBOL(name) {#name, &lib.name},
        CALLS(SYMBOL)
#undef SYMBOL
    };
    const char *missing;
    if (!wefti_reg_load(files, symbols, sizeof symbols / sizeof *symbols, &missing))
        return missing ? wefti_fail(WEFT_ERR_UNSUPPORTED, LIBRARY " is here, but has no %s", missing)
                       : wefti_fail(WEFT_ERR_UNSUPPORTED,
                                    "redis:// needs " LIBRARY ", which is not here (Debian: apt install libhiredis%s)",
                                    TEXT(HIREDIS_SONAME));
    redisReader *reader = lib.redisReaderCreate();
    if (!reader)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for redis://");
    objects = *reader->fn;
    make_array = objects.createArray;
    objects.createArray = bounded_array;
    lib.redisReaderFree(reader);
    return WEFT_OK;
}

weft_status_t wefti_redis_load(void)
{
    static reg_once_t once = REG_ONCE_INIT;
    return wefti_reg_once(&once, load);
}

/* --- connecting -------------------------------------------------------------------------------------------------------- */

/* Wait until the descriptor is ready. 0: the time is over. */
static short await(int fd, short events, uint64_t deadline)
{
    for (;;) {
        struct pollfd p = {fd, events, 0};
        uint64_t now = wefti_clock_ns();
        int n = poll(&p, 1, wefti_reg_ms(now < deadline ? deadline - now : 0));
        if (n > 0)
            return p.revents;
        if (n ? errno != EINTR : now >= deadline)
            return 0;
    }
}

static weft_status_t status_of(int err)
{
    return err == ENOMEM || err == ENOBUFS  ? WEFT_ERR_NOMEM
           : err == EMFILE || err == ENFILE ? WEFT_ERR_LIMIT
                                            : WEFT_ERR_UNREACHABLE;
}

static weft_status_t attempt(redis_conn_t *c, const struct sockaddr *to, socklen_t n, uint64_t deadline, char why[REDIS_WHY])
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
    c->fd = fd;
    return WEFT_OK;
}

/* Try one address after the other, each for an equal part of the time that is left. */
static weft_status_t attempts(redis_conn_t *c, const struct addrinfo *all, uint16_t port, uint64_t deadline, char why[REDIS_WHY])
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
        st = attempt(c, (const struct sockaddr *)&to, ai->ai_addrlen, now < deadline ? now + (deadline - now) / left : now, why);
    }
    return st;
}

static weft_status_t connect_name(redis_conn_t *c, const redis_address_t *a, uint64_t deadline, char why[REDIS_WHY])
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *numeric = NULL;
    const struct addrinfo *found;
    wefti_lookup_t *lookup;
    if (!getaddrinfo(a->host, NULL, &hints, &numeric)) { /* an address: nothing to look up */
        weft_status_t st = attempts(c, numeric, a->port, deadline, why);
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
        st = attempts(c, found, a->port, deadline, why);
    else
        snprintf(why, REDIS_WHY, st == WEFT_ERR_TIMEOUT ? "its name is not found in time" : "there is no such name");
    wefti_lookup_drop(lookup);
    return st && st != WEFT_ERR_NOMEM && st != WEFT_ERR_LIMIT ? WEFT_ERR_UNREACHABLE : st;
}

weft_status_t wefti_redis_connect(redis_conn_t *c, const redis_address_t *a, uint64_t deadline, char why[REDIS_WHY])
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    weft_status_t st;
    memset(c, 0, sizeof *c);
    c->fd = -1;
    if (a->port) {
        st = connect_name(c, a, deadline, why);
    } else {
        memcpy(un.sun_path, a->host, strlen(a->host) + 1); /* its length was checked */
        st = attempt(c, (const struct sockaddr *)&un, sizeof un, deadline, why);
    }
    if (st)
        return st;
    c->context = lib.redisConnectFd(c->fd);
    if (!c->context) {
        wefti_redis_disconnect(c);
        return WEFT_ERR_NOMEM;
    }
    c->context->flags &= ~REDIS_BLOCK; /* it does not wait: we do */
    c->context->reader->fn = &objects;
    c->context->reader->privdata = c;
    return WEFT_OK;
}

void wefti_redis_disconnect(redis_conn_t *c)
{
    if (c->context)
        lib.redisFree(c->context); /* which closes fd */
    else if (c->fd >= 0)
        close(c->fd);
    c->context = NULL;
    c->fd = -1;
}

bool wefti_redis_broken(const redis_conn_t *c)
{
    struct pollfd p = {c->fd, POLLIN, 0};
    return c->fd < 0 || poll(&p, 1, 0) != 0;
}

/* --- talking ----------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_redis_send(redis_conn_t *c, size_t n, const redis_word_t *words)
{
    const char *at[REDIS_WORDS_MAX];
    size_t sizes[REDIS_WORDS_MAX];
    if (n > REDIS_WORDS_MAX)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < n; i++) {
        at[i] = (const char *)words[i].at;
        sizes[i] = words[i].n;
    }
    return lib.redisAppendCommandArgv(c->context, (int)n, at, sizes) == REDIS_OK ? WEFT_OK : WEFT_ERR_NOMEM;
}

/* After a call of hiredis that failed. */
static weft_status_t failed(const redis_conn_t *c, int err, char why[REDIS_WHY])
{
    switch (c->context->err) {
    case REDIS_ERR_OOM:
        if (!c->too_many)
            return WEFT_ERR_NOMEM;
        snprintf(why, REDIS_WHY, "a reply of too many parts");
        return WEFT_ERR_PROTOCOL;
    case REDIS_ERR_IO:
    case REDIS_ERR_EOF:
        snprintf(why, REDIS_WHY, "the connection is lost: %s",
                 c->context->err == REDIS_ERR_IO ? strerror(err) : "it was closed by the server");
        return c->context->err == REDIS_ERR_IO ? status_of(err) : WEFT_ERR_UNREACHABLE;
    default:
        snprintf(why, REDIS_WHY, "it does not speak Redis's protocol");
        return WEFT_ERR_PROTOCOL;
    }
}

weft_status_t wefti_redis_receive(redis_conn_t *c, uint64_t deadline, struct redisReply **reply_out, char why[REDIS_WHY])
{
    redisContext *x = c->context;
    for (;;) {
        void *reply = NULL;
        int sent;
        if (lib.redisGetReplyFromReader(x, &reply))
            return failed(c, 0, why);
        if (reply) {
            c->unread = 0; /* of what follows less than one read is here */
            *reply_out = (struct redisReply *)reply;
            return WEFT_OK;
        }
        size_t had = x->reader->len;
        if (lib.redisBufferWrite(x, &sent) || lib.redisBufferRead(x))
            return failed(c, errno, why);
        size_t got = x->reader->len - had;
        c->unread += got;
        if (c->unread > REPLY_MAX) {
            snprintf(why, REDIS_WHY, "a reply of more than %d bytes", REPLY_MAX);
            return WEFT_ERR_PROTOCOL;
        }
        if (!got && !deadline)
            return WEFT_ERR_AGAIN;
        bool answers = got || await(c->fd, (short)(POLLIN | (sent ? 0 : POLLOUT)), deadline);
        if (!answers || (deadline && wefti_clock_ns() > deadline)) { /* the latter for a server that sends a byte now and then */
            snprintf(why, REDIS_WHY, answers ? "it does not answer in time" : "it does not answer");
            return WEFT_ERR_UNREACHABLE;
        }
    }
}

void wefti_redis_reply_free(struct redisReply *reply)
{
    if (reply)
        lib.freeReplyObject(reply);
}
