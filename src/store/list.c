/* store/list.c - listing the blocks of a server, page by page.
 *
 * A reply has as many names as fit; the next request asks for those after the last. A block that comes or goes meanwhile may be
 * in the list or not. No name is in it twice, and no block that was there all the time is missing. The program's function may
 * do anything, also cancel the list or close the store.
 *
 * tests/wire/store_list.c. */
#include "store/state.h"

void wefti_store_list_answer(store_ask_t *a, const store_reply_t *p)
{
    uint8_t entries[STORE_REPLY_MAX]; /* the program's function may close the endpoint, whose memory p is in */
    bool more = p->flags & STORE_MORE;
    size_t n = 0;
    if (p->status || !a->op) {
        wefti_store_ask_end(a, p->status);
        return;
    }
    memcpy(entries, p->entries, p->entries_len);
    wefti_reader_t r = wefti_reader(entries, p->entries_len);
    store_entry_t e;
    for (; a->op && wefti_store_get_entry(&r, &e); n++) {
        if (wefti_store_names_order(a->names[1], a->q.after_len, e.name, e.name_len) >= 0) {
            r.bad = true;
            break;
        }
        memcpy(a->names[1], e.name, e.name_len);
        a->names[1][e.name_len] = 0;
        a->q.after_len = e.name_len;
        a->count++;
        weft_block_info_t info = WEFT_BLOCK_INFO_INIT;
        info.name = a->names[1];
        info.len = e.len;
        info.max_len = e.max_len;
        info.age_ns = e.age_ns;
        info.attached = e.attached;
        info.shared = e.flags & STORE_E_SHARED;
        info.ours = e.flags & STORE_E_OURS;
        a->fn(&info, a->fn_user);
    }
    if (r.bad || (more && !n)) {
        if (wefti_store_ep(a->store))
            weft_ext_ep_break(a->store->ep, WEFT_ERR_PROTOCOL, "a list of blocks that is none");
        wefti_store_ask_end(a, WEFT_ERR_PROTOCOL);
    } else if (more && a->op) {
        wefti_store_ask_again(a);
    } else {
        if (a->op)
            a->op->len = a->count;
        wefti_store_ask_end(a, WEFT_OK);
    }
}

weft_status_t weft_store_list(weft_store_t *store, const char *prefix, weft_block_fn fn, void *user, weft_op_t *op)
{
    store_ask_t *a;
    if (!fn)
        return weft_fail(WEFT_ERR_INVALID, "a list needs a function to call");
    if (prefix && strnlen(prefix, WEFT_RMA_NAME_MAX + 1) > WEFT_RMA_NAME_MAX)
        return weft_fail(WEFT_ERR_INVALID, "a name has at most %u bytes, and so has the beginning of one", WEFT_RMA_NAME_MAX);
    weft_status_t st = wefti_store_ask_for(store, op, STORE_LIST, prefix, &a);
    if (st)
        return st;
    a->fn = fn;
    a->fn_user = user;
    return wefti_store_ask_go(a, op);
}
