/* element/action.c - actions: element transports by their names, and the end of all of them.
 *
 *     open --terminate--> nobody waits any more --close--> transports end, routes are hung up --the last reference--> gone
 *
 * Any thread looks up names under a lock. Transports stay until the action is freed, also those that were released, since a
 * program may still have them. References: the program, each call on its way to the driver, each route, each io.
 *
 * Promise: a close completes after the last operation on a transport of the action, and leaves nothing behind.
 * tests/wire/element_life.c. */
#include <stddef.h>

#include "element/state.h"

#define CONNECT_NS (10 * WEFT_SECOND)
#define RETRY_NS (20 * WEFT_MILLISECOND)

static wefti_handles_t handles = WEFTI_HANDLES_INIT(weft_action_t, ended);

static weft_action_t *action_new(void)
{
    weft_action_t *a = (weft_action_t *)wefti_handle_take(&handles);
    if (!a)
        return NULL;
    if (a->handle.uses == 1)
        pthread_mutex_init(&a->lock, NULL);
    atomic_store(&a->terminated, false);
    memset(a->id, 0, sizeof a->id);
    memset(&a->es, 0, sizeof *a - offsetof(weft_action_t, es));
    return a;
}

/* Nothing can begin on it from now on. False: it had ended before. Any thread. */
static bool end(weft_action_t *a)
{
    pthread_mutex_lock(&a->lock);
    bool was = a->ended;
    a->ended = true;
    pthread_mutex_unlock(&a->lock);
    return !was;
}

static void action_free(weft_action_t *a)
{
    (void)end(a);
    for (wefti_list_t *l; (l = wefti_list_pop(&a->all));)
        wefti_transport_free(wefti_container_of(l, weft_transport_t, all));
    wefti_element_pool_unref(a->pool);
    wefti_handle_free(&handles, a);
}

static void gone(weft_ext_call_t *call)
{
    weft_action_t *a = wefti_container_of(call, weft_action_t, gone_call);
    element_state_t *es = a->es;
    weft_op_t *op = a->close.op;
    if (wefti_list_linked(&a->link))
        wefti_list_remove(&a->link);
    action_free(a);
    if (op)
        weft_ext_op_complete(op, WEFT_OK, 0);
    element_end(es);
}

void wefti_action_unref(weft_action_t *a)
{
    if (atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1)
        return;
    /* the last reference may be that of a thread that copied from mapped memory: the driver does the rest */
    element_begin(a->es);
    a->gone_call.fn = gone;
    (void)weft_ext_call(a->rt, &a->gone_call); /* on an error the runtime frees it: it waits for us */
}

/* Any thread: an action that is open, with a reference, and a runtime that stays, until leave(). */
static weft_status_t enter(weft_action_t *a)
{
    weft_status_t st = weft_ext_enter(a->rt);
    if (st)
        return st;
    pthread_mutex_lock(&a->lock);
    bool open = wefti_is_open(&a->handle) && !a->ended;
    if (open)
        wefti_action_ref(a);
    pthread_mutex_unlock(&a->lock);
    if (open)
        return WEFT_OK;
    weft_ext_leave(a->rt);
    return weft_fail(WEFT_ERR_CLOSED, "the action was closed");
}

static void leave(weft_action_t *a)
{
    weft_runtime_t *rt = a->rt;
    wefti_action_unref(a);
    weft_ext_leave(rt);
}

/* --- opening  --------------------------------------------------------------------------------------------------------- */

static void close_begin(element_close_t *close);

static void listed(weft_ext_call_t *call)
{
    weft_action_t *a = wefti_container_of(call, weft_action_t, list_call);
    wefti_list_push_back(&a->es->actions, &a->link);
    wefti_action_unref(a);
}

static weft_status_t open_action(element_state_t *es, const char *id, const weft_action_opts_t *o, weft_action_t **action_out)
{
    weft_action_t *a = action_new();
    if (!a)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for an action");
    a->es = es;
    a->rt = es->rt;
    memcpy(a->id, id, strlen(id));
    a->connect_ns = o->connect_ns ? o->connect_ns : CONNECT_NS;
    a->retry_ns = o->retry_ns ? o->retry_ns : RETRY_NS;
    a->spare = o->spare;
    wefti_list_init(&a->transports);
    wefti_list_init(&a->all);
    atomic_init(&a->refs, 2); /* the program's, and that of the call */
    a->list_call.fn = listed;
    a->close.begin = close_begin;
    a->ended = false;
    atomic_store_explicit(&a->handle.open, 1, memory_order_release);
    *action_out = a;
    weft_status_t st = weft_ext_call(a->rt, &a->list_call);
    if (st)
        action_free(a);
    return st;
}

weft_status_t weft_action_open(weft_runtime_t *rt, const char *id, const weft_action_opts_t *opts, weft_action_t **action_out)
{
    weft_action_opts_t o;
    element_state_t *es;
    if (!rt || !id || !action_out)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", !rt ? "the runtime" : !id ? "the id" : "where the action goes");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_action_opts_t");
    if (st)
        return st;
    if (strnlen(id, sizeof(*action_out)->id) >= sizeof(*action_out)->id)
        return weft_fail(WEFT_ERR_INVALID, "the id of an action has at most %zu bytes", sizeof(*action_out)->id - 1);
    st = wefti_element_enter(rt, &es);
    if (st)
        return st;
    st = open_action(es, id, &o, action_out);
    weft_ext_leave(rt);
    return st;
}

