"""UCXEndpoint: one connection to one peer; and UCXListener, where peers come in.

    connecting, up -> lost     the peer closed, died, refused, or was never reached: is_alive() is False, raise_on_error() says
                               why
                   -> closed   close() was called here

Either ends the receives that were posted for the endpoint, with UCXCanceled; only those of its stream tell why it was not
reached. What had arrived before is still received. close() does not wait: connecting and what was sent are finished in the
background, and the worker waits for it before it is closed itself.

is_alive() and raise_on_error() see a loss as soon as the runtime does; callbacks are told in progress(), or by the event loop.

Without error handling (endpoint_error_handling=False) the endpoint counts as alive until it is closed here, and the close
callback waits for that. What is sent after a loss fails, and receives end, all the same.

Promise: the close callback is called once. tests/python/test_ucx_api.py and test_ucx_ends.py hold us to it.
"""
from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import weft

from ..exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXConnectionReset, UCXError
from .address import UCXAddress
from .exceptions import RESET, TIMEOUT, translated
from .objects import Callback, Feature, UCXObject, call_back
from .request import UCXRequest
from .utils import get_address
from .worker import AM_ID, UCXWorker, flush

if TYPE_CHECKING:
    from .rma import PackedRemoteKey, UCXRkey
    from .stream import Stream


