/* conn/relay.c - relays: making them, telling the peer, and letting go of them.
 *
 * out:  none -> asked (RELAY was sent, or waits for space) -> ready (RELAY_ANSWER) -> none, with the lane
 *                                                         \-> refused: not tried again on this lane
 *
 * A relay stays as long as a chunk is in it: a device may be copying there when the lane ends. The receiver's mapping stays what
 * it is when the sender lets go of its own, so that a copy under way reads memory that exists; whether the bytes count is for
 * the lane to say.
 *
 * Promise: each slot holds one chunk at a time. tests/wire/msg_cuda.c. */
#include "conn/relay.h"

#include <string.h>

#include "base/log.h"

#define RELAY_HEAD 16 /* of a RELAY record: its kind and the length of the handle, the bytes */

static wefti_lane_t *lane_of(const wefti_epx_t *ep)
{
    return ep->link->lane;
}

static bool tell(wefti_epx_t *ep, const void *rec, size_t n)
{
    wefti_lane_t *lane = lane_of(ep);
    void *at = lane->ops->reserve(lane, n);
    if (!at)
        return false;
    memcpy(at, rec, n);
    lane->ops->commit(lane, n);
    return true;
}

static void relay_free(void *relay, size_t n)
{
    wefti_relay_t *r = relay;
    if (r->pinned)
        wefti_mem_unpin(r->base);
    if (r->unmap)
        r->unmap(r->base, n);
    else
        wefti_memfd_close(&r->mem);
    wefti_free(r);
}

void wefti_relay_drop(wefti_relay_t *r)
{
    if (--r->refs)
        return;
    if (wefti_list_linked(&r->due))
        wefti_list_remove(&r->due);
    if (r->pinned)
        wefti_mem_when_calm(relay_free, r, WEFTI_RELAY_BYTES);
    else
        relay_free(r, WEFTI_RELAY_BYTES);
}

void wefti_relay_pin(wefti_relay_t *r)
{
    if (r->tried)
        return;
    r->tried = true;
    r->pinned = wefti_mem_pin(r->base, WEFTI_RELAY_BYTES);
}

/* --- out -------------------------------------------------------------------------------------------------------------------- */

static wefti_relay_t *relay_new(void)
{
    wefti_relay_t *r = wefti_calloc(1, sizeof *r);
    if (r && wefti_memfd_open(&r->mem, "weft-relay", WEFTI_RELAY_BYTES, false)) {
        wefti_free(r);
        return NULL;
    }
    if (r) {
        r->base = r->mem.base;
        r->refs = 1;
        wefti_list_init(&r->line);
    }
    return r;
}

static void ask(wefti_epx_t *ep)
{
    wefti_lane_t *lane = lane_of(ep);
    wefti_relay_t *r = ep->payloads.relay_out;
    uint8_t rec[RELAY_HEAD + WEFTI_MAP_HANDLE_MAX] = {0};
    size_t n = lane->ops->expose(lane, r->mem.fd, WEFTI_RELAY_BYTES, rec + RELAY_HEAD);
    uint64_t head[2] = {WEFTI_REC_RELAY | (uint64_t)n << 8, WEFTI_RELAY_BYTES};
    memcpy(rec, head, sizeof head);
    if (!n) {
        ep->payloads.relay_out = NULL; /* it stays refused */
        wefti_relay_drop(r);
    } else {
        ep->payloads.relay_owes = !tell(ep, rec, RELAY_HEAD + n);
    }
}

void wefti_relay_want(wefti_epx_t *ep)
{
    wefti_lane_t *lane = lane_of(ep);
    const wefti_peer_t *peer = atomic_load_explicit(&ep->peer, memory_order_relaxed);
    if (ep->payloads.relay_asked || !lane->ops->expose || !peer || !(peer->capabilities & WEFT_CAN_DEVICE))
        return;
    ep->payloads.relay_asked = true;
    ep->payloads.relay_out = relay_new();
    if (ep->payloads.relay_out)
        ask(ep);
    else
        wefti_info("conn: no memory to share with a peer: chunks go through the fabric");
}

bool wefti_relay_answered(wefti_epx_t *ep, bool mapped)
{
    wefti_relay_t *r = ep->payloads.relay_out;
    if (!r || r->ready || ep->payloads.relay_owes)
        return false;
    r->ready = mapped;
    if (!mapped) {
        ep->payloads.relay_out = NULL;
        wefti_relay_drop(r);
    }
    return true;
}

