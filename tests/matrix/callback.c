/* Every public function, called from a callback of its own runtime: it works, or says WEFT_ERR_STATE because it would wait.
 * ctest: long computes label=thread */
#define TEST_SECONDS 800
#include "cell.h"
#include "test.h"

typedef struct visit {
    turn_t *turn;
    _Atomic bool over;
} visit_t;

static void visits(visit_t *v)
{
    turn_call(v->turn);
    atomic_store(&v->over, true);
}

static bool is_over(void *arg)
{
    return atomic_load(&((visit_t *)arg)->over);
}

static void end(world_t *w, visit_t *v)
{
    world_until(w, is_over, v, "the end of the callback");
    cell_right(turn_end(v->turn));
    world_close_runtime(&w->side[0]);
    world_close_runtime(&w->side[1]);
}

/* --- a completion --------------------------------------------------------------------------------------------------------- */

static void complete(weft_op_t *op, void *user)
{
    (void)op;
    visits((visit_t *)user);
}

static void in_completion(const row_t *row, const way_t *way)
{
    static world_t w;
    static visit_t v;
    static weft_op_t op;
    world_open(&w, way->mode, way->transports, row->needs);
    v.turn = turn_begin(FROM_ITS_OWN, row, &w.side[0]);
    op.fn = complete;
    op.user = &v;
    if (weft_timer_start(w.side[0].rt, 0, &op))
        cell_right("no timer");
    end(&w, &v);
}

TEST(from_a_completion_of_a_runtime_that_a_caller_drives)
{
    cells_run("a completion", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, in_completion);
}

TEST(from_a_completion_of_a_runtime_that_a_thread_drives)
{
    cells_run("a completion", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, in_completion);
}

/* --- a handler: the fabric below it is in the middle of a lane ------------------------------------------------------------ */

enum { ID = 777 };

static void handle(weft_am_t *am, void *user)
{
    (void)am;
    visits((visit_t *)user);
}

static void in_handler(const row_t *row, const way_t *way)
{
    static world_t w;
    static visit_t v;
    weft_op_t set = WEFT_OP_INIT, sent = WEFT_OP_INIT;
    world_open(&w, way->mode, way->transports, row->needs | NEEDS_EP);
    v.turn = turn_begin(FROM_ITS_OWN, row, &w.side[0]);
    if (weft_am_handle(w.side[0].rt, ID, handle, &v, &set))
        cell_right("no handler");
    world_wait(&w, &set, "setting a handler");
    if (weft_am_send(w.side[1].ep, ID, "h", 1, "x", 1, &sent))
        cell_right("no message");
    world_wait(&w, &sent, "sending to a handler");
    end(&w, &v);
}

TEST(from_a_handler_of_a_runtime_that_a_caller_drives)
{
    cells_run("a handler", &(way_t){WEFT_PROGRESS_CALLER, "tcp"}, 0, in_handler);
}

TEST(from_a_handler_of_a_runtime_that_a_thread_drives)
{
    cells_run("a handler", &(way_t){WEFT_PROGRESS_THREAD, "shm"}, 0, in_handler);
}
