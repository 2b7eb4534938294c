/* rpc/function.c - functions of services: their slots, and how callers find them.
 *
 * A function has a slot of the runtime and a check: 32 bits of its signature's hash, of the slot's use and of the runtime. A
 * caller asks once (BIND) and then sends both with every call; whoever holds the slot of a function that was removed, or of a
 * server that was restarted, is noticed.
 *
 *     added (listed, in its slot) --remove--> no longer found --last request freed--> freed, on the driver
 *
 * Promise: a call reaches the function that its caller was bound to, or none. `user` is handed back once, when nothing can call
 * the function any more. tests/wire/rpc_call.c, tests/wire/rpc_service.c. */
#include <stdio.h>

#include "base/nearest.h"
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

static rpc_function_t *find(const weft_service_t *service, const char *name, uint32_t number)
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
    wefti_rpc_op_ends(service->rs, &f->remove_op, WEFT_OK);
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
    rpc_function_t *f = wefti_container_of(call, rpc_function_t, call);
    f->removed = true;
    gone_if_done(f);
}

/* Nobody finds it any more. Under rs->lock. */
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
        removed(&f->call);
    }
}

/* One is listed still, or again, where a thread removed it too late for the driver to hear of it. The program may hold requests of it: then the last
 * of them frees it. */
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
    if (find(service, name, 0))
        return wefti_fail(WEFT_ERR_STATE, "the service \"%s\" has a function \"%s\" already", service->name, name);
    if (f->number && find(service, "", f->number))
        return wefti_fail(WEFT_ERR_STATE, "the service \"%s\" has a function with the number %u already", service->name,
                          f->number);
    while (!f->number || find(service, "", f->number))
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
    f->call.fn = removed;
    st = wefti_rpc_service_lock(service);
    if (st)
        goto err;
    st = enter(service, f);
    wefti_rpc_service_unlock(service);
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

typedef struct removal {
    rpc_function_t *f;
} removal_t;

static weft_status_t remove_start(weft_op_t *op)
{
    rpc_function_t *f = wefti_op_scratch(op, removal_t)->f;
    (void)wefti_op_track(op); /* without memory for that it has no deadline, but the function goes */
    wefti_rpc_op_waits(f->service->rs, &f->remove_op, op);
    removed(&f->call);
    return WEFT_OK;
}

static void remove_cancel(weft_op_t *op, weft_status_t why)
{
    rpc_function_t *f = wefti_op_scratch(op, removal_t)->f;
    wefti_rpc_op_ends(f->service->rs, &f->remove_op, why);
}

static const wefti_op_kind_t remove_kind = {.name = "remove", .start = remove_start, .cancel = remove_cancel};

/* Nobody finds it any more. */
static weft_status_t take_out(weft_service_t *service, const char *name, rpc_function_t **f_out)
{
    weft_status_t st = wefti_rpc_service_lock(service);
    if (st)
        return st;
    rpc_function_t *f = service->ended ? NULL : find(service, name, 0);
    if (f)
        unlist(f);
    else
        st = service->ended ? wefti_fail(WEFT_ERR_CLOSED, "the service \"%s\" is closed", service->name)
                            : wefti_fail(WEFT_ERR_NOTFOUND, "the service \"%s\" has no function \"%s\"", service->name, name);
    wefti_rpc_service_unlock(service);
    *f_out = f;
    return st;
}

/* Have the driver end a function that nobody finds any more. */
static weft_status_t send_away(weft_service_t *service, rpc_function_t *f, weft_op_t *op)
{
    weft_runtime_t *rt = service->rt;
    if (op)
        wefti_op_scratch(op, removal_t)->f = f;
    weft_status_t st = op ? wefti_op_go(rt, op) : wefti_call_on_driver(rt, &f->call) ? WEFT_OK : wefti_fail_gone(rt);
    if (st) { /* the runtime is closed: it goes with that */
        pthread_mutex_lock(&rpc_state(rt)->lock);
        wefti_list_push_back(&service->functions, &f->link);
        pthread_mutex_unlock(&rpc_state(rt)->lock);
    }
    return st;
}

