/* element/element.c - the room as an extension of libweft: its state per runtime.
 *
 * It uses libweft and the store as a program does; as an extension it only has to end before they do. */
#include "element/state.h"
#include "store/store.h"

static weft_status_t open(weft_runtime_t *rt, void *state)
{
    element_state_t *es = (element_state_t *)state;
    es->rt = rt;
    pthread_mutex_init(&es->lock, NULL);
    wefti_list_init(&es->actions);
    wefti_list_init(&es->memories);
    wefti_list_init(&es->routes);
    weft_ext_random(rt, &es->rng, sizeof es->rng);
    return WEFT_OK;
}

static void shutdown(weft_runtime_t *rt, void *state)
{
    element_state_t *es = (element_state_t *)state;
    (void)rt;
    wefti_actions_shutdown(es);
    if (wefti_actions_quiet(es))
        wefti_routes_forget(es);
}

static bool idle(weft_runtime_t *rt, void *state)
{
    element_state_t *es = (element_state_t *)state;
    (void)rt;
    return !atomic_load(&es->under_way) && wefti_actions_idle(es) && wefti_routes_forgot(es);
}

static void closed(weft_runtime_t *rt, void *state)
{
    element_state_t *es = (element_state_t *)state;
    (void)rt;
    wefti_routes_free(es);
    wefti_actions_free(es);
    wefti_memories_free(es);
    pthread_mutex_destroy(&es->lock);
}

const weft_ext_t wefti_element_ext = {
    .size = sizeof wefti_element_ext,
    .name = "elements",
    .state_size = sizeof(element_state_t),
    .open = open,
    .shutdown = shutdown,
    .idle = idle,
    .closed = closed,
};

__attribute__((constructor)) static void element_register(void)
{
    wefti_store_register(); /* first: elements use stores, and end before them */
    if (weft_ext_register(&wefti_element_ext))
        weft_log(WEFT_LOG_ERROR, "there are no elements: %s", weft_last_error());
}

weft_status_t wefti_element_no_state(const weft_runtime_t *rt)
{
    return weft_fail(WEFT_ERR_STATE, "the runtime \"%s\" was opened before libweft-elements was loaded", weft_runtime_name(rt));
}
