/* rpc/configured.c - the registry that the configuration names: one for the whole runtime.
 *
 *     NULL --the first user--> open --the last user is done--> NULL
 *
 * A registry has a thread, and in a directory a lock for each entry: all clients and services of a runtime share one.
 * tests/wire/rpc_discovery.c. */
#include "rpc/state.h"

weft_status_t wefti_rpc_registry_get(rpc_state_t *rs, weft_registry_t **registry_out)
{
    weft_status_t st = WEFT_OK;
    pthread_mutex_lock(&rs->finding);
    if (!rs->registry)
        st = weft_registry_open(rs->rt, NULL, NULL, &rs->registry);
    if (!st) {
        rs->registry_users++;
        *registry_out = rs->registry;
    }
    pthread_mutex_unlock(&rs->finding);
    return st;
}

void wefti_rpc_registry_put(rpc_state_t *rs)
{
    weft_registry_t *last = NULL;
    pthread_mutex_lock(&rs->finding);
    if (!--rs->registry_users) {
        last = rs->registry;
        rs->registry = NULL;
    }
    pthread_mutex_unlock(&rs->finding);
    if (last && !rs->rt->closing) /* else the runtime closes it, or has done so */
        (void)weft_registry_close(last, NULL);
}