const char *weft_action_id(const weft_action_t *action)
{
    return action && wefti_is_open(&action->handle) ? action->id : "";
}

/* --- transports by name  ---------------------------------------------------------------------------------------------- */

/* With the lock. copies: one of the parallel copies of the element, NAME@..., is right, too. */
static weft_transport_t *find(weft_action_t *a, const char *name, bool copies)
{
    size_t n = strlen(name);
    wefti_list_each(l, &a->transports) {
        weft_transport_t *t = wefti_container_of(l, weft_transport_t, link);
        if (!strncmp(t->name, name, n) && (!t->name[n] || (copies && t->name[n] == '@')))
            return t;
    }
    return NULL;
}

static weft_transport_t *look_up(weft_action_t *a, const char *name)
{
    pthread_mutex_lock(&a->lock);
    weft_transport_t *t = find(a, name, false);
    pthread_mutex_unlock(&a->lock);
    return t;
}

static weft_status_t not_found(weft_action_t *a, const char *name)
{
    return weft_fail(WEFT_ERR_NOTFOUND, "the action %s has no transport \"%.*s\"", a->id, (int)WEFT_DURL_NAME_MAX, name);
}

static weft_status_t add(weft_action_t *action, const char *durl)
{
    weft_durl_t d = WEFT_DURL_INIT;
    weft_transport_t *t;
    weft_status_t st = weft_durl_parse(durl, &d);
    if (!st)
        st = wefti_transport_new(action, &d, &t);
    if (st)
        return st;
    pthread_mutex_lock(&action->lock);
    bool closed = action->ended, taken = find(action, d.name, false) != NULL;
    if (!taken && !closed) {
        wefti_list_push_back(&action->transports, &t->link);
        wefti_list_push_back(&action->all, &t->all);
    }
    pthread_mutex_unlock(&action->lock);
    if (closed || taken) {
        wefti_transport_free(t);
        if (closed)
            return weft_fail(WEFT_ERR_CLOSED, "the action was closed");
        return weft_fail(WEFT_ERR_STATE, "the action %s has a transport %s already: configure it, or release it first",
                         action->id, d.name);
    }
    if (!wefti_transport_leads(&d))
        return WEFT_OK;
    st = wefti_transport_send(t, &d);
    if (st) { /* as if it had never been added; a thread that found it meanwhile has a released one */
        pthread_mutex_lock(&action->lock);
        if (wefti_list_linked(&t->link))
            wefti_list_remove(&t->link);
        pthread_mutex_unlock(&action->lock);
        wefti_transport_release(t);
    }
    return st;
}

weft_status_t weft_action_add(weft_action_t *action, const char *durl)
{
    if (!action)
        return weft_fail(WEFT_ERR_INVALID, "the action is NULL");
    weft_status_t st = enter(action);
    if (st)
        return st;
    st = add(action, durl);
    leave(action);
    return st;
}

static weft_status_t configure(weft_action_t *action, const char *name, const char *durl)
{
    weft_durl_t d = WEFT_DURL_INIT;
    weft_status_t why;
    bool keys = wefti_durl_is_keys(durl);
    weft_status_t st = keys ? WEFT_OK : weft_durl_parse(durl, &d);
    if (st)
        return st;
    weft_transport_t *t = look_up(action, name);
    if (!t)
        return not_found(action, name);
    if (keys) {
        memcpy(d.name, t->name, sizeof d.name);
        d.impl = t->impl;
        d.server = t->server;
        st = wefti_durl_parse_keys(durl, &d);
        if (st)
            return st;
    }
    if (t->server != d.server)
        return weft_fail(WEFT_ERR_INVALID, "the transport %s is of type %s, and %s is not", name,
                         t->server ? "rdma_server" : "rdma", weft_impl_name(d.impl, d.server));
    if (!wefti_transport_leads(&d))
        return weft_fail(WEFT_ERR_INVALID,
                         d.server ? "the durl for %s does not say how many bytes it has to serve: give size"
                                  : "the durl for %s does not say where to go: give url, shm_id, token or replicas",
                         name);
    if (weft_transport_state(t, &why) == WEFT_TRANSPORT_RELEASED)
        return weft_fail(why, "the transport %s was released", name);
    return wefti_transport_send(t, &d);
}

weft_status_t weft_action_configure(weft_action_t *action, const char *name, const char *durl)
{
    if (!action || !name)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", action ? "the name" : "the action");
    weft_status_t st = enter(action);
    if (st)
        return st;
    st = configure(action, name, durl);
    leave(action);
    return st;
}

