/* rpc/publish.c - services in the registry: entered, kept up to date, removed.
 *
 *     published --(a look each second: load, functions, addresses)--> changed --> entered again
 *               --drain--> leaving: removed, and clients have a moment to hear of it --> gone
 *               --close--> gone, when the last operation of the registry has ended
 *
 * Everyone who watches the registry hears of a new load, so small changes of it are not entered. An instance name that another
 * process has (it may have been killed, and its lease still runs) is asked for again each second.
 *
 * A server that drains and exits at once would lose requests that clients sent before they knew, and nobody could say whether
 * those ran. So draining ends when the entry is gone, and for a moment no request came that had to be turned away.
 *
 * Promise: a service is not touched after wefti_rpc_unpublish() without lingering. tests/wire/rpc_discovery.c. */
#include <stdio.h>
#include <stdlib.h>

#include "base/uri.h"
#include "registry/registry.h"
#include "rpc/serve.h"

#define LOOK_NS WEFT_SECOND
#define LINGER_LOOK (100 * WEFT_MILLISECOND)
#define LINGER_MOST (2 * WEFT_SECOND)
enum { LOAD_STEP = 50, TEXT_MOST = 65536 };

typedef struct rpc_publication {
    rpc_state_t *rs;
    weft_service_t *service; /* NULL: unpublished */
    weft_registry_t *registry;
    bool given; /* the program gave the address */
    bool begun, stale, complained;
    bool entering;      /* op is under way */
    bool leaving, left; /* its entry is being removed; it is removed */
    uint32_t ops;       /* under way */
    uint64_t since;     /* leaving */
    uint64_t arrived;   /* requests until the last look */
    uint32_t load;
    char *functions; /* as they were entered last, and the identity */
    wefti_timer_t timer;
    wefti_call_t call;
    weft_op_t op, leave_op;
    char address[WEFTI_REACH_MAX];
} publication_t;

/* --- the configured registry ---------------------------------------------------------------------------------------------- */

weft_status_t wefti_rpc_registry_get(rpc_state_t *rs, weft_registry_t *given, weft_registry_t **registry_out)
{
    weft_status_t st = given ? wefti_registry_check_of(given, rs->rt) : WEFT_OK;
    pthread_mutex_lock(&rs->finding);
    if (!given && !rs->registry)
        st = weft_registry_open(rs->rt, NULL, NULL, &rs->registry);
    rs->registry_users += !given && !st;
    if (!st)
        *registry_out = given ? given : rs->registry;
    pthread_mutex_unlock(&rs->finding);
    return st;
}

void wefti_rpc_registry_put(rpc_state_t *rs, weft_registry_t *registry)
{
    weft_registry_t *last = NULL;
    pthread_mutex_lock(&rs->finding);
    if (registry && registry == rs->registry && !--rs->registry_users) {
        last = rs->registry;
        rs->registry = NULL;
    }
    pthread_mutex_unlock(&rs->finding);
    if (last && !rs->rt->closing) /* else the runtime closes it, or has done so */
        (void)weft_registry_close(last, NULL);
}

/* --- entering ------------------------------------------------------------------------------------------------------------- */

/* Free it when the last operation of the registry has ended. */
static void publication_drop(publication_t *p)
{
    p->service = NULL;
    if (p->ops)
        return;
    wefti_rpc_registry_put(p->rs, p->registry);
    wefti_free(p->functions);
    wefti_free(p);
}

/* Its functions, as many whole lines as fit an entry, and who peers will know its runtime as. */
static char *functions_text(weft_service_t *service)
{
    char who[256], line[sizeof who + 16] = "";
    wefti_own_identity(service->rs->rt, who, sizeof who);
    size_t more = *who ? (size_t)snprintf(line, sizeof line, "identity %s\n", who) : 0;
    size_t n = weft_service_functions(service, NULL, 0), cap = n < TEXT_MOST - more ? n + 1 : TEXT_MOST - more + 1;
    char *text = (char *)wefti_malloc(cap + more);
    if (!text)
        return NULL;
    text[0] = 0;
    if (weft_service_functions(service, text, cap) >= cap) { /* it was too long, or has grown meanwhile */
        char *end = strrchr(text, '\n');
        text[end ? (size_t)(end - text) + 1 : 0] = 0;
    }
    memcpy(text + strlen(text), line, more + 1);
    return text;
}

