"""Sending and receiving: tag messages, the stream, active messages. Each returns None if it completed at once, or a UCXRequest.

None means of a send, and of the stream, that the callback is not called. Otherwise cb_func(request, exception, *cb_args,
**cb_kwargs) is called later, in progress(). The callback of a receive is always called, as in UCX-Py, before tag_recv_nb() or
am_recv_nb() returns None if the message was there; that of am_recv_nb() gets the message in place of the request. An error that
is known at once is raised.

Promise: no buffer is touched any more once its request is finished. tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import contextlib
from typing import Any

import weft

from ..exceptions import UCXBaseException, UCXCanceled, UCXError
from .arr import Array, asarray
from .endpoint import UCXEndpoint
from .exceptions import NO_PLACE, translated
from .objects import AllocatorType, Callback, Feature, call_back
from .request import UCXRequest, failure, length
from .stream import PIECE, Want
from .worker import AM_ID, STREAM_ID, UCXWorker

ALL = 0xFFFF_FFFF_FFFF_FFFF

Args = tuple[Any, ...] | None
Kwargs = dict[str, Any] | None


def _memory(buffer: Any, nbytes: int, writable: bool) -> Any:
    return (buffer if type(buffer) is Array else asarray(buffer))._memory(nbytes, writable)


def _began(op: weft.Op[Any], worker: UCXWorker, ep: UCXEndpoint | None, function: Callback | None, args: Args, kwargs: Kwargs,
           name: str | None, out: bool) -> UCXRequest | None:
    if op.done():
        error = failure(op, name, ep is not None and ep._by_address)
        if error is not None:
            raise error
        return None
    return UCXRequest(worker, ep, function, args, kwargs, name, out)._follow(op)


# --- tag messages

def tag_send_nb(ep: UCXEndpoint, buffer: Any, nbytes: int, tag: int, cb_func: Callback | None, cb_args: Args = None,
                cb_kwargs: Kwargs = None, name: str | None = None) -> UCXRequest | None:
    """Send the first `nbytes` of a buffer with a tag of 64 bits. Complete when the buffer may be used again."""
    ep._usable()
    worker = ep._worker
    worker._context._need(Feature.TAG)
    try:
        op = ep._endpoint.send(_memory(buffer, nbytes, False), tag & ALL)
    except weft.WeftError as error:
        raise translated(error, name or "tag_send_nb", by_address=ep._by_address) from error
    return _began(op, worker, ep, cb_func, cb_args, cb_kwargs, name or "tag_send_nb", True)


def tag_recv_nb(worker: UCXWorker, buffer: Any, nbytes: int, tag: int, cb_func: Callback | None, tag_mask: int = -1,
                cb_args: Args = None,
                cb_kwargs: Kwargs = None, name: str | None = None, ep: UCXEndpoint | None = None) -> UCXRequest | None:
    """Receive a message of `nbytes` whose tag is `tag` where `tag_mask` has ones, from whichever endpoint of the worker has it.

    A message of another length is UCXMsgTruncated. With `ep` it ends when that endpoint is lost or closed, with UCXCanceled.

    The callback is called whenever a message is received: here and now if it had arrived before, and then the result is None;
    else in progress().
    """
    worker._ready()
    worker._context._need(Feature.TAG)
    name = name or "tag_recv_nb"
    try:
        op = worker._runtime.recv_any_into(_memory(buffer, nbytes, True), tag & ALL, tag_mask & ALL)
    except weft.WeftError as error:
        raise translated(error, name) from error
    request = UCXRequest(worker, ep, cb_func, cb_args, cb_kwargs, name, False)
    if op.done():
        wrong = failure(op, name) or length(op, nbytes, name)
        if wrong is not None:
            request.close()
            request._finish(None)
            raise wrong
        request._finish(None)
        return None
    request._expected = nbytes
    request._follow(op)
    if ep is not None and (ep._told or not ep._open):  # the message has not arrived, and cannot arrive any more
        request._end(str(ep._status or "the endpoint is closed"))
    return request


# --- the stream

class _Pieces(UCXRequest):
    """A send of the stream: over when all of its pieces are."""

    __slots__ = ("_left",)

    _left: int

    def _one(self, op: weft.Op[Any]) -> None:
        self._why = self._why or failure(op, self._name, self._ep is not None and self._ep._by_address)
        self._left -= 1
        if not self._left:
            self._finish(self._why)


def stream_send_nb(ep: UCXEndpoint, buffer: Any, nbytes: int, cb_func: Callback | None, cb_args: Args = None,
                   cb_kwargs: Kwargs = None, name: str | None = None) -> UCXRequest | None:
    """Send the first `nbytes` of a buffer to the peer's stream. Complete when the buffer may be used again."""
    ep._usable(stream=True)
    worker = ep._worker
    worker._context._need(Feature.STREAM)
    name = name or "stream_send_nb"
    array = asarray(buffer)
    memory = array._memory(nbytes, False)
    if not nbytes:
        return None
    ops = []
    try:
        for piece in (memory,) if nbytes <= PIECE else array._pieces(nbytes, PIECE):
            ops.append(ep._endpoint.am_send(STREAM_ID, piece))
    except weft.WeftError as error:
        if not ops:
            raise translated(error, name, by_address=ep._by_address) from error
    waiting = [op for op in ops if not op.done()]
    for op in ops:
        error_now = failure(op, name) if op.done() else None
        if error_now is not None and not waiting:
            raise error_now
    if not waiting:
        return None
    request = _Pieces(worker, ep, cb_func, cb_args, cb_kwargs, name, True)
    request._left = len(waiting)
    request._op = waiting[-1]
    for op in waiting:
        op.add_done_callback(request._one)
    return request


