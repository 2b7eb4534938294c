/* rpc/method.c - methods of a client: a function by its signature, its name, its number, or its declaration.
 *
 * A method is a handle (base/handle.h): a call with one whose client was closed finds it closed.
 *
 * A function that is declared (weft/function.h) gets a number in its process at its first use; a client has pages of methods by
 * that number. So a stub finds its method by two loads, with any number of clients, and nothing in the function can be stale: the
 * pages are freed with the client. Pages are handles too: a thread that reads one while its client is closed finds no method, or
 * one that is closed.
 *
 * Promise: after the first call of a function through a client, no text is compared and no lock is taken. tests/wire/rpc_typed.c,
 * tests/unit/rpc_function.c. */
#include <stdio.h>
#include <weft/function.h>

#include "base/ascii.h"
#include "rpc/client.h"

static wefti_handles_t methods = WEFTI_HANDLES_INIT(weft_method_t, kind);

static void method_free(weft_method_t *m)
{
    weft_sig_free((weft_sig_t *)(uintptr_t)atomic_exchange(&m->sig, NULL));
    wefti_free(m->text);
    m->text = NULL;
    wefti_rpc_spread_free(atomic_exchange(&m->spread, NULL));
    wefti_handle_free(&methods, m);
}

weft_status_t wefti_rpc_method_lock(const weft_method_t *m)
{
    weft_client_t *client = m->client;
    weft_status_t st = wefti_rpc_client_lock(client);
    if (st || wefti_is_open(&m->handle))
        return st;
    wefti_rpc_unlock(m->rt);
    return wefti_rpc_client_closed();
}

void wefti_rpc_method_learn(weft_method_t *m, const weft_sig_t *sig)
{
    bool stream = wefti_sig_codec(sig, WEFTI_SIG_ARG_ITEM)->n || wefti_sig_codec(sig, WEFTI_SIG_RESULT_ITEM)->n;
    m->args = wefti_sig_codec(sig, WEFTI_SIG_ARGS);
    m->results = wefti_sig_codec(sig, WEFTI_SIG_RESULTS);
    m->kind = stream ? CALL_STREAM : weft_sig_oneway(sig) ? CALL_ONEWAY : CALL_UNARY;
    atomic_store_explicit(&m->sig, sig, memory_order_release);
}

static weft_status_t read_number(weft_method_t *m)
{
    uint64_t number = 0;
    const char *p = m->text + 1;
    for (; wefti_is_digit(*p) && number <= UINT32_MAX; p++)
        number = number * 10 + (uint64_t)(*p - '0');
    if (*p || !number || number > UINT32_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "\"%.80s\" is no number of a function; write # and a number from 1 on", m->text);
    m->number = (uint32_t)number;
    return WEFT_OK;
}

/* A name alone: can a function have it? */
static weft_status_t check_name(const char *name)
{
    weft_sig_t *sig;
    char whole[WEFT_SIG_TEXT + 16];
    int n = snprintf(whole, sizeof whole, "%s() -> void", name);
    if (n < 0 || (size_t)n >= sizeof whole)
        return wefti_fail(WEFT_ERR_INVALID, "the name of a function is too long");
    weft_status_t st = weft_sig_parse(whole, &sig);
    if (!st)
        weft_sig_free(sig);
    return st;
}

/* "add(a: i32) -> i32", "add" or "#7". */
static weft_status_t read_text(weft_method_t *m)
{
    weft_sig_t *sig;
    if (m->text[0] == '#')
        return read_number(m);
    if (!strchr(m->text, '('))
        return check_name(m->text);
    weft_status_t st = weft_sig_parse(m->text, &sig);
    if (!st)
        wefti_rpc_method_learn(m, sig);
    return st;
}

/* Under rs->lock. */
static weft_status_t method_new(weft_client_t *c, const char *text, weft_method_t **method_out)
{
    weft_method_t *m = (weft_method_t *)wefti_handle_take(&methods);
    weft_status_t st = WEFT_ERR_NOMEM;
    if (!m)
        goto err;
    memset(&m->handle + 1, 0, sizeof *m - sizeof m->handle);
    m->rt = c->rt;
    m->client = c;
    m->index = c->n_methods;
    m->text = wefti_strdup(text);
    weft_method_t **more = (weft_method_t **)wefti_realloc(c->methods, (c->n_methods + 1) * sizeof *more);
    if (more)
        c->methods = more;
    if (!m->text || !more)
        goto err;
    st = read_text(m);
    if (st)
        goto err;
    c->methods[c->n_methods++] = m;
    atomic_store_explicit(&m->handle.open, 1, memory_order_release);
    *method_out = m;
    return WEFT_OK;

err:
    if (m)
        method_free(m);
    return st == WEFT_ERR_NOMEM ? wefti_fail(st, "no memory for a method") : st;
}

weft_status_t wefti_rpc_client_method(weft_client_t *c, const char *signature, weft_method_t **method_out)
{
    if (strnlen(signature, WEFT_SIG_TEXT + 1) > WEFT_SIG_TEXT)
        return wefti_fail(WEFT_ERR_INVALID, "a signature has at most %d bytes", WEFT_SIG_TEXT);
    weft_status_t st = wefti_rpc_client_lock(c);
    if (st)
        return st;
    weft_method_t *m = NULL;
    for (uint32_t i = 0; i < c->n_methods && !m; i++)
        m = strcmp(c->methods[i]->text, signature) ? NULL : c->methods[i];
    if (!m)
        st = c->n_methods < UINT16_MAX ? method_new(c, signature, &m)
                                       : wefti_fail(WEFT_ERR_LIMIT, "a client has at most %d methods", UINT16_MAX);
    wefti_rpc_unlock(c->rt);
    if (!st)
        *method_out = m;
    return st;
}

const weft_sig_t *weft_method_sig(const weft_method_t *m)
{
    return m && wefti_is_open(&m->handle) ? rpc_method_sig(m) : NULL;
}

/* --- by declaration -------------------------------------------------------------------------------------------------------- */

enum { PAGE = 256 };

struct rpc_typed {
    wefti_handle_t handle;
    _Atomic(struct rpc_typed *) next;
    _Atomic(weft_method_t *) methods[PAGE]; /* by weft_function_t.index, of the first page; the next one has the next */
};

static wefti_handles_t pages = WEFTI_HANDLES_INIT(struct rpc_typed, methods);
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* of new numbers and new pages: first calls only */
static uint32_t last_index;

void wefti_rpc_methods_free(weft_client_t *client)
{
    for (uint32_t i = 0; i < client->n_methods; i++)
        method_free(client->methods[i]);
    wefti_free(client->methods);
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
