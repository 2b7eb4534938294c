/* tests/wire/lib/desk.c - see desk.h. */
#include "desk.h"

#include <stdatomic.h>

#include "must.h"

void desk_open(desk_t *desk, const pair_way_t *way, const weft_service_opts_t *opts)
{
    weft_client_opts_t client = WEFT_CLIENT_OPTS_INIT;
    *desk = (desk_t){0};
    pair_open(&desk->pair, way, NULL);
    must(weft_service_open(desk->pair.rt[0], "calc", opts, &desk->service), "weft_service_open");
    client.service = "calc";
    must(weft_client_on(desk->pair.ep[1], &client, &desk->client), "weft_client_on");
}

void desk_close(desk_t *desk)
{
    weft_op_t client = WEFT_OP_INIT, service = WEFT_OP_INIT;
    weft_reply_release(&desk->reply);
    must(weft_client_close(desk->client, &client), "weft_client_close");
    must(pair_wait(&desk->pair, &client, 20), "close: client");
    must(weft_service_close(desk->service, &service), "weft_service_close");
    must(pair_wait(&desk->pair, &service, 20), "close: service");
    pair_close(&desk->pair);
}

void desk_add(desk_t *desk, const char *signature, weft_function_fn fn, void *user)
{
    must(weft_service_add(desk->service, signature, fn, user, NULL), "weft_service_add");
}

weft_method_t *desk_method(desk_t *desk, const char *signature)
{
    weft_method_t *method = NULL;
    must(weft_client_method(desk->client, signature, &method), "weft_client_method");
    return method;
}

weft_status_t desk_call_with(desk_t *desk, weft_method_t *method, const weft_value_t *args, size_t n,
                             const weft_call_opts_t *opts, uint64_t timeout_ns)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_release(&desk->reply);
    desk->reply = (weft_reply_t)WEFT_REPLY_INIT;
    op.timeout_ns = timeout_ns;
    weft_status_t st = weft_call_with(method, args, n, opts, &desk->reply, &op);
    return st ? st : pair_wait(&desk->pair, &op, 30);
}

weft_status_t desk_call(desk_t *desk, weft_method_t *method, const weft_value_t *args, size_t n)
{
    return desk_call_with(desk, method, args, n, NULL, 0);
}

void desk_adds(weft_request_t *request, void *user)
{
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    if (user)
        atomic_fetch_add((_Atomic unsigned *)user, 1);
    weft_request_reply(request, &sum, 1);
}

void desk_echoes(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, request->args, request->n);
}
