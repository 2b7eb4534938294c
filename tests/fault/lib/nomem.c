/* tests/fault/lib/nomem.c - see nomem.h. */
#include "nomem.h"

#include "base/alloc.h"
#include "must.h"

static long countdown; /* allocations until one fails; negative: none */
static long failures_left;
static bool hit;

static int fails(size_t n)
{
    (void)n;
    if (countdown < 0)
        return 0;
    if (countdown > 0) {
        countdown--;
        return 0;
    }
    hit = true;
    if (--failures_left <= 0)
        countdown = -1;
    return 1;
}

void nomem_at(long at, long times)
{
    countdown = at;
    failures_left = times;
    hit = false;
    wefti_alloc_fails = fails;
}

void nomem_off(void)
{
    countdown = -1;
    wefti_alloc_fails = NULL;
}

bool nomem_still_ahead(void)
{
    return countdown >= 0 && !hit;
}

weft_status_t nomem_end(weft_status_t posted, weft_op_t *op, void (*drive)(void))
{
    double end = now() + 20;
    if (posted)
        return posted;
    while (!weft_op_done(op)) {
        drive();
        if (now() > end) {
            nomem_off();
            must(WEFT_ERR_TIMEOUT, "an operation, to its end");
        }
    }
    return op->status;
}
