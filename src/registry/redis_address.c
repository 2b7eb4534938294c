/* registry/redis_address.c - the URI of a Redis server.
 *
 *     redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]           HOST: a name, an IPv4 address, or an IPv6 address in brackets
 *     redis+unix://[[USER]:PASSWORD@]/PATH[?db=DB]
 *
 * In USER and PASSWORD %XX stands for a byte; '@', '/' and '%' must be written like this.
 *
 * Promise: every refusal says how to write it, and does not show the password.
 * tests/unit/registry_redis.c. */
#include <stdio.h>
#include <sys/un.h>

#include "base/ascii.h"
#include "base/units.h"
#include "registry/redis.h"

enum { USUAL_PORT = 6379, DB_MAX = 1000000 };
#define FORM "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or redis+unix://[[USER]:PASSWORD@]/PATH[?db=DB]"

/* Copy [from, to) without its escapes. False: it is too long, or has a '%' without two digits. */
static bool unescape(const char *from, const char *to, char *out, size_t cap)
{
    size_t n = 0;
    for (; from < to; from++) {
        int c = (unsigned char)*from;
        if (c == '%') {
            int high = to - from > 2 ? wefti_hex(from[1]) : -1, low = high < 0 ? -1 : wefti_hex(from[2]);
            c = low < 0 ? 0 : high * 16 + low;
            from += 2;
        }
        if (!c || n + 1 >= cap)
            return false;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return true;
}

weft_status_t wefti_redis_address(const char *rest, bool unix_socket, redis_address_t *address_out)
{
    redis_address_t a = {.host = ""};
    const char *slash = strchr(rest, '/'), *end = rest + strlen(rest), *stop = slash ? slash : end, *db = NULL;
    const char *at = memrchr(rest, '@', (size_t)(stop - rest));
    if (at) {
        const char *colon = memchr(rest, ':', (size_t)(at - rest));
        if (!colon || colon + 1 == at)
            return wefti_fail(WEFT_ERR_INVALID, "before the '@' comes ':PASSWORD' or 'USER:PASSWORD'; write " FORM);
        if (!unescape(rest, colon, a.user, sizeof a.user) || !unescape(colon + 1, at, a.password, sizeof a.password))
            return wefti_fail(WEFT_ERR_INVALID,
                              "the user or the password of a Redis server is too long, or has a '%%' in it that is not "
                              "followed by two hexadecimal digits (a '%%' itself is %%25)");
        rest = at + 1;
    }
    if (unix_socket) {
        const char *query = strchr(rest, '?');
        const char *path_end = query ? query : end;
        size_t n = (size_t)(path_end - rest);
        if (*rest != '/' || n >= sizeof((struct sockaddr_un *)0)->sun_path)
            return wefti_fail(WEFT_ERR_INVALID, "a Unix socket has an absolute path of at most %zu characters; write " FORM,
                              sizeof((struct sockaddr_un *)0)->sun_path - 1);
        memcpy(a.host, rest, n);
        if (query && strncmp(query, "?db=", 4) != 0)
            return wefti_fail(WEFT_ERR_INVALID, "after the path of a Unix socket comes ?db=DB or nothing; write " FORM);
        db = query ? query + 4 : NULL;
    } else {
        wefti_uri_t uri;
        if (wefti_reg_host(rest, (size_t)(stop - rest), USUAL_PORT, &uri))
            return wefti_fail(WEFT_ERR_INVALID, /* base/uri.c would quote it: a password that has a '/' in it */
                              "a Redis server has a host (an IPv6 address in brackets) and a port from 1 to 65535; write " FORM);
        memcpy(a.host, uri.host, sizeof a.host);
        a.port = uri.port;
        db = slash && slash[1] ? slash + 1 : NULL;
    }
    uint64_t number = 0;
    if (db && (wefti_parse_number(db, &number) || number > DB_MAX))
        return wefti_fail(WEFT_ERR_INVALID, "the database of a Redis server is a number; write " FORM);
    a.db = (unsigned)number;
    *address_out = a;
    return WEFT_OK;
}