class UCXConnRequest:
    """A peer that has connected to a listener; UCXEndpoint.create_from_conn_request() makes an endpoint of it, once."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: weft.Endpoint) -> None:
        self._endpoint: weft.Endpoint | None = endpoint

    @property
    def client_address(self) -> str:
        """Where the peer comes from, as a URI."""
        return str(self._endpoint.info["peer_address"]) if self._endpoint is not None else ""


class UCXEndpoint(UCXObject):
    """Made by create(), create_from_worker_address() or create_from_conn_request()."""

    def __init__(self, worker: UCXWorker, endpoint: weft.Endpoint, op: weft.Op[weft.Endpoint] | None, error_handling: bool,
                 to_address: bool) -> None:
        super().__init__()
        self._worker = worker
        self._endpoint = endpoint
        self._connecting = op
        self._error_handling = bool(error_handling)
        self._by_address = to_address
        self._status: UCXBaseException | None = None  # what it was lost to
        self._told = False  # who waits for it knows that it is lost
        self._on_close: Callable[[], object] | None = None
        self._requests: set[UCXRequest] = set()
        self._messages: deque[weft.Message] = deque()  # active messages that wait
        self._receivers: deque[Callable[[], None]] = deque()  # receives that wait for a message
        self._stream: Stream | None = None
        self._rkeys: weakref.WeakSet[UCXRkey] = weakref.WeakSet()
        worker._eps[endpoint.id] = self
        worker._children.add(self)
        ref = weakref.ref(self)
        endpoint.on_close = lambda _: _lost(ref)
        if op is not None:
            if op.done():
                self._connected(op)
            else:
                op.add_done_callback(lambda done: _connected(ref, done))
        worker._adopt(self, endpoint)
        if op is None and endpoint.closed:
            self._end()

    @classmethod
    def create(cls, worker: UCXWorker, ip_address: str, port: int, endpoint_error_handling: bool = True) -> UCXEndpoint:
        """Connect to a listener, by the address or name of its host and its port. Does not wait: what is sent waits for the
        peer."""
        worker._ready()
        host = str(ip_address)
        if not isinstance(port, int) or not 0 < port < 65536:
            raise UCXError(f"the port is {port!r}, which is not between 1 and 65535")
        return cls._connect(worker, endpoint_error_handling, uri=f"tcp://[{host}]:{port}" if ":" in host
                            else f"tcp://{host}:{port}")

    @classmethod
    def create_from_worker_address(cls, worker: UCXWorker, address: UCXAddress,
                                   endpoint_error_handling: bool = True) -> UCXEndpoint:
        """Connect to a worker by its address. Does not wait."""
        worker._ready()
        return cls._connect(worker, endpoint_error_handling, address=bytes(UCXAddress.from_buffer(address)))

    @classmethod
    def create_from_conn_request(cls, worker: UCXWorker, conn_request: UCXConnRequest,
                                 endpoint_error_handling: bool = True) -> UCXEndpoint:
        """Take a peer that has connected to a listener of this worker."""
        worker._check()
        if not isinstance(conn_request, UCXConnRequest):
            raise TypeError(f"{conn_request!r} is not what a listener gives to its callback")
        endpoint, conn_request._endpoint = conn_request._endpoint, None
        if endpoint is None:
            raise UCXError("there is an endpoint for this connection request already")
        if endpoint.runtime is not worker._runtime:
            conn_request._endpoint = endpoint
            raise ValueError("the connection request came to another worker")
        return cls(worker, endpoint, None, endpoint_error_handling, False)

    @classmethod
    def _connect(cls, worker: UCXWorker, error_handling: bool, **where: Any) -> UCXEndpoint:
        try:
            op = worker._runtime._connect(retry=False, **where)
        except weft.WeftError as error:
            raise translated(error, "connect", connecting=True) from error
        return cls(worker, op._made, op, error_handling, "address" in where)

    # --- asking

    @property
    def worker(self) -> UCXWorker:
        """Its worker."""
        return self._worker

    @property
    def endpoint(self) -> weft.Endpoint:
        """Weft's, whose operations can be awaited while an event loop drives the worker."""
        return self._endpoint

    def is_alive(self) -> bool:
        """True until it is lost or closed; without error handling, until it is closed here."""
        return self._open and not (self._error_handling and self._lost_to() is not None)

    def raise_on_error(self) -> None:
        """Raise what it was lost to, if it was: UCXConnectionReset if the peer closed it, UCXError if the peer is gone or was
        never reached. Without error handling it never was."""
        status = self._lost_to() if self._error_handling else None
        if status is not None:  # a new one each time: each has the traceback of its own
            kind = UCXConnectionReset if isinstance(status, UCXConnectionReset) else UCXError
            raise kind(f"Endpoint {hex(self._number)} error: {status}") from status.__cause__

    def info(self) -> str:
        """What there is to say about it, for people; also once it is closed."""
        lines = [f"# UCP endpoint {hex(self._number)}"]
        try:
            known = self._endpoint.info
        except weft.WeftError:
            known = {"state": "lost" if self._open else "closed", "transport": "", "peer_name": "", "peer_address": ""}
        lines.append(f"# peer: {known['peer_name']} at {known['peer_address']}, {known['state']}")
        lines.append(f"# transport: {known['transport'] or 'none yet'}")
        return "\n".join(lines) + "\n"

    def set_close_callback(self, cb_func: Callable[[], object]) -> None:
        """Have a function called, once, when the endpoint is lost or closed; at once if it was lost before."""
        if not callable(cb_func):
            raise TypeError("the close callback is a function without arguments")
        self._check()
        if self._told and self._error_handling:
            call_back(cb_func)
        else:
            self._on_close = cb_func

    def am_probe(self) -> bool:
        """True if an active message waits here."""
        self._check()
        self._worker._context._need(Feature.AM)
        return bool(self._messages)

    def flush(self, cb_func: Callback | None, cb_args: tuple[Any, ...] | None = None,
              cb_kwargs: dict[str, Any] | None = None) -> UCXRequest | None:
        """Know when everything that was sent or written over it so far is out of our hands. None: it is. One that is still
        connecting is not."""
        self._check()
        return flush(self._worker, self, cb_func, cb_args, cb_kwargs)

    def unpack_rkey(self, rkey: PackedRemoteKey) -> UCXRkey:
        """The key to memory of the peer, from what the peer packed."""
        from .rma import UCXRkey
        self._check()
        return UCXRkey(self, rkey)

    def abort(self) -> None:
        """Close it now: what was not yet taken by the network is dropped, and the peer sees an error."""
        self._leave(self._endpoint.abort)

    def __repr__(self) -> str:
        return f"<ucp UCXEndpoint {hex(self._number)} {'closed' if not self._open else 'lost' if self._lost_to() else 'alive'}>"

    # --- of the library

    def _usable(self, stream: bool = False) -> None:
        """What has to hold before something is sent. A stream, with which connections begin, says more exactly why not."""
        if not self._open:
            raise UCXCloseError("Endpoint closed")
        if self._status is not None:
            if stream:
                raise self._status
            self.raise_on_error()
        self._worker._ready()

    def _close(self) -> None:
        self._leave(self._endpoint.close)

    def _leave(self, how: Callable[[], Any]) -> None:
        self._open = False
        worker = self._worker
        self._endpoint.on_close = None
        for rkey in tuple(self._rkeys):
            rkey.close()
        self._end_requests(UCXCanceled("the endpoint was closed"))
        if not worker._runtime.closed:
            try:
                if self._connecting is not None and not self._connecting.done() and how != self._endpoint.abort:
                    # closing now would drop sends that wait for the peer, and the peer would never hear of us
                    worker._leave_later(self._endpoint, self._connecting)
                else:
                    worker._leave(how())
            except weft.WeftError:
                pass  # it is already gone
        self._call_on_close()

    def _connected(self, op: weft.Op[weft.Endpoint]) -> None:
        error = op.exception() if not op.cancelled() else None
        if error is not None:
            self._end()
        elif self._by_address and self._open and self._endpoint.state == "up":
            # messages of the peer come over a connection that the peer makes: see UCXWorker._deliver()
            name = self._endpoint.info["peer_name"]
            self._worker._by_peer.setdefault(name, self)
            for wep in tuple(self._worker._came):
                if not wep.closed and wep.info["peer_name"] == name:
                    self._worker._adopt(self, wep)

    def _lost_to(self) -> UCXBaseException | None:
        """What it was lost to; looks, if nobody has told us."""
        if self._status is None and self._open:
            op, failed = self._connecting, None
            if op is not None and op.done() and not op.cancelled():
                failed = op.exception()
            if failed is not None:
                self._status = translated(failed, "connect", True, self._by_address)
            elif self._endpoint.closed:
                gone = self._by_address or self._endpoint.state == "failed"
                self._status = UCXError(f"{TIMEOUT} (the peer is gone)") if gone else UCXConnectionReset(RESET)
        return self._status

    def _end(self) -> None:
        """It is lost: whoever waits is told."""
        why = self._lost_to()
        if not self._told and self._open and why is not None:
            self._told = True
            self._worker._cancelled += self._end_requests(why)
            if self._error_handling:
                self._call_on_close()

    def _end_requests(self, why: UCXBaseException) -> int:
        """End its receives; how many that were."""
        if self._stream is not None:
            self._stream.lost(why)
        n = sum(request._end(str(why)) for request in tuple(self._requests) if not request._out)
        if not self._open:
            self._messages.clear()
        return n

    def _call_on_close(self) -> None:
        function, self._on_close = self._on_close, None
        call_back(function)

    def _take(self, message: weft.Message) -> None:
        """An active message came, or bytes of the stream."""
        if not self._open:
            message.release()
        elif message.id == AM_ID:
            self._messages.append(message)
            if self._receivers:
                self._receivers.popleft()()
        else:
            self._streamed().take(message)

    def _streamed(self) -> Stream:
        if self._stream is None:
            from .stream import Stream
            self._stream = Stream(self)
        return self._stream


