/* tests/matrix/lib/turn.c - see row.h. */
#include <stdlib.h>
#include <string.h>

#include "must.h"
#include "row.h"

enum { TURN_OPS = 8, TURN_ROOMS = 16, TURN_AFTER = 8, TURN_ALLOWED = 8, TURN_SECONDS = 45 };

typedef struct posted {
    weft_op_t *op;
    void (*then)(void *);
    bool lasts;
} posted_t;

typedef struct after {
    void (*fn)(void *);
    void *made;
} after_t;

struct turn {
    where_t where;
    const row_t *row;
    side_t *s;
    posted_t posted[TURN_OPS];
    size_t posted_n;
    void *rooms[TURN_ROOMS];
    size_t rooms_n;
    after_t after[TURN_AFTER];
    size_t after_n;
    weft_status_t allowed[TURN_ALLOWED];
    size_t allowed_n;
    char wrong[512];
};

row_t *rows;

void row_add(row_t *row)
{
    row->next = rows;
    rows = row;
}

/* --- which statuses are right --------------------------------------------------------------------------------------------- */

static bool among(weft_status_t st, const weft_status_t *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i] == st)
            return true;
    }
    return false;
}

/* Of a call; a closing runtime may also have completed an operation with WEFT_ERR_CANCELLED, and its peer is then lost. */
static bool right(const turn_t *t, weft_status_t st, bool completed)
{
    bool waits = t->row->needs & WAITS;
    if (among(st, t->allowed, t->allowed_n))
        return true;
    if (t->row->needs & ON_NOTHING)
        return st == WEFT_OK;
    switch (t->where) {
    case FROM_OUTSIDE:
        return st == WEFT_OK;
    case FROM_ITS_OWN:
        return st == (waits ? WEFT_ERR_STATE : WEFT_OK);
    case FROM_ANOTHERS:
        return st == WEFT_ERR_STATE || (!waits && st == WEFT_OK);
    case WHILE_CLOSING:
        return st == WEFT_OK || st == WEFT_ERR_CLOSED || (completed && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_PEER));
    case AFTER_ENDPOINT:
        return st == WEFT_OK || st == WEFT_ERR_CLOSED;
    case AFTER_OBJECT:
        return st == WEFT_ERR_CLOSED;
    case AFTER_RUNTIME:
        return st == WEFT_ERR_CLOSED || (t->row->needs & FREES && st == WEFT_OK);
    case IN_CHILD:
        return st == WEFT_ERR_FORKED || (t->row->needs & READS && st == WEFT_OK);
    }
    return false;
}

static void look_at(turn_t *t, weft_status_t st, bool completed)
{
    if (!right(t, st, completed) && !*t->wrong)
        snprintf(t->wrong, sizeof t->wrong, "STATUS it %s %s%s%s", completed ? "completed with" : "returned",
                 weft_status_name(st), completed ? "" : ": ", completed ? "" : weft_last_error());
}

void turn_allow(turn_t *t, weft_status_t st)
{
    if (t->allowed_n == TURN_ALLOWED)
        abort();
    t->allowed[t->allowed_n++] = st;
}

void turn_allow_in(turn_t *t, where_t where, weft_status_t st)
{
    if (t->where == where)
        turn_allow(t, st);
}

bool turn_status(turn_t *t, weft_status_t st)
{
    look_at(t, st, false);
    return st == WEFT_OK;
}

void turn_text(turn_t *t, const char *text)
{
    if (text && t->where != WHILE_CLOSING && strlen(text) > 4096) /* while closing it may go as soon as it was given */
        snprintf(t->wrong, sizeof t->wrong, "TEXT of %zu bytes", strlen(text));
}

/* --- what a row posts ----------------------------------------------------------------------------------------------------- */

void *turn_room(turn_t *t, size_t n)
{
    void *room = calloc(1, n);
    if (!room || t->rooms_n == TURN_ROOMS)
        abort();
    t->rooms[t->rooms_n++] = room;
    return room;
}

weft_op_t *turn_op(turn_t *t)
{
    return (weft_op_t *)turn_room(t, sizeof(weft_op_t));
}

bool turn_posted(turn_t *t, weft_status_t st, weft_op_t *op)
{
    look_at(t, st, false);
    if (st)
        return false;
    if (t->posted_n == TURN_OPS)
        abort();
    t->posted[t->posted_n++] = (posted_t){op, NULL, false};
    return true;
}

bool turn_lasts(turn_t *t, weft_status_t st, weft_op_t *op)
{
    bool posted = turn_posted(t, st, op);
    if (posted)
        t->posted[t->posted_n - 1].lasts = true;
    return posted;
}

void turn_then(turn_t *t, weft_op_t *op, void (*fn)(void *))
{
    for (size_t i = 0; i < t->posted_n; i++) {
        if (t->posted[i].op == op)
            t->posted[i].then = fn;
    }
}

void turn_after(turn_t *t, void (*fn)(void *), void *made)
{
    if (t->after_n == TURN_AFTER)
        abort();
    t->after[t->after_n++] = (after_t){fn, made};
}

weft_op_t *turn_timer(turn_t *t, uint64_t delay_ns)
{
    weft_op_t *op = turn_op(t);
    return turn_posted(t, weft_timer_start(t->s->rt, delay_ns, op), op) ? op : NULL;
}

uint64_t turn_patience(turn_t *t)
{
    turn_allow_in(t, FROM_OUTSIDE, WEFT_ERR_TIMEOUT);
    turn_allow_in(t, FROM_OUTSIDE, WEFT_ERR_PENDING);
    return t->where == FROM_OUTSIDE ? WEFT_MILLISECOND : WEFT_FOREVER;
}

bool turn_on_closed(const turn_t *t)
{
    return t->where == AFTER_OBJECT || t->where == AFTER_RUNTIME;
}

/* --- a turn --------------------------------------------------------------------------------------------------------------- */

turn_t *turn_begin(where_t where, const row_t *row, side_t *s)
{
    turn_t *t = (turn_t *)calloc(1, sizeof *t);
    if (!t)
        abort();
    t->where = where;
    t->row = row;
    t->s = s;
    return t;
}

void turn_call(turn_t *t)
{
    t->row->run(t, t->s);
}

static bool all_complete(const turn_t *t)
{
    for (size_t i = 0; i < t->posted_n; i++) {
        if (!weft_op_done(t->posted[i].op))
            return false;
    }
    return true;
}

const char *turn_end(turn_t *t)
{
    static _Thread_local char wrong[sizeof t->wrong];
    double end = now() + TURN_SECONDS;
    for (size_t i = 0; i < t->posted_n && t->where != WHILE_CLOSING; i++) {
        if (t->posted[i].lasts)
            weft_op_cancel(t->posted[i].op);
    }
    while (!all_complete(t) && now() < end)
        world_drive(t->s->w);
    if (!all_complete(t)) { /* what it borrows stays */
        snprintf(wrong, sizeof wrong, "LOST what was posted is not complete after %d s", TURN_SECONDS);
        return wrong;
    }
    for (size_t i = 0; i < t->posted_n; i++) {
        weft_op_t *op = t->posted[i].op;
        if (op->status != WEFT_ERR_CANCELLED || !t->posted[i].lasts)
            look_at(t, op->status, true);
        if (!op->status && t->posted[i].then)
            t->posted[i].then(op->buf);
    }
    for (size_t i = 0; i < t->after_n; i++)
        t->after[i].fn(t->after[i].made);
    for (size_t i = 0; i < t->rooms_n; i++)
        free(t->rooms[i]);
    memcpy(wrong, t->wrong, sizeof wrong);
    free(t);
    return wrong;
}
