/* conn/address.c - address blobs: how a peer reaches a runtime without knowing one of its listeners.
 *
 * A blob has the id of the runtime, the id of its machine, and where it listens: a TCP acceptor on the machine's addresses (or on
 * those of the devices that WEFT_INTERFACES allows) and an abstract Unix socket. The first weft_runtime_address() makes that
 * listener. A caller on the same machine and in the same network namespace tries the Unix socket first. It hangs up on a
 * runtime with another id: ports are reused, and blobs are kept. A blob is not a secret and proves nothing; the key does that.
 *
 * Promise: decoding reads nothing past the end and gives out only addresses that parse. tests/wire/conn_address.c,
 * tests/fuzz/address.c. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/uri.h"
#include "conn/ep.h"

#define BLOB_MAGIC 0x44414657u /* "WFAD" */
#define BLOB_VERSION 1
#define BLOB_HEAD (8 + 2 * WEFTI_UUID_SIZE)

void wefti_address_host(uint8_t out[WEFTI_UUID_SIZE])
{
    char boot[64] = "";
    struct stat ns;
    memset(&ns, 0, sizeof ns);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, boot, sizeof boot - 1) < 0)
            boot[0] = 0;
        close(fd);
    }
    (void)stat("/proc/self/ns/net", &ns); /* abstract sockets are per network namespace */
    uint64_t ino = ns.st_ino;
    crypto_generichash_state s;
    crypto_generichash_init(&s, NULL, 0, WEFTI_UUID_SIZE);
    crypto_generichash_update(&s, (const uint8_t *)boot, sizeof boot);
    crypto_generichash_update(&s, (const uint8_t *)&ino, sizeof ino);
    crypto_generichash_final(&s, out, WEFTI_UUID_SIZE);
}

/* --- codec ----------------------------------------------------------------------------------------------------------------- */

size_t wefti_blob_encode(const uint8_t *uuid, const uint8_t *host, const char *uris, void *buf, size_t cap)
{
    size_t n = strlen(uris);
    if (cap < BLOB_HEAD + n)
        return BLOB_HEAD + n;
    wefti_writer_t w = wefti_writer(buf, cap);
    wefti_put_u32(&w, BLOB_MAGIC);
    wefti_put_u16(&w, BLOB_VERSION);
    wefti_put_u16(&w, (uint16_t)n);
    wefti_put_bytes(&w, uuid, WEFTI_UUID_SIZE);
    wefti_put_bytes(&w, host, WEFTI_UUID_SIZE);
    wefti_put_bytes(&w, uris, n);
    return BLOB_HEAD + n;
}

weft_status_t wefti_blob_decode(const void *bytes, size_t n, wefti_blob_t *out)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    uint32_t magic = wefti_get_u32(&r);
    uint16_t version = wefti_get_u16(&r), len = wefti_get_u16(&r);
    const void *uuid = wefti_get_bytes(&r, WEFTI_UUID_SIZE), *host = wefti_get_bytes(&r, WEFTI_UUID_SIZE);
    if (r.bad || magic != BLOB_MAGIC)
        return wefti_fail(WEFT_ERR_INVALID, "the %zu bytes given are no address made by weft_runtime_address()", n);
    if (version != BLOB_VERSION)
        return wefti_fail(WEFT_ERR_INVALID, "the address is of version %u; this library knows version %u", version, BLOB_VERSION);
    if (len == 0 || len > WEFTI_BLOB_TEXT_MAX || wefti_reader_left(&r) != len || memchr(r.at, 0, len))
        return wefti_fail(WEFT_ERR_INVALID, "the address says that %u bytes of text follow, and %zu do", len,
                          wefti_reader_left(&r));
    char text[WEFTI_BLOB_TEXT_MAX + 1];
    memcpy(text, r.at, len);
    text[len] = 0;
    for (const char *at = text; *at;) {
        wefti_uri_t uri;
        weft_status_t st = wefti_uri_parse(&at, &uri);
        if (st)
            return st;
        if (wefti_uri_has_port(&uri) && !uri.port)
            return wefti_fail(WEFT_ERR_INVALID, "the address has a part with port 0");
    }
    memcpy(out->uuid, uuid, sizeof out->uuid);
    memcpy(out->host, host, sizeof out->host);
    memcpy(out->uris, text, (size_t)len + 1);
    return WEFT_OK;
}

