/* element/way.c - ways: what a transport and every io on one have in common, whatever the way is made of.
 *
 *     made --> up --> over (lost)          parted: the transport has gone elsewhere
 *         \--> over (came to nothing)      left: parted, nothing under way any more, and its connections are being hung up
 *
 * A way is counted: its transport, its ios, threads that read through it, operations of its own and open endpoints (whose hooks name it) each have
 * a reference. So it may be parted from at any moment, and a thread that copies from mapped memory has it until it is done.
 *
 * Promise: a way is left exactly once, and freed after everything that could call it. tests/wire/element_life.c. */
#include "element/state.h"

void wefti_way_init(element_way_t *way, const element_way_ops_t *ops, weft_transport_t *t)
{
    way->ops = ops;
    way->es = t->es;
    way->t = t;
    way->action = t->action;
    wefti_action_ref(way->action);
    atomic_init(&way->refs, 1);
    pthread_mutex_lock(&way->es->lock);
    wefti_list_push_back(&way->es->ways, &way->link);
    pthread_mutex_unlock(&way->es->lock);
}

/* It is on no list any more. */
static void way_free(element_way_t *way)
{
    weft_remote_drop(way->remote);
    way->ops->free(way);
}

void wefti_way_unref(element_way_t *way)
{
    if (!way || atomic_fetch_sub_explicit(&way->refs, 1, memory_order_acq_rel) != 1)
        return;
    weft_action_t *action = way->action;
    pthread_mutex_lock(&way->es->lock);
    wefti_list_remove(&way->link);
    pthread_mutex_unlock(&way->es->lock);
    way_free(way);
    wefti_action_unref(action);
}

void wefti_way_leave_if_idle(element_way_t *way)
{
    if (way->t || way->n_ios || way->left)
        return;
    way->left = true;
    way->ops->leave(way);
}

void wefti_way_part(element_way_t *way)
{
    if (!way)
        return;
    way->t = NULL;
    wefti_way_leave_if_idle(way);
    wefti_way_unref(way);
}

void wefti_way_op(element_way_t *way, weft_op_t *op, weft_op_fn fn, void *user)
{
    memset(op, 0, sizeof *op);
    op->fn = fn;
    op->user = user;
    wefti_way_ref(way);
    element_begin(way->es);
}

void wefti_way_op_done(element_way_t *way)
{
    element_end(way->es);
    wefti_way_unref(way);
}

static element_way_t *next_to_forget(element_state_t *es)
{
    element_way_t *found = NULL;
    pthread_mutex_lock(&es->lock);
    wefti_list_each(l, &es->ways) {
        element_way_t *way = wefti_container_of(l, element_way_t, link);
        if (way->forget && !found)
            found = way;
    }
    pthread_mutex_unlock(&es->lock);
    return found;
}

void wefti_ways_forget(element_state_t *es)
{
    for (element_way_t *way; (way = next_to_forget(es));) {
        weft_remote_t *remote = way->remote;
        way->forget = false;
        way->remote = NULL;
        weft_remote_drop(remote);
    }
}

bool wefti_ways_forgot(element_state_t *es)
{
    return !next_to_forget(es);
}

/* What the end of the runtime left: endpoints that were forced down never said that they are closed. */
void wefti_ways_free(element_state_t *es)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&es->ways));)
        way_free(wefti_container_of(l, element_way_t, link));
}
