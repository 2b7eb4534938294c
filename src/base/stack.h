/* base/stack.h - stacks of threads that need little. */
#ifndef WEFTI_STACK_H
#define WEFTI_STACK_H

#include <pthread.h>
#include <stddef.h>

/* Give a thread `own` bytes of stack for itself, beside what the system puts there: glibc takes the thread-local storage of
 * the whole program from it, which may be more than all that the thread needs. */
void wefti_stack_set(pthread_attr_t *attr, size_t own);

#endif
