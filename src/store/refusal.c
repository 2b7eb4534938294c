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

static void about_state(const store_ask_t *a, weft_ep_t *ep, const char *name)
{
    switch (a->kind) {
    case STORE_ALLOC:
        wefti_ep_says(ep, "the name%s is taken", name);
        break;
    case STORE_SHARE:
        wefti_ep_says(ep, "the name%s is taken, or the block is shared already or another client's", name);
        break;
    case STORE_FIND:
        wefti_ep_says(ep, "the block%s is a copy of a mirror, which weft_mirror_open() opens", name);
        break;
    case STORE_EXTEND:
    case STORE_FREE:
    case STORE_REMOVE:
        wefti_ep_says(ep, "the block%s is another client's", name);
        break;
    default:
        break;
    }
}

static void about_limit(const store_ask_t *a, weft_ep_t *ep)
{
    unsigned long long len = a->q.len;
    switch (a->kind) {
    case STORE_OPEN:
        wefti_ep_says(ep, "the memory server has as many clients as it takes");
        break;
    case STORE_ALLOC:
    case STORE_R_MAKE:
        wefti_ep_says(
            ep, "the memory server has no room for a block of %llu bytes, or this client has its share of bytes or blocks", len);
        break;
    case STORE_EXTEND:
        wefti_ep_says(
            ep, "the block cannot be extended to %llu bytes: the memory server has no room, or this client has its share", len);
        break;
    default:
        break;
    }
}

void wefti_store_refusal(const store_ask_t *a, weft_ep_t *ep, const store_reply_t *p)
{
    char text[WEFT_RMA_NAME_MAX + 4];
    const char *name = quoted(a, text);
    switch (p->status) {
    case WEFT_ERR_NOTFOUND:
        wefti_ep_says(ep, a->q.name_len ? "there is no block%s" : "the block is not there any more%s", name);
        break;
    case WEFT_ERR_STATE:
        about_state(a, ep, name);
        break;
    case WEFT_ERR_LIMIT:
        about_limit(a, ep);
        break;
    case WEFT_ERR_RANGE:
        wefti_ep_says(ep, "a block gets longer only, and this one has more than %llu bytes", (unsigned long long)a->q.len);
        break;
    case WEFT_ERR_STALE:
        if (p->flags & STORE_LEASE_OVER)
            wefti_ep_says(ep, "the lease of this store is over, and its blocks that were not shared are gone; open it again");
        break;
    case WEFT_ERR_UNSUPPORTED:
        wefti_ep_says(ep, "it serves no memory");
        break;
    default:
        break;
    }
}
