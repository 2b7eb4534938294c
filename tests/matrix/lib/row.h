/* tests/matrix/lib/row.h - a row of the matrix: one public function, and how it is called; and a turn: one such call, in one
 * place.
 *
 *     ROW(weft_msg_send, NEEDS_EP)
 *     {
 *         weft_op_t *op = turn_op(t);
 *         turn_posted(t, weft_msg_send(s->ep, "x", 1, 7, op), op);
 *     }
 *
 * `s` is the side of the world that the function is called on, `t` the turn. A row does not know where it is called from: the
 * turn does, and knows from that which statuses are right. A row may be called again and again, and by two threads at the same
 * time. */
#ifndef WEFT_TEST_ROW_H
#define WEFT_TEST_ROW_H

#include "world.h"

/* --- rows ----------------------------------------------------------------------------------------------------------------- */

/* Beside the needs (world.h): */
#define ON_RUNTIME (UINT64_C(1) << 56) /* it takes a runtime, and no object that could be closed before it */
#define ON_NOTHING (UINT64_C(1) << 57) /* it takes neither, and works everywhere */
#define WAITS      (UINT64_C(1) << 58) /* it waits, and so is not allowed inside callbacks */
#define ENDS       (UINT64_C(1) << 59) /* the side's runtime is closed after it */
#define FREES      (UINT64_C(1) << 60) /* it gives memory back that outlives its runtime: it may do so after that was closed */
#define HELD       (UINT64_C(1) << 61) /* it takes something that is counted, or released by one call: not used after the last */
#define ONCE       ((UINT64_C(1) << 62) | HELD) /* it lets go of that: the row takes it from the side first */
#define READS      (UINT64_C(1) << 63) /* it only reads memory: in a forked child it may answer */

typedef struct turn turn_t;
typedef struct row {
    const char *name;
    uint64_t needs;
    void (*run)(turn_t *t, side_t *s);
    struct row *next;
} row_t;

extern row_t *rows; /* all of them */
void row_add(row_t *row);

#define ROW(function, what) \
    static void run_##function(turn_t *t, side_t *s); \
    static row_t row_##function = {#function, (what), run_##function, NULL}; \
    __attribute__((constructor)) static void add_##function(void) { row_add(&row_##function); } \
    static void run_##function(turn_t *t __attribute__((unused)), side_t *s __attribute__((unused)))

/* A public function, as functions.py finds it in the headers. */
typedef struct function {
    const char *name;
    const char *header;
    bool called; /* by the row of its name */
} function_t;
extern const function_t functions[];
extern const size_t functions_n;

/* --- turns ---------------------------------------------------------------------------------------------------------------- */

typedef enum where {
    FROM_OUTSIDE,  /* from a thread that is in no callback: everything works */
    FROM_ITS_OWN,  /* from a callback of the same runtime: everything works but what waits, which is WEFT_ERR_STATE */
    FROM_ANOTHERS, /* from a callback of another runtime: the same, and what has to ask the driver may be WEFT_ERR_STATE, too */
    WHILE_CLOSING, /* from a thread beside the one that closes the runtime: it works, or is WEFT_ERR_CLOSED */
    AFTER_OBJECT,  /* on an object that is closed: WEFT_ERR_CLOSED */
    AFTER_ENDPOINT, /* on an object whose endpoint is closed: it works, or is WEFT_ERR_CLOSED */
    AFTER_RUNTIME, /* on a runtime that is closed, or an object of it: WEFT_ERR_CLOSED */
    IN_CHILD       /* in a forked child: WEFT_ERR_FORKED, or an answer of what only reads */
} where_t;

/* Begin a turn; call the row; wait for what it posted, at most TURN_SECONDS; say what was wrong, "" if nothing was. */
turn_t *turn_begin(where_t where, const row_t *row, side_t *s);
void turn_call(turn_t *t);
const char *turn_end(turn_t *t);

/* What is called on is closed, or may be. */
bool turn_on_closed(const turn_t *t);

/* An operation, and n bytes that are zero; both are good until the turn is over. */
weft_op_t *turn_op(turn_t *t);
void *turn_room(turn_t *t, size_t n);
/* A timer that runs: an operation to do something with. NULL: it could not be started. */
weft_op_t *turn_timer(turn_t *t, uint64_t delay_ns);
/* How long a wait may take: for ever, except from outside, where nobody ends it. */
uint64_t turn_patience(turn_t *t);

/* Look whether a status is right here. True for WEFT_OK. */
bool turn_status(turn_t *t, weft_status_t st);
/* The same for a post, and whether what becomes of it is right, too. True: it was posted. */
bool turn_posted(turn_t *t, weft_status_t st, weft_op_t *op);
/* The same for one that nothing completes: it is cancelled in the end, or ended by the runtime that closes. */
bool turn_lasts(turn_t *t, weft_status_t st, weft_op_t *op);
/* From here on in this turn, this one is right as well. */
void turn_allow(turn_t *t, weft_status_t st);
/* The same if the turn is there. */
void turn_allow_in(turn_t *t, where_t where, weft_status_t st);
/* Text that the library gave: NULL, or it can be read. */
void turn_text(turn_t *t, const char *text);

/* When everything is complete, outside of callbacks: get rid of what this turn made; of what the operation made (its buf), if
 * it succeeded. */
void turn_after(turn_t *t, void (*fn)(void *), void *made);
void turn_then(turn_t *t, weft_op_t *op, void (*fn)(void *));

#endif
