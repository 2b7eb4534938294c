/* fabric/tls/absent.c - in place of the others, where the library was built without OpenSSL's headers: there is no stream, and
 * wefti_guard_ready() says why. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/tls.h"

struct wefti_guard {
    _Atomic uint32_t shares;
    bool files, keys, required, off;
};

static weft_status_t none(void)
{
    return wefti_fail(
        WEFT_ERR_UNSUPPORTED,
        "this build of Weft has no TLS: build it where OpenSSL's headers are (Debian: apt install libssl-dev libssl3)");
}

wefti_guard_t *wefti_guard_new(const wefti_config_t *config)
{
    wefti_guard_t *g = wefti_calloc(1, sizeof(wefti_guard_t));
    if (!g)
        return NULL;
    atomic_init(&g->shares, 1);
    const char *files[] = {config->tls_cert, config->tls_key, config->tls_ca};
    for (int i = 0; i < 3; i++)
        g->files = g->files || (files[i] && *files[i]);
    g->off = config->tls && !strcmp(config->tls, "off");
    g->required = config->tls && !strcmp(config->tls, "required");
    return g;
}

wefti_guard_t *wefti_guard_keep(wefti_guard_t *g)
{
    if (g)
        atomic_fetch_add(&g->shares, 1);
    return g;
}

void wefti_guard_free(wefti_guard_t *g)
{
    if (g && atomic_fetch_sub(&g->shares, 1) == 1)
        wefti_free(g);
}

weft_status_t wefti_guard_keys(wefti_guard_t *g, const wefti_keys_t *keys)
{
    g->keys = keys;
    return WEFT_OK;
}

void wefti_guard_keys_of(wefti_guard_t *g, wefti_guard_t *of)
{
    g->keys = of->keys;
}

bool wefti_guard_demands(const wefti_guard_t *g)
{
    return g->required || (!g->off && (g->files || g->keys));
}

bool wefti_guard_demands_here(const wefti_guard_t *g)
{
    return !g->off && !g->keys && g->files;
}

weft_status_t wefti_guard_check(wefti_guard_t *g)
{
    return g->keys ? WEFT_OK : none();
}

void wefti_tls_version(char *buf, size_t cap)
{
    (void)none();
    snprintf(buf, cap, "%s", weft_last_error());
}

weft_status_t wefti_guard_ready(wefti_guard_t *g)
{
    (void)g;
    return none();
}

void wefti_guard_name(wefti_guard_t *g, char *buf, size_t cap)
{
    (void)g;
    if (cap)
        *buf = '\0';
}

uint64_t wefti_guards_look(void)
{
    return 0;
}

weft_status_t wefti_guard_ready_for_lanes(wefti_guard_t *g)
{
    (void)g;
    return none();
}

weft_status_t wefti_stream_wire(wefti_guard_t *g, int side, const char *host, uint16_t port, wefti_stream_t **out)
{
    (void)g, (void)side, (void)host, (void)port, (void)out;
    return none();
}

weft_status_t wefti_stream_dials(wefti_guard_t *g, uint64_t id, const uint8_t secret[WEFTI_SECRET_SIZE], wefti_stream_t **out)
{
    (void)g, (void)id, (void)secret, (void)out;
    return none();
}

weft_status_t wefti_stream_dialled(wefti_guard_t *g, wefti_stream_find_fn find, void *user, wefti_stream_t **out)
{
    (void)g, (void)find, (void)user, (void)out;
    return none();
}

/* There is no stream for any of these. */
void wefti_stream_free(wefti_stream_t *s)
{
    (void)s;
}

weft_status_t wefti_stream_shake(wefti_stream_t *s, int fd)
{
    (void)s, (void)fd;
    return none();
}

static ssize_t nothing(void)
{
    errno = ENOTSUP;
    return -1;
}

ssize_t wefti_stream_send(wefti_stream_t *s, int fd, const struct iovec *v, unsigned n)
{
    (void)s, (void)fd, (void)v, (void)n;
    return nothing();
}

ssize_t wefti_stream_recv(wefti_stream_t *s, int fd, const struct iovec *v, unsigned n)
{
    (void)s, (void)fd, (void)v, (void)n;
    return nothing();
}

ssize_t wefti_stream_peek(wefti_stream_t *s, int fd, void *buf, size_t n)
{
    (void)s, (void)fd, (void)buf, (void)n;
    return nothing();
}

bool wefti_stream_has(const wefti_stream_t *s)
{
    (void)s;
    return false;
}

bool wefti_stream_flush(wefti_stream_t *s, int fd)
{
    (void)s, (void)fd;
    return true;
}

void wefti_stream_end(wefti_stream_t *s, int fd)
{
    (void)s, (void)fd;
}

void wefti_stream_secret(wefti_stream_t *s, uint8_t out[WEFTI_SECRET_SIZE])
{
    (void)s, (void)out;
}

const char *wefti_stream_cipher(const wefti_stream_t *s)
{
    (void)s;
    return "";
}

const char *wefti_stream_peer(const wefti_stream_t *s)
{
    (void)s;
    return "";
}

bool wefti_stream_resumed(const wefti_stream_t *s)
{
    (void)s;
    return false;
}

weft_status_t wefti_stream_welcome(const wefti_stream_t *s)
{
    (void)s;
    return WEFT_OK;
}
