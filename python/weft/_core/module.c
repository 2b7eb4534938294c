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
    /* the package's classes come from ours, and know no module: the nearest base that is ours does */
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
    (void)unused;
    return rows(module, weft_config_each);
}

static PyObject *info(PyObject *module, PyObject *unused)
{
    (void)unused;
    return rows(module, weft_info_each);
}

static PyObject *noop(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    (void)module;
    (void)args;
    (void)n;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"config", config, METH_NOARGS, "Every configuration variable: (name, value, source, documentation)."},
    {"info", info, METH_NOARGS, "Facts about this build and this machine: (name, value, None, None)."},
    {"_timerfd", weftpy_timerfd, METH_NOARGS, "A file descriptor that is readable from a moment on. Yours to close."},
    {"_timerfd_set", weftpy_timerfd_set, METH_VARARGS, "_timerfd_set(fd, seconds): from then on; 0 is never."},
    {"_as_value", weftpy_as_value, METH_VARARGS, "An object as a peer would get it where a type is wanted, for tests."},
    {"memory_kinds", weftpy_memory_kinds, METH_NOARGS, "The kinds of memory this machine has, by name. Looks for a GPU."},
    {"durl_parse", weftpy_durl_parse, METH_O,
     "durl_parse(text): what a durl says, as a dict; what it does not have is not in it."},
    {"durl_format", weftpy_durl_format, METH_O, "durl_format(parts): a durl as text, from such a dict."},
    {"_noop", (PyCFunction)(void (*)(void))noop, METH_FASTCALL, "Nothing, for measuring what a call costs."},
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
        if (*place) /* importing runs other threads, too */
            Py_DECREF(found);
        else
            *place = found;
    }
    return 0;
}

/* None of them can be changed from Python, so that no object can be made one of another type: Endpoint and BlockingEndpoint have one layout. */
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
    if (weftpy_errors_init(st, module) || add_type(module, &weftpy_runtime_spec, &st->runtime) ||
        add_type(module, &weftpy_endpoint_spec, &st->endpoint) || add_type(module, &weftpy_listener_spec, &st->listener) ||
        add_type(module, &weftpy_op_spec, &st->op) || add_type(module, &weftpy_message_spec, &st->message) ||
        add_type(module, &weftpy_blocking_endpoint_spec, &st->blocking_endpoint) ||
        add_type(module, &weftpy_blocking_listener_spec, &st->blocking_listener) ||
        add_type(module, &weftpy_owned_spec, &st->owned) || add_type(module, &weftpy_claim_spec, &st->claim) ||
        add_type(module, &weftpy_tensor_spec, &st->tensor) || add_type(module, &weftpy_service_spec, &st->service) ||
        add_type(module, &weftpy_request_spec, &st->request) || add_type(module, &weftpy_client_spec, &st->client) ||
        add_type(module, &weftpy_link_spec, &st->link) || add_type(module, &weftpy_method_spec, &st->method) ||
        add_type(module, &weftpy_call_spec, &st->call) || add_type(module, &weftpy_stream_spec, &st->stream) ||
        add_type(module, &weftpy_item_spec, &st->item) || add_type(module, &weftpy_registry_spec, &st->registry) ||
        add_type(module, &weftpy_watch_spec, &st->watch) || add_type(module, &weftpy_wait_spec, &st->wait) ||
        add_type(module, &weftpy_region_spec, &st->region) || add_type(module, &weftpy_remote_spec, &st->remote) ||
        add_type(module, &weftpy_memory_spec, &st->memory) || add_type(module, &weftpy_store_server_spec, &st->store_server) ||
        add_type(module, &weftpy_store_spec, &st->store) || add_type(module, &weftpy_block_spec, &st->block) ||
        add_type(module, &weftpy_mirror_spec, &st->mirror))
        return -1;
    if (!(st->s_run = PyUnicode_InternFromString("run")))
        return -1;
    if (add_type(module, &weftpy_action_spec, &st->action) || add_type(module, &weftpy_transport_spec, &st->transport) ||
        add_type(module, &weftpy_memory_element_spec, &st->memory_element) ||
        add_type(module, &weftpy_transport_buffer_spec, &st->transport_buffer) ||
        add_type(module, &weftpy_posted_spec, &st->posted) || add_type(module, &weftpy_desk_spec, &st->desk))
        return -1;
    return PyModule_AddStringConstant(module, "__version__", weft_version()) ||
                   PyModule_AddIntConstant(module, "AM_HEADER_MAX", WEFT_AM_HEADER_MAX)
               ? -1
               : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    weftpy_state_t *st = PyModule_GetState(module);
    Py_VISIT(st->error);
    for (int i = 0; i < WEFTPY_STATUSES; i++)
        Py_VISIT(st->errors[i]);
    Py_VISIT(st->runtime);
    Py_VISIT(st->endpoint);
    Py_VISIT(st->listener);
    Py_VISIT(st->op);
    Py_VISIT(st->message);
    Py_VISIT(st->blocking_endpoint);
    Py_VISIT(st->blocking_listener);
    Py_VISIT(st->owned);
    Py_VISIT(st->claim);
    Py_VISIT(st->tensor);
    Py_VISIT(st->service);
    Py_VISIT(st->request);
    Py_VISIT(st->client);
    Py_VISIT(st->link);
    Py_VISIT(st->method);
    Py_VISIT(st->call);
    Py_VISIT(st->stream);
    Py_VISIT(st->item);
    Py_VISIT(st->registry);
    Py_VISIT(st->watch);
    Py_VISIT(st->wait);
    Py_VISIT(st->entry);
    Py_VISIT(st->region);
    Py_VISIT(st->remote);
    Py_VISIT(st->memory);
    Py_VISIT(st->store_server);
    Py_VISIT(st->store);
    Py_VISIT(st->block);
    Py_VISIT(st->mirror);
    Py_VISIT(st->task);
    Py_VISIT(st->get_running_loop);
    Py_VISIT(st->copy_context);
    Py_VISIT(st->action);
    Py_VISIT(st->transport);
    Py_VISIT(st->memory_element);
    Py_VISIT(st->transport_buffer);
    Py_VISIT(st->posted);
    Py_VISIT(st->desk);
    Py_VISIT(st->later);
    return 0;
}

