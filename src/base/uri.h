/* base/uri.h - "tcp://host:port", "tcp://[v6]:port", "tcp://eth0:0", "tls://host:port", "unix:///path", "unix://@name"; several
 * by commas;
 * "weft://service@instance".
 *
 * Parsing only: no names are looked up here. */
#ifndef WEFTI_URI_H
#define WEFTI_URI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

typedef enum wefti_uri_scheme { WEFTI_URI_TCP = 1, WEFTI_URI_UNIX = 2, WEFTI_URI_TLS = 3 } wefti_uri_scheme_t;

typedef struct wefti_uri {
    wefti_uri_scheme_t scheme;
    char host[256]; /* tcp, tls: host without brackets; unix: the path, or '@' and the abstract name (at most 107 bytes) */
    uint16_t port;
} wefti_uri_t;

/* Has it a host and a port? */
static inline bool wefti_uri_has_port(const wefti_uri_t *uri) { return uri->scheme != WEFTI_URI_UNIX; }

/* Parse the next of a comma-separated list: *text moves past it; *text points to "" after the last one.
 * WEFT_ERR_INVALID (with weft_last_error naming the part) leaves *text and *uri_out untouched. */
weft_status_t wefti_uri_parse(const char **text, wefti_uri_t *uri_out);
/* Write it back; always terminates; returns the length it needs without the terminator. */
size_t wefti_uri_format(const wefti_uri_t *uri, char *buf, size_t cap);

/* "weft://service", "weft://service@instance": a service, wherever it is. */
#define WEFTI_URI_NAME_MAX 63
typedef struct wefti_uri_service {
    char service[WEFTI_URI_NAME_MAX + 1];
    char instance[WEFTI_URI_NAME_MAX + 1]; /* "": any */
} wefti_uri_service_t;

/* Is it one of these? By its scheme alone. */
bool wefti_uri_is_service(const char *text);
/* The whole text is one. WEFT_ERR_INVALID; with a function behind it, too: what is connected to is a service. */
weft_status_t wefti_uri_parse_service(const char *text, wefti_uri_service_t *out);

/* Any uri as people may see it: what may be a password, from the first ':' after "scheme://" to the last '@', as "***". dir://
 * has none. Always terminates; strlen(uri) + 4 bytes are enough. */
void wefti_uri_hide(const char *uri, char *buf, size_t cap);

#endif
