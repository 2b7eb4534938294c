/* _core/timerfd.c - a clock that can be polled, for a loop that is driven by hand.
 *
 * A program that sleeps on the descriptors of a runtime has to wake for the library's deadlines too: a timer descriptor beside
 * them does that. (Python has them itself from 3.13 on.)
 *
 * tests/python/test_ucx_api.py holds us to it. */
#include "core.h"

#include <errno.h>
#include <math.h>
#include <sys/timerfd.h>

PyObject *weftpy_timerfd(PyObject *module, PyObject *unused)
{
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

PyObject *weftpy_timerfd_set(PyObject *module, PyObject *args)
{
    int fd;
    double seconds;
    if (!PyArg_ParseTuple(args, "id:_timerfd_set", &fd, &seconds))
        return NULL;
    if (!(seconds >= 0 && seconds < 1e9)) {
        PyErr_SetString(PyExc_ValueError, "seconds is not a number of seconds");
        return NULL;
    }
    double whole = floor(seconds);
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)whole, .tv_nsec = (long)((seconds - whole) * 1e9)}};
    if (seconds > 0 && !when.it_value.tv_sec && !when.it_value.tv_nsec)
        when.it_value.tv_nsec = 1;
    if (timerfd_settime(fd, 0, &when, NULL))
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}
