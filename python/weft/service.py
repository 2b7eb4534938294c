"""Services: functions that other processes call, declared by their type hints or by a signature.

    service = weft.Service("calc")

    @service.function
    def add(a: int, b: int) -> int:
        return a + b

    async with service.serve("tcp://127.0.0.1:0") as server:     # or `with`, without an event loop: functions then run in threads
        print(server.uri)

This file says what a function is; _serving.py runs it. tests/python/test_service.py and test_service_hints.py hold us to it.
"""
from __future__ import annotations

import asyncio
import inspect
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _core, _hints
from ._core import Request
from ._functions import Function
from ._serving import BlockingServer, Server

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._serving import Options
    from ._tls import AnyTLS

F = TypeVar("F", bound=Callable[..., Any])
NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")  # as in service.h
DEFAULT_URI = "tcp://127.0.0.1:0"


def _kind(function: Callable[..., Any]) -> str:
    call = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isasyncgenfunction(call):
        return "async generator"
    if inspect.iscoroutinefunction(call):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(call) else "plain"


def _from_hints(function: Callable[..., Any], name: str, kind: str, local: dict[str, Any]
                | None) -> tuple[str, list[_hints.Slot]]:
    hints = _hints.hints_of(function, name, local)
    slots = _hints.parameters(function, name, hints, Request, None)
    if "return" not in hints:
        raise TypeError(f"{name}: the result has no type hint: give it one (None for no result), or give the signature")
    gives, _ = _hints.results(hints["return"], name, "generator" in kind)
    takes = ", ".join(f"{slot.name}: {'stream ' if slot.kind.stream else ''}{slot.kind.type}" for slot in slots
                      if slot.what != "request")
    return f"{name}({takes}) -> {gives}", slots


def _from_signature(function: Callable[..., Any], signature: str, name: str | None, kind: str, fetch: bool,
                    local: dict[str, Any] | None) -> tuple[str, list[_hints.Slot]]:
    text, own, takes, gives = _core.Service.parse(signature)
    if name is not None and name != own:
        text, own = name + text[len(own):], name
    try:
        hints = _hints.hints_of(function, own, local)
    except TypeError:
        hints = {}  # the signature has all types
    slots = _hints.parameters(function, own, hints, Request, [] if fetch else takes)
    streams = bool(gives) and gives[0][2]
    if streams != ("generator" in kind):
        raise TypeError(f"{own}: the signature gives {'a' if streams else 'no'} stream, and the function is "
                        f"{'no' if streams else 'a'} generator")
    return text, slots


