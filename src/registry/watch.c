/* registry/watch.c - watches: what has changed since they were last told.
 *
 *     begun --the first list--> told --a look found something else--> told ...
 *     --end, or the registry closes--> ended, freed when fn returns
 *
 * A watch keeps the list that it was last told, shared with all watches that know the same. It is told the difference to the
 * newest list. fn may do anything but wait: end its watch or another, begin one, close the registry. So after each call
 * everything is looked at anew.
 *
 * Promise: an instance comes, changes and goes in this order, and none goes that did not come; fn is not called after the end.
 * tests/wire/registry_basic.c. */
#include "registry/state.h"

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_watch_t, rt);

/* It has ended: free it, unless its function runs, or its beginning or its end is on the way to the driver. */
static void let_go(weft_watch_t *w)
{
    if (w->busy || atomic_load(&w->coming))
        return;
    wefti_reg_found_unref(w->told);
    wefti_handle_free(&handles, w);
}

/* --- telling ----------------------------------------------------------------------------------------------------------- */

static void say(weft_watch_t *w, weft_change_t change, const reg_entry_t *e)
{
    weft_entry_t view = wefti_reg_entry_view(e);
    if (!w->ended && (!*w->service || !strcmp(w->service, e->service)))
        w->fn(change, &view, w->user);
}

/* Both lists are in order. */
static void say_difference(weft_watch_t *w, const reg_found_t *old, const reg_found_t *new)
{
    size_t i = 0, k = 0, n = old ? old->n : 0;
    while (!w->ended && (i < n || k < new->n)) {
        int order = i == n ? 1 : k == new->n ? -1 : wefti_reg_entry_order(old->at[i], new->at[k]);
        if (order < 0) {
            say(w, WEFT_WENT, old->at[i++]);
        } else if (order > 0) {
            say(w, WEFT_CAME, new->at[k++]);
        } else {
            if (!wefti_reg_entry_same(old->at[i], new->at[k]))
                say(w, WEFT_CHANGED, new->at[k]);
            i++;
            k++;
        }
    }
}

static weft_watch_t *behind(weft_registry_t *r)
{
    wefti_list_each(l, &r->watches) {
        weft_watch_t *w = wefti_container_of(l, weft_watch_t, link);
        if (w->told != r->current)
            return w;
    }
    return NULL;
}

void wefti_reg_watches_tell(weft_registry_t *r)
{
    for (weft_watch_t *w; r->current && (w = behind(r));) {
        reg_found_t *old = w->told;
        w->told = wefti_reg_found_ref(r->current);
        w->busy = true;
        say_difference(w, old, w->told);
        w->busy = false;
        wefti_reg_found_unref(old);
        if (w->ended)
            let_go(w);
    }
}

/* --- beginning and ending ---------------------------------------------------------------------------------------------- */

static void begin(wefti_call_t *call)
{
    weft_watch_t *w = wefti_container_of(call, weft_watch_t, call);
    weft_registry_t *r = w->registry;
    atomic_fetch_sub(&w->coming, 1);
    if (!w->ended && r->closing) {
        w->ended = true;
        wefti_handle_shut(&w->handle);
    }
    if (w->ended) { /* by the close, or by an end on the driver that arrived first */
        let_go(w);
        wefti_reg_came(r);
        return;
    }
    if (wefti_list_empty(&r->watches)) { /* nobody looked since the last one ended */
        wefti_reg_found_unref(r->current);
        r->current = NULL;
    }
    wefti_list_push_back(&r->watches, &w->link);
    atomic_fetch_add_explicit(&r->watching, 1, memory_order_relaxed);
    wefti_reg_thread_look(r);
    wefti_reg_came(r);
}

static void end(weft_watch_t *w)
{
    w->ended = true;
    if (!wefti_list_linked(&w->link)) /* its beginning is still on its way to the driver */
        return;
    wefti_list_remove(&w->link);
    atomic_fetch_sub_explicit(&w->registry->watching, 1, memory_order_relaxed);
}

void wefti_reg_watches_end(weft_registry_t *r)
{
    while (!wefti_list_empty(&r->watches)) {
        weft_watch_t *w = wefti_container_of(r->watches.next, weft_watch_t, link);
        end(w);
        wefti_handle_shut(&w->handle); /* calls on their way are counted in `coming` then */
        let_go(w);
    }
}

weft_status_t weft_registry_watch(weft_registry_t *registry, const char *service, weft_watch_fn fn, void *user,
                                  weft_watch_t **watch_out)
{
    if (!registry || !fn || !watch_out)
        return wefti_fail(WEFT_ERR_INVALID, "there is no registry, no function to be called, or nowhere to put the watch");
    weft_status_t st = service ? wefti_reg_check_service(service) : WEFT_OK;
    if (!st)
        st = wefti_reg_enter(registry);
    if (st)
        return st;
    weft_runtime_t *rt = registry->rt;
    weft_watch_t *w = (weft_watch_t *)wefti_handle_new(&handles);
    if (!w)
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory for a watch");
    else if (wefti_closing(rt))
        st = wefti_fail(WEFT_ERR_CLOSED, "the runtime \"%s\" is being closed", rt->name);
    else
        atomic_fetch_add(&registry->coming, 1);
    wefti_reg_leave(registry);
    if (st)
        goto err_watch;
    w->rt = rt;
    w->registry = registry;
    if (service)
        memcpy(w->service, service, strlen(service));
    w->fn = fn;
    w->user = user;
    w->call.fn = begin;
    *watch_out = w;
    atomic_fetch_add(&w->coming, 1);
    if (wefti_call_on_driver(rt, &w->call))
        return WEFT_OK;
    atomic_fetch_sub(&w->coming, 1);
    atomic_fetch_sub(&registry->coming, 1);
    *watch_out = NULL;
    st = wefti_fail(WEFT_ERR_CLOSED, "the runtime of the registry is closed");

err_watch:
    wefti_handle_free(&handles, w);
    return st;
}

static weft_status_t start_end(weft_op_t *op)
{
    weft_watch_t *w = *wefti_op_scratch(op, weft_watch_t *);
    bool own = op == &w->own;
    wefti_handle_quiet(&w->handle);
    atomic_fetch_sub(&w->coming, 1);
    if (!w->ended)
        end(w);
    if (own)
        wefti_op_complete(op, WEFT_OK); /* before its memory is freed */
    let_go(w);
    if (!own)
        wefti_op_complete(op, WEFT_OK);
    return WEFT_OK;
}

static const wefti_op_kind_t end_kind = {.name = "watch end", .start = start_end, .cancel = wefti_reg_no_cancel};

weft_status_t weft_watch_end(weft_watch_t *watch, weft_op_t *op)
{
    if (!watch)
        return WEFT_OK;
    if (!wefti_handle_enter(&watch->handle))
        return wefti_fail(WEFT_ERR_CLOSED, "the watch has ended");
    return wefti_reg_post_end(watch->rt, &watch->handle, &watch->coming, &end_kind, watch, op ? op : &watch->own,
                              "the watch is being ended already");
}
