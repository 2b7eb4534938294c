/* rpc/function.c - functions of services: their slots, adding and removing them.
 *
 * A function has a slot of the runtime and a check: 32 bits made of the hash of its signature, of the use of the slot and of the
 * runtime. A caller asks for both once (bind_ask.c, bind_answer.c) and sends them with every call. So a call to a function that
 * was removed, or to a server that was restarted, is noticed.
 *
 *     added (listed, in its slot) --remove--> not found any more --last request freed--> freed, on the driver
 *
 * Promise: a call reaches the function that its caller was bound to, or none. `user` is handed back once, when nothing can call
 * the function any more. tests/wire/rpc_call.c, tests/wire/rpc_service.c,
 * tests/wire/rpc_typed.c. */
#include <weft/config.h>
#include <weft/function.h>

#include "rpc/serve.h"
#include "rpc/type.h"

/* --- slots, under rs->lock ------------------------------------------------------------------------------------------------ */

/* A free one, which f is to have. */
static weft_status_t slot_find(rpc_state_t *rs, rpc_function_t *f)
{
    for (uint32_t i = 0; i < RPC_PAGES; i++) {
        rpc_page_t page = atomic_load_explicit(&rs->pages[i], memory_order_relaxed);
        if (!page) {
            page = (rpc_page_t)wefti_calloc(RPC_PAGE, sizeof *page);
            if (!page)
                return wefti_fail(WEFT_ERR_NOMEM, "no memory for one more function");
            atomic_store_explicit(&rs->pages[i], page, memory_order_release);
            if (!rs->limited)
                atomic_store_explicit(&rs->functions[i], page, memory_order_release);
        }
        for (uint32_t k = 0; k < RPC_PAGE; k++) {
            if (atomic_load_explicit(&page[k], memory_order_relaxed))
                continue;
            f->slot = (uint16_t)(i * RPC_PAGE + k);
            return WEFT_OK;
        }
    }
    return wefti_fail(WEFT_ERR_LIMIT, "a runtime has at most %u functions", RPC_PAGES * RPC_PAGE);
}

static void slot_take(rpc_state_t *rs, rpc_function_t *f)
{
    rpc_page_t page = atomic_load_explicit(&rs->pages[f->slot / RPC_PAGE], memory_order_relaxed);
    uint64_t check = wefti_hash_u64(weft_sig_hash(f->sig) ^ wefti_hash_u64(rs->random + ++rs->serial));
    f->check = (uint32_t)(check ^ check >> 32);
    f->check += !f->check; /* 0 is none */
    atomic_store_explicit(&page[f->slot % RPC_PAGE], f, memory_order_release);
}

rpc_function_t *wefti_rpc_function_find(const weft_service_t *service, const char *name, uint32_t number)
{
    wefti_list_each(l, &service->functions) {
        rpc_function_t *f = wefti_container_of(l, rpc_function_t, link);
        if (number ? f->number == number : !strcmp(weft_sig_name(f->sig), name))
            return f;
    }
    return NULL;
}

/* --- the end of a function, on the driver --------------------------------------------------------------------------------- */

void wefti_rpc_function_free(rpc_function_t *f)
{
    if (!f)
        return;
    weft_sig_free(f->sig);
    wefti_free(f);
}

/* Whoever is the last to let go of a `user` that several shards have hands it back. */
static bool is_last(rpc_function_t *f)
{
    if (!f->owner)
        return true;
    bool last = atomic_fetch_sub(&f->owner->refs, 1) == 1;
    if (last)
        wefti_free(f->owner);
    f->owner = NULL;
    return last;
}

static void hand_back(rpc_function_t *f)
{
    if (!f->handed_back && is_last(f) && f->release)
        f->release(f->user, NULL);
    f->handed_back = true;
}

void wefti_rpc_function_orphan(rpc_function_t *f)
{
    hand_back(f);
    atomic_fetch_add_explicit(&f->orphans, 1, memory_order_relaxed);
}

void wefti_rpc_function_unorphan(rpc_function_t *f)
{
    if (atomic_fetch_sub_explicit(&f->orphans, 1, memory_order_acq_rel) == 1)
        wefti_rpc_function_free(f);
}

static void gone_if_done(rpc_function_t *f)
{
    weft_service_t *service = f->service;
    if (!f->removed || f->refs)
        return;
    hand_back(f);
    wefti_rpc_ended(service->rs, &f->remove, WEFT_OK);
    wefti_rpc_function_free(f);
    pthread_mutex_lock(&service->rs->lock);
    service->alive--;
    pthread_mutex_unlock(&service->rs->lock);
    wefti_rpc_service_step(service);
}

