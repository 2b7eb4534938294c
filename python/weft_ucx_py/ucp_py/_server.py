"""Listening: functions and coroutine functions that are called with the endpoint of each peer that connects.

    listening -> stopped     stop_server(), stop_listener(), fin(); endpoints that came in live on

A function is called by whoever drives: progress(), and every call that waits; one at a time, in the order the peers came. A
coroutine function becomes a task of the loop in which the coroutine of start_server() is awaited, one for each peer. A failure of
either is logged, and its peer's endpoint closed.

tests/python/test_ucp_py_server.py holds us to it.
"""
from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import weft

from ._core import Core, call, core
from ._endpoint import ucp_py_ep
from ._memory import _length

PORT = 13337

_logger = logging.getLogger("ucp_py")


def _takes_two(function: Callable[..., Any]) -> bool:
    """Later programs have a function of the endpoint and the listener."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return True
    return False


class ServerFuture:
    """A server: over when it has been stopped. done() asks, result() drives until then, and it can be awaited."""

    def __init__(self, py_func: Callable[..., Any], server_port: int = -1, is_coroutine: bool = False) -> None:
        if not callable(py_func):
            raise TypeError(f"py_func is a function of an endpoint, and not a {type(py_func).__name__}")
        own = core()
        self._core: Core = own
        self._function = py_func
        self._with_listener = _takes_two(py_func)
        self.is_coroutine = bool(is_coroutine) or any(
            inspect.iscoroutinefunction(one) for one in (py_func, getattr(py_func, "__call__", None)))
        self._waiting: deque[Any] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False
        self._stopped: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[ServerFuture], object]] = []
        self._awaited = 0
        port = PORT if server_port == -1 else _length(server_port, "server_port")
        where = os.environ.get("UCXPY_IFNAME") or "0.0.0.0"
        self._door: Any = own.runtime._listen(f"tcp://{where}:{port}", self._came)
        own.servers.append(self)

    @property
    def port(self) -> int:
        """Where it listens; 0 once it has been stopped."""
        return int(self._door.port) if self._door is not None else 0

    @property
    def coroutine(self) -> Coroutine[Any, Any, None]:
        """A coroutine that is over when the server has been stopped."""
        return self._serve_until_stopped()

    def _came(self, ep: Any) -> None:
        self._waiting.append(ep)
        loop = self._core.runtime.loop
        if loop is not self._core.manual and loop is not None:
            loop.call_soon(self._soon)

    def _soon(self) -> None:
        self._core.serve(asyncio.get_running_loop())

    def serve(self, loop: asyncio.AbstractEventLoop | None) -> int:
        """Call the function for whoever has come; how many times."""
        n = 0
        while self._waiting and not self._over:
            if self.is_coroutine and (loop is None or not self._awaited):
                break  # only the loop that awaits us may run the tasks
            ep = ucp_py_ep()._take(self._core, self._waiting.popleft())
            n += 1
            try:
                result = self._function(ep, self) if self._with_listener else self._function(ep)
            except Exception:
                _logger.exception("%r failed", self._function)
                ep._close()
                continue
            if not inspect.isawaitable(result):
                continue
            if loop is None:
                if inspect.iscoroutine(result):
                    result.close()
                _logger.error("%r gave something to await: say is_coroutine=True, and await what start_server() returns",
                              self._function)
                ep._close()
                continue
            task = asyncio.ensure_future(self._one(ep, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return n

    async def _one(self, ep: ucp_py_ep, result: Any) -> None:
        try:
            await result
        except weft.ClosedError:
            pass  # a normal end: the peer has closed
        except Exception:
            _logger.exception("%r failed", self._function)
            ep._close()

    async def _serve_until_stopped(self) -> None:
        if not self._over:
            core()
            loop = asyncio.get_running_loop()
            stopped = loop.create_future()
            self._stopped.append(stopped)
            self._awaited += 1
            loop.call_soon(self._soon)
            try:
                await stopped
            finally:
                self._awaited -= 1
                if stopped in self._stopped:
                    self._stopped.remove(stopped)
        for task in [t for t in self._tasks if t is not asyncio.current_task()]:
            await asyncio.wait([task])  # finish the clients that are being served

    def stop(self) -> None:
        """Listen no more. Who connected and was not given to the function is let go."""
        if self._over:
            return
        self._over = True
        if self in self._core.servers:
            self._core.servers.remove(self)
        door, self._door = self._door, None
        if not self._core.runtime.closed:
            self._core.attach()
            door.close()
            while self._waiting:
                self._core.close_endpoint(self._waiting.popleft())
        for stopped in self._stopped:
            if not stopped.done() and not stopped.get_loop().is_closed():
                stopped.get_loop().call_soon_threadsafe(_set, stopped)
        callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            call(fn, self)

    def add_done_callback(self, fn: Callable[[ServerFuture], object]) -> None:
        """Have fn(self) called once it has been stopped; here if it has. What fn raises is logged."""
        if not callable(fn):
            raise TypeError(f"the callback is a function of the server, and not a {type(fn).__name__}")
        if self._over:
            call(fn, self)
        else:
            self._callbacks.append(fn)

    def done(self) -> bool:
        """True once it has been stopped. Drives everything once."""
        if not self._over:
            self._core.drive()
        return self._over

    def result(self) -> None:
        """Drive everything until it has been stopped, by one of its functions."""
        if self.is_coroutine:
            raise weft.StateError("its function is a coroutine function: await it, in asyncio")
        self._core.wait(lambda: self._over)

    def __await__(self) -> Generator[Any, None, None]:
        return self._serve_until_stopped().__await__()


def _set(stopped: asyncio.Future[None]) -> None:
    if not stopped.done():
        stopped.set_result(None)


class ListenerFuture(ServerFuture):
    """A listener, as later programs know it: the same as a ServerFuture, given to functions that take two arguments and to
    stop_listener()."""


def start_server(py_func: Callable[..., Any], server_port: int = -1, is_coroutine: bool = False) -> Coroutine[Any, Any,
                                                                                                              None] | int:
    """Listen at a port, at 13337 with -1, at one that is free with 0, and call py_func with the endpoint of each peer.

    It listens at the addresses of the network device that UCXPY_IFNAME in the environment names, such as lo or eth0; without it
    at every IPv4 address.

    Of a coroutine function it returns a coroutine, to be awaited or run: it is over when stop_server() was called and everybody
    has been served. Of a function it returns 0, and progress() calls it. Which of them it is, is seen; is_coroutine says so where
    it cannot be.
    """
    server = ServerFuture(py_func, server_port, is_coroutine)
    return server.coroutine if server.is_coroutine else 0


def stop_server() -> int:
    """Listen no more. Endpoints and what is under way on them go on. Returns 0."""
    for server in tuple(core().servers):
        server.stop()
    return 0


def start_listener(py_func: Callable[..., Any], listener_port: int = -1, is_coroutine: bool = False) -> ListenerFuture:
    """The same as start_server(); the listener, whose `coroutine` is what start_server() returns, and which knows its `port`."""
    return ListenerFuture(py_func, listener_port, is_coroutine)


def stop_listener(listener: ServerFuture | None = None) -> int:
    """Stop a listener, or all of them. Returns 0."""
    if listener is None:
        return stop_server()
    if not isinstance(listener, ServerFuture):
        raise TypeError(f"stop_listener() takes what start_listener() returned, and not a {type(listener).__name__}")
    listener.stop()
    return 0
