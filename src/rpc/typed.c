/* rpc/typed.c - what the functions of weft/function.h need of the library: their methods, their handlers, and calls that wait.
 *
 * A function that a program declares has a number of its own in the process, from its first use on; a client has a table of methods
 * by that number. So a stub finds its method by two loads, with any number of clients, and a client that is gone takes its table with
 * it: there is nothing in the function that could be stale. A table that became too small stays until the client goes, for whoever
 * is reading it.
 *
 * Promise: no text is looked at and no lock is taken after the first call of a function through a client. tests/wire/rpc_typed.c,
 * tests/unit/rpc_function.c. */
#include <weft/function.h>

#include "rpc/state.h"

/* --- methods --------------------------------------------------------------------------------------------------------------------- */

struct rpc_typed {
    struct rpc_typed *before; /* the smaller one it took over from */
    uint32_t n;
    _Atomic(weft_method_t *) methods[]; /* by weft_function_t.index */
};

static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* of numbers given out, and of tables that grow: first calls only */
static uint32_t last_index;

void wefti_rpc_typed_free(weft_client_t *client)
{
    struct rpc_typed *t = atomic_load_explicit(&client->typed, memory_order_relaxed);
    while (t) {
        struct rpc_typed *before = t->before;
        wefti_free(t);
        t = before;
    }
}

/* One with room for index; NULL: no memory. */
static struct rpc_typed *table_for(weft_client_t *client, uint32_t index)
{
    struct rpc_typed *was = atomic_load_explicit(&client->typed, memory_order_relaxed);
    if (was && index < was->n)
        return was;
    uint32_t n = was ? was->n : 8;
    while (n <= index)
        n *= 2;
    struct rpc_typed *t = (struct rpc_typed *)wefti_calloc(1, sizeof *t + n * sizeof *t->methods);
    if (!t)
        return NULL;
    t->before = was;
    t->n = n;
    for (uint32_t i = 0; was && i < was->n; i++)
        atomic_init(&t->methods[i], atomic_load_explicit(&was->methods[i], memory_order_relaxed));
    atomic_store_explicit(&client->typed, t, memory_order_release);
    return t;
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
    struct rpc_typed *t = index ? table_for(client, index) : NULL;
    if (t) /* without, it is looked up again the next time */
        atomic_store_explicit(&t->methods[index], *method_out, memory_order_release);
    pthread_mutex_unlock(&naming);
    return WEFT_OK;
}

weft_status_t weft_function_method(weft_client_t *client, weft_function_t *function, weft_method_t **method_out)
{
    if (__builtin_expect(client && function && method_out, 1)) {
        uint32_t index = __atomic_load_n(&function->index, __ATOMIC_RELAXED);
        const struct rpc_typed *t = atomic_load_explicit(&client->typed, memory_order_acquire);
        weft_method_t *method =
            t && index < t->n ? atomic_load_explicit(&t->methods[index], memory_order_acquire) : NULL; /* index 0: none */
        if (__builtin_expect(method != NULL, 1)) {
            *method_out = method;
            return WEFT_OK;
        }
    }
    return look_up(client, function, method_out);
}

/* --- calls that wait --------------------------------------------------------------------------------------------------------------- */

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
    if (st) { /* nothing was sent, and the words are those of weft_last_error() */
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

/* --- handlers -------------------------------------------------------------------------------------------------------------------- */

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
