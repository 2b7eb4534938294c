/* tests/sim/lib/heap_count.h - how many blocks of memory the program holds, counted at malloc and free themselves. */
#ifndef SIM_HEAP_COUNT_H
#define SIM_HEAP_COUNT_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEAP_COUNT_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HEAP_COUNT_SANITIZED 1
#endif
#endif

/* 0 always where a sanitizer has the allocator. */
long heap_count(void);

#endif
