/* extend/extend.c - extensions: which there are, and what each keeps per runtime and per endpoint.
 *
 * The process has one list of extensions, which only grows. A runtime has those that were registered when it was opened: the
 * first `n` of the list. To core they are one room and to conn one traffic, whose state per endpoint is a count and then the
 * state of each extension, one after the other.
 *
 * Hooks of an opening are called in the order of registration, those of an ending in the opposite order.
 *
 * Of several shards the head opens all of them, when every shard is there, and then each shard those that want to be everywhere.
 * The others keep their place in its list, without a state, and none of their hooks is called there.
 *
 * Promise: a tracked operation does not outlive its runtime, whether its extension has a shutdown() or not.
 * tests/wire/extend_basic.c, extend_misuse.c. */
#include "extend/extend.h"

#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>

#include "base/alloc.h"
#include "base/opts.h"
#include "conn/conn.h"

enum { MOST = 8, STATE_MOST = 1 << 30, ALIGN = _Alignof(max_align_t) };
#define OF_CORE (WEFT_CAN_MSG | WEFT_CAN_AM | WEFT_CAN_RMA | WEFT_CAN_RPC | WEFT_CAN_DEVICE)

typedef struct known {
    const weft_ext_t *ext;
    size_t ep_at; /* of its state, in that of an endpoint */
} known_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known_t known[MOST];
static _Atomic uint32_t n_known;

/* Of a runtime. */
typedef struct extended {
    uint32_t n;          /* that are open */
    uint32_t n_attached; /* that were registered when it was opened */
    void *state[MOST];   /* NULL: the head's alone, and this is another shard */
    void *failed;        /* of one whose open() failed */
    wefti_traffic_t traffic;
    wefti_list_t tracked; /* operations of extensions that wait: weft_ext_op_track() */
    wefti_list_t asked;   /* those that were asked to end, since the runtime closes */
    bool again;           /* shutdown() was called before */
    const char *busy;     /* the extension that was not idle when asked last; NULL: none */
} extended_t;

/* Of an endpoint: the states follow. */
typedef struct ep_head {
    _Alignas(ALIGN) uint32_t n;
} ep_head_t;

static extended_t *extended(const weft_runtime_t *rt)
{
    return (extended_t *)rt->room_state[WEFTI_ROOM_EXTEND];
}

/* --- the list ------------------------------------------------------------------------------------------------------------ */