void wefti_rpc_function_unref(rpc_function_t *f)
{
    f->refs--;
    if (__builtin_expect(f->removed, 0))
        gone_if_done(f);
}

static void removed(wefti_call_t *call)
{
    rpc_function_t *f = wefti_container_of(call, rpc_function_t, remove.call);
    f->removed = true;
    gone_if_done(f);
}

/* Callers do not find it any more. Under rs->lock. */
static void unlist(rpc_function_t *f)
{
    rpc_page_t page = atomic_load_explicit(&f->service->rs->pages[f->slot / RPC_PAGE], memory_order_relaxed);
    atomic_store_explicit(&page[f->slot % RPC_PAGE], NULL, memory_order_release);
    wefti_list_remove(&f->link);
}

void wefti_rpc_functions_remove(weft_service_t *service)
{
    for (;;) {
        pthread_mutex_lock(&service->rs->lock);
        wefti_list_t *l = wefti_list_first(&service->functions);
        rpc_function_t *f = l ? wefti_container_of(l, rpc_function_t, link) : NULL;
        if (f)
            unlist(f);
        pthread_mutex_unlock(&service->rs->lock);
        if (!f)
            return;
        service->rs->checks[service->rs->checks_n++ % RPC_CHECKS] = f->check;
        removed(&f->remove.call);
    }
}

/* --- adding and removing -------------------------------------------------------------------------------------------------- */

weft_status_t wefti_rpc_function_fits(weft_service_t *service, rpc_function_t *f)
{
    const char *name = weft_sig_name(f->sig);
    if (service->ended)
        return wefti_fail(WEFT_ERR_CLOSED, "the service \"%s\" is closed", service->name);
    if (f->threads && !service->pool)
        return wefti_fail(WEFT_ERR_STATE, "the service \"%s\" has no threads; weft_service_opts_t.threads gives it some",
                          service->name);
    if (wefti_rpc_function_find(service, name, 0))
        return wefti_fail(WEFT_ERR_STATE, "the service \"%s\" has a function \"%s\" already", service->name, name);
    if (f->number && wefti_rpc_function_find(service, "", f->number))
        return wefti_fail(WEFT_ERR_STATE, "the service \"%s\" has a function with the number %u already", service->name,
                          f->number);
    while (!f->number || wefti_rpc_function_find(service, "", f->number))
        f->number = ++service->next_number;
    return slot_find(service->rs, f);
}

void wefti_rpc_function_enter(weft_service_t *service, rpc_function_t *f)
{
    f->service = service;
    f->elsewhere = f->serial && service->of;
    f->plain = !f->threads && !f->streams && !f->elsewhere;
    slot_take(service->rs, f);
    wefti_list_push_back(&service->functions, &f->link);
    service->alive++;
}

weft_status_t wefti_rpc_function_new(const char *signature, weft_function_fn fn, void *user, const weft_function_opts_t *o,
                                     bool own, rpc_function_t **f_out)
{
    weft_status_t st;
    rpc_function_t *f = (rpc_function_t *)wefti_calloc(1, sizeof *f);
    if (!f)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a function");
    st = weft_sig_parse(signature, &f->sig);
    if (st)
        goto err;
    if (!own && !strncmp(weft_sig_name(f->sig), "weft.", 5)) {
        st = wefti_fail(WEFT_ERR_INVALID, "names that begin with \"weft.\" are the library's: \"%s\"", weft_sig_name(f->sig));
        goto err;
    }
    f->fn = fn;
    f->user = user;
    f->number = o->number;
    f->threads = o->threads;
    f->serial = o->serial;
    f->fetch = o->fetch;
    f->release = o->release;
    f->oneway = weft_sig_oneway(f->sig);
    f->args = wefti_sig_codec(f->sig, WEFTI_SIG_ARGS);
    f->results = wefti_sig_codec(f->sig, WEFTI_SIG_RESULTS);
    f->streams = wefti_sig_codec(f->sig, WEFTI_SIG_ARG_ITEM)->n || wefti_sig_codec(f->sig, WEFTI_SIG_RESULT_ITEM)->n;
    f->remove.call.fn = removed;
    *f_out = f;
    return WEFT_OK;

err:
    wefti_rpc_function_free(f);
    return st;
}

