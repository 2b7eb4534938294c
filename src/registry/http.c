/* registry/http.c - HTTP by libcurl: the only file that calls it.
 *
 * The library is loaded when the first registry needs it, and stays loaded. Two handles: one for requests, which keeps its
 * connection, and one for the answer that never ends. Whatever waits drives both: a request, or wefti_reg_http_wait().
 *
 *     stream: none --stream()--> going --the server, an error or its function ends it--> over --end()--> none
 *
 * No proxy, no redirection, HTTP/1.1 and nothing else. Headers and bodies have a bound. Programs that are executed do not
 * inherit the sockets.
 *
 * Promise: a request ends within its limits, whatever the server does. tests/fault/registry_etcd_hostile.c. */
#include "registry/http.h"

#define CURL_DISABLE_TYPECHECK   /* its macros call the functions by name, and we do not link them */
#define CURL_DISABLE_DEPRECATION /* the successor of CURLOPT_PROTOCOLS is not in libraries before 7.85 */
#include <curl/curl.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include "base/ascii.h"
#include "base/clock.h"
#include "registry/state.h"

enum { HEADERS_MAX = 64 << 10, KEEP_BYTES = 256 << 10 };

typedef struct transfer {
    reg_http_t *h;
    CURL *easy;
    size_t headers;
    bool going, done;
    CURLcode result; /* of what is done */
    char said[CURL_ERROR_SIZE];
} transfer_t;

struct reg_http {
    CURLM *multi;
    struct curl_slist *headers;
    transfer_t request, stream;
    reg_http_fn fn;
    void *user;
    bool told;        /* fn was called */
    int socket_errno; /* why there was no socket; 0: there was */
    uint64_t heard;   /* when the last bytes of the request's answer came */
    char *body;
    size_t n, cap, max;
    bool too_long, no_memory;
    char why[CURL_ERROR_SIZE + 64];
};

/* --- the library ------------------------------------------------------------------------------------------------------- */

#define CALLS(X) \
    X(curl_global_init) \
    X(curl_easy_init) \
    X(curl_easy_setopt) \
    X(curl_easy_getinfo) \
    X(curl_easy_cleanup) \
    X(curl_easy_strerror) \
    X(curl_slist_append) \
    X(curl_slist_free_all) \
    X(curl_multi_init) \
    X(curl_multi_add_handle) \
    X(curl_multi_remove_handle) \
    X(curl_multi_perform) \
    X(curl_multi_poll) \
    X(curl_multi_info_read) \
    X(curl_multi_cleanup)

static struct {
#define MEMBER(name) __typeof__(&name) name;
    CALLS(MEMBER)
#undef MEMBER
} lib;

static weft_status_t load(void)
{
    static const char *const files[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    static const reg_symbol_t symbols[] = {
#define SYMBOL(name) {#name, &lib.name},
        CALLS(SYMBOL)
#undef SYMBOL
    };
    const char *missing;
    if (wefti_reg_load(files, symbols, sizeof symbols / sizeof *symbols, &missing)) {
        CURLcode code = lib.curl_global_init(CURL_GLOBAL_DEFAULT);
        return code ? wefti_fail(WEFT_ERR_UNSUPPORTED, "libcurl does not start: %s", lib.curl_easy_strerror(code)) : WEFT_OK;
    }
    if (missing)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "the libcurl of this machine is too old: it has no %s; 7.66 or later is needed",
                          missing);
    return wefti_fail(WEFT_ERR_UNSUPPORTED, "there is no libcurl on this machine; install it "
                                            "(Debian: apt-get install libcurl4; Fedora: dnf install libcurl)");
}