static void op_begins(publication_t *p, weft_op_t *op, weft_op_fn fn)
{
    *op = (weft_op_t){.fn = fn, .user = p};
    p->ops++;
    rpc_begin(p->rs);
}

/* True: it was the last, and the publication is freed. */
static bool op_ended(publication_t *p)
{
    p->ops--;
    rpc_end(p->rs);
    if (p->service)
        return false;
    publication_drop(p);
    return true;
}

static void entered(weft_op_t *op, void *user)
{
    publication_t *p = (publication_t *)user;
    weft_status_t st = op->status;
    p->entering = false;
    if (op_ended(p))
        return;
    p->stale = st == WEFT_ERR_STATE || st == WEFT_ERR_NOMEM; /* after other failures the registry tries again itself */
    if (st == WEFT_ERR_STATE && !p->complained)
        wefti_warn("another process has entered %s@%s; that is tried again until it has left", p->service->name,
                   p->service->instance);
    p->complained = st == WEFT_ERR_STATE;
}

static void enter(publication_t *p)
{
    weft_entry_t e = WEFT_ENTRY_INIT;
    e.service = p->service->name;
    e.instance = p->service->instance;
    e.address = p->address;
    e.load = p->load;
    e.data = p->functions;
    e.data_len = strlen(p->functions);
    op_begins(p, &p->op, entered);
    p->entering = true;
    p->stale = false;
    if (!weft_registry_enter(p->registry, &e, &p->op))
        return;
    p->entering = false;
    p->stale = true;
    op_ended(p);
}

/* Has anything changed that others should know? */
static void look(publication_t *p)
{
    uint32_t load = wefti_rpc_service_load(p->service);
    char address[WEFTI_REACH_MAX] = "";
    char *functions = functions_text(p->service);
    if (labs((long)load - (long)p->load) > LOAD_STEP) {
        p->load = load;
        p->stale = true;
    }
    if (!p->given)
        wefti_conn_reach(p->rs->rt, address);
    if (*address && strcmp(address, p->address) != 0) {
        memcpy(p->address, address, sizeof address);
        p->stale = true;
    }
    if (functions && (!p->functions || strcmp(functions, p->functions) != 0)) {
        wefti_free(p->functions);
        p->functions = functions;
        p->stale = true;
    } else {
        wefti_free(functions);
    }
    if (p->stale && p->functions && !p->entering)
        enter(p);
}

static void linger(publication_t *p);

static void due(wefti_timer_t *timer)
{
    publication_t *p = wefti_container_of(timer, publication_t, timer);
    if (p->leaving) {
        linger(p);
        return;
    }
    (void)wefti_timer_at(p->rs->rt, &p->timer, wefti_now(p->rs->rt) + LOOK_NS); /* it has just fired, so there is memory for it */
    look(p);
}

static void set_publication(rpc_state_t *rs, weft_service_t *service, publication_t *p)
{
    pthread_mutex_lock(&rs->lock);
    service->publication = p;
    pthread_mutex_unlock(&rs->lock);
}

static void forget(publication_t *p);

static void begin(wefti_call_t *call)
{
    publication_t *p = wefti_container_of(call, publication_t, call);
    p->begun = true;
    if (!p->service) { /* it was closed before this began */
        publication_drop(p);
        return;
    }
    if (p->service->draining) {
        wefti_warn("%s@%s is not published: it takes no more calls", p->service->name, p->service->instance);
        forget(p);
        return;
    }
    if (wefti_timer_at(p->rs->rt, &p->timer, wefti_now(p->rs->rt) + LOOK_NS))
        wefti_warn("no memory for a timer: the load of %s in the registry stays as it is", p->service->name);
    look(p);
}

static weft_status_t find_address(rpc_state_t *rs, const char *given, char out[WEFTI_REACH_MAX])
{
    if (!given) {
        wefti_conn_reach(rs->rt, out);
        return *out ? WEFT_OK
                    : wefti_fail(WEFT_ERR_STATE, "nobody could reach the service: call weft_listen() first, or give an address");
    }
    size_t n = strnlen(given, WEFTI_REACH_MAX);
    if (n >= WEFTI_REACH_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "the address of a service has at most %d bytes", WEFTI_REACH_MAX - 1);
    memcpy(out, given, n + 1);
    const char *at = out;
    wefti_uri_t uri;
    weft_status_t st = WEFT_OK;
    do
        st = wefti_uri_parse(&at, &uri);
    while (!st && *at);
    return st;
}

