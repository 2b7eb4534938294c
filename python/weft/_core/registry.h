/* _core/registry.h - what the registry and its watches share. */
#ifndef WEFT_PY_REGISTRY_H
#define WEFT_PY_REGISTRY_H

#include "core.h"

typedef struct weftpy_registry {
    PyObject_HEAD
    weftpy_state_t *st;
    weftpy_runtime_t *run;      /* NULL: never opened */
    weft_registry_t *registry;  /* NULL: closed */
    PyObject *uri;
    weftpy_guest_t guest;       /* the guest of the runtime */
    weftpy_guest_t *watches;    /* watches, which end before the registry */
    unsigned users;             /* clients and services that use it: it is not closed before them */
} weftpy_registry_t;


int weftpy_registry_check(weftpy_registry_t *registry); /* -1: it is closed */
static inline void weftpy_registry_used(PyObject *registry, int by) /* NULL and None: none */
{
    if (registry && registry != Py_None)
        ((weftpy_registry_t *)registry)->users += (unsigned)by;
}

/* A copy of an entry that the library showed. It is made on any thread, with or without the GIL. */
typedef struct weftpy_row {
    struct weftpy_row *next;
    weft_change_t change;
    uint32_t load;
    size_t service, instance, address, data; /* bytes of each; they follow, in this order */
} weftpy_row_t;
weftpy_row_t *weftpy_row_new(const weft_entry_t *entry, weft_change_t change); /* NULL: no memory. free() */
PyObject *weftpy_row_entry(weftpy_state_t *st, const weftpy_row_t *row);       /* an Entry */

/* watch.c */
PyObject *weftpy_watch_new(weftpy_registry_t *registry, const char *service);

#endif
