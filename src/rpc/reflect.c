/* rpc/reflect.c - what every runtime answers about itself: its services, and their functions.
 *
 * These are functions like others, of a service that is on no list: a client that asks for a name that begins with "weft." gets
 * them, whatever service it names. tests/wire/rpc_call.c. */
#include <stdio.h>
#include <weft/config.h>

#include "rpc/serve.h"

/* Text that grows. */
typedef struct text {
    char *at;
    size_t len, cap;
    bool failed;
} text_t;

static bool more(text_t *t, size_t n)
{
    if (t->len + n < t->cap)
        return true;
    size_t cap = 2 * (t->len + n) + 256;
    char *at = (char *)wefti_realloc(t->at, cap);
    if (!at) {
        t->failed = true;
        return false;
    }
    t->at = at;
    t->cap = cap;
    return true;
}

static void answer(weft_request_t *request, text_t *t)
{
    weft_value_t value = weft_text(t->at ? t->at : "", t->len);
    if (t->failed)
        weft_request_fail(request, WEFT_CODE_RESOURCE_EXHAUSTED, "there is no memory for the list");
    else
        weft_request_reply(request, &value, 1);
    wefti_free(t->at);
}

static void services(weft_request_t *request, void *user)
{
    rpc_state_t *rs = (rpc_state_t *)user;
    text_t t = {0};
    pthread_mutex_lock(&rs->lock);
    wefti_list_each(l, &rs->services) {
        const weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        if (!s->ended && more(&t, sizeof s->name + sizeof s->instance + sizeof WEFT_VERSION_STRING + 3))
            t.len += (size_t)snprintf(t.at + t.len, t.cap - t.len, "%s %s %s\n", s->name, s->instance, WEFT_VERSION_STRING);
    }
    pthread_mutex_unlock(&rs->lock);
    answer(request, &t);
}

static bool named(const weft_service_t *s, const weft_value_t *name)
{
    return !name->view.n || (strlen(s->name) == name->view.n && !memcmp(s->name, name->view.data, name->view.n));
}

static void functions(weft_request_t *request, void *user)
{
    rpc_state_t *rs = (rpc_state_t *)user;
    text_t t = {0};
    bool found = false;
    pthread_mutex_lock(&rs->lock);
    wefti_list_each(l, &rs->services) {
        weft_service_t *s = wefti_container_of(l, weft_service_t, link);
        if (s->ended || !named(s, &request->args[0]))
            continue;
        found = true;
        if (more(&t, wefti_rpc_functions_text(s, NULL, 0)))
            t.len += wefti_rpc_functions_text(s, t.at + t.len, t.cap - t.len);
        if (request->args[0].view.n)
            break; /* other instances have the same */
    }
    pthread_mutex_unlock(&rs->lock);
    if (found || !request->args[0].view.n) {
        answer(request, &t);
    } else {
        wefti_free(t.at);
        weft_request_fail(request, WEFT_CODE_NOT_FOUND, "there is no service of that name here");
    }
}

weft_status_t wefti_rpc_reflect(rpc_state_t *rs)
{
    weft_service_opts_t o = WEFT_SERVICE_OPTS_INIT;
    rs->own = wefti_rpc_service_new(rs, "weft", "weft", &o);
    if (!rs->own)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the functions of a runtime");
    rs->own->own = true;
    weft_status_t st = wefti_rpc_function_add(rs->own, WEFT_RPC_SERVICES, services, rs, NULL, true);
    return st ? st : wefti_rpc_function_add(rs->own, WEFT_RPC_FUNCTIONS, functions, rs, NULL, true);
}