class Service:
    """Functions under a name. It is a declaration: serve() and start() put it to work, as often as one likes."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name) or name.startswith("weft"):
            raise _core.InvalidError(f"{name!r} is no name of a service: 1 to 63 letters, digits, '.', '-' and '_', and names "
                                     f"that begin with \"weft\" are the library's")
        self.name = name
        self._functions: dict[str, Function] = {}

    @overload
    def function(self, function: F, /) -> F: ...

    @overload
    def function(self, *, signature: str | None = None, name: str | None = None, idempotent: bool = False, oneway: bool = False,
                 number: int | None = None, thread: bool | None = None, into: Callable[[Request], Any] | None = None,
                 fetch: bool = False, serial: bool = False) -> Callable[[F], F]: ...

    def function(self, function: Any = None, *, signature: str | None = None, name: str | None = None, idempotent: bool = False,
                 oneway: bool = False, number: int | None = None, thread: bool | None = None,
                 into: Callable[[Request], Any] | None = None, fetch: bool = False, serial: bool = False) -> Any:
        """Offer a function: a plain one, a coroutine function, or a generator of either kind, which gives a stream.

        Its type hints become the signature; `signature` says it exactly instead. A parameter of type weft.Request gets the
        request. `name` is that on the wire. `idempotent`: it may be run again after a failure. `oneway`: nobody waits for it.
        `thread`: run it in a thread of the server's (True) or in the event loop (False), whatever the server's `threads` say.
        `into` is called with the request before the data of large arguments comes, and gives the buffer that it goes to;
        arguments view it. `fetch`: the function takes the request alone, and calls request.fetch() itself. `serial`: of all such
        functions of a server one request runs at a time, from its begin to its answer, whatever threads and shards there are.
        """
        local = sys._getframe(1).f_locals

        def add(function: F) -> F:
            self._add(function, local, signature=signature, name=name, idempotent=idempotent, oneway=oneway, number=number,
                      thread=thread, into=into, fetch=fetch, serial=serial)
            return function
        return add if function is None else add(function)

    def _add(self, function: Callable[..., Any], local: dict[str, Any] | None, *, signature: str | None = None, name: str
             | None = None, idempotent: bool = False, oneway: bool = False, number: int | None = None, thread: bool | None = None,
             into: Callable[[Request], Any] | None = None, fetch: bool = False, serial: bool = False) -> Function:
        if not callable(function):
            raise TypeError(f"{function!r} cannot be called: a function, a coroutine function or a generator is wanted")
        kind = _kind(function)
        if signature is None:
            own = name if name is not None else getattr(function, "__name__", "")
            if fetch:
                raise TypeError(f"{own}: a function that fetches its arguments itself needs a signature: its parameters do not "
                                f"say it")
            text, slots = _from_hints(function, own, kind, local)
        else:
            text, slots = _from_signature(function, signature, name, kind, fetch, local)
        for mark, wanted in (("idempotent", idempotent), ("oneway", oneway)):
            if wanted and mark not in text.rsplit(")", 1)[-1].split():
                text += " " + mark
        # raises for what is not allowed: wrong names, two streams in one direction, oneway with a result
        text, own, takes, _ = _core.Service.parse(text)
        if thread is not None and "async" in kind or thread and kind == "coroutine":
            raise TypeError(f"{own}: a coroutine runs in its event loop; `thread` is for plain functions and generators")
        if own in self._functions:
            raise _core.StateError(f"the service {self.name!r} has a function {own!r} already")
        made = Function(own, text, function, kind, slots, number, thread, into, fetch,
                        [(type_, stream) for _, type_, stream in takes], serial)
        self._functions[own] = made
        return made

    def remove(self, name: str) -> None:
        """Take a function away, for servers that start from now on; Server.remove() takes it from one that runs."""
        if self._functions.pop(name, None) is None:
            raise _core.NotFoundError(f"the service {self.name!r} has no function {name!r}")

    @property
    def signatures(self) -> list[str]:
        """The signatures of its functions."""
        return [function.signature for function in self._functions.values()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __repr__(self) -> str:
        return f"<weft.Service {self.name}: {', '.join(self._functions) or 'no functions'}>"

    def start(self, runtime: _core.Runtime, **options: Unpack[Options]) -> Server | BlockingServer:
        """Serve on a runtime: a Server in one of an event loop, a BlockingServer in one of weft.blocking. It answers over every
        endpoint of the
        runtime, and those of listen(). Options as for serve()."""
        if not isinstance(runtime, _core.Runtime):
            raise TypeError(f"{runtime!r} is no runtime: a weft.Runtime or a weft.blocking.Runtime is wanted")
        kind: Any = Server if runtime.loop is not None else BlockingServer
        made: Server | BlockingServer = kind(runtime, self.name, tuple(self._functions.values()), **options)
        return made

    def serve(self, uri: str | None = DEFAULT_URI, *, registry: Any = None, address: str | None = None,
              runtime: _core.Runtime | None = None, shards: int | None = None, drain: float = 10.0, tls: AnyTLS = None,
              **options: Unpack[Options]) -> Serving:
        """Serve at an address for as long as a block runs: `async with` in an event loop, `with` without one, where functions run
        in threads.

        `registry`: enter it there; an object of weft.registry(), a uri, or True for the configured one. `address` is what others
        then find, if it is not the listener's. `shards`: without an event loop, serve on a runtime of the block's own that so
        many threads of the library drive (0: one on each core), each with connections of its own. At the end no new calls are
        taken, and those under way have `drain` seconds. `tls`: certificates (weft.TLS), or True for those that are configured:
        serve on a runtime of the block's own that is reached over TLS alone, also at an address that begins with tcp://.

        `threads`: in an event loop, plain functions run in so many threads (0: in the loop itself); without one, all functions
        do. `requests`, `queue`, `bytes`, `payload_max`: how many requests at one time, how many of them waiting for a thread,
        bytes of their arguments, of one alone; what goes beyond is answered RESOURCE_EXHAUSTED. In an event loop `requests`
        bounds what waits for a thread, and `queue` nothing. `instance`: its own name among those of the service. `remembered`,
        `remember`: replies to calls made with `once`, and for how long. `peer_percent`: what one connection may have of
        `requests`, `queue`, `bytes` and `remembered`, 50 if nobody says. `stall`: seconds after which a caller that announced
        arguments and sends nothing of them loses its connection, 30 if nobody says; math.inf: never.
        """
        if shards is not None and runtime is not None:
            raise ValueError("a runtime that is given has its shards: open it with shards=, and leave them out here")
        if tls is not None and runtime is not None:
            raise ValueError("a runtime that is given has its certificates: open it with tls=, and leave them out here")
        return Serving(self, uri, registry, address, runtime, shards, drain, tls, options)

    def serve_forever(self, uri: str | None = DEFAULT_URI, *, ready: Callable[[BlockingServer], object] | None = None,
                      registry: Any = None, address: str | None = None, runtime: _core.Runtime | None = None, shards: int
                      | None = None, drain: float = 10.0, tls: AnyTLS = None, **options: Unpack[Options]) -> None:
        """Serve in threads until SIGTERM or Ctrl-C, then let calls under way end.

        `ready` is called with the server once it takes calls; without it a line on stderr says where it listens. The other
        options are those of serve(). It waits, so it is refused where an event loop is running.
        """
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("serve_forever() would stop the event loop that is running here: use `async with "
                               "service.serve(uri):` in a coroutine, or call it where no loop runs")
        over = threading.Event()
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, lambda number, frame: over.set()) if main else None
        try:
            with self.serve(uri, registry=registry, address=address, runtime=runtime, shards=shards, drain=drain,
                            tls=tls, **options) as server:
                if ready is not None:
                    ready(server)
                else:
                    print(f"weft: service {self.name} at {server.uri or 'no address of its own'}; Ctrl-C ends it",
                          file=sys.stderr, flush=True)
                try:
                    while not over.wait(3600):
                        pass
                except KeyboardInterrupt:
                    pass
        finally:
            if main:
                signal.signal(signal.SIGTERM, before)


class Serving:
    """A service at an address, for a block: what serve() gives."""

    def __init__(self, service: Service, uri: str | None, registry: Any, address: str | None,
                 runtime: _core.Runtime | None, shards: int | None, drain: float, tls: AnyTLS, options: Options) -> None:
        self._service, self._uri, self._registry, self._address = service, uri, registry, address
        self._runtime, self._shards, self._drain, self._tls, self._options = runtime, shards, drain, tls, options
        self._own: Any = None  # the runtime that was opened for the block
        self._server: Any = None

    def _open(self, runtime: _core.Runtime) -> Any:
        if self._server is not None and not self._server.closed:
            raise _core.StateError("the block runs already: call serve() once for each")
        server: Any = self._service.start(runtime, **self._options)
        try:
            if self._uri is not None:
                server.listen(self._uri)
            if self._registry is not None and self._registry is not False:
                server.publish(None if self._registry is True else self._registry, self._address)
        except BaseException:
            server.abort()
            raise
        self._server = server
        return server

    async def __aenter__(self) -> Server:
        from ._runtime import Runtime, runtime
        if self._shards is not None:
            raise _core.StateError("an event loop drives one shard: use `with` for a service on several, in a thread of its own")
        if self._tls is not None:
            self._own_is_free()
            self._own = Runtime(tls=self._tls)
        own = self._own or self._runtime or runtime()
        if own.loop is None:
            raise _core.StateError("the runtime is a blocking one: use `with`, or a weft.Runtime")
        try:
            server: Server = self._open(own)
        except BaseException:
            await self._end_own_in_loop()
            raise
        return server

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        server: Server = self._server
        try:
            if kind is None:
                await server.drain(self._drain)
        except _core.WeftError:
            pass  # their time is over: close() cancels them
        finally:
            try:
                await server.close(self._drain)
            except _core.WeftError:
                if kind is None:  # else the exception of the block is raised
                    raise
            finally:
                await self._end_own_in_loop()

    def __enter__(self) -> BlockingServer:
        from .blocking import Runtime, runtime
        if self._shards is not None or self._tls is not None:
            self._own_is_free()
            self._own = Runtime(shards=self._shards, tls=self._tls)
            try:
                return self._started(self._own)
            except BaseException:
                self._end_own()
                raise
        return self._started(self._runtime or runtime())

    def _started(self, own: _core.Runtime) -> BlockingServer:
        if own.loop is not None:
            raise _core.StateError("the runtime is that of an event loop: use `async with`, or a weft.blocking.Runtime")
        server: BlockingServer = self._open(own)
        return server

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        server: BlockingServer = self._server
        try:
            if kind is None:
                server.drain(self._drain)
        except _core.WeftError:
            pass  # their time is over: close() cancels them
        finally:
            try:
                server.close(self._drain)
            except _core.WeftError:
                if kind is None:  # else the exception of the block is raised
                    raise
            finally:
                self._end_own()

    def _own_is_free(self) -> None:
        if self._own is not None:
            raise _core.StateError("the block runs already: call serve() once for each")

    async def _end_own_in_loop(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    def _end_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()
