/* base/detail.c - see detail.h.
 *
 * A slot's `number` is WRITING while it is written and the sentence's number when it is whole. A reader looks at it before and
 * after it copies, so it notices a sentence that was overwritten meanwhile. The text is words that are read and written
 * one by one, since both may happen at once. */
#include "base/detail.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { WORDS = WEFTI_DETAIL_MAX / 8 };
#define WRITING UINT64_MAX

static struct slot {
    _Atomic uint64_t number;
    _Atomic uint64_t words[WORDS];
} slots[WEFTI_DETAILS];
static _Atomic uint64_t last;

uint64_t wefti_detail_put(const char *text)
{
    uint64_t words[WORDS] = {0}, number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
    struct slot *s = &slots[number % WEFTI_DETAILS];
    uint64_t was = atomic_load_explicit(&s->number, memory_order_relaxed);
    strncpy((char *)words, text, WEFTI_DETAIL_MAX - 1);
    /* One writer at a time. A writer that was stopped for so long that the ring came round gives up its sentence. */
    if (was == WRITING || was > number || !atomic_compare_exchange_strong(&s->number, &was, WRITING))
        return number;
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < WORDS; i++)
        atomic_store_explicit(&s->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&s->number, number, memory_order_release);
    return number;
}

uint64_t wefti_detail_format(const char *fmt, ...)
{
    char text[WEFTI_DETAIL_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return wefti_detail_put(text);
}

uint64_t wefti_detail_last(weft_status_t status)
{
    return weft_last_error_status() == status ? wefti_detail_put(weft_last_error()) : 0;
}

bool wefti_detail_get(uint64_t number, char text[WEFTI_DETAIL_MAX])
{
    struct slot *s = &slots[number % WEFTI_DETAILS];
    uint64_t words[WORDS];
    if (!number || atomic_load_explicit(&s->number, memory_order_acquire) != number)
        return false;
    for (int i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&s->words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&s->number, memory_order_relaxed) != number)
        return false;
    memcpy(text, words, WEFTI_DETAIL_MAX);
    return true;
}