static size_t ep_end(uint32_t n)
{
    if (!n)
        return sizeof(ep_head_t);
    return (known[n - 1].ep_at + known[n - 1].ext->ep_state_size + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t index_of(const weft_ext_t *ext, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && known[i].ext != ext)
        i++;
    return i;
}

static weft_status_t check(const weft_ext_t *ext)
{
    if (!ext || ext->size != sizeof *ext || !ext->name || !*ext->name)
        return wefti_fail(WEFT_ERR_INVALID, "an extension begins with WEFT_EXT_INIT of this version, and has a name");
    if (ext->capability & (ext->capability - 1) || ext->capability & OF_CORE)
        return wefti_fail(WEFT_ERR_INVALID, "the capability of the extension \"%s\", %#" PRIx64 ", %s", ext->name,
                          ext->capability, ext->capability & OF_CORE ? "is the library's own" : "is more than one bit");
    if (ext->state_size > STATE_MOST || ext->ep_state_size > STATE_MOST)
        return wefti_fail(WEFT_ERR_INVALID,
                          "the extension \"%s\" wants %zu bytes for each runtime and %zu for each endpoint; it may have %d",
                          ext->name, ext->state_size, ext->ep_state_size, STATE_MOST);
    return WEFT_OK;
}

weft_status_t weft_ext_register(const weft_ext_t *ext)
{
    weft_status_t st = check(ext);
    if (st)
        return st;
    pthread_mutex_lock(&lock);
    uint32_t n = atomic_load(&n_known);
    if (index_of(ext, n) == n && n == MOST) {
        st = wefti_fail(WEFT_ERR_LIMIT, "there are %d extensions already, and \"%s\" is one too many", MOST, ext->name);
    } else if (index_of(ext, n) == n) {
        known[n] = (known_t){ext, ep_end(n)};
        atomic_store(&n_known, n + 1);
    }
    pthread_mutex_unlock(&lock);
    return st;
}

void *weft_ext_state(const weft_runtime_t *rt, const weft_ext_t *ext)
{
    if (!rt || !ext || wefti_gone(rt))
        return NULL;
    const extended_t *x = extended(rt);
    uint32_t i = index_of(ext, x->n);
    return i < x->n ? x->state[i] : NULL;
}

static void *ep_state(const weft_ep_t *ep, uint32_t i)
{
    return (char *)ep->traffic[WEFTI_TRAFFIC_EXTEND] + known[i].ep_at;
}

void *weft_ext_ep_state(const weft_ep_t *ep, const weft_ext_t *ext)
{
    const ep_head_t *head = ep && wefti_driven == ep->rt ? (const ep_head_t *)ep->traffic[WEFTI_TRAFFIC_EXTEND] : NULL;
    if (!head)
        return NULL;
    uint32_t i = index_of(ext, head->n);
    return i < head->n ? ep_state(ep, i) : NULL;
}

/* --- operations ---------------------------------------------------------------------------------------------------------- */

/* An operation of an extension is on no other list by its link. Core takes it off where start() fails. */
weft_status_t weft_ext_op_track(weft_op_t *op)
{
    weft_status_t st = wefti_extend_under_way(op);
    if (st)
        return st;
    wefti_opx_t *x = wefti_opx(op);
    if (!wefti_list_linked(&x->link))
        wefti_list_push_back(&extended(x->rt)->tracked, &x->link);
    return wefti_op_track(op);
}

/* --- endpoints ----------------------------------------------------------------------------------------------------------- */

static bool is_here(const weft_runtime_t *rt, uint32_t i)
{
    return extended(rt)->state[i] != NULL;
}

/* Those that were open when it was opened, and still are: an open() that opened endpoints may have failed. */
static uint32_t n_of(const weft_ep_t *ep)
{
    uint32_t n = ((const ep_head_t *)ep->traffic[WEFTI_TRAFFIC_EXTEND])->n, open = extended(ep->rt)->n;
    return n < open ? n : open;
}

/* Often on a thread that drives nothing. It counts as a callback all the same: the runtime cannot be closed inside it. */
static void ep_new(weft_ep_t *ep)
{
    static weft_runtime_t opening = {.name = "an endpoint that is being opened"};
    weft_runtime_t *was = wefti_driven;
    uint32_t n = extended(ep->rt)->n;
    ((ep_head_t *)ep->traffic[WEFTI_TRAFFIC_EXTEND])->n = n;
    wefti_driven = was ? was : &opening;
    for (uint32_t i = 0; i < n; i++)
        if (known[i].ext->ep_new && is_here(ep->rt, i))
            known[i].ext->ep_new(ep, ep_state(ep, i));
    wefti_driven = was;
}

static void ep_up(weft_ep_t *ep)
{
    for (uint32_t i = 0; i < n_of(ep); i++)
        if (known[i].ext->ep_up && is_here(ep->rt, i))
            known[i].ext->ep_up(ep, ep_state(ep, i));
}

static void ep_down(weft_ep_t *ep, weft_status_t why, bool discard)
{
    (void)discard;
    for (uint32_t i = n_of(ep); i-- > 0;)
        if (known[i].ext->ep_down && is_here(ep->rt, i))
            known[i].ext->ep_down(ep, ep_state(ep, i), why);
}

static void ep_free(weft_ep_t *ep)
{
    for (uint32_t i = n_of(ep); i-- > 0;)
        if (known[i].ext->ep_free && is_here(ep->rt, i))
            known[i].ext->ep_free(ep, ep_state(ep, i));
}

/* --- runtimes ------------------------------------------------------------------------------------------------------------ */

static bool all_idle(weft_runtime_t *rt)
{
    extended_t *x = extended(rt);
    x->busy = NULL;
    for (uint32_t i = x->n; i-- > 0 && !x->busy;)
        if (known[i].ext->idle && is_here(rt, i) && !known[i].ext->idle(rt, x->state[i]))
            x->busy = known[i].ext->name;
    return !x->busy;
}

/* Operations that wait although no extension has anything to do: it has no shutdown(), or that forgot them. */
static void end_tracked(extended_t *x)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&x->tracked));) {
        weft_op_t *op = wefti_op_of_link(l);
        wefti_list_push_back(&x->asked, l);
        wefti_opx(op)->kind->cancel(op, WEFT_ERR_CLOSED);
    }
}

