"""UCXRequest: an operation under way, or over. It is asked (`completed`), or awaited.

    under way -> over   once, in whichever thread drives the worker; `check_error()` raises what it ended with

Who awaits a request is woken in the loop in which it awaits, by whatever thread. Before it sleeps it drives the worker itself for
a moment, since most answers come soon, and waking a loop takes longer than they do. So does who asks.

A receive whose request nobody holds any more is cancelled, so that its message goes to the next receive. A send goes on.

Promise: each request is over once, and nobody touches its buffer after that. tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import weft
from ucp._libs.objects import _numbers

from ..exceptions import (IN_PROGRESS, UCXCanceledError, UCXCloseError, UCXConnectionResetError, UCXError,
                          UCXMessageTruncatedError, made, status_of, translated)

if TYPE_CHECKING:
    from .worker import UCXWorker

SPIN = 60e-6  # seconds that an await drives the worker before it sleeps


class State:
    """How a request stands: what the library holds of it. It knows nobody but those who wait."""

    __slots__ = ("_by_address", "_done", "_error", "_then", "_waiters", "cancelled", "received", "receives")

    op: weft.Op[Any] | None = None

    def __init__(self, by_address: bool = False, receives: bool = False) -> None:
        self._by_address = by_address  # see translated()
        self._done = False
        self._error: UCXError | None = None
        self._waiters: list[Callable[[], None]] = []
        self._then: list[Callable[[State], None]] = []
        self.receives = receives  # a message
        self.cancelled = False  # its end was asked for here
        self.received: Any = None

    @property
    def done(self) -> bool:
        """True once it is over."""
        return self._done

    @property
    def error(self) -> UCXError | None:
        """What it ended with, if it failed."""
        return self._error

    def finish(self, error: BaseException | None, received: Any = None) -> None:
        """It is over."""
        if self._done:
            return
        self._error = None if error is None else self._meaning(error)
        self.received = received
        self._done = True
        waiters, self._waiters = self._waiters, []
        then, self._then = self._then, []
        for wake in waiters:
            wake()
        for function in then:
            function(self)

    def _meaning(self, error: BaseException) -> UCXError:
        """A receive whose endpoint ends was cancelled, as UCXX has it."""
        result = translated(error, self._by_address)
        if self.cancelled or self.receives and isinstance(result, (UCXConnectionResetError, UCXCloseError)):
            result = made(UCXCanceledError, str(error))
            result.__cause__ = error
        return result

    def called(self, first: Any, error: BaseException | None, *_: Any) -> None:
        """The callback of `ucp`, for what gives nothing."""
        self.finish(error)

    def gave(self, first: Any, error: BaseException | None, *_: Any) -> None:
        """The callback of `ucp`, for what gives memory."""
        self.finish(error, None if error is not None else first)

    def when_done(self, function: Callable[[State], None]) -> None:
        """Have a function called at the end, which may be now. With the worker to oneself."""
        if self.done:
            function(self)
        else:
            self._then.append(function)

    def wake(self, function: Callable[[], None]) -> None:
        """Have a function called at the end, in whichever thread; perhaps more than once. With the worker to oneself."""
        if self.done:
            function()
        else:
            self._waiters.append(function)


class OpState(State):
    """How a request stands that is one operation of Weft, which knows it itself."""

    __slots__ = ("_expected", "_known", "op")

    def __init__(self, op: weft.Op[Any], by_address: bool = False, expected: int = -1) -> None:
        super().__init__(by_address, expected >= 0)
        self.op: weft.Op[Any] = op
        self._expected = expected  # bytes of a message that is received
        self._known = False

    @property
    def done(self) -> bool:
        return self.op.done()

    @property
    def error(self) -> UCXError | None:
        if not self._known and self.op.done():
            op = self.op
            wrong = weft.CancelledError("the operation was cancelled") if op.cancelled() else op.exception()
            if wrong is not None:
                self._error = self._meaning(wrong)
            elif self._expected >= 0 and op.nbytes != self._expected:
                self._error = made(UCXMessageTruncatedError,
                                   f"length mismatch: {op.nbytes} (got) != {self._expected} (expected)")
            self._known = True
        return self._error

    def when_done(self, function: Callable[[State], None]) -> None:
        if self.op.done():
            function(self)
        else:
            self.op.add_done_callback(lambda _: function(self))

    def wake(self, function: Callable[[], None]) -> None:
        if self.op.done():
            function()
        else:
            self.op.add_done_callback(lambda _: function())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _waker(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Callable[[], None]:
    def wake() -> None:
        if asyncio._get_running_loop() is loop:
            _set(future)
            return
        try:
            loop.call_soon_threadsafe(_set, future)
        except RuntimeError:
            pass  # the loop is closed, and with it who waited
    return wake


class UCXRequest:
    """An operation of an endpoint or a worker."""

    def __init__(self, worker: UCXWorker, state: State, receives: bool) -> None:
        self._worker = weakref.ref(worker)
        self._state = state
        self._receives = receives
        self._number = 0
        self._end: Callable[[], object] | None = None  # has it end early

    @property
    def completed(self) -> bool:
        """True once it is over. While a thread drives the worker, asking helps it."""
        if not self._state.done:
            worker = self._worker()
            if worker is not None and worker._thread is not None:
                worker._spin(self._state, 0.0)
        return self._state.done

    @property
    def status(self) -> int:
        """The number of UCX for how it stands: 1 under way, 0 success, less an error."""
        return status_of(self._state.error) if self._state.done else IN_PROGRESS

    @property
    def recv_buffer(self) -> Any:
        """What was received, if memory was made for it: an array. None for a receive into memory of the program."""
        return self._state.received

    @property
    def ucxx_ptr(self) -> int:
        """Its number: that of no other object of this process, ever."""
        self._number = self._number or next(_numbers)
        return self._number

    @property
    def future(self) -> asyncio.Future[None]:
        """A future of the loop that runs, which ends as the request does."""
        return asyncio.ensure_future(self.wait())

    def check_error(self) -> None:
        """Raise what it ended with, if it failed. Nothing while it is under way."""
        error = self._state.error
        if error is not None:
            raise error

    async def wait(self) -> None:
        """Return when it is over, or raise what it ended with. Cancelling the wait cancels the request."""
        state = self._state
        if not state.done:
            worker = self._worker()
            if worker is not None:
                worker._spin(state, SPIN)
                if not state.done:
                    await self._sleep(worker, state)
        self.check_error()

    async def _sleep(self, worker: UCXWorker, state: State) -> None:
        try:
            if state.op is not None and worker._loop is not None:
                try:
                    await state.op  # the loop drives it, and waits for it as for its own
                except weft.WeftError:
                    pass  # check_error() says it
                return
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            with worker:
                state.wake(_waker(loop, future))
            worker._hand_over()
            del worker
            await future
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def wait_yield(self) -> None:
        """The same; the loop is never kept."""
        await self.wait()

    def _cancel(self) -> None:
        worker = self._worker()
        if not self._state.done and worker is not None:
            self._state.cancelled = True
            with worker:
                self._end_early()

    def _end_early(self) -> None:
        if self._state.op is not None:
            self._state.op._end()
        elif self._end is not None:
            self._end()

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is not None and self._receives and not state.done:
            try:
                self._cancel()
            except Exception:  # the interpreter ends
                pass

    def __repr__(self) -> str:
        return f"<ucxx {type(self).__name__} {self.ucxx_ptr:#x} {'completed' if self._state.done else 'under way'}>"


__all__ = ["OpState", "State", "UCXRequest"]
