/* store/later.c - requests for memory that wait until other memory is given back.
 *
 * The memory of a large block is given back in steps, and the server goes on between them. A client that frees a block and
 * allocates the next must not hear that the server is full only because of that. Such a request is kept, and served when a
 * block is gone. One that would not fit even then is refused at once.
 *
 * Nobody waits for ever: each block that is gone lets all of them try again, and none waits when no memory is on its way back.
 * STORE_OWED bounds what waits for one peer. What waits is dropped with the connection: the client asks again over the next
 * one. tests/wire/store_full.c. */
#include "store/state.h"

typedef struct later {
    wefti_list_t link; /* weft_store_server_t.later */
    weft_ep_id_t ep;
    size_t n;
    uint8_t bytes[]; /* the request as it came */
} later_t;

bool wefti_store_later(weft_store_server_t *s, const store_client_t *c, weft_ep_id_t ep, const store_request_t *q,
                       const void *bytes, size_t n)
{
    if (!wefti_store_block_fits_later(s, c, q))
        return false;
    later_t *l = (later_t *)wefti_malloc(sizeof *l + n);
    if (!l)
        return false;
    l->ep = ep;
    l->n = n;
    memcpy(l->bytes, bytes, n);
    wefti_list_push_back(&s->later, &l->link);
    return true;
}

void wefti_store_later_again(weft_store_server_t *s)
{
    size_t n = 0; /* those that wait again are added to the other list */
    wefti_list_each(l, &s->later)
        n++;
    for (wefti_list_t *at; n && (at = wefti_list_first(&s->later)); n--) {
        later_t *l = wefti_container_of(at, later_t, link);
        weft_ep_t *ep = weft_ep_find(s->ss->rt, l->ep);
        wefti_list_remove(&l->link);
        if (ep)
            wefti_store_serve(s->ss, ep, l->bytes, l->n);
        wefti_free(l);
    }
}

void wefti_store_later_down(weft_store_server_t *s, weft_ep_id_t ep)
{
    wefti_list_each_safe(at, &s->later) {
        later_t *l = wefti_container_of(at, later_t, link);
        if (ep && l->ep != ep)
            continue;
        wefti_list_remove(at);
        wefti_free(l);
    }
}
