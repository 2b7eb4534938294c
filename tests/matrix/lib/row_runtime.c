/* tests/matrix/lib/row_runtime.c - rows of weft/runtime.h. */
#include "row.h"

static void close_runtime(void *rt)
{
    weft_runtime_close((weft_runtime_t *)rt);
}

ROW(weft_runtime_open, ON_NOTHING)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "shm";
    o.progress = WEFT_PROGRESS_CALLER;
    if (turn_status(t, weft_runtime_open(&o, &rt)))
        turn_after(t, close_runtime, rt);
}

ROW(weft_runtime_close, ON_RUNTIME | WAITS | ENDS)
{
    turn_status(t, weft_runtime_close(s->rt));
}

ROW(weft_runtime_progress, ON_RUNTIME)
{
    weft_runtime_progress(s->rt);
}

static void nothing(void *user)
{
    (void)user;
}

ROW(weft_runtime_call, ON_RUNTIME)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_runtime_call(s->rt, nothing, NULL, op), op);
}

/* A runtime with a thread of its own has nothing to poll. */
static void for_loops(turn_t *t, const side_t *s)
{
    if (s->w->mode == WEFT_PROGRESS_THREAD)
        turn_allow(t, WEFT_ERR_STATE);
}

ROW(weft_runtime_fd, ON_RUNTIME)
{
    for_loops(t, s);
    int fd = weft_runtime_fd(s->rt);
    if (fd < 0)
        turn_status(t, (weft_status_t)fd);
}

ROW(weft_runtime_arm, ON_RUNTIME)
{
    for_loops(t, s);
    turn_allow(t, WEFT_ERR_AGAIN);
    turn_allow_in(t, FROM_ITS_OWN, WEFT_ERR_STATE); /* it does not sleep there */
    turn_status(t, weft_runtime_arm(s->rt));
}

ROW(weft_runtime_next_timeout, ON_RUNTIME)
{
    weft_runtime_next_timeout(s->rt);
}

ROW(weft_now, ON_RUNTIME)
{
    weft_now(s->rt);
}

ROW(weft_runtime_name, ON_RUNTIME)
{
    turn_text(t, weft_runtime_name(s->rt));
}

ROW(weft_runtime_get_stats, ON_RUNTIME)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_get_stats(s->rt, &stats);
}

ROW(weft_runtime_shards, ON_RUNTIME)
{
    (void)t;
    (void)weft_runtime_shards(s->rt);
}

ROW(weft_runtime_shard, ON_RUNTIME)
{
    (void)t;
    (void)weft_runtime_shard(s->rt);
}

ROW(weft_runtime_get_shard_stats, ON_RUNTIME)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    turn_allow_in(t, FROM_ANOTHERS, WEFT_ERR_STATE);
    turn_status(t, weft_runtime_get_shard_stats(s->rt, 0, &stats));
}
