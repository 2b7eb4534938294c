/* rpc/function.c - functions of services: their slots, adding and removing them.
 *
 * A function has a slot of the runtime and a check: 32 bits made of the hash of its signature, of the use of the slot and of the
 * runtime. A caller asks for both once (bind_ask.c, bind_answer.c) and sends them with every call. So a call to a function that
 * was removed, or to a server that was restarted, is noticed.
 *
 *     added (listed, in its slot) --remove--> not found any more --last request freed--> freed, on the driver
 *
 * Promise: a call reaches the function that its caller was bound to, or none. `user` is handed back once, when nothing can call
 * the function any more. tests/wire/rpc_call.c, tests/wire/rpc_service.c. */
#include <stdio.h>

#include "rpc/serve.h"

/* --- slots, under rs->lock ------------------------------------------------------------------------------------------------ */

static weft_status_t slot_take(rpc_state_t *rs, rpc_function_t *f)
{
    for (uint32_t i = 0; i < RPC_PAGES; i++) {
        rpc_page_t page = atomic_load_explicit(&rs->functions[i], memory_order_relaxed);
        if (!page) {
            page = (rpc_page_t)wefti_calloc(RPC_PAGE, sizeof *page);
            if (!page)
                return wefti_fail(WEFT_ERR_NOMEM, "no memory for one more function");
            atomic_store_explicit(&rs->functions[i], page, memory_order_release);
        }
        for (uint32_t k = 0; k < RPC_PAGE; k++) {
            if (atomic_load_explicit(&page[k], memory_order_relaxed))
                continue;
            f->slot = (uint16_t)(i * RPC_PAGE + k);
            uint64_t check = wefti_hash_u64(weft_sig_hash(f->sig) ^ wefti_hash_u64(rs->random + ++rs->serial));
            f->check = (uint32_t)(check ^ check >> 32);
            f->check += !f->check; /* 0 is none */
            atomic_store_explicit(&page[k], f, memory_order_release);
            return WEFT_OK;
        }
    }
    return wefti_fail(WEFT_ERR_LIMIT, "a runtime has at most %u functions", RPC_PAGES * RPC_PAGE);
}

static void slot_give(rpc_state_t *rs, const rpc_function_t *f)
{
    rpc_page_t page = atomic_load_explicit(&rs->functions[f->slot / RPC_PAGE], memory_order_relaxed);
    atomic_store_explicit(&page[f->slot % RPC_PAGE], NULL, memory_order_release);
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

static void function_free(rpc_function_t *f)
{
    weft_sig_free(f->sig);
    wefti_free(f);
}

static void hand_back(rpc_function_t *f)
{
    if (f->release && !f->handed_back)
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
        function_free(f);
}

static void gone_if_done(rpc_function_t *f)
{
    weft_service_t *service = f->service;
    if (!f->removed || f->refs)
        return;
    hand_back(f);
    wefti_rpc_ended(service->rs, &f->remove, WEFT_OK);
    function_free(f);
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
    slot_give(f->service->rs, f);
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

/* A function may still be listed: a thread removed it when the runtime was closed already. Requests that the program holds keep
 * it. */
void wefti_rpc_functions_orphan(weft_service_t *service)
{
    wefti_list_each(l, &service->functions)
        wefti_rpc_function_orphan(wefti_container_of(l, rpc_function_t, link));
}

void wefti_rpc_functions_free(weft_service_t *service)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&service->functions));)
        wefti_rpc_function_unorphan(wefti_container_of(l, rpc_function_t, link));
}

/* --- adding and removing -------------------------------------------------------------------------------------------------- */

/* Under rs->lock. */
static weft_status_t enter(weft_service_t *service, rpc_function_t *f)
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
    weft_status_t st = slot_take(service->rs, f);
    if (st)
        return st;
    wefti_list_push_back(&service->functions, &f->link);
    service->alive++;
    return WEFT_OK;
}

weft_status_t wefti_rpc_function_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                                     const weft_function_opts_t *opts, bool own)
{
    weft_function_opts_t o;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_function_opts_t");
    if (st)
        return st;
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
    f->service = service;
    f->number = o.number;
    f->threads = o.threads;
    f->fetch = o.fetch;
    f->release = o.release;
    f->oneway = weft_sig_oneway(f->sig);
    f->args = wefti_sig_codec(f->sig, WEFTI_SIG_ARGS);
    f->results = wefti_sig_codec(f->sig, WEFTI_SIG_RESULTS);
    f->streams = wefti_sig_codec(f->sig, WEFTI_SIG_ARG_ITEM)->n || wefti_sig_codec(f->sig, WEFTI_SIG_RESULT_ITEM)->n;
    f->plain = !f->threads && !f->streams;
    f->remove.call.fn = removed;
    st = wefti_rpc_service_lock(service);
    if (st)
        goto err;
    st = enter(service, f);
    wefti_rpc_unlock(service->rt);
    if (st)
        goto err;
    return WEFT_OK;

err:
    function_free(f);
    return st;
}

weft_status_t weft_service_add(weft_service_t *service, const char *signature, weft_function_fn fn, void *user,
                               const weft_function_opts_t *opts)
{
    if (!service || !signature || !fn)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !service ? "the service" : fn ? "the signature" : "the function");
    return wefti_rpc_function_add(service, signature, fn, user, opts, false);
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

weft_status_t weft_service_remove(weft_service_t *service, const char *name, weft_op_t *op)
{
    if (!service || !name)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", service ? "the name" : "the service");
    weft_runtime_t *rt = service->rt;
    removal_t r = {service, name, NULL};
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    st = wefti_rpc_end(rt, op, take_out, &r);
    if (st && r.f) { /* the runtime is closed, and frees what is on the list */
        pthread_mutex_lock(&rpc_state(rt)->lock);
        wefti_list_push_back(&service->functions, &r.f->link);
        pthread_mutex_unlock(&rpc_state(rt)->lock);
    }
    wefti_part(rt);
    return st;
}

size_t wefti_rpc_functions_text(weft_service_t *service, char *buf, size_t cap)
{
    size_t n = 0;
    wefti_list_each(l, &service->functions) {
        const rpc_function_t *f = wefti_container_of(l, rpc_function_t, link);
        n += (size_t)snprintf(n < cap ? buf + n : NULL, n < cap ? cap - n : 0, "%u %s\n", f->number, weft_sig_text(f->sig));
    }
    if (!n && cap)
        *buf = '\0';
    return n;
}

size_t weft_service_functions(weft_service_t *service, char *buf, size_t cap)
{
    if (!service || (cap && !buf))
        return 0;
    if (wefti_rpc_service_lock(service))
        return 0;
    size_t n = wefti_rpc_functions_text(service, buf, cap);
    wefti_rpc_unlock(service->rt);
    return n;
}
