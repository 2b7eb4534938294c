/* element/durl.c - durls: where a memory element is, as text from anywhere.
 *
 *     NAME;IMPL;[KEY,VALUE;]*
 *
 * The text is cut at semicolons, and each part at its first comma: a value may have commas, and nothing is quoted. Every value is
 * read into a place of its own size, or refused with the name of its key. Values of `token`, the region key of the memory, and
 * of `peerinfo` are secrets and never part of a message.
 *
 * Promise: any text is refused with a sentence, or weft_durl_format() gives the same durl again. tests/unit/element_durl.c,
 * tests/fuzz/durl.c. */
#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/nearest.h"
#include "base/units.h"
#include "base/uri.h"
#include "base/utf8.h"
#include "element/state.h"

enum { IMPLS = 5, SHOWN = 60, LITTLE = 12 /* of what may be a secret in a wrong place */ };

static const char *const impl_names[IMPLS][2] = {
    {"rdma_local", "rdma_local_server"},   {"rdma_shared", "rdma_shared_server"}, {"rdma_tcp", "rdma_tcp_server"},
    {"rdma_uverbs", "rdma_uverbs_server"}, {"rdma_uverbs_proxy", NULL},
};

const char *weft_impl_name(weft_impl_t impl, bool server)
{
    const char *name = (int)impl < 1 || (int)impl > IMPLS ? NULL : impl_names[impl - 1][server];
    return name ? name : "?";
}

/* A piece of the text. */
typedef struct part {
    const char *p;
    size_t n;
} part_t;

static bool is(part_t part, const char *word)
{
    return part.n == strlen(word) && !memcmp(part.p, word, part.n);
}

static int shown(part_t part)
{
    return (int)(part.n < SHOWN ? part.n : SHOWN);
}

/* Of what may be a pair that is not where it belongs: its key, or a little. */
static int shown_key(part_t part)
{
    const char *comma = (const char *)memchr(part.p, ',', part.n);
    size_t n = comma ? (size_t)(comma - part.p) : part.n;
    return (int)(n < LITTLE ? n : LITTLE);
}

/* The next part, and *at behind its separator, or NULL behind the last. */
static part_t next(const char **at, char separator)
{
    const char *end = strchr(*at, separator);
    part_t part = {*at, end ? (size_t)(end - *at) : strlen(*at)};
    *at = end ? end + 1 : NULL;
    return part;
}

/* --- values  ---------------------------------------------------------------------------------------------------------- */

static weft_status_t copy(const char *key, part_t v, char *out, size_t cap)
{
    if (v.n >= cap)
        return weft_fail(WEFT_ERR_INVALID, "the durl's %s has %zu bytes; %zu are the most", key, v.n, cap - 1);
    memcpy(out, v.p, v.n);
    out[v.n] = 0;
    return WEFT_OK;
}

static weft_status_t check_uris(const char *text)
{
    wefti_uri_t uri;
    weft_status_t st;
    do
        st = wefti_uri_parse(&text, &uri);
    while (!st && *text);
    return st;
}

static weft_status_t read_url(const char *key, part_t v, char out[512])
{
    weft_status_t st = copy(key, v, out, 512);
    return st ? st : check_uris(out);
}

/* Scad's servers listen on tcp://<star>:PORT, that is on every address. */
static weft_status_t read_server_url(const char *key, part_t v, char out[512])
{
    static const char star[] = "tcp://*:";
    char every[512 + 8];
    if (v.n < sizeof star - 1 || memcmp(v.p, star, sizeof star - 1) != 0)
        return read_url(key, v, out);
    size_t skip = sizeof star - 2;
    int n = snprintf(every, sizeof every, "tcp://0.0.0.0%.*s", (int)(v.n - skip < 512 ? v.n - skip : 512), v.p + skip);
    return read_url(key, (part_t){every, (size_t)n}, out);
}

static weft_status_t read_number(const char *key, part_t v, weft_status_t (*parse)(const char *, uint64_t *), uint64_t *out)
{
    char text[40];
    weft_status_t st = copy(key, v, text, sizeof text);
    return st ? st : parse(text, out);
}