static weft_status_t add_one(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                             const weft_function_opts_t *o, bool own)
{
    rpc_function_t *f;
    weft_status_t st = wefti_rpc_function_new(signature, fn, user, o, own, &f);
    if (st)
        return st;
    st = wefti_rpc_service_lock(service);
    if (!st) {
        st = wefti_rpc_function_fits(service, f);
        if (!st)
            wefti_rpc_function_enter(service, f);
        wefti_rpc_unlock(service->rt);
    }
    if (st)
        wefti_rpc_function_free(f);
    return st;
}

/* What weft_service_remove() takes off the list. */
typedef struct removal {
    weft_service_t *service;
    const char *name;
    rpc_function_t *f;
} removal_t;

/* Callers do not find it any more. */
static weft_status_t take_out(void *arg, rpc_ending_t **ending_out)
{
    removal_t *r = (removal_t *)arg;
    weft_service_t *service = r->service;
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    r->f = service->ended ? NULL : wefti_rpc_function_find(service, r->name, 0);
    if (r->f) {
        unlist(r->f);
        *ending_out = &r->f->remove;
    } else {
        st = service->ended ? wefti_fail(WEFT_ERR_CLOSED, "the service \"%s\" is closed", service->name)
                            : wefti_fail(WEFT_ERR_NOTFOUND, "the service \"%s\" has no function \"%s\"", service->name, r->name);
    }
    wefti_rpc_unlock(service->rt);
    return st;
}

static weft_status_t remove_one(weft_service_t *service, const char *name, weft_op_t *op)
{
    if (!service)
        return wefti_fail(WEFT_ERR_CLOSED, "the service is closed");
    weft_runtime_t *rt = service->rt;
    removal_t r = {service, name, NULL};
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_rpc_end(rt, ENDS_FUNCTION, op, take_out, &r);
    if (st && r.f) { /* the runtime is closed, and frees what is on the list */
        pthread_mutex_lock(&rpc_state(rt)->lock);
        wefti_list_push_back(&service->functions, &r.f->link);
        pthread_mutex_unlock(&rpc_state(rt)->lock);
    }
    wefti_part(rt);
    return st;
}

weft_status_t wefti_rpc_function_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                                     const weft_function_opts_t *opts, bool own)
{
    weft_function_opts_t o;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_function_opts_t");
    if (st)
        return st;
    if (o.serial && o.threads)
        return wefti_fail(WEFT_ERR_INVALID, "a function that is `serial` does not run on `threads`: choose one of them");
    return !own && wefti_sharded(service->rt) ? wefti_rpc_twins_add(service, signature, fn, user, &o)
                                              : add_one(service, signature, fn, user, &o, own);
}

weft_status_t weft_service_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                               const weft_function_opts_t *opts)
{
    if (!service || !signature || !fn)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !service ? "the service" : fn ? "the signature" : "the function");
    return wefti_rpc_function_add(service, signature, fn, user, opts, false);
}

static weft_status_t remove_on_shard(wefti_part_t *part)
{
    const removal_t *r = part->arg;
    return remove_one(wefti_rpc_twin(r->service, wefti_shard_number(part->rt)), r->name, &part->op);
}

weft_status_t weft_service_remove(weft_service_t *service, const char *name, weft_op_t *op)
{
    if (!service || !name)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", service ? "the name" : "the service");
    if (!wefti_sharded(service->rt))
        return remove_one(service, name, op);
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    bool there = wefti_rpc_function_find(service, name, 0) != NULL;
    wefti_rpc_unlock(service->rt);
    removal_t r = {service, name, NULL};
    return there ? wefti_on_all_shards(service->rt, op, remove_on_shard, &r)
                 : wefti_fail(WEFT_ERR_NOTFOUND, "the service \"%s\" has no function \"%s\"", service->name, name);
}

/* Under rs->lock. */
static void put_functions(wefti_text_t *t, const weft_service_t *service)
{
    wefti_list_each(l, &service->functions) {
        const rpc_function_t *f = wefti_container_of(l, rpc_function_t, link);
        wefti_text_putf(t, "%u %s\n", f->number, weft_sig_text(f->sig));
    }
}

size_t weft_service_functions(weft_service_t *service, char *buf, size_t cap)
{
    if (!service || (cap && !buf))
        return 0;
    if (wefti_rpc_service_lock(service))
        return 0;
    wefti_text_t t = wefti_text(buf, cap);
    put_functions(&t, service);
    wefti_rpc_unlock(service->rt);
    return t.len;
}