/* --- what libcurl calls ------------------------------------------------------------------------------------------------ */

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a)
{
    reg_http_t *h = (reg_http_t *)user;
    (void)purpose;
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    h->socket_errno = fd < 0 ? errno : 0;
    /* cppcheck-suppress resourceLeak ; libcurl closes it */
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

/* Anything but n ends the transfer. */
static size_t take_header(const char *bytes, size_t size, size_t count, void *user)
{
    transfer_t *t = (transfer_t *)user;
    size_t n = size * count;
    (void)bytes;
    t->headers += n;
    t->h->heard = wefti_clock_ns();
    return t->headers > HEADERS_MAX ? 0 : n;
}

static size_t take_body(const char *bytes, size_t size, size_t count, void *user)
{
    reg_http_t *h = (reg_http_t *)user;
    size_t n = size * count;
    h->heard = wefti_clock_ns();
    if (n > h->max - h->n) {
        h->too_long = true;
        return 0;
    }
    if (!wefti_grow(&h->body, &h->cap, h->n + n + 1, 1)) {
        h->no_memory = true;
        return 0;
    }
    memcpy(h->body + h->n, bytes, n);
    h->n += n;
    return n;
}

static size_t take_stream(const char *bytes, size_t size, size_t count, void *user)
{
    reg_http_t *h = (reg_http_t *)user;
    long code = 0;
    lib.curl_easy_getinfo(h->stream.easy, CURLINFO_RESPONSE_CODE, &code);
    h->told = true;
    return code == 200 && h->fn(bytes, size * count, h->user) ? size * count : 0;
}

/* --- making ------------------------------------------------------------------------------------------------------------ */

static bool prepare(reg_http_t *h, transfer_t *t, const char *ca)
{
    CURL *e = t->easy = lib.curl_easy_init();
    unsigned bad = 0;
    if (!e)
        return false;
    t->h = h;
    bad |= lib.curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    bad |= lib.curl_easy_setopt(e, CURLOPT_PROXY, ""); /* whatever the environment says */
    bad |= lib.curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    bad |= lib.curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    bad |= lib.curl_easy_setopt(e, CURLOPT_POST, 1L);
    bad |= lib.curl_easy_setopt(e, CURLOPT_HTTPHEADER, h->headers);
    bad |= lib.curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    bad |= lib.curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->said);
    bad |= lib.curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    bad |= lib.curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, h);
    bad |= lib.curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, take_header);
    bad |= lib.curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
    bad |= lib.curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, t == &h->stream ? take_stream : take_body);
    bad |= lib.curl_easy_setopt(e, CURLOPT_WRITEDATA, h);
    if (ca)
        bad |= lib.curl_easy_setopt(e, CURLOPT_CAINFO, ca);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* do not wait for the lookup of a name when its request is over; a library older than this option waits */
    lib.curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
#endif
    return !bad;
}

weft_status_t wefti_reg_http_new(const char *ca, reg_http_t **http_out)
{
    static reg_once_t once = REG_ONCE_INIT;
    weft_status_t st = wefti_reg_once(&once, load);
    if (st)
        return st;
    reg_http_t *h = (reg_http_t *)wefti_calloc(1, sizeof *h);
    if (!h)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client of HTTP");
    h->multi = lib.curl_multi_init();
    h->headers = lib.curl_slist_append(NULL, "Content-Type: application/json");
    /* "Expect:" for sending at once, without asking first */
    struct curl_slist *more = h->headers ? lib.curl_slist_append(h->headers, "Expect:") : NULL;
    if (!h->multi || !more || !prepare(h, &h->request, ca) || !prepare(h, &h->stream, ca)) {
        wefti_reg_http_free(h);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client of HTTP");
    }
    *http_out = h;
    return WEFT_OK;
}

void wefti_reg_http_free(reg_http_t *h)
{
    if (!h)
        return;
    wefti_reg_http_stream_end(h);
    if (h->request.easy)
        lib.curl_easy_cleanup(h->request.easy);
    if (h->stream.easy)
        lib.curl_easy_cleanup(h->stream.easy);
    if (h->multi)
        lib.curl_multi_cleanup(h->multi);
    lib.curl_slist_free_all(h->headers);
    wefti_free(h->body);
    wefti_free(h);
}

/* --- driving ----------------------------------------------------------------------------------------------------------- */

static weft_status_t begin(transfer_t *t, const char *url, const char *body, size_t n)
{
    *t->said = 0;
    t->headers = 0;
    t->done = false;
    t->result = CURLE_OK;
    if (lib.curl_easy_setopt(t->easy, CURLOPT_URL, url) || lib.curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE, (long)n) ||
        lib.curl_easy_setopt(t->easy, CURLOPT_COPYPOSTFIELDS, body))
        return WEFT_ERR_NOMEM;
    if (lib.curl_multi_add_handle(t->h->multi, t->easy))
        return WEFT_ERR_NOMEM;
    t->going = true;
    return WEFT_OK;
}

static void drive(reg_http_t *h)
{
    int running, left;
    lib.curl_multi_perform(h->multi, &running);
    for (CURLMsg *m; (m = lib.curl_multi_info_read(h->multi, &left));) {
        transfer_t *t = m->easy_handle == h->request.easy ? &h->request : &h->stream;
        if (m->msg != CURLMSG_DONE)
            continue;
        t->result = m->data.result;
        t->done = true;
    }
}

static void finish(transfer_t *t)
{
    if (t->going)
        lib.curl_multi_remove_handle(t->h->multi, t->easy);
    t->going = false;
}

