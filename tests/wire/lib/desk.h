/* tests/wire/lib/desk.h - a service and a client of it, on the two runtimes of a pair. Everything here ends the test if it
 * fails. */
#ifndef WEFT_TEST_DESK_H
#define WEFT_TEST_DESK_H

#include <weft/service.h>

#include "pair.h"

typedef struct desk {
    pair_t pair;             /* rt[0] serves, rt[1] calls */
    weft_service_t *service; /* "calc" */
    weft_client_t *client;
    weft_reply_t reply;      /* of the last call */
} desk_t;

/* opts may be NULL. */
void desk_open(desk_t *desk, const pair_way_t *way, const weft_service_opts_t *opts);
void desk_close(desk_t *desk);

/* Add a function; find a method. */
void desk_add(desk_t *desk, const char *signature, weft_function_fn fn, void *user);
weft_method_t *desk_method(desk_t *desk, const char *signature);
/* Call and wait: desk->reply has the rest, until the next call or the close. */
weft_status_t desk_call(desk_t *desk, weft_method_t *method, const weft_value_t *args, size_t n);
weft_status_t desk_call_with(desk_t *desk, weft_method_t *method, const weft_value_t *args, size_t n,
                             const weft_call_opts_t *opts,
                             uint64_t timeout_ns);

/* add(a: i32, b: i32) -> i32, as a function; counts in *(_Atomic unsigned *)user if it is not NULL. */
void desk_adds(weft_request_t *request, void *user);
#define DESK_ADD "add(a: i32, b: i32) -> i32"
/* Answers with its arguments. */
void desk_echoes(weft_request_t *request, void *user);

#endif
