/* tools/listen.c - where the servers of commands listen, and who may connect.
 *
 * Without a key or certificates a server listens on this machine only, unless --no-key-needed is given: nobody opens memory or
 * functions to a network by accident. tests/tools/tools_mem.py and tests/tools/tools_serve.py check it. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "session.h"

static bool begins(const char *s, const char *with)
{
    return !strncasecmp(s, with, strlen(with));
}

/* Could other machines connect there, as far as the text tells? A name that has to be looked up may lead anywhere. What is no
 * address is left to weft_listen(), which says so. */
static bool is_open_to_others(const char *uri)
{
    static const char here[] = "tcp://localhost";
    if (begins(uri, here) && strchr(":,", uri[sizeof here - 1])) /* or the end */
        return false;
    return begins(uri, "tcp://") && !begins(uri, "tcp://127.") && !begins(uri, "tcp://[::1]");
}

static const char *first_open_to_others(const char *uris)
{
    while (!is_open_to_others(uris)) {
        const char *comma = strchr(uris, ',');
        if (!comma)
            return NULL;
        uris = comma + 1 + strspn(comma + 1, " ");
    }
    return uris;
}

/* Certificates are asked for at tcp://, too, of whoever comes from another machine: unless WEFT_TLS is off. */
static bool proves_by_certificates(void)
{
    char *tls = tool_configured("WEFT_TLS");
    bool off = tls && !strcmp(tls, "off");
    free(tls);
    return !off && tool_has_certificate();
}

bool tool_may_listen(const tool_texts_t *uris, const char *harm)
{
    if (tool_has_key() || proves_by_certificates())
        return true;
    for (unsigned i = 0; i < uris->n; i++) {
        const char *uri = first_open_to_others(uris->at[i]);
        if (uri) {
            tool_error("%.*s is open to other machines, and there is no key: whoever connects could %s; give --key-file PATH, or "
                       "certificates (--tls-cert, --tls-key, --tls-ca), or --no-key-needed if all who can connect may",
                       (int)strcspn(uri, ","), uri, harm);
            return false;
        }
    }
    return true;
}

static void accepted(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep; /* what the runtime has serves it; gone() closes it */
    (void)user;
}

static void gone(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

int tool_listen(weft_runtime_t *rt, const char *uri, weft_listener_t **listener_out)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = gone};
    weft_status_t st;
    lo.accept = accepted;
    lo.hooks = &hooks;
    st = weft_listen(rt, uri, &lo, listener_out);
    if (st)
        tool_error_status(st, "cannot listen on %s", uri);
    return tool_exit_status(st);
}
