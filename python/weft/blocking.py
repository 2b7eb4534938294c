"""The same for programs without an event loop: every call waits, without the interpreter's lock.

    with weft.blocking.connect("tcp://host:port") as ep:
        ep.send(b"hello", tag=1)
        data = ep.recv(tag=2, timeout=5)

A runtime here has a thread of its own that keeps connections alive (progress="thread"), or is driven by whoever waits (progress="caller"):
that answers sooner, and must be called several times within the heartbeat bound, or peers take it for dead. Any thread may use any
object.
"""
from __future__ import annotations

import atexit
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._client import BlockingClient as Client
from ._core import BlockingEndpoint as Endpoint
from ._core import BlockingListener as Listener
from ._core import Registry

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._core import BlockingRegion as Region
    from ._core import BlockingRemote as Remote
else:
    from ._core import Region, Remote  # the same types, whose calls wait

__all__ = ["Client", "Endpoint", "Listener", "Region", "Registry", "Remote", "Runtime", "client", "connect", "listen", "region", "registry", "runtime"]


class Runtime(_core.Runtime):
    """One progress engine for threads that wait."""

    def __init__(self, *, progress: str = "thread", **options: Any) -> None:
        if progress == "loop":
            raise ValueError("a blocking runtime has no event loop: progress is thread or caller")
        super().__init__(progress=progress, **options)
        self._servers: set[Any] = set()
        _all.add(self)

    def connect(self, uri: str, *, timeout: float | None = None, source: str | None = None, shared: bool = False) -> Endpoint:
        """Connect to a listener's address; returns when the peer has answered."""
        ep: Endpoint = self._connect(uri, timeout=timeout, source=source, shared=shared)
        return ep

    def listen(self, uri: str, *, backlog: int | None = None) -> Listener:
        """Listen on an address; accept() waits for the next peer."""
        listener: Listener = self._listen(uri, None, backlog=backlog)
        return listener

    def client(self, uri: str, *, service: str | None = None, instance: str | None = None, registry: Registry | None = None,
               tries: int | None = None, instances: int | None = None, timeout: float | None = None, reconnect: float | None = None) -> Client:
        """A client of a service, whose calls wait: see weft.Runtime.client()."""
        return Client(self, uri, service=service, instance=instance, registry=registry, tries=tries, instances=instances, timeout=timeout,
                      reconnect=reconnect)

    def registry(self, uri: str | None = None, *, lease: float | None = None) -> Registry:
        """A registry, whose calls wait: see weft.Runtime.registry()."""
        return Registry(self, uri, lease=lease)

    def region(self, memory: int | Buffer, *, name: str | None = None, rights: str | None = None, name_rights: str | None = None,
               max_len: int | None = None, mapped: bool = True) -> Region:
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
                    pass  # the peer is lost: there is nothing more to do for it
        self._close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_lock = threading.Lock()
_own: Runtime | None = None
_pid = 0
_all: weakref.WeakSet[Runtime] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Close them while threads still run: one that waits is stopped for good soon after, and what it waits with is on its stack."""
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


def connect(uri: str, *, timeout: float | None = None, source: str | None = None, shared: bool = False) -> Endpoint:
    """Connect with the process's own runtime: see Runtime.connect()."""
    return runtime().connect(uri, timeout=timeout, source=source, shared=shared)


def listen(uri: str, *, backlog: int | None = None) -> Listener:
    """Listen with the process's own runtime: see Runtime.listen()."""
    return runtime().listen(uri, backlog=backlog)


def client(uri: str, *, service: str | None = None, instance: str | None = None, registry: Registry | None = None, tries: int | None = None,
           instances: int | None = None, timeout: float | None = None, reconnect: float | None = None) -> Client:
    """A client with the process's own runtime: see Runtime.client()."""
    return runtime().client(uri, service=service, instance=instance, registry=registry, tries=tries, instances=instances, timeout=timeout,
                            reconnect=reconnect)


def registry(uri: str | None = None, *, lease: float | None = None) -> Registry:
    """A registry with the process's own runtime: see Runtime.registry()."""
    return runtime().registry(uri, lease=lease)


def region(memory: int | Buffer, *, name: str | None = None, rights: str | None = None, name_rights: str | None = None,
           max_len: int | None = None, mapped: bool = True) -> Region:
    """Expose memory with the process's own runtime: see Runtime.region()."""
    return runtime().region(memory, name=name, rights=rights, name_rights=name_rights, max_len=max_len, mapped=mapped)
