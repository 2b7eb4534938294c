/* _core/runtime_stats.c - counters of a Runtime: of all its shards together, and of each alone.
 *
 * The library asks the threads that drive the runtime, and waits for their answers. If another thread drives the runtime of a
 * loop, it may wait for the GIL, which this thread cannot release: asking may complete operations. So only the thread of the
 * loop may ask. For a runtime that is driven by hand, any thread may ask while nobody drives it. A blocking runtime is asked
 * without the GIL. tests/python/test_shards.py holds us to it. */
#include "core.h"

enum { ALL = UINT32_MAX };

/* -1 with an exception. */
static int ask(weftpy_runtime_t *run, uint32_t shard, weft_runtime_stats_t *out)
{
    weft_status_t status;
    if (weftpy_runtime_check(run) || (!run->blocking && weftpy_loop_thread_check(run)))
        return -1;
    weft_runtime_t *rt = run->rt;
    PyThreadState *save = run->blocking ? PyEval_SaveThread() : NULL;
    /* also fails if another thread has closed it */
    status = shard == ALL ? weft_runtime_get_stats(rt, out) : weft_runtime_get_shard_stats(rt, shard, out);
    if (save)
        PyEval_RestoreThread(save);
    if (status)
        weftpy_raise(run->st, status);
    return status ? -1 : 0;
}

#define ROW(field) \
    { \
#field, s->field \
    }
#define LIBRARY_ROWS(s) \
    ROW(ops_posted), ROW(ops_completed), ROW(sleeps), ROW(wakeups), ROW(rescued_wakeups), ROW(endpoints), ROW(endpoints_failed), \
        ROW(reconnects), ROW(msgs_sent), ROW(msgs_received), ROW(bytes_sent), ROW(bytes_received), ROW(unexpected_bytes), \
        ROW(ams_sent), ROW(ams_received), ROW(am_bytes_sent), ROW(am_bytes_received), ROW(am_held), ROW(am_held_bytes), \
        ROW(device_copies), ROW(device_direct), ROW(device_relayed), ROW(device_bounced), ROW(device_staged), \
        ROW(device_imports), ROW(shards), ROW(connections), ROW(busy), ROW(checksum_errors), ROW(policy_refused), \
        ROW(tls_handshakes), ROW(tls_resumed)

PyObject *weftpy_runtime_stats(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    weft_runtime_stats_t all = WEFT_RUNTIME_STATS_INIT, *s = &all;
    if (ask(run, ALL, s))
        return NULL;
    const weftpy_count_t rows[] = {
        LIBRARY_ROWS(s),       {"under_way", run->under_way}, {"turns", run->turns},
        {"spins", run->spins}, {"spins_won", run->spins_won}, {"inline_wakes", run->inline_wakes},
    };
    return weftpy_counts(rows, sizeof rows / sizeof *rows);
}

static PyObject *one(weftpy_runtime_t *run, uint32_t shard)
{
    weft_runtime_stats_t own = WEFT_RUNTIME_STATS_INIT, *s = &own;
    if (ask(run, shard, s))
        return NULL;
    const weftpy_count_t rows[] = {LIBRARY_ROWS(s)};
    return weftpy_counts(rows, sizeof rows / sizeof *rows);
}

PyObject *weftpy_runtime_shard_stats(PyObject *self, PyObject *unused)
{
    weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    PyObject *list = weftpy_runtime_check(run) ? NULL : PyList_New(0);
    for (uint32_t k = 0, n = list ? weft_runtime_shards(run->rt) : 0; list && k < n; k++) {
        PyObject *row = one(run, k);
        if (!row || PyList_Append(list, row))
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *weftpy_runtime_shards(PyObject *self, void *unused)
{
    const weftpy_runtime_t *run = (weftpy_runtime_t *)self;
    return PyLong_FromUnsignedLong(run->rt ? weft_runtime_shards(run->rt) : 0);
}
