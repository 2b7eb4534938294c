"""The one runtime of `ucp_py`, who drives it, and how a synchronous call waits.

    no runtime -> open     init()
    open -> no runtime     fin(), and the end of the interpreter

While an asyncio loop runs in the calling thread the runtime is attached to it, so that its operations can be awaited; otherwise
to a loop of our own, which every call drives that asks or waits. It moves by itself from one to the other.

Promise: a call that waits drives everything: receives that have begun, connections that come, functions that are told of them. So
two processes that first receive and then send, both waiting for their sends, do not wait for each other.
tests/python/test_ucp_py.py holds us to it.
"""
from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import time
from collections.abc import Callable
from typing import Any

import weft
from ucp._libs.manual_loop import ManualLoop
from weft import _core as native

SPIN = 100e-6       # how long a waiting call polls before it sleeps
CLOSE_WAIT = 2.0    # how long destroy_ep() and fin() wait for a peer that does not answer
HOLD = 86400.0      # how long a payload may wait for its receive: in effect for ever

_logger = logging.getLogger("ucp_py")


def call(function: Callable[[Any], object], argument: Any) -> None:
    """Call a program's function; what it raises is logged, since nobody could catch it."""
    try:
        function(argument)
    except Exception:
        _logger.exception("%r failed", function)


class Core:
    """What there is between init() and fin()."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.manual = ManualLoop()
        self.runtime = native.Runtime(loop=self.manual, am_hold=HOLD)  # type: ignore[arg-type]
        self.endpoints: set[Any] = set()          # of ucp_py_ep: they live until they are destroyed
        self.closing: set[Any] = set()            # operations
        self.receiving: set[Any] = set()          # communications that still have a second step
        self.servers: list[Any] = []
        self.serving = False

    def attach(self) -> asyncio.AbstractEventLoop | None:
        """Have the runtime driven by the loop that runs in this thread, which is returned, or by hand."""
        loop = asyncio._get_running_loop()  # the variant that does not raise: this is called often
        wanted = loop or self.manual
        if self.runtime.loop is not wanted:
            self.runtime._attach(wanted)
        return loop

    def drive(self, serve: bool = True) -> int:
        """Once; how much happened."""
        loop = self.attach()
        n = self.runtime._progress()
        if loop is None:
            n += self.manual.run()
        else:  # the loop can call them only after this call, so do it here
            for receive in [r for r in self.receiving if r.ready()]:
                receive.step()
                n += 1
        return n + (self.serve(loop) if serve else 0)

    def serve(self, loop: asyncio.AbstractEventLoop | None) -> int:
        """Have the functions of servers called for whoever has come: one at a time, since they may wait themselves. How many
        calls that were."""
        n = 0
        if not self.serving:
            self.serving = True
            try:
                for server in tuple(self.servers):
                    n += server.serve(loop)
            finally:
                self.serving = False
        return n

    def wait(self, done: Callable[[], bool], timeout: float | None = None, serve: bool = True) -> bool:
        """Drive until `done`; False if that has not come in time. Not to serve: the functions of servers are called later, by
        others who wait."""
        end = None if timeout is None else time.monotonic() + timeout
        quiet = 0.0
        while not done():
            if self.drive(serve):
                quiet = 0.0
                continue
            now = time.monotonic()
            if end is not None and now >= end:
                return done()
            quiet = quiet or now
            if now - quiet > SPIN:
                self.sleep(0.5 if end is None else max(0.0, min(0.5, end - now)))
        return True

    def sleep(self, most: float) -> None:
        """Until there is something to do, or that many seconds. In a coroutine the loop has the runtime's descriptor: there
        it is a nap."""
        if self.runtime.loop is not self.manual:
            time.sleep(min(most, 0.0002))
        elif self.runtime._arm() and self.manual.asleep():
            poll = select.poll()
            poll.register(self.manual.fileno(), select.POLLIN)
            poll.poll(most * 1000)
            self.manual.awake()

    def close_endpoint(self, ep: Any) -> Any:
        """Begin to close an endpoint of Weft's; the operation, which is nobody's to wait for."""
        op = ep.close()
        if not op.done():
            self.closing.add(op)
            op.add_done_callback(self._closed)
        return op

    def _closed(self, op: Any) -> None:
        self.closing.discard(op)

    def close(self) -> None:
        """Everything, letting what was sent arrive."""
        for server in tuple(self.servers):
            server.stop()
        for ep in tuple(self.endpoints):
            ep._close()
        self.wait(lambda: all(op.done() for op in self.closing), CLOSE_WAIT, serve=False)
        self.runtime._close()
        self.manual.run()
        self.manual.close()


_own: Core | None = None


def core() -> Core:
    """What init() made, ready to be used by this thread."""
    if _own is None or _own.runtime.closed:
        raise weft.StateError("ucp_py is not initialised: call ucp_py.init() first")
    if _own.pid != os.getpid():
        raise weft.ForkedError("this process was forked from the one that called ucp_py.init(): call it here, too")
    _own.attach()
    return _own


def init() -> int:
    """Open the runtime: memory and connections of this process. Returns 0; once is enough, and a second time does nothing."""
    global _own
    if _own is None or _own.runtime.closed or _own.pid != os.getpid():
        _own = Core()
    return 0


def fin() -> int:
    """Stop listening, close every endpoint so that everything sent arrives, and close the runtime. Returns 0; init() opens it
    again."""
    global _own
    own, _own = _own, None
    if own is not None and own.pid == os.getpid() and not own.runtime.closed:
        own.attach()
        own.close()
    return 0


def progress() -> int:
    """Drive everything once, and call the functions of connections that have come; how much happened. It does not wait."""
    return core().drive()


def set_cuda_dev(dev: int) -> int:
    """Have this thread's alloc_cuda() allocate on that GPU. Returns 0; weft.UnsupportedError where there is none."""
    from ._cuda import use_device
    use_device(dev)
    return 0


def _at_exit() -> None:
    try:
        fin()
    except Exception:
        pass  # the loop of another thread owns it, and ends with the process


atexit.register(_at_exit)
