/* base/stack.c - see stack.h. tests/fault/thread_storage.c. */
#include "base/stack.h"

#include <dlfcn.h>

void wefti_stack_set(pthread_attr_t *attr, size_t own)
{
    /* glibc's: the least size of a stack, thread-local storage included */
    size_t (*least)(const pthread_attr_t *) = NULL;
    *(void **)&least = dlsym(RTLD_DEFAULT, "__pthread_get_minstack");
    if (least)
        pthread_attr_setstacksize(attr, own + least(attr));
    /* else the default, which is large */
}
