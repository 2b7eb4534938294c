/* _core/loop.c - a runtime in an event loop: when it is driven, when it sleeps, and who is woken.
 *
 * The runtime is always in one of two states as far as the loop is concerned:
 *
 *     scheduled   a turn() is among the next things the loop will do; posts just post
 *     armed       the loop may sleep: it watches the runtime's fd, and a timer for the library's next deadline
 *
 *     armed -> scheduled   before a post: posting to an armed runtime would cost a system call to wake a loop that is awake
 *     scheduled -> armed   at the end of a turn that found nothing more to do
 *
 * A turn drives the runtime until it is quiet, and steps the tasks whose operations are complete right there, all of them, since
 * no task is current in it. Where progress is made inside a task (a post, a spin), those that became complete wait for the turn.
 * So the loop hears of us once per batch, never once per message.
 *
 * Waking a sleeping thread costs more than a message takes, so whoever would wait spins first: inside the await if there is
 * nothing else for the loop to do, as far as it lets us see (asyncio's has a list of what is ready; of another loop we take it
 * that nothing is if no other operation is under way), and at the end of a turn. How long depends on what spins brought lately:
 * the whole of it after one that won, half after one that lost, nothing after a few; a completion that came soon after a loop
 * went to sleep says that a spin would have won.
 *
 * Promise: no completion waits for a loop that sleeps, wherever it was posted. tests/python/test_loops.py holds us to it. */
#include "core.h"

#include <time.h>

enum {
    ROUNDS = 64,
    SPIN_LOOK = 8,
    SPIN_LEAST_NS = 3000,
    SOON_NS = 90000,
    TURN_NS = 2000000,
    BLIND_SPIN_NS = 5000,
    TIMER_SLACK_NS = 500000
};

uint64_t weftpy_clock(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* --- scheduling ---------------------------------------------------------------------------------------------------------- */

int weftpy_loop_schedule(weftpy_runtime_t *run)
{
    if (run->scheduled || !run->call_soon)
        return 0;
    PyObject *handle = PyObject_Call(run->call_soon, run->soon_args, run->soon_kw);
    if (!handle)
        return -1;
    Py_XDECREF(run->soon);
    run->soon = handle; /* kept to cancel it if the runtime moves to another loop first */
    run->scheduled = true;
    return 0;
}

int weftpy_loop_thread_check(weftpy_runtime_t *run)
{
    if (run->thread == PyThread_get_thread_ident() || (run->by_hand && !run->driving))
        return 0;
    weftpy_raise_text(run->st, WEFT_ERR_STATE,
                      "the runtime belongs to the event loop of another thread: use one of this thread's loop, or call there "
                      "with loop.call_soon_threadsafe()");
    return -1;
}

int weftpy_loop_before_post_slow(weftpy_runtime_t *run)
{
    if (weftpy_runtime_check(run))
        return -1;
    if (run->blocking)
        return 0;
    if (run->by_hand) /* only callers drive it, and they have the GIL */
        run->thread = PyThread_get_thread_ident();
    else if (weftpy_loop_thread_check(run))
        return -1;
    weftpy_progress(run);                                                   /* progress disarms the runtime */
    return weftpy_loop_schedule(run) || weftpy_runtime_check(run) ? -1 : 0; /* the loop may run any code when it is called */
}

int weftpy_loop_call(weftpy_runtime_t *run, PyObject *function, PyObject *arg)
{
    PyObject *pair = PyTuple_Pack(2, function, arg);
    int failed = !pair || PyList_Append(run->calls, pair);
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

int weftpy_loop_call_ever(weftpy_runtime_t *run, PyObject *function, PyObject *arg)
{
    PyObject *three = PyTuple_Pack(3, function, arg, Py_None);
    int failed = !three || PyList_Append(run->calls, three);
    Py_XDECREF(three);
    return failed ? -1 : 0;
}

void weftpy_loop_call_rest(weftpy_runtime_t *run)
{
    PyObject *calls = run->calls;
    if (!calls)
        return;
    run->calls = PyList_New(0);
    for (Py_ssize_t i = 0; i < PyList_Size(calls) && run->call_soon; i++) {
        PyObject *call = PyList_GetItem(calls, i), *handle = NULL;
        if (PyTuple_Size(call) == 3)
            handle = PyObject_CallFunctionObjArgs(run->call_soon, PyTuple_GetItem(call, 0), PyTuple_GetItem(call, 1), NULL);
        Py_XDECREF(handle);
        PyErr_Clear(); /* the loop is closed, and nobody can call them */
    }
    Py_DECREF(calls);
}

static bool waiting(const weftpy_runtime_t *run)
{
    return run->woken || PyList_Size(run->calls) > 0;
}

/* --- spinning ------------------------------------------------------------------------------------------------------------ */

/* As far as we can see, the loop has nothing else to do. */
static bool idle(const weftpy_runtime_t *run)
{
    if (!run->ready)
        return run->under_way <= 1;
    Py_ssize_t n = PyObject_Size(run->ready);
    if (n < 0)
        PyErr_Clear();
    return run->rt && n <= (run->scheduled ? 1 : 0);
}

/* Drive until `op` is complete (NULL: any operation), until something needs a turn of the loop, or until `ns` have passed. */
static bool drive(weftpy_runtime_t *run, const weftpy_op_t *op, uint64_t ns)
{
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < SPIN_LOOK; i++) {
            unsigned n = weftpy_progress(run);
            if (op ? op->state == OP_DONE : n > 0)
                return true;
            if (n && waiting(run))
                return false;
        }
        uint64_t now = weftpy_clock();
        if (!until)
            until = now + ns;
        else if (now >= until)
            return false;
    }
}

