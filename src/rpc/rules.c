/* rpc/rules.c - the policy and calls: which functions a peer may call, and whose services a client uses.
 *
 * A verdict is asked for when a client binds (bind_answer.c), and what it may call is remembered at its endpoint. The way of a
 * call knows nothing of that: as long as the policy limits calls, the table in which it finds functions is empty, and a call that
 * finds nothing comes here, where the endpoint's own table says whether it was bound. Without such a policy nothing of this is
 * looked at.
 *
 *     not limited (functions[] = pages[]) --a policy limits calls--> limited (functions[] is empty) --and back
 *
 * When the policy has changed (conn/recheck.h), what each endpoint remembers is judged again. A caller that may not any more is
 * told that it is not bound, asks again, and gets the sentence. Requests that run go on.
 *
 * Promise: while a policy limits calls, a peer reaches a function only after a verdict that let it. tests/wire/policy.c. */
#include "rpc/serve.h"

#include <stdio.h>

#include "rpc/client.h"

/* What the table of an endpoint has for a function: its check, or that it is not to be called. */
static void *bound_to(uint32_t check)
{
    return (void *)(uintptr_t)((uint64_t)check << 1 | 1);
}
#define NOT_BOUND bound_to(0)

/* Under rs->lock, or on the driver, which alone frees functions. */
static rpc_function_t *at(const rpc_state_t *rs, uint32_t slot)
{
    rpc_page_t page = atomic_load_explicit(&rs->pages[slot / RPC_PAGE], memory_order_acquire);
    return page ? atomic_load_explicit(&page[slot % RPC_PAGE], memory_order_acquire) : NULL;
}

/* Does the policy that is in force limit calls? The driver, and under rs->lock. */
static void follow(rpc_state_t *rs)
{
    uint64_t number = wefti_rules_number(rs->rt);
    if (rs->rules == number)
        return;
    rs->rules = number;
    rs->limited = wefti_rules_limit(rs->rt, WEFT_MAY_CALL);
    for (uint32_t i = 0; i < RPC_PAGES; i++)
        atomic_store_explicit(&rs->functions[i], rs->limited ? NULL : atomic_load(&rs->pages[i]), memory_order_release);
}

/* Under rs->lock. */
static weft_status_t judge(weft_ep_t *ep, const rpc_function_t *f, bool count)
{
    char name[2 * RPC_NAME + WEFT_SIG_TEXT];
    if (f->service->own)
        return WEFT_OK; /* what every runtime says of itself */
    snprintf(name, sizeof name, "%s.%s", f->service->name, weft_sig_name(f->sig));
    return wefti_ep_may(ep, WEFT_MAY_CALL, name, count, NULL);
}

weft_status_t wefti_rpc_rules_bind(rpc_state_t *rs, weft_ep_t *ep, const rpc_function_t *f)
{
    follow(rs);
    if (!rs->rules)
        return WEFT_OK;
    weft_status_t st = rs->limited ? judge(ep, f, true) : WEFT_OK;
    if (!st && wefti_map_put(&rpc_ep(ep)->may, f->slot + UINT64_C(1), bound_to(f->check)) && rs->limited)
        st = wefti_fail(WEFT_ERR_NOMEM, "the server has no memory for one more function of this client");
    return st;
}

rpc_function_t *wefti_rpc_rules_find(const rpc_state_t *rs, const weft_ep_t *ep, uint16_t slot, uint32_t check)
{
    rpc_function_t *f = rs->limited ? at(rs, slot) : NULL;
    bool bound = f && f->check == check && wefti_map_get(&rpc_ep(ep)->may, slot + UINT64_C(1)) == bound_to(check);
    return bound ? f : NULL;
}

/* What the peer was bound to, again. Under rs->lock. */
static void judge_again(rpc_state_t *rs, weft_ep_t *ep)
{
    wefti_map_t *may = &rpc_ep(ep)->may;
    uint64_t key;
    size_t i = 0;
    for (void *was; (was = wefti_map_next(may, &i, &key));) {
        const rpc_function_t *f = at(rs, (uint32_t)(key - 1));
        if (!f || was != bound_to(f->check) || judge(ep, f, false))
            (void)wefti_map_put(may, key, NOT_BOUND); /* in its place: the map stays as it is */
    }
}

/* Of conn/recheck.h. */
static weft_status_t welcome(void *user, weft_ep_t *ep)
{
    rpc_state_t *rs = (rpc_state_t *)user;
    rpc_ep_t *e = rpc_ep(ep);
    pthread_mutex_lock(&rs->lock);
    follow(rs);
    if (e->rules != rs->rules && rs->limited)
        judge_again(rs, ep);
    e->rules = rs->rules;
    pthread_mutex_unlock(&rs->lock);
    wefti_list_each(l, &e->servers) {
        weft_status_t st = wefti_rpc_reach_may(wefti_container_of(l, rpc_server_t, ep_link));
        if (st)
            return st;
    }
    return WEFT_OK;
}

weft_status_t wefti_rpc_rules_open(rpc_state_t *rs)
{
    return wefti_recheck_add(rs->rt, &(wefti_recheck_t){.welcome = welcome, .user = rs});
}
