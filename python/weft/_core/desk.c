/* _core/desk.c - _Desk: where operations of blocking runtimes are told of to an event loop.
 *
 * A runtime with a thread of its own completes operations there, without the GIL. It puts them on the desk of the loop that awaits them, and
 * rings an event fd if the desk was empty: once per burst. The loop reads the fd and calls drain(), which has the GIL.
 *
 * There is one per event loop (weft/_later.py). Operations hold their desk, so that it is there when they are over.
 *
 * Promise: what was put is drained once. tests/python/test_disagg_async.py holds us to it. */
#include "elements.h"

#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct desk {
    PyObject_HEAD _Atomic(weftpy_posted_t *) head; /* the last that was put */
    Py_ssize_t under_way;                          /* will be put, or were and are not drained */
    int fd;
} desk_t;

void weftpy_desk_begin(PyObject *self)
{
    ((desk_t *)self)->under_way++;
}

void weftpy_desk_put(PyObject *self, weftpy_posted_t *posted)
{
    desk_t *desk = (desk_t *)self;
    weftpy_posted_t *head = atomic_load_explicit(&desk->head, memory_order_relaxed);
    do
        posted->next = head;
    while (!atomic_compare_exchange_weak_explicit(&desk->head, &head, posted, memory_order_release, memory_order_relaxed));
    if (!head && eventfd_write(desk->fd, 1))
        return; /* it cannot be full: drain() empties it */
}

static PyObject *empty(PyObject *self, bool tell)
{
    desk_t *desk = (desk_t *)self;
    eventfd_t rings;
    unsigned long n = 0;
    Py_INCREF(self);                      /* the last of them may be all that keeps it */
    (void)eventfd_read(desk->fd, &rings); /* before the desk is looked at: what comes after that rings again */
    weftpy_posted_t *all = atomic_exchange_explicit(&desk->head, NULL, memory_order_acquire), *in_order = NULL;
    while (all) {
        weftpy_posted_t *next = all->next;
        all->next = in_order;
        in_order = all;
        all = next;
    }
    for (weftpy_posted_t *posted = in_order, *next; posted; posted = next, n++) {
        next = posted->next;
        desk->under_way--;
        weftpy_posted_end(posted, tell);
    }
    Py_DECREF(self);
    return PyLong_FromUnsignedLong(n);
}

static PyObject *drain(PyObject *self, PyObject *unused)
{
    (void)unused;
    return empty(self, true);
}

static PyObject *forget(PyObject *self, PyObject *unused)
{
    (void)unused;
    return empty(self, false);
}

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kw, ":_Desk", words))
        return NULL;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    desk_t *desk = (desk_t *)PyType_GenericAlloc(type, 0);
    if (!desk) {
        close(fd);
        return NULL;
    }
    desk->fd = fd;
    return (PyObject *)desk;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    close(((desk_t *)self)->fd);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_it(self);
    Py_DECREF(type);
}

static PyObject *get_fd(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((desk_t *)self)->fd);
}

static PyObject *get_under_way(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(((desk_t *)self)->under_way);
}

static PyMethodDef methods[] = {
    {"drain", drain, METH_NOARGS, "For the loop: tell of what is on it. Gives how many."},
    {"forget", forget, METH_NOARGS, "Its loop is closed: let go of what is on it, and tell nobody. Gives how many."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"fd", get_fd, NULL, "Readable while something is on it.", NULL},
    {"under_way", get_under_way, NULL, "How many operations will be told of here.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Where operations of blocking runtimes are told of to an event loop."},
    {Py_tp_new, new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

PyType_Spec weftpy_desk_spec = {
    .name = "weft._core._Desk",
    .basicsize = sizeof(desk_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
