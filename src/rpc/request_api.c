/* rpc/request_api.c - what a program does with a request beside answering it: keep, release, cancel, fetch its arguments.
 *
 * tests/wire/rpc_service.c, tests/wire/rpc_memory.c. */
#include "rpc/serve.h"

weft_request_t *weft_request_keep(weft_request_t *request)
{
    rpc_request_t *r = (rpc_request_t *)(void *)request;
    rpc_no_t no;
    bool am_gone = false;
    if (!r)
        return NULL;
    if (r->on_heap || r->moved) {
        r = rpc_request(request);
        if (!atomic_exchange(&r->kept, true))
            atomic_fetch_add(&r->holds, 1);
        return &r->pub;
    }
    bool answered = atomic_load_explicit(&r->answered, memory_order_relaxed);
    rpc_request_t *kept = wefti_rpc_request_new(r->fn, r->am, r->call, r->pub.left_ns, &r->where, &no, &am_gone);
    if (!kept) {
        no.ran = 0; /* it has begun */
        if (!answered)
            (void)wefti_rpc_request_no(r, &no);
        return NULL;
    }
    atomic_store(&kept->kept, true);
    kept->begun = true;
    r->moved = kept;
    if (answered) {
        atomic_store(&kept->answered, true);
        wefti_rpc_request_over(kept); /* not freed: it is not released */
    } else if (!kept->ep->lane || kept->fn->service->closing) {
        /* its function closed the endpoint or the service before it kept the request, so nothing else ends it */
        wefti_rpc_request_end(kept, kept->ep->lane ? END_CLOSED : END_PEER);
    }
    return &kept->pub;
}

void weft_request_release(weft_request_t *request)
{
    if (!request)
        return;
    rpc_request_t *r = rpc_request(request);
    if (r->on_heap && r->kept)
        wefti_rpc_request_drop(r);
}

bool weft_request_cancelled(const weft_request_t *request)
{
    if (!request)
        return true;
    rpc_request_t *r = rpc_request(request);
    return r->on_heap && atomic_load(&r->cancelled);
}

void weft_request_on_cancel(weft_request_t *request, weft_cancel_fn fn, void *user)
{
    rpc_request_t *r = request ? rpc_request(request) : NULL;
    if (!r || !r->on_heap)
        return;
    weft_runtime_t *rt = r->rt;
    if (wefti_join(rt))
        return;
    rpc_state_t *rs = rpc_state(rt);
    pthread_mutex_lock(&rs->lock);
    r->on_cancel = fn;
    r->on_cancel_user = user;
    pthread_mutex_unlock(&rs->lock);
    wefti_part(rt);
    if (fn && atomic_load(&r->cancelled))
        wefti_rpc_hand_in(r, WORK_TELL);
}

typedef struct fetch {
    rpc_request_t *r;
    void *buf;
    size_t cap;
    const weft_mem_kind_t *kind;
} fetch_t;

static void fetch_done(void *user, weft_status_t st)
{
    rpc_request_t *r = (rpc_request_t *)user;
    weft_op_t *op = r->fetch_op;
    r->fetch_op = NULL;
    wefti_op_complete(op, st);
    wefti_rpc_request_unref(r);
}

static weft_status_t fetch_start(weft_op_t *op)
{
    fetch_t *f = wefti_op_scratch(op, fetch_t);
    rpc_request_t *r = f->r;
    op->len = r->pub.fetch_len;
    if (!r->in->missing || r->fetch_op || !r->in->fetch->am)
        return wefti_fail(WEFT_ERR_STATE, "the arguments are here, or on their way, or the request was answered without them");
    weft_status_t st = wefti_op_track(op);
    if (!st)
        st = wefti_rpc_in_fetch(r->in, f->buf, f->cap, f->kind, r->fn->service->opts.stall_ns, fetch_done, r);
    if (st)
        return st;
    r->fetch_op = op;
    r->refs++;
    return WEFT_OK;
}

/* Through the inbox: `coming` has kept the request. */
static weft_status_t fetch_start_inbox(weft_op_t *op)
{
    rpc_request_t *r = wefti_op_scratch(op, fetch_t)->r;
    weft_status_t st = fetch_start(op);
    atomic_fetch_sub(&r->coming, 1);
    wefti_rpc_request_free_if_done(r);
    return st;
}

static void fetch_cancel(weft_op_t *op, weft_status_t why)
{
    (void)why;
    weft_op_cancel(&wefti_op_scratch(op, fetch_t)->r->in->fetch->op); /* it ends when nothing is written to the buffer any more */
}

static const wefti_op_kind_t fetch_kind = {.name = "fetch", .start = fetch_start_inbox, .cancel = fetch_cancel};

weft_status_t weft_request_fetch(weft_request_t *request, void *buf, size_t cap, const weft_mem_kind_t *kind, weft_op_t *op)
{
    if (!request || !op || !buf)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !request ? "the request" : op ? "the buffer" : "the operation");
    rpc_request_t *r = rpc_request(request);
    if (!r->on_heap || !r->pub.fetch_len)
        return wefti_fail(WEFT_ERR_STATE, "all arguments are here: fetch_len is 0");
    weft_status_t st = wefti_op_prepare(rpc_request_rt(r), op, &fetch_kind);
    if (st)
        return st;
    *wefti_op_scratch(op, fetch_t) = (fetch_t){r, buf, cap, kind};
    /* until it is started only the program has the request, and may release it in on_cancel: `coming` keeps it */
    return wefti_rpc_go(r->rt, op, fetch_start, &r->coming, NULL);
}
