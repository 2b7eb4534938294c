"""The same for programs without an event loop: every call waits, without the interpreter's lock.

    with weft.blocking.connect("tcp://host:port") as ep:
        ep.send(b"hello", tag=1)
        data = ep.recv(tag=2, timeout=5)

A runtime here has a thread of its own (progress="thread"), or is driven by whoever waits (progress="caller"):
that answers sooner, and nothing moves while nobody waits. Peers do not lose such a program: heartbeats have a thread of their
own. Any thread may use any object. Functions that receive active messages, and on_close of endpoints, are called in threads of
their own.
"""
from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._client import BlockingClient as Client
from ._core import BlockingEndpoint as Endpoint
from ._core import BlockingListener as Listener
from ._core import Registry
from ._tls import AnyTLS, files, secure

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._buffers import AnyBuffer
    from ._core import BlockingRegion as Region
    from ._core import BlockingRemote as Remote
else:
    from ._core import Region, Remote  # the same types, whose calls wait

MessageHandler = Callable[[Any], object]

__all__ = ["Client", "Endpoint", "Listener", "Region", "Registry", "Remote", "Runtime", "client", "connect", "listen", "region",
           "registry",
           "runtime"]


class Runtime(_core.Runtime):
    """One progress engine for threads that wait.

    `shards`: so many threads of the library drive it, each with connections of its own: for services that many clients call. 0 is
    one on each core, and None as configured (WEFT_SHARDS): docs/guide/shards.md. `tls`: certificates, as for weft.Runtime.
    """

    def __init__(self, *, progress: str = "thread", name: str | None = None, transports: str | None = None,
                 interfaces: str | None = None, key: Buffer | None = None, heartbeat: float | None = None,
                 connect_timeout: float | None = None, close_timeout: float | None = None, recv_window: int | None = None,
                 spin: float | None = None, am_hold: float | None = None, key_random: bool = False, shards: int
                 | None = None, tls: AnyTLS = None) -> None:
        if progress == "loop":
            raise ValueError("a blocking runtime has no event loop: progress is thread or caller")
        super().__init__(progress=progress, name=name, transports=transports, interfaces=interfaces, key=key, heartbeat=heartbeat,
                         connect_timeout=connect_timeout, close_timeout=close_timeout, recv_window=recv_window, spin=spin,
                         am_hold=am_hold, key_random=key_random, shards=shards, tls=files(tls))
        self._tls = tls is not None
        self._servers: set[Any] = set()
        self._lock = threading.Lock()
        self._handlers: dict[int, tuple[threading.Thread, threading.Event]] = {}
        self._watcher: threading.Thread | None = None
        _all.add(self)

    def connect(self, uri: str, *, timeout: float | None = None, source: str | None = None, shared: bool = False,
                retry: bool = True, tls: AnyTLS = None) -> Endpoint:
        """Connect to a listener's address; returns when the peer has answered.

        Where nobody listens yet it tries again until the connect timeout is over, unless `retry` is false. `tls`: certificates of
        this connection's own; it is then encrypted, also at an address that begins with tcp://.
        """
        ep: Endpoint = self._connect(self._where(uri, tls), timeout=timeout, source=source, shared=shared, retry=retry,
                                     tls=files(tls))
        return ep

    def listen(self, uri: str, *, backlog: int | None = None, tls: AnyTLS = None) -> Listener:
        """Listen on an address; accept() waits for the next peer. `tls` as for connect()."""
        listener: Listener = self._listen(self._where(uri, tls), None, backlog=backlog, tls=files(tls))
        return listener

    def _where(self, uri: str, tls: AnyTLS = None) -> str:
        return secure(uri) if self._tls or tls is not None else uri

    def am_handler(self, id: int, handler: MessageHandler | None) -> None:
        """Have active messages of an id given to `handler`, a function; None takes it away, and returns when it is not running
        any more.

        It is called in a thread of its own, with one message after the other, in the order in which a peer sent them. It may
        wait, send and close, as any thread may. Messages of different ids are handled side by side. What it raises goes to
        threading.excepthook. A runtime with such a function lives until it is closed.
        """
        if not 0 <= operator.index(id) < 0xfff00000:
            raise OverflowError(f"id is {id}, which is not between 0 and {0xfff00000 - 1}")
        with self._lock:
            old = self._handlers.get(id)
            if handler is not None:
                if old is not None:
                    raise _core.StateError(f"id {id} has a handler: take it away first, with am_handler({id}, None)")
                if not callable(handler):
                    raise TypeError("handler is a function of a message, or None")
                try:  # raises if the runtime is closed, or cannot receive from whoever sends
                    first = self.am_recv_any(id, timeout=1e-6)
                except _core.TimeoutError:
                    first = None
                stop = threading.Event()
                thread = threading.Thread(target=_serve, args=(self, id, handler, stop, first), name=f"weft-am-{id}", daemon=True)
                self._handlers[id] = (thread, stop)
                thread.start()
                return
            self._handlers.pop(id, None)
        if old is not None:
            old[1].set()
            if old[0] is not threading.current_thread():
                old[0].join()

    def _watch(self) -> None:
        """Called by the extension when an endpoint is given an on_close: from then on a thread calls them."""
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=_watch, args=(self,), name="weft-on-close", daemon=True)
                self._watcher.start()

    def client(self, uri: str, *, service: str | None = None, instance: str | None = None, registry: Registry | None = None,
               tries: int | None = None, instances: int | None = None, timeout: float | None = None, reconnect: float
               | None = None) -> Client:
        """A client of a service, whose calls wait: see weft.Runtime.client()."""
        return Client(self, self._where(uri), service=service, instance=instance, registry=registry, tries=tries,
                      instances=instances, timeout=timeout, reconnect=reconnect)

    def registry(self, uri: str | None = None, *, lease: float | None = None) -> Registry:
        """A registry, whose calls wait: see weft.Runtime.registry()."""
        return Registry(self, uri, lease=lease)

    def region(self, memory: int | AnyBuffer, *, name: str | None = None, rights: str | None = None, name_rights: str
               | None = None, max_len: int | None = None, mapped: bool = True) -> Region:
        """Expose memory: so many bytes that the library makes, or a buffer; see weft.Runtime.region()."""
        region: Region = self._region(memory, name=name, rights=rights, name_rights=name_rights, max_len=max_len, mapped=mapped)
        return region

    def close(self) -> None:
        """Close its endpoints and then the runtime itself. What other threads wait for completes with ClosedError."""
        if not self.closed:
            for server in tuple(self._servers):
                server._end()
            for ep in self.endpoints():
                try:
                    ep.close()
                except _core.WeftError:
                    pass  # the peer is lost: nothing is left to do
        self._close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _report() -> None:
    """What a function of the program's raised in a thread of ours."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _serve(own: Runtime, id: int, handler: MessageHandler, stop: threading.Event, first: Any) -> None:
    """Give the messages of an id to a function, until it is taken away or the runtime closed."""
    while not stop.is_set() or first is not None:
        try:
            message, first = first if first is not None else own.am_recv_any(id, timeout=0.25), None
        except _core.TimeoutError:
            continue  # check whether the handler was removed
        except _core.WeftError:
            return  # the runtime is closed, or this is a forked child
        try:
            handler(message)
        except BaseException:
            _report()
        del message  # releases it, and so completes the sender's operation


def _watch(own: Runtime) -> None:
    """Call the on_close of endpoints that have ended."""
    while (call := own._ended()) is not False:
        if call:
            try:
                call[0](call[1])
            except BaseException:
                _report()
        del call


_lock = threading.Lock()
_own: Runtime | None = None
_pid = 0
_all: weakref.WeakSet[Runtime] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Close them while threads still run: one that waits is stopped for good soon after, and what it waits with is on its
    stack."""
    for own in tuple(_all):
        if own is _own and _pid == os.getpid():
            own.close()
        own._close()