int wefti_relay_take(wefti_epx_t *ep, wefti_relay_t **relay_out)
{
    wefti_relay_t *r = ep->payloads.relay_out;
    if (!r || !r->ready)
        return -1;
    for (int i = 0; i < (int)WEFTI_RELAY_SLOTS; i++)
        if (!(r->busy & 1u << i)) {
            r->busy |= 1u << i;
            r->refs++;
            *relay_out = r;
            return i;
        }
    return -1;
}

void wefti_relay_give(wefti_conn_t *conn, wefti_relay_t *r, int slot)
{
    r->busy &= ~(1u << slot);
    if (!wefti_list_empty(&r->line) && !wefti_list_linked(&r->due)) {
        wefti_list_push_back(&conn->payloads.relays_due, &r->due);
        wefti_conn_kick(conn);
    }
    wefti_relay_drop(r);
}

bool wefti_relay_wait(wefti_epx_t *ep, wefti_list_t *link)
{
    wefti_relay_t *r = ep->payloads.relay_out;
    if (!r || !r->ready)
        return false;
    if (!wefti_list_linked(link))
        wefti_list_push_back(&r->line, link);
    return true;
}

wefti_list_t *wefti_relay_next(wefti_conn_t *conn)
{
    for (wefti_list_t *l; (l = wefti_list_first(&conn->payloads.relays_due));) {
        wefti_relay_t *r = wefti_container_of(l, wefti_relay_t, due);
        if (r->busy != (1u << WEFTI_RELAY_SLOTS) - 1 && !wefti_list_empty(&r->line))
            return wefti_list_pop(&r->line);
        wefti_list_remove(l);
    }
    return NULL;
}

/* --- in --------------------------------------------------------------------------------------------------------------------- */

static void answer(wefti_epx_t *ep)
{
    uint64_t rec = WEFTI_REC_RELAY_ANSWER | (uint64_t)(ep->payloads.relay_in != NULL) << 8;
    ep->payloads.relay_answers = !tell(ep, &rec, sizeof rec);
}

void wefti_relay_came(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n)
{
    wefti_lane_t *lane = lane_of(ep);
    uint64_t head[2] = {0};
    uint8_t handle[WEFTI_MAP_HANDLE_MAX];
    void *base;
    wefti_wild_take(head, rec, n < sizeof head ? n : sizeof head);
    size_t handle_n = n < RELAY_HEAD ? 0 : n - RELAY_HEAD;
    if (!handle_n || handle_n > sizeof handle || head[1] != WEFTI_RELAY_BYTES || ep->payloads.relay_in ||
        ep->payloads.relay_answers || !lane->ops->map) {
        wefti_ep_protocol_error(&ep->pub, "memory to share that nobody can use");
        return;
    }
    wefti_wild_take(handle, wefti_wild_skip(rec, RELAY_HEAD), handle_n);
    wefti_relay_t *r = wefti_calloc(1, sizeof *r);
    weft_status_t st = r ? lane->ops->map(lane, handle, handle_n, WEFTI_RELAY_BYTES, &base) : WEFT_ERR_NOMEM;
    if (st) {
        wefti_free(r);
        if (st == WEFT_ERR_PROTOCOL) {
            wefti_ep_protocol_error(&ep->pub, "a handle of shared memory that is none");
            return;
        }
        wefti_info("conn: memory of a peer is not mapped: chunks go through the fabric");
    } else {
        r->base = base;
        r->refs = 1;
        r->unmap = lane->ops->unmap;
        ep->payloads.relay_in = r;
    }
    answer(ep);
}

wefti_relay_t *wefti_relay_hold(wefti_epx_t *ep)
{
    wefti_relay_t *r = ep->payloads.relay_in;
    if (r)
        r->refs++;
    return r;
}

/* --- the endpoint ----------------------------------------------------------------------------------------------------------- */

void wefti_relay_flush(wefti_epx_t *ep)
{
    if (ep->payloads.relay_answers)
        answer(ep);
    if (ep->payloads.relay_owes)
        ask(ep);
}

void wefti_relay_down(wefti_epx_t *ep)
{
    wefti_ep_payloads_t *p = &ep->payloads;
    if (p->relay_out)
        wefti_relay_drop(p->relay_out);
    if (p->relay_in)
        wefti_relay_drop(p->relay_in);
    p->relay_out = p->relay_in = NULL;
    p->relay_asked = p->relay_owes = p->relay_answers = false;
}
