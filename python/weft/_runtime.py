"""Runtimes in event loops: the default one of each loop, connecting, listening, and functions that receive active messages."""
from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._client import Client
from ._core import Endpoint, Listener, Message, Op, Region, Registry
from ._tls import AnyTLS, files, secure

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._buffers import AnyBuffer

EndpointHandler = Callable[[Endpoint], Awaitable[None] | None]
MessageHandler = Callable[[Message], Awaitable[None] | None]


class Notification(NamedTuple):
    """A peer has written to a region of ours with write_notify(), and the bytes are there."""

    region: Region
    offset: int
    nbytes: int
    value: int
    endpoint: Endpoint | None


NotifyHandler = Callable[[Notification], Awaitable[None] | None]


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("no running event loop: call it in a coroutine (asyncio.run()), or use weft.blocking, which has "
                           "the same calls for programs without an event loop") from None


class Runtime(_core.Runtime):
    """One progress engine in one event loop: that which is running, or `loop`.

    Everything made from it belongs to that loop and its thread. `async with` closes it, its endpoints first, so that nothing that
    was sent is lost.

    `tls`: certificates, a weft.TLS; or True: those that are configured, or the key. What it listens at and what it calls is then
    encrypted: tcp://host:port means tls://host:port.
    """

    def __init__(self, *, progress: str = "loop", loop: asyncio.AbstractEventLoop | None = None, name: str | None = None,
                 transports: str | None = None,
                 interfaces: str | None = None, key: Buffer | None = None, heartbeat: float | None = None,
                 connect_timeout: float | None = None, close_timeout: float | None = None, recv_window: int | None = None,
                 spin: float | None = None, am_hold: float | None = None, key_random: bool = False, tls: AnyTLS = None) -> None:
        if loop is None and progress == "loop":
            loop = _running_loop()
        super().__init__(progress=progress, loop=loop, name=name, transports=transports, interfaces=interfaces, key=key,
                         heartbeat=heartbeat,
                         connect_timeout=connect_timeout, close_timeout=close_timeout, recv_window=recv_window, spin=spin,
                         am_hold=am_hold, key_random=key_random, tls=files(tls))
        self._tls = tls is not None
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: set[Any] = set()

    def connect(self, uri: str, *, timeout: float | None = None, source: str | None = None, shared: bool = False,
                retry: bool = True, tls: AnyTLS = None) -> Op[Endpoint]:
        """Connect to a listener's address, such as tcp://host:port, tls://host:port or unix://@name; several joined by commas are
        tried in order.

        Where nobody listens yet it tries again until the connect timeout is over, unless `retry` is false. `tls`: certificates of
        this connection's own; it is then encrypted, also at an address that begins with tcp://.
        """
        op: Op[Endpoint] = self._connect(self._where(uri, tls), timeout=timeout, source=source, shared=shared, retry=retry,
                                         tls=files(tls))
        return op

    def listen(self, uri: str, handler: EndpointHandler | None = None, *, backlog: int | None = None, tls: AnyTLS
               = None) -> Listener:
        """Listen on an address; port 0 picks one, and the listener's `uri` has it.

        `handler`, a function or coroutine function, is called with each new endpoint. Without one, `await listener.accept()`.
        `tls`: certificates of this listener's own; it is then encrypted, also at an address that begins with tcp://.
        """
        listener: Listener = self._listen(self._where(uri, tls), None if handler is None else self._called(handler),
                                          backlog=backlog, tls=files(tls))
        return listener

    def _where(self, uri: str, tls: AnyTLS = None) -> str:
        return secure(uri) if self._tls or tls is not None else uri

    def am_handler(self, id: int, handler: MessageHandler | None) -> None:
        """Have active messages of an id given to `handler`, a function or coroutine function; None takes it away."""
        self._am_handle(id, None if handler is None else self._called(handler))

    def client(self, uri: str, *, service: str | None = None, instance: str | None = None, registry: Registry | None = None,
               tries: int | None = None, instances: int | None = None, timeout: float | None = None, reconnect: float
               | None = None) -> Client:
        """A client of a service: weft://calc finds it through the registry, tcp://host:port and unix://@name are one server.

        Calls wait for a server as long as their deadlines let them: `timeout` is that of calls that name none. A call that may be
        sent again is sent at most `tries` times (3), to at most `instances` servers (16); a lost one is tried again after
        `reconnect` seconds (0.05).
        """
        return Client(self, self._where(uri), service=service, instance=instance, registry=registry, tries=tries,
                      instances=instances, timeout=timeout, reconnect=reconnect)

    def registry(self, uri: str | None = None, *, lease: float | None = None) -> Registry:
        """A registry: dir:///run/weft, redis://host, etcd://host:2379, memory://name; None is the configured one
        (WEFT_REGISTRY)."""
        return Registry(self, uri, lease=lease)

    def region(self, memory: int | AnyBuffer, *, name: str | None = None, rights: str | None = None, name_rights: str
               | None = None, max_len: int | None = None, mapped: bool = True, notify: NotifyHandler | None = None) -> Region:
        """Expose memory: so many bytes that the library makes, zeroed, or a buffer, which is held until the region is freed.

        Peers attach it with a key(), or by `name`, if it has one. `rights` is the most they may get, made of the letters r
        (read), w (write) and a (atomics), and `name_rights` what the name gives. What the library made can grow to `max_len`;
        peers on this host map it unless `mapped` is false. `notify`, a function or coroutine function, gets a Notification for
        each write_notify().
        """
        called = None
        if notify is not None:
            if not callable(notify):
                raise TypeError("notify is a function of a Notification, or None")
            inner = self._called(notify)
            called = lambda told: inner(Notification(*told))  # noqa: E731
        region: Region = self._region(memory, name=name, rights=rights, name_rights=name_rights, max_len=max_len, mapped=mapped,
                                      notify=called)
        return region

    async def close(self) -> None:
        """Close its endpoints and then the runtime itself. What is still under way after that completes with ClosedError."""
        if self.closed:
            return
        for server in tuple(self._servers):
            await server._end()
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        closing = [ep.close() for ep in self.endpoints()]
        if closing:
            await asyncio.gather(*closing, return_exceptions=True)
        self._close()

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _called(self, handler: Callable[[Any], Awaitable[None] | None]) -> Callable[[Any], None]:
        """What the extension calls: coroutines become tasks, which the runtime keeps alive, and their failures are the loop's
        to report."""
        if not callable(handler):
            raise TypeError(f"{handler!r} cannot be called: a function or a coroutine function is wanted")
        loop, tasks = self.loop, self._tasks

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error and not isinstance(error, _core.ClosedError):  # a normal end: the peer has closed
                loop.call_exception_handler({"message": f"weft: {handler!r} failed", "exception": error, "task": task})

        def called(argument: Any) -> None:
            try:
                result = handler(argument)
            except Exception as error:
                loop.call_exception_handler({"message": f"weft: {handler!r} failed", "exception": error})
                return
            if inspect.iscoroutine(result):
                task = loop.create_task(result)
                tasks.add(task)
                task.add_done_callback(ended)

        return called


