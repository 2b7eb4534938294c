"""Dask on Weft: a transport for distributed, found by it through the entry point `weft` of the group `distributed.comm.backends`.

    LocalCluster(protocol="weft")            dask scheduler --protocol weft            Client("weft://host:8786")

A comm is one endpoint. A message of Dask's is a list of frames: it goes as one message of ours, the head, which says how many
frames there are and how long each is and carries the small ones, and then one message for each large frame, from the memory it
lies in into memory made for it. A frame that is on a GPU is received into memory of a GPU, if the peer's handshake says that it
can do that; to other peers Dask's serializers make frames of the host. There is no closing frame: an endpoint that is closed
delivers what was sent before, and says that it is closed.

    open -> closed     by close(), which lets everything sent arrive; by the peer; by abort() and by whatever fails, at once

Promise: whatever ends a comm (the peer is closed, killed or cut off, the reader is cancelled, the bytes are not ours) ends its
reads and writes with CommClosedError, and never with half a message. tests/python/test_dask_comm.py, test_dask.py and
test_dask_gpu.py hold us to it.

Configuration, beside what the environment says (`WEFT_*`): `distributed.comm.weft` in Dask's with `transports`, `interfaces`,
`key`, `heartbeat`, `gpu-memory`, `tls-cert`, `tls-key`, `tls-ca`. A peer that is silent for `distributed.comm.timeouts.tcp` is
lost, if no heartbeat is set. A
worker that computes is not silent, whoever holds the interpreter's lock: heartbeats have a thread of their own. One that was
stopped, or whose host is cut off, is.
"""
from __future__ import annotations

import asyncio
import errno
import logging
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from . import _dask_gpu as gpu
from ._core import AddressError, AuthError, Endpoint, InvalidError, Op, VersionError, WeftError
from ._core import Listener as _Door
from ._dask_frames import pack, unpack
from ._dask_tls import Security, of_weft, wanted
from ._runtime import Runtime

if TYPE_CHECKING:  # so that type checks do not depend on the installed distributed
    class _Comm:
        local_info: dict[str, Any]
        remote_info: dict[str, Any]
        handshake_options: dict[str, Any]
        deserialize: bool
        allow_offload: bool

        def __init__(self, deserialize: bool = True) -> None: ...
        def handshake_info(self) -> dict[str, Any]: ...

    class _Listener:
        def __init__(self) -> None: ...
        async def on_connection(self, comm: _Comm) -> None: ...

    class _Connector: ...

    class _Backend: ...

    class CommClosedError(OSError): ...

    class FatalCommClosedError(CommClosedError): ...

    config: Any
    parse_timedelta: Any
    parse_host_port: Any
    unparse_host_port: Any
    ensure_concrete_host: Any
    from_frames: Any
    to_frames: Any
    ensure_ip: Any
    get_ip: Any
    nbytes: Any
else:
    from dask import config
    from dask.utils import parse_timedelta
    from distributed.comm.addressing import parse_host_port, unparse_host_port
    from distributed.comm.core import BaseListener as _Listener
    from distributed.comm.core import Comm as _Comm
    from distributed.comm.core import CommClosedError, FatalCommClosedError
    from distributed.comm.core import Connector as _Connector
    from distributed.comm.registry import Backend as _Backend
    from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
    from distributed.utils import ensure_ip, get_ip, nbytes

    gpu.register()

__all__ = ["Backend", "Comm", "Connector", "Listener", "Security"]

logger = logging.getLogger(__name__)

PREFIX = "weft://"

_NO_SPLIT = 1 << 62  # Dask must not split frames: the receiver would have to join the pieces
_TAKES_GPU = "weft-gpu-frames"  # in the handshake: frames of a GPU are taken

# --- the runtime of a loop ------------------------------------------------------------------------------------------------------

# how long close() waits for a peer whose loop is busy; closing itself continues for up to the heartbeat time
_CLOSE_WAIT = 2.0


