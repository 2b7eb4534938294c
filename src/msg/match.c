/* msg/match.c - which receive gets which message.
 *
 * Two sets: receives that wait (posted), messages that wait (held). No member of one matches a member of the other: a newcomer
 * looks for its partner first.
 *
 * A message goes to the matching receive that was posted first; a receive takes the matching message that arrived first.
 * Receives with a full mask are in a hash table by (endpoint, tag) or (any, tag), the others in lists; up to four candidates
 * are compared by the number each got at its post. A message is in two tables (by endpoint and tag, by tag) and two lists, so
 * that an exact receive costs the same however many wait. Receives with a partial mask scan.
 *
 * With many receives each match finds its memory in no cache. So the fabric tells of some messages before they come, and the
 * lines of all of their receives are fetched at once, instead of one after the other.
 *
 * tests/unit/msg_match.c compares all of it with a list that is scanned from the front. */
#include "msg/state.h"

#define FIRST_BUCKETS_LOG2 8
#define GLANCES 2u /* receives of other tags that are passed over when memory is fetched */
#define MANY 4096u /* receives that take more memory than a processor keeps near: about 1 MiB */

static uint64_t key_of(weft_ep_id_t ep, uint64_t tag)
{
    /* Fibonacci hashing of both halves; the table takes the top bits. Multiplied once: numbers in a row are spread evenly. By
     * the square of this number they are not, and fill a tenth of the chains: tests/unit/msg_match.c. */
    return (tag ^ (tag >> 29)) * UINT64_C(0x9e3779b97f4a7c15) + ep * UINT64_C(0xd1b54a32d192ed03);
}

static wefti_list_t *bucket(const msg_table_t *t, uint64_t key)
{
    return &t->buckets[key >> t->shift];
}

static weft_status_t table_init(msg_table_t *t)
{
    uint32_t cap = 1u << FIRST_BUCKETS_LOG2;
    t->buckets = (wefti_list_t *)wefti_malloc(cap * sizeof *t->buckets);
    if (!t->buckets)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a matching table");
    for (uint32_t i = 0; i < cap; i++)
        wefti_list_init(&t->buckets[i]);
    t->cap = cap;
    t->n = 0;
    t->shift = 64 - FIRST_BUCKETS_LOG2;
    return WEFT_OK;
}

/* Twice the buckets; members keep their order. Without memory the chains just stay longer. */
static void table_grow(msg_table_t *t, uint64_t (*key)(wefti_list_t *member))
{
    uint32_t cap = t->cap * 2;
    wefti_list_t *buckets = (wefti_list_t *)wefti_malloc(cap * sizeof *buckets);
    if (!buckets)
        return;
    for (uint32_t i = 0; i < cap; i++)
        wefti_list_init(&buckets[i]);
    msg_table_t old = *t;
    t->buckets = buckets;
    t->cap = cap;
    t->shift--;
    for (uint32_t i = 0; i < old.cap; i++) {
        for (wefti_list_t *l; (l = wefti_list_pop(&old.buckets[i]));)
            wefti_list_push_back(bucket(t, key(l)), l);
    }
    wefti_free(old.buckets);
}

/* --- receives that wait ---------------------------------------------------------------------------------------------------- */

static uint64_t posted_key(wefti_list_t *l)
{
    weft_op_t *op = wefti_op_of_link(l);
    return key_of(msg_recv(op)->ep ? msg_recv(op)->ep->id : 0, op->tag);
}

__attribute__((cold, noinline)) static void grow_posted(msg_state_t *ms)
{
    table_grow(&ms->exact, posted_key);
    if (ms->exact.n >= MANY)
        ms->rt->fabric->look_ahead = true; /* for good: where there are fewer again, little is lost */
}

void wefti_msg_post(msg_state_t *ms, weft_op_t *op)
{
    msg_recv_t *r = msg_recv(op);
    wefti_list_t *link = &wefti_opx(op)->link;
    r->seq = ++ms->post_seq;
    wefti_list_push_back(r->ep ? &msg_ep(r->ep)->posted : &ms->of_any, &r->owner_link);
    if (r->mask == WEFT_TAG_FULL) {
        if (__builtin_expect(ms->exact.n >= ms->exact.cap, 0))
            grow_posted(ms);
        wefti_list_push_back(bucket(&ms->exact, posted_key(link)), link);
        ms->exact.n++;
        ms->exact_of_any += !r->ep;
    } else {
        wefti_list_push_back(r->ep ? &msg_ep(r->ep)->masked : &ms->masked_of_any, link);
    }
}