async def _keeper(own: Runtime) -> AsyncIterator[None]:
    """Suspended until its loop shuts its asynchronous generators down, which asyncio.run() does at its end: the one moment to
    close."""
    try:
        yield
    finally:
        await own.close()


def runtime() -> Runtime:
    """The runtime of the running event loop: made when it is first asked for, closed when asyncio.run() ends."""
    loop = _running_loop()
    own: Runtime | None = getattr(loop, "_weft_runtime", None)
    if own is None or own.closed:
        own = Runtime()
        keeper = _keeper(own)
        try:
            keeper.__anext__().send(None)  # type: ignore[attr-defined]
        except StopIteration:
            pass
        loop._weft_runtime, loop._weft_keeper = own, keeper  # type: ignore[attr-defined]
    return own


def connect(uri: str, *, timeout: float | None = None, source: str | None = None, shared: bool = False,
            retry: bool = True, tls: AnyTLS = None) -> Op[Endpoint]:
    """Connect with the loop's own runtime: see Runtime.connect()."""
    return runtime().connect(uri, timeout=timeout, source=source, shared=shared, retry=retry, tls=tls)


def listen(uri: str, handler: EndpointHandler | None = None, *, backlog: int | None = None, tls: AnyTLS = None) -> Listener:
    """Listen with the loop's own runtime: see Runtime.listen()."""
    return runtime().listen(uri, handler, backlog=backlog, tls=tls)


def am_handler(id: int, handler: MessageHandler | None) -> None:
    """Receive active messages with the loop's own runtime: see Runtime.am_handler()."""
    runtime().am_handler(id, handler)


def client(uri: str, *, service: str | None = None, instance: str | None = None, registry: Registry | None = None, tries: int
           | None = None, instances: int | None = None, timeout: float | None = None, reconnect: float | None = None) -> Client:
    """A client with the loop's own runtime: see Runtime.client()."""
    return runtime().client(uri, service=service, instance=instance, registry=registry, tries=tries, instances=instances,
                            timeout=timeout, reconnect=reconnect)


def registry(uri: str | None = None, *, lease: float | None = None) -> Registry:
    """A registry with the loop's own runtime: see Runtime.registry()."""
    return runtime().registry(uri, lease=lease)


def region(memory: int | AnyBuffer, *, name: str | None = None, rights: str | None = None, name_rights: str | None = None,
           max_len: int | None = None, mapped: bool = True, notify: NotifyHandler | None = None) -> Region:
    """Expose memory with the loop's own runtime: see Runtime.region()."""
    return runtime().region(memory, name=name, rights=rights, name_rights=name_rights, max_len=max_len, mapped=mapped,
                            notify=notify)