weft_status_t weft_action_get(weft_action_t *action, const char *name, const char *type, weft_transport_t **trans_out)
{
    if (!action || !name || !type || !trans_out)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL",
                         !action ? "the action"
                         : !name ? "the name"
                         : !type ? "the type"
                                 : "where the transport goes");
    bool server = !strcmp(type, "rdma_server");
    if (!server && strcmp(type, "rdma") != 0)
        return weft_fail(WEFT_ERR_INVALID, "there is no type \"%.40s\" of transports: it is rdma or rdma_server", type);
    weft_status_t st = enter(action);
    if (st)
        return st;
    weft_transport_t *t = look_up(action, name);
    if (!t)
        st = not_found(action, name);
    else if (t->server != server)
        st = weft_fail(WEFT_ERR_INVALID, "the transport %s is of type %s", name, t->server ? "rdma_server" : "rdma");
    else
        *trans_out = t;
    leave(action);
    return st;
}

weft_status_t weft_action_release(weft_action_t *action, const char *name)
{
    unsigned n = 0;
    if (!action || !name)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", action ? "the name" : "the action");
    weft_status_t st = enter(action);
    if (st)
        return st;
    for (weft_transport_t *t;; n++) {
        pthread_mutex_lock(&action->lock);
        t = find(action, name, true);
        if (t)
            wefti_list_remove(&t->link);
        pthread_mutex_unlock(&action->lock);
        if (!t)
            break;
        wefti_transport_release(t);
    }
    st = n ? WEFT_OK : not_found(action, name);
    leave(action);
    return st;
}

/* --- endings  --------------------------------------------------------------------------------------------------------- */

/* Call fn for all transports. On the driver. The list may grow meanwhile; what is added then looks at the state itself. */
static void each(weft_action_t *a, void (*fn)(weft_transport_t *t))
{
    pthread_mutex_lock(&a->lock);
    for (wefti_list_t *l = a->all.next; l != &a->all; l = l->next) {
        pthread_mutex_unlock(&a->lock);
        fn(wefti_container_of(l, weft_transport_t, all));
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
}

static void terminated(weft_ext_call_t *call)
{
    weft_action_t *a = wefti_container_of(call, weft_action_t, terminate_call);
    each(a, wefti_transport_terminated);
    wefti_action_unref(a);
}

void weft_action_terminate(weft_action_t *action)
{
    if (!action || enter(action))
        return;
    if (!atomic_exchange(&action->terminated, true)) {
        action->terminate_call.fn = terminated;
        wefti_action_ref(action);
        if (weft_ext_call(action->rt, &action->terminate_call))
            wefti_action_unref(action);
    }
    leave(action);
}

bool weft_action_terminated(const weft_action_t *action)
{
    return action && atomic_load(&action->terminated);
}

static void close_begin(element_close_t *close)
{
    weft_action_t *a = wefti_container_of(close, weft_action_t, close);
    each(a, wefti_transport_end);
    wefti_action_unref(a); /* the program's */
}

static const weft_op_kind_t close_kind = {
    .name = "action close", .start = wefti_element_close_start, .cancel = wefti_element_close_cancel};

weft_status_t weft_action_close(weft_action_t *action, weft_op_t *op)
{
    if (!action)
        return weft_fail(WEFT_ERR_INVALID, "the action is NULL");
    weft_runtime_t *rt = action->rt;
    weft_status_t st = enter(action);
    if (st)
        return st;
    st = op ? weft_ext_op_prepare(rt, op, &close_kind) : WEFT_OK;
    if (!st && !end(action)) {
        if (op)
            weft_ext_op_unprepare(op);
        st = weft_fail(WEFT_ERR_CLOSED, "the action was closed before");
    } else if (!st) {
        st = wefti_element_close(rt, &action->close, op);
    }
    leave(action);
    return st;
}

static bool ref_if_there(weft_action_t *a)
{
    uint32_t refs = atomic_load(&a->refs);
    while (refs && !atomic_compare_exchange_weak(&a->refs, &refs, refs + 1))
        ;
    return refs;
}

/* The runtime closes. */
void wefti_actions_shutdown(element_state_t *es)
{
    wefti_list_each_safe(l, &es->actions) {
        weft_action_t *a = wefti_container_of(l, weft_action_t, link);
        if (!ref_if_there(a)) /* its last call is on its way to us */
            continue;
        (void)end(a);
        a->shut = true;
        each(a, wefti_transport_end);
        if (a->close.op) /* connections that are forced down keep it to the end */
            weft_ext_op_complete(a->close.op, WEFT_ERR_CLOSED, 0);
        a->close.op = NULL;
        wefti_action_unref(a);
    }
}

/* Have all of them begun to end, with no call on its way, and no thread inside of a transport? */
bool wefti_actions_idle(element_state_t *es)
{
    uint32_t inside = 0;
    wefti_list_each(l, &es->actions) {
        weft_action_t *a = wefti_container_of(l, weft_action_t, link);
        if (!a->shut || a->close.op)
            return false;
        pthread_mutex_lock(&a->lock);
        wefti_list_each(k, &a->all)
            inside |= atomic_load(&wefti_container_of(k, weft_transport_t, all)->inside);
        pthread_mutex_unlock(&a->lock);
    }
    return !inside;
}

void wefti_actions_free(element_state_t *es)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&es->actions));)
        action_free(wefti_container_of(l, weft_action_t, link));
}