class _Home:
    """The runtime of one event loop, and the endpoints that are being closed."""

    def __init__(self) -> None:
        self.heartbeat, self.device, options = _options()
        self.runtime = Runtime(**options)
        self.loop = asyncio.get_running_loop()
        self.closing: set[Any] = set()

    def close(self, ep: Endpoint) -> Op[int]:
        op = ep.close(timeout=self.heartbeat)
        self.closing.add(op)
        op.add_done_callback(self._closed)
        return op

    def _closed(self, op: Op[int]) -> None:
        self.closing.discard(op)
        if not op.cancelled():
            op.exception()

    async def end(self) -> None:
        if self.closing:
            await asyncio.wait(list(self.closing), timeout=_CLOSE_WAIT)
        await self.runtime.close()


def _ours() -> dict[str, Any]:
    # from the environment the names come with underscores
    ours = {name.replace("_", "-"): value for name, value in (config.get("distributed.comm.weft", None) or {}).items()}
    known = {"transports", "interfaces", "key", "heartbeat", "gpu-memory", "tls-cert", "tls-key", "tls-ca"}
    strange = sorted(set(ours) - known)
    if strange:
        raise ValueError(f"distributed.comm.weft has {', '.join(strange)} in Dask's configuration, which is none of "
                         f"{', '.join(sorted(known))}")
    return ours


def _options() -> tuple[float, gpu.Allocator | None, dict[str, Any]]:
    ours = _ours()
    options: dict[str, Any] = {name: str(ours[name]) for name in ("transports", "interfaces") if ours.get(name)}
    if ours.get("key"):
        options["key"] = ours["key"].encode() if isinstance(ours["key"], str) else bytes(ours["key"])
    options["tls"] = of_weft(ours)
    heartbeat = ours.get("heartbeat")
    if heartbeat is None and not os.environ.get("WEFT_HEARTBEAT"):
        heartbeat = config.get("distributed.comm.timeouts.tcp")
    if heartbeat is not None:
        options["heartbeat"] = float(parse_timedelta(heartbeat, default="seconds"))
    return options.get("heartbeat", 30.0), gpu.allocator(str(ours.get("gpu-memory") or "auto")), options


async def _keeper(own: _Home) -> AsyncIterator[None]:
    """Suspended until its loop shuts its asynchronous generators down: the one moment to close the runtime."""
    try:
        yield
    finally:
        await own.end()


def _home() -> _Home:
    loop = asyncio.get_running_loop()
    own: _Home | None = getattr(loop, "_weft_dask", None)
    if own is None or own.runtime.closed:
        own = _Home()
        keeper = _keeper(own)
        try:
            keeper.__anext__().send(None)  # type: ignore[attr-defined]
        except StopIteration:
            pass
        loop._weft_dask, loop._weft_dask_keeper = own, keeper  # type: ignore[attr-defined]
    return own


# --- comms ----------------------------------------------------------------------------------------------------------------------

