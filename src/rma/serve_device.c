/* rma/serve_device.c - requests of peers to a region in device memory, whose device is not waited for: each in its turn.
 *
 *     comes --> WAITS, behind those before it --its turn--> RUNS (the device copies) --> answered
 *         \---------------its turn is now-------------------/
 *
 * A region has one line for all of its peers. The bytes of a write are copied out of the record before anything else, and go
 * to the device from a carry; those of a read come to a carry, and from there into the answer. An atomic comes, is changed
 * here, and goes back. A long read or write begins in its turn, and moves while later ones have theirs, as in host memory.
 *
 * Order. Requests take effect one after the other, as in host memory: their posters rely on it (checked.c). Only reads run
 * beside reads, and writes beside writes that nobody is told of: copies of one way that are as short as these are made in the
 * order in which they were begun (mem/device.h). All else runs alone. So while an atomic is under way no other request touches
 * the region, whoever sent it, and what a notify function sees is what the write left.
 *
 * Without a carry a request waits for those that run. If none does, the device is waited for, as for kinds of memory that the
 * library does not know.
 *
 * Ends. The grant counts each from its coming on, so that a revoke or a free of the region waits for it. One that waits when
 * its grant becomes stale is refused in its turn. When an endpoint goes down, those of its requests that wait are dropped;
 * those that run end with the device, and are not answered. So of peers that are gone a region holds RUN_MAX requests at most,
 * and of one that is there RMA_REQUESTS.
 *
 * Promise: no call waits for a device here while there are carries; each request is answered once, or its lane is gone.
 * tests/wire/rma_turns.c, tests/fault/rma_hostile_cuda.c. */
#include "rma/mapped.h"
#include "rma/serve.h"

#define RUN_MAX 64u /* of a region, at a time: of the WEFTI_CARRIES_MAX that all share */
#define SPARE_MAX 256

typedef struct turn {
    wefti_list_t link;    /* rma_turns_t.waiting, .running */
    wefti_list_t ep_link; /* rma_ep_t.turns */
    weft_ep_t *ep;
    rma_grant_t *grant;
    uint8_t *at;
    rma_todo_t todo;
    uint32_t lane_no;
    bool runs;
    void *bytes;          /* of a write that waits */
    wefti_carry_t *carry; /* while it runs */
    uint64_t before;      /* of an atomic */
} turn_t;

static void advance(weft_region_t *region);

static const rma_request_t *req(const turn_t *t)
{
    return &t->todo.rec.req;
}

static bool tells(const turn_t *t)
{
    return req(t)->kind == REC_NOTIFY || req(t)->what & F_TELL;
}

/* Are there bytes for a carry? */
static bool copies(const turn_t *t)
{
    uint8_t kind = req(t)->kind;
    return req(t)->len &&
           (kind == REC_WRITE || kind == REC_ATOMIC || (kind == REC_READ && wefti_rma_is_short(t->ep, req(t)->len)));
}

/* May it run beside those that run? */
static bool joins(const rma_turns_t *line, const turn_t *t)
{
    wefti_list_t *l = wefti_list_first(&line->running);
    if (!l)
        return true;
    const turn_t *other = wefti_container_of(l, turn_t, link);
    return line->n < RUN_MAX && copies(t) && req(t)->kind != REC_ATOMIC && req(t)->kind == req(other)->kind && !tells(t) &&
           !tells(other);
}

/* --- the end ----------------------------------------------------------------------------------------------------------- */

/* Out of the line. Its endpoint and its grant stay until gone(), which its caller calls, whatever becomes of them meanwhile. */
static void leave_line(turn_t *t)
{
    wefti_list_remove(&t->link);
    t->grant->region->turns.n -= t->runs;
    t->runs = true; /* wefti_rma_turns_down() leaves it alone */
    if (t->lane_no == rma_ep(t->ep)->lane_no)
        rma_ep(t->ep)->n_turns--;
}

/* May free grant and region. */
static void gone(turn_t *t)
{
    weft_ep_t *ep = t->ep;
    rma_grant_t *grant = t->grant;
    if (t->carry)
        wefti_carry_put(ep->rt, t->carry);
    wefti_free(t->bytes);
    wefti_list_remove(&t->ep_link);
    wefti_spares_put(&rma_state(ep->rt)->spare_turns, t, SPARE_MAX);
    wefti_rma_grant_end(grant);
    wefti_ep_drained(ep);
}

