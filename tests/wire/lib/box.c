/* tests/wire/lib/box.c - see box.h. */
#include "box.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "must.h"

box_t *box_new(box_does_t does)
{
    box_t *box = (box_t *)calloc(1, sizeof *box);
    must(box ? WEFT_OK : WEFT_ERR_NOMEM, "box_new");
    box->does = does;
    return box;
}

void box_set(box_t *box, box_does_t does, void *buf, size_t cap, uint32_t reason)
{
    box->does = does;
    box->buf = buf;
    box->cap = cap;
    box->reason = reason;
    box->pull = (weft_op_t)WEFT_OP_INIT;
    box->status = WEFT_OK;
    atomic_fetch_add(&box->n, 0); /* the handler begins by reading it: what is above comes before that, on whichever thread */
}

void box_empty(box_t *box)
{
    for (unsigned i = 0; i < BOX_KEPT_MAX; i++) {
        weft_am_release(box->kept[i]);
        box->kept[i] = NULL;
    }
}

void box_free(box_t *box)
{
    for (unsigned i = 0; i < BOX_KEPT_MAX; i++)
        must(box->kept[i] ? WEFT_ERR_STATE : WEFT_OK, "a box is freed with messages in it");
    free(box);
}

void box_handler(weft_am_t *am, void *user)
{
    box_t *box = (box_t *)user;
    unsigned n = atomic_load(&box->n);
    box->last = *am;
    box->header_right = pattern_check(am->header, am->header_len, am->id + 1);
    box->data_right = am->data ? pattern_check(am->data, am->len, am->id) : 0;
    switch (box->does) {
    case BOX_LOOKS:
        break;
    case BOX_PULLS:
        if (am->len && !am->data)
            box->status = weft_am_pull(am, box->buf, box->cap, &box->pull);
        break;
    case BOX_KEEPS:
        must(n < BOX_KEPT_MAX ? WEFT_OK : WEFT_ERR_LIMIT, "a box that is full");
        box->kept[n] = weft_am_keep(am);
        must(box->kept[n] ? WEFT_OK : WEFT_ERR_NOMEM, "weft_am_keep");
        break;
    case BOX_REJECTS:
        box->status = weft_am_reject(am, box->reason);
        break;
    }
    atomic_store(&box->n, n + 1);
}

void box_handle(pair_t *pair, int side, uint32_t id, box_t *box)
{
    weft_op_t done = WEFT_OP_INIT;
    must(weft_am_handle(pair->rt[side], id, box ? box_handler : NULL, box, &done), "weft_am_handle");
    must(pair_wait(pair, &done, 5), "weft_am_handle");
}

static void *filled(size_t len, uint64_t seed)
{
    void *p = malloc(len + 1);
    must(p ? WEFT_OK : WEFT_ERR_NOMEM, "malloc");
    pattern_fill(p, len, seed);
    return p;
}

void *box_header(uint32_t id, size_t len)
{
    return filled(len, id + 1);
}

void *box_payload(uint32_t id, size_t len)
{
    return filled(len, id);
}
