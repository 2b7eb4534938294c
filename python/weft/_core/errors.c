/* _core/errors.c - one exception class per status, made from the library's own list.
 *
 * All come from WeftError, and those for which Python has a word from that too, so that `except TimeoutError` and `except
 * ConnectionError` do what they say. The class has the status as a number; the text is the library's sentence.
 *
 * tests/python/test_module.py holds us to it. */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* WEFT_ERR_PEER is weft.PeerError. This table has the base classes of each exception. */
static const struct word {
    weft_status_t status;
    const char *name;
} words[] = {
    {WEFT_ERR_INVALID, "InvalidError"},
    {WEFT_ERR_NOMEM, "NoMemoryError"},
    {WEFT_ERR_CANCELLED, "CancelledError"},
    {WEFT_ERR_TIMEOUT, "TimeoutError"},
    {WEFT_ERR_PEER, "PeerError"},
    {WEFT_ERR_CLOSED, "ClosedError"},
    {WEFT_ERR_REFUSED, "RefusedError"},
    {WEFT_ERR_UNREACHABLE, "UnreachableError"},
    {WEFT_ERR_AUTH, "AuthError"},
    {WEFT_ERR_VERSION, "VersionError"},
    {WEFT_ERR_PROTOCOL, "ProtocolError"},
    {WEFT_ERR_TRUNCATED, "TruncatedError"},
    {WEFT_ERR_AGAIN, "AgainError"},
    {WEFT_ERR_LIMIT, "LimitError"},
    {WEFT_ERR_FORKED, "ForkedError"},
    {WEFT_ERR_STATE, "StateError"},
    {WEFT_ERR_UNSUPPORTED, "UnsupportedError"},
    {WEFT_ERR_ADDRESS, "AddressError"},
    {WEFT_ERR_NOTFOUND, "NotFoundError"},
    {WEFT_ERR_SYSTEM, "SystemFailureError"},
    {WEFT_ERR_REJECTED, "RejectedError"},
    {WEFT_ERR_RANGE, "RangeError"},
    {WEFT_ERR_RIGHTS, "RightsError"},
    {WEFT_ERR_STALE, "StaleError"},
    {WEFT_ERR_CORRUPT, "CorruptError"},
    {WEFT_ERR_CALL, "CallError"},
    {WEFT_ERR_PENDING, "PendingError"},
    {WEFT_ERR_DONE, "DoneError"},
    {WEFT_ERR_PERMISSION, "PermissionDeniedError"},
};

static PyObject *also(weft_status_t status)
{
    switch (status) {
    case WEFT_ERR_INVALID:
        return PyExc_ValueError;
    case WEFT_ERR_NOMEM:
        return PyExc_MemoryError;
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_PENDING:
        return PyExc_TimeoutError;
    case WEFT_ERR_PEER:
        return PyExc_ConnectionResetError;
    case WEFT_ERR_REFUSED:
        return PyExc_ConnectionRefusedError;
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_VERSION:
    case WEFT_ERR_PROTOCOL:
        return PyExc_ConnectionError;
    case WEFT_ERR_AUTH:
    case WEFT_ERR_RIGHTS:
    case WEFT_ERR_PERMISSION:
        return PyExc_PermissionError;
    case WEFT_ERR_ADDRESS:
    case WEFT_ERR_SYSTEM:
        return PyExc_OSError;
    case WEFT_ERR_NOTFOUND:
        return PyExc_LookupError;
    default:
        return NULL;
    }
}

static const char *name_of(weft_status_t status)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].status == status)
            return words[i].name;
    return NULL;
}

static PyObject *make(weftpy_state_t *st, PyObject *module, weft_status_t status, const char *constant)
{
    char own[48], full[64];
    const char *word = name_of(status);
    if (!word) { /* a status that this file does not know: WEFT_ERR_SOME becomes SomeError */
        snprintf(own, sizeof own, "%sError", constant + strlen("WEFT_ERR_"));
        word = own;
    }
    snprintf(full, sizeof full, "weft.%s", word);
    PyObject *other = also(status);
    PyObject *bases = other ? PyTuple_Pack(2, st->error, other) : PyTuple_Pack(1, st->error);
    PyObject *dict = Py_BuildValue("{s:i,s:s}", "status", (int)status, "status_name", constant);
    PyObject *made = bases && dict ? PyErr_NewExceptionWithDoc(full, weft_status_text(status), bases, dict) : NULL;
    Py_XDECREF(bases);
    Py_XDECREF(dict);
    if (made && PyModule_AddObjectRef(module, word, made))
        Py_CLEAR(made);
    return made;
}

int weftpy_errors_init(weftpy_state_t *st, PyObject *module)
{
    PyObject *dict = Py_BuildValue("{s:i,s:s}", "status", 0, "status_name", "");
    if (!dict)
        return -1;
    st->error = PyErr_NewExceptionWithDoc("weft.WeftError",
                                          "What the library could not do. `status` says what kind of failure it is.", NULL, dict);
    Py_DECREF(dict);
    if (!st->error || PyModule_AddObjectRef(module, "WeftError", st->error))
        return -1;
#define MAKE(constant, value, text) \
    if ((value) < 0 && !(st->errors[-(value)] = make(st, module, constant, #constant))) \
        return -1;
    WEFT_STATUS_LIST(MAKE)
#undef MAKE
    return weftpy_call_error_init(st);
}

PyObject *weftpy_error_class(weftpy_state_t *st, weft_status_t status)
{
    int at = -(int)status;
    PyObject *known = at > 0 && at < WEFTPY_STATUSES ? st->errors[at] : NULL;
    return known ? known : st->error ? st->error : PyExc_RuntimeError; /* the classes are gone when the interpreter ends */
}

PyObject *weftpy_raise(weftpy_state_t *st, weft_status_t status)
{
    const char *text = weft_last_error_status() == status && *weft_last_error() ? weft_last_error() : weft_status_text(status);
    if (status == WEFT_ERR_CALL) /* its class depends on a code */
        return weftpy_raise_reply(st, status, &(weft_reply_t){.code = WEFT_CODE_UNKNOWN, .message = text});
    PyErr_Format(weftpy_error_class(st, status), "%s", text); /* PyErr_Format accepts invalid UTF-8 */
    return NULL;
}

PyObject *weftpy_raise_op(weftpy_state_t *st, const weft_op_t *op)
{
    PyObject *class = weftpy_error_class(st, op->status);
    if (op->status == WEFT_ERR_TRUNCATED) {
        PyErr_Format(class, "%s (%llu bytes)", weft_status_text(op->status), (unsigned long long)op->len);
        return NULL;
    }
    if (op->status == WEFT_ERR_CALL)
        return weftpy_raise_reply(st, op->status, &(weft_reply_t){.code = WEFT_CODE_UNKNOWN});
    if (op->status != WEFT_ERR_REJECTED) {
        const char *said = weft_op_error(op);
        PyErr_Format(class, "%s", *said ? said : weft_status_text(op->status)); /* PyErr_Format accepts invalid UTF-8 */
        return NULL;
    }
    PyObject *error = PyObject_CallFunction(class, "s", weft_status_text(op->status));
    PyObject *reason = error ? PyLong_FromUnsignedLong(op->reason) : NULL;
    if (reason && !PyObject_SetAttrString(error, "reason", reason))
        PyErr_SetObject(class, error);
    Py_XDECREF(reason);
    Py_XDECREF(error);
    return NULL;
}

PyObject *weftpy_raise_text(weftpy_state_t *st, weft_status_t status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyErr_FormatV(weftpy_error_class(st, status), format, args);
    va_end(args);
    return NULL;
}
