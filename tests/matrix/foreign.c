/* Every public function, called from a callback of another runtime: it works, or says WEFT_ERR_STATE. Both runtimes are in a
 * callback at the same time and call each other's: whoever waits for the other's driver waits for ever. ctest: long computes
 * label=thread */
#define TEST_SECONDS 800
#include "cell.h"
#include "test.h"

enum { MEET_SECONDS = 10 };

static _Atomic int inside, over;

static void complete(weft_op_t *op, void *user)
{
    (void)op;
    double end = test_now() + MEET_SECONDS;
    atomic_fetch_add(&inside, 1);
    while (atomic_load(&inside) < 2 && test_now() < end)
        usleep(20);
    turn_call((turn_t *)user);
    atomic_fetch_add(&over, 1);
}

static bool both_are_over(void *arg)
{
    (void)arg;
    return atomic_load(&over) == 2;
}

static turn_t *begin(const row_t *row, side_t *on, weft_op_t *op)
{
    turn_t *turn = turn_begin(FROM_ANOTHERS, row, on);
    op->fn = complete;
    op->user = turn;
    if (weft_timer_start(on->other->rt, 0, op))
        cell_right("no timer");
    return turn;
}

static void close_both(world_t *w)
{
    world_close_runtime(&w->side[0]);
    world_close_runtime(&w->side[1]);
}

static void at_the_same_time(const row_t *row, const way_t *way)
{
    static world_t w;
    static weft_op_t ops[2];
    turn_t *turns[2];
    driver_t *drivers[2];
    world_open(&w, way->mode, way->transports, row->needs);
    for (int i = 0; i < 2; i++)
        turns[i] = begin(row, &w.side[i], &ops[i]);
    for (int i = 0; i < 2; i++)
        drivers[i] = driver_start(&w.side[i], NULL);
    world_until(&w, both_are_over, NULL, "the end of both callbacks");
    for (int i = 0; i < 2; i++)
        cell_right(turn_end(turns[i]));
    for (int i = 0; i < 2; i++)
        driver_stop(drivers[i]);
    close_both(&w);
}

TEST(of_two_runtimes_that_callers_drive)
{
    cells_run("each other's callbacks", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, at_the_same_time);
}

TEST(of_two_runtimes_that_threads_drive)
{
    cells_run("each other's callbacks", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, at_the_same_time);
}

/* One thread drives both, so that nobody drives the other one meanwhile. */
static void on_an_idle_one(const row_t *row, const way_t *way)
{
    static world_t w;
    static weft_op_t op;
    world_open(&w, way->mode, way->transports, row->needs);
    atomic_store(&inside, 1);
    atomic_store(&over, 1);
    turn_t *turn = begin(row, &w.side[0], &op);
    w.side[0].drive = false;
    world_until(&w, both_are_over, NULL, "the end of the callback");
    w.side[0].drive = true;
    cell_right(turn_end(turn));
    close_both(&w);
}

TEST(of_a_runtime_that_nobody_drives_just_now)
{
    cells_run("a callback of another's", &(way_t){WEFT_PROGRESS_CALLER, "tcp"}, 0, on_an_idle_one);
}