void wefti_msg_unpost(msg_state_t *ms, weft_op_t *op)
{
    msg_recv_t *r = msg_recv(op);
    wefti_list_remove(&r->owner_link);
    wefti_list_remove(&wefti_opx(op)->link);
    if (r->mask == WEFT_TAG_FULL) {
        ms->exact.n--;
        ms->exact_of_any -= !r->ep;
    }
}

static weft_op_t *first_exact(const msg_state_t *ms, weft_ep_t *ep, uint64_t tag)
{
    wefti_list_t *chain = bucket(&ms->exact, key_of(ep ? ep->id : 0, tag));
    wefti_list_each(l, chain) {
        weft_op_t *op = wefti_op_of_link(l);
        if (op->tag == tag && msg_recv(op)->ep == ep)
            return op;
    }
    return NULL;
}

static weft_op_t *first_masked(const wefti_list_t *list, uint64_t tag)
{
    wefti_list_each(l, list) {
        weft_op_t *op = wefti_op_of_link(l);
        if (!((op->tag ^ tag) & msg_recv(op)->mask))
            return op;
    }
    return NULL;
}

static weft_op_t *earlier(weft_op_t *a, weft_op_t *b)
{
    return !a ? b : !b ? a : msg_recv(a)->seq < msg_recv(b)->seq ? a : b;
}

weft_op_t *wefti_msg_take_posted(msg_state_t *ms, weft_ep_t *ep, uint64_t tag)
{
    msg_ep_t *m = msg_ep(ep);
    weft_op_t *op = NULL;
    if (!wefti_list_empty(&m->posted)) {
        op = first_exact(ms, ep, tag);
        if (!wefti_list_empty(&m->masked))
            op = earlier(op, first_masked(&m->masked, tag));
    }
    if (__builtin_expect(!wefti_list_empty(&ms->of_any), 0)) {
        if (ms->exact_of_any)
            op = earlier(op, first_exact(ms, NULL, tag));
        op = earlier(op, first_masked(&ms->masked_of_any, tag));
    }
    if (op)
        wefti_msg_unpost(ms, op);
    return op;
}

static inline void fetch(const void *p)
{
    __builtin_prefetch(p, 1); /* all of it will be written to */
}

/* The lines of it that a match and the next post touch. */
static void fetch_op(const weft_op_t *op)
{
    enum { HOT = offsetof(weft_op_t, priv) + offsetof(wefti_opx_t, scratch) + offsetof(msg_recv_t, x) };
    for (size_t at = 0; at < HOT; at += 64)
        fetch((const char *)op + at);
    fetch((const char *)op + HOT - 1);
}

/* The first of its tag, if it is not far into the chain, else the one where the look ends; the chain itself: there is none. */
static wefti_list_t *glance(const wefti_list_t *chain, uint64_t tag)
{
    wefti_list_t *l = chain->next;
    for (unsigned i = 0; i < GLANCES && l != chain && wefti_op_of_link(l)->tag != tag; i++)
        l = l->next;
    return l;
}

/* In steps, each for all of them: what one step reads was asked for in the step before, and comes while that goes on. */
void wefti_msg_fetch_posted(const msg_state_t *ms, const weft_ep_t *ep, const uint64_t *tags, unsigned n)
{
    const wefti_list_t *chains[WEFTI_AHEAD_MAX];
    weft_ep_id_t id = wefti_list_empty(&msg_ep(ep)->posted) ? 0 : ep->id;
    if (ms->exact.n < MANY)
        return;
    for (unsigned i = 0; i < n; i++) {
        chains[i] = bucket(&ms->exact, key_of(id, tags[i]));
        fetch(chains[i]);
    }
    for (unsigned i = 0; i < n; i++)
        if (!wefti_list_empty(chains[i]))
            fetch_op(wefti_op_of_link(chains[i]->next));
    for (unsigned i = 0; i < n; i++) { /* its neighbours in both of its lists are written to when it is taken out */
        wefti_list_t *l = glance(chains[i], tags[i]);
        if (l == chains[i])
            continue;
        if (l != chains[i]->next)
            fetch_op(wefti_op_of_link(l));
        fetch(l->next);
        fetch(l->prev);
        const wefti_list_t *owner = &msg_recv(wefti_op_of_link(l))->owner_link;
        fetch(owner->next);
        fetch(owner->prev);
    }
}

