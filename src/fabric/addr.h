/* fabric/addr.h - addresses of sockets, for sock and tcp. */
#ifndef WEFTI_ADDR_H
#define WEFTI_ADDR_H

#include <sys/socket.h>
#include <sys/un.h>

#include "fabric/fabric.h"

#define WEFTI_ADDR_TEXT 320

typedef struct wefti_addr {
    struct sockaddr_storage ss;
    socklen_t n;
} wefti_addr_t;

typedef struct wefti_addrs {
    wefti_addr_t *at;
    size_t n;
} wefti_addrs_t;

weft_status_t wefti_errno_status(int err);
void wefti_addr_text(const wefti_addr_t *a, char *buf, size_t cap); /* as a URI */
/* Numeric addresses at once; WEFT_ERR_NOTFOUND: it is a name. */
weft_status_t wefti_addr_numeric(const char *host, uint16_t port, wefti_addrs_t *out);
weft_status_t wefti_addr_unix(const char *path, wefti_addrs_t *out);
weft_status_t wefti_addr_source(const char *text, wefti_addr_t *out);
uint16_t wefti_addr_port(const wefti_addr_t *a);
void wefti_addr_set_port(wefti_addr_t *a, uint16_t port);
/* Who the other end of an accepted socket is, for counting: its address, its network with IPv6, its process on a Unix socket. */
uint64_t wefti_addr_group(const wefti_addr_t *from, int fd);
/* Does its other end live on this host? As the connected socket has it: a Unix socket, a loopback address, or our own. */
bool wefti_addr_is_here(int fd);
/* Of a connected Unix socket: does the kernel say that who is at the other end, or listened there, is our own user, or root? A
 * user that our namespace has no number for is neither. *uid_out: who it says that is. */
bool wefti_addr_is_own_user(int fd, unsigned *uid_out);
bool wefti_addr_is_loopback(const wefti_addr_t *a);
struct addrinfo;
/* One more. WEFT_ERR_NOMEM: all of them are gone. */
weft_status_t wefti_addrs_add(wefti_addrs_t *addrs, const void *sa, size_t n);
weft_status_t wefti_addrs_from(const struct addrinfo *ai, uint16_t port, wefti_addrs_t *out);
/* A socket that listens there, and *a has its port; -1: errno. reuse: at the port of a connection that is not gone yet. */
int wefti_addr_listen(wefti_addr_t *a, int backlog, bool reuse, bool only_ipv6);
/* accept4(), and who it is. */
static inline int wefti_addr_accept(int fd, int flags, wefti_addr_t *from)
{
    *from = (wefti_addr_t){.n = sizeof from->ss};
    return accept4(fd, (void *)&from->ss, &from->n, flags);
}

#endif
