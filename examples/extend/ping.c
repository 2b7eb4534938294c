/* examples/extend/ping.c - the library: written with weft/extend.h alone.
 *
 * A ping is an active message with a number; the answer carries it back. Those that wait are on a list of their endpoint. An
 * operation keeps its place there in its scratch, so that nothing is allocated. */
#include "ping.h"

#include <string.h>
#include <weft/am.h>
#include <weft/extend.h>
#include <weft/runtime.h>

enum { ID_PING = 0x70696e67, ID_PONG = 0x706f6e67 };

/* In the scratch of an operation. */
typedef struct waiting {
    struct waiting *next;
    weft_op_t *op;
    weft_ep_t *ep;
    uint64_t number, sent_at; /* sent_at 0: the endpoint is not up yet */
} waiting_t;

/* Of an endpoint. */
typedef struct pings {
    waiting_t *first;
    uint64_t numbers;
} pings_t;

/* Of a runtime. */
typedef struct answers {
    weft_op_t handled[2];
} answers_t;

static const weft_ext_t ext; /* below */

static pings_t *pings_of(weft_ep_t *ep)
{
    return (pings_t *)weft_ext_ep_state(ep, &ext);
}

static void end(waiting_t *w, weft_status_t status, uint64_t sentence)
{
    pings_t *p = pings_of(w->ep);
    for (waiting_t **at = p ? &p->first : NULL; at && *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    weft_ext_op_complete(w->op, status, sentence); /* w is gone from here on */
}

/* --- sending and answering ----------------------------------------------------------------------------------------------- */

static void send(waiting_t *w)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    if (weft_ep_get_info(w->ep, &info) || !(info.peer_capabilities & CAN_PING)) {
        end(w, WEFT_ERR_UNSUPPORTED, weft_ext_sentence(w->ep, "its program does not answer pings"));
        return;
    }
    w->sent_at = weft_now(weft_ep_runtime(w->ep));
    weft_status_t st =
        weft_am_send(w->ep, ID_PING, &w->number, sizeof w->number, NULL, 0, NULL); /* copied: nobody waits for it */
    if (st)
        end(w, st, 0);
}

static void on_ping(weft_am_t *am, void *user)
{
    (void)user;
    if (am->header_len != sizeof(uint64_t))
        weft_ext_ep_break(am->ep, WEFT_ERR_PROTOCOL, "a ping without a number");
    else if (weft_am_send(am->ep, ID_PONG, am->header, am->header_len, NULL, 0, NULL))
        weft_ext_ep_break(am->ep, WEFT_ERR_NOMEM, "a ping cannot be answered");
}

static void on_pong(weft_am_t *am, void *user)
{
    uint64_t number;
    pings_t *p = pings_of(am->ep);
    (void)user;
    if (am->header_len != sizeof number) {
        weft_ext_ep_break(am->ep, WEFT_ERR_PROTOCOL, "an answer to a ping without a number");
        return;
    }
    memcpy(&number, am->header, sizeof number);
    for (waiting_t *w = p->first; w; w = w->next)
        if (w->number == number) { /* else it was cancelled */
            w->op->len = weft_now(weft_ep_runtime(am->ep)) - w->sent_at;
            end(w, WEFT_OK, 0);
            return;
        }
}

/* --- the operation ------------------------------------------------------------------------------------------------------- */

static weft_status_t start(weft_op_t *op)
{
    waiting_t *w = weft_ext_scratch(op, waiting_t);
    weft_status_t st = weft_ext_ep_usable(w->ep);
    if (!st)
        st = weft_ext_op_track(op);
    if (st)
        return st;
    pings_t *p = pings_of(w->ep);
    w->number = ++p->numbers;
    w->next = p->first;
    p->first = w;
    if (weft_ep_get_state(w->ep) == WEFT_EP_UP)
        send(w);
    return WEFT_OK;
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    end(weft_ext_scratch(op, waiting_t), why, 0);
}

weft_status_t ping(weft_ep_t *ep, weft_op_t *op)
{
    static const weft_op_kind_t kind = {.name = "ping", .start = start, .cancel = cancel, .stops = true};
    if (!ep || !op)
        return weft_fail(WEFT_ERR_INVALID, "%s is NULL", ep ? "the operation" : "the endpoint");
    weft_status_t st = weft_ext_op_prepare(weft_ep_runtime(ep), op, &kind);
    if (st)
        return st;
    *weft_ext_scratch(op, waiting_t) = (waiting_t){.op = op, .ep = ep};
    return weft_ext_op_start(op);
}

/* --- the extension ------------------------------------------------------------------------------------------------------- */

static weft_status_t opened(weft_runtime_t *rt, void *state)
{
    answers_t *a = (answers_t *)state;
    weft_status_t st = weft_am_handle(rt, ID_PING, on_ping, NULL, &a->handled[0]);
    return st ? st : weft_am_handle(rt, ID_PONG, on_pong, NULL, &a->handled[1]);
}

static void ep_up(weft_ep_t *ep, void *state)
{
    (void)ep;
    for (waiting_t *w = ((pings_t *)state)->first, *next; w; w = next) {
        next = w->next;
        send(w);
    }
}

static void ep_down(weft_ep_t *ep, void *state, weft_status_t why)
{
    (void)ep;
    for (waiting_t *w; (w = ((pings_t *)state)->first);)
        end(w, why, 0);
}

static const weft_ext_t ext = {.size = sizeof ext,
                               .name = "ping",
                               .capability = CAN_PING,
                               .state_size = sizeof(answers_t),
                               .ep_state_size = sizeof(pings_t),
                               .open = opened,
                               .ep_up = ep_up,
                               .ep_down = ep_down};

_Static_assert(sizeof(waiting_t) <= WEFT_EXT_SCRATCH, "it is kept in the operation");

weft_status_t ping_register(void)
{
    return weft_ext_register(&ext);
}