void wefti_uris_add(char *out, size_t cap, const char *text)
{
    size_t have = strlen(out), n = strlen(text);
    if (have + n + 2 > cap)
        return; /* the addresses that fit are enough to be found by */
    if (have)
        out[have++] = ',';
    memcpy(out + have, text, n + 1);
}

static void add_uri(char *out, size_t cap, const wefti_uri_t *uri)
{
    char one[WEFTI_URI_TEXT];
    wefti_uri_format(uri, one, sizeof one);
    wefti_uris_add(out, cap, one);
}

weft_status_t wefti_blob_targets(const wefti_blob_t *b, const uint8_t *own_host, char **uris_out)
{
    bool here = !memcmp(b->host, own_host, sizeof b->host);
    size_t cap = 2 * sizeof b->uris; /* canonical forms may be a little longer */
    char *all = wefti_calloc(1, cap);
    if (!all)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the addresses of a peer");
    for (int local = here ? 1 : 0; local >= 0; local--)
        for (const char *at = b->uris; *at;) {
            wefti_uri_t uri;
            if (wefti_uri_parse(&at, &uri))
                break;
            if ((uri.scheme == WEFTI_URI_UNIX) == local)
                add_uri(all, cap, &uri);
        }
    if (!*all) {
        wefti_free(all);
        return wefti_fail(WEFT_ERR_INVALID, "the address has only parts for its own machine, and that is another one");
    }
    *uris_out = all;
    return WEFT_OK;
}

/* --- our own --------------------------------------------------------------------------------------------------------------- */

/* An acceptor on every address of the machine is of no use to a peer as such: name the addresses. */
static void expand(const wefti_uri_t *any, bool v6, char *out, size_t cap)
{
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return;
    for (int loopback = 0; loopback < 2; loopback++) {
        size_t before = strlen(out);
        for (struct ifaddrs *i = all; i; i = i->ifa_next) {
            wefti_uri_t uri = {.scheme = any->scheme, .port = any->port};
            if (!i->ifa_addr || i->ifa_addr->sa_family != (v6 ? AF_INET6 : AF_INET) || !(i->ifa_flags & IFF_UP) ||
                !!(i->ifa_flags & IFF_LOOPBACK) != loopback)
                continue;
            const void *in = v6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr
                                : (const void *)&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr;
            if (v6 && IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)in))
                continue; /* means nothing on another machine */
            if (inet_ntop(v6 ? AF_INET6 : AF_INET, in, uri.host, sizeof uri.host))
                add_uri(out, cap, &uri);
        }
        if (strlen(out) > before)
            break; /* loopback only where there is nothing else */
    }
    freeifaddrs(all);
}

/* What peers can call of what is bound. schemes: those wanted, as bits. */
static void callable(const char *bound, unsigned schemes, char *out, size_t cap)
{
    for (const char *at = bound; *at;) {
        wefti_uri_t uri;
        if (wefti_uri_parse(&at, &uri))
            break;
        if (!(schemes & 1u << uri.scheme))
            continue;
        bool v4_any = !strcmp(uri.host, "0.0.0.0"), v6_any = !strcmp(uri.host, "::");
        if (wefti_uri_has_port(&uri) && (v4_any || v6_any))
            expand(&uri, v6_any, out, cap);
        else
            add_uri(out, cap, &uri);
    }
}

static weft_status_t own_uris(wefti_conn_t *conn, const char *bound)
{
    char *out = wefti_calloc(1, WEFTI_BLOB_TEXT_MAX + 1);
    if (!out)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for this runtime's addresses");
    callable(bound, 1u << WEFTI_URI_TLS | 1u << WEFTI_URI_TCP | 1u << WEFTI_URI_UNIX, out, WEFTI_BLOB_TEXT_MAX + 1);
    wefti_free(conn->own_uris);
    conn->own_uris = out;
    return WEFT_OK;
}

/* What is encrypted first, Unix sockets last: a peer on another machine would find somebody else, or nobody, behind the name of
 * one. */