/* The device is done with it. */
static void answer(turn_t *t, weft_status_t st)
{
    weft_ep_t *ep = t->ep;
    if (!st && req(t)->kind == REC_WRITE)
        st = wefti_rma_written(ep, &t->todo, t->grant);
    if (!st && req(t)->kind == REC_READ)
        rma_count_read(&t->grant->region->count, req(t)->len);
    if (!st && req(t)->kind == REC_ATOMIC)
        wefti_count_up(&t->grant->region->count.atomics, 1);
    if (!ep->lane || t->lane_no != rma_ep(ep)->lane_no)
        return; /* nobody waits for it */
    if (st || req(t)->kind == REC_WRITE)
        wefti_rma_reply_status(ep, req(t)->id, st);
    else if (req(t)->kind == REC_READ)
        wefti_rma_reply_data(ep, req(t)->id, NULL, t->carry->iov.base, req(t)->len);
    else
        wefti_rma_reply_value(ep, req(t)->id, t->before);
}

static void ended(turn_t *t, weft_status_t st)
{
    rma_grant_t *grant = t->grant;
    weft_region_t *region = grant->region;
    wefti_rma_grant_begin(grant); /* so that the region stays: the program may free it when it is told */
    leave_line(t);
    answer(t, st);
    gone(t);
    advance(region);
    wefti_rma_grant_end(grant);
}

/* --- with the device --------------------------------------------------------------------------------------------------- */

static void carried(wefti_carry_t *carry, weft_status_t st)
{
    ended((turn_t *)carry->user, st);
}

/* An atomic has its word here. */
static void word_came(wefti_carry_t *carry, weft_status_t st)
{
    turn_t *t = (turn_t *)carry->user;
    const rma_atomic_t *rec = &t->todo.rec;
    const weft_mem_kind_t *device = t->grant->region->device;
    weft_iov_t to = {t->at, req(t)->len};
    if (st) {
        ended(t, st);
        return;
    }
    t->before = rma_atomic_apply(carry->iov.base, rec->req.what, rec->req.width, rec->operand, rec->compare);
    carry->done = carried;
    if (wefti_carry_to(t->ep->rt, carry, device, &to)) /* no memory: the device is waited for */
        ended(t, wefti_mem_move(device, t->at, carry->iov.base, to.len));
}

/* False: there is no carry for it. bytes: of a write. */
static bool run(turn_t *t, const wefti_wild_t *bytes)
{
    weft_runtime_t *rt = t->ep->rt;
    weft_region_t *region = t->grant->region;
    weft_iov_t at = {t->at, req(t)->len};
    wefti_carry_t *carry = wefti_carry_get(rt, at.len);
    weft_status_t st;
    if (!carry)
        return false;
    carry->user = t;
    carry->done = req(t)->kind == REC_ATOMIC ? word_came : carried;
    if (req(t)->kind == REC_WRITE) {
        wefti_wild_take(carry->iov.base, bytes, at.len);
        st = wefti_carry_to(rt, carry, region->device, &at);
    } else {
        st = wefti_carry_from(rt, carry, region->device, &at);
    }
    if (st) {
        wefti_carry_put(rt, carry);
        return false;
    }
    t->carry = carry;
    t->runs = true;
    wefti_list_remove(&t->link);
    wefti_list_push_back(&region->turns.running, &t->link);
    region->turns.n++;
    return true;
}

/* Nobody runs: carry it out as it would be in host memory. */
static void at_once(turn_t *t, const wefti_wild_t *bytes)
{
    leave_line(t);
    if (t->todo.in)
        t->todo.in->user = NULL;
    wefti_rma_carry_out(t->ep, &t->todo, t->grant, t->at, bytes);
    gone(t);
}

/* It has waited, and may not be let in any more. */
static weft_status_t still_may(turn_t *t)
{
    if (!t->grant->ep)
        return WEFT_ERR_STALE; /* its peer let go of the remote, and asks no more */
    return wefti_rma_grant_check(t->grant, rma_todo_rights(&t->todo), req(t)->offset, req(t)->len, &t->at);
}

