/* _core/memory_share.c - memory of ours as other packages see it: __cuda_array_interface__ and DLPack, for Memory and DeviceView.
 *
 * What they make of it holds the object, and with it the memory. Neither interface says that memory of a DeviceView is to be read
 * only: PyTorch refuses memory that says so.
 *
 * tests/python/test_memory.py and tests/python/paper_lend.py hold us to it. */
#include "memory.h"
#include "values.h"

#include <string.h>

#define SELF weftpy_memory_t *m = (weftpy_memory_t *)self

enum { CPU = 1, CUDA = 2, CUDA_MANAGED = 13 };

static bool is_cuda(const weftpy_memory_t *m)
{
    return !strncmp(m->kind->name, "cuda", 4);
}

PyObject *weftpy_memory_cuda(PyObject *self, void *unused)
{
    SELF;
    if (!is_cuda(m)) {
        PyErr_SetString(PyExc_AttributeError, "this is no memory of a GPU: it has no __cuda_array_interface__");
        return NULL;
    }
    if (weftpy_memory_released(m))
        return NULL;
    return Py_BuildValue("{s:(K),s:s,s:(KO),s:O,s:O,s:i}", "shape", (unsigned long long)m->n, "typestr", "|u1", "data",
                         (unsigned long long)(uintptr_t)(m->n ? m->at : NULL), Py_False, "strides", Py_None, "stream", Py_None,
                         "version", 3);
}

/* What a consumer gets: DLPack's struct, in either version, with room for the shape. */
typedef struct lent {
    union {
        weftpy_dlpack_t old;
        struct {
            uint32_t major, minor;
            void *context;
            void (*deleter)(void *self);
            uint64_t flags;
            weft_tensor_t tensor;
        } now;
    };
    PyObject *memory;
    int64_t shape;
} lent_t;

/* Called by the consumer, in any thread. */
static void delete_it(void *lent)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace); /* the end of a view may run any code */
    ((weftpy_memory_t *)((lent_t *)lent)->memory)->users--;
    Py_DECREF(((lent_t *)lent)->memory);
    PyMem_Free(lent);
    PyErr_Restore(type, error, trace);
    PyGILState_Release(gil);
}

static void delete_old(weftpy_dlpack_t *old)
{
    delete_it(old); /* it is the first member */
}

/* Nobody consumed it. */
static void unlend(PyObject *capsule)
{
    static const char *const names[2] = {"dltensor", "dltensor_versioned"};
    for (int i = 0; i < 2; i++)
        if (PyCapsule_IsValid(capsule, names[i]))
            delete_it(PyCapsule_GetPointer(capsule, names[i]));
}

static int device_type(const weftpy_memory_t *m)
{
    return !is_cuda(m) ? CPU : (m->kind->flags & WEFT_MEM_CPU) ? CUDA_MANAGED : CUDA;
}

static int device_id(const weftpy_memory_t *m)
{
    int id = is_cuda(m) ? weft_mem_device(m->at) : 0;
    return id < 0 ? 0 : id;
}

PyObject *weftpy_memory_dlpack(PyObject *self, PyObject *args, PyObject *kw)
{
    SELF;
    static char *words[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = NULL, *version = NULL, *device = NULL, *copy_it = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$OOOO:__dlpack__", words, &stream, &version, &device, &copy_it))
        return NULL; /* the stream does not matter: our copies are complete when they return */
    if (copy_it == Py_True) {
        PyErr_SetString(PyExc_BufferError, "copies are made with copy_to()");
        return NULL;
    }
    int type = device_type(m), id = device_id(m), want_type = type, want_id = id;
    long major = 0, minor = 0;
    if (device && device != Py_None && !PyArg_ParseTuple(device, "ii:dl_device", &want_type, &want_id))
        return NULL;
    if (version && version != Py_None && !PyArg_ParseTuple(version, "ll:max_version", &major, &minor))
        return NULL;
    if (want_type != type || want_id != id) {
        PyErr_SetString(PyExc_BufferError, "the memory is on another device: copy_to() copies it");
        return NULL;
    }
    if (weftpy_memory_released(m)) /* now: reading the arguments can run any code */
        return NULL;
    lent_t *lent = PyMem_Calloc(1, sizeof *lent);
    if (!lent)
        return PyErr_NoMemory();
    weft_tensor_t *t = major >= 1 ? &lent->now.tensor : &lent->old.tensor;
    lent->memory = Py_NewRef(self);
    m->users++;
    lent->shape = (int64_t)m->n;
    *t = (weft_tensor_t){.data = m->at, .device_type = type, .device_id = id, .ndim = 1, .code = 1, .bits = 8, .lanes = 1};
    t->shape = &lent->shape;
    if (major >= 1) {
        lent->now.major = 1;
        lent->now.deleter = delete_it;
    } else {
        lent->old.deleter = delete_old;
    }
    PyObject *capsule = PyCapsule_New(lent, major >= 1 ? "dltensor_versioned" : "dltensor", unlend);
    if (!capsule)
        delete_it(lent);
    return capsule;
}

PyObject *weftpy_memory_dlpack_device(PyObject *self, PyObject *unused)
{
    SELF;
    return weftpy_memory_released(m) ? NULL : Py_BuildValue("(ii)", device_type(m), device_id(m));
}
