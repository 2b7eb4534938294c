/* registry/http.c - HTTP by libcurl: the only file that calls it.
 *
 * The library is loaded when the first registry asks for it, for the life of the process, and what is needed of its interface is
 * in curl.h. Two handles: one for requests, used again and again so that its connection stays, one for the answer that never
 * ends. Both are driven by whatever waits: a request, or wefti_reg_http_wait().
 *
 *     stream: none --stream()--> going --ended by the server, by an error, or by its function--> over --end()--> none
 *
 * No proxy, no redirection, HTTP/1.1 and nothing else; headers and bodies have a bound. Sockets are not inherited by programs
 * that are executed.
 *
 * Promise: a request ends within its limits, whatever the server does. tests/unit/registry_etcd.c, tests/fault/registry_etcd_hostile.c. */
#include "registry/http.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ascii.h"
#include "base/clock.h"
#include "base/log.h"
#include "registry/curl.h"

#define MS UINT64_C(1000000)
enum { HEADERS_MAX = 64 << 10, KEEP_BYTES = 256 << 10 };

static struct {
#define CURL_MEMBER(result, member, symbol, args) result(*member) args;
    CURL_CALLS(CURL_MEMBER)
#undef CURL_MEMBER
} curl;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;
static char why_absent[256];

typedef struct transfer {
    reg_http_t *h;
    void *easy;
    size_t headers;
    bool going, done;
    int result; /* CURLE_, of what is done */
    char said[WEFT_CURL_ERROR_SIZE];
} transfer_t;

struct reg_http {
    void *multi, *headers;
    transfer_t request, stream;
    reg_http_fn fn;
    void *user;
    bool told;        /* fn was called */
    int socket_errno; /* why there was no socket; 0: there was */
    uint64_t heard;   /* when the last bytes of the request's answer came */
    char *body;
    size_t n, cap, max;
    bool too_long, no_memory;
    char why[WEFT_CURL_ERROR_SIZE + 64];
};

/* --- the library ------------------------------------------------------------------------------------------------------------- */

static void load(void)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(
            why_absent, sizeof why_absent,
            "there is no libcurl on this machine; install it (Debian: apt-get install libcurl4; Fedora: dnf install libcurl)");
        return;
    }
    /* through a copy of the bytes: ISO C has no cast from an object pointer to a function pointer */
#define CURL_RESOLVE(result, member, symbol, args) \
    { \
        void *found = dlsym(library, symbol); \
        if (!found) { \
            snprintf(why_absent, sizeof why_absent, \
                     "the libcurl of this machine is too old: it has no " symbol "; 7.66 or later is needed"); \
            dlclose(library); \
            return; \
        } \
        memcpy(&curl.member, &found, sizeof found); \
    }
    CURL_CALLS(CURL_RESOLVE)
#undef CURL_RESOLVE
    int r = curl.global_init(WEFT_CURL_GLOBAL_DEFAULT);
    if (r)
        snprintf(why_absent, sizeof why_absent, "libcurl does not start: %s", curl.easy_strerror(r));
    ready = !r;
}

/* --- what libcurl calls ------------------------------------------------------------------------------------------------------ */

static int open_socket(void *user, int purpose, curl_address_t *a)
{
    reg_http_t *h = (reg_http_t *)user;
    (void)purpose;
    int fd = socket(a->family, a->type | SOCK_CLOEXEC, a->protocol);
    h->socket_errno = fd < 0 ? errno : 0;
    /* cppcheck-suppress resourceLeak ; libcurl closes it */
    return fd < 0 ? WEFT_CURL_SOCKET_BAD : fd;
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
    if (h->n + n + 1 > h->cap) {
        size_t cap = 2 * (h->n + n + 1);
        char *body = (char *)wefti_realloc(h->body, cap);
        if (!body) {
            h->no_memory = true;
            return 0;
        }
        h->body = body;
        h->cap = cap;
    }
    memcpy(h->body + h->n, bytes, n);
    h->n += n;
    return n;
}

static size_t take_stream(const char *bytes, size_t size, size_t count, void *user)
{
    reg_http_t *h = (reg_http_t *)user;
    long code = 0;
    curl.easy_getinfo(h->stream.easy, WEFT_CURLINFO_RESPONSE_CODE, &code);
    h->told = true;
    return code == 200 && h->fn(bytes, size * count, h->user) ? size * count : 0;
}

/* --- making ------------------------------------------------------------------------------------------------------------------ */

static bool prepare(reg_http_t *h, transfer_t *t, const char *ca)
{
    void *e = t->easy = curl.easy_init();
    bool stream = t == &h->stream;
    if (!e)
        return false;
    t->h = h;
    int bad = 0;
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_NOSIGNAL, 1L);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_PROXY, ""); /* whatever the environment says */
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_PROTOCOLS, (long)(WEFT_CURLPROTO_HTTP | WEFT_CURLPROTO_HTTPS));
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_HTTP_VERSION, (long)WEFT_CURL_HTTP_VERSION_1_1);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_POST, 1L);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_HTTPHEADER, h->headers);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_TCP_KEEPALIVE, 1L);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_ERRORBUFFER, t->said);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_OPENSOCKETFUNCTION, open_socket);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_OPENSOCKETDATA, h);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_HEADERFUNCTION, take_header);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_HEADERDATA, t);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_WRITEFUNCTION, stream ? take_stream : take_body);
    bad |= curl.easy_setopt(e, WEFT_CURLOPT_WRITEDATA, h);
    if (ca)
        bad |= curl.easy_setopt(e, WEFT_CURLOPT_CAINFO, ca);
    /* a name that is being looked up is not waited for when its request is over; a library older than this option waits */
    curl.easy_setopt(e, WEFT_CURLOPT_QUICK_EXIT, 1L);
    return !bad;
}

