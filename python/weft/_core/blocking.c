/* _core/blocking.c - BlockingEndpoint: the same calls for threads that wait, without an event loop and without an Op.
 *
 * The operation is on the stack, and is waited for without the GIL, in slices: between them signals get their turn, so that
 * Ctrl-C ends a wait. It then cancels the operation and waits for its end, which the library bounds: the buffer is somebody
 * else's memory.
 *
 * Closing the runtime first ends every wait: a thread that is in one looks at the runtime once more on its way out.
 *
 * Inside the progress of a loop's runtime, where destructors of buffers run, the library lets nobody wait. So that is found out
 * before anything is posted: the operation would be left behind on a stack that is gone.
 *
 * tests/python/test_blocking.py holds us to it. */
#include "core.h"

#include <unistd.h>

#define SELF weftpy_endpoint_t *ep = (weftpy_endpoint_t *)self

static const uint64_t slice_ns = 100 * WEFT_MILLISECOND;

struct weftpy_waiter {
    weft_op_t *op;
    unsigned long thread;
    struct weftpy_waiter *next;
};

_Thread_local unsigned weftpy_inside;

int weftpy_wait_check(weftpy_state_t *st)
{
    if (__builtin_expect(!weftpy_inside, 1))
        return 0;
    weftpy_raise_text(
        st, WEFT_ERR_STATE,
        "a call that waits cannot be made inside the progress of a runtime of an event loop, such as by __del__ of a "
        "buffer: have the loop do it, with loop.call_soon(), or a thread");
    return -1;
}

static int wait_for(weftpy_runtime_t *run, weft_op_t *op, bool signals)
{
    bool asked = false;
    if (weft_op_done(op))
        return 0;
    struct weftpy_waiter me = {op, PyThread_get_thread_ident(), run->waiters}, **at;
    run->waiters = &me; /* cppcheck-suppress autoVariables ; taken out below */
    while (!weft_op_done(op)) {
        PyThreadState *save = PyEval_SaveThread();
        weft_status_t status = weft_op_wait(op, slice_ns);
        PyEval_RestoreThread(save);
        if (weft_op_done(op))
            break;
        if (status && status != WEFT_ERR_PENDING) { /* a forked child: nobody drives it, so it never ends */
            op->status = status;
            break;
        }
        if (signals && !asked && PyErr_CheckSignals()) {
            asked = true;
            weft_op_cancel(op);
        }
    }
    for (at = &run->waiters; *at != &me; at = &(*at)->next)
        ;
    *at = me.next;
    if (run->closing && op->status == WEFT_ERR_CANCELLED)
        op->status = WEFT_ERR_CLOSED; /* weftpy_wait_end_all() ended it */
    return asked ? -1 : 0;
}

int weftpy_wait(weftpy_runtime_t *run, weft_op_t *op)
{
    return wait_for(run, op, true);
}

void weftpy_wait_through(weftpy_runtime_t *run, weft_op_t *op)
{
    (void)wait_for(run, op, false);
}

bool weftpy_wait_end_all(weftpy_runtime_t *run)
{
    if (weftpy_runtime_forked(run))
        run->waiters = NULL; /* they are threads of the parent process */
    for (struct weftpy_waiter *w = run->waiters; w; w = w->next)
        if (w->thread == PyThread_get_thread_ident())
            return false;
    run->closing = true;
    while (run->waiters) {
        for (struct weftpy_waiter *w = run->waiters; w; w = w->next)
            weft_op_cancel(w->op);
        PyThreadState *save = PyEval_SaveThread();
        usleep(200); /* they or the runtime's thread drive it; the library limits how long this takes */
        PyEval_RestoreThread(save);
    }
    return true;
}

/* Check this last before the post: reading the arguments can run any code and other threads. */
static int begin(weftpy_endpoint_t *ep)
{
    return weftpy_endpoint_check(ep) || weftpy_wait_check(ep->st) ? -1 : 0;
}

/* Wait for the operation and return its result. */
static PyObject *end(weftpy_endpoint_t *ep, weft_op_t *op, weft_status_t status, const weftpy_gives_t *gives)
{
    if (__builtin_expect(status, 0))
        return weftpy_raise(ep->st, status);
    if (weftpy_wait(ep->run, op)) {
        if (!op->status && gives->drop)
            gives->drop(ep->run, op, NULL);
        return NULL;
    }
    return weftpy_op_value(ep->run, op, gives, NULL);
}

