/* registry/http.h - HTTP by libcurl: requests that are waited for, and one answer that never ends. For one thread. */
#ifndef WEFTI_REGISTRY_HTTP_H
#define WEFTI_REGISTRY_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

typedef struct reg_http reg_http_t;

/* ca: a file of certificates to trust; NULL: those of the system. WEFT_ERR_UNSUPPORTED: there is no libcurl here; _NOMEM. */
weft_status_t wefti_reg_http_new(const char *ca, reg_http_t **http_out);
void wefti_reg_http_free(reg_http_t *h); /* NULL is allowed */

typedef struct reg_http_limits {
    uint64_t quiet_ns; /* without a byte from there */
    uint64_t end;      /* of wefti_clock_ns() */
    size_t bytes;      /* of the answer */
} reg_http_limits_t;

typedef struct reg_http_reply {
    long code;    /* 200 ... */
    char *body;   /* until the next request; may be changed; one byte more than n, a zero */
    size_t n;
    bool fresh;   /* over a connection that was not there before */
} reg_http_reply_t;

/* WEFT_OK: there is an answer, whatever it says. WEFT_ERR_UNREACHABLE: there is none; _TIMEOUT: not in time; _TRUNCATED: it is
 * too long; _LIMIT: no file descriptors; _NOMEM. wefti_reg_http_why() says it in words. */
weft_status_t wefti_reg_http_post(reg_http_t *h, const char *url, const char *body, size_t n, const reg_http_limits_t *limits,
                                  reg_http_reply_t *reply_out);
const char *wefti_reg_http_why(const reg_http_t *h);

/* Gets the bytes of the endless answer, if its code is 200. False: end it. Called within post and wait; must not use `h`. */
typedef bool (*reg_http_fn)(const char *bytes, size_t n, void *user);
weft_status_t wefti_reg_http_stream(reg_http_t *h, const char *url, const char *body, reg_http_fn fn, void *user);
void wefti_reg_http_stream_end(reg_http_t *h); /* none is allowed */
bool wefti_reg_http_streaming(const reg_http_t *h);

/* Wait until the stream's function was called, the stream has ended, `fd` can be read, or ms have passed (-1: never). */
void wefti_reg_http_wait(reg_http_t *h, int fd, int ms);

#endif