weft_status_t wefti_reg_http_new(const char *ca, reg_http_t **http_out)
{
    pthread_once(&once, load);
    if (!ready)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "%s", why_absent);
    reg_http_t *h = (reg_http_t *)wefti_calloc(1, sizeof *h);
    if (!h)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a client of HTTP");
    h->multi = curl.multi_init();
    h->headers = curl.slist_append(NULL, "Content-Type: application/json");
    void *more = h->headers ? curl.slist_append(h->headers, "Expect:") : NULL; /* send at once, do not ask first */
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
        curl.easy_cleanup(h->request.easy);
    if (h->stream.easy)
        curl.easy_cleanup(h->stream.easy);
    if (h->multi)
        curl.multi_cleanup(h->multi);
    curl.slist_free_all(h->headers);
    wefti_free(h->body);
    wefti_free(h);
}

/* --- driving ----------------------------------------------------------------------------------------------------------------- */

static weft_status_t begin(transfer_t *t, const char *url, const char *body, size_t n)
{
    *t->said = 0;
    t->headers = 0;
    t->done = false;
    t->result = 0;
    if (curl.easy_setopt(t->easy, WEFT_CURLOPT_URL, url) || curl.easy_setopt(t->easy, WEFT_CURLOPT_POSTFIELDSIZE, (long)n) ||
        curl.easy_setopt(t->easy, WEFT_CURLOPT_COPYPOSTFIELDS, body))
        return WEFT_ERR_NOMEM;
    if (curl.multi_add(t->h->multi, t->easy))
        return WEFT_ERR_NOMEM;
    t->going = true;
    return WEFT_OK;
}

static void drive(reg_http_t *h)
{
    int running, left;
    curl.multi_perform(h->multi, &running);
    for (curl_message_t *m; (m = curl.multi_info(h->multi, &left));) {
        transfer_t *t = m->easy == h->request.easy ? &h->request : &h->stream;
        if (m->msg != WEFT_CURLMSG_DONE)
            continue;
        t->result = m->data.result;
        t->done = true;
    }
}

static void finish(transfer_t *t)
{
    if (t->going)
        curl.multi_remove(t->h->multi, t->easy);
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
    if (t->result == WEFT_CURLE_OK)
        return WEFT_OK;
    if (h->too_long)
        return because(h, WEFT_ERR_TRUNCATED, "an answer that is too long");
    if (h->no_memory || t->result == WEFT_CURLE_OUT_OF_MEMORY)
        return because(h, WEFT_ERR_NOMEM, "no memory for the answer");
    if (h->socket_errno)
        return because(h, h->socket_errno == EMFILE || h->socket_errno == ENFILE ? WEFT_ERR_LIMIT : WEFT_ERR_UNREACHABLE,
                       strerror(h->socket_errno));
    if (t->headers > HEADERS_MAX)
        return because(h, WEFT_ERR_UNREACHABLE, "an answer whose headers do not end");
    return because(h, WEFT_ERR_UNREACHABLE, *t->said ? t->said : curl.easy_strerror(t->result));
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
    if (!h->body) {
        h->cap = 4096;
        h->body = (char *)wefti_malloc(h->cap);
        if (!h->body)
            return because(h, WEFT_ERR_NOMEM, "no memory for the answer");
    }
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
        curl.multi_poll(h->multi, NULL, 0, (int)((end - now) / MS) + 1, NULL);
    }
    st = outcome(h);
    if (!st) {
        curl.easy_getinfo(h->request.easy, WEFT_CURLINFO_RESPONSE_CODE, &reply_out->code);
        curl.easy_getinfo(h->request.easy, WEFT_CURLINFO_NUM_CONNECTS, &connects);
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

/* --- the stream -------------------------------------------------------------------------------------------------------------- */

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
    uint64_t end = wefti_clock_ns() + (uint64_t)(ms < 0 ? 0 : ms) * MS;
    bool was = wefti_reg_http_streaming(h);
    h->told = false;
    for (;;) {
        curl_fd_t extra = {fd, WEFT_CURL_WAIT_POLLIN, 0};
        uint64_t now = wefti_clock_ns();
        drive(h);
        if (h->told || (was && !wefti_reg_http_streaming(h)))
            return;
        int left = ms < 0 ? 60000 : now >= end ? 0 : (int)((end - now) / MS) + 1;
        if (curl.multi_poll(h->multi, &extra, 1, left, NULL)) {
            struct pollfd p = {fd, POLLIN, 0}; /* it cannot even wait: no memory */
            poll(&p, 1, left < 100 ? left : 100);
            return;
        }
        if (extra.revents || left == 0)
            return;
    }
}
