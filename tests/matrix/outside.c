/* Every public function, called from a thread that is in no callback: it works. So the rows do what they say, and what goes
 * wrong with them elsewhere is not their own fault. ctest: long computes label=thread */
#define TEST_SECONDS 800
#include "cell.h"
#include "test.h"

static void outside(const row_t *row, const way_t *way)
{
    static world_t w;
    world_open(&w, way->mode, way->transports, row->needs);
    driver_t *d = driver_start(&w.side[1], NULL);
    cell_turn(FROM_OUTSIDE, row, &w.side[0]);
    driver_stop(d);
    if (row->needs & ENDS)
        w.side[0].rt = NULL;
    world_close_runtime(&w.side[0]);
    world_close_runtime(&w.side[1]);
}

TEST(with_runtimes_that_callers_drive)
{
    cells_run("no callback", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, outside);
}

TEST(with_runtimes_that_threads_drive)
{
    cells_run("no callback", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, outside);
}
