/* tests/fuzz/uri.c - any text is refused with words, or is an address that comes back from its own text.
 *
 * The list is copied to exactly its length, so that a sanitizer sees the first byte read past the terminator. */
#include "base/uri.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static void check_accepted(const wefti_uri_t *uri)
{
    char text[sizeof uri->host + 32], cut[8];
    wefti_uri_t again;
    size_t host = strnlen(uri->host, sizeof uri->host);
    must(host > 0 && host < sizeof uri->host);
    must(uri->scheme == WEFTI_URI_TCP || uri->scheme == WEFTI_URI_TLS ||
         (uri->scheme == WEFTI_URI_UNIX && host <= 107 && uri->port == 0));
    must(!strchr(uri->host, ','));

    size_t n = wefti_uri_format(uri, text, sizeof text);
    must(n < sizeof text && n == strlen(text));
    must(wefti_uri_format(uri, cut, sizeof cut) == n && strlen(cut) == (n < sizeof cut ? n : sizeof cut - 1));
    must(!memcmp(cut, text, strlen(cut)));

    const char *at = text;
    must(!wefti_uri_parse(&at, &again) && at == text + n);
    must(!memcmp(&again, uri, sizeof again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    must(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    wefti_uri_service_t service;
    if (!wefti_uri_parse_service(text, &service))
        must(wefti_uri_is_service(text) && *service.service && strlen(text) < sizeof service + sizeof "weft://");
    const char *at = text, *end = text + strlen(text);
    do {
        const char *before = at;
        wefti_uri_t uri, untouched;
        memset(&uri, 0xa5, sizeof uri);
        untouched = uri;
        if (wefti_uri_parse(&at, &uri)) {
            must(at == before && !memcmp(&uri, &untouched, sizeof uri));
            must(*weft_last_error() != '\0');
            break;
        }
        must(at > before && at <= end && (at == end || at[-1] == ','));
        check_accepted(&uri);
    } while (*at);
    free(text);
    return 0;
}
