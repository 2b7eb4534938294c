/* _core/durl.c - durls, where a memory element is as text: taken apart into a dict, and put together again.
 *
 * The keys of the dict are those of the text, with `name` and `impl` before them: size and timeout_ms are numbers, token (the key
 * of the memory's region) is bytes, replicas a list.
 *
 * Promise: whatever the text or the dict, an exception at worst; what is written can be read back.
 * tests/python/test_disagg_durl.py holds us to it. */
#include "elements.h"

#include <stdio.h>
#include <string.h>

static int set(PyObject *dict, const char *key, PyObject *value)
{
    int failed = !value || PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

static int set_text(PyObject *dict, const char *key, const char *text)
{
    return *text ? set(dict, key, weftpy_text(text)) : 0;
}

static PyObject *replicas(const weft_durl_t *d)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < d->n_replicas; i++) {
        PyObject *one = weftpy_text(d->replica[i]);
        if (!one || PyList_Append(list, one))
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

PyObject *weftpy_durl_parse(PyObject *module, PyObject *arg)
{
    weftpy_state_t *st = PyModule_GetState(module);
    weft_durl_t d = WEFT_DURL_INIT;
    const char *text = weftpy_str(arg, "a durl");
    if (!text)
        return NULL;
    weft_status_t status = weft_durl_parse(text, &d);
    if (status)
        return weftpy_raise(st, status);
    PyObject *dict = PyDict_New();
    if (!dict || set_text(dict, "name", d.name) || set_text(dict, "impl", weft_impl_name(d.impl, d.server)) ||
        (d.bytes && set(dict, "size", PyLong_FromUnsignedLongLong(d.bytes))) || set_text(dict, "url", d.url) ||
        set_text(dict, "shm_id", d.shm_id) || set_text(dict, "peerinfo", d.peerinfo) ||
        (d.region_key_len && set(dict, "token", PyBytes_FromStringAndSize((char *)d.region_key, (Py_ssize_t)d.region_key_len))) ||
        (d.timeout_ms && set(dict, "timeout_ms", PyLong_FromUnsignedLongLong(d.timeout_ms))) ||
        (d.n_replicas && set(dict, "replicas", replicas(&d))))
        Py_CLEAR(dict);
    return dict;
}

/* --- and back ------------------------------------------------------------------------------------------------------------ */

static int get_text(weftpy_state_t *st, PyObject *value, const char *key, char *out, size_t room)
{
    const char *text = weftpy_str(value, key);
    if (!text)
        return -1;
    if (strlen(text) >= room) {
        weftpy_raise_text(st, WEFT_ERR_INVALID, "%s has %zu bytes, and may have %zu", key, strlen(text), room - 1);
        return -1;
    }
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int get_impl(weftpy_state_t *st, PyObject *value, weft_durl_t *d)
{
    const char *text = weftpy_str(value, "impl");
    for (int impl = WEFT_IMPL_LOCAL; text && impl <= WEFT_IMPL_UVERBS_PROXY; impl++)
        for (int server = 0; server < 2; server++)
            if (!strcmp(text, weft_impl_name((weft_impl_t)impl, server))) {
                d->impl = (weft_impl_t)impl;
                d->server = server;
                return 0;
            }
    if (text)
        weftpy_raise_text(st, WEFT_ERR_INVALID,
                          "impl is \"%s\", which is none of rdma_local, rdma_shared, rdma_tcp, rdma_uverbs, "
                          "and their like that end in _server",
                          text);
    return -1;
}

static int get_region_key(weftpy_state_t *st, PyObject *value, weft_durl_t *d)
{
    char *bytes;
    Py_ssize_t len;
    if (PyBytes_AsStringAndSize(value, &bytes, &len))
        return -1;
    if ((size_t)len > sizeof d->region_key) {
        weftpy_raise_text(st, WEFT_ERR_INVALID, "the token has %zd bytes, and may have %zu", len, sizeof d->region_key);
        return -1;
    }
    memcpy(d->region_key, bytes, (size_t)len);
    d->region_key_len = (size_t)len;
    return 0;
}

static int get_replicas(weftpy_state_t *st, PyObject *value, weft_durl_t *d)
{
    PyObject *list = PySequence_Tuple(value);
    int failed = !list;
    if (list && PyTuple_Size(list) > (Py_ssize_t)WEFT_MIRROR_MAX) {
        weftpy_raise_text(st, WEFT_ERR_INVALID, "%zd replicas: there are at most %u", PyTuple_Size(list), WEFT_MIRROR_MAX);
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(list); i++) {
        failed = get_text(st, PyTuple_GetItem(list, i), "a replica", d->replica[i], sizeof d->replica[i]);
        d->n_replicas += !failed;
    }
    Py_XDECREF(list);
    return failed ? -1 : 0;
}

static int get(weftpy_state_t *st, const char *key, PyObject *value, weft_durl_t *d)
{
    if (!strcmp(key, "name"))
        return get_text(st, value, key, d->name, sizeof d->name);
    if (!strcmp(key, "impl"))
        return get_impl(st, value, d);
    if (!strcmp(key, "size"))
        return weftpy_count(value, key, &d->bytes);
    if (!strcmp(key, "url"))
        return get_text(st, value, key, d->url, sizeof d->url);
    if (!strcmp(key, "shm_id"))
        return get_text(st, value, key, d->shm_id, sizeof d->shm_id);
    if (!strcmp(key, "peerinfo"))
        return get_text(st, value, key, d->peerinfo, sizeof d->peerinfo);
    if (!strcmp(key, "token"))
        return get_region_key(st, value, d);
    if (!strcmp(key, "timeout_ms"))
        return weftpy_count(value, key, &d->timeout_ms);
    if (!strcmp(key, "replicas"))
        return get_replicas(st, value, d);
    weftpy_raise_text(st, WEFT_ERR_INVALID,
                      "a durl has no \"%s\": it has name, impl, size, url, shm_id, peerinfo, token, timeout_ms "
                      "and replicas",
                      key);
    return -1;
}

PyObject *weftpy_durl_format(PyObject *module, PyObject *parts)
{
    weftpy_state_t *st = PyModule_GetState(module);
    weft_durl_t d = WEFT_DURL_INIT;
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    if (!PyDict_Check(parts)) {
        PyErr_SetString(PyExc_TypeError, "durl_format() takes a dict, such as durl_parse() gives");
        return NULL;
    }
    PyObject *items = PyDict_Items(parts); /* a copy, because reading the values can run any code */
    int failed = !items;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(items); i++) {
        PyObject *item = PyList_GetItem(items, i), *value = PyTuple_GetItem(item, 1);
        const char *key = weftpy_str(PyTuple_GetItem(item, 0), "a key of a durl");
        failed = !key || (value != Py_None && get(st, key, value, &d));
    }
    Py_XDECREF(items);
    if (failed)
        return NULL;
    if (!d.impl)
        return weftpy_raise_text(st, WEFT_ERR_INVALID, "a durl has a name and an impl, such as rdma_tcp");
    weft_status_t status = weft_durl_format(&d, text, &len);
    return status ? weftpy_raise(st, status) : weftpy_text(text);
}