class Comm(_Comm):
    """One connection between two of Dask's servers or clients: one reader and one writer at a time."""

    def __init__(self, home: _Home, ep: Endpoint, local: str, peer: str, deserialize: bool = True) -> None:
        self._home = home
        self._ep: Endpoint | None = ep
        self._over = False
        self._local_addr, self._peer_addr = local, peer
        info = ep.info
        self._extra = {name: info[name] for name in ("transport", "authenticated", "cipher", "identity")}
        super().__init__(deserialize=deserialize)
        # one that passes frames on without looking, as a scheduler does, wants them in memory of the host
        self._device = home.device if deserialize else None
        me = weakref.ref(self)

        def over(_: Endpoint) -> None:
            comm = me()
            if comm is not None:
                comm._over = True

        ep.on_close = over
        self._over = ep.closed

    @property
    def local_address(self) -> str:
        """Our address."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The peer's address."""
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        """Over which transport it goes, whether both sides proved who they are, the cipher ("": none), and the name in the peer's
        certificate."""
        return self._extra

    def closed(self) -> bool:
        """True once nothing can be written any more, whoever closed it."""
        return self._over or self._ep is None

    def handshake_info(self) -> dict[str, Any]:
        """What the peer is told of this side: also whether frames of a GPU are taken."""
        return {**super().handshake_info(), _TAKES_GPU: self._device is not None}

    def _open(self) -> Endpoint:
        if self._ep is None:
            raise CommClosedError(f"the comm from {self._local_addr} to {self._peer_addr} is closed")
        return self._ep

    def _lost(self, error: Exception) -> CommClosedError:
        self.abort()
        return CommClosedError(f"in {self!r}: {error}")

    async def read(self, deserializers: Any = None) -> Any:
        """The next message."""
        ep = self._open()
        try:
            frames, rest = unpack(await ep.recv(), self._device)
            if rest:
                got = await ep.recv_many(rest)
                if any(n != nbytes(frame) for n, frame in zip(got, rest)):
                    raise ValueError("a frame is shorter than its head said")
        except (WeftError, ValueError, MemoryError) as error:
            raise self._lost(error) from error
        except BaseException:
            self.abort()  # a part of the message may be received already: the next bytes do not begin a message
            raise
        try:
            return await from_frames(frames, deserialize=self.deserialize, deserializers=deserializers,
                                     allow_offload=self.allow_offload)
        except EOFError as error:
            raise self._lost(error) from error

    async def write(self, msg: Any, serializers: Any = None, on_error: str | None = "message") -> int:
        """Write a message; returns how many bytes it was, once the memory of its frames is nobody's but the caller's again."""
        self._open()
        context = {"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options}
        gpus = self._device is not None and self.remote_info.get(_TAKES_GPU) is True
        frames = await to_frames(msg, allow_offload=self.allow_offload, serializers=_serializers(serializers, gpus),
                                 on_error=on_error, context=context, frame_split_size=_NO_SPLIT)
        ep = self._open()
        head, rest, n = pack(frames, gpus)
        try:
            await (ep.send_many([head, *rest]) if rest else ep.send(head))
        except WeftError as error:
            raise self._lost(error) from error
        except BaseException:
            self.abort()
            raise
        return n

    def close(self) -> Awaitable[None]:
        """Close it, after everything written has reached the peer. Begins at once, whether it is awaited or not."""
        ep, self._ep, self._over = self._ep, None, True
        loop = self._home.loop
        ended: asyncio.Future[None] = loop.create_future()
        patience: asyncio.TimerHandle | None = None

        def end(_: object = None) -> None:
            if patience is not None:
                patience.cancel()
            if not ended.done():
                ended.set_result(None)

        if ep is None or self._home.runtime.closed:
            end()
        else:
            try:
                closing = self._home.close(ep)
                patience = loop.call_later(_CLOSE_WAIT, end)
                closing.add_done_callback(end)
            except WeftError:  # it is already lost
                end()
        return ended

    def abort(self) -> None:
        """Close it now, whatever is under way. May be called by any thread, as finalizers are."""
        ep, self._ep, self._over = self._ep, None, True
        if ep is None:
            return
        loop = self._home.loop
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        try:
            if here:
                _quiet_abort(ep)
            else:
                loop.call_soon_threadsafe(_quiet_abort, ep)
        except RuntimeError:
            pass  # the loop is closed, and with it the endpoint


def _serializers(wanted: Any, gpus: bool) -> Any:
    """Those that the caller wants, or Dask's own; "cuda" only for a peer that takes frames of a GPU."""
    if wanted is None:
        return ("cuda", "dask", "pickle") if gpus else None
    if gpus or "cuda" not in wanted:
        return wanted
    return [name for name in wanted if name != "cuda"] or None


def _quiet_abort(ep: Endpoint) -> None:
    try:
        ep.abort()
    except WeftError:
        pass  # it is gone


# --- connecting and listening ---------------------------------------------------------------------------------------------------

class Connector(_Connector):
    """Connects to addresses."""

    prefix = PREFIX

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Comm:
        """A comm to a listener's address, `host:port`."""
        tls = wanted(PREFIX + address, arguments, _ours())
        host, port = parse_host_port(address)
        home = _home()
        try:
            ep = await home.runtime.connect(f"tcp://{unparse_host_port(host, port)}", retry=False, tls=tls)
        except (AuthError, VersionError) as error:  # a second try cannot succeed
            raise FatalCommClosedError(f"cannot connect to {PREFIX}{address}: {error}") from error
        except InvalidError as error:
            raise ValueError(f"{PREFIX}{address} cannot be called: {error}") from error
        except WeftError as error:
            raise CommClosedError(f"cannot connect to {PREFIX}{address}: {error}") from error
        return Comm(home, ep, PREFIX + _local_host(host) + ":0", PREFIX + address, deserialize)


class Listener(_Listener):
    """Takes connections at an address."""

    prefix = PREFIX  # distributed's worker asks for it

    def __init__(self, address: str, handler: Callable[[Comm], Awaitable[None]], deserialize: bool = True,
                 allow_offload: bool = True, default_host: str | None = None, default_port: int = 0, **arguments: Any) -> None:
        super().__init__()
        self._tls = wanted(PREFIX + address, arguments, _ours())
        self._host, self._port = parse_host_port(address, default_port)
        self._default_host, self._handler = default_host, handler
        self._deserialize, self._allow_offload = deserialize, allow_offload
        self._home: _Home | None = None
        self._door: _Door | None = None
        self._bound: tuple[str, int] | None = None

    async def start(self) -> None:
        """Listen."""
        home = _home()
        uri = f"tcp://{unparse_host_port(self._host or '0.0.0.0', self._port)}"
        try:
            self._door = home.runtime.listen(uri, self._accepted, backlog=int(config.get("distributed.comm.socket-backlog")),
                                             tls=self._tls)
        except AddressError as error:
            busy = os.strerror(errno.EADDRINUSE) in str(error)
            raise OSError(errno.EADDRINUSE if busy else errno.EADDRNOTAVAIL, str(error)) from error
        self._home = home
        self._bound = parse_host_port(self._door.uri.split(",")[0])

    def stop(self) -> None:
        """Listen no more. Comms live on."""
        door, self._door = self._door, None
        if door is not None and self._home is not None and not self._home.runtime.closed:
            door.close()

    async def _accepted(self, ep: Endpoint) -> None:
        home = self._home
        if self._door is None or home is None:
            _quiet_abort(ep)  # stopped: do not let the peer wait for a handshake
            return
        try:
            peer = PREFIX + ep.info["peer_address"].partition("://")[2]
            comm = Comm(home, ep, self.contact_address, peer, self._deserialize)
        except WeftError:
            return  # it is gone
        comm.allow_offload = self._allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("the connection from %s was closed before its handshake was over", peer)
            return
        except Exception as error:  # the frames are valid, but their content is not Dask's handshake
            logger.warning("the connection from %s is refused, since its handshake is none: %r", peer, error)
            comm.abort()
            return
        except BaseException:
            comm.abort()
            raise
        await self._handler(comm)

    def _address(self) -> tuple[str, int]:
        if self._bound is None:
            raise ValueError("the listener has not been started: await start() first")
        return self._bound

    @property
    def listen_address(self) -> str:
        """Where it listens, as a URI."""
        return PREFIX + str(unparse_host_port(*self._address()))

    @property
    def contact_address(self) -> str:
        """Where others reach it, as a URI."""
        host, port = self._address()
        return PREFIX + str(unparse_host_port(ensure_concrete_host(host, default_host=self._default_host), port))


def _local_host(host: str) -> str:
    """Our own address as a peer at `host` sees it."""
    ip = ensure_ip(host)
    return str(unparse_host_port(get_ip(ip)))


class Backend(_Backend):
    """What distributed asks for connectors, listeners, and the meaning of `weft://` addresses."""

    def get_connector(self) -> Connector:
        """A Connector."""
        return Connector()

    def get_listener(self, loc: str, handle_comm: Callable[[Comm], Awaitable[None]], deserialize: bool,
                     **connection_args: Any) -> Listener:
        """A Listener for an address."""
        return Listener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        """The host of an address."""
        return str(parse_host_port(loc)[0])

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """The host and the port of an address."""
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        """The address with its host as a number."""
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        """Where to listen so that the host of an address can reach us."""
        return _local_host(parse_host_port(loc)[0])