bool weftpy_loop_spin(weftpy_runtime_t *run, weftpy_op_t *op)
{
    if (weftpy_loop_before_post(run)) {
        PyErr_Clear(); /* asyncio raises the same error when the future is yielded */
        return false;
    }
    if (run->credit <= 0 || !run->spin || waiting(run) || !idle(run))
        return false;
    run->spins++;
    run->credit -= 8; /* a spin costs as much credit as 8 completions */
    if (drive(run, op, run->spin)) {
        run->spins_won++;
        run->spin = run->spin_most;
        return true;
    }
    if (!waiting(run)) {
        run->spin /= 2;
        if (run->spin < SPIN_LEAST_NS)
            run->spin = 0;
    }
    return op->state == OP_DONE;
}

/* --- the turn ------------------------------------------------------------------------------------------------------------ */

int weftpy_loop_wake(weftpy_runtime_t *run, bool at_once)
{
    int n = 0;
    for (weftpy_op_t *op; (op = run->woken);) {
        run->woken = op->next;
        if (!run->woken)
            run->woken_end = &run->woken;
        op->next = NULL;
        int failed = weftpy_op_wake(op, at_once);
        Py_DECREF(op);
        if (failed)
            return -1;
        n++;
    }
    return n;
}

static int call_all(weftpy_runtime_t *run)
{
    Py_ssize_t n = PyList_Size(run->calls);
    if (!n)
        return 0;
    PyObject *calls = run->calls, *fresh = PyList_New(0);
    if (!fresh)
        return -1;
    run->calls = fresh;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *pair = PyList_GetItem(calls, i);
        PyObject *r = PyObject_CallFunctionObjArgs(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), NULL);
        if (r) {
            Py_DECREF(r);
            continue;
        }
        if (PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_WriteUnraisable(PyTuple_GetItem(pair, 0));
            continue;
        }
        /* the loop gets KeyboardInterrupt and the like; the rest of the list stays, in front */
        PyObject *type, *error, *trace, *rest;
        PyErr_Fetch(&type, &error, &trace);
        rest = PyList_GetSlice(calls, i + 1, n);
        if (rest)
            PyList_SetSlice(run->calls, 0, 0, rest);
        Py_XDECREF(rest);
        Py_DECREF(calls);
        PyErr_Restore(type, error, trace);
        return -1;
    }
    Py_DECREF(calls);
    return (int)n;
}