static weft_status_t read_shm_id(part_t v, char out[64])
{
    for (size_t i = 0; i < v.n; i++)
        if (!wefti_is_alpha(v.p[i]) && !wefti_is_digit(v.p[i]) && !strchr("-_.", v.p[i]))
            return weft_fail(WEFT_ERR_INVALID, "the durl's shm_id has letters, digits, '-', '_' and '.' only");
    return copy("shm_id", v, out, 64);
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static weft_status_t read_region_key(part_t v, weft_durl_t *d)
{
    if (v.n % 2 || v.n / 2 > sizeof d->region_key)
        return weft_fail(WEFT_ERR_INVALID, "the durl's token is at most %zu bytes as two hexadecimal digits each, not %zu digits",
                         sizeof d->region_key, v.n);
    for (size_t i = 0; i < v.n; i += 2) {
        int high = digit(v.p[i]), low = digit(v.p[i + 1]);
        if (high < 0 || low < 0)
            return weft_fail(WEFT_ERR_INVALID, "the durl's token has something that is no hexadecimal digit");
        d->region_key[i / 2] = (uint8_t)(high << 4 | low);
    }
    d->region_key_len = v.n / 2;
    return WEFT_OK;
}

static weft_status_t read_replicas(const char *text, weft_durl_t *d)
{
    for (const char *at = text; at;) {
        part_t v = next(&at, '|');
        if (d->n_replicas == WEFT_MIRROR_MAX)
            return weft_fail(WEFT_ERR_INVALID, "the durl has more than %u replicas", WEFT_MIRROR_MAX);
        char *out = d->replica[d->n_replicas];
        weft_status_t st = read_url("replicas", v, out);
        if (st)
            return st;
        for (size_t i = 0; i < d->n_replicas; i++)
            if (!strcmp(d->replica[i], out))
                return weft_fail(WEFT_ERR_INVALID, "the durl has the replica %.*s twice", shown(v), v.p);
        d->n_replicas++;
    }
    return WEFT_OK;
}

/* --- keys  ------------------------------------------------------------------------------------------------------------ */

enum { KEY_SIZE, KEY_URL, KEY_SHM_ID, KEY_PEERINFO, KEY_TOKEN, KEY_TIMEOUT, KEY_REPLICAS, KEYS };
static const char *const keys[KEYS] = {"size", "url", "shm_id", "peerinfo", "token", "timeout_ms", "replicas"};

static weft_status_t unknown(part_t key)
{
    char word[32] = "";
    const char *near = NULL;
    size_t best = SIZE_MAX;
    if (key.n < sizeof word)
        memcpy(word, key.p, key.n);
    for (unsigned i = 0; i < KEYS && *word; i++) {
        size_t d = wefti_word_distance(word, keys[i]);
        if (d < best && wefti_word_near(d, keys[i])) {
            best = d;
            near = keys[i];
        }
    }
    return weft_fail(WEFT_ERR_INVALID,
                     "a durl has no key \"%.*s\"%s%s%s; it has size, url, shm_id, peerinfo, token, timeout_ms "
                     "and replicas",
                     shown(key), key.p, near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "");
}

static weft_status_t read_pair(part_t pair, unsigned *seen, weft_durl_t *d)
{
    const char *comma = (const char *)memchr(pair.p, ',', pair.n);
    part_t key = {pair.p, comma ? (size_t)(comma - pair.p) : pair.n};
    part_t v = {comma ? comma + 1 : "", comma ? pair.n - key.n - 1 : 0};
    unsigned which = 0;
    char replicas[(WEFT_MIRROR_MAX + 1) * 512];
    if (!comma)
        return weft_fail(WEFT_ERR_INVALID, "\"%.*s\" in the durl is not KEY,VALUE", shown_key(key), key.p);
    while (which < KEYS && !is(key, keys[which]))
        which++;
    if (which == KEYS)
        return unknown(key);
    if (*seen & 1u << which)
        return weft_fail(WEFT_ERR_INVALID, "the durl has the key %s twice", keys[which]);
    *seen |= 1u << which;
    if (!v.n)
        return WEFT_OK;
    weft_status_t st;
    switch (which) {
    case KEY_SIZE:
        return read_number(keys[which], v, wefti_parse_size, &d->bytes);
    case KEY_URL:
        return d->server ? read_server_url(keys[which], v, d->url) : read_url(keys[which], v, d->url);
    case KEY_SHM_ID:
        return read_shm_id(v, d->shm_id);
    case KEY_PEERINFO:
        return copy(keys[which], v, d->peerinfo, sizeof d->peerinfo);
    case KEY_TOKEN:
        return read_region_key(v, d);
    case KEY_TIMEOUT:
        return read_number(keys[which], v, wefti_parse_number, &d->timeout_ms);
    default:
        st = copy(keys[which], v, replicas, sizeof replicas);
        return st ? st : read_replicas(replicas, d);
    }
}

/* --- the whole  ------------------------------------------------------------------------------------------------------- */

/* A durl is one line: what is shown of it must not move a terminal's cursor either. */
static bool is_line(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return wefti_utf8_ok(text, n);
}

static weft_status_t read_impl(part_t word, weft_durl_t *d)
{
    for (int i = 0; i < IMPLS; i++)
        for (int server = 0; server < 2; server++)
            if (impl_names[i][server] && is(word, impl_names[i][server])) {
                d->impl = (weft_impl_t)(i + 1);
                d->server = server;
                return WEFT_OK;
            }
    return weft_fail(WEFT_ERR_INVALID,
                     "\"%.*s\" in the durl is none of rdma_local, rdma_shared, rdma_tcp, rdma_uverbs (each also "
                     "with _server) and rdma_uverbs_proxy",
                     shown_key(word), word.p);
}

static weft_status_t parse(const char *text, weft_durl_t *d)
{
    const char *at = text;
    unsigned seen = 0;
    part_t name = next(&at, ';');
    if (!name.n || !at)
        return weft_fail(WEFT_ERR_INVALID, "a durl is NAME;IMPL;[KEY,VALUE;]*, and \"%.*s\" %s", shown_key(name), name.p,
                         at ? "has no name" : "has no IMPL");
    weft_status_t st = copy("name", name, d->name, sizeof d->name);
    if (!st)
        st = read_impl(next(&at, ';'), d);
    while (!st && at && *at)
        st = read_pair(next(&at, ';'), &seen, d);
    return st;
}

static weft_status_t check(const char *text)
{
    if (!text)
        return weft_fail(WEFT_ERR_INVALID, "the durl is NULL");
    size_t n = strnlen(text, WEFT_DURL_MAX + 1);
    if (n > WEFT_DURL_MAX)
        return weft_fail(WEFT_ERR_INVALID, "a durl has at most %u bytes", WEFT_DURL_MAX);
    return is_line(text, n) ? WEFT_OK : weft_fail(WEFT_ERR_INVALID, "the durl is not one line of UTF-8 text");
}

bool wefti_durl_is_keys(const char *text)
{
    for (unsigned i = 0; text && i < KEYS; i++) {
        size_t n = strlen(keys[i]);
        if (!strncmp(text, keys[i], n) && text[n] == ',')
            return true;
    }
    return false;
}

weft_status_t wefti_durl_parse_keys(const char *text, weft_durl_t *durl)
{
    unsigned seen = 0;
    weft_status_t st = check(text);
    for (const char *at = text; !st && at && *at;)
        st = read_pair(next(&at, ';'), &seen, durl);
    return st;
}

weft_status_t weft_durl_parse(const char *text, weft_durl_t *durl_out)
{
    weft_durl_t d = WEFT_DURL_INIT;
    weft_status_t st = check(text);
    if (!st && (!durl_out || durl_out->size < sizeof durl_out->size))
        st = weft_fail(WEFT_ERR_INVALID, "a durl goes to a struct made with WEFT_DURL_INIT");
    if (!st)
        st = parse(text, &d);
    if (!st)
        wefti_opts_write(durl_out, &d, sizeof d);
    return st;
}

void wefti_uri_place(const char **uris, char place[ELEMENT_PLACE_MAX])
{
    wefti_uri_t uri;
    *place = 0;
    if (!**uris)
        return;
    if (wefti_uri_parse(uris, &uri))
        *uris += strlen(*uris);
    else if (uri.scheme == WEFTI_URI_UNIX)
        snprintf(place, ELEMENT_PLACE_MAX, "the element at %.107s", uri.host);
    else if (uri.port)
        snprintf(place, ELEMENT_PLACE_MAX, "the element at port %u", uri.port);
}

void wefti_durl_place(const weft_durl_t *d, char place[ELEMENT_PLACE_MAX])
{
    const char *at = d->url;
    if (!*at && *d->shm_id)
        snprintf(place, ELEMENT_PLACE_MAX, "the element at shm_id %s", d->shm_id);
    else
        wefti_uri_place(&at, place);
}

/* --- back to text  ---------------------------------------------------------------------------------------------------- */

typedef struct writer {
    char text[WEFT_DURL_MAX + 1];
    size_t n;
} writer_t;

static void put(writer_t *w, const char *text, size_t cap)
{
    size_t n = strnlen(text, cap);
    if (w->n + n < sizeof w->text) {
        memcpy(w->text + w->n, text, n);
        w->text[w->n + n] = 0;
    }
    w->n += n;
}

static void put_word(writer_t *w, const char *word)
{
    put(w, word, WEFT_DURL_MAX);
}

/* "KEY,", if there is a value. */
static bool put_key(writer_t *w, unsigned key, bool there)
{
    if (there) {
        put_word(w, keys[key]);
        put_word(w, ",");
    }
    return there;
}

static void put_text(writer_t *w, unsigned key, const char *value, size_t cap)
{
    if (put_key(w, key, *value)) {
        put(w, value, cap);
        put_word(w, ";");
    }
}

static void put_number(writer_t *w, unsigned key, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    put_text(w, key, value ? digits : "", sizeof digits);
}

static void put_region_key(writer_t *w, const weft_durl_t *d)
{
    if (!put_key(w, KEY_TOKEN, d->region_key_len))
        return;
    for (size_t i = 0; i < d->region_key_len; i++) {
        char two[3];
        snprintf(two, sizeof two, "%02x", d->region_key[i]);
        put(w, two, 2);
    }
    put_word(w, ";");
}

static void write_durl(const weft_durl_t *d, writer_t *w)
{
    put(w, d->name, sizeof d->name);
    put_word(w, ";");
    put_word(w, weft_impl_name(d->impl, d->server));
    put_word(w, ";");
    put_number(w, KEY_SIZE, d->bytes);
    put_text(w, KEY_URL, d->url, sizeof d->url);
    put_text(w, KEY_SHM_ID, d->shm_id, sizeof d->shm_id);
    put_text(w, KEY_PEERINFO, d->peerinfo, sizeof d->peerinfo);
    put_region_key(w, d);
    put_number(w, KEY_TIMEOUT, d->timeout_ms);
    (void)put_key(w, KEY_REPLICAS, d->n_replicas);
    for (size_t i = 0; i < d->n_replicas; i++) {
        put(w, d->replica[i], sizeof d->replica[i]);
        put_word(w, i + 1 < d->n_replicas ? "|" : ";");
    }
}

bool wefti_durl_same(const weft_durl_t *a, const weft_durl_t *b)
{
    bool same = !strcmp(a->name, b->name) && a->impl == b->impl && a->server == b->server && a->bytes == b->bytes &&
                !strcmp(a->url, b->url) && !strcmp(a->shm_id, b->shm_id) && !strcmp(a->peerinfo, b->peerinfo) &&
                a->region_key_len == b->region_key_len && !memcmp(a->region_key, b->region_key, a->region_key_len) &&
                a->timeout_ms == b->timeout_ms && a->n_replicas == b->n_replicas;
    for (size_t i = 0; same && i < a->n_replicas; i++)
        same = !strcmp(a->replica[i], b->replica[i]);
    return same;
}

/* Does every text in it end, so that it may be compared? */
static bool ends(const weft_durl_t *d)
{
    bool all = strnlen(d->name, sizeof d->name) < sizeof d->name && strnlen(d->url, sizeof d->url) < sizeof d->url &&
               strnlen(d->shm_id, sizeof d->shm_id) < sizeof d->shm_id &&
               strnlen(d->peerinfo, sizeof d->peerinfo) < sizeof d->peerinfo && d->region_key_len <= sizeof d->region_key &&
               d->n_replicas <= WEFT_MIRROR_MAX;
    for (size_t i = 0; all && i < d->n_replicas; i++)
        all = strnlen(d->replica[i], sizeof d->replica[i]) < sizeof d->replica[i];
    return all;
}

weft_status_t weft_durl_format(const weft_durl_t *durl, char *buf, size_t *len)
{
    weft_durl_t d, back = WEFT_DURL_INIT;
    writer_t w = {.n = 0};
    if (!durl || !len)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", durl ? "the length" : "the durl");
    weft_status_t st = wefti_opts_read(durl, &d, sizeof d, "weft_durl_t");
    if (st)
        return st;
    if (!ends(&d))
        return weft_fail(WEFT_ERR_INVALID,
                         "a text in the durl does not end, or there are more replicas or bytes of a region key than fit");
    write_durl(&d, &w);
    if (w.n > WEFT_DURL_MAX)
        return weft_fail(WEFT_ERR_INVALID, "the durl would have %zu bytes; %u are the most", w.n, WEFT_DURL_MAX);
    st = weft_durl_parse(w.text, &back);
    if (st)
        return st;
    if (!wefti_durl_same(&d, &back))
        return weft_fail(WEFT_ERR_INVALID,
                         "a text in the durl has a ';', or a replica a '|', and would be read back as something else");
    size_t cap = buf ? *len : 0;
    *len = w.n;
    if (!buf)
        return WEFT_OK;
    if (cap <= w.n)
        return weft_fail(WEFT_ERR_LIMIT, "the durl has %zu bytes and its terminator, and there is room for %zu", w.n, cap);
    memcpy(buf, w.text, w.n + 1);
    return WEFT_OK;
}
