/* tests/matrix/lib/row_service.c - rows of weft/service.h. */
#include <stdio.h>

#include "row.h"

enum { FETCHED = 1 << 17 };

/* Names that no other turn has. */
static const char *new_name(turn_t *t, const char *format)
{
    static _Atomic unsigned names;
    char *name = (char *)turn_room(t, 64);
    snprintf(name, 64, format, atomic_fetch_add(&names, 1));
    return name;
}

ROW(weft_service_open, ON_RUNTIME)
{
    weft_service_t *service;
    if (turn_status(t, weft_service_open(s->rt, new_name(t, "row-%u"), NULL, &service)))
        weft_service_close(service, NULL);
}

ROW(weft_service_name, NEEDS_SERVICE)
{
    turn_text(t, weft_service_name(s->service));
}

ROW(weft_service_instance, NEEDS_SERVICE)
{
    turn_text(t, weft_service_instance(s->service));
}

ROW(weft_service_drain, NEEDS_SERVICE)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_service_drain(s->service, op), op);
}

ROW(weft_service_close, NEEDS_SERVICE)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_service_close(s->service, op), op);
}

ROW(weft_service_publish, NEEDS_SERVICE | NEEDS_REGISTRY | NEEDS_LISTENER)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* it is published once */
    turn_status(t, weft_service_publish(s->service, s->registry, NULL));
}

ROW(weft_service_get_stats, NEEDS_SERVICE | READS)
{
    weft_service_stats_t stats = WEFT_SERVICE_STATS_INIT;
    turn_status(t, weft_service_get_stats(s->service, &stats));
}

static void answers(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, NULL, 0);
}

ROW(weft_service_add, NEEDS_SERVICE)
{
    turn_status(t, weft_service_add(s->service, new_name(t, "row%u() -> void"), answers, NULL, NULL));
}

ROW(weft_service_remove, NEEDS_SERVICE)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_NOTFOUND); /* the first turn has taken it */
    turn_posted(t, weft_service_remove(s->service, "tell", op), op);
}

ROW(weft_service_functions, NEEDS_SERVICE)
{
    char buf[1024];
    weft_service_functions(s->service, buf, sizeof buf);
}

/* --- requests ------------------------------------------------------------------------------------------------------------- */

/* A request is answered once, and once its caller is gone nobody waits for the answer. */
static void answered_once(turn_t *t)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_CANCELLED);
    turn_allow_in(t, AFTER_ENDPOINT, WEFT_ERR_CANCELLED);
    turn_allow_in(t, AFTER_RUNTIME, WEFT_ERR_CANCELLED);
}

ROW(weft_request_keep, NEEDS_REQUEST | HELD)
{
    weft_request_keep(s->request);
}

ROW(weft_request_release, NEEDS_REQUEST | ONCE)
{
    weft_request_release(atomic_exchange(&s->request, NULL));
}

ROW(weft_request_reply, NEEDS_REQUEST | HELD)
{
    weft_value_t value = weft_i32(42);
    answered_once(t);
    turn_status(t, weft_request_reply(s->request, &value, 1));
}

ROW(weft_request_reply_from, NEEDS_REQUEST | HELD)
{
    weft_op_t *op = turn_op(t);
    weft_value_t value = weft_i32(42);
    answered_once(t);
    turn_posted(t, weft_request_reply_from(s->request, &value, 1, op), op);
}

ROW(weft_request_fail, NEEDS_REQUEST | HELD)
{
    answered_once(t);
    turn_status(t, weft_request_fail(s->request, WEFT_CODE_ABORTED, "as planned"));
}

ROW(weft_request_fail_with, NEEDS_REQUEST | HELD)
{
    answered_once(t);
    turn_status(t, weft_request_fail_with(s->request, WEFT_CODE_ABORTED, WEFT_CATEGORY_USER, 1, "as planned"));
}

ROW(weft_request_identity, NEEDS_REQUEST | HELD)
{
    char name[64];
    weft_request_identity(s->request, name, sizeof name);
}

ROW(weft_request_cancelled, NEEDS_REQUEST | HELD)
{
    weft_request_cancelled(s->request);
}

static void cancelled(weft_request_t *request, void *user)
{
    (void)request;
    (void)user;
}

ROW(weft_request_on_cancel, NEEDS_REQUEST | HELD)
{
    weft_request_on_cancel(s->request, cancelled, NULL);
}

ROW(weft_request_fetch, NEEDS_REQUEST | HELD)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* it is fetched once, and not when it was answered */
    turn_allow_in(t, AFTER_ENDPOINT, WEFT_ERR_STATE);
    turn_posted(t, weft_request_fetch(s->request, turn_room(t, FETCHED), FETCHED, NULL, op), op);
}
