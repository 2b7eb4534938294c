"""One operation of `ucx_api`, driven to its end: what UCX-Py's tests and benchmarks import, and programs made from them.

Each posts an operation and calls progress() until its callback has been called. They wait as long as it takes: a program that has
to go on when its peer is gone calls ucx_api itself. An operation that fails raises what its callback got.

tests/python/test_ucx_helpers.py holds us to it.
"""
from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from . import ucx_api
from .arr import Array
from .objects import _logger

__all__ = ["blocking_am_recv", "blocking_am_recv_handler", "blocking_am_send", "blocking_flush", "blocking_handler",
           "blocking_recv", "blocking_send", "non_blocking_handler", "non_blocking_recv", "non_blocking_send"]

mp = multiprocessing.get_context("spawn")  # a forked process cannot use what its parent made


class _Ending(list[Any]):
    """[False] until the operation is over, then [True]; and what it ended with."""

    error: BaseException | None = None
    result: Any = None

    def __init__(self) -> None:
        super().__init__([False])

    def wait(self, progress: Callable[[], object]) -> None:
        while not self[0]:
            progress()
        if self.error is not None:
            raise self.error


def _over(request: Any, exception: BaseException | None, ending: _Ending) -> None:
    ending.error, ending.result = exception, request
    ending[0] = True


def blocking_handler(request: Any, exception: BaseException | None, finished: list[bool]) -> None:
    """A callback that sets finished[0]."""
    assert exception is None, exception
    finished[0] = True


def blocking_flush(obj: Any) -> None:
    """Wait until what was sent over a worker or an endpoint is out of our hands."""
    ending = _Ending()
    if obj.flush(cb_func=_over, cb_args=(ending,)) is not None:
        ending.wait(obj.progress if hasattr(obj, "progress") else obj.worker.progress)


def blocking_send(worker: Any, ep: Any, msg: Any, tag: int = 0) -> None:
    """Send a message, and wait until its memory may be used again."""
    array, ending = Array(msg), _Ending()
    if ucx_api.tag_send_nb(ep, array, array.nbytes, tag=tag, cb_func=_over, cb_args=(ending,)) is not None:
        ending.wait(worker.progress)


def blocking_recv(worker: Any, ep: Any, msg: Any, tag: int = 0) -> None:
    """Wait for a message, and receive it."""
    array, ending = Array(msg), _Ending()
    ucx_api.tag_recv_nb(worker, array, array.nbytes, tag=tag, cb_func=_over, cb_args=(ending,), ep=ep)
    ending.wait(worker.progress)


def non_blocking_handler(request: Any, exception: BaseException | None, completed_cb: Callable[[], object]) -> None:
    """A callback that calls completed_cb()."""
    if exception is not None:
        _logger.error("%s", exception)
        raise exception
    completed_cb()


def non_blocking_send(worker: Any, ep: Any, msg: Any, started_cb: Callable[[], object], completed_cb: Callable[[], object],
                      tag: int = 0) -> Any:
    """Post a send: started_cb() is called before, completed_cb() once it is complete, here or in progress()."""
    array = Array(msg)
    started_cb()
    request = ucx_api.tag_send_nb(ep, array, array.nbytes, tag=tag, cb_func=non_blocking_handler, cb_args=(completed_cb,))
    if request is None:  # no callback comes
        completed_cb()
    return request


def non_blocking_recv(worker: Any, ep: Any, msg: Any, started_cb: Callable[[], object], completed_cb: Callable[[], object],
                      tag: int = 0) -> Any:
    """Post a receive: started_cb() is called before, completed_cb() once it is complete, here or in progress()."""
    array = Array(msg)
    started_cb()
    return ucx_api.tag_recv_nb(worker, array, array.nbytes, tag=tag, cb_func=non_blocking_handler, cb_args=(completed_cb,), ep=ep)


def blocking_am_send(worker: Any, ep: Any, msg: Any) -> None:
    """Send an active message, and wait until its memory may be used again."""
    array, ending = Array(msg), _Ending()
    if ucx_api.am_send_nbx(ep, array, array.nbytes, cb_func=_over, cb_args=(ending,)) is not None:
        ending.wait(worker.progress)


def blocking_am_recv_handler(recv_obj: Any, exception: BaseException | None, ret: list[Any]) -> None:
    """A callback that puts what came into ret[0]."""
    assert exception is None, exception
    ret[0] = recv_obj


def blocking_am_recv(worker: Any, ep: Any) -> Any:
    """Wait for an active message, and give it."""
    ending = _Ending()
    ucx_api.am_recv_nb(ep, cb_func=_over, cb_args=(ending,))
    ending.wait(worker.progress)
    return ending.result