static int set_timer(weftpy_runtime_t *run)
{
    uint64_t ns = weft_runtime_next_timeout(run->rt);
    if (ns == WEFT_FOREVER)
        return 0;
    uint64_t due = weftpy_clock() + ns;
    if (run->timer && run->timer_due <= due + TIMER_SLACK_NS)
        return 0; /* the timer that is set comes earlier, and then sets the next one */
    if (run->timer) {
        PyObject *r = PyObject_CallMethod(run->timer, "cancel", NULL);
        Py_XDECREF(r);
        Py_CLEAR(run->timer);
        if (!r)
            return -1;
    }
    PyObject *fn = PyObject_GetAttrString((PyObject *)run, "_timer");
    PyObject *delay = PyFloat_FromDouble((double)ns / 1e9);
    if (fn && delay)
        run->timer = PyObject_CallFunctionObjArgs(run->call_later, delay, fn, NULL);
    Py_XDECREF(fn);
    Py_XDECREF(delay);
    run->timer_due = due;
    return run->timer ? 0 : -1;
}

/* Run until nothing happens any more. Returns 0, 1 if there is more to do, -1 with an exception. */
static int rounds(weftpy_runtime_t *run)
{
    uint64_t began = weftpy_clock(), moves = run->moves;
    bool spun = false;
    for (int i = 0; i < ROUNDS && run->rt && run->moves == moves; i++) {
        unsigned n = weftpy_progress(run);
        if (n && run->looped_at) {
            if (began - run->looped_at < SOON_NS)
                run->spin = run->spin_most;
            run->looped_at = 0;
        }
        int woke = weftpy_loop_wake(run, true);
        int called = woke < 0 || !run->rt ? 0 : call_all(run);
        if (woke < 0 || called < 0)
            return -1;
        if (run->moves != moves)
            return 0;
        if (n || woke || called) {
            if (weftpy_clock() - began > TURN_NS)
                return 1;
            spun = false;
            continue;
        }
        if (spun || !run->rt || !run->under_way || !run->spin || !idle(run))
            return 0;
        spun = true;
        run->spins++;
        if (drive(run, NULL, run->ready ? run->spin : BLIND_SPIN_NS)) {
            run->spins_won++;
            continue;
        }
        run->spin = run->spin / 2 < SPIN_LEAST_NS ? 0 : run->spin / 2;
        if (waiting(run))
            continue;
        return 0;
    }
    return run->rt ? 1 : 0;
}

/* --- by hand --------------------------------------------------------------------------------------------------------------- */

/* Report what is complete: to the loop by call_soon, to functions at once. Do not prepare for sleep, because most programs that
 * drive by hand spin. Returns how much happened. */
static PyObject *by_hand(weftpy_runtime_t *run)
{
    unsigned long long events = 0, moves = run->moves;
    int failed = 0;
    run->turning = run->scheduled = true;
    run->turns++;
    for (int i = 0; i < ROUNDS && run->rt && run->moves == moves; i++) {
        unsigned n = weftpy_progress(run);
        int woke = weftpy_loop_wake(run, false);
        int called = woke < 0 || !run->rt ? 0 : call_all(run);
        failed = woke < 0 || called < 0;
        if (failed || !(n || woke || called))
            break;
        events += n + (unsigned)woke + (unsigned)called;
    }
    if (run->moves == moves)
        run->turning = false;
    return failed ? NULL : PyLong_FromUnsignedLongLong(events);
}

/* In an event loop, inside a task: the loop reports what is complete, after the task. */
static PyObject *beside_the_loop(weftpy_runtime_t *run)
{
    unsigned long long events = 0;
    for (unsigned n, i = 0; i < ROUNDS && (n = weftpy_progress(run)); i++)
        events += n;
    return PyLong_FromUnsignedLongLong(events);
}

