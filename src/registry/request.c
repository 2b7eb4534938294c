/* registry/request.c - operations on a registry: enter, leave, find; and posting those that end something.
 *
 *     posted --the driver starts it--> with the thread (thread.c) --> done, told in progress --> complete
 *
 * A cancel or a timeout completes the operation at once. The thread serves the request all the same, and nobody is told.
 *
 * Promise: every operation completes once, and requests of one thread are served in the order of their posts.
 * tests/wire/registry_basic.c, tests/fault/registry_place.c. */
#include "registry/state.h"

void wefti_reg_no_cancel(weft_op_t *op, weft_status_t why)
{
    (void)op;
    (void)why;
}

weft_status_t wefti_reg_post_end(weft_runtime_t *rt, wefti_handle_t *handle, _Atomic uint32_t *coming,
                                 const wefti_op_kind_t *kind, void *object, weft_op_t *op, const char *twice)
{
    weft_status_t st = wefti_gone(rt) ? wefti_fail_gone(rt) : WEFT_OK;
    if (!st && !wefti_handle_close(handle))
        st = wefti_fail(WEFT_ERR_CLOSED, "%s", twice);
    else if (!st && (st = wefti_op_prepare(rt, op, kind)))
        wefti_handle_reopen(handle); /* it is as it was */
    else if (!st)
        atomic_fetch_add(coming, 1);
    wefti_handle_leave(handle);
    if (st)
        return st;
    *wefti_op_scratch(op, void *) = object;
    st = wefti_op_go(rt, op); /* start() never fails, but the runtime may be closed meanwhile */
    if (st)
        atomic_fetch_sub(coming, 1);
    return st;
}

/* --- a request --------------------------------------------------------------------------------------------------------- */

static void request_free(reg_request_t *q)
{
    wefti_reg_entry_unref(q->entry);
    wefti_reg_found_unref(q->found);
    wefti_free(q);
}

static reg_request_t *request_of(weft_op_t *op)
{
    return *wefti_op_scratch(op, reg_request_t *);
}

static weft_status_t start(weft_op_t *op)
{
    reg_request_t *q = request_of(op);
    weft_registry_t *r = q->registry;
    weft_status_t st = wefti_op_track(op);
    q->came = true;
    if (!st) {
        q->op = op;
        if (!wefti_reg_thread_do(r, q)) /* if taken, it may be freed by now */
            st = wefti_fail(WEFT_ERR_CLOSED, "the registry was closed");
    }
    wefti_reg_came(r);
    return st;
}

static void failed(weft_op_t *op, weft_status_t st)
{
    reg_request_t *q = request_of(op);
    wefti_op_complete(op, st);
    request_free(q); /* the operation may be a part of it */
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    reg_request_t *q = request_of(op);
    q->op = NULL;
    wefti_op_complete_why(
        op, why, why == WEFT_ERR_TIMEOUT ? wefti_detail_format("the registry %s has not answered in time", q->registry->uri) : 0);
}

static const wefti_op_kind_t request_kind = {.name = "registry request", .start = start, .cancel = cancel, .failed = failed};
static const wefti_op_kind_t own_kind = {
    .name = "registry request", .start = start, .cancel = cancel, .failed = failed, .by_post = true};

/* Takes over the request, also if it fails. */
static weft_status_t post(reg_request_t *q, weft_op_t *op)
{
    weft_registry_t *r = q->registry;
    weft_runtime_t *rt = r->rt;
    const wefti_op_kind_t *kind = op ? &request_kind : &own_kind;
    if (!op)
        op = &q->own;
    weft_status_t st = wefti_reg_enter(r);
    if (!st) {
        st = wefti_op_prepare(rt, op, kind);
        if (!st)
            atomic_fetch_add(&r->coming, 1);
        wefti_reg_leave(r);
    }
    if (!st) {
        *wefti_op_scratch(op, reg_request_t *) = q;
        st = wefti_op_go_by(rt, op, start);
        if (st && !q->came) /* the runtime was closed meanwhile */
            atomic_fetch_sub(&r->coming, 1);
    }
    if (st)
        request_free(q);
    return st;
}