static PyObject *send(FAST_ARGS)
{
    SELF;
    weftpy_buf_t buf = {0};
    weftpy_order_t order = {0};
    weft_op_t op = WEFT_OP_INIT;
    weftpy_send_args_t a = {.buf = &buf, .order = &order, .op = &op};
    if (weftpy_send_args(ep, args, n, kwnames, &a))
        return NULL;
    op.timeout_ns = a.timeout;
    PyObject *value =
        begin(ep) ? NULL
                  : end(ep, &op, weft_msg_send(ep->ep, buf.view.buf, (size_t)buf.view.len, a.tag, &op), &weftpy_gives_none);
    weftpy_buf_release(&buf);
    weftpy_order_release(&order);
    return value;
}

static PyObject *recv(FAST_ARGS)
{
    SELF;
    weftpy_recv_args_t a = {0};
    weft_op_t op = WEFT_OP_INIT;
    if (weftpy_recv_args(ep, args, n, kwnames, &a) || begin(ep))
        return NULL;
    op.timeout_ns = a.timeout;
    return end(ep, &op, weft_msg_recv_alloc(ep->run->rt, ep->ep, a.max_len, a.tag, a.mask, &op),
               a.copy ? &weftpy_gives_bytes : &weftpy_gives_owned);
}

static PyObject *recv_into(FAST_ARGS)
{
    SELF;
    weftpy_buf_t buf = {0};
    weftpy_order_t order = {0};
    weft_op_t op = WEFT_OP_INIT;
    weftpy_recv_args_t a = {.buf = &buf, .order = &order, .op = &op};
    if (weftpy_recv_into_args(ep, args, n, kwnames, &a))
        return NULL;
    op.timeout_ns = a.timeout;
    PyObject *value = begin(ep) ? NULL
                                : end(ep, &op, weft_msg_recv(ep->ep, buf.view.buf, (size_t)buf.view.len, a.tag, a.mask, &op),
                                      &weftpy_gives_len);
    weftpy_buf_release(&buf);
    weftpy_order_release(&order);
    return value;
}

static PyObject *send_many(FAST_ARGS)
{
    return weftpy_many_send((weftpy_endpoint_t *)self, args, n, kwnames);
}

static PyObject *recv_many(FAST_ARGS)
{
    return weftpy_many_recv((weftpy_endpoint_t *)self, args, n, kwnames);
}

static PyObject *am_send(FAST_ARGS)
{
    SELF;
    weftpy_buf_t buf = {0};
    weftpy_order_t order = {0};
    weft_op_t op = WEFT_OP_INIT;
    weftpy_am_args_t a = {.buf = &buf, .order = &order, .op = &op};
    if (weftpy_am_args(ep, args, n, kwnames, &a))
        return NULL;
    op.timeout_ns = a.timeout;
    PyObject *value = begin(ep) ? NULL : end(ep, &op, weft_am_send_with(ep->ep, &a.opts, &op), &weftpy_gives_none);
    weftpy_buf_release(&buf);
    weftpy_order_release(&order);
    Py_XDECREF(a.header);
    return value;
}

static PyObject *am_recv(FAST_ARGS)
{
    SELF;
    uint32_t id;
    weft_op_t op = WEFT_OP_INIT;
    if (weftpy_am_recv_args(ep, args, n, kwnames, &id, &op.timeout_ns) || begin(ep))
        return NULL;
    return end(ep, &op, weft_am_take(ep->run->rt, ep->ep, id, &op), &weftpy_gives_message);
}

static PyObject *close_it(weftpy_endpoint_t *ep, const weftpy_gives_t *gives, bool abort, uint64_t timeout)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *wep = ep->ep;
    if (!wep || !ep->run->rt)
        return gives == &weftpy_gives_len ? PyLong_FromLong(0) : Py_NewRef(Py_None);
    if (abort && weftpy_inside) { /* an abort needs no wait */
        ep->ep = NULL;
        weft_ep_abort(wep, NULL);
        Py_RETURN_NONE;
    }
    if (weftpy_wait_check(ep->st))
        return NULL;
    op.timeout_ns = timeout;
    weft_status_t status = abort ? weft_ep_abort(wep, &op) : weft_ep_close(wep, &op);
    if (!status)
        ep->ep = NULL;
    return end(ep, &op, status, gives);
}

