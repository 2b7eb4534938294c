/* _core/desk.c - _Desk: where operations of blocking runtimes are told of to an event loop.
 *
 * A runtime with a thread of its own completes operations there, without the GIL. It puts them on the desk of the loop that awaits them, and
 * rings an event fd if the desk was empty: once per burst. The loop reads the fd and calls drain(), which has the GIL.
 *
 * There is one per event loop (weft/_later.py). Operations hold their desk, so that it is there when they are over. But as soon as one is on the desk
 * another thread may drain it and let go of the desk, before the fd was rung. So list and fd are on a board of their own, which whoever puts
 * something holds too, until it has rung.
 *
 * Promise: what was put is drained once, and nothing is rung that is gone. tests/python/test_disagg_async.py holds us to it. */
#include "elements.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct board {
    _Atomic uint32_t holders;        /* the desk, and those who are putting something */
    _Atomic(weftpy_posted_t *) head; /* the last that was put */
    int fd;
} board_t;

typedef struct desk {
    PyObject_HEAD board_t *board;
    Py_ssize_t under_way; /* will be put, or were and are not drained */
    pid_t pid;            /* a forked child has the same fd: what is read there is missing here */
} desk_t;

static void let_go(board_t *board)
{
    if (atomic_fetch_sub_explicit(&board->holders, 1, memory_order_acq_rel) != 1)
        return;
    close(board->fd);
    free(board);
}

void weftpy_desk_begin(PyObject *self)
{
    ((desk_t *)self)->under_way++;
}

void weftpy_desk_put(PyObject *self, weftpy_posted_t *posted)
{
    board_t *board = ((desk_t *)self)->board;
    weftpy_posted_t *head = atomic_load_explicit(&board->head, memory_order_relaxed);
    atomic_fetch_add_explicit(&board->holders, 1, memory_order_relaxed); /* from here on not by way of `posted` and `self` */
    do
        posted->next = head;
    while (!atomic_compare_exchange_weak_explicit(&board->head, &head, posted, memory_order_release, memory_order_relaxed));
    if (!head)
        (void)eventfd_write(board->fd, 1); /* it cannot be full: drain() empties it */
    let_go(board);
}

static PyObject *empty(PyObject *self, bool tell)
{
    desk_t *desk = (desk_t *)self;
    eventfd_t rings;
    unsigned long n = 0;
    if (desk->pid != getpid()) {
        desk->under_way = 0; /* they are the parent's, as is what they hold */
        return PyLong_FromUnsignedLong(0);
    }
    Py_INCREF(self);                             /* the last of them may be all that keeps it */
    (void)eventfd_read(desk->board->fd, &rings); /* before the desk is looked at: what comes after that rings again */
    weftpy_posted_t *all = atomic_exchange_explicit(&desk->board->head, NULL, memory_order_acquire), *in_order = NULL;
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
    return empty(self, true);
}

static PyObject *forget(PyObject *self, PyObject *unused)
{
    return empty(self, false);
}

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *words[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kw, ":_Desk", words))
        return NULL;
    board_t *board = calloc(1, sizeof *board);
    if (!board)
        return PyErr_NoMemory();
    atomic_init(&board->holders, 1);
    board->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (board->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        free(board);
        return NULL;
    }
    desk_t *desk = (desk_t *)PyType_GenericAlloc(type, 0);
    if (!desk) {
        let_go(board);
        return NULL;
    }
    desk->board = board;
    desk->pid = getpid();
    return (PyObject *)desk;
}

static void dealloc(PyObject *self)
{
    let_go(((desk_t *)self)->board);
    weftpy_free(self);
}

static PyObject *get_fd(PyObject *self, void *unused)
{
    return PyLong_FromLong(((desk_t *)self)->board->fd);
}

static PyObject *get_under_way(PyObject *self, void *unused)
{
    return PyLong_FromSsize_t(((desk_t *)self)->under_way);
}

static PyMethodDef methods[] = {
    {"drain", drain, METH_NOARGS, DOC("drain($self)", "For the loop: tell of what is on it. Gives how many.")},
    {"forget", forget, METH_NOARGS,
     DOC("forget($self)", "Its loop is closed: let go of what is on it, and tell nobody. Gives how many.")},
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

PyType_Spec weftpy_desk_spec = WEFTPY_SPEC("_Desk", desk_t, 0, slots);
