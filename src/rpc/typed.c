/* rpc/typed.c - what the functions of weft/function.h need of the library: their methods, their handlers, and calls that wait.
 *
 * A declared function gets a number in its process at its first use; a client has pages of methods by that number. So a stub
 * finds its method by two loads, with any number of clients, and nothing in the function can be stale: the pages are freed with
 * the client. Pages are handles (base/handle.h): a thread that reads one while its client is closed finds no method, or one that
 * is closed.
 *
 * Promise: after the first call of a function through a client, no text is compared and no lock is taken. tests/wire/rpc_typed.c,
 * tests/unit/rpc_function.c. */
#include <weft/function.h>

#include "rpc/client.h"

/* --- methods ---------------------------------------------------------------------------------------------------------------- */

enum { PAGE = 256 };

struct rpc_typed {
    wefti_handle_t handle;
    _Atomic(struct rpc_typed *) next;
    _Atomic(weft_method_t *) methods[PAGE]; /* by weft_function_t.index, of the first page; the next one has the next */
};

static wefti_handles_t pages = WEFTI_HANDLES_INIT(struct rpc_typed, methods);
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* of new numbers and new pages: first calls only */
static uint32_t last_index;

void wefti_rpc_typed_free(weft_client_t *client)
{
    pthread_mutex_lock(&naming);
    struct rpc_typed *t = atomic_exchange(&client->typed, NULL);
    pthread_mutex_unlock(&naming);
    while (t) {
        struct rpc_typed *next = atomic_exchange(&t->next, NULL);
        for (unsigned i = 0; i < PAGE; i++)
            atomic_store_explicit(&t->methods[i], NULL, memory_order_relaxed);
        wefti_handle_free(&pages, t);
        t = next;
    }
}

/* Where the method of that index is; NULL: there is no such page. */
static inline _Atomic(weft_method_t *) *place(weft_client_t *client, uint32_t index)
{
    struct rpc_typed *t = atomic_load_explicit(&client->typed, memory_order_acquire);
    for (; __builtin_expect(t && index >= PAGE, 0); index -= PAGE)
        t = atomic_load_explicit(&t->next, memory_order_acquire);
    return t ? &t->methods[index] : NULL;
}

/* The same, with a page for it. NULL: no memory. */
static _Atomic(weft_method_t *) *new_place(weft_client_t *client, uint32_t index)
{
    _Atomic(struct rpc_typed *) *at = &client->typed;
    for (;; index -= PAGE) {
        struct rpc_typed *t = atomic_load_explicit(at, memory_order_relaxed);
        if (!t) {
            t = (struct rpc_typed *)wefti_handle_new(&pages);
            if (!t)
                return NULL;
            atomic_store_explicit(at, t, memory_order_release);
        }
        if (index < PAGE)
            return &t->methods[index];
        at = &t->next;
    }
}

static __attribute__((noinline, cold)) weft_status_t look_up(weft_client_t *client, weft_function_t *function,
                                                             weft_method_t **method_out)
{
    if (!client || !function || !method_out)
        return wefti_fail(WEFT_ERR_INVALID, "%s is NULL", !client ? "the client" : !function ? "the function" : "method_out");
    weft_status_t st = weft_client_method(client, function->signature, method_out);
    if (st)
        return st;
    pthread_mutex_lock(&naming);
    uint32_t index = function->index;
    if (!index && last_index < INT32_MAX) {
        index = ++last_index;
        __atomic_store_n(&function->index, index, __ATOMIC_RELAXED);
    }
    /* a client that was closed meanwhile must not get a page */
    _Atomic(weft_method_t *) *at = index && wefti_is_open(&client->handle) ? new_place(client, index) : NULL;
    if (at) /* otherwise it is looked up again the next time */
        atomic_store_explicit(at, *method_out, memory_order_release);
    pthread_mutex_unlock(&naming);
    return WEFT_OK;
}

weft_status_t weft_function_method(weft_client_t *client, weft_function_t *function, weft_method_t **method_out)
{
    if (__builtin_expect(client && function && method_out, 1)) {
        uint32_t index = __atomic_load_n(&function->index, __ATOMIC_RELAXED);
        _Atomic(weft_method_t *) *at = place(client, index); /* index 0: none */
        weft_method_t *method = at ? atomic_load_explicit(at, memory_order_acquire) : NULL;
        if (__builtin_expect(method != NULL, 1)) {
            *method_out = method;
            return WEFT_OK;
        }
    }
    return look_up(client, function, method_out);
}

/* --- calls that wait -------------------------------------------------------------------------------------------------------- */

weft_status_t weft_call_wait(weft_method_t *method, const weft_value_t *args, size_t n, const weft_call_opts_t *opts,
                             uint64_t timeout_ns, weft_reply_t *reply)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t own = WEFT_REPLY_INIT;
    weft_reply_t *r = reply ? reply : &own;
    weft_status_t st;
    memset(r, 0, sizeof *r);
    r->message = "";
    if (!method)
        st = wefti_fail(WEFT_ERR_INVALID, "the method is NULL");
    else if (wefti_driven)
        st = wefti_fail(WEFT_ERR_STATE, "waiting for a call is not allowed inside a callback; post it");
    else {
        op.timeout_ns = timeout_ns ? timeout_ns : method->client->timeout_ns;
        if (op.timeout_ns == WEFT_FOREVER)
            op.timeout_ns = 0;
        st = weft_call_with(method, args, n, opts, r, &op);
    }
    if (st) { /* nothing was sent */
        const char *words = weft_last_error();
        wefti_rpc_reply_fail(r, wefti_rpc_code_of(st), WEFT_NOT_RUN, words, strlen(words));
        r->category = WEFT_CATEGORY_WEFT;
        r->value = st;
    } else {
        while (weft_op_wait(&op, WEFT_FOREVER), !weft_op_done(&op)) /* a simulated network on which nothing happens */
            weft_op_cancel(&op);
        st = op.status;
        if (st)
            st = wefti_fail(st, "%s: %s", weft_code_name(r->code), r->message);
    }
    if (!reply)
        weft_reply_release(&own);
    return st;
}

/* --- handlers --------------------------------------------------------------------------------------------------------------- */

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
