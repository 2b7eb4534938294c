/* base/uri.c - addresses as people write them.
 *
 *     list   = uri *("," uri)
 *     uri    = ("tcp://" | "tls://") host ":" port  |  "unix://" ("/" path | "@" name)
 *     host   = name or device or IPv4  |  "[" IPv6 ["%" zone] "]"
 *     weft   = "weft://" name ["@" name]
 *
 * Strict: what cannot be an address on any machine is refused here, with the part and its value, so that no resolver has to. A
 * comma always separates, the scheme may be in any case, and there is no percent-encoding.
 *
 * Promise: reads nothing past the terminator; an accepted address formats to text that parses to the same address, and an
 * error leaves the outputs alone. tests/unit/base_uri.c and tests/fuzz/uri.c. */
#include "base/uri.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/log.h"

enum { HOST_NAME_MAX_LEN = 253, ZONE_MAX_LEN = 15, UNIX_MAX_LEN = 107, PORT_DIGITS = 5 };

/* A stretch of the text, not terminated. */
typedef struct part {
    const char *at;
    size_t n;
} part_t;

/* For printf("%.*s%s"): no error needs more than this much of a value. */
#define SHOWN(p) ((int)((p).n < 120 ? (p).n : 120)), (p).at, ((p).n < 120 ? "" : "...")

static bool is_host_char(char c)
{
    return wefti_is_alnum(c) || c == '.' || c == '-' || c == '_';
}

static bool copy_part(char *buf, size_t cap, part_t p)
{
    if (p.n >= cap)
        return false;
    memcpy(buf, p.at, p.n);
    buf[p.n] = '\0';
    return true;
}

static weft_status_t parse_port(part_t p, uint16_t *port_out)
{
    unsigned port = 0;
    bool good = p.n >= 1 && p.n <= PORT_DIGITS;
    for (size_t i = 0; good && i < p.n; i++) {
        good = wefti_is_digit(p.at[i]);
        port = port * 10 + (unsigned)(p.at[i] - '0');
    }
    if (!good || port > UINT16_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "port \"%.*s%s\" is not between 0 and 65535", SHOWN(p));
    *port_out = (uint16_t)port;
    return WEFT_OK;
}

/* The inside of the brackets. */
static weft_status_t check_v6(part_t host)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr addr;
    const char *percent = memchr(host.at, '%', host.n);
    part_t digits = {host.at, percent ? (size_t)(percent - host.at) : host.n};
    if (!copy_part(text, sizeof text, digits) || inet_pton(AF_INET6, text, &addr) != 1)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.*s%s\" in brackets is not an IPv6 address", SHOWN(host));
    if (!percent)
        return WEFT_OK;
    part_t zone = {percent + 1, host.n - digits.n - 1};
    bool good = zone.n >= 1 && zone.n <= ZONE_MAX_LEN;
    for (size_t i = 0; good && i < zone.n; i++)
        good = is_host_char(zone.at[i]);
    if (!good)
        return wefti_fail(WEFT_ERR_INVALID, "zone \"%.*s%s\" of an IPv6 address is not a device name", SHOWN(zone));
    return WEFT_OK;
}

static weft_status_t check_name(part_t host)
{
    bool numeric = true;
    if (!host.n)
        return wefti_fail(WEFT_ERR_INVALID, "the host is empty: name an address, a host name or a device");
    if (memchr(host.at, ':', host.n))
        return wefti_fail(WEFT_ERR_INVALID, "host \"%.*s%s\" has colons: an IPv6 address is written in brackets, as [::1]",
                          SHOWN(host));
    for (size_t i = 0; i < host.n; i++) {
        if (!is_host_char(host.at[i]))
            return wefti_fail(WEFT_ERR_INVALID, "host \"%.*s%s\" has a character that no host or device name has: \"%c\"",
                              SHOWN(host), host.at[i]);
        if (host.at[i] == '.' && (i == 0 || host.at[i - 1] == '.'))
            return wefti_fail(WEFT_ERR_INVALID, "host \"%.*s%s\" has a dot with nothing before it", SHOWN(host));
        numeric = numeric && (host.at[i] == '.' || wefti_is_digit(host.at[i]));
    }
    if (host.n > HOST_NAME_MAX_LEN)
        return wefti_fail(WEFT_ERR_INVALID, "host \"%.*s%s\" has %zu characters; a name has at most %d", SHOWN(host), host.n,
                          HOST_NAME_MAX_LEN);
    if (numeric) {
        char text[INET_ADDRSTRLEN];
        struct in_addr addr;
        if (!copy_part(text, sizeof text, host) || inet_pton(AF_INET, text, &addr) != 1)
            return wefti_fail(WEFT_ERR_INVALID, "host \"%.*s%s\" is not an IPv4 address", SHOWN(host));
    }
    return WEFT_OK;
}

