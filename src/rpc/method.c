/* rpc/method.c - methods of a client: a function by its signature, its name or its number.
 *
 * A method is a handle (base/handle.h): a call with one whose client was closed finds it closed. */
#include <stdio.h>

#include "base/ascii.h"
#include "rpc/client.h"

static wefti_handles_t methods = WEFTI_HANDLES_INIT(weft_method_t, kind);

void wefti_rpc_method_free(weft_method_t *m)
{
    weft_sig_free((weft_sig_t *)(uintptr_t)atomic_exchange(&m->sig, NULL));
    wefti_free(m->text);
    m->text = NULL;
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
    weft_method_t **more = NULL;
    weft_status_t st = WEFT_ERR_NOMEM;
    if (!m)
        goto err;
    memset(&m->handle + 1, 0, sizeof *m - sizeof m->handle);
    m->rt = c->rt;
    m->client = c;
    m->index = c->n_methods;
    m->text = wefti_strdup(text);
    more = (weft_method_t **)wefti_malloc((c->n_methods + 1) * sizeof *more);
    if (!m->text || !more)
        goto err;
    st = read_text(m);
    if (st)
        goto err;
    if (c->n_methods)
        memcpy(more, c->methods, c->n_methods * sizeof *more);
    wefti_free(c->methods);
    c->methods = more;
    c->methods[c->n_methods++] = m;
    atomic_store_explicit(&m->handle.open, 1, memory_order_release);
    *method_out = m;
    return WEFT_OK;

err:
    if (m)
        wefti_rpc_method_free(m);
    wefti_free(more);
    return st == WEFT_ERR_NOMEM ? wefti_fail(st, "no memory for a method") : st;
}

weft_status_t weft_client_method(weft_client_t *c, const char *signature, weft_method_t **method_out)
{
    if (!c || !signature || !method_out)
        return wefti_fail(WEFT_ERR_INVALID, "a method needs a client, a signature, and somewhere to put it");
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