weft_status_t weft_service_remove(weft_service_t *service, const char *name, weft_op_t *op)
{
    if (!service || !name)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", service ? "the name" : "the service");
    weft_runtime_t *rt = service->rt;
    rpc_function_t *f = NULL;
    weft_status_t st = wefti_join(rt); /* until the function is on its way to the driver */
    if (st)
        return st;
    st = op ? wefti_op_prepare(rt, op, &remove_kind) : WEFT_OK;
    if (!st) {
        st = take_out(service, name, &f);
        if (!st)
            st = send_away(service, f, op);
        else if (op)
            wefti_op_unprepare(op);
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
    wefti_rpc_service_unlock(service);
    return n;
}

/* --- binding -------------------------------------------------------------------------------------------------------------- */

/* Whom a caller means. */
typedef struct wanted {
    uint64_t hash;                                              /* 0: whatever it takes */
    uint32_t number;                                            /* 0: by name */
    char service[RPC_NAME], instance[RPC_NAME], name[RPC_NAME]; /* "": any */
    const char *text;                                           /* the signature or name, text_len bytes */
    size_t text_len;
} wanted_t;

/* What was found on the way. */
typedef struct search {
    rpc_function_t *f;      /* it */
    rpc_function_t *other;  /* of that name, with another signature */
    bool service, draining; /* there is such a service; there is one, but it takes no calls */
    bool closed;            /* one that is being closed, or was */
    char nearest[RPC_NAME]; /* of names like the one asked for */
    size_t distance;
} search_t;

static bool read_name(const uint8_t **at, size_t n, char out[RPC_NAME])
{
    if (n >= RPC_NAME)
        return false;
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    return !memchr(out, 0, n);
}

static bool read_bind(const weft_am_t *am, wanted_t *w)
{
    rpc_bind_t b;
    const uint8_t *at = (const uint8_t *)am->header + sizeof(rpc_head_t);
    size_t left = am->header_len - sizeof(rpc_head_t);
    memset(w, 0, sizeof *w);
    if (left < sizeof b || am->len)
        return false;
    memcpy(&b, at, sizeof b);
    at += sizeof b;
    left -= sizeof b;
    if (left != (size_t)b.service_len + b.instance_len + b.text_len || (b.number ? b.hash : !b.text_len))
        return false;
    if (!read_name(&at, b.service_len, w->service) || !read_name(&at, b.instance_len, w->instance))
        return false;
    w->hash = b.hash;
    w->number = b.number;
    w->text = (const char *)at;
    w->text_len = b.text_len;
    size_t name = 0;
    while (name < b.text_len && name < RPC_NAME && at[name] != '(')
        name++;
    return read_name(&at, name, w->name);
}

static void near(search_t *s, const char *wanted, const char *name)
{
    size_t d = wefti_word_distance(wanted, name);
    if (wefti_word_near(d, name) && (!s->nearest[0] || d < s->distance)) {
        snprintf(s->nearest, sizeof s->nearest, "%s", name);
        s->distance = d;
    }
}

static void look(search_t *s, const weft_service_t *service, const wanted_t *w)
{
    s->service = true;
    if (service->draining) {
        s->draining = true;
        return;
    }
    rpc_function_t *f = find(service, w->name, w->number);
    if (f && (!w->hash || w->hash == weft_sig_hash(f->sig)))
        s->f = f;
    else if (f)
        s->other = f;
    if (f || w->number)
        return;
    wefti_list_each(l, &service->functions)
        near(s, w->name, weft_sig_name(wefti_container_of(l, rpc_function_t, link)->sig));
}

/* Under rs->lock. */
static void search(rpc_state_t *rs, const wanted_t *w, search_t *s)
{
    search_t services = {0};
    memset(s, 0, sizeof *s);
    if (!strncmp(w->name, "weft.", 5)) {
        look(s, rs->own, w); /* every service has those */
        return;
    }
    wefti_list_each(l, &rs->services) {
        const weft_service_t *service = wefti_container_of(l, weft_service_t, link);
        if (w->service[0] && strcmp(w->service, service->name)) {
            if (!service->ended)
                near(&services, w->service, service->name);
            continue;
        }
        if (w->instance[0] && strcmp(w->instance, service->instance))
            continue;
        if (service->ended) {
            s->closed = true;
            continue;
        }
        look(s, service, w);
        if (s->f)
            return;
    }
    if (s->service) {
        /* one of that name that is open speaks for it; who names none may mean the one that closes */
        s->draining = s->draining || (s->closed && !w->service[0]);
        return;
    }
    for (uint32_t i = 0; i < RPC_CLOSED && !w->instance[0]; i++)
        s->closed = s->closed || (rs->closed[i][0] && (!w->service[0] || !strcmp(w->service, rs->closed[i])));
    memcpy(s->nearest, services.nearest, sizeof s->nearest);
}

static weft_code_t refusal(const wanted_t *w, const search_t *s, char *buf, size_t cap)
{
    char what[RPC_NAME + 16], hint[RPC_NAME + 32] = "";
    if (w->number)
        snprintf(what, sizeof what, "number %u", w->number);
    else
        snprintf(what, sizeof what, "\"%s\"", w->name);
    if (s->nearest[0])
        snprintf(hint, sizeof hint, "; there is \"%s\"", s->nearest);
    if (s->other) {
        snprintf(buf, cap, "the signatures do not agree: the caller has \"%.*s\", the server \"%s\"", (int)w->text_len, w->text,
                 weft_sig_text(s->other->sig));
        return WEFT_CODE_FAILED_PRECONDITION;
    }
    if (s->draining) {
        snprintf(buf, cap, "the service%s%s takes no more calls: it is closing", w->service[0] ? " " : "", w->service);
        return WEFT_CODE_UNAVAILABLE;
    }
    if (s->closed && !s->service) {
        snprintf(buf, cap, "the service%s%s takes no more calls: it was closed", w->service[0] ? " " : "", w->service);
        return WEFT_CODE_UNAVAILABLE;
    }
    if (s->service)
        snprintf(buf, cap, "there is no function %s here%s", what, hint);
    else if (w->service[0])
        snprintf(buf, cap, "there is no service \"%s\"%s%s%s here%s", w->service, w->instance[0] ? " with the instance \"" : "",
                 w->instance, w->instance[0] ? "\"" : "", hint);
    else
        snprintf(buf, cap, "there is no function %s: no service is open here", what);
    /* an instance that is not here was meant to be: it has left, and another may take the call */
    return w->instance[0] && !s->service ? WEFT_CODE_UNAVAILABLE : WEFT_CODE_UNIMPLEMENTED;
}

/* Text of the peer's that is shown to people and sent back: nothing but text. */
static size_t printable(char *text)
{
    size_t n = 0;
    for (; text[n]; n++)
        if ((unsigned char)text[n] < 0x20 || (unsigned char)text[n] > 0x7e)
            text[n] = '?';
    return n;
}

void wefti_rpc_bind(rpc_state_t *rs, weft_am_t *am, const rpc_head_t *head)
{
    wanted_t w;
    search_t s;
    rpc_msg_t msg;
    rpc_bound_t bound = {0};
    char words[RPC_MESSAGE_MAX];
    if (!read_bind(am, &w)) {
        wefti_ep_protocol_error(am->ep, "a question for a function that cannot be read");
        return;
    }
    rpc_head_t answer = rpc_head(RPC_BOUND, head->call);
    pthread_mutex_lock(&rs->lock);
    search(rs, &w, &s);
    if (s.f) {
        const char *text = weft_sig_text(s.f->sig);
        answer.slot = s.f->slot;
        answer.check = s.f->check;
        bound.number = s.f->number;
        bound.epoch = s.f->service->epoch;
        rpc_msg_init(&msg, answer);
        rpc_msg_put(&msg, &bound, sizeof bound);
        rpc_msg_put(&msg, text, strlen(text));
    } else {
        bound.code = refusal(&w, &s, words, sizeof words);
        rpc_msg_init(&msg, answer);
        rpc_msg_put(&msg, &bound, sizeof bound);
        rpc_msg_put(&msg, words, printable(words));
        if (s.other)
            rpc_count(&s.other->service->stats.refused, 1);
    }
    pthread_mutex_unlock(&rs->lock);
    wefti_rpc_send_back(am, false, &msg);
}