static const char *scheme_of(const wefti_uri_t *uri)
{
    return uri->scheme == WEFTI_URI_TLS ? "tls" : "tcp";
}

static weft_status_t no_port(const wefti_uri_t *uri, part_t host)
{
    return wefti_fail(WEFT_ERR_INVALID,
                      "%s://%.*s%s has no port; add a port: %s://%.*s%s:13337, or port 0 for a server to pick one",
                      scheme_of(uri), SHOWN(host), scheme_of(uri), SHOWN(host));
}

static weft_status_t parse_tcp(part_t rest, wefti_uri_t *uri)
{
    part_t host, port;
    weft_status_t st;
    if (rest.n && rest.at[0] == '[') {
        const char *close = memchr(rest.at, ']', rest.n);
        if (!close)
            return wefti_fail(WEFT_ERR_INVALID, "host \"%.*s%s\" has no closing bracket", SHOWN(rest));
        host = (part_t){rest.at + 1, (size_t)(close - rest.at) - 1};
        port = (part_t){close + 1, (size_t)(rest.at + rest.n - close) - 1};
        if (!port.n)
            return no_port(uri, rest);
        if (port.at[0] != ':')
            return wefti_fail(WEFT_ERR_INVALID, "\"%.*s%s\" after the closing bracket is not \":\" and a port", SHOWN(port));
        st = check_v6(host);
        port.at++, port.n--;
    } else {
        const char *colon = memrchr(rest.at, ':', rest.n);
        if (!colon && rest.n)
            return no_port(uri, rest);
        if (!colon)
            return check_name(rest);
        host = (part_t){rest.at, (size_t)(colon - rest.at)};
        port = (part_t){colon + 1, rest.n - host.n - 1};
        st = check_name(host);
    }
    if (!st)
        st = parse_port(port, &uri->port);
    if (!st)
        (void)copy_part(uri->host, sizeof uri->host, host); /* both checks bound it */
    return st;
}

static weft_status_t parse_unix(part_t path, wefti_uri_t *uri)
{
    if (!path.n || (path.at[0] != '/' && path.at[0] != '@'))
        return wefti_fail(WEFT_ERR_INVALID, "\"%.*s%s\" is neither an absolute path nor \"@\" and a name", SHOWN(path));
    if (path.n > UNIX_MAX_LEN)
        return wefti_fail(WEFT_ERR_INVALID, "path \"%.*s%s\" has %zu bytes; a Unix socket's has at most %d", SHOWN(path), path.n,
                          UNIX_MAX_LEN);
    if (path.n == 1 || (path.at[0] == '/' && path.at[path.n - 1] == '/'))
        return wefti_fail(WEFT_ERR_INVALID, "path \"%.*s%s\" does not end in a name", SHOWN(path));
    for (size_t i = 0; i < path.n; i++)
        if (wefti_is_cntrl(path.at[i]))
            return wefti_fail(WEFT_ERR_INVALID, "path \"%.*s%s\" has a control character (0x%02x)", SHOWN(path),
                              (unsigned char)path.at[i]);
    (void)copy_part(uri->host, sizeof uri->host, path);
    return WEFT_OK;
}

