/* tests/matrix/lib/cell.h - the cells of the matrix: each is a row in one place, and runs in a process of its own, for a
 * limited time.
 *
 * A cell that ends badly is one line, and below it what its process had to say:
 *
 *     HANG weft_x in closing (thread, tcp): no end after 30 s
 *     CRASH weft_x in closing (thread, tcp): killed by signal 11
 *     WRONG weft_x in closing (thread, tcp): STATUS it returned WEFT_ERR_INVALID: ...
 *
 * In the environment: MATRIX=weft_msg_,op.h runs rows with one of these in their names, or of one of these headers, only;
 * MATRIX_SECONDS is the time of a cell; MATRIX_JOBS how many run at one time; MATRIX_REPEAT how often each runs;
 * MATRIX_STACKS=1 shows where the threads of a cell that hangs are (with gdb). */
#ifndef WEFT_TEST_CELL_H
#define WEFT_TEST_CELL_H

#include "row.h"

/* How the runtimes of a cell are driven, and what lies between them. */
typedef struct way {
    weft_progress_mode_t mode;
    const char *transports;
} way_t;

typedef void (*cell_fn)(const row_t *row, const way_t *way);

/* Run a cell for every row that has none of the bits in `not_for`; `place` is for people. Ends the test if one of them failed. */
void cells_run(const char *place, const way_t *way, uint64_t not_for, cell_fn fn);

/* From inside of a cell: end it if there is something wrong ("": there is not). */
void cell_right(const char *wrong);
/* From inside of a cell: call the row from this thread, wait for what it posts; all of it must be right. */
void cell_turn(where_t where, const row_t *row, side_t *s);
/* From inside of a cell, before both runtimes are closed: drive one side, or both, from a thread of its own until it is
 * stopped. */
typedef struct driver driver_t;
driver_t *driver_start(side_t *first, side_t *second);
void driver_stop(driver_t *d);
/* Let go of a side: when it returns the thread does not drive it any more. */
void driver_leave(driver_t *d, side_t *s);

#endif
