/* element/replicas_io.c - operations on a mirror that may be closed and opened again meanwhile.
 *
 *     HELD --the mirror is open, and to write if it is a write--> MOVING --done--> ended
 *       ^-----the mirror ended: fenced, closed, its members lost-----/
 *
 * A write may be carried out again: it has not completed, so nobody knows whether it happened before. A batch is a number of ios
 * of its own, some at a time.
 *
 * Promise: what ends with WEFT_OK was done by a mirror that was whole. tests/fault/element_replicas.c. */
#include "element/replicas.h"

enum { FLIGHT = 64 /* of one batch */, TRIES = 100 };

static void hold(replicas_t *r, element_io_t *io)
{
    io->state = IO_HELD;
    wefti_list_push_back(&r->held, &io->held);
    r->held_writes += io->what == IO_WRITE;
}

static void unhold(replicas_t *r, element_io_t *io)
{
    wefti_list_remove(&io->held);
    r->held_writes -= io->what == IO_WRITE;
}

/* --- one read or write  ----------------------------------------------------------------------------------------------- */

/* Might it succeed on another mirror? */
static bool not_its_fault(weft_status_t st)
{
    return st == WEFT_ERR_STALE || st == WEFT_ERR_CLOSED || st == WEFT_ERR_CANCELLED || st == WEFT_ERR_RIGHTS ||
           st == WEFT_ERR_PEER;
}

static void again_or_end(replicas_t *r, element_io_t *io, weft_status_t st)
{
    element_route_t *route = &r->route;
    if (!st || io->why || !not_its_fault(st) || route->over || ++io->tries > TRIES) {
        wefti_io_end(io, wefti_io_status(io, st));
        return;
    }
    wefti_replicas_break(r, st);
    hold(r, io);
}

static void moved(weft_op_t *inner, void *user)
{
    element_io_t *io = (element_io_t *)user;
    replicas_t *r = replicas_of(io->route);
    element_route_t *route = &r->route;
    weft_status_t st = inner->status;
    if (io->what == IO_ALLOC && wefti_lease_again(io))
        return;
    if (io->what == IO_WRITE) {
        r->flying_writes--;
        r->wrote_at = weft_now(io->t->rt);
    }
    if (io->op) {
        io->op->len = inner->len;
        if (io->what == IO_ALLOC)
            io->op->buf = st ? NULL : inner->buf;
    }
    wefti_route_ref(route);
    element_end(io->t->es);
    if (io->what == IO_ALLOC)
        wefti_io_end(io, wefti_io_status(io, st));
    else
        again_or_end(r, io, st);
    wefti_replicas_count(r);
    wefti_replicas_turn(r);
    wefti_route_unref(route);
}

static void post(replicas_t *r, element_io_t *io)
{
    uint8_t *at = io->own ? io->own : io->buf->base + io->offset;
    bool write = io->what == IO_WRITE;
    wefti_io_inner(io, moved);
    weft_status_t st = write ? weft_mirror_write(r->mirror, io->addr, at, io->size, &io->inner)
                             : weft_mirror_read(r->mirror, io->addr, at, io->size, &io->inner);
    if (st) {
        element_end(io->t->es);
        again_or_end(r, io, st);
        return;
    }
    r->flying_writes += write;
}

void wefti_replicas_held(replicas_t *r, weft_status_t why)
{
    wefti_list_t all;
    wefti_list_init(&all);
    wefti_list_splice(&all, &r->held);
    for (wefti_list_t *l; (l = wefti_list_first(&all));) {
        element_io_t *io = wefti_container_of(l, element_io_t, held);
        bool can = r->phase == MIRROR_OPEN && !r->broken && (io->what == IO_READ || r->writes);
        unhold(r, io);
        if (why)
            wefti_io_end(io, wefti_io_status(io, why));
        else if (can)
            post(r, io);
        else
            hold(r, io);
    }
}

/* --- batches  --------------------------------------------------------------------------------------------------------- */

static void batch_step(replicas_t *r, element_io_t *batch);

void wefti_io_child_ended(element_io_t *batch, size_t item, weft_status_t st)
{
    batch->items[item].status = st;
    batch->ok += !st;
    batch->left--;
    if (!batch->stepping)
        batch_step(replicas_of(batch->route), batch);
}

static bool begin_child(replicas_t *r, element_io_t *batch)
{
    size_t i = batch->at;
    element_io_t *io = wefti_io_child(batch, i);
    if (!io) {
        batch->items[i].status = WEFT_ERR_NOMEM;
        return false;
    }
    batch->left++;
    io->route = batch->route;
    wefti_route_ref(io->route);
    io->route->n_ios++;
    wefti_replicas_move(&r->route, io);
    return true;
}

static void batch_step(replicas_t *r, element_io_t *batch)
{
    batch->stepping = true;
    for (; batch->at < batch->n && batch->left < FLIGHT && !batch->why; batch->at++)
        (void)begin_child(r, batch);
    batch->stepping = false;
    if (batch->left)
        return;
    weft_status_t st = batch->why;
    for (size_t i = 0; i < batch->n && !st; i++)
        st = batch->items[i].status;
    batch->op->len = batch->ok;
    wefti_io_end(batch, st);
}

/* --- as a route  ------------------------------------------------------------------------------------------------------ */

static void alloc(replicas_t *r, element_io_t *io)
{
    each_member(m, r)
    {
        if (m->state != MEMBER_UP)
            continue;
        wefti_lease_alloc(&m->leases, m->ep, io, moved);
        return;
    }
    wefti_io_end(io, wefti_io_status(io, WEFT_ERR_PEER));
}

void wefti_replicas_move(element_route_t *route, element_io_t *io)
{
    replicas_t *r = replicas_of(route);
    if (route->over) {
        wefti_io_end(io, wefti_io_status(io, route->why));
        return;
    }
    switch (io->what) {
    case IO_READ:
    case IO_WRITE:
        if (io->addr > route->len || io->size > route->len - io->addr) {
            wefti_io_end(io, WEFT_ERR_RANGE);
            return;
        }
        hold(r, io);
        if (r->phase == MIRROR_OPEN)
            wefti_replicas_turn(r);
        break;
    case IO_BATCH:
        batch_step(r, io);
        break;
    case IO_READY:
        io->op->len = route->len;
        wefti_io_end(io, WEFT_OK);
        break;
    case IO_ALLOC:
        alloc(r, io);
        break;
    default:
        wefti_io_end(io, WEFT_ERR_UNSUPPORTED);
    }
}

void wefti_replicas_stop(element_route_t *route, element_io_t *io)
{
    replicas_t *r = replicas_of(route);
    if (io->what == IO_BATCH) {
        wefti_list_t all;
        wefti_list_init(&all);
        wefti_list_splice(&all, &io->children);
        io->stepping = true;
        for (wefti_list_t *l; (l = wefti_list_pop(&all));) { /* one may end others */
            element_io_t *child = wefti_container_of(l, element_io_t, link);
            wefti_list_push_back(&io->children, l);
            child->why = io->why;
            wefti_replicas_stop(route, child);
        }
        batch_step(r, io);
    } else if (io->state == IO_HELD) {
        unhold(r, io);
        wefti_io_end(io, io->why);
    } else {
        weft_op_cancel(&io->inner);
    }
}