/* The service has it from now on, and ends it when it closes. */
static weft_status_t attach(weft_service_t *service, publication_t *p)
{
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    if (service->ended)
        st = wefti_fail(WEFT_ERR_CLOSED, "the service, or its runtime, is closed");
    else if (service->publication)
        st = wefti_fail(WEFT_ERR_STATE, "%s@%s is published already", service->name, service->instance);
    else
        service->publication = p;
    wefti_rpc_unlock(service->rt);
    return st;
}

static weft_status_t publish(rpc_state_t *rs, weft_service_t *service, weft_registry_t *registry, const char *address)
{
    publication_t *p = (publication_t *)wefti_calloc(1, sizeof *p);
    if (!p)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to publish a service");
    p->rs = rs;
    p->service = service;
    p->given = address != NULL;
    p->timer.fn = due;
    p->call.fn = begin;
    weft_status_t st = find_address(rs, address, p->address);
    if (!st)
        st = wefti_rpc_registry_get(rs, registry, &p->registry);
    if (!st)
        st = attach(service, p);
    if (!st && !wefti_call_on_driver(rs->rt, &p->call)) {
        set_publication(rs, service, NULL);
        st = wefti_fail_gone(rs->rt);
    }
    if (st)
        publication_drop(p);
    return st;
}

weft_status_t weft_service_publish(weft_service_t *service, weft_registry_t *registry, const char *address)
{
    if (!service)
        return wefti_fail(WEFT_ERR_INVALID, "there is no service");
    weft_runtime_t *rt = service->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    if (wefti_closing(rt) || !wefti_is_open(&service->handle))
        st = wefti_fail(WEFT_ERR_CLOSED, "the service, or its runtime, is closed");
    else
        st = publish(rpc_state(rt), service, registry, address);
    wefti_part(rt);
    return st;
}

static void left(weft_op_t *op, void *user)
{
    publication_t *p = (publication_t *)user;
    (void)op;
    p->left = true;
    (void)op_ended(p);
}

static void leave(publication_t *p)
{
    const weft_service_t *s = p->service;
    op_begins(p, &p->leave_op, left);
    weft_status_t st = weft_registry_leave(p->registry, s->name, s->instance, &p->leave_op);
    if (!st)
        return;
    if (!p->rs->rt->closing) /* a runtime that closes closes its registries, and they remove their entries */
        wefti_warn("%s@%s stays in the registry: %s", s->name, s->instance, weft_status_text(st));
    p->left = true;
    (void)op_ended(p);
}

static void forget(publication_t *p)
{
    set_publication(p->rs, p->service, NULL);
    wefti_timer_stop(p->rs->rt, &p->timer);
    p->service->leaving = false;
    if (p->entering)
        weft_op_cancel(&p->op);
    publication_drop(p);
}

/* Do clients still send requests that have to be turned away? */
static void linger(publication_t *p)
{
    weft_service_t *s = p->service;
    weft_runtime_t *rt = p->rs->rt;
    uint64_t now = wefti_now(rt), arrived = s->stats.requests;
    if ((p->left && arrived == p->arrived) || now - p->since > LINGER_MOST) {
        forget(p);
        wefti_rpc_service_step(s);
        return;
    }
    p->arrived = arrived;
    (void)wefti_timer_at(rt, &p->timer, now + LINGER_LOOK); /* it has just fired, so there is memory for it */
}

void wefti_rpc_unpublish(weft_service_t *service, bool lingers)
{
    rpc_state_t *rs = service->rs;
    pthread_mutex_lock(&rs->lock);
    publication_t *p = service->publication;
    pthread_mutex_unlock(&rs->lock);
    if (!p)
        return;
    if (!p->begun) {
        p->service = NULL; /* begin() is in the inbox, and frees it */
        set_publication(rs, service, NULL);
        return;
    }
    if (!p->leaving)
        leave(p);
    if (p->leaving && lingers)
        return;
    p->since = wefti_now(rs->rt);
    p->arrived = service->stats.requests;
    p->leaving = lingers && !rs->rt->closing && !wefti_timer_at(rs->rt, &p->timer, p->since + LINGER_LOOK);
    service->leaving = p->leaving;
    if (!p->leaving)
        forget(p);
}
