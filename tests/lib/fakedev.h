/* tests/lib/fakedev.h - a device without hardware: memory that the processor must not touch, and that shows when it did.
 *
 * Every byte lies there XORed with a key of its allocation. So bytes that were moved past the kind's copy(), by memcpy or by
 * the kernel, into such memory, out of it, or from one such buffer to another, come out wrong. Addresses are recognised by
 * range, and the kind has no WEFT_MEM_CPU. Any thread. */
#ifndef FAKEDEV_H
#define FAKEDEV_H

#include <weft/mem.h>

const weft_mem_kind_t *fakedev(void); /* named "fakedev" */
void fakedev_install(void);           /* weft_mem_kind_add() */
void fakedev_remove(void);

/* Read and write its memory as the test sees it, whether it is installed or not. [p, p+n) lies in one allocation. */
void fakedev_peek(const void *p, void *host, size_t n);
void fakedev_poke(void *p, const void *host, size_t n);

/* Allocations that were not freed; copies made so far. */
size_t fakedev_live(void);
uint64_t fakedev_copies(void);
/* Let `after` more copies succeed, and let the ones after them fail with WEFT_ERR_SYSTEM, until it is told otherwise:
 * UINT64_MAX is never. */
void fakedev_fail_copies(uint64_t after);

#endif
