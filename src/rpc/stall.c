/* rpc/stall.c - payloads that are pulled and do not come.
 *
 * A peer that announces a payload and sends nothing of it makes us hold memory for as long as it likes: the fabric has the
 * buffer, and only the end of the connection gives it back. So pulls are watched. Before a pull begins, a mark is written to the
 * end of every STEP bytes of its buffer, a number that nobody knows; bytes that arrive overwrite the marks. There are at most
 * MARKS of them, further apart in large buffers: each makes a page of ours real, and the peer has only said how long its payload
 * is. If for `stall_ns` no mark of any pull of a peer was overwritten and none of its pulls ended, the peer's endpoint fails. All
 * pulls of a peer count together, since it may send them in turn.
 *
 * Time in which this runtime was not driven does not count: a look that comes late postpones the end by as much.
 *
 * Memory that the processor cannot touch has no marks, and is not watched. tests/unit/rpc_stall.c, tests/fault/rpc_greedy.c. */
#include "rpc/state.h"

#define STEP (UINT64_C(64) << 10)
#define MARKS 1024u
#define LOOKS 8u /* in stall_ns */
#define LOOK_LEAST WEFT_MILLISECOND

/* --- marks ------------------------------------------------------------------------------------------------------------------ */

/* Where the next mark is; NULL: there are no more. Many small pieces have marks too: the last bytes of one piece count with the
 * first of the next. */
static void *mark_at(rpc_fetch_t *f)
{
    for (; f->mark_piece < f->mark_n; f->mark_piece++) {
        const weft_iov_t *piece = &f->mark_iov[f->mark_piece];
        uint64_t end = f->mark_off + (f->mark_since < f->mark_step ? f->mark_step - f->mark_since : 0);
        end = end > sizeof f->mark ? end : sizeof f->mark;
        if (end <= piece->len) {
            f->mark_end = end;
            return (uint8_t *)piece->base + end - sizeof f->mark;
        }
        f->mark_since += piece->len - f->mark_off;
        f->mark_off = 0;
    }
    return NULL;
}

/* Go beyond the mark that mark_at() has found. */
static void pass(rpc_fetch_t *f)
{
    f->mark_off = f->mark_end;
    f->mark_since = 0;
}

static void write_marks(rpc_fetch_t *f)
{
    for (void *at; (at = mark_at(f)); pass(f))
        memcpy(at, &f->mark, sizeof f->mark);
    f->mark_piece = 0;
    f->mark_off = 0;
    f->mark_since = 0;
}

/* Has anything come since the last look? */
static bool moved(rpc_fetch_t *f)
{
    bool any = false;
    for (void *at; (at = mark_at(f)); pass(f)) {
        uint64_t there;
        memcpy(&there, at, sizeof there);
        if (there == f->mark)
            break;
        any = true;
    }
    return any;
}

/* --- the watch -------------------------------------------------------------------------------------------------------------- */

static uint64_t pause_for(uint64_t stall_ns)
{
    return stall_ns / LOOKS > LOOK_LEAST ? stall_ns / LOOKS : LOOK_LEAST;
}

static uint64_t pause_of(const rpc_ep_t *e)
{
    uint64_t least = UINT64_MAX;
    wefti_list_each(l, &e->pulls) {
        const rpc_fetch_t *f = wefti_container_of(l, rpc_fetch_t, watch);
        least = f->stall_ns < least ? f->stall_ns : least;
    }
    return pause_for(least);
}

static void look_later(rpc_ep_t *e, uint64_t now)
{
    uint64_t pause = pause_of(e);
    e->look_pause = pause;
    /* without memory for it now, the next pull tries again */
    (void)wefti_timer_at(e->ep->rt, &e->look, pause < UINT64_MAX - now ? now + pause : UINT64_MAX);
}

static void look(wefti_timer_t *t)
{
    rpc_ep_t *e = wefti_container_of(t, rpc_ep_t, look);
    uint64_t when = t->node.key, now = wefti_now(e->ep->rt);
    if (now > when + e->look_pause)
        e->moved_at += now - when; /* this runtime was not driven */
    wefti_list_each(l, &e->pulls)
        if (moved(wefti_container_of(l, rpc_fetch_t, watch)))
            e->moved_at = now;
    wefti_list_each(l, &e->pulls) {
        const rpc_fetch_t *f = wefti_container_of(l, rpc_fetch_t, watch);
        if (now < e->moved_at || now - e->moved_at < f->stall_ns)
            continue;
        wefti_ep_protocol_error(e->ep,
                                "it announced data of calls, and for so long as is waited for it (stall_ns) nothing of it came");
        return; /* its pulls end with the endpoint */
    }
    look_later(e, now);
}

void wefti_rpc_watch_init(weft_ep_t *ep)
{
    rpc_ep_t *e = rpc_ep(ep);
    e->ep = ep;
    e->look.fn = look;
    wefti_list_init(&e->pulls);
}

void wefti_rpc_watch_marks(rpc_fetch_t *f, const weft_iov_t *iov, size_t n, uint64_t mark)
{
    uint64_t len = 0;
    if (f->stall_ns == UINT64_MAX)
        return; /* nobody will look */
    for (size_t i = 0; i < n; i++)
        len += iov[i].len;
    f->mark_iov = iov;
    f->mark_n = n;
    f->mark = mark;
    f->mark_step = len / MARKS > STEP ? len / MARKS : STEP;
    write_marks(f);
}

void wefti_rpc_watch(rpc_fetch_t *f, weft_ep_t *ep)
{
    if (!f->mark_n || f->stall_ns == UINT64_MAX || !ep->lane)
        return;
    rpc_ep_t *e = rpc_ep(ep);
    uint64_t now = wefti_now(ep->rt);
    if (wefti_list_empty(&e->pulls))
        e->moved_at = now;
    f->watched = e;
    wefti_list_push_back(&e->pulls, &f->watch);
    if (!e->look.node.slot || pause_for(f->stall_ns) < e->look_pause)
        look_later(e, now);
}

void wefti_rpc_unwatch(rpc_fetch_t *f)
{
    rpc_ep_t *e = f->watched;
    if (!e)
        return;
    f->watched = NULL;
    wefti_list_remove(&f->watch);
    e->moved_at = wefti_now(e->ep->rt);
    if (wefti_list_empty(&e->pulls))
        wefti_timer_stop(e->ep->rt, &e->look);
}

void wefti_rpc_watch_down(weft_ep_t *ep)
{
    rpc_ep_t *e = rpc_ep(ep);
    for (wefti_list_t *l; (l = wefti_list_pop(&e->pulls));)
        wefti_container_of(l, rpc_fetch_t, watch)->watched = NULL;
    wefti_timer_stop(ep->rt, &e->look);
}
