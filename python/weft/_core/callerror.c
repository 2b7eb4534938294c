/* _core/callerror.c - CallError, and what every exception of a call carries.
 *
 * A function fails with CallError(code, message): whoever serves it raises one, whoever called it gets one. A call that ended in
 * another way raises the exception of its status (TimeoutError, PeerError, ClosedError, ...), and that carries the same: code,
 * code_name, message, category, value, and `ran`, what is known about the function: "not run", "may have run" or "ran".
 *
 * tests/python/test_rpc_client.py holds us to it. */
#include "core.h"

#include <string.h>

enum { CODES = WEFT_CODE_UNAUTHENTICATED + 1 };

static int code_of(PyObject *given, int *code_out)
{
    if (PyUnicode_Check(given)) {
        for (int code = 1; code < CODES; code++)
            if (PyUnicode_CompareWithASCIIString(given, weft_code_name((weft_code_t)code)) == 0) {
                *code_out = code;
                return 0;
            }
    } else {
        PyObject *number = PyNumber_Index(given);
        if (!number)
            return -1;
        int over;
        long code = PyLong_AsLongAndOverflow(number, &over);
        Py_DECREF(number);
        if (!over && code > 0 && code < CODES) {
            *code_out = (int)code;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "CallError: the code is %.60R, which is neither a number from 1 to %d nor a name such as \"NOT_FOUND\"", given,
                 CODES - 1);
    return -1;
}

static const char *ran_text(weft_ran_t ran)
{
    return ran == WEFT_RAN ? "ran" : ran == WEFT_MAY_HAVE_RUN ? "may have run" : "not run";
}

static int set(PyObject *error, const char *name, PyObject *value)
{
    int failed = !value || PyObject_SetAttrString(error, name, value);
    Py_XDECREF(value);
    return failed;
}

static int fill(PyObject *error, int code, uint32_t category, int32_t value, const char *message, const char *ran)
{
    return set(error, "code", PyLong_FromLong(code)) ||
                   set(error, "code_name", PyUnicode_FromString(weft_code_name((weft_code_t)code))) ||
                   set(error, "message", PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace")) ||
                   set(error, "category", PyLong_FromUnsignedLong(category)) || set(error, "value", PyLong_FromLong(value)) ||
                   set(error, "ran", PyUnicode_FromString(ran))
               ? -1
               : 0;
}

static PyObject *init(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *words[] = {"code", "message", "category", "value", NULL};
    PyObject *given;
    const char *message = "";
    PyObject *category_arg = NULL;
    uint64_t category = 0;
    int code, value = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|s$Oi:CallError", words, &given, &message, &category_arg, &value) ||
        code_of(given, &code) || weftpy_u64(category_arg, "category", UINT32_MAX, &category) ||
        fill(self, code, (uint32_t)category, value, message, ""))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *text(PyObject *self, PyObject *unused)
{
    PyObject *name = PyObject_GetAttrString(self, "code_name"), *message = name ? PyObject_GetAttrString(self, "message") : NULL;
    PyObject *made = NULL;
    if (message)
        made = PyUnicode_Check(message) && PyUnicode_GetLength(message) ? PyUnicode_FromFormat("%S: %U", name, message)
                                                                        : PyObject_Str(name);
    Py_XDECREF(name);
    Py_XDECREF(message);
    return made;
}

static PyMethodDef def_init = {"__init__", (PyCFunction)(void (*)(void))init, METH_VARARGS | METH_KEYWORDS,
                               "__init__($self, /, code, message='', *, category=0, value=0)\n--\n\n"
                               "A failure with a code: its number, or its name, such as \"NOT_FOUND\"."};
static PyMethodDef def_str = {"__str__", text, METH_NOARGS, NULL};

int weftpy_call_error_init(weftpy_state_t *st)
{
    PyObject *class = st->errors[-(int)WEFT_ERR_CALL];
    if (set(st->error, "code", Py_NewRef(Py_None)) || set(st->error, "code_name", PyUnicode_FromString("")) ||
        set(st->error, "message", PyUnicode_FromString("")) || set(st->error, "category", PyLong_FromLong(0)) ||
        set(st->error, "value", PyLong_FromLong(0)) || set(st->error, "ran", PyUnicode_FromString("")))
        return -1;
    return set(class, "__init__", PyDescr_NewMethod((PyTypeObject *)class, &def_init)) ||
                   set(class, "__str__", PyDescr_NewMethod((PyTypeObject *)class, &def_str))
               ? -1
               : 0;
}

PyObject *weftpy_raise_reply(weftpy_state_t *st, weft_status_t status, const weft_reply_t *reply)
{
    PyObject *class = weftpy_error_class(st, status), *error;
    int code = reply->code ? (int)reply->code : WEFT_CODE_UNKNOWN;
    const char *message = reply->message ? reply->message : "";
    const char *words = *message || status == WEFT_ERR_CALL ? message : weft_status_text(status);
    PyObject *said = PyUnicode_DecodeUTF8(words, (Py_ssize_t)strlen(words), "replace");
    if (!said)
        return NULL;
    error = status == WEFT_ERR_CALL ? PyObject_CallFunction(class, "iN", code, said) : PyObject_CallFunction(class, "N", said);
    if (error && !fill(error, code, reply->category, reply->value, message, ran_text(reply->ran)))
        PyErr_SetObject(class, error);
    Py_XDECREF(error);
    return NULL;
}
