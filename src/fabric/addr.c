/* fabric/addr.c - addresses: text to sockaddr and back, errno to status. */
#include "fabric/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"

weft_status_t wefti_errno_status(int err)
{
    switch (err) {
    case ECONNREFUSED:
    case ENOENT: /* a Unix socket nobody made */
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EPROTOTYPE:
        return WEFT_ERR_REFUSED;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
        return WEFT_ERR_UNREACHABLE;
    case ETIMEDOUT:
        return WEFT_ERR_TIMEOUT;
    case EADDRNOTAVAIL:
    case EADDRINUSE:
    case EINVAL: /* a link-local address without its zone */
    case EAFNOSUPPORT:
        return WEFT_ERR_ADDRESS;
    case ECONNRESET:
    case EPIPE:
    case ECONNABORTED:
        return WEFT_ERR_PEER;
    default:
        return wefti_errno_limit(err, WEFT_ERR_SYSTEM);
    }
}

/* The port is at the same place in addresses of IPv4 and IPv6. */
uint16_t wefti_addr_port(const wefti_addr_t *a)
{
    return ntohs(((const struct sockaddr_in *)(const void *)&a->ss)->sin_port);
}

void wefti_addr_set_port(wefti_addr_t *a, uint16_t port)
{
    ((struct sockaddr_in *)(void *)&a->ss)->sin_port = htons(port);
}
_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port), "one place for the port");

/* No address of IPv6 that anybody has begins so. */
#define GROUP_IPV4 UINT64_C(0xffff000100000000)
#define GROUP_PROCESS UINT64_C(0xffff000200000000)

/* Whoever has an address of IPv6 has a whole network of them: those count as one. */
uint64_t wefti_addr_group(const wefti_addr_t *from, int fd)
{
    uint64_t group = 0;
    const struct sockaddr_in *in = (const void *)&from->ss;
    const struct sockaddr_in6 *in6 = (const void *)&from->ss;
    if (from->ss.ss_family == AF_INET)
        return GROUP_IPV4 | in->sin_addr.s_addr;
    if (from->ss.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
        return GROUP_IPV4 | in6->sin6_addr.s6_addr32[3];
    if (from->ss.ss_family == AF_INET6) {
        memcpy(&group, in6->sin6_addr.s6_addr, sizeof group);
        return group;
    }
    struct ucred who = {0};
    socklen_t n = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) ? GROUP_PROCESS : GROUP_PROCESS | (uint32_t)who.pid;
}

/* As IPv6, so that there is one kind to compare. False: it is neither. */
static bool as_ipv6(const wefti_addr_t *a, struct in6_addr *out)
{
    const struct sockaddr_in *in = (const void *)&a->ss;
    if (a->ss.ss_family == AF_INET6) {
        *out = ((const struct sockaddr_in6 *)(const void *)&a->ss)->sin6_addr;
    } else if (a->ss.ss_family == AF_INET) {
        *out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
        memcpy(&out->s6_addr[12], &in->sin_addr, 4);
    }
    return a->ss.ss_family == AF_INET || a->ss.ss_family == AF_INET6;
}

bool wefti_addr_is_loopback(const wefti_addr_t *a)
{
    struct in6_addr ip;
    return as_ipv6(a, &ip) && (IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127));
}

bool wefti_addr_is_here(int fd)
{
    wefti_addr_t peer = {.n = sizeof peer.ss}, own = {.n = sizeof own.ss};
    struct in6_addr peer_ip, own_ip;
    if (getpeername(fd, (void *)&peer.ss, &peer.n) || getsockname(fd, (void *)&own.ss, &own.n))
        return false;
    if (peer.ss.ss_family == AF_UNIX || wefti_addr_is_loopback(&peer))
        return true;
    return as_ipv6(&peer, &peer_ip) && as_ipv6(&own, &own_ip) && IN6_ARE_ADDR_EQUAL(&peer_ip, &own_ip);
}

/* Does every user have a number here? Who has none is shown with the number of "nobody", which somebody else may have. */
static bool all_users_have_numbers(void)
{
    unsigned in, out, n = 0;
    FILE *f = fopen("/proc/self/uid_map", "re");
    bool all = f && fscanf(f, "%u %u %u", &in, &out, &n) == 3 && !in && n == UINT32_MAX;
    if (f)
        fclose(f);
    return all;
}

static unsigned user_without_number(void)
{
    unsigned uid = 65534;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (f) {
        (void)!fscanf(f, "%u", &uid);
        fclose(f);
    }
    return uid;
}

bool wefti_addr_is_own_user(int fd, unsigned *uid_out)
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t n = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n))
        who.uid = (uid_t)-1;
    *uid_out = who.uid;
    if (!who.uid || who.uid != geteuid())
        return !who.uid;
    return who.uid != user_without_number() || all_users_have_numbers();
}