/* Let those have their turn that can. The caller has a grant of the region counted. */
static void advance(weft_region_t *region)
{
    rma_turns_t *line = &region->turns;
    for (wefti_list_t *l; (l = wefti_list_first(&line->waiting));) {
        turn_t *t = wefti_container_of(l, turn_t, link);
        if (!joins(line, t))
            return;
        weft_status_t st = still_may(t);
        if (st) {
            leave_line(t);
            wefti_rma_refuse(t->ep, &t->todo, st);
            gone(t);
        } else if (!copies(t) || !run(t, wefti_wild(t->bytes))) {
            if (line->n)
                return; /* one that runs has a carry, and will give it back */
            at_once(t, wefti_wild(t->bytes));
        } else {
            wefti_free(t->bytes);
            t->bytes = NULL;
        }
    }
}

/* --- in and out of the line -------------------------------------------------------------------------------------------- */

/* Put it into the line. NULL: no memory. */
static turn_t *turn_new(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at)
{
    rma_ep_t *e = rma_ep(ep);
    turn_t *t = (turn_t *)wefti_spares_get(&rma_state(ep->rt)->spare_turns, sizeof *t);
    if (!t)
        return NULL;
    *t = (turn_t){.ep = ep, .grant = grant, .at = at, .todo = *todo, .lane_no = e->lane_no};
    wefti_list_push_back(&grant->region->turns.waiting, &t->link);
    wefti_list_push_back(&e->turns, &t->ep_link);
    e->n_turns++;
    wefti_rma_grant_begin(grant);
    return t;
}

/* It has to wait: it needs its bytes then. False: no memory. */
static bool keep(turn_t *t, const wefti_wild_t *bytes)
{
    if (t->todo.in)
        t->todo.in->user = t;
    if (req(t)->kind != REC_WRITE || !req(t)->len)
        return true;
    t->bytes = wefti_malloc(req(t)->len);
    if (!t->bytes)
        return false;
    wefti_wild_take(t->bytes, bytes, req(t)->len);
    return true;
}

bool wefti_rma_turn(weft_ep_t *ep, const rma_todo_t *todo, rma_grant_t *grant, uint8_t *at, const wefti_wild_t *bytes)
{
    rma_turns_t *line = &grant->region->turns;
    const rma_request_t *r = &todo->rec.req;
    bool nobody = wefti_list_empty(&line->running), first = wefti_list_empty(&line->waiting);
    if (r->kind == REC_ATOMIC && (uintptr_t)at % r->width) {
        wefti_rma_refuse(ep, todo, WEFT_ERR_INVALID);
        return true;
    }
    if (!wefti_rma_one_more(ep)) {
        if (todo->in)
            wefti_in_refuse(todo->in, false);
        return true;
    }
    turn_t *t = turn_new(ep, todo, grant, at);
    if (!t && nobody)
        return false;
    if (!t) {
        wefti_rma_refuse(ep, todo, WEFT_ERR_NOMEM);
        return true;
    }
    if (first && joins(line, t) && copies(t) && run(t, bytes))
        return true;
    if (nobody) {
        at_once(t, bytes);
    } else if (!keep(t, bytes)) {
        leave_line(t);
        wefti_rma_refuse(ep, todo, WEFT_ERR_NOMEM);
        gone(t);
    }
    return true;
}

/* The writer took the bytes of a long write back while it waited. It is still to be answered. */
void wefti_rma_turn_withdrawn(wefti_in_t *in)
{
    turn_t *t = (turn_t *)in->user;
    in->user = NULL;
    t->todo.in = NULL;
    leave_line(t);
    wefti_rma_refuse(t->ep, &t->todo, WEFT_ERR_CANCELLED);
    gone(t);
}

void wefti_rma_turns_down(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_list_each_safe(l, &e->turns) {
        turn_t *t = wefti_container_of(l, turn_t, ep_link);
        if (t->runs)
            continue;
        if (t->todo.in)
            t->todo.in->user = NULL; /* it goes with the lane */
        leave_line(t);
        gone(t);
    }
    e->n_turns = 0;
    e->lane_no++;
}

void wefti_rma_turns_init(weft_region_t *region)
{
    region->by_turns = wefti_device_known(region->device) && !region->stripes;
}