def runtime() -> Runtime:
    """The runtime of this process for blocking calls: made when it is first asked for, closed when the interpreter ends."""
    global _own, _pid
    with _lock:
        if _own is None or _own.closed or _pid != os.getpid():
            _own, _pid = Runtime(), os.getpid()
        return _own


def connect(uri: str, *, timeout: float | None = None, source: str | None = None, shared: bool = False,
            retry: bool = True, tls: AnyTLS = None) -> Endpoint:
    """Connect with the process's own runtime: see Runtime.connect()."""
    return runtime().connect(uri, timeout=timeout, source=source, shared=shared, retry=retry, tls=tls)


def listen(uri: str, *, backlog: int | None = None, tls: AnyTLS = None) -> Listener:
    """Listen with the process's own runtime: see Runtime.listen()."""
    return runtime().listen(uri, backlog=backlog, tls=tls)


def client(uri: str, *, service: str | None = None, instance: str | None = None, registry: Registry | None = None, tries: int
           | None = None, instances: int | None = None, timeout: float | None = None, reconnect: float | None = None) -> Client:
    """A client with the process's own runtime: see Runtime.client()."""
    return runtime().client(uri, service=service, instance=instance, registry=registry, tries=tries, instances=instances,
                            timeout=timeout, reconnect=reconnect)


def registry(uri: str | None = None, *, lease: float | None = None) -> Registry:
    """A registry with the process's own runtime: see Runtime.registry()."""
    return runtime().registry(uri, lease=lease)


def region(memory: int | AnyBuffer, *, name: str | None = None, rights: str | None = None, name_rights: str | None = None,
           max_len: int | None = None, mapped: bool = True) -> Region:
    """Expose memory with the process's own runtime: see Runtime.region()."""
    return runtime().region(memory, name=name, rights=rights, name_rights=name_rights, max_len=max_len, mapped=mapped)
