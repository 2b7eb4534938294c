/* tests/fuzz/durl.c - any text is refused with words, or is a durl that comes back from its own text; any struct is written as
 * a durl, or refused.
 *
 * The text is copied to exactly its length, so that a sanitizer sees the first byte read past the terminator. */
#include <stdlib.h>
#include <string.h>
#include <weft/element.h>

#include "element/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static void check_accepted(const weft_durl_t *d)
{
    char text[WEFT_DURL_MAX + 1], cut[16];
    weft_durl_t again = WEFT_DURL_INIT;
    size_t len = sizeof text, n = sizeof cut, only = 0;
    must(*d->name && strlen(d->name) <= WEFT_DURL_NAME_MAX && !strchr(d->name, ';'));
    must(d->impl >= WEFT_IMPL_LOCAL && d->impl <= WEFT_IMPL_UVERBS_PROXY && d->region_key_len <= sizeof d->region_key);
    must(d->n_replicas <= WEFT_MIRROR_MAX && d->timeout_ms <= UINT32_MAX);
    must(!weft_durl_format(d, text, &len) && strlen(text) == len);
    must(!weft_durl_format(d, NULL, &only) && only == len);
    weft_status_t st = weft_durl_format(d, cut, &n);
    must(n == len && (len < sizeof cut ? !st : st == WEFT_ERR_LIMIT));
    must(!weft_durl_parse(text, &again) && !memcmp(&again, d, sizeof again));
}

/* As what a transport that has a name is configured with. */
static void check_keys(const char *text)
{
    weft_durl_t d = WEFT_DURL_INIT;
    char place[ELEMENT_PLACE_MAX];
    if (!wefti_durl_is_keys(text))
        return;
    memcpy(d.name, "mem", 4);
    d.impl = WEFT_IMPL_TCP;
    d.server = strlen(text) & 1;
    if (wefti_durl_parse_keys(text, &d)) {
        must(*weft_last_error() != '\0');
        return;
    }
    check_accepted(&d);
    wefti_durl_place(&d, place);
    must(strnlen(place, sizeof place) < sizeof place);
}

/* A struct from anywhere: only its size is right. */
static void check_struct(const uint8_t *data, size_t size)
{
    weft_durl_t d = WEFT_DURL_INIT, again = WEFT_DURL_INIT;
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text, room = sizeof d - sizeof d.size;
    memcpy((char *)&d + sizeof d.size, data, size < room ? size : room);
    d.server = data[0] & 1; /* a bool holds 0 or 1 */
    if (!weft_durl_format(&d, text, &len))
        must(!weft_durl_parse(text, &again) && !strcmp(again.name, d.name) && again.bytes == d.bytes);
    else
        must(*weft_last_error() != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > WEFT_DURL_MAX + 1000)
        return 0;
    char *text = malloc(size + 1);
    must(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    weft_durl_t d, untouched;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    untouched = d;
    if (weft_durl_parse(text, &d)) {
        must(!memcmp(&d, &untouched, sizeof d) && *weft_last_error() != '\0');
    } else {
        check_accepted(&d);
    }
    check_keys(text);
    if (size)
        check_struct(data, size);
    free(text);
    return 0;
}
