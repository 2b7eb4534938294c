/* tools/perf/rpc.c - the loops of calls, and how the two sides come to them.
 *
 * The server of a run has a service with one function; the client has a client of it on every endpoint, and has checked the
 * function before the clock starts.
 *
 * rpc_lat     echo(data: [u8]) -> [u8], one call at a time. A time is that of a whole call.
 * rpc_rate    the same, `window` calls under way; a time is that of one call, averaged over a window.
 * rpc_tensor  take(data: tensor) -> u64: the library brings the tensor, the function looks at both of its ends and says how
 *             long it was.
 *
 * Functions answer at once, in progress. A call is over when the caller has looked at its reply and released it. Clients go
 * before endpoints and the service after them, however a run ends. tests/tools/tools_perf.py and tests/tools/tools_peer_loss.py
 * check it. */
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* Calls that are answered at once never make anyone call progress; packed ones leave, and replies come in, only there. */
#define BATCH 256
#define POSTS 32  /* calls posted in one go */
#define FILL 0x5a /* what run.c puts into what is sent */

#define SERVICE "perf"
#define ECHO "echo(data: [u8]) -> [u8]"
#define TAKE "take(data: tensor) -> u64"

static bool is_tensor(const perf_run_t *run)
{
    return run->plan.test == PERF_RPC_TENSOR;
}

/* --- the service ----------------------------------------------------------------------------------------- */

/* Bytes that did not arrive make figures worthless. */
static bool is_right(const perf_run_t *run, const void *data, uint64_t n)
{
    const char *at = data;
    return n == run->plan.size && (!n || (at[0] == FILL && at[n - 1] == FILL));
}

static void not_right(weft_request_t *request)
{
    weft_status_t st = weft_request_fail(request, WEFT_CODE_DATA_LOSS, "the argument is not what was sent");
    (void)st; /* its caller is gone */
}

static void echo(weft_request_t *request, void *user)
{
    perf_run_t *run = user;
    weft_status_t st;
    run->rpc->served++;
    if (!is_right(run, request->args[0].view.data, request->args[0].view.n)) {
        not_right(request);
        return;
    }
    st = weft_request_reply(request, request->args, 1);
    (void)st;
}

static void take(weft_request_t *request, void *user)
{
    perf_run_t *run = user;
    const weft_tensor_t *t = request->args[0].tensors.at;
    weft_value_t answer;
    uint64_t n;
    weft_status_t st = weft_tensor_bytes(t, &n);
    run->rpc->served++;
    if (st || t->device_type == 2 || !is_right(run, (const char *)t->data + t->byte_offset, n)) {
        not_right(request);
        return;
    }
    answer = weft_u64(n);
    st = weft_request_reply(request, &answer, 1);
    (void)st;
}

bool perf_rpc_serve(perf_run_t *run)
{
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_status_t st;
    so.payload_max = UINT64_MAX; /* the plan is bounded already */
    so.bytes = UINT64_MAX;
    so.requests = 2 * PERF_MAX_WINDOW;
    st = weft_service_open(run->link->rt, SERVICE, &so, &run->rpc->service);
    if (!st)
        st = weft_service_add(run->rpc->service, is_tensor(run) ? TAKE : ECHO, is_tensor(run) ? take : echo, run, NULL);
    if (st)
        snprintf(run->refusal, sizeof run->refusal, "there can be no service: %s", weft_status_text(st));
    return !st;
}

weft_status_t perf_rpc_server(perf_link_t *l, perf_run_t *run)
{
    weft_status_t st = perf_finish_await(l, run);
    return st || run->rpc->served >= run->plan.count ? st : WEFT_ERR_PROTOCOL;
}

/* --- clients --------------------------------------------------------------------------------------------- */

/* What a call failed with, if more is known than a status says; the status. */
static weft_status_t explain(weft_status_t st, const weft_reply_t *reply)
{
    if (st == WEFT_ERR_CALL) {
        perf_progress(NULL);
        tool_error("the server answered %s: %s", weft_code_name(reply->code), reply->message);
    }
    return st;
}

static weft_status_t check_one(perf_link_t *l, weft_method_t *method)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_status_t st = weft_method_check(method, &reply, &op);
    if (st)
        return st;
    st = weft_op_wait(&op, l->timeout_ns);
    if (!weft_op_done(&op)) {
        tool_cancel(&op);
    }
    st = explain(st, &reply);
    weft_reply_release(&reply);
    return st;
}

/* What is sent; false: no processor can look at it. */
static bool set_argument(perf_run_t *run)
{
    perf_rpc_t *c = run->rpc;
    const weft_mem_kind_t *kind = run->pages[run->n_pages - 1].kind;
    if (!is_tensor(run)) {
        c->arg = weft_vector(WEFT_T_U8, run->send_buf, run->plan.size);
        return !kind || kind->flags & WEFT_MEM_CPU;
    }
    c->shape = (int64_t)run->plan.size;
    c->tensor = (weft_tensor_t){.data = run->send_buf, .device_type = 1, .ndim = 1, .code = 1, .bits = 8, .lanes = 1};
    c->tensor.shape = &c->shape;
    if (perf_on_gpu(run->plan.send_kind))
        c->tensor.device_type = 2;
    else if (!strcmp(run->plan.send_kind, "pinned"))
        c->tensor.device_type = 3;
    else if (!strcmp(run->plan.send_kind, "cuda-managed"))
        c->tensor.device_type = 13;
    c->arg = weft_tensor(&c->tensor);
    return true;
}

