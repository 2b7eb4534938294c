/* store/rules.c - the policy and memory: what a client may ask of a server, by the identity of its peer (weft/policy.h).
 *
 * A verdict is asked for each request that names a block, before anything is done. How many bytes an identity has is counted over
 * all of its clients and blocks, those that nobody pays for any more included: only if a rule sets a limit.
 *
 * Its own blocks a client may do all with. A shared one belongs to nobody, its maker included (policy_store.c).
 *
 * Promise: a request that the policy does not allow changes nothing and gets no key. tests/wire/policy_store.c. */
#include "store/state.h"

uint64_t wefti_store_who(const weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    if (!ep || weft_ep_get_info(ep, &info))
        return 0;
    return wefti_hash_bytes(info.identity, strlen(info.identity)) | 1;
}

static uint64_t bytes_of(const weft_store_server_t *s, uint64_t who)
{
    uint64_t n = 0;
    wefti_list_each(l, &s->block_list) {
        const store_held_t *b = wefti_container_of(l, store_held_t, link);
        n += b->who == who ? b->len : 0;
    }
    return n;
}

/* `more` bytes, under that name. */
static weft_status_t allocate(const weft_store_server_t *s, weft_ep_t *ep, const char *name, uint64_t more)
{
    uint64_t limit;
    weft_status_t st = weft_ep_may(ep, WEFT_MAY_ALLOCATE, name, &limit);
    if (st || limit == UINT64_MAX)
        return st;
    uint64_t used = bytes_of(s, wefti_store_who(ep));
    return used <= limit && more <= limit - used ? WEFT_OK : WEFT_ERR_LIMIT;
}

static const char *name_of(const char *name, size_t n, char text[WEFT_RMA_NAME_MAX + 1])
{
    n = n < WEFT_RMA_NAME_MAX ? n : WEFT_RMA_NAME_MAX;
    if (n)
        memcpy(text, name, n);
    text[n] = '\0';
    return text;
}

/* A block is its maker's own until it is shared, though its maker goes on paying for it. */
static bool is_own(const store_held_t *b, const store_client_t *c)
{
    return !b->shared && b->payer == c;
}

/* One that is not the client's own. */
static weft_status_t change(const store_held_t *b, const store_client_t *c, weft_ep_t *ep)
{
    char text[WEFT_RMA_NAME_MAX + 1];
    return !b || is_own(b, c) ? WEFT_OK : weft_ep_may(ep, WEFT_MAY_WRITE, name_of(b->name, b->name_len, text), NULL);
}

/* One that exists gets longer. What an identity has shared still counts as its bytes. */
static weft_status_t extend(const store_held_t *b, const store_client_t *c, weft_ep_t *ep, uint64_t len)
{
    char text[WEFT_RMA_NAME_MAX + 1];
    const char *name = b ? name_of(b->name, b->name_len, text) : "";
    uint64_t more = b && len > b->len ? len - b->len : 0;
    weft_status_t st = change(b, c, ep);
    if (st || !b)
        return st;
    bool counts = is_own(b, c) || (b->who == wefti_store_who(ep) && weft_ep_allowed(ep, WEFT_MAY_ALLOCATE, name));
    return counts ? allocate(b->server, ep, name, more) : WEFT_OK;
}

weft_status_t wefti_store_rules(const weft_store_server_t *s, const store_client_t *c, weft_ep_t *ep, const store_request_t *q,
                                uint32_t *rights_out)
{
    char text[WEFT_RMA_NAME_MAX + 1];
    const char *name = name_of(q->name, q->name_len, text);
    const store_held_t *b = q->name_len ? wefti_store_names_find(&s->names, q->name, q->name_len) : NULL;
    weft_status_t st;
    switch (q->kind) {
    case STORE_ALLOC:
    case STORE_R_MAKE:
        return allocate(s, ep, name, q->len);
    case STORE_SHARE:
        st = allocate(s, ep, name, 0);
        return st || !(q->flags & STORE_REPLACE) ? st : change(b, c, ep);
    case STORE_EXTEND:
        return extend((const store_held_t *)wefti_slots_get(&s->blocks, q->block), c, ep, q->len);
    case STORE_FREE:
        return change((const store_held_t *)wefti_slots_get(&s->blocks, q->block), c, ep);
    case STORE_REMOVE:
        return change(b, c, ep);
    case STORE_FIND:
        if ((b && is_own(b, c)) || weft_ep_allowed(ep, WEFT_MAY_WRITE, name))
            return WEFT_OK;
        if (!b && weft_ep_allowed(ep, WEFT_MAY_ALLOCATE, name))
            return WEFT_OK; /* it may be told that the name is free: it could try to take it */
        *rights_out = WEFT_RMA_READ;
        return weft_ep_may(ep, WEFT_MAY_READ, name, NULL);
    case STORE_R_GET:
        return weft_ep_allowed(ep, WEFT_MAY_WRITE, name) ? WEFT_OK : weft_ep_may(ep, WEFT_MAY_READ, name, NULL);
    case STORE_R_SET:
    case STORE_R_RENEW:
    case STORE_R_SEAL:
    case STORE_R_UNMAKE:
        return weft_ep_may(ep, WEFT_MAY_WRITE, name, NULL);
    default:
        return WEFT_OK;
    }
}

bool wefti_store_rules_lists(const store_held_t *b, const store_client_t *c, weft_ep_t *ep)
{
    char text[WEFT_RMA_NAME_MAX + 1];
    const char *name = name_of(b->name, b->name_len, text);
    return is_own(b, c) || weft_ep_allowed(ep, WEFT_MAY_READ, name) || weft_ep_allowed(ep, WEFT_MAY_WRITE, name);
}