PyObject *weftpy_loop_progress(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    if (run->by_hand ? weftpy_runtime_check(run) : weftpy_loop_before_post(run))
        return NULL;
    if (run->turning && run->by_hand) /* a task inside a turn may wait by driving: the turn continues after it */
        return PyLong_FromLong(0);
    run->thread = PyThread_get_thread_ident();
    return run->by_hand ? by_hand(run) : beside_the_loop(run);
}

PyObject *weftpy_loop_drive(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    if (!run->rt || run->blocking || (!run->by_hand && run->thread != PyThread_get_thread_ident()))
        return PyLong_FromLong(0);
    if (!run->by_hand && weftpy_loop_before_post(run)) /* a turn of its loop reports completions later */
        return NULL;
    return PyLong_FromUnsignedLong(weftpy_progress(run));
}

PyObject *weftpy_loop_arm(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    if (weftpy_runtime_check(run))
        return NULL;
    if (!run->by_hand)
        return weftpy_raise_text(run->st, WEFT_ERR_STATE, "an event loop drives the runtime, and arms it itself");
    if (waiting(run) || run->turning || weft_runtime_arm(run->rt) != WEFT_OK)
        Py_RETURN_FALSE;
    run->scheduled = false;
    return set_timer(run) ? NULL : Py_NewRef(Py_True);
}

/* --- the turn of an event loop --------------------------------------------------------------------------------------------- */

/* Does the loop run in this thread? It may be another thread than the one that made the runtime, if the loop had not run yet. */
static bool of_this_thread(weftpy_runtime_t *run)
{
    if (run->by_hand || run->thread == PyThread_get_thread_ident())
        return true;
    if (!run->st->get_running_loop) /* it was never in a loop */
        return false;
    PyObject *here = PyObject_CallNoArgs(run->st->get_running_loop);
    bool mine = here && here == run->loop;
    PyErr_Clear();
    Py_XDECREF(here);
    if (mine)
        run->thread = PyThread_get_thread_ident();
    return mine;
}

static PyObject *turn(weftpy_runtime_t *run)
{
    if (!run->rt || run->blocking)
        Py_RETURN_NONE;
    if (!of_this_thread(run))
        return weftpy_raise_text(run->st, WEFT_ERR_STATE, "the runtime belongs to the event loop of another thread");
    if (run->turning) { /* called from inside a callback: the turn continues after it */
        Py_RETURN_NONE;
    }
    if (run->by_hand)
        return by_hand(run);
    run->turning = true;
    run->turns++;
    run->scheduled = true; /* so posts inside the turn do not schedule another turn */
    run->credit = 256;
    uint64_t moves = run->moves;
    int more = rounds(run);
    if (run->moves != moves) /* the runtime moved, and its new loop has a turn scheduled */
        return more < 0 ? NULL : Py_NewRef(Py_None);
    run->turning = false;
    run->scheduled = false;
    if (!run->rt)
        return more < 0 ? NULL : Py_NewRef(Py_None);
    if (!more && (waiting(run) || weft_runtime_arm(run->rt) != WEFT_OK))
        more = 1;
    if (more) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        int failed = weftpy_loop_schedule(run);
        if (type) {
            PyErr_Clear();
            PyErr_Restore(type, error, trace);
            return NULL;
        }
        return failed ? NULL : Py_NewRef(Py_None);
    }
    run->looped_at = weftpy_clock();
    return set_timer(run) ? NULL : Py_NewRef(Py_None);
}

PyObject *weftpy_loop_turn(PyObject *self, PyObject *unused)
{
    return turn((weftpy_runtime_t *)self);
}

PyObject *weftpy_loop_timer(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    if (of_this_thread(run))
        Py_CLEAR(run->timer);
    return turn(run);
}
