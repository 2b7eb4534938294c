/* _core/module.c - the module: its types, its exceptions, what the library says of itself.
 *
 * State is per module, and made in the second phase of the import, so that every interpreter has its own.
 *
 * tests/python/test_module.py holds us to it. */
#include "core.h"
#include "calls.h"
#include "elements.h"
#include "registry.h"
#include "serve.h"

static struct PyModuleDef definition;

weftpy_state_t *weftpy_state_of(PyTypeObject *type)
{
    /* a subclass in the package has no module: use its nearest base of ours */
    for (PyTypeObject *t = type; t; t = (PyTypeObject *)PyType_GetSlot(t, Py_tp_base)) {
        PyObject *module = PyType_GetModule(t);
        if (!module)
            PyErr_Clear();
        else if (PyModule_GetDef(module) == &definition)
            return PyModule_GetState(module);
    }
    PyErr_Format(PyExc_TypeError, "%R is no type of weft", (PyObject *)type);
    return NULL;
}

/* --- what the library says of itself ------------------------------------------------------------------------------------- */

static void add_row(const weft_config_var_t *var, void *user)
{
    PyObject *list = user;
    if (PyErr_Occurred())
        return;
    PyObject *row = Py_BuildValue("(szzz)", var->name, var->value, var->source, var->doc);
    if (row)
        PyList_Append(list, row);
    Py_XDECREF(row);
}

static PyObject *rows(PyObject *module, weft_status_t (*each)(weft_config_fn, void *))
{
    PyObject *list = PyList_New(0);
    if (!list)
        return NULL;
    weft_status_t status = each(add_row, list);
    if (!PyErr_Occurred() && status)
        weftpy_raise(PyModule_GetState(module), status);
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}

static PyObject *config(PyObject *module, PyObject *unused)
{
    return rows(module, weft_config_each);
}

static PyObject *info(PyObject *module, PyObject *unused)
{
    return rows(module, weft_info_each);
}

static PyObject *noop(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"config", config, METH_NOARGS, DOC("config()", "Every configuration variable: (name, value, source, documentation).")},
    {"info", info, METH_NOARGS, DOC("info()", "Facts about this build and this machine: (name, value, None, None).")},
    {"_timerfd", weftpy_timerfd, METH_NOARGS,
     DOC("_timerfd()", "A file descriptor that is readable from a moment on. Yours to close.")},
    {"_timerfd_set", weftpy_timerfd_set, METH_VARARGS, DOC("_timerfd_set(fd, seconds)", "From then on; 0 is never.")},
    {"_as_value", weftpy_as_value, METH_VARARGS, "An object as a peer would get it where a type is wanted, for tests."},
    {"memory_kinds", weftpy_memory_kinds, METH_NOARGS,
     DOC("memory_kinds()", "The kinds of memory this machine has, by name. Looks for a GPU.")},
    {"durl_parse", weftpy_durl_parse, METH_O,
     DOC("durl_parse(text, /)", "What a durl says, as a dict; what it does not have is not in it.")},
    {"durl_format", weftpy_durl_format, METH_O, DOC("durl_format(parts, /)", "A durl as text, from such a dict.")},
    {"_noop", WITHOUT_NAMES(noop), "Nothing, for measuring what a call costs."},
    {NULL, NULL, 0, NULL},
};

/* --- beginning and end --------------------------------------------------------------------------------------------------- */

static PyObject *from(const char *module, const char *name)
{
    PyObject *m = PyImport_ImportModule(module), *found = m ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    return found;
}

int weftpy_asyncio(weftpy_state_t *st)
{
    static const struct {
        size_t at;
        const char *module, *name;
    } needed[] = {
        {offsetof(weftpy_state_t, cancelled_error), "asyncio", "CancelledError"},
        {offsetof(weftpy_state_t, invalid_state_error), "asyncio", "InvalidStateError"},
        {offsetof(weftpy_state_t, task), "asyncio", "Task"},
        {offsetof(weftpy_state_t, get_running_loop), "asyncio", "get_running_loop"},
        {offsetof(weftpy_state_t, copy_context), "contextvars", "copy_context"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        PyObject **place = (PyObject **)((char *)st + needed[i].at);
        if (*place)
            continue;
        PyObject *found = from(needed[i].module, needed[i].name);
        if (!found)
            return -1;
        if (*place) /* an import can let other threads run */
            Py_DECREF(found);
        else
            *place = found;
    }
    return 0;
}

/* Python cannot change these types. Otherwise an object could get another type: Endpoint and BlockingEndpoint have the same
 * layout. */
static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type_out)
{
    PyType_Spec fixed = *spec;
    fixed.flags |= Py_TPFLAGS_IMMUTABLETYPE;
    *type_out = (PyTypeObject *)PyType_FromModuleAndSpec(module, &fixed, NULL);
    return !*type_out || PyModule_AddType(module, *type_out) ? -1 : 0;
}

static int begin(PyObject *module)
{
    weftpy_state_t *st = PyModule_GetState(module);
    static const char *const names[] = {
#define TEXT(name) #name,
        WEFTPY_NAME_LIST(TEXT)
#undef TEXT
    };
    for (int i = 0; i < WEFTPY_NAMES; i++)
        if (!(st->names[i] = PyUnicode_InternFromString(names[i])))
            return -1;
    if (weftpy_errors_init(st, module) || !(st->s_run = PyUnicode_InternFromString("run")))
        return -1;
#define ADD(type) \
    if (add_type(module, &weftpy_##type##_spec, &st->type)) \
        return -1;
    WEFTPY_TYPE_LIST(ADD)
#undef ADD
    return PyModule_AddStringConstant(module, "__version__", weft_version()) ||
                   PyModule_AddIntConstant(module, "AM_HEADER_MAX", WEFT_AM_HEADER_MAX)
               ? -1
               : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    weftpy_state_t *st = PyModule_GetState(module);
    for (int i = 0; i < WEFTPY_STATUSES; i++)
        Py_VISIT(st->errors[i]);
#define VISIT(object) Py_VISIT(st->object);
    WEFTPY_TYPE_LIST(VISIT)
    WEFTPY_OBJECT_LIST(VISIT)
#undef VISIT
    return 0;
}

static int clear(PyObject *module)
{
    weftpy_state_t *st = PyModule_GetState(module);
    weftpy_ops_free(st);
    for (int i = 0; i < WEFTPY_STATUSES; i++)
        Py_CLEAR(st->errors[i]);
    for (int i = 0; i < WEFTPY_NAMES; i++)
        Py_CLEAR(st->names[i]);
#define CLEAR(object) Py_CLEAR(st->object);
    WEFTPY_TYPE_LIST(CLEAR)
    WEFTPY_OBJECT_LIST(CLEAR)
#undef CLEAR
    return 0;
}

static void end(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, begin},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weft._core",
    .m_doc = "The library, for the package weft.",
    .m_size = sizeof(weftpy_state_t),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = end,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
