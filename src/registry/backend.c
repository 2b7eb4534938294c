/* registry/backend.c - what several backends do alike: complain, pause after a failure, read an address, wait, load a library.
 * tests/fault/registry_place.c, registry_redis.c, registry_etcd.c. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "registry/state.h"

void wefti_reg_trouble(weft_registry_t *r, uint64_t kind, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->trouble, sizeof r->trouble, fmt, args);
    va_end(args);
    wefti_warn_rarely(&r->rarely, kind, "%s", r->trouble);
}

void wefti_reg_complain(weft_registry_t *r, const char *why)
{
    wefti_reg_trouble(r, wefti_rarely_text(why), "the registry %s: %s; it is tried again", r->uri, why);
}

void wefti_reg_pause(reg_pause_t *p, wefti_rng_t *rng, uint64_t min, uint64_t max)
{
    p->ns = !p->ns ? min : 2 * p->ns < max ? 2 * p->ns : max;
    p->until = wefti_clock_ns() + p->ns - wefti_rng_below(rng, p->ns / 4);
}

weft_status_t wefti_reg_host(const char *part, size_t n, unsigned usual_port, wefti_uri_t *uri_out)
{
    char text[320];
    const char *bracket = (const char *)memrchr(part, ']', n), *colon = (const char *)memrchr(part, ':', n), *next = text;
    bool port = colon && (!bracket || colon > bracket);
    if (n > 270 || memchr(part, ',', n))
        return wefti_fail(WEFT_ERR_INVALID, "a host has a name of at most 253 characters, without a comma");
    if (port)
        snprintf(text, sizeof text, "tcp://%.*s", (int)n, part);
    else
        snprintf(text, sizeof text, "tcp://%.*s:%u", (int)n, part, usual_port);
    weft_status_t st = wefti_uri_parse(&next, uri_out);
    return st || uri_out->port ? st : wefti_fail(WEFT_ERR_INVALID, "no server is at port 0 of \"%.100s\"", uri_out->host);
}

int wefti_reg_ms(uint64_t ns)
{
    if (ns == WEFT_FOREVER)
        return -1;
    return (int)(ns > 60 * WEFT_SECOND ? 60000 : (ns + WEFT_MILLISECOND - 1) / WEFT_MILLISECOND);
}

bool wefti_reg_load(const char *const *files, const reg_symbol_t *symbols, size_t n, const char **missing_out)
{
    void *library = NULL;
    *missing_out = NULL;
    while (!library && *files)
        library = dlopen(*files++, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; library && i < n; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) {
            *missing_out = symbols[i].name;
            dlclose(library);
            return false;
        }
        memcpy(symbols[i].at, &found, sizeof found); /* ISO C has no cast from an object pointer to a function pointer */
    }
    return library != NULL;
}

weft_status_t wefti_reg_once(reg_once_t *once, weft_status_t (*load)(void))
{
    pthread_mutex_lock(&once->lock);
    weft_status_t st = once->done ? WEFT_OK : load();
    once->done = !st;
    pthread_mutex_unlock(&once->lock);
    return st;
}
