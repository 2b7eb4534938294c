/* examples/operations/operations.c - deadlines, cancellation, callbacks, queues, groups and chains, shown on timers: everything
 * that takes time is an operation, so what works on a timer works on a send. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static weft_runtime_t *rt;

static void deadline(void)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = 10 * WEFT_MILLISECOND;
    MUST(weft_timer_start(rt, 3600 * WEFT_SECOND, &op));
    printf("deadline: %s\n", weft_status_name(weft_op_wait(&op, WEFT_FOREVER)));
}

static void on_done(weft_op_t *op, void *user)
{
    *(int *)user += 1;
    printf("callback: %s\n", weft_status_name(op->status));
}

static void callback(void)
{
    int calls = 0;
    weft_op_t op = WEFT_OP_INIT;
    op.fn = on_done;
    op.user = &calls;
    MUST(weft_timer_start(rt, WEFT_MILLISECOND, &op));
    while (!calls)
        weft_runtime_progress(rt);
}

static void token(void)
{
    weft_token_t *all, *some;
    weft_op_t a = WEFT_OP_INIT, b = WEFT_OP_INIT;
    weft_op_t *both[2] = {&a, &b};
    MUST(weft_token_new(rt, NULL, &all));
    MUST(weft_token_new(rt, all, &some)); /* cancelled together with its parent */
    a.token = all;
    b.token = some;
    MUST(weft_timer_start(rt, 3600 * WEFT_SECOND, &a));
    MUST(weft_timer_start(rt, 3600 * WEFT_SECOND, &b));
    weft_token_cancel(all);
    printf("token: %s\n", weft_status_name(weft_op_wait_all(both, 2, WEFT_SECOND)));
    weft_token_drop(some);
    weft_token_drop(all);
}

static void queue(void)
{
    enum { N = 5 };
    weft_queue_t *q;
    weft_op_t ops[N], *done[N];
    size_t got = 0;
    MUST(weft_queue_new(rt, &q));
    for (int i = 0; i < N; i++) {
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        ops[i].queue = q;
        MUST(weft_timer_start(rt, (uint64_t)i * WEFT_MILLISECOND, &ops[i]));
    }
    while (got < N)
        got += weft_queue_pop(q, done + got, N - got, WEFT_SECOND);
    printf("queue: %d completions\n", (int)got);
    MUST(weft_queue_free(q));
}

/* The first of two answers counts, and the other is cancelled. */
static void group(void)
{
    weft_op_t slow = WEFT_OP_INIT, fast = WEFT_OP_INIT, first = WEFT_OP_INIT;
    weft_op_t *members[2] = {&slow, &fast};
    MUST(weft_timer_start(rt, 3600 * WEFT_SECOND, &slow));
    MUST(weft_timer_start(rt, WEFT_MILLISECOND, &fast));
    MUST(weft_group_start(rt, WEFT_GROUP_ANY, members, 2, &first));
    MUST(weft_op_wait(&first, WEFT_SECOND));
    printf("group: member %d won, the other is %s\n", (int)first.winner, weft_status_name(slow.status));
}

int main(void)
{
    MUST(weft_runtime_open(NULL, &rt));
    deadline();
    callback();
    token();
    queue();
    group();
    MUST(weft_runtime_close(rt));
    return 0;
}