static weft_status_t because(reg_http_t *h, weft_status_t st, const char *why)
{
    size_t n = strlen(why);
    n = n < sizeof h->why - 1 ? n : sizeof h->why - 1;
    for (size_t i = 0; i < n; i++) /* some of it may be the server's words */
        h->why[i] = wefti_is_cntrl(why[i]) ? '?' : why[i];
    h->why[n] = 0;
    return st;
}

static weft_status_t outcome(reg_http_t *h)
{
    const transfer_t *t = &h->request;
    if (!t->done)
        return because(h, WEFT_ERR_TIMEOUT, "no answer in time");
    if (t->result == CURLE_OK)
        return WEFT_OK;
    if (h->too_long)
        return because(h, WEFT_ERR_TRUNCATED, "an answer that is too long");
    if (h->no_memory || t->result == CURLE_OUT_OF_MEMORY)
        return because(h, WEFT_ERR_NOMEM, "no memory for the answer");
    if (h->socket_errno)
        return because(h, h->socket_errno == EMFILE || h->socket_errno == ENFILE ? WEFT_ERR_LIMIT : WEFT_ERR_UNREACHABLE,
                       strerror(h->socket_errno));
    if (t->headers > HEADERS_MAX)
        return because(h, WEFT_ERR_UNREACHABLE, "an answer whose headers do not end");
    return because(h, WEFT_ERR_UNREACHABLE, *t->said ? t->said : lib.curl_easy_strerror(t->result));
}

weft_status_t wefti_reg_http_post(reg_http_t *h, const char *url, const char *body, size_t n, const reg_http_limits_t *limits,
                                  reg_http_reply_t *reply_out)
{
    long connects = 0;
    if (h->cap > KEEP_BYTES) { /* one long answer is no reason to keep the memory */
        wefti_free(h->body);
        h->body = NULL;
        h->cap = 0;
    }
    if (!wefti_grow(&h->body, &h->cap, 2048, 1))
        return because(h, WEFT_ERR_NOMEM, "no memory for the answer");
    h->n = 0;
    h->max = limits->bytes;
    h->too_long = h->no_memory = false;
    h->socket_errno = 0;
    h->heard = wefti_clock_ns();
    weft_status_t st = begin(&h->request, url, body, n);
    if (st)
        return because(h, st, "no memory for a request");
    for (;;) {
        drive(h);
        uint64_t now = wefti_clock_ns(), end = h->heard + limits->quiet_ns;
        if (end > limits->end)
            end = limits->end;
        if (h->request.done || now >= end)
            break;
        lib.curl_multi_poll(h->multi, NULL, 0, wefti_reg_ms(end - now), NULL);
    }
    st = outcome(h);
    if (!st) {
        lib.curl_easy_getinfo(h->request.easy, CURLINFO_RESPONSE_CODE, &reply_out->code);
        lib.curl_easy_getinfo(h->request.easy, CURLINFO_NUM_CONNECTS, &connects);
        h->body[h->n] = 0;
        reply_out->body = h->body;
        reply_out->n = h->n;
        reply_out->fresh = connects > 0;
    }
    finish(&h->request);
    return st;
}

const char *wefti_reg_http_why(const reg_http_t *h)
{
    return h->why;
}

/* --- the stream -------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_reg_http_stream(reg_http_t *h, const char *url, const char *body, reg_http_fn fn, void *user)
{
    wefti_reg_http_stream_end(h);
    h->fn = fn;
    h->user = user;
    return begin(&h->stream, url, body, strlen(body));
}

void wefti_reg_http_stream_end(reg_http_t *h)
{
    if (h->stream.easy)
        finish(&h->stream);
}

bool wefti_reg_http_streaming(const reg_http_t *h)
{
    return h->stream.going && !h->stream.done;
}

void wefti_reg_http_wait(reg_http_t *h, int fd, int ms)
{
    uint64_t end = wefti_clock_ns() + (uint64_t)(ms < 0 ? 0 : ms) * WEFT_MILLISECOND;
    bool was = wefti_reg_http_streaming(h);
    h->told = false;
    for (;;) {
        struct curl_waitfd extra = {fd, CURL_WAIT_POLLIN, 0};
        uint64_t now = wefti_clock_ns();
        drive(h);
        if (h->told || (was && !wefti_reg_http_streaming(h)))
            return;
        int left = ms < 0 ? 60000 : now >= end ? 0 : wefti_reg_ms(end - now);
        if (lib.curl_multi_poll(h->multi, &extra, 1, left, NULL)) {
            struct pollfd p = {fd, POLLIN, 0}; /* it cannot even wait: no memory */
            poll(&p, 1, left < 100 ? left : 100);
            return;
        }
        if (extra.revents || left == 0)
            return;
    }
}
