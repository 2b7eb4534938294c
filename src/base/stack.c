/* base/stack.c - how much of a thread's stack is not its own. tests/fault/thread_storage.c. */
#include "base/stack.h"

#include <dlfcn.h>

void wefti_stack_set(pthread_attr_t *attr, size_t own)
{
    /* glibc's own, for those who choose the size of a stack: what is the least, thread-local storage included */
    size_t (*least)(const pthread_attr_t *) = NULL;
    *(void **)&least = dlsym(RTLD_DEFAULT, "__pthread_get_minstack");
    if (least)
        pthread_attr_setstacksize(attr, own + least(attr));
    /* else the default, which is large */
}