def _lost(ref: weakref.ref[UCXEndpoint]) -> None:
    ep = ref()
    if ep is not None:
        ep._end()


def _connected(ref: weakref.ref[UCXEndpoint], op: weft.Op[weft.Endpoint]) -> None:
    ep = ref()
    if ep is not None:
        ep._connected(op)


class UCXListener(UCXObject):
    """Calls cb_func(conn_request, *cb_args, **cb_kwargs), in progress(), for each peer that connects. `port` 0 picks one.

    It binds the address of the interface that UCXPY_IFNAME names, or else every interface over IPv4, as UCX-Py did.
    """

    def __init__(self, worker: UCXWorker, port: int, cb_func: Callback, cb_args: tuple[Any, ...] | None = None,
                 cb_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__()
        worker._ready()
        if not callable(cb_func):
            raise TypeError("cb_func is a function of a connection request")
        if not isinstance(port, int) or not 0 <= port < 65536:
            raise UCXError(f"the port is {port!r}, which is not between 0 and 65535")
        interface = os.environ.get("UCXPY_IFNAME")
        self._ip = get_address(interface) if interface else "0.0.0.0"

        def came(endpoint: weft.Endpoint) -> None:
            call_back(cb_func, UCXConnRequest(endpoint), args_more=cb_args, kwargs=cb_kwargs)
        try:
            self._listener: weft.Listener = worker._runtime._listen(f"tcp://{self._ip}:{port}", came,
                                                                    backlog=worker._context._backlog)
        except weft.WeftError as error:
            raise UCXError(str(error)) from error
        self._port: int = self._listener.port
        self._worker = worker
        worker._children.add(self)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def ip(self) -> str:
        """The address it listens on; 0.0.0.0 is every one."""
        return self._ip

    @property
    def worker(self) -> UCXWorker:
        """Its worker."""
        return self._worker

    def _close(self) -> None:
        if not self._worker._runtime.closed:
            self._listener.close()