static int clear(PyObject *module)
{
    weftpy_state_t *st = PyModule_GetState(module);
    weftpy_ops_free(st);
    Py_CLEAR(st->error);
    for (int i = 0; i < WEFTPY_STATUSES; i++)
        Py_CLEAR(st->errors[i]);
    for (int i = 0; i < WEFTPY_NAMES; i++)
        Py_CLEAR(st->names[i]);
    Py_CLEAR(st->runtime);
    Py_CLEAR(st->endpoint);
    Py_CLEAR(st->listener);
    Py_CLEAR(st->op);
    Py_CLEAR(st->message);
    Py_CLEAR(st->blocking_endpoint);
    Py_CLEAR(st->blocking_listener);
    Py_CLEAR(st->owned);
    Py_CLEAR(st->claim);
    Py_CLEAR(st->tensor);
    Py_CLEAR(st->service);
    Py_CLEAR(st->request);
    Py_CLEAR(st->client);
    Py_CLEAR(st->link);
    Py_CLEAR(st->method);
    Py_CLEAR(st->call);
    Py_CLEAR(st->stream);
    Py_CLEAR(st->item);
    Py_CLEAR(st->registry);
    Py_CLEAR(st->watch);
    Py_CLEAR(st->wait);
    Py_CLEAR(st->entry);
    Py_CLEAR(st->region);
    Py_CLEAR(st->remote);
    Py_CLEAR(st->memory);
    Py_CLEAR(st->store_server);
    Py_CLEAR(st->store);
    Py_CLEAR(st->block);
    Py_CLEAR(st->mirror);
    Py_CLEAR(st->s_run);
    Py_CLEAR(st->cancelled_error);
    Py_CLEAR(st->invalid_state_error);
    Py_CLEAR(st->task);
    Py_CLEAR(st->get_running_loop);
    Py_CLEAR(st->copy_context);
    Py_CLEAR(st->action);
    Py_CLEAR(st->transport);
    Py_CLEAR(st->memory_element);
    Py_CLEAR(st->transport_buffer);
    Py_CLEAR(st->posted);
    Py_CLEAR(st->desk);
    Py_CLEAR(st->later);
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
