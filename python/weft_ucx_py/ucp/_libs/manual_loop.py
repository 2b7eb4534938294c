"""An event loop that a program drives by hand: what a worker of `ucx_api` has while no asyncio loop drives it.

It has of a loop what a runtime of Weft asks for. What the runtime has to tell is put in a queue, and run() calls it. Who wants to
sleep arms the runtime, calls asleep(), and waits for fileno() to become readable: that is the runtime's own descriptor, a timer
for its next deadline, and an event that tells of what was put in the queue meanwhile; so a post on an armed worker wakes whoever
sleeps.

Promise: no wake-up is lost, whatever is posted between arming and sleeping. tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import heapq
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from weft import _core

_logger = logging.getLogger("ucx")


class Handle:
    """A call that is to come, and can be taken back. It is made in the context of whoever makes it: run() is a call like any
    other."""

    __slots__ = ("args", "due", "function")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], due: float) -> None:
        self.function: Callable[..., object] | None = function
        self.args = args
        self.due = due

    def __lt__(self, other: Handle) -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        """Not to be called any more."""
        self.function = None
        self.args = ()

    def cancelled(self) -> bool:
        """True once it was taken back, or called."""
        return self.function is None

    def call(self) -> None:
        """Call it, once."""
        function = self.function
        if function is None:
            return
        self.function = None
        try:
            function(*self.args)
        except Exception:
            _logger.exception("a callback failed")


class ManualLoop:
    """The queue, the timers, and the descriptors to sleep on."""

    _weft_by_hand = True

    def __init__(self) -> None:
        self._calls: deque[Handle] = deque()
        self._timers: list[Handle] = []
        self._running = self._sleeping = self._closed = False
        self._reader = -1
        self._epoll: select.epoll | None = None
        self._event = self._clock = -1

    # --- what a runtime asks for

    def call_soon(self, function: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:
        """Have run() call it."""
        handle = Handle(function, args, 0.0)
        self._calls.append(handle)
        if self._sleeping:
            self._sleeping = False
            os.eventfd_write(self._event, 1)
        return handle

    def call_later(self, delay: float, function: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:
        """Have run() call it, from that many seconds on."""
        handle = Handle(function, args, time.monotonic() + delay)
        heapq.heappush(self._timers, handle)
        return handle

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """The descriptor that belongs to the runtime; there is one."""
        self._reader = fd
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)

    def remove_reader(self, fd: int) -> bool:
        """Forget it."""
        if fd != self._reader:
            return False
        if self._epoll is not None:
            self._epoll.unregister(fd)
        self._reader = -1
        return True

    def is_closed(self) -> bool:
        """True after close()."""
        return self._closed

    def is_running(self) -> bool:
        """Never: it has no thread of its own."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log it: there is nobody else to tell."""
        _logger.error(context.get("message", "a callback failed"), exc_info=context.get("exception"))

    # --- what its driver does

    def run(self) -> int:
        """Call what is due; how many calls that were. What they add is for the next time, and inside of one it does nothing."""
        if self._running or not (self._calls or self._timers):
            return 0
        while self._timers and (self._timers[0].function is None or self._timers[0].due <= time.monotonic()):
            self._calls.append(heapq.heappop(self._timers))
        n = len(self._calls)
        if not n:
            return 0
        self._running = True
        try:
            for _ in range(n):
                self._calls.popleft().call()
        finally:
            self._running = False
        return n

    def fileno(self) -> int:
        """The descriptor that becomes readable when there is something to do; made when it is first asked for."""
        if self._epoll is None:
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._clock = _core._timerfd()
            self._epoll = select.epoll()
            for fd in (self._event, self._clock):
                self._epoll.register(fd, select.EPOLLIN)
            if self._reader >= 0:
                self._epoll.register(self._reader, select.EPOLLIN)
        return self._epoll.fileno()

    def asleep(self) -> bool:
        """Prepare to sleep on fileno(); False if there is something to call first."""
        self.fileno()
        self.awake()
        while self._timers and self._timers[0].function is None:
            heapq.heappop(self._timers)
        wait = self._timers[0].due - time.monotonic() if self._timers else 0.0
        if self._calls or (self._timers and wait <= 0):
            return False
        _core._timerfd_set(self._clock, wait)
        self._sleeping = True
        return True

    def awake(self) -> None:
        """Whatever woke its driver is seen."""
        self._sleeping = False
        if self._epoll is not None:
            for fd in (self._event, self._clock):
                try:
                    os.read(fd, 8)
                except BlockingIOError:
                    pass

    def close(self) -> None:
        """Let go of the descriptors, and of what was not called."""
        self._closed = True
        self._sleeping = False
        self._calls.clear()
        self._timers.clear()
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._event)
            os.close(self._clock)
            self._epoll = None
            self._event = self._clock = -1
