/* conn/guard.c - certificates that one listener or endpoint has for itself, in place of the runtime's.
 *
 * The files are read here, while the program listens or calls, so that it is told at once what is wrong with them. A file that
 * the options do not name is the runtime's. tests/wire/tls_options.c. */
#include "base/opts.h"
#include "conn/ep.h"

weft_status_t wefti_guard_own(weft_runtime_t *rt, const weft_tls_opts_t *given, struct wefti_guard **out)
{
    weft_tls_opts_t t;
    *out = NULL;
    if (!given)
        return WEFT_OK;
    weft_status_t st = wefti_opts_read(given, &t, sizeof t, "weft_tls_opts_t");
    if (st)
        return st;
    if (t.mode)
        return wefti_fail(WEFT_ERR_INVALID, "the mode of TLS is the runtime's: leave it NULL here, or use tls://");
    if (!rt->fabric->ops->guard_new)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "the fabric of this runtime has no TLS");
    wefti_config_t config = rt->config; /* its texts stay the runtime's */
    config.tls_cert = t.cert ? t.cert : config.tls_cert;
    config.tls_key = t.key ? t.key : config.tls_key;
    config.tls_ca = t.ca ? t.ca : config.tls_ca;
    return rt->fabric->ops->guard_new(rt->fabric, &config, out);
}

void wefti_guard_drop(weft_runtime_t *rt, struct wefti_guard *guard)
{
    if (guard)
        rt->fabric->ops->guard_free(guard);
}
