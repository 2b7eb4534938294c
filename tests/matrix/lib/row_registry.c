/* tests/matrix/lib/row_registry.c - rows of weft/registry.h. */
#include "row.h"

ROW(weft_registry_open, ON_RUNTIME)
{
    weft_registry_t *registry;
    if (turn_status(t, weft_registry_open(s->rt, "memory://row", NULL, &registry)))
        weft_registry_close(registry, NULL);
}

ROW(weft_registry_close, NEEDS_REGISTRY)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_registry_close(s->registry, op), op);
}

ROW(weft_registry_name, NEEDS_REGISTRY)
{
    turn_text(t, weft_registry_name(s->registry));
}

ROW(weft_registry_state, NEEDS_REGISTRY | READS)
{
    turn_status(t, weft_registry_state(s->registry));
}

ROW(weft_registry_enter, NEEDS_REGISTRY)
{
    weft_op_t *op = turn_op(t);
    weft_entry_t entry = WEFT_ENTRY_INIT;
    entry.service = "row";
    entry.address = "tcp://127.0.0.1:1";
    turn_posted(t, weft_registry_enter(s->registry, &entry, op), op);
}

ROW(weft_registry_leave, NEEDS_REGISTRY)
{
    weft_op_t *op = turn_op(t);
    turn_allow_in(t, WHILE_CLOSING, WEFT_ERR_NOTFOUND); /* the first turn has left */
    turn_posted(t, weft_registry_leave(s->registry, "matrix", NULL, op), op);
}

static void found(const weft_entry_t *entry, void *user)
{
    turn_text((turn_t *)user, entry->service);
}

ROW(weft_registry_find, NEEDS_REGISTRY)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_registry_find(s->registry, NULL, found, t, op), op);
}

static void saw(weft_change_t change, const weft_entry_t *entry, void *user)
{
    (void)change;
    (void)entry;
    (void)user;
}

ROW(weft_registry_watch, NEEDS_REGISTRY)
{
    weft_watch_t *watch;
    if (turn_status(t, weft_registry_watch(s->registry, NULL, saw, NULL, &watch))) {
        weft_op_t *op = turn_op(t); /* the turn waits for it: whoever makes watches in a loop has them one at a time */
        turn_allow(t, WEFT_ERR_CLOSED);
        turn_posted(t, weft_watch_end(watch, op), op);
    }
}

ROW(weft_watch_end, NEEDS_WATCH)
{
    weft_op_t *op = turn_op(t);
    turn_posted(t, weft_watch_end(s->watch, op), op);
}