/* --- functions of weft/function.h ------------------------------------------------------------------------------------------ */

typedef struct handler {
    weft_handler_t pub; /* first: what the function is given */
    weft_release_fn release;
} handler_t;

/* The function is gone, and its last request. */
static void let_go(void *buf, void *user)
{
    handler_t *h = (handler_t *)buf;
    (void)user;
    if (h->release)
        h->release(h->pub.user, NULL);
    wefti_free(h);
}

weft_status_t weft_function_serve(weft_service_t *service, const weft_function_t *function, weft_function_fn run,
                                  weft_handler_fn fn, void *user, const weft_function_opts_t *opts)
{
    weft_function_opts_t o;
    if (!function || !run || !fn)
        return wefti_fail(WEFT_ERR_INVALID, "there is no function to serve");
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_function_opts_t");
    if (st)
        return st;
    handler_t *h = (handler_t *)wefti_malloc(sizeof *h);
    if (!h)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a function");
    *h = (handler_t){{fn, user}, o.release};
    o.size = sizeof o;
    o.release = let_go;
    st = weft_service_add(service, function->signature, run, h, &o);
    if (st)
        wefti_free(h);
    return st;
}

/* --- what every runtime answers about itself --------------------------------------------------------------------------------
 *
 * These are functions like others, of a service that is on no list: a client that asks for a name that begins with "weft." gets
 * them, whatever service it names. tests/wire/rpc_call.c. */

/* Write the text, under rs->lock. False: there is no such service. */
typedef bool (*write_fn)(rpc_state_t *rs, const weft_value_t *args, wefti_text_t *t);

static void answer_text(weft_request_t *request, rpc_state_t *rs, write_fn write)
{
    wefti_text_t t = wefti_text(NULL, 0);
    pthread_mutex_lock(&rs->lock);
    bool found = write(rs, request->args, &t);
    char *buf = found ? (char *)wefti_malloc(t.len + 1) : NULL;
    if (buf) {
        t = wefti_text(buf, t.len + 1);
        write(rs, request->args, &t);
    }
    pthread_mutex_unlock(&rs->lock);
    weft_value_t value = weft_text(buf, t.len);
    if (buf)
        weft_request_reply(request, &value, 1);
    else if (found)
        weft_request_fail(request, WEFT_CODE_RESOURCE_EXHAUSTED, "there is no memory for the list");
    else
        weft_request_fail(request, WEFT_CODE_NOT_FOUND, "there is no service of that name here");
    wefti_free(buf);
}

static bool write_services(rpc_state_t *rs, const weft_value_t *args, wefti_text_t *t)
{
    (void)args;
    wefti_list_each(l, &rs->services) {
        const weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        if (!s->ended)
            wefti_text_putf(t, "%s %s %s\n", s->name, s->instance, WEFT_VERSION_STRING);
    }
    return true;
}

static void services(weft_request_t *request, void *user)
{
    answer_text(request, (rpc_state_t *)user, write_services);
}

static bool named(const weft_service_t *s, const weft_value_t *name)
{
    return !name->view.n || (strlen(s->name) == name->view.n && !memcmp(s->name, name->view.data, name->view.n));
}

static bool write_functions(rpc_state_t *rs, const weft_value_t *args, wefti_text_t *t)
{
    bool any = !args[0].view.n;
    wefti_list_each(l, &rs->services) {
        const weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        if (s->ended || !named(s, &args[0]))
            continue;
        put_functions(t, s);
        if (!any)
            return true; /* other instances have the same */
    }
    return any;
}

static void functions(weft_request_t *request, void *user)
{
    answer_text(request, (rpc_state_t *)user, write_functions);
}

weft_status_t wefti_rpc_reflect(rpc_state_t *rs)
{
    weft_service_opts_t o = WEFT_SERVICE_OPTS_INIT;
    rs->own = wefti_rpc_service_new(rs, "weft", "weft", &o, NULL);
    if (!rs->own)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the functions of a runtime");
    rs->own->own = true;
    weft_status_t st = wefti_rpc_function_add(rs->own, WEFT_RPC_SERVICES, services, rs, NULL, true);
    return st ? st : wefti_rpc_function_add(rs->own, WEFT_RPC_FUNCTIONS, functions, rs, NULL, true);
}
