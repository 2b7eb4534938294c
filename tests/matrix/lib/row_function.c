/* tests/matrix/lib/row_function.c - rows of weft/function.h. */
#include "row.h"

static weft_function_t add = {.signature = "add(a: i32, b: i32) -> i32"};
static weft_function_t own = {.signature = "own() -> void"};

ROW(weft_function_method, NEEDS_CLIENT)
{
    weft_method_t *method;
    turn_status(t, weft_function_method(s->client, &add, &method));
}

static void answers(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, NULL, 0);
}

static void nothing(void)
{
}

ROW(weft_function_serve, NEEDS_SERVICE)
{
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_STATE); /* it is there already */
    turn_status(t, weft_function_serve(s->service, &own, answers, nothing, NULL, NULL));
}