weft_status_t perf_rpc_attach(perf_run_t *run)
{
    perf_rpc_t *c = run->rpc;
    perf_link_t *l = run->link;
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    co.service = SERVICE;
    if (!set_argument(run)) {
        tool_error("%s memory can be sent as a tensor only; use --test rpc_tensor", run->plan.send_kind);
        return WEFT_ERR_UNSUPPORTED;
    }
    c->clients = calloc(l->n_eps, sizeof *c->clients);
    c->methods = calloc(l->n_eps, sizeof *c->methods);
    if (!c->clients || !c->methods)
        return WEFT_ERR_NOMEM;
    for (uint64_t i = 0; i < l->n_eps; i++) {
        weft_status_t st = weft_client_on(l->eps[i], &co, &c->clients[i]);
        if (st)
            return st;
        c->n_clients++;
        st = weft_client_method(c->clients[i], is_tensor(run) ? TAKE : ECHO, &c->methods[i]);
        if (!st)
            st = check_one(l, c->methods[i]);
        if (st)
            return st;
    }
    return WEFT_OK;
}

void perf_rpc_drop(perf_run_t *run)
{
    perf_rpc_t *c = run->rpc;
    if (!c)
        return;
    for (uint64_t i = 0; i < c->n_clients; i++) {
        weft_op_t op = WEFT_OP_INIT;
        if (!weft_client_close(c->clients[i], &op))
            weft_op_wait(&op, WEFT_FOREVER);
    }
    c->n_clients = 0;
    free(c->clients);
    free(c->methods);
    c->clients = NULL;
    c->methods = NULL;
}

void perf_rpc_end(perf_run_t *run)
{
    perf_rpc_t *c = run->rpc;
    weft_op_t op = WEFT_OP_INIT;
    if (!run->link->rt)
        return; /* the runtime is closed */
    perf_rpc_drop(run);
    for (uint64_t i = 0; c->replies && i < run->n_sends; i++)
        weft_reply_release(&c->replies[i]);
    perf_finish_drop(run);
    if (c->service && !weft_service_close(c->service, &op))
        weft_op_wait(&op, WEFT_FOREVER);
    c->service = NULL;
}

/* --- the loop -------------------------------------------------------------------------------------------- */

/* A call is complete: look at what came back, and let go of it. */
static inline weft_status_t reply_is_right(perf_run_t *run, weft_reply_t *reply)
{
    const weft_value_t *v = reply->values;
    const bool right = reply->n == 1 && (is_tensor(run) ? v->u64 == run->plan.size : is_right(run, v->view.data, v->view.n));
    weft_reply_release(reply);
    return right ? WEFT_OK : WEFT_ERR_PROTOCOL;
}

/* Post n calls, from operation *at on: in one go where one client makes them all. */
static weft_status_t post_calls(perf_run_t *run, uint64_t n, uint64_t window, uint64_t *at, uint64_t *ep_at)
{
    const perf_rpc_t *c = run->rpc;
    weft_call_item_t items[POSTS];
    weft_status_t st = WEFT_OK;
    for (uint64_t i = 0; i < n && !st; i++) {
        items[i] = (weft_call_item_t){&c->arg, 1, &c->replies[*at], &run->sends[*at]};
        if (c->n_clients > 1)
            st = weft_call(c->methods[*ep_at], &c->arg, 1, items[i].reply, items[i].op);
        if (++*at == window)
            *at = 0;
        if (++*ep_at == c->n_clients)
            *ep_at = 0;
    }
    if (c->n_clients == 1)
        weft_call_many(c->methods[0], items, n, &st);
    return st;
}

weft_status_t perf_rpc_client(perf_link_t *l, perf_run_t *run)
{
    const perf_rpc_t *c = run->rpc;
    const uint64_t count = run->plan.count, window = run->n_sends ? run->n_sends : 1, step = window < BATCH ? window : BATCH;
    const uint64_t posts = window < 4 ? 1 : window < 4 * POSTS ? window / 4 : POSTS;
    perf_histogram_t *h = run->histogram;
    uint64_t posted = 0, taken = 0, post_at = 0, take_at = 0, ep_at = 0, n = 0, before = perf_ticks();
    weft_status_t st;
    while (taken < count) {
        uint64_t group = count - posted < posts ? count - posted : posts;
        if (group && window - (posted - taken) >= group) {
            st = post_calls(run, group, window, &post_at, &ep_at);
            if (st)
                return st;
            posted += group;
            continue;
        }
        st = perf_await(l, &run->sends[take_at]);
        st = st ? explain(st, &c->replies[take_at]) : reply_is_right(run, &c->replies[take_at]);
        if (st)
            return st;
        taken++;
        if (++take_at == window)
            take_at = 0;
        if (++n < step)
            continue;
        n = 0;
        if (window > 1)
            weft_runtime_progress(l->rt);
        if (h) {
            uint64_t after = perf_ticks();
            if (taken > window || window == 1) /* before that, posting fills the window and waits for nothing */
                perf_record(h, (after - before) / step);
            before = after;
        }
    }
    return WEFT_OK;
}
