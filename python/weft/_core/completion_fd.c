/* _core/completion_fd.c - _CompletionFd: an fd by which an event loop learns that operations of blocking runtimes are complete.
 *
 * The thread of a blocking runtime completes operations without the GIL. It adds them to the list of the loop that awaits them,
 * and writes to an event fd if the list was empty: once per burst. The loop watches the fd and calls drain(), with the GIL.
 *
 * There is one per event loop (weft/_awaited.py). Each operation holds it until it is drained. But as soon as an operation is on
 * the list, another thread may drain it, and free the object before the fd was written to. So the list and the fd are allocated
 * apart, and whoever adds to the list holds them until it has written.
 *
 * Promise: every operation that is added is drained once, and no fd is written to after it was closed.
 * tests/python/test_disagg_async.py holds us to it. */
#include "elements.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct list {
    _Atomic uint32_t holders;         /* references: the object, and threads that add to the list */
    _Atomic(weftpy_awaited_t *) head; /* the operation that was added last */
    int fd;
} list_t;

typedef struct completion_fd {
    PyObject_HEAD list_t *list;
    Py_ssize_t under_way; /* operations that will be added, or are on the list */
    pid_t pid;            /* a forked child shares the fd, so it must not read from it */
} completion_fd_t;

static void let_go(list_t *list)
{
    if (atomic_fetch_sub_explicit(&list->holders, 1, memory_order_acq_rel) != 1)
        return;
    close(list->fd);
    free(list);
}

void weftpy_completion_fd_begin(PyObject *self)
{
    ((completion_fd_t *)self)->under_way++;
}

void weftpy_completion_fd_add(PyObject *self, weftpy_awaited_t *awaited)
{
    list_t *list = ((completion_fd_t *)self)->list;
    weftpy_awaited_t *head = atomic_load_explicit(&list->head, memory_order_relaxed);
    atomic_fetch_add_explicit(&list->holders, 1, memory_order_relaxed); /* `awaited` and `self` may be freed soon */
    do
        awaited->next = head;
    while (!atomic_compare_exchange_weak_explicit(&list->head, &head, awaited, memory_order_release, memory_order_relaxed));
    if (!head)
        (void)eventfd_write(list->fd, 1); /* it cannot overflow: drain() empties it */
    let_go(list);
}

static PyObject *empty(PyObject *self, bool tell)
{
    completion_fd_t *c = (completion_fd_t *)self;
    eventfd_t count;
    unsigned long n = 0;
    if (c->pid != getpid()) {
        c->under_way = 0; /* the operations and what they hold belong to the parent process */
        return PyLong_FromUnsignedLong(0);
    }
    Py_INCREF(self);                         /* the last operation may hold the last reference */
    (void)eventfd_read(c->list->fd, &count); /* read before the list is taken: a later addition writes again */
    weftpy_awaited_t *all = atomic_exchange_explicit(&c->list->head, NULL, memory_order_acquire), *in_order = NULL;
    while (all) {
        weftpy_awaited_t *next = all->next;
        all->next = in_order;
        in_order = all;
        all = next;
    }
    for (weftpy_awaited_t *awaited = in_order, *next; awaited; awaited = next, n++) {
        next = awaited->next;
        c->under_way--;
        weftpy_awaited_end(awaited, tell);
    }
    Py_DECREF(self);
    return PyLong_FromUnsignedLong(n);
}

static PyObject *drain(PyObject *self, PyObject *unused)
{
    return empty(self, true);
}

static PyObject *forget(PyObject *self, PyObject *unused)
{
    return empty(self, false);
}

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kw, ":_CompletionFd", words))
        return NULL;
    list_t *list = calloc(1, sizeof *list);
    if (!list)
        return PyErr_NoMemory();
    atomic_init(&list->holders, 1);
    list->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (list->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        free(list);
        return NULL;
    }
    completion_fd_t *c = (completion_fd_t *)PyType_GenericAlloc(type, 0);
    if (!c) {
        let_go(list);
        return NULL;
    }
    c->list = list;
    c->pid = getpid();
    return (PyObject *)c;
}

static void dealloc(PyObject *self)
{
    let_go(((completion_fd_t *)self)->list);
    weftpy_free(self);
}

static PyObject *get_fd(PyObject *self, void *unused)
{
    return PyLong_FromLong(((completion_fd_t *)self)->list->fd);
}

static PyObject *get_under_way(PyObject *self, void *unused)
{
    return PyLong_FromSsize_t(((completion_fd_t *)self)->under_way);
}

static PyMethodDef methods[] = {
    {"drain", drain, METH_NOARGS,
     DOC("drain($self)", "For the loop: give every future on the list its result. Gives how many there were.")},
    {"forget", forget, METH_NOARGS,
     DOC("forget($self)", "Its loop is closed: drop what is on the list, and tell nobody. Gives how many there were.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"fd", get_fd, NULL, "Readable while something is on the list.", NULL},
    {"under_way", get_under_way, NULL, "How many operations hold it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "An fd by which an event loop learns that operations of blocking runtimes are complete."},
    {Py_tp_new, new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

PyType_Spec weftpy_completion_fd_spec = WEFTPY_SPEC("_CompletionFd", completion_fd_t, 0, slots);
