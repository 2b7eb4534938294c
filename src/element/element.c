/* element/element.c - the room: what it tells core about itself.
 *
 * It has neither records nor endpoints of its own kind: it is a user of the rooms below, as a program is, and only has to be gone before they are. */
#include "element/element.h"

#include "element/state.h"

static void shutdown(weft_runtime_t *rt)
{
    element_state_t *es = element_state(rt);
    wefti_actions_shutdown(es);
    if (wefti_actions_quiet(es))
        wefti_ways_forget(es);
}

static bool idle(weft_runtime_t *rt)
{
    element_state_t *es = element_state(rt);
    return !atomic_load(&es->under_way) && wefti_actions_idle(es) && wefti_ways_forgot(es);
}

static void room_free(weft_runtime_t *rt)
{
    element_state_t *es = element_state(rt);
    wefti_ways_free(es);
    wefti_actions_free(es);
    wefti_memories_free(es);
    pthread_mutex_destroy(&es->lock);
    wefti_free(es);
}

static const wefti_room_t room = {shutdown, idle, room_free, NULL};

weft_status_t wefti_element_attach(weft_runtime_t *rt)
{
    element_state_t *es = (element_state_t *)wefti_calloc(1, sizeof *es);
    if (!es)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the elements of a runtime");
    es->rt = rt;
    pthread_mutex_init(&es->lock, NULL);
    wefti_list_init(&es->actions);
    wefti_list_init(&es->memories);
    wefti_list_init(&es->ways);
    wefti_runtime_attach(rt, WEFTI_ROOM_ELEMENT, &room, es);
    return WEFT_OK;
}