void wefti_address_changed(wefti_conn_t *conn)
{
    char text[sizeof conn->reach] = "";
    const wefti_uri_scheme_t order[] = {WEFTI_URI_TLS, WEFTI_URI_TCP, WEFTI_URI_UNIX};
    for (int i = 0; i < 3; i++)
        wefti_list_each(it, &conn->listeners) {
            const weft_listener_t *l = wefti_container_of(it, weft_listener_t, all);
            if (!l->closed && l->uri) /* a twin has none: shards.c */
                callable(l->uri, 1u << order[i], text, sizeof text);
        }
    pthread_mutex_lock(&conn->lock);
    memcpy(conn->reach, text, sizeof text);
    pthread_mutex_unlock(&conn->lock);
}

void wefti_conn_reach(weft_runtime_t *rt, char out[WEFTI_REACH_MAX])
{
    out[0] = 0;
    rt = wefti_head(rt);
    if (wefti_join(rt))
        return;
    wefti_conn_t *conn = wefti_conn_of(rt);
    pthread_mutex_lock(&conn->lock);
    memcpy(out, conn->reach, sizeof conn->reach);
    pthread_mutex_unlock(&conn->lock);
    wefti_part(rt);
}

static weft_status_t listen_own(wefti_conn_t *conn, const weft_listen_opts_t *o)
{
    const char *devices = conn->rt->config.interfaces;
    char name[64] = "unix://@weft-", uri[1024];
    size_t at = strlen(name), n = 0;
    weft_listener_t *l;
    weft_status_t st;
    sodium_bin2hex(name + at, sizeof name - at, conn->uuid, sizeof conn->uuid);
    if (!devices || !*devices || !strcmp(devices, "all")) {
        snprintf(uri, sizeof uri, "%s,tcp://0.0.0.0:0,tcp://[::]:0", name);
        st = wefti_listener_open(conn, uri, o, &l);
        if (st == WEFT_ERR_ADDRESS || st == WEFT_ERR_UNSUPPORTED) { /* a machine without IPv6 */
            snprintf(uri, sizeof uri, "%s,tcp://0.0.0.0:0", name);
            st = wefti_listener_open(conn, uri, o, &l);
        }
    } else {
        n = (size_t)snprintf(uri, sizeof uri, "%s", name);
        while (*devices && n < sizeof uri) {
            size_t len = strcspn(devices, ",:"); /* "mlx5_0:1" is a device and a port of it */
            n += (size_t)snprintf(uri + n, sizeof uri - n, ",tcp://%.*s:0", (int)len, devices);
            devices += strcspn(devices, ",");
            devices += *devices == ',';
        }
        if (n >= sizeof uri)
            return wefti_fail(WEFT_ERR_INVALID, "WEFT_INTERFACES names too many devices for an address");
        st = wefti_listener_open(conn, uri, o, &l);
    }
    if (st)
        return st;
    st = own_uris(conn, l->uri);
    if (st) {
        wefti_listener_shut(l);
        return st;
    }
    conn->own = l;
    return WEFT_OK;
}

typedef struct address_call {
    weft_runtime_t *rt;
    const weft_listen_opts_t *opts;
    void *buf;
    size_t cap, need;
} address_call_t;

static weft_status_t address_here(void *arg)
{
    address_call_t *c = arg;
    wefti_conn_t *conn = wefti_conn_of(c->rt);
    weft_status_t st = conn->own              ? WEFT_OK
                       : wefti_closing(c->rt) ? wefti_fail(WEFT_ERR_CLOSED, "the runtime is being closed")
                       : c->opts->accept
                           ? listen_own(conn, c->opts)
                           : wefti_fail(WEFT_ERR_INVALID, "the first weft_runtime_address() needs opts->accept for what comes");
    if (!st)
        c->need = wefti_blob_encode(conn->uuid, conn->host, conn->own_uris, c->buf, c->cap);
    return st;
}

weft_status_t weft_runtime_address(weft_runtime_t *rt, const weft_listen_opts_t *opts, void *buf, size_t *len)
{
    weft_listen_opts_t o;
    if (!rt || !len)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", rt ? "len" : "rt");
    size_t cap = buf ? *len : 0;
    address_call_t c = {.rt = rt, .opts = &o, .buf = buf, .cap = cap};
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_listen_opts_t");
    if (!st)
        st = wefti_ask(rt, address_here, &c);
    if (st)
        return st;
    *len = c.need;
    if (buf && cap < c.need)
        return wefti_fail(WEFT_ERR_LIMIT, "the address has %zu bytes and the buffer %zu", c.need, cap);
    return WEFT_OK;
}