void wefti_addr_text(const wefti_addr_t *a, char *buf, size_t cap)
{
    wefti_uri_t uri = {.scheme = WEFTI_URI_TCP};
    if (a->ss.ss_family == AF_UNIX) {
        const struct sockaddr_un *un = (const void *)&a->ss;
        size_t n = a->n > offsetof(struct sockaddr_un, sun_path) ? a->n - offsetof(struct sockaddr_un, sun_path) : 0;
        uri.scheme = WEFTI_URI_UNIX;
        if (n && un->sun_path[0] == 0)
            snprintf(uri.host, sizeof uri.host, "@%.*s", (int)(n - 1), un->sun_path + 1);
        else
            snprintf(uri.host, sizeof uri.host, "%.*s", (int)n, un->sun_path);
    } else {
        if (getnameinfo((const void *)&a->ss, a->n, uri.host, sizeof uri.host, NULL, 0, NI_NUMERICHOST))
            snprintf(uri.host, sizeof uri.host, "?");
        uri.port = wefti_addr_port(a);
    }
    wefti_uri_format(&uri, buf, cap);
}

weft_status_t wefti_addrs_add(wefti_addrs_t *addrs, const void *sa, size_t n)
{
    wefti_addr_t *at = wefti_realloc(addrs->at, (addrs->n + 1) * sizeof *at);
    if (!at) {
        wefti_free(addrs->at);
        *addrs = (wefti_addrs_t){0};
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an address");
    }
    addrs->at = at;
    at += addrs->n++;
    memset(at, 0, sizeof *at);
    memcpy(&at->ss, sa, n);
    at->n = (socklen_t)n;
    return WEFT_OK;
}

weft_status_t wefti_addrs_from(const struct addrinfo *ai, uint16_t port, wefti_addrs_t *out)
{
    weft_status_t st = WEFT_OK;
    *out = (wefti_addrs_t){0};
    for (; ai && !st; ai = ai->ai_next) {
        if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6)
            continue;
        st = wefti_addrs_add(out, ai->ai_addr, ai->ai_addrlen);
        if (!st)
            wefti_addr_set_port(&out->at[out->n - 1], port);
    }
    return st;
}

weft_status_t wefti_addr_numeric(const char *host, uint16_t port, wefti_addrs_t *out)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *ai;
    int rc = getaddrinfo(host, NULL, &hints, &ai); /* never asks anyone */
    if (rc == EAI_MEMORY)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an address");
    if (rc)
        return WEFT_ERR_NOTFOUND;
    weft_status_t st = wefti_addrs_from(ai, port, out);
    freeaddrinfo(ai);
    return st;
}

weft_status_t wefti_addr_unix(const char *path, wefti_addrs_t *out)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (!n || n >= sizeof un.sun_path)
        return wefti_fail(WEFT_ERR_INVALID, "the path of a Unix socket has 1 to %zu bytes, not %zu", sizeof un.sun_path - 1, n);
    memcpy(un.sun_path, path, n);
    bool abstract = path[0] == '@';
    if (abstract)
        un.sun_path[0] = 0;
    *out = (wefti_addrs_t){0};
    return wefti_addrs_add(out, &un, offsetof(struct sockaddr_un, sun_path) + n + !abstract);
}

/* "host", "host:port", "[v6]", "[v6]:port", numeric. */
weft_status_t wefti_addr_source(const char *text, wefti_addr_t *out)
{
    char host[256];
    const char *colon = strrchr(text, ':'), *from = text;
    size_t n = strlen(text);
    const char *port_text = NULL;
    if (text[0] == '[') {
        const char *close_at = strchr(text, ']');
        if (!close_at || (close_at[1] && close_at[1] != ':'))
            return wefti_fail(WEFT_ERR_INVALID, "source \"%s\" is not \"[v6]\" or \"[v6]:port\"", text);
        from = text + 1;
        n = (size_t)(close_at - from);
        port_text = close_at[1] ? close_at + 2 : NULL;
    } else if (colon && strchr(text, ':') == colon) {
        n = (size_t)(colon - text);
        port_text = colon + 1;
    }
    unsigned long port = 0;
    if (port_text) {
        char *end;
        port = strtoul(port_text, &end, 10);
        if (*end || end == port_text || port > 65535)
            return wefti_fail(WEFT_ERR_INVALID, "source \"%s\": the port is not between 0 and 65535", text);
    }
    wefti_addrs_t addrs;
    if (!n || n >= sizeof host)
        return wefti_fail(WEFT_ERR_INVALID, "source \"%s\" is not an address", text);
    memcpy(host, from, n);
    host[n] = 0;
    weft_status_t st = wefti_addr_numeric(host, (uint16_t)port, &addrs);
    if (st == WEFT_ERR_NOTFOUND)
        return wefti_fail(WEFT_ERR_INVALID, "source \"%s\" is not a numeric address", text);
    if (st)
        return st;
    *out = addrs.at[0];
    wefti_free(addrs.at);
    return WEFT_OK;
}

int wefti_addr_listen(wefti_addr_t *a, int backlog, bool reuse, bool only_ipv6)
{
    int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, only = only_ipv6;
    socklen_t n = sizeof a->ss;
    if (fd < 0)
        return -1;
    if (a->ss.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    if (reuse)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, (const void *)&a->ss, a->n) && !listen(fd, backlog) &&
        (a->ss.ss_family == AF_UNIX || !getsockname(fd, (void *)&a->ss, &n)))
        return fd;
    int err = errno;
    close(fd);
    errno = err;
    return -1;
}
