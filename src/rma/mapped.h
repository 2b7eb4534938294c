/* rma/mapped.h - touching memory of a peer that is mapped here: the inline parts, for post.c, batch.c and mapped.c. */
#ifndef WEFTI_RMA_MAPPED_H
#define WEFTI_RMA_MAPPED_H

#include "rma/state.h"

/* Enter the mapped memory: WEFT_OK (leave it soon), WEFT_ERR_AGAIN (another thread is there), WEFT_ERR_STALE. Any thread. */
static inline weft_status_t rma_enter(weft_remote_t *r)
{
    if (__builtin_expect(atomic_exchange(&r->slot->busy, 1), 0))
        return WEFT_ERR_AGAIN;
    if (__builtin_expect(atomic_load_explicit(&r->slot->stamp, memory_order_acquire) == r->stamp, 1))
        return WEFT_OK;
    atomic_store_explicit(&r->slot->busy, 0, memory_order_release);
    return WEFT_ERR_STALE;
}
/* Leave it. WEFT_ERR_STALE: it was taken from us while we were inside (this process was stopped, and the owner did not wait):
 * what we did was to memory that is nobody's any more. */
static inline weft_status_t rma_leave(weft_remote_t *r)
{
    bool ours = atomic_load_explicit(&r->slot->stamp, memory_order_relaxed) == r->stamp;
    atomic_store_explicit(&r->slot->busy, 0, memory_order_release);
    return __builtin_expect(ours, 1) ? WEFT_OK : WEFT_ERR_STALE;
}

/* wefti_rma_fits(), where nobody asks why not. */
static inline bool rma_fits(const weft_remote_t *r, uint32_t rights, uint64_t offset, uint64_t len)
{
    return (r->rights & rights) == rights && offset <= r->len && len <= r->len - offset;
}

/* memcpy, with the sizes that programs use most spelled out: a call costs as much as the copy. */
static inline void rma_copy(void *dst, const void *src, size_t n)
{
    if (n == 8)
        memcpy(dst, src, 8);
    else if (n == 4)
        memcpy(dst, src, 4);
    else
        memcpy(dst, src, n);
}

/* Do one atomic on memory that the processor can touch, and give the word before. */
static inline uint64_t rma_atomic_apply(void *at, unsigned which, unsigned width, uint64_t operand, uint64_t compare)
{
#define RMA_APPLY(type) do { \
        type *word = (type *)at, value = (type)operand, expect = (type)compare; \
        switch (which) { \
        case WEFT_RMA_ADD: return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST); \
        case WEFT_RMA_SWAP: return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST); \
        case WEFT_RMA_AND: return __atomic_fetch_and(word, value, __ATOMIC_SEQ_CST); \
        case WEFT_RMA_OR: return __atomic_fetch_or(word, value, __ATOMIC_SEQ_CST); \
        case WEFT_RMA_XOR: return __atomic_fetch_xor(word, value, __ATOMIC_SEQ_CST); \
        default: \
            (void)__atomic_compare_exchange_n(word, &expect, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
            return expect; \
        } \
    } while (0)
    if (width == 8)
        RMA_APPLY(uint64_t);
    RMA_APPLY(uint32_t);
#undef RMA_APPLY
}

#endif