/* --- messages that wait ---------------------------------------------------------------------------------------------------- */

static uint64_t held_key_of_ep(wefti_list_t *l)
{
    weft_msg_t *msg = wefti_container_of(l, weft_msg_t, of_ep_link);
    return key_of(msg->from, msg->tag);
}

static uint64_t held_key_of_any(wefti_list_t *l)
{
    return key_of(0, wefti_container_of(l, weft_msg_t, of_any_link)->tag);
}

void wefti_msg_hold(msg_state_t *ms, weft_msg_t *msg)
{
    msg_table_t *of_ep = &ms->arrived_of_ep, *of_any = &ms->arrived_of_any;
    if (of_ep->n >= of_ep->cap)
        table_grow(of_ep, held_key_of_ep);
    if (of_any->n >= of_any->cap)
        table_grow(of_any, held_key_of_any);
    of_ep->n++;
    of_any->n++;
    wefti_list_push_back(bucket(of_ep, held_key_of_ep(&msg->of_ep_link)), &msg->of_ep_link);
    wefti_list_push_back(bucket(of_any, held_key_of_any(&msg->of_any_link)), &msg->of_any_link);
    wefti_list_push_back(&ms->arrived, &msg->all_link);
    wefti_list_push_back(&msg_ep(msg->ep)->arrived, &msg->ep_link);
}

void wefti_msg_unhold(msg_state_t *ms, weft_msg_t *msg)
{
    ms->arrived_of_ep.n--;
    ms->arrived_of_any.n--;
    wefti_list_remove(&msg->of_ep_link);
    wefti_list_remove(&msg->of_any_link);
    wefti_list_remove(&msg->all_link);
    wefti_list_remove(&msg->ep_link);
}

static weft_msg_t *find_exact_of_ep(msg_state_t *ms, weft_ep_t *ep, uint64_t tag)
{
    wefti_list_each(l, bucket(&ms->arrived_of_ep, key_of(ep->id, tag))) {
        weft_msg_t *msg = wefti_container_of(l, weft_msg_t, of_ep_link);
        if (msg->tag == tag && msg->ep == ep)
            return msg;
    }
    return NULL;
}

static weft_msg_t *find_exact_of_any(msg_state_t *ms, uint64_t tag)
{
    wefti_list_each(l, bucket(&ms->arrived_of_any, key_of(0, tag))) {
        weft_msg_t *msg = wefti_container_of(l, weft_msg_t, of_any_link);
        if (msg->tag == tag)
            return msg;
    }
    return NULL;
}

weft_msg_t *wefti_msg_find_held(msg_state_t *ms, weft_ep_t *ep, uint64_t tag, uint64_t mask)
{
    wefti_list_t *list = ep ? &msg_ep(ep)->arrived : &ms->arrived;
    if (__builtin_expect(wefti_list_empty(list), 1))
        return NULL;
    if (mask == WEFT_TAG_FULL)
        return ep ? find_exact_of_ep(ms, ep, tag) : find_exact_of_any(ms, tag);
    wefti_list_each(l, list) {
        weft_msg_t *msg = ep ? wefti_container_of(l, weft_msg_t, ep_link) : wefti_container_of(l, weft_msg_t, all_link);
        if (!((msg->tag ^ tag) & mask))
            return msg;
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_msg_match_init(msg_state_t *ms)
{
    wefti_list_init(&ms->masked_of_any);
    wefti_list_init(&ms->of_any);
    wefti_list_init(&ms->arrived);
    if (table_init(&ms->exact))
        return WEFT_ERR_NOMEM;
    if (table_init(&ms->arrived_of_ep))
        goto err_exact;
    if (table_init(&ms->arrived_of_any))
        goto err_of_ep;
    return WEFT_OK;

err_of_ep:
    wefti_free(ms->arrived_of_ep.buckets);
err_exact:
    wefti_free(ms->exact.buckets);
    return WEFT_ERR_NOMEM;
}

void wefti_msg_match_free(msg_state_t *ms)
{
    wefti_free(ms->exact.buckets);
    wefti_free(ms->arrived_of_ep.buckets);
    wefti_free(ms->arrived_of_any.buckets);
}
