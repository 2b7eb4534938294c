/* tests/matrix/lib/null.h - calls of the public functions with NULL for what they take, as nulls.py makes them of the headers. */
#ifndef WEFT_TEST_NULL_H
#define WEFT_TEST_NULL_H

#include <stdlib.h>

#include "row.h"

enum { NULL_ALL = -1 };

typedef struct null {
    const char *name;
    bool says;         /* it returns a status */
    uint32_t pointers; /* a bit for each parameter that is one */
    /* Call it with NULL for this parameter, or NULL_ALL. What it was called with is never freed. */
    weft_status_t (*call)(side_t *s, int null);
} null_t;
extern const null_t nulls[]; /* those that take a pointer */
extern const size_t nulls_n;

/* What may pass for something a function is called with. */
static inline weft_status_t nothing_at_all(void) { return WEFT_OK; }
#define nothing (void (*)(void)) nothing_at_all

static inline void *some_room(size_t size)
{
    size_t *room = (size_t *)calloc(1, 65536);
    if (!room)
        abort();
    *room = size;
    return room;
}
static inline weft_op_t **some_ops(void)
{
    weft_op_t **ops = (weft_op_t **)some_room(0);
    *ops = (weft_op_t *)some_room(0);
    return ops;
}
static inline weft_value_t *some_args(void)
{
    weft_value_t *args = (weft_value_t *)some_room(0);
    args[0].type = args[1].type = WEFT_T_I32;
    return args;
}
static inline weft_function_t *some_function(void)
{
    weft_function_t *function = (weft_function_t *)some_room(0);
    function->signature = "add(a: i32, b: i32) -> i32";
    return function;
}

#endif
