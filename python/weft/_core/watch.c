/* _core/watch.c - Watch: what changes in a registry, to be gone through.
 *
 * The library tells of changes in progress, in a blocking runtime without the GIL: they are copied to a list, under a lock, and
 * whoever waits is woken. To wait is to have a timer of the library under way, which is cancelled when something came: so that a
 * task, a thread, and a thread that drives its runtime itself wait in the same way.
 *
 * The list outlives the object for as long as the library may call: it is held by both.
 *
 * Promise: no change is lost, however many wait and whoever is cancelled; after the end comes the end of the iteration.
 * tests/python/test_registry.py holds us to it. */
#include "registry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define LONG_NS (UINT64_C(365) * 24 * 3600 * WEFT_SECOND)

typedef struct waiting {
    weft_op_t *op;
    struct waiting *next, **before; /* in the list of `changes`; before NULL: in no list */
} waiting_t;

typedef struct changes {
    pthread_mutex_t lock;
    weftpy_row_t *first, **end;
    waiting_t *waiting;
    bool over, lost; /* lost: a change was dropped without memory */
    atomic_int refs; /* references: the object, and the library */
    weft_op_t ending;
} changes_t;

typedef struct watch {
    PyObject_HEAD weftpy_state_t *st;
    weftpy_runtime_t *run;
    PyObject *registry;
    changes_t *c;
    weft_watch_t *watch; /* NULL: ended */
    weftpy_guest_t guest;
} watch_t;

/* The `made` of the Op of a waiter. */
typedef struct wait {
    PyObject_HEAD watch_t *watch;
    waiting_t at;
    weftpy_row_t *row; /* the change for this waiter */
    bool lost;
} wait_t;

#define SELF watch_t *w = (watch_t *)self

/* --- changes ------------------------------------------------------------------------------------------------------ */

