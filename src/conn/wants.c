/* conn/wants.c - receives from any endpoint of a runtime with several shards.
 *
 *     POSTED --a shard takes it out, under the lock--> SERVED --its receive is over, a call to the head--> complete
 *        \--cancelled, or its time is over: the head takes it out--> complete
 *
 * Whoever takes a want out has it alone. The shard receives with an operation of its own (inner), into the program's buffer; when
 * that is complete the head copies what it says to the program's operation, and completes it. So deadline, token, queue and
 * callback of the program's operation are the head's from the first to the last.
 *
 * A message and a want that come at the same time: the shard says that it holds messages and then looks for wants; the head
 * writes the want down and then looks which shards hold messages, and calls those. One of the two sees the other.
 *
 * Order: each shard compares a new want with what it has held longest before it compares anything newer. `looked` says how far it
 * is, and messages that come go only to wants up to there. So messages of one endpoint are received in their order, and of two
 * wants that match a message the older one gets it.
 *
 * Promise: each want is served once, or ended once by the head. tests/wire/shards_any.c. */
#include "conn/wants.h"

#include <string.h>

#include "base/alloc.h"
#include "conn/conn.h"
#include "conn/outbox.h"

enum { SPARES_MAX = 1024 };

struct wefti_want {
    wefti_list_t owner; /* under_way; the first, since a spare one overwrites it */
    wefti_list_t all, chain;
    uint64_t key, mask, seq;
    wefti_wants_t *wants;
    weft_op_t *op;     /* the program's */
    weft_op_t inner;   /* of the shard that serves it */
    wefti_call_t call; /* to the head, when that is done */
};

static wefti_wants_shard_t *shard_of(const wefti_wants_t *w, uint32_t k)
{
    return atomic_load_explicit(&w->shards[k], memory_order_acquire);
}

/* --- the board: under the lock -------------------------------------------------------------------------------------------- */