static void shutdown(weft_runtime_t *rt)
{
    extended_t *x = extended(rt);
    for (uint32_t i = x->n; i-- > 0;)
        if (known[i].ext->shutdown && is_here(rt, i))
            known[i].ext->shutdown(rt, x->state[i]);
    if (x->again && !wefti_list_empty(&x->tracked) && all_idle(rt)) /* not at first: endpoints end, and say why */
        end_tracked(x);
    x->again = true;
}

static bool idle(weft_runtime_t *rt)
{
    const extended_t *x = extended(rt);
    return all_idle(rt) && wefti_list_empty(&x->tracked) && wefti_list_empty(&x->asked);
}

/* core has said that something does not let go. */
static void name_the_busy(const weft_runtime_t *rt, extended_t *x)
{
    if (x->busy)
        wefti_error("the extension \"%s\" is not idle, and the runtime \"%s\" is closed", x->busy, rt->name);
    else if (!wefti_list_empty(&x->asked))
        wefti_error("an operation of the kind \"%s\" does not end when it is cancelled, and the runtime \"%s\" is closed",
                    wefti_opx(wefti_op_of_link(wefti_list_first(&x->asked)))->kind->name, rt->name);
}

static void room_free(weft_runtime_t *rt)
{
    extended_t *x = extended(rt);
    name_the_busy(rt, x);
    for (uint32_t i = x->n; i-- > 0;) {
        if (known[i].ext->closed && is_here(rt, i))
            known[i].ext->closed(rt, x->state[i]);
        wefti_free(x->state[i]);
    }
    wefti_free(x->failed);
    wefti_free(x);
}

static const wefti_room_t room = {shutdown, idle, room_free, NULL};

static weft_status_t open_one(weft_runtime_t *rt, extended_t *x, const weft_ext_t *ext)
{
    void *state = wefti_calloc(1, ext->state_size ? ext->state_size : 1);
    if (!state)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for what %s keeps of a runtime", ext->name);
    x->state[x->n++] = state; /* open() may ask for it */
    wefti_fail_forget();
    weft_status_t st = ext->open ? ext->open(rt, state) : WEFT_OK;
    if (!st)
        return WEFT_OK;
    x->n--;
    x->failed = state; /* what open() had begun ends with the runtime */
    return weft_last_error_status() == st ? st : wefti_fail(st, "the extension \"%s\" cannot be opened", ext->name);
}

static weft_status_t open_all(void *arg)
{
    weft_runtime_t *rt = (weft_runtime_t *)arg;
    extended_t *x = extended(rt);
    weft_status_t st = WEFT_OK;
    for (uint32_t i = 0; i < x->n_attached && !st; i++)
        if (rt == wefti_head(rt) || known[i].ext->shards)
            st = open_one(rt, x, known[i].ext);
        else
            x->state[x->n++] = NULL;
    return st;
}

/* open() runs on the driver: this thread, or the runtime's own one if that runs already. */
weft_status_t wefti_extend_open(weft_runtime_t *rt)
{
    weft_runtime_t *was = wefti_driven;
    if (rt->thread)
        return wefti_ask(rt, open_all, rt);
    atomic_store(&rt->driver, 1);
    wefti_driven = rt;
    weft_status_t st = open_all(rt);
    wefti_leave(rt, was);
    return st;
}

weft_status_t wefti_extend_attach(weft_runtime_t *rt)
{
    uint32_t n = atomic_load(&n_known);
    extended_t *x = (extended_t *)wefti_calloc(1, sizeof *x);
    if (!x)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the extensions of a runtime");
    wefti_runtime_attach(rt, WEFTI_ROOM_EXTEND, &room, x);
    wefti_list_init(&x->tracked);
    wefti_list_init(&x->asked);
    x->traffic = (wefti_traffic_t){.first_kind = 1, .ep_new = ep_new, .ep_up = ep_up, .ep_down = ep_down, .ep_free = ep_free};
    x->traffic.ep_state_size = ep_end(n);
    for (uint32_t i = 0; i < n; i++)
        x->traffic.capability |= known[i].ext->capability;
    x->n_attached = n;
    wefti_conn_traffic(rt, WEFTI_TRAFFIC_EXTEND, &x->traffic); /* first: open() may open endpoints */
    return WEFT_OK;
}
