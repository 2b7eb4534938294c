"""UCXRequest: an operation that did not complete at once, and the function that is called when it has.

    pending -> finished   once, in progress(): the function is called with the request and the exception, or None

Closing one that is pending makes its end nobody's business: the operation goes on, its buffer is held until it is over, and the
function is not called.

Promise: each is finished once, and its function called once, whatever becomes of its endpoint. tests/python/test_ucx_api.py holds
us to it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import weft

from ..exceptions import UCXBaseException, UCXCanceled, UCXMsgTruncated
from .exceptions import translated
from .objects import Callback, _numbers, call_back

if TYPE_CHECKING:
    from weft import Op

    from .endpoint import UCXEndpoint
    from .worker import UCXWorker

_ITSELF = object()
_OVER = (weft.PeerError, weft.ClosedError)


class UCXRequest:
    """Under way, or over. `info["status"]` says which."""

    __slots__ = ("__weakref__", "_args", "_ep", "_expected", "_followers", "_function", "_kwargs", "_name", "_number", "_op",
                 "_out", "_pending",
                 "_why", "_worker")

    def __init__(self, worker: UCXWorker, ep: UCXEndpoint | None, function: Callback | None, args: tuple[Any, ...] | None,
                 kwargs: dict[str, Any] | None, name: str | None, out: bool) -> None:
        self._worker = worker
        self._ep = ep
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._name = name
        self._number = next(_numbers)
        self._pending = True
        self._out = out  # flush() waits for it
        self._op: Op[Any] | None = None
        self._why: UCXBaseException | None = None  # the exception, if it is ended early
        self._expected = -1  # for a receive: bytes of the message
        self._followers: list[Flush] | None = None
        worker._requests.add(self)
        if ep is not None:
            ep._requests.add(self)

    def closed(self) -> bool:
        """True once it is over, or was closed."""
        return not self._pending

    def close(self) -> None:
        """Have nothing to do with it any more: its function is not called."""
        self._function = None
        self._pending = False

    @property
    def info(self) -> dict[str, Any]:
        """{"status": "pending" or "finished", "name": what was being done}."""
        return {"status": "pending" if self._pending else "finished", "name": self._name}

    @property
    def handle(self) -> int:
        """Its number: that of no other object of this process, ever."""
        return self._number

    def __repr__(self) -> str:
        return f"<ucp UCXRequest {hex(self._number)} {self.info['status']}>"

    # --- of the library

    def _follow(self, op: Op[Any]) -> UCXRequest:
        """It is over when `op` is."""
        self._op = op
        op.add_done_callback(self._ended)
        return self

    def _ended(self, op: Op[Any]) -> None:
        if op.cancelled() or op.exception() is not None:
            ep = self._ep
            error = self._why or failure(op, self._name, ep is not None and ep._by_address)
            if error is not None and ep is not None and not ep._open and isinstance(error.__cause__, _OVER):
                error = UCXCanceled(str(error))  # the endpoint was closed on this side
            self._finish(error)
        else:
            self._finish(None if self._expected < 0 else length(op, self._expected, self._name))

    def _end(self, why: str) -> bool:
        """Have it end early, with UCXCanceled. It is finished later: once nobody touches its buffer any more."""
        if self._op is None or self._op.done():
            return False
        self._why = UCXCanceled(f"<{self._name or 'request'}>: {why}")
        return self._op._end()

    def _finish(self, error: UCXBaseException | None, first: Any = _ITSELF) -> None:
        """It is over. The function gets `first` in place of the request if that is given."""
        self._worker._requests.discard(self)
        if self._ep is not None:
            self._ep._requests.discard(self)
        followers, self._followers = self._followers, None
        function, self._function = self._function, None
        self._pending = False
        self._op = None
        args, kwargs = self._args, self._kwargs
        self._args = self._kwargs = None
        call_back(function, self if first is _ITSELF else first, error, args_more=args, kwargs=kwargs)
        for follower in followers or ():
            follower._one_less()


class Flush(UCXRequest):
    """Over when all of several requests are."""

    __slots__ = ("_left",)

    _left: int

    def _of(self, requests: list[UCXRequest], connecting: Op[Any] | None) -> Flush:
        self._left = len(requests) + (connecting is not None)
        for request in requests:
            if request._followers is None:
                request._followers = []
            request._followers.append(self)
        if connecting is not None:
            connecting.add_done_callback(lambda op: self._one_less(failure(op, self._name)))
        return self

    def _one_less(self, error: UCXBaseException | None = None) -> None:
        self._why = self._why or error
        self._left -= 1
        if not self._left:
            self._finish(self._why)


def length(op: Op[Any], expected: int, name: str | None) -> UCXBaseException | None:
    """What is wrong with the length of a message received, or None."""
    got = op.nbytes
    return None if got == expected else UCXMsgTruncated(f"<{name}>: length mismatch: {got} (got) != {expected} (expected)")


def failure(op: Op[Any], name: str | None = None, by_address: bool = False) -> UCXBaseException | None:
    """What a complete operation failed with, in the words of `ucp`; None if it did not."""
    try:
        error = op.exception()
    except BaseException as cancelled:  # asyncio raises its own CancelledError
        error = cancelled
    return None if error is None else translated(error, name, by_address=by_address)
