/* tools/listen.c - where the servers of commands listen, and who may connect.
 *
 * What anyone on a network could use is not opened by accident: without a key a server listens on this machine only, unless told
 * otherwise. tests/tools/tools_mem.py and tests/tools/tools_serve.py hold it. */
#include <string.h>
#include <strings.h>

#include "session.h"

static bool begins(const char *s, const char *with)
{
    return !strncasecmp(s, with, strlen(with));
}

/* Other machines could connect there, as far as the text tells: a name that has to be looked up could be anywhere. What is no address
 * at all is left to weft_listen(), which says so. */
static bool is_open_to_others(const char *uri)
{
    return begins(uri, "tcp://") && !begins(uri, "tcp://127.") && !begins(uri, "tcp://[::1]") && !begins(uri, "tcp://localhost:");
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

bool tool_may_listen(const char *const *uris, unsigned n, const char *harm)
{
    if (tool_has_key())
        return true;
    for (unsigned i = 0; i < n; i++) {
        const char *uri = first_open_to_others(uris[i]);
        if (uri) {
            tool_error("%.*s is open to other machines, and there is no key: whoever connects could %s; give --key-file PATH, or "
                       "--no-key-needed if all who can connect may",
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

weft_status_t tool_listen(weft_runtime_t *rt, const char *uri, weft_listener_t **listener_out)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = gone};
    weft_status_t st;
    lo.accept = accepted;
    lo.hooks = &hooks;
    st = weft_listen(rt, uri, &lo, listener_out);
    if (st)
        tool_error_status(st, "cannot listen on %s", uri);
    return st;
}
