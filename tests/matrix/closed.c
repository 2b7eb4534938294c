/* Every public function, called with what was closed: it says WEFT_ERR_CLOSED, or nothing, and touches nothing that is gone.
 * ctest: long computes label=thread */
#define TEST_SECONDS 800
#include "cell.h"
#include "test.h"

/* What is made on an endpoint. */
enum {
    NEEDS_ON_EP = NEEDS_MSG | NEEDS_AM | NEEDS_REMOTE | NEEDS_CLIENT | NEEDS_REQUEST | NEEDS_STREAM | NEEDS_STORE | NEEDS_BLOCK |
                  NEEDS_MIRROR
};

static void close_both(world_t *w)
{
    world_close_runtime(&w->side[0]);
    world_close_runtime(&w->side[1]);
}

/* --- the object is closed: not for what is counted or released, which is gone then ---------------------------------------- */

static void after_its_object(const row_t *row, const way_t *way)
{
    static world_t w;
    world_open(&w, way->mode, way->transports, row->needs);
    world_close_objects(&w.side[0]);
    cell_turn(AFTER_OBJECT, row, &w.side[0]);
    close_both(&w);
}

TEST(an_object_of_a_runtime_that_a_caller_drives)
{
    cells_run("a closed object", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, ON_RUNTIME | ON_NOTHING | HELD, after_its_object);
}

TEST(an_object_of_a_runtime_that_a_thread_drives)
{
    cells_run("a closed object", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, ON_RUNTIME | ON_NOTHING | HELD, after_its_object);
}

/* --- the endpoint below the object is closed ------------------------------------------------------------------------------ */

static void after_its_endpoint(const row_t *row, const way_t *way)
{
    static world_t w;
    if (!(row->needs & NEEDS_ON_EP))
        return;
    world_open(&w, way->mode, way->transports, row->needs);
    world_close_endpoint(&w.side[0]);
    cell_turn(AFTER_ENDPOINT, row, &w.side[0]);
    close_both(&w);
}

TEST(the_endpoint_below_an_object)
{
    cells_run("a closed endpoint", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, ON_RUNTIME | ON_NOTHING, after_its_endpoint);
}

/* --- the runtime is closed ------------------------------------------------------------------------------------------------ */

static void after_its_runtime(const row_t *row, const way_t *way)
{
    static world_t w;
    world_open(&w, way->mode, way->transports, row->needs);
    world_close_runtime(&w.side[0]);
    cell_turn(AFTER_RUNTIME, row, &w.side[0]);
    world_close_runtime(&w.side[1]);
}

TEST(a_runtime_that_a_caller_drove)
{
    cells_run("a closed runtime", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, after_its_runtime);
}

TEST(a_runtime_that_a_thread_drove)
{
    cells_run("a closed runtime", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, after_its_runtime);
}
