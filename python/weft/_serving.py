"""Functions of services at work: in an event loop, in threads beside it, and in threads of a blocking runtime.

In a loop a function is called in a turn; coroutines and streams are tasks, which are cancelled when nobody waits for their
request any more: its caller cancelled it or is gone, its deadline passed, the service closes. Functions in threads cannot be
stopped: they ask request.cancelled(), and what they return then goes nowhere.

    request --args--> function --returned--> reply
                               --CallError--> its code and message
                               --anything else raised--> UNKNOWN with the exception's text

The traceback of what was raised stays here: the loop's exception handler gets it, or the log "weft".

tests/python/test_service.py, test_service_streams.py, test_service_threads.py and test_service_lost.py hold us to it.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import operator
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypedDict

from . import _core
from ._core import Request
from ._functions import BlockingIncoming, END, Function, Incoming, IncomingInThread, answer, fail, send
from ._loops import Runner
from ._tls import secure

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("weft")
CLOSE_TIMEOUT = 5.0


class Limits(TypedDict, total=False):
    """Options of a server: Service.serve() says what they mean."""

    instance: str | None
    requests: int | None
    queue: int | None
    bytes: int | None
    payload_max: int | None
    remembered: int | None
    remember: float | None
    peer_percent: int | None
    stall: float | None


class Options(Limits, total=False):
    """Those, and how many threads it has."""

    threads: int


def checked_threads(threads: int | None) -> int | None:
    if threads is not None and operator.index(threads) < 0:
        raise ValueError(f"threads is {threads}: a number of threads is 0 or more")
    return threads


class _Base:
    """What both kinds of server have."""

    def __init__(self, runtime: _core.Runtime, name: str, functions: tuple[Function, ...], **limits: Unpack[Limits]) -> None:
        self._core = _core.Service(runtime, name, **limits)
        self._runtime: Any = runtime
        # a runtime of this package has a set of its servers, and ends them before itself
        self._servers: set[Any] = getattr(runtime, "_servers", set())
        self._index: dict[str, int] = {}
        self._uris: list[str] = []
        self.name = name
        self.instance = self._core.instance
        try:
            for function in functions:
                self._serve(function)
        except BaseException:
            self.abort()
            raise
        self._servers.add(self)

    def _handler(self, function: Function) -> Callable[[Request], None]:
        raise NotImplementedError

    def _serve(self, function: Function) -> None:
        self._index[function.name] = self._core.add(function.signature, self._handler(function), number=function.number,
                                                    fetch=function.fetch or function.into is not None,
                                                    peer=function.wants_request, serial=function.serial)

    @property
    def uri(self) -> str:
        """Where it listens: addresses joined by commas, with the ports that were picked."""
        return ",".join(self._uris)

    @property
    def closed(self) -> bool:
        """True once it is closed."""
        return self._core.closed

    @property
    def functions(self) -> list[str]:
        """The signatures of its functions, as callers see them."""
        return [line.split(" ", 1)[1] for line in self._core.functions().splitlines()]

    def listen(self, uri: str) -> str:
        """Let callers in at an address; port 0 picks one, and what is returned has it."""
        bound = self._core.listen(secure(uri) if getattr(self._runtime, "_tls", False) else uri)
        self._uris.append(bound)
        return bound

    def publish(self, registry: Any = None, address: str | None = None) -> None:
        """Enter it into a registry (None: the configured one; a uri opens it), so that weft://name finds it."""
        self._core.publish(self._runtime.registry(registry) if isinstance(registry, str) else registry, address)

    def stats(self) -> dict[str, int]:
        """Counters since it was started (requests, answered, failed, exhausted, refused, cancelled, late, repeated), and what it
        has now
        (under_way, waiting, bytes, remembered)."""
        return self._core.stats()

    def abort(self) -> None:
        """End it now, without waiting for anything."""
        self._core.stop()
        self._servers.discard(self)

    def __repr__(self) -> str:
        where = "closed" if self.closed else f"at {self.uri}" if self.uri else "without an address"
        return f"<weft.{type(self).__name__} {self.name}@{self.instance} {where}>"


# --- in an event loop -----------------------------------------------------------------------------------------------------------


