/* store/refusal.c - what a request says that its server refused.
 *
 * The server answers with a status; what was asked for is known here, so the sentence is made here. tests/wire/sentences.c. */
#include "store/state.h"

/* The name that it was about, in quotes; "" where there was none. */
static const char *quoted(const store_ask_t *a, char text[WEFT_RMA_NAME_MAX + 4])
{
    if (!a->q.name_len)
        return "";
    snprintf(text, WEFT_RMA_NAME_MAX + 4, " \"%.*s\"", (int)a->q.name_len, a->q.name);
    return text;
}

static uint64_t about_state(const store_ask_t *a, const weft_ep_t *ep, const char *name)
{
    switch (a->kind) {
    case STORE_ALLOC:
        return weft_ext_sentence(ep, "the name%s is taken", name);
    case STORE_SHARE:
        return weft_ext_sentence(ep, "the name%s is taken, or the block is shared already or another client's", name);
    case STORE_FIND:
        return weft_ext_sentence(ep, "the block%s is a copy of a mirror, which weft_mirror_open() opens", name);
    case STORE_EXTEND:
    case STORE_FREE:
    case STORE_REMOVE:
        return weft_ext_sentence(ep, "the block%s is another client's", name);
    default:
        return 0;
    }
}

static uint64_t about_permission(const store_ask_t *a, const weft_ep_t *ep, const char *name)
{
    const char *what = a->kind == STORE_ALLOC || a->kind == STORE_R_MAKE ? "to allocate a block"
                       : a->kind == STORE_SHARE                          ? "to give a block the name"
                       : a->kind == STORE_FIND || a->kind == STORE_R_GET ? "to read the block"
                                                                         : "to change the block";
    return weft_ext_sentence(ep, "the policy of the memory server does not allow this client %s%s", what, name);
}

static uint64_t about_limit(const store_ask_t *a, const weft_ep_t *ep)
{
    unsigned long long len = a->q.len;
    switch (a->kind) {
    case STORE_OPEN:
        return weft_ext_sentence(ep, "the memory server has as many clients as it takes");
    case STORE_ALLOC:
    case STORE_R_MAKE:
        return weft_ext_sentence(
            ep, "the memory server has no room for a block of %llu bytes, or this client has its share of bytes or blocks", len);
    case STORE_EXTEND:
        return weft_ext_sentence(
            ep, "the block cannot be extended to %llu bytes: the memory server has no room, or this client has its share", len);
    default:
        return 0;
    }
}

uint64_t wefti_store_refusal(const store_ask_t *a, const weft_ep_t *ep, const store_reply_t *p)
{
    char text[WEFT_RMA_NAME_MAX + 4];
    const char *name = quoted(a, text);
    switch (p->status) {
    case WEFT_ERR_NOTFOUND:
        if (a->q.name_len)
            return weft_ext_sentence(ep, "there is no block%s", name);
        return weft_ext_sentence(ep, "the block is not there any more");
    case WEFT_ERR_STATE:
        return about_state(a, ep, name);
    case WEFT_ERR_LIMIT:
        return about_limit(a, ep);
    case WEFT_ERR_PERMISSION:
        return about_permission(a, ep, name);
    case WEFT_ERR_RANGE:
        return weft_ext_sentence(ep, "a block gets longer only, and this one has more than %llu bytes",
                                 (unsigned long long)a->q.len);
    case WEFT_ERR_STALE:
        if (!(p->flags & STORE_LEASE_OVER))
            return 0;
        return weft_ext_sentence(ep,
                                 "the lease of this store is over, and its blocks that were not shared are gone; open it again");
    case WEFT_ERR_UNSUPPORTED:
        return weft_ext_sentence(ep, "it serves no memory");
    default:
        return 0;
    }
}