static void unref(changes_t *c)
{
    if (atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    for (weftpy_row_t *row; (row = c->first);) {
        c->first = row->next;
        free(row);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void unlink_it(waiting_t *at)
{
    if (!at->before)
        return;
    *at->before = at->next;
    if (at->next)
        at->next->before = at->before;
    at->before = NULL;
}

/* With the lock held: wake all waiters. A waiter that finds nothing waits again. */
static void wake(changes_t *c)
{
    while (c->waiting) {
        waiting_t *at = c->waiting;
        unlink_it(at);
        weft_op_cancel(at->op);
    }
}

static void changed(weft_change_t change, const weft_entry_t *entry, void *user)
{
    changes_t *c = user;
    weftpy_row_t *row = weftpy_row_new(entry, change);
    pthread_mutex_lock(&c->lock);
    if (row) {
        *c->end = row;
        c->end = &row->next;
    } else {
        c->lost = true;
    }
    wake(c);
    pthread_mutex_unlock(&c->lock);
}

/* The next change, or NULL; *over_out: no more will come. */
static weftpy_row_t *take(changes_t *c, bool *over_out, bool *lost_out)
{
    pthread_mutex_lock(&c->lock);
    weftpy_row_t *row = c->first;
    if (row && !(c->first = row->next))
        c->end = &c->first;
    *over_out = c->over;
    *lost_out = c->lost;
    pthread_mutex_unlock(&c->lock);
    return row;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void ended(weft_op_t *op, void *user)
{
    unref(user);
}

static void end(watch_t *w)
{
    weft_watch_t *watch = w->watch;
    changes_t *c = w->c;
    w->watch = NULL;
    weftpy_guest_leave(&w->guest);
    if (!watch)
        return;
    if (!w->run->rt || weftpy_runtime_forked(w->run)) {
        unref(c); /* nobody calls any more */
    } else {
        c->ending.fn = ended;
        c->ending.user = c;
        if (weft_watch_end(watch, &c->ending))
            unref(c); /* the registry is closed, and the watch with it */
    }
    pthread_mutex_lock(&c->lock);
    c->over = true;
    wake(c);
    pthread_mutex_unlock(&c->lock);
}

static void leave(weftpy_guest_t *guest)
{
    end((watch_t *)(void *)((char *)guest - offsetof(watch_t, guest)));
}

static void dealloc(PyObject *self)
{
    SELF;
    if (w->c) {
        end(w);
        unref(w->c);
    }
    Py_CLEAR(w->registry);
    Py_CLEAR(w->run);
    weftpy_free(self);
}

PyObject *weftpy_watch_new(weftpy_registry_t *r, const char *service)
{
    watch_t *w = r->st->watch ? (watch_t *)PyType_GenericAlloc(r->st->watch, 0) : NULL;
    changes_t *c = w ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        Py_XDECREF((PyObject *)w);
        return PyErr_NoMemory();
    }
    pthread_mutex_init(&c->lock, NULL);
    c->end = &c->first;
    atomic_init(&c->refs, 2);
    w->st = r->st;
    w->run = (weftpy_runtime_t *)Py_NewRef((PyObject *)r->run);
    w->registry = Py_NewRef((PyObject *)r);
    w->c = c;
    weft_status_t status = weft_registry_watch(r->registry, service, changed, c, &w->watch);
    if (status) {
        w->watch = NULL;
        weftpy_raise(r->st, status);
        unref(c);
        Py_DECREF(w);
        return NULL;
    }
    weftpy_guest_enter(&r->watches, &w->guest, leave);
    return (PyObject *)w;
}

/* --- going through it --------------------------------------------------------------------------------------------- */

static PyObject *change_of(weftpy_state_t *st, weftpy_row_t *row)
{
    static const char *const words[] = {"?", "came", "changed", "went"};
    PyObject *entry = weftpy_row_entry(st, row), *change = NULL;
    PyObject *module = entry ? PyImport_ImportModule("weft._registry") : NULL;
    if (module)
        change = PyObject_CallMethod(module, "Change", "sO", words[row->change <= WEFT_WENT ? row->change : 0], entry);
    Py_XDECREF(module);
    Py_XDECREF(entry);
    free(row);
    return change;
}

/* A change. NULL with an exception: a failure. NULL without: the caller has to wait. */
static PyObject *next_now(watch_t *w)
{
    bool over, lost;
    weftpy_row_t *row = take(w->c, &over, &lost);
    if (row)
        return change_of(w->st, row);
    if (lost)
        return PyErr_NoMemory();
    if (over || weftpy_registry_check((weftpy_registry_t *)w->registry)) {
        PyErr_Clear();
        PyErr_SetNone(w->run->blocking ? PyExc_StopIteration : PyExc_StopAsyncIteration);
    }
    return NULL;
}

static void wait_dealloc(PyObject *self)
{
    wait_t *t = (wait_t *)self;
    if (t->watch) {
        changes_t *c = t->watch->c;
        pthread_mutex_lock(&c->lock);
        unlink_it(&t->at);
        if (t->row) { /* the waiter did not take it: the next one gets it */
            t->row->next = c->first;
            if (!c->first)
                c->end = &t->row->next;
            c->first = t->row;
            wake(c);
        }
        pthread_mutex_unlock(&c->lock);
    }
    Py_CLEAR(t->watch);
    weftpy_free(self);
}

/* False: something has arrived. */
static bool wait_for_more(changes_t *c, waiting_t *at, weft_op_t *op)
{
    pthread_mutex_lock(&c->lock);
    bool nothing = !c->first && !c->over && !c->lost;
    if (nothing) {
        at->op = op;
        at->next = c->waiting;
        at->before = &c->waiting;
        if (at->next)
            at->next->before = &at->next;
        c->waiting = at;
    }
    pthread_mutex_unlock(&c->lock);
    if (!nothing)
        weft_op_cancel(op);
    return nothing;
}

static PyObject *next(PyObject *self)
{
    SELF;
    PyObject *change;
    if (!w->run->blocking) {
        PyErr_SetString(PyExc_TypeError, "a watch in an event loop is gone through with `async for`");
        return NULL;
    }
    while (!(change = next_now(w)) && !PyErr_Occurred() && !weftpy_wait_check(w->st)) {
        weft_op_t op = WEFT_OP_INIT;
        waiting_t at = {0};
        weft_status_t status = weft_timer_start(w->run->rt, LONG_NS, &op);
        if (status)
            return weftpy_raise(w->st, status);
        Py_INCREF(self);
        wait_for_more(w->c, &at, &op);
        int interrupted = weftpy_wait(w->run, &op);
        pthread_mutex_lock(&w->c->lock);
        unlink_it(&at);
        pthread_mutex_unlock(&w->c->lock);
        Py_DECREF(self);
        if (interrupted)
            return NULL;
    }
    return change;
}

static PyObject *wait_value(weftpy_runtime_t *run, weft_op_t *op, PyObject *made)
{
    wait_t *t = (wait_t *)made;
    weftpy_row_t *row = t->row;
    t->row = NULL;
    if (row)
        return change_of(run->st, row);
    if (t->lost)
        return PyErr_NoMemory();
    PyErr_SetNone(PyExc_StopAsyncIteration);
    return NULL;
}

static const weftpy_gives_t gives_change = {.value = wait_value};

/* The timer was cancelled: by us because a change came, by the awaiter, or because the runtime closes. */
static void woken(weft_op_t *wop, void *user)
{
    weftpy_op_t *op = user;
    wait_t *t = (wait_t *)op->made;
    bool over = wop->status != WEFT_ERR_CANCELLED;
    if (!op->cancelled)
        t->row = take(t->watch->c, &over, &t->lost);
    if (!op->cancelled && !t->row && !over && !t->lost && !weft_timer_start(op->run->rt, LONG_NS, wop)) {
        wait_for_more(t->watch->c, &t->at, wop); /* another waiter took it */
        return;
    }
    wop->status = WEFT_OK;
    weftpy_op_told(op);
}

static PyObject *async_next(PyObject *self)
{
    SELF;
    if (w->run->blocking) {
        PyErr_SetString(PyExc_TypeError, "a watch of a blocking runtime is gone through with `for`");
        return NULL;
    }
    if (!w->run->rt) {
        PyErr_SetNone(PyExc_StopAsyncIteration);
        return NULL;
    }
    if (weftpy_loop_before_post(w->run))
        return NULL;
    wait_t *t = (wait_t *)PyType_GenericAlloc(w->st->wait, 0);
    weftpy_op_t *op = t ? weftpy_op_new(w->run, &gives_change) : NULL;
    if (!op) {
        Py_XDECREF((PyObject *)t);
        return NULL;
    }
    t->watch = (watch_t *)Py_NewRef(self);
    op->made = (PyObject *)t;
    op->op.fn = woken;
    weft_status_t status = weft_timer_start(w->run->rt, LONG_NS, &op->op);
    if (!status)
        wait_for_more(w->c, &t->at, &op->op);
    return weftpy_op_posted(op, status);
}

static PyObject *iterate(PyObject *self)
{
    return Py_NewRef(self);
}

static PyObject *close_it(PyObject *self, PyObject *unused)
{
    end((watch_t *)self);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"close", close_it, METH_NOARGS, DOC("close($self)", "End it: whoever waits for the next change sees the end.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What changes in a registry: `async for change in registry.watch(\"calc\")`, or `for` in a blocking runtime."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_iter, iterate},
    {Py_tp_iternext, next},
    {Py_am_aiter, iterate},
    {Py_am_anext, async_next},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec weftpy_watch_spec = WEFTPY_SPEC("Watch", watch_t, WEFTPY_NOT_CALLED, slots);

static PyType_Slot wait_slots[] = {
    {Py_tp_doc, "Whoever waits for the next change."},
    {Py_tp_dealloc, wait_dealloc},
    {0, NULL},
};

PyType_Spec weftpy_wait_spec = WEFTPY_SPEC("_Wait", wait_t, WEFTPY_NOT_CALLED, wait_slots);
