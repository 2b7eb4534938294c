/* mem/carry.h - a few bytes on their way from or to a device, through page-locked memory; part of the door mem/mem.h.
 *
 * A message that fits a record is copied from a device to a carry before it goes into the record, and from the record to a carry
 * before it goes to a device: so no call waits for a device, and the record's memory is free at once.
 *
 * Driver only. */
#ifndef WEFTI_CARRY_H
#define WEFTI_CARRY_H

#include "mem/device.h"

#define WEFTI_CARRY_MAX 8704u  /* bytes: what fits a record of any lane */
#define WEFTI_CARRIES_MAX 256u /* out at a time, of a runtime */

typedef struct wefti_carry wefti_carry_t;
struct wefti_carry {
    void (*done)(wefti_carry_t *carry, weft_status_t status); /* set by the owner: see wefti_copy_t */
    void *user;
    weft_iov_t iov; /* its memory; len: how much of it is in use */
    /* mem's */
    wefti_copy_t copy;
    wefti_list_t link;
};

/* One for len bytes. NULL: len is 0 or too much, all are out, or there is no memory. */
wefti_carry_t *wefti_carry_get(weft_runtime_t *rt, uint64_t len);
void wefti_carry_put(weft_runtime_t *rt, wefti_carry_t *carry); /* not before it is done, if it was started */
/* Copy all of it, from the pieces of a device or to them. WEFT_OK: done is called; or WEFT_ERR_NOMEM. */
weft_status_t wefti_carry_from(weft_runtime_t *rt, wefti_carry_t *carry, const weft_mem_kind_t *device, const weft_iov_t *iov);
weft_status_t wefti_carry_to(weft_runtime_t *rt, wefti_carry_t *carry, const weft_mem_kind_t *device, const weft_iov_t *iov);
/* All of that for bytes that are somebody else's: they are copied, and go on to the device by themselves. done gets a carry to
 * put. false: there is none, and the device has to be waited for. */
bool wefti_carry_bytes(weft_runtime_t *rt, const void *bytes, uint64_t len, const weft_mem_kind_t *device, const weft_iov_t *iov,
                       void (*done)(wefti_carry_t *carry, weft_status_t status), void *user);

#endif