static const weftpy_sig_t sig_close = {"close", 1, 0, 1, {N_timeout}};

static PyObject *close_method(FAST_ARGS)
{
    SELF;
    uint64_t timeout = 0;
    if (weftpy_args_timeout(ep->st, &sig_close, args, n, kwnames, &timeout))
        return NULL;
    return close_it(ep, &weftpy_gives_len, false, timeout);
}

static PyObject *abort_method(PyObject *self, PyObject *unused)
{
    return close_it((weftpy_endpoint_t *)self, &weftpy_gives_none_ever, true, 0);
}

static PyObject *leave(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return close_it((weftpy_endpoint_t *)self, &weftpy_gives_none_ever, false, 0);
}

static PyMethodDef methods[] = {
    {"send", FAST(send),
     DOC("send($self, buffer, tag=0, *, timeout=None, stream=None)",
         "Send a message; returns when the buffer may be used again.")},
    {"recv", FAST(recv),
     DOC("recv($self, tag=0, mask=None, *, max_len=None, timeout=None, copy=True)",
         "Receive a message, as bytes; without a copy as an OwnedBuffer.")},
    {"recv_into", FAST(recv_into),
     DOC("recv_into($self, buffer, tag=0, mask=None, *, timeout=None, stream=None)",
         "Receive a message into a buffer; its length.")},
    {"send_many", FAST(send_many),
     DOC("send_many($self, buffers, tag=0, *, timeout=None, stream=None)",
         "Send each as a message; returns when all may be used again.")},
    {"recv_many", FAST(recv_many),
     DOC("recv_many($self, buffers, tag=0, mask=None, *, timeout=None, stream=None)",
         "A message into each; the list of lengths.")},
    {"claim", FAST(weftpy_endpoint_claim),
     DOC("claim($self, tag=0, mask=None)",
         "Take a message that has arrived out of the matching, as a Claim; None: there is none.")},
    {"probe", FAST(weftpy_endpoint_probe),
     DOC("probe($self, tag=0, mask=None)", "(tag, length) of a message that has arrived and waits, or None.")},
    {"am_send", FAST(am_send),
     DOC("am_send($self, id, buffer=None, header=None, *, timeout=None, confirm=False, urgent=False, stream=None)",
         "Send an active message.")},
    {"am_recv", FAST(am_recv), DOC("am_recv($self, id=None, *, timeout=None)", "The next active message, as a Message.")},
    {"attach", FAST(weftpy_endpoint_attach),
     DOC("attach($self, key, *, path=None, timeout=None)", "The peer's memory that a region's key opens, as a Remote.")},
    {"find", FAST(weftpy_endpoint_find_name),
     DOC("find($self, name, *, path=None, timeout=None)", "A region of the peer's by its name, as a Remote.")},
    {"store", FAST(weftpy_endpoint_store),
     DOC("store($self, *, lease=None, id=None, renew=True, timeout=None)",
         "A lease at the peer, which is a memory server, as a Store.")},
    {"close", FAST(close_method),
     DOC("close($self, timeout=None)", "Finish what was sent and close; how many messages the peer has not received.")},
    {"abort", abort_method, METH_NOARGS, DOC("abort($self)", "Close now: what is under way ends, and the peer sees an error.")},
    {"__enter__", weftpy_itself, METH_NOARGS, NULL},
    {"__exit__", WITHOUT_NAMES(leave), NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One connection to one peer, for threads that wait." WEFTPY_STREAM_DOC},
    {Py_tp_dealloc, weftpy_endpoint_dealloc},
    {Py_tp_traverse, weftpy_endpoint_traverse},
    {Py_tp_clear, weftpy_endpoint_clear},
    {Py_tp_repr, weftpy_endpoint_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, weftpy_endpoint_getset},
    {Py_tp_members, weftpy_endpoint_members},
    {0, NULL},
};

PyType_Spec weftpy_blocking_endpoint_spec =
    WEFTPY_SPEC("BlockingEndpoint", weftpy_endpoint_t, WEFTPY_GC | WEFTPY_NOT_CALLED, slots);