def stream_recv_nb(ep: UCXEndpoint, buffer: Any, nbytes: int, cb_func: Callback | None, cb_args: Args = None,
                   cb_kwargs: Kwargs = None, name: str | None = None) -> UCXRequest | None:
    """Receive exactly `nbytes` from the peer's stream. Complete when all of them are here."""
    ep._check()
    worker = ep._worker
    worker._context._need(Feature.STREAM)
    array = asarray(buffer)
    array._memory(nbytes, True)
    if not nbytes:
        return None
    result: list[UCXBaseException | None] = []
    want = Want(worker, ep, lambda _, error: result.append(error), None, None, name or "stream_recv_nb", False)
    want._into, want._nbytes, want._filled = array if array.cuda else array._flat(nbytes), nbytes, 0
    ep._streamed().want(want)
    if result:
        if result[0] is not None:
            raise result[0]
        return None
    want._function, want._args, want._kwargs = cb_func, cb_args, cb_kwargs
    return want


# --- active messages

def am_send_nbx(ep: UCXEndpoint, buffer: Any, nbytes: int, cb_func: Callback | None, cb_args: Args = None,
                cb_kwargs: Kwargs = None, name: str | None = None) -> UCXRequest | None:
    """Send the first `nbytes` of a buffer as an active message. Complete when the buffer may be used again."""
    ep._usable()
    worker = ep._worker
    worker._context._need(Feature.AM)
    name = name or "am_send_nbx"
    array = asarray(buffer)
    kind = AllocatorType.CUDA if array.cuda else AllocatorType.HOST
    try:
        op = ep._endpoint.am_send(AM_ID, array._memory(nbytes, False), bytes([kind]))
    except weft.WeftError as error:
        raise translated(error, name, by_address=ep._by_address) from error
    return _began(op, worker, ep, cb_func, cb_args, cb_kwargs, name, True)


class _Receive(UCXRequest):
    """A receive of an active message."""

    __slots__ = ()

    def _end(self, why: str) -> bool:
        if not self._pending or self._op is not None or self._ep is None or self._next not in self._ep._receivers:
            return False
        self._ep._receivers.remove(self._next)
        self._finish(UCXCanceled(f"<{self._name}>: While waiting for am_recv the endpoint was closed ({why})"), None)
        return True

    def _next(self) -> None:
        """A message is here, or none will come."""
        ep = self._ep
        assert ep is not None
        if not self._pending:  # closed: the next receive gets the message
            self._finish(None)
            if ep._receivers and ep._messages:
                ep._receivers.popleft()()
            return
        message = ep._messages.popleft()
        try:
            into = _allocated(ep._worker, message)
            op = message.read_into(asarray(into)._exposed)
        except Exception as error:
            with contextlib.suppress(weft.WeftError):  # the sender is told why, if it waits
                message.reject(NO_PLACE)
            message.release()
            self._gave(error if isinstance(error, UCXBaseException) else translated(error, self._name), None)
            return
        if op.done():
            self._gave(failure(op, self._name), into)
        else:
            self._op = op
            op.add_done_callback(lambda done: self._gave(failure(done, self._name), into))

    def _gave(self, error: UCXBaseException | None, into: Any) -> None:
        if error is not None and isinstance(error.__cause__, weft.CancelledError) and self._ep is not None and self._ep._open:
            error = UCXCanceled(f"<{self._name}>: the peer took the message back: its am_send() was cancelled, or it has ended")
        self._finish(error, None if error is not None else into)


def _allocated(worker: UCXWorker, message: weft.Message) -> Any:
    """Memory for a message, from the allocator for where it lay at its sender."""
    kind = AllocatorType.CUDA if message.header[:1] == bytes([AllocatorType.CUDA]) else AllocatorType.HOST
    allocator = worker._allocators.get(kind)
    if allocator is None:
        raise UCXError("an active message lies on a GPU, and there is no allocator for that: register_am_allocator(f, "
                       "AllocatorType.CUDA)")
    made = allocator(message.nbytes)
    size = asarray(made).nbytes
    if size != message.nbytes:
        raise UCXError(f"the allocator was asked for {message.nbytes} bytes and gave {size}")
    return made


def am_recv_nb(ep: UCXEndpoint, cb_func: Callback | None, cb_args: Args = None, cb_kwargs: Kwargs = None,
               name: str | None = None) -> UCXRequest | None:
    """Receive the next active message of an endpoint: cb_func(message, exception, *cb_args, **cb_kwargs) is called with what the
    allocator
    gave, here and now if one waits (then the result is None), else later. An endpoint that is lost, and has none, raises why."""
    ep._check()
    worker = ep._worker
    worker._context._need(Feature.AM)
    if not ep._messages and ep._told:
        ep.raise_on_error()
        raise UCXError(str(ep._status))  # without error handling
    came: list[tuple[Any, UCXBaseException | None]] = []
    request = _Receive(worker, ep, lambda message, error: came.append((message, error)), None, None, name or "am_recv_nb", False)
    if ep._messages and not ep._receivers:
        request._next()
    else:
        ep._receivers.append(request._next)
    if came:
        if came[0][1] is not None:
            raise came[0][1]
        call_back(cb_func, *came[0], args_more=cb_args, kwargs=cb_kwargs)
        return None
    request._function, request._args, request._kwargs = cb_func, cb_args, cb_kwargs
    return request