weft_status_t wefti_uri_parse(const char **text, wefti_uri_t *uri_out)
{
    static const char mark[] = "://";
    if (!*text)
        return wefti_fail(WEFT_ERR_INVALID, "the address is NULL");
    part_t whole = {*text, strcspn(*text, ",")};
    const char *end = whole.at + whole.n;
    if (!**text)
        return wefti_fail(WEFT_ERR_INVALID, "the address is empty");
    if (!whole.n)
        return wefti_fail(WEFT_ERR_INVALID, "there is nothing before the comma in \"%.120s\"", *text);
    if (*end == ',' && !end[1])
        return wefti_fail(WEFT_ERR_INVALID, "there is nothing after the comma in \"%.120s\"", *text);
    const char *colon = memmem(whole.at, whole.n, mark, sizeof mark - 1);
    if (!colon)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.*s%s\" has no scheme: tcp://, tls:// or unix://", SHOWN(whole));

    part_t scheme = {whole.at, (size_t)(colon - whole.at)};
    part_t rest = {colon + sizeof mark - 1, (size_t)(end - colon) - (sizeof mark - 1)};
    wefti_uri_t uri;
    weft_status_t st;
    memset(&uri, 0, sizeof uri);
    bool tls = scheme.n == 3 && wefti_same_text(scheme.at, "tls", 3);
    if (tls || (scheme.n == 3 && wefti_same_text(scheme.at, "tcp", 3))) {
        uri.scheme = tls ? WEFTI_URI_TLS : WEFTI_URI_TCP;
        st = parse_tcp(rest, &uri);
    } else if (scheme.n == 4 && wefti_same_text(scheme.at, "unix", 4)) {
        uri.scheme = WEFTI_URI_UNIX;
        st = parse_unix(rest, &uri);
    } else {
        st = wefti_fail(WEFT_ERR_INVALID, "scheme \"%.*s%s\" is not tcp, tls or unix", SHOWN(scheme));
    }
    if (st)
        return st;
    *text = *end ? end + 1 : end;
    *uri_out = uri;
    return WEFT_OK;
}

size_t wefti_uri_format(const wefti_uri_t *uri, char *buf, size_t cap)
{
    int n;
    if (uri->scheme == WEFTI_URI_UNIX)
        n = snprintf(buf, cap, "unix://%s", uri->host);
    else if (strchr(uri->host, ':'))
        n = snprintf(buf, cap, "%s://[%s]:%u", scheme_of(uri), uri->host, uri->port);
    else
        n = snprintf(buf, cap, "%s://%s:%u", scheme_of(uri), uri->host, uri->port);
    return n < 0 ? 0 : (size_t)n;
}

/* --- services --------------------------------------------------------------------------------------------------------------- */

static const char weft_scheme[] = "weft://";

bool wefti_uri_is_service(const char *text)
{
    return text && strnlen(text, sizeof weft_scheme) >= sizeof weft_scheme - 1 &&
           wefti_same_text(text, weft_scheme, sizeof weft_scheme - 1);
}

static weft_status_t parse_name(const char *whole, const char *what, part_t p, char out[WEFTI_URI_NAME_MAX + 1])
{
    if (!p.n || p.n > WEFTI_URI_NAME_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "the %s in \"%.200s\" has %zu characters; it has 1 to %d", what, whole, p.n,
                          WEFTI_URI_NAME_MAX);
    for (size_t i = 0; i < p.n; i++)
        if (!is_host_char(p.at[i]))
            return wefti_fail(WEFT_ERR_INVALID, "the %s \"%.*s%s\" has a character that is no letter, digit, '.', '-' or '_'",
                              what, SHOWN(p));
    (void)copy_part(out, WEFTI_URI_NAME_MAX + 1, p);
    return WEFT_OK;
}

weft_status_t wefti_uri_parse_service(const char *text, wefti_uri_service_t *out)
{
    wefti_uri_service_t uri = {"", ""};
    if (!wefti_uri_is_service(text))
        return wefti_fail(WEFT_ERR_INVALID, "\"%.200s\" does not begin with weft://", text ? text : "");
    const char *rest = text + sizeof weft_scheme - 1, *slash = strchr(rest, '/'), *at = strchr(rest, '@');
    if (slash)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.200s\" names a function; connect to %.*s and ask for the method \"%.100s\"",
                          text, (int)(slash - text < 200 ? slash - text : 200), text, slash + 1);
    part_t service = {rest, at ? (size_t)(at - rest) : strlen(rest)};
    weft_status_t st = parse_name(text, "service", service, uri.service);
    if (!st && at)
        st = parse_name(text, "instance", (part_t){at + 1, strlen(at + 1)}, uri.instance);
    if (!st)
        *out = uri;
    return st;
}

void wefti_uri_hide(const char *uri, char *buf, size_t cap)
{
    const char *from = strstr(uri, "://"), *at = strrchr(uri, '@');
    const char *colon =
        from && at > from + 3 && strncmp(uri, "dir:", 4) != 0 ? memchr(from + 3, ':', (size_t)(at - from - 3)) : NULL;
    if (colon)
        snprintf(buf, cap, "%.*s:***%s", (int)(colon - uri), uri, at);
    else
        snprintf(buf, cap, "%s", uri);
}