static wefti_list_t *chain_of(wefti_wants_t *w, uint64_t key, uint64_t mask)
{
    return mask == UINT64_MAX ? &w->chains[(key ^ key >> 8 ^ key >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 56] : &w->masked;
}

static void put_up(wefti_wants_t *w, wefti_want_t *want)
{
    want->seq = atomic_load_explicit(&w->last, memory_order_relaxed) + 1;
    wefti_list_push_back(&w->all, &want->all);
    wefti_list_push_back(chain_of(w, want->key, want->mask), &want->chain);
    atomic_store(&w->last, want->seq);
    atomic_fetch_add(&w->n, 1);
}

static void take_down(wefti_wants_t *w, wefti_want_t *want)
{
    wefti_list_remove(&want->all);
    wefti_list_remove(&want->chain);
    atomic_fetch_sub(&w->n, 1);
}

/* The oldest of a chain that matches, up to number `last`. */
static wefti_want_t *first_of(const wefti_list_t *chain, uint64_t key, uint64_t last)
{
    wefti_list_each(l, chain) {
        wefti_want_t *want = wefti_container_of(l, wefti_want_t, chain);
        if (want->seq > last)
            return NULL;
        if (!((want->key ^ key) & want->mask))
            return want;
    }
    return NULL;
}

/* The oldest want that this shard knows for a message with this key, taken out. */
static wefti_want_t *take(wefti_wants_t *w, const wefti_wants_shard_t *me, uint64_t key)
{
    pthread_mutex_lock(&w->lock);
    wefti_want_t *a = first_of(chain_of(w, key, UINT64_MAX), key, me->looked), *b = first_of(&w->masked, key, me->looked);
    if (!a || (b && b->seq < a->seq))
        a = b;
    if (a)
        take_down(w, a);
    pthread_mutex_unlock(&w->lock);
    return a;
}

/* The oldest want that this shard does not know yet and has a message for, taken out. From then on it knows those before it. */
static wefti_want_t *take_new(wefti_wants_t *w, wefti_wants_shard_t *me, void **msg_out)
{
    wefti_want_t *found = NULL;
    pthread_mutex_lock(&w->lock);
    wefti_list_t *l = &w->all;
    while (l->prev != &w->all && wefti_container_of(l->prev, wefti_want_t, all)->seq > me->looked)
        l = l->prev;
    for (; l != &w->all && !found; l = l->next) {
        wefti_want_t *want = wefti_container_of(l, wefti_want_t, all);
        *msg_out = w->ops->find(me->rt, want->key, want->mask);
        me->looked = want->seq;
        if (*msg_out)
            found = want;
    }
    if (found)
        take_down(w, found);
    else
        me->looked = atomic_load_explicit(&w->last, memory_order_relaxed);
    pthread_mutex_unlock(&w->lock);
    return found;
}

/* --- serving: on the driver of a shard ------------------------------------------------------------------------------------ */

static void finish(wefti_want_t *want, weft_status_t st, uint64_t detail)
{
    wefti_wants_t *w = want->wants;
    weft_op_t *op = want->op;
    wefti_list_remove(&want->owner);
    pthread_mutex_lock(&w->lock);
    wefti_spares_put(&w->spares, want, SPARES_MAX);
    pthread_mutex_unlock(&w->lock);
    wefti_op_complete_why(op, st, detail);
}

/* On the driver of the head. */
static void served(wefti_call_t *call)
{
    wefti_want_t *want = wefti_container_of(call, wefti_want_t, call);
    const weft_op_t *inner = &want->inner;
    weft_op_t *op = want->op;
    op->header_len = inner->header_len;
    op->len = inner->len;
    op->tag = inner->tag;
    op->from = inner->from;
    op->buf = inner->buf;
    bool asked = inner->status && op->status; /* to end, and it does not end well: as if it had ended then */
    finish(want, asked ? op->status : inner->status, asked || !inner->status ? 0 : wefti_opx(&want->inner)->detail);
}

static void inner_done(weft_op_t *inner, void *user)
{
    wefti_want_t *want = user;
    (void)inner;
    (void)wefti_call_on_driver(want->wants->head, &want->call); /* the head is closed after all others, and waits for it */
}

static bool serve(wefti_wants_t *w, const wefti_wants_shard_t *me, wefti_want_t *want, void *msg)
{
    static const wefti_op_kind_t kind = {.name = "receive for another shard", .cancel = wefti_op_no_cancel};
    weft_op_t *op = want->op, *inner = &want->inner;
    memset(inner, 0, sizeof *inner);
    inner->fn = inner_done;
    inner->user = want;
    inner->len = op->len;
    inner->tag = op->tag;
    inner->buf = op->buf;
    memcpy(wefti_op_scratch_at(inner), wefti_op_scratch_at(op), WEFTI_OP_SCRATCH_SIZE);
    wefti_op_begin_own(me->rt, inner, &kind);
    return w->ops->give(inner, msg);
}

/* Compare the wants that it does not know yet with what it holds. True: `msg` was received. */
static bool look(wefti_wants_t *w, wefti_wants_shard_t *me, const void *msg)
{
    bool taken = false;
    void *found;
    if (atomic_load(&w->last) == me->looked)
        return false;
    for (wefti_want_t *want; (want = take_new(w, me, &found));)
        taken |= serve(w, me, want, found) && found == msg;
    return taken;
}

/* It holds messages, and there are new wants. */
static void look_again(wefti_call_t *call)
{
    wefti_wants_shard_t *me = wefti_container_of(call, wefti_wants_shard_t, call);
    wefti_wants_t *w = me->wants;
    atomic_store(&me->called, false);
    look(w, me, NULL);
    if (atomic_load(&w->n) && wefti_flow_n_starving(me->rt)) /* what is wanted may be among what its peer cannot send */
        wefti_outbox_tell_starving(me->rt, NULL, w->ops->traffic);
}

void wefti_wants_before(wefti_wants_t *w, const weft_runtime_t *rt)
{
    look(w, shard_of(w, wefti_shard_number(rt)), NULL);
}

bool wefti_wants_offer(wefti_wants_t *w, const weft_runtime_t *rt, uint64_t key, void *msg)
{
    wefti_wants_shard_t *me = shard_of(w, wefti_shard_number(rt));
    if (!atomic_load(&w->n))
        return false;
    for (wefti_want_t *want; (want = take(w, me, key));)
        if (serve(w, me, want, msg))
            return true;
    return look(w, me, msg);
}

/* --- posting and ending: on the driver of the head ------------------------------------------------------------------------ */

static wefti_want_t *want_new(wefti_wants_t *w)
{
    pthread_mutex_lock(&w->lock);
    wefti_want_t *want = wefti_spares_get(&w->spares, sizeof *want);
    pthread_mutex_unlock(&w->lock);
    if (want) {
        memset(&want->call, 0, sizeof want->call);
        want->call.fn = served;
        want->wants = w;
    }
    return want;
}

static void call_holders(wefti_wants_t *w)
{
    for (uint32_t k = 0, n = wefti_n_shards(w->head); k < n; k++) {
        wefti_wants_shard_t *s = shard_of(w, k);
        if (!atomic_load(&s->held) || atomic_exchange(&s->called, true))
            continue;
        if (!wefti_call_on_driver(s->rt, &s->call)) /* it is closed */
            atomic_store(&s->called, false);
    }
}

weft_status_t wefti_wants_post(wefti_wants_t *w, weft_op_t *op, uint64_t key, uint64_t mask, wefti_want_t **slot)
{
    wefti_want_t *want = want_new(w);
    if (!want)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a receive from any endpoint");
    weft_status_t st = wefti_op_track(op);
    if (st) {
        wefti_free(want);
        return st;
    }
    op->status = WEFT_OK; /* while it is under way: what it was asked to end with */
    want->op = op;
    want->key = key;
    want->mask = mask;
    *slot = want;
    wefti_list_push_back(&w->under_way, &want->owner);
    pthread_mutex_lock(&w->lock);
    put_up(w, want);
    pthread_mutex_unlock(&w->lock);
    call_holders(w);
    return WEFT_OK;
}

void wefti_wants_cancel(wefti_want_t *want, weft_status_t why)
{
    wefti_wants_t *w = want->wants;
    pthread_mutex_lock(&w->lock);
    bool ours = wefti_list_linked(&want->all);
    if (ours)
        take_down(w, want);
    pthread_mutex_unlock(&w->lock);
    if (ours)
        finish(want, why, 0);
    else
        want->op->status = why;
}

void wefti_wants_shutdown(wefti_wants_t *w, const weft_runtime_t *rt)
{
    if (!w || w->head != rt)
        return;
    wefti_list_each_safe(l, &w->under_way)
        wefti_wants_cancel(wefti_container_of(l, wefti_want_t, owner), WEFT_ERR_CLOSED);
}

bool wefti_wants_idle(const wefti_wants_t *w, const weft_runtime_t *rt)
{
    return !w || w->head != rt || wefti_list_empty(&w->under_way);
}

weft_runtime_t *wefti_wants_holder(const wefti_wants_t *w, uint32_t first, uint32_t *i)
{
    for (uint32_t n = wefti_n_shards(w->head); *i < n;) {
        const wefti_wants_shard_t *s = shard_of(w, (first + (*i)++) % n);
        if (atomic_load(&s->held))
            return s->rt;
    }
    return NULL;
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

static weft_status_t add(wefti_wants_t *w, weft_runtime_t *rt)
{
    wefti_wants_shard_t *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the receives of one more shard");
    s->wants = w;
    s->rt = rt;
    s->call.fn = look_again;
    atomic_store(&w->shards[wefti_shard_number(rt)], s);
    return WEFT_OK;
}

static weft_status_t make(weft_runtime_t *head, const wefti_wants_ops_t *ops, wefti_wants_t **out)
{
    wefti_wants_t *w = wefti_calloc(1, sizeof *w);
    if (!w)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the receives of several shards");
    w->ops = ops;
    w->head = head;
    wefti_list_init(&w->under_way);
    wefti_list_init(&w->all);
    wefti_list_init(&w->masked);
    for (int i = 0; i < WEFTI_WANTS_CHAINS; i++)
        wefti_list_init(&w->chains[i]);
    pthread_mutex_init(&w->lock, NULL);
    weft_status_t st = add(w, head);
    if (st)
        wefti_wants_free(w);
    else
        *out = w;
    return st;
}

weft_status_t wefti_wants_attach(weft_runtime_t *rt, const wefti_wants_ops_t *ops, wefti_wants_t **of_head, wefti_wants_t **wants)
{
    weft_status_t st = *of_head ? WEFT_OK : make(wefti_head(rt), ops, of_head);
    if (!st)
        st = add(*of_head, rt);
    if (!st)
        *wants = *of_head;
    return st;
}

void wefti_wants_free(wefti_wants_t *w)
{
    if (!w)
        return;
    for (uint32_t k = 0; k < WEFT_SHARDS_MAX; k++)
        wefti_free(shard_of(w, k));
    wefti_spares_free(&w->spares);
    pthread_mutex_destroy(&w->lock);
    wefti_free(w);
}
