/* rma/carried.c - accesses of few bytes whose buffer is in device memory: the device is not waited for.
 *
 *     write:  FETCHING (the device copies to a carry; it waits in its list, and others behind it) --> in its turn it is sent, or
 *             written to mapped memory, out of the carry
 *     read:   its bytes come, into a carry --> ACC_CARRY (the device copies from it) --> ended
 *
 * As long as an access has a carry, wefti_rma_scatter() and wefti_rma_gather() copy to it and from it. Without a carry, or with
 * a kind of memory that the library does not know, the device is waited for. A long access moves as a payload (checked.c), or
 * in steps (mapped.c): steps would wait for the device, so the owner is asked then.
 *
 * Cancelling. The device has the buffer while it copies: the access ends when that is over.
 *
 * Promise: each access ends once, and not before the device is done with its buffer. tests/wire/rma_carried.c. */
#include "rma/carried.h"

static bool few(const rma_acc_t *acc)
{
    return acc->len && acc->len <= WEFTI_CARRY_MAX && wefti_device_known(acc->device);
}

bool wefti_rma_carry_cannot(const rma_acc_t *acc)
{
    return acc->len > WEFTI_CARRY_MAX && wefti_device_known(acc->device);
}

void wefti_rma_carry_new(rma_acc_t *acc)
{
    if (acc->big || !few(acc))
        return;
    wefti_carry_t *carry = wefti_carry_get(acc->remote->rt, acc->len);
    rma_big_acc_t *big = carry ? wefti_rma_big_new(acc, 0) : NULL;
    if (big) {
        big->carry = carry;
        carry->user = big;
        acc->big = big;
    } else if (carry) {
        wefti_carry_put(acc->remote->rt, carry);
    }
}

void wefti_rma_big_free(rma_acc_t *acc)
{
    if (acc->big && acc->big->carry)
        wefti_carry_put(acc->remote->rt, acc->big->carry);
    wefti_free(acc->big);
    acc->big = NULL;
}

/* Its bytes are in the carry, or will never be. */
static void fetched(wefti_carry_t *carry, weft_status_t status)
{
    rma_big_acc_t *big = (rma_big_acc_t *)carry->user;
    rma_acc_t *acc = big->acc;
    weft_remote_t *r = acc->remote;
    uint8_t state = acc->state;
    big->carrying = false;
    r->refs++;
    if (big->why)
        status = big->why;
    if (status) {
        if (state != ACC_CARRY)
            wefti_list_remove(&acc->link);
        wefti_rma_end(acc, status);
    }
    if (state == ACC_STEPS)
        wefti_rma_steps_go(r);
    else if (r->ep && r->ep->lane)
        wefti_rma_pending_flush(r->ep); /* it, or what waited behind it */
    wefti_rma_remote_unref(r);
}

/* Start to copy. False: no memory. */
static bool start(rma_acc_t *acc, void (*done)(wefti_carry_t *carry, weft_status_t status))
{
    weft_runtime_t *rt = acc->remote->rt;
    weft_iov_t one = {acc->iov_n ? NULL : acc->buf, acc->len};
    const weft_iov_t *iov = acc->iov_n ? acc->iov : &one;
    wefti_carry_t *carry = acc->big->carry;
    carry->done = done;
    return acc->big->carrying = acc->what == ACC_WRITE ? !wefti_carry_from(rt, carry, acc->device, iov)
                                                       : !wefti_carry_to(rt, carry, acc->device, iov);
}

void wefti_rma_carry_fetch(rma_acc_t *acc)
{
    if (acc->big) /* it has them already */
        return;
    wefti_rma_carry_new(acc);
    if (acc->big && !start(acc, fetched))
        wefti_rma_big_free(acc);
}

static void placed(wefti_carry_t *carry, weft_status_t status)
{
    rma_big_acc_t *big = (rma_big_acc_t *)carry->user;
    big->carrying = false;
    wefti_rma_end(big->acc, status && big->why ? big->why : status);
}

weft_status_t wefti_rma_carry_place(rma_acc_t *acc)
{
    if (!acc->big || !acc->big->carry || acc->what != ACC_READ)
        return WEFT_OK;
    if (start(acc, placed)) {
        acc->state = ACC_CARRY;
        return WEFT_ERR_PENDING;
    }
    wefti_carry_t *carry = acc->big->carry; /* no memory: the device is waited for */
    acc->big->carry = NULL;
    weft_status_t st = wefti_rma_scatter(acc, 0, carry->iov.base, acc->len);
    wefti_carry_put(acc->remote->rt, carry);
    return st;
}

void wefti_rma_carry_down(rma_acc_t *acc, weft_status_t why)
{
    if (!acc->big->why)
        acc->big->why = why;
    acc->state = ACC_CARRY;
}