static weft_status_t request_new(weft_registry_t *r, reg_what_t what, reg_request_t **request_out)
{
    weft_status_t st = wefti_reg_enter(r);
    if (st)
        return st;
    wefti_reg_leave(r);
    reg_request_t *q = (reg_request_t *)wefti_calloc(1, sizeof *q);
    if (!q)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a request to a registry");
    q->registry = r;
    q->what = what;
    *request_out = q;
    return WEFT_OK;
}

/* --- what is done ------------------------------------------------------------------------------------------------------ */

/* The function may cancel the operation, and is not called again then. */
static uint64_t tell_found(reg_request_t *q)
{
    uint64_t n = 0;
    for (size_t i = 0; q->op && i < q->found->n; i++) {
        const reg_entry_t *e = q->found->at[i];
        weft_entry_t view = wefti_reg_entry_view(e);
        if (*q->service && strcmp(q->service, e->service) != 0)
            continue;
        n++;
        q->fn(&view, q->user);
    }
    return n;
}

void wefti_reg_request_done(reg_request_t *q)
{
    uint64_t n = q->what == REG_FIND && !q->status ? tell_found(q) : 0;
    weft_op_t *op = q->op;
    weft_status_t st = q->status;
    uint64_t detail = q->detail;
    bool own = op == &q->own;
    if (!own)
        request_free(q);
    if (op) {
        op->count = n;
        wefti_op_complete_why(op, st, detail);
    }
    if (own)
        request_free(q); /* nobody but the request has that operation */
}

/* --- the calls --------------------------------------------------------------------------------------------------------- */

weft_status_t weft_registry_enter(weft_registry_t *registry, const weft_entry_t *entry, weft_op_t *op)
{
    reg_request_t *q;
    weft_entry_t given;
    if (!entry || entry->size < offsetof(weft_entry_t, load))
        return wefti_fail(WEFT_ERR_INVALID, "there is no entry, or its size is not set (WEFT_ENTRY_INIT)");
    weft_status_t st = wefti_opts_read(entry, &given, sizeof given, "weft_entry_t");
    if (!st)
        st = request_new(registry, REG_ENTER, &q);
    if (st)
        return st;
    st = wefti_reg_entry_new(&given, given.instance ? given.instance : registry->name, &q->entry);
    if (st) {
        request_free(q);
        return st;
    }
    return post(q, op);
}

weft_status_t weft_registry_leave(weft_registry_t *registry, const char *service, const char *instance, weft_op_t *op)
{
    reg_request_t *q;
    weft_status_t st = request_new(registry, REG_LEAVE, &q);
    if (st)
        return st;
    if (!instance)
        instance = registry->name;
    if (!wefti_reg_name_ok(service) || !wefti_reg_name_ok(instance)) {
        request_free(q);
        return wefti_fail(WEFT_ERR_INVALID, "a service and an instance have names of 1 to %d letters, digits, '.', '-' and '_'",
                          REG_NAME_MAX);
    }
    memcpy(q->service, service, strlen(service));
    memcpy(q->instance, instance, strlen(instance));
    return post(q, op);
}

weft_status_t weft_registry_find(weft_registry_t *registry, const char *service, weft_entry_fn fn, void *user, weft_op_t *op)
{
    reg_request_t *q;
    if (!fn || !op)
        return wefti_fail(WEFT_ERR_INVALID, "there is no function to be called, or no operation");
    weft_status_t st = service ? wefti_reg_check_service(service) : WEFT_OK;
    if (!st)
        st = request_new(registry, REG_FIND, &q);
    if (st)
        return st;
    if (service)
        memcpy(q->service, service, strlen(service));
    q->fn = fn;
    q->user = user;
    return post(q, op);
}