class Server(_Base):
    """A service at work in an event loop."""

    def __init__(self, runtime: _core.Runtime, name: str, functions: tuple[Function, ...], *, threads: int = 0,
                 **limits: Unpack[Limits]) -> None:
        self._loop: asyncio.AbstractEventLoop = runtime.loop
        self._threads = checked_threads(threads)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._line = asyncio.Lock()  # whoever has it runs a function that is serial
        self._tasks: dict[asyncio.Task[None], tuple[Request, bool]] = {}  # task: its request, may it be cancelled
        super().__init__(runtime, name, functions, **limits)

    def _report(self, function: Function, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"weft: function {function.name} of service {self.name} failed",
                                           "exception": error})

    def _in_thread(self, function: Function) -> bool:
        if function.is_async or function.thread is False and function.stream is None:
            return False
        # a plain iterator waits, and the loop must not wait
        return bool(self._threads or function.thread or function.stream is not None)

    def _handler(self, function: Function) -> Callable[[Request], None]:
        if function.kind != "plain" or function.into is not None or function.serial or self._in_thread(function):
            threaded = self._in_thread(function)
            return lambda request: self._begin(function, request, threaded)

        def run(request: Request) -> None:
            if request.cancelled():
                request.release()
                return
            try:
                told = answer(function, request, function.call(request.args(function.mask) if not function.fetch else (),
                                                               request))
            except Exception as error:
                told = fail(function, request, error)
            except BaseException as error:
                fail(function, request, error)
                raise
            if told is not None:
                self._report(function, told)
        return run

    def _begin(self, function: Function, request: Request, threaded: bool) -> None:
        if request.cancelled():
            request.release()
            return
        task = self._loop.create_task(self._run(function, request, threaded))
        self._tasks[task] = (request, not threaded)
        task.add_done_callback(self._ended)
        if not threaded:
            request.on_cancel = lambda unused: task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Also of one that was cancelled before it began, and never came to its end."""
        request, _ = self._tasks.pop(task)
        request.on_cancel = None
        try:
            request.release()
        except _core.WeftError:
            pass  # it ended with its runtime
        if not task.cancelled():
            task.exception()  # asyncio must not report it again

    async def _run(self, function: Function, request: Request, threaded: bool) -> None:
        told: BaseException | None = None
        try:
            if function.serial:
                async with self._line:
                    told = await self._work(function, request, threaded)
            else:
                told = await self._work(function, request, threaded)
        except Exception as error:
            told = fail(function, request, error)
        except BaseException as error:
            fail(function, request, error)
            if not isinstance(error, asyncio.CancelledError) or not request.cancelled():
                raise
        if told is not None:
            self._report(function, told)

    async def _work(self, function: Function, request: Request, threaded: bool) -> BaseException | None:
        """Call it and answer; what is to be reported."""
        values = await self._values(function, request)
        incoming: Any = None
        if function.stream is not None:
            incoming = IncomingInThread(function, request, self._loop) if threaded else Incoming(function, request)
        if threaded:
            result = await self._beside(functools.partial(function.call, values, request, incoming))
        else:
            result = function.call(values, request, incoming)
        if function.kind == "coroutine":
            result = await result
        elif function.kind == "async generator":
            await self._give(request, result)
        elif function.kind == "generator":
            await self._give_plain(request, result, threaded)
        return answer(function, request, None if function.streams else result)

    async def _values(self, function: Function, request: Request) -> tuple[Any, ...]:
        if function.fetch:
            return ()
        if function.into is not None and request.fetch_len:
            values: tuple[Any, ...] = await request.fetch(function.into(request), function.mask)
            return values
        return request.args(function.mask)

    def _beside(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if self._pool is None:
            most = self._threads or min(32, (os.cpu_count() or 1) + 4)
            self._pool = concurrent.futures.ThreadPoolExecutor(most, thread_name_prefix=f"weft-{self.name}")
        return self._loop.run_in_executor(self._pool, call, *args)

    async def _give(self, request: Request, values: Any) -> None:
        try:
            async for value in values:
                await send(request, value)
        finally:
            await values.aclose()

    async def _give_plain(self, request: Request, values: Any, threaded: bool) -> None:
        try:
            while True:
                value = await self._beside(next, values, END) if threaded else next(values, END)
                if value is END:
                    return
                await send(request, value)
        finally:
            values.close()

    def add(self, function: Callable[..., Any], **options: Any) -> None:
        """Offer one more function; options as for Service.function()."""
        self._serve(declared(self.name, function, options))

    async def remove(self, name: str) -> None:
        """Take a function away: calls from now on are answered UNIMPLEMENTED. Returns when the last that is under way has
        ended."""
        await self._core.remove(name)
        self._core.forget(self._index.pop(name))

    async def drain(self, timeout: float | None = None) -> None:
        """Take no more calls, leave the registry, and wait until those under way are answered; TimeoutError if that takes
        longer."""
        await self._core.drain(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """End it: calls under way are cancelled, and answered UNAVAILABLE. Returns when the last function has; TimeoutError
        if that takes longer."""
        self._servers.discard(self)
        if self.closed:
            return
        own = asyncio.current_task()
        closing = self._core.close(timeout)
        for task, (_, may) in tuple(self._tasks.items()):
            if may and task is not own:
                task.cancel()
        try:
            await closing
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    async def _end(self) -> None:
        """The runtime is closed."""
        try:
            await self.close(CLOSE_TIMEOUT)
        except _core.WeftError:
            pass  # one of its functions does not end: do not wait for it

    def abort(self) -> None:
        super().abort()
        if not self._core.closed:
            self._core.close()
        for task, (_, may) in tuple(self._tasks.items()):
            if may:
                task.cancel()


# --- without one ----------------------------------------------------------------------------------------------------------------


class BlockingServer(_Base):
    """A service at work in threads of Python, on a blocking runtime."""

    def __init__(self, runtime: _core.Runtime, name: str, functions: tuple[Function, ...], *, threads: int | None = None,
                 **limits: Unpack[Limits]) -> None:
        checked_threads(threads)
        self._local = threading.local()
        self._threads: list[threading.Thread] = []
        self._line: threading.Thread | None = None  # the one for functions that are serial
        super().__init__(runtime, name, functions, **limits)
        count = min(32, (os.cpu_count() or 1) + 4) if threads is None else max(1, threads)
        for n in range(count):
            self._start_thread(str(n), work, self._core.take, self._local)
        self._start_thread("cancelled", tell, self._core)

    def _start_thread(self, name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=f"weft-{self.name}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _serve(self, function: Function) -> None:
        super()._serve(function)
        if function.serial and self._line is None:
            self._line = self._start_thread("serial", work, self._core.take_serial, self._local)

    def _handler(self, function: Function) -> Callable[[Request], None]:
        local, name = self._local, self.name

        def run(request: Request) -> None:
            told: BaseException | None = None
            if request.cancelled():
                request.release()
                return
            try:
                values: tuple[Any, ...] = ()
                if function.into is not None and request.fetch_len:
                    values = request.fetch(function.into(request), function.mask)
                elif not function.fetch:
                    values = request.args(function.mask)
                incoming = BlockingIncoming(function, request) if function.stream is not None else None
                if function.is_async:
                    result = own_loop(local).run(in_own_loop(function, values, request, incoming))
                else:
                    result = function.call(values, request, incoming)
                    if function.kind == "generator":
                        give(request, result)
                told = answer(function, request, None if function.streams else result)
            except BaseException as error:  # SystemExit and the like must not end a thread of the server
                told = fail(function, request, error)
            finally:
                request.release()
            if told is not None:
                log.error("weft: function %s of service %s failed", function.name, name, exc_info=told)
        return run

    def add(self, function: Callable[..., Any], **options: Any) -> None:
        """Offer one more function; options as for Service.function()."""
        self._serve(declared(self.name, function, options))

    def remove(self, name: str) -> None:
        """Take a function away: calls from now on are answered UNIMPLEMENTED. Returns when the last that is under way has
        ended."""
        self._core.remove(name)
        self._core.forget(self._index.pop(name))

    def drain(self, timeout: float | None = None) -> None:
        """Take no more calls, leave the registry, and wait until those under way are answered; TimeoutError if that takes
        longer."""
        self._core.drain(timeout)

    def close(self, timeout: float | None = None) -> None:
        """End it: calls under way are cancelled, and answered UNAVAILABLE. Returns when the last function has; TimeoutError if
        that takes longer: a
        function that does not look at request.cancelled() is not stopped."""
        self._servers.discard(self)
        if not self.closed:
            self._core.close(timeout)
        until = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def _end(self) -> None:
        """The runtime is closed."""
        try:
            self.close(CLOSE_TIMEOUT)
        except _core.WeftError:
            pass  # one of its functions does not end: do not wait for it

    def abort(self) -> None:
        super().abort()
        if not self._core.closed:
            try:
                self._core.close(0.001)
            except _core.WeftError:
                pass


def declared(name: str, function: Callable[..., Any], options: dict[str, Any]) -> Function:
    """A function that is declared for one server."""
    from .service import Service
    service = Service(name)
    service.function(**options)(function)
    return next(iter(service._functions.values()))


def work(take: Callable[[], Any], local: threading.local) -> None:
    """A thread of a blocking server: one request after the other, until the service ends."""
    try:
        while (taken := take()) is not None:
            function, request = taken
            del taken
            function(request)
            del function, request
    finally:
        runner: Runner | None = getattr(local, "runner", None)
        if runner is not None:
            runner.close()


def tell(core: _core.Service) -> None:
    """The thread that calls what was given as on_cancel."""
    while (request := core.take_cancelled()) is not None:
        function = request.on_cancel
        try:
            if function is not None:
                function(request)
        except Exception as error:
            log.error("weft: what was given as on_cancel failed", exc_info=error)
        del request, function


def own_loop(local: threading.local) -> Runner:
    """The event loop of a thread, for functions that are coroutines."""
    runner: Runner | None = getattr(local, "runner", None)
    if runner is None:
        runner = local.runner = Runner()
    return runner


async def in_own_loop(function: Function, values: tuple[Any, ...], request: Request, incoming: Any) -> Any:
    """A coroutine, or an asynchronous generator, in a thread's own event loop."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    request.on_cancel = lambda unused: loop.call_soon_threadsafe(task.cancel)
    try:
        result = function.call(values, request, incoming)
        if function.kind == "coroutine":
            return await result
        given: AsyncIterator[Any] = result
        try:
            async for value in given:
                send(request, value)
        finally:
            await result.aclose()
    finally:
        request.on_cancel = None


def give(request: Request, values: Any) -> None:
    """The values of a generator, one after the other; a sender waits while the caller is behind."""
    try:
        for value in values:
            send(request, value)
    finally:
        values.close()


