/* Every public function, called by two threads again and again while a third closes the runtime, and after that: it works, or
 * says WEFT_ERR_CLOSED, and what was posted is complete in the end. ctest: long computes label=thread */
#define TEST_SECONDS 800
#include <pthread.h>

#include "cell.h"
#include "test.h"

enum { THREADS = 2, TURNS_BEFORE = 2, TURNS_AFTER = 2, HEAD_START_US = 20000 };

typedef struct caller {
    pthread_t thread;
    const row_t *row;
    side_t *side;
    _Atomic unsigned turns;
    char wrong[512];
} caller_t;

static _Atomic bool closed;

static void *calls(void *arg)
{
    caller_t *c = (caller_t *)arg;
    for (unsigned after = 0; after < TURNS_AFTER; after += atomic_load(&closed)) {
        turn_t *t = turn_begin(WHILE_CLOSING, c->row, c->side);
        turn_call(t);
        const char *wrong = turn_end(t);
        if (*wrong && !*c->wrong)
            snprintf(c->wrong, sizeof c->wrong, "%s", wrong);
        atomic_fetch_add(&c->turns, 1);
    }
    return NULL;
}

/* One that waits does not come to an end before the runtime does; one that can be called only once is called while it closes. */
static void head_start(caller_t *callers)
{
    if ((callers[0].row->needs & ONCE) == ONCE)
        return;
    for (int us = 0; us < HEAD_START_US; us += 100) {
        unsigned ready = 0;
        for (int i = 0; i < THREADS; i++)
            ready += atomic_load(&callers[i].turns) >= TURNS_BEFORE;
        if (ready == THREADS)
            return;
        usleep(100);
    }
}

static void while_it_closes(const row_t *row, const way_t *way)
{
    static world_t w;
    static caller_t callers[THREADS];
    world_open(&w, way->mode, way->transports, row->needs);
    driver_t *d = driver_start(&w.side[0], &w.side[1]);
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (caller_t){.row = row, .side = &w.side[0]};
        if (pthread_create(&callers[i].thread, NULL, calls, &callers[i]))
            cell_right("no thread");
    }
    head_start(callers);
    driver_leave(d, &w.side[0]);
    weft_status_t st = weft_runtime_close(w.side[0].rt);
    atomic_store(&closed, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(callers[i].thread, NULL);
    driver_stop(d);
    for (int i = 0; i < THREADS; i++)
        cell_right(callers[i].wrong);
    if (st && !(st == WEFT_ERR_CLOSED && row->needs & ENDS)) {
        fprintf(stderr, "STATUS weft_runtime_close() returned %s: %s\n", weft_status_name(st), weft_last_error());
        cell_right("it is not closed");
    }
    world_close_runtime(&w.side[1]);
}

TEST(a_runtime_that_callers_drive)
{
    cells_run("closing", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, while_it_closes);
}

TEST(a_runtime_that_a_loop_drives)
{
    cells_run("closing", &(way_t){WEFT_PROGRESS_LOOP, "tcp"}, 0, while_it_closes);
}

TEST(a_runtime_that_a_thread_drives)
{
    cells_run("closing", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, while_it_closes);
}
