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
}

static bool idle(weft_runtime_t *rt, void *state)
{
    element_state_t *es = (element_state_t *)state;
    (void)rt;
    return !atomic_load(&es->under_way) && wefti_actions_idle(es);
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

weft_status_t wefti_element_enter(weft_runtime_t *rt, element_state_t **es_out)
{
    weft_status_t st = weft_ext_enter(rt);
    if (st)
        return st;
    *es_out = element_state(rt);
    if (weft_ext_closing(rt))
        st = weft_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", weft_runtime_name(rt));
    else if (!*es_out)
        st = wefti_store_no_state(rt);
    if (st)
        weft_ext_leave(rt);
    return st;
}

/* --- closing  --------------------------------------------------------------------------------------------------------- */

typedef struct close_scratch {
    element_close_t *close;
} close_scratch_t;

static void close_called(weft_ext_call_t *call)
{
    element_close_t *close = wefti_container_of(call, element_close_t, call);
    close->begin(close);
}

weft_status_t wefti_element_close_start(weft_op_t *op)
{
    element_close_t *close = weft_ext_scratch(op, close_scratch_t)->close;
    close->op = op;
    (void)weft_ext_op_track(op); /* without memory for its deadline it ends when everything has */
    close->begin(close);
    return WEFT_OK;
}

void wefti_element_close_cancel(weft_op_t *op, weft_status_t why)
{
    weft_ext_scratch(op, close_scratch_t)->close->op = NULL; /* the close goes on */
    weft_ext_op_complete(op, why, 0);
}

weft_status_t wefti_element_close(weft_runtime_t *rt, element_close_t *close, weft_op_t *op)
{
    close->call.fn = close_called;
    if (!op)
        return weft_ext_call(rt, &close->call);
    weft_ext_scratch(op, close_scratch_t)->close = close;
    return weft_ext_op_start(op);
}
