/* rma/window.c - a window of a long mapped access, which idle threads copy together with the driver.
 *
 *     driver:  enters the slot, opens the window --> copies parts, a step's worth a round --> all are copied: leaves the slot
 *     hands:   (base/hands.h)                        copy parts
 *
 * A window is as long as one step of the driver and one of each hand that may come. So it takes as long as a step where they
 * come. Where none comes the driver copies all of it, in as many rounds, and looks at everything else in between; that is also
 * what it does while a hand that has begun a part does not get on. The slot is busy all the time: between two windows it is
 * free, as between two steps. A runtime has one window at a time.
 *
 * An access that ends before its window is over (it was cancelled, its time or its connection ended) waits for parts that hands
 * are at, since its buffer is the program's again afterwards: 10 us, unless one has lost its processor.
 *
 * What is copied is memory of this process and a mapping that cannot shrink (fabric/shm/expose.c), so a hand can no more fail
 * than the driver.
 *
 * Promise: nobody touches the slot's memory or the access's buffer when its window is closed. tests/wire/rma_hands_thread.c. */
#include "rma/mapped.h"

#define PART (64u << 10) /* 10 us: what an access that is cancelled waits for */
#define LEAST (2u << 20) /* bytes of an access from which it pays: a hand that sleeps needs 50 us to come */

static void copy_part(void *arg, uint32_t i)
{
    const rma_window_t *w = (const rma_window_t *)arg;
    uint64_t skip = (uint64_t)i * PART, n = w->len - skip < PART ? w->len - skip : PART, at = w->from + skip;
    uint8_t *there = w->acc->remote->bytes + w->acc->offset + at;
    if (w->acc->what == ACC_READ)
        (void)wefti_rma_scatter(w->acc, at, there, n); /* of memory of the host: it cannot fail */
    else
        (void)wefti_rma_gather(w->acc, at, there, n);
}

bool wefti_rma_window_open(rma_acc_t *acc)
{
    rma_state_t *rs = acc->remote->rs;
    rma_window_t *w = &rs->window;
    uint64_t left = acc->len - acc->stepped;
    if (acc->len < LEAST || left <= wefti_rma_step_bytes || acc->device || acc->what > ACC_WRITE || w->acc)
        return false;
    uint32_t hands = wefti_hands_of(rs->rt);
    if (!hands)
        return false;
    uint64_t most = wefti_rma_step_bytes * (1 + hands);
    *w = (rma_window_t){.acc = acc, .from = acc->stepped, .len = left < most ? left : most};
    if (wefti_hands_offer(&w->offer, copy_part, w, (uint32_t)((w->len + PART - 1) / PART), hands))
        return true;
    w->acc = NULL;
    return false;
}

bool wefti_rma_window_work(rma_acc_t *acc, uint64_t most, uint64_t *n_out)
{
    rma_window_t *w = &acc->remote->rs->window;
    for (uint64_t did = 0; did < most && wefti_hands_work(&w->offer);)
        did += PART;
    if (!wefti_hands_over(&w->offer))
        return false;
    *n_out = w->len;
    w->acc = NULL;
    return true;
}

void wefti_rma_window_stop(weft_remote_t *r, const rma_acc_t *acc)
{
    rma_window_t *w = &r->rs->window;
    if (!w->acc || w->acc->remote != r || (acc && w->acc != acc))
        return;
    wefti_hands_stop(&w->offer);
    (void)rma_leave(r); /* it ends: whether it was stale does not matter any more */
    w->acc = NULL;
}
