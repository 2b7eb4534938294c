"""UCXEndpoint: one connection to one peer, whose operations are requests; and UCXListener, where peers come in.

When the peer closes or is lost, `alive` is False, receives that waited for it end with UCXCanceledError, and what is sent later
ends with UCXConnectionResetError. Messages that had arrived before can still be received. A peer that was reached by the
address of its worker sends over a connection of its own: receives wait until that one has ended, too.

Promise: the close callback is called once. tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import weft
from ucp._libs import ucx_api
from ucp._libs.objects import AllocatorType, Feature, _numbers
from ucp._libs.worker import AM_ID
from ucp.exceptions import UCXBaseException

from ..exceptions import UCXCloseError, translated
from .arr import Array, asarray
from .context import UCXAddress
from .multi import Receives, UCXBufferRequests, receive, send
from .objects import Numbered
from .probe import TagProbeResult
from .request import State, UCXRequest
from .tag import UCXXTagMaskFull, number
from .worker import MaskLike, TagLike, UCXWorker


class UCXEndpoint(Numbered):
    """Made by create(), create_from_worker_address() or create_from_conn_request()."""

    def __init__(self) -> None:
        raise TypeError("UCXEndpoint cannot be instantiated directly.")

    _worker: UCXWorker
    _inner: ucx_api.UCXEndpoint
    _multi: Receives
    _by_address: bool
    _on_close: Callable[[], object] | None
    _waiting: weakref.WeakSet[UCXRequest]

    @classmethod
    def _of(cls, worker: UCXWorker, function: Callable[..., ucx_api.UCXEndpoint], *args: Any,
            by_address: bool = False) -> UCXEndpoint:
        self = cls.__new__(cls)
        self._worker = worker
        self._inner = worker._locked(function, worker._inner, *args)
        self._number = next(_numbers)
        self._multi = Receives()
        self._by_address = by_address
        self._on_close = None
        self._waiting = weakref.WeakSet()
        ref = weakref.ref(self)
        with worker:
            worker._guarded(self._inner.set_close_callback, lambda: _ended(ref))
            if not self._inner._error_handling:  # then nobody is told of a loss; receives end all the same
                _watch(self._inner, ref)
        return self

    @classmethod
    def create(cls, worker: UCXWorker, ip_address: str, port: int, endpoint_error_handling: bool) -> UCXEndpoint:
        """Connect to a listener, by the address or name of its host and its port. Does not wait: what is sent waits for the
        peer."""
        return cls._of(worker, ucx_api.UCXEndpoint.create, ip_address, port, endpoint_error_handling)

    @classmethod
    def create_from_worker_address(cls, worker: UCXWorker, address: UCXAddress, endpoint_error_handling: bool) -> UCXEndpoint:
        """Connect to a worker by its address. Does not wait."""
        return cls._of(worker, ucx_api.UCXEndpoint.create_from_worker_address, bytes(address), endpoint_error_handling,
                       by_address=True)

    @classmethod
    def create_from_conn_request(cls, listener: UCXListener, conn_request: ucx_api.UCXConnRequest,
                                 endpoint_error_handling: bool) -> UCXEndpoint:
        """Take a peer that has connected to a listener; once."""
        return cls._of(listener._worker, ucx_api.UCXEndpoint.create_from_conn_request, conn_request, endpoint_error_handling)

    # --- asking

    @property
    def handle(self) -> int:
        """Its number: that of no other object of this process, ever. It has it after its end, too."""
        return self._inner._number

    @property
    def worker_handle(self) -> int:
        """The number of its worker."""
        return self._worker.handle

    @property
    def ucxx_worker_ptr(self) -> int:
        """The other number of its worker."""
        return self._worker.ucxx_ptr

    @property
    def alive(self) -> bool:
        """True until it is lost or closed."""
        return self._inner.is_alive()

    def raise_on_error(self) -> None:
        """Raise what it was lost to, if it was."""
        try:
            self._inner.raise_on_error()
        except UCXBaseException as error:
            raise translated(error, self._by_address) from error

    # --- its end

    def set_close_callback(self, cb_func: Callable[..., object], cb_args: tuple[Any, ...] | None = None,
                           cb_kwargs: dict[str, Any] | None = None) -> None:
        """Have a function called, once, when the endpoint is lost or closed; at once if it was lost before."""
        if not callable(cb_func):
            raise TypeError(f"the close callback is a function, and not {cb_func!r}")
        with self._worker:
            if self._inner.is_alive():
                self._on_close = lambda: cb_func(*(cb_args or ()), **(cb_kwargs or {}))
                return
        cb_func(*(cb_args or ()), **(cb_kwargs or {}))

    def remove_close_callback(self) -> None:
        """Have nobody called any more."""
        self._on_close = None

    def close(self) -> UCXRequest:
        """Close it: what was sent gets to the peer. The request is over when it has, or cannot any more."""
        worker, state = self._worker, State()
        request = UCXRequest(worker, state, False)
        with worker:
            before = set(worker._inner._leaving)
            worker._guarded(self._inner.close)
            waiting = set(worker._inner._leaving) - before
            for op in waiting:
                op.add_done_callback(lambda _: state.finish(None) if all(o.done() for o in waiting) else None)
            if not waiting:
                state.finish(None)
        worker._call_later()
        return request

    def close_blocking(self, period: int = 0, max_attempts: int = 1) -> None:
        """Close it. Unlike UCXX's it does not wait: what was sent is finished while the program goes on, and before the worker
        ends."""
        self._worker._locked(self._inner.close)
        self._worker._call_later()

    def __del__(self) -> None:
        inner = getattr(self, "_inner", None)
        if inner is None or not inner.initialized:
            return
        try:
            self.remove_close_callback()
            self._worker._locked(inner.close)
        except Exception:  # the interpreter ends, or a loop of another thread drives the worker, which then closes it
            pass

    def _peers_connections(self) -> list[Any]:
        """Those that the peer itself has made to this worker, and that are open."""
        if not self._by_address or not self._inner.initialized:
            return []
        inner = self._worker._inner
        names = {name for name, ep in inner._by_peer.items() if ep is self._inner}
        try:
            names.add(self._inner._endpoint.info["peer_name"])
        except weft.WeftError:
            pass  # it is gone, and its name was known before or never
        return [wep for wep in tuple(inner._came) if not wep.closed and wep.info["peer_name"] in names]

    @property
    def _hears(self) -> bool:
        """True if its peer may send yet."""
        with self._worker:
            return self.alive or bool(self._peers_connections())

    def _end_waiting(self) -> None:
        """Nothing can come any more: end the receives that wait; or have it done when the peer's last connection has ended."""
        others = self._peers_connections()
        if not others:
            for request in tuple(self._waiting):
                request._cancel()
            return
        ref, last = weakref.ref(self), others[0]
        before = last.on_close

        def gone(wep: Any) -> None:
            if before is not None:
                before(wep)
            own = ref()
            if own is not None:
                own._end_waiting()
        last.on_close = gone

    # --- tag messages

    def tag_send(self, arr: Array, tag: TagLike) -> UCXRequest:
        """Send a message with a tag. Over when the memory may be used again."""
        array = self._array(arr, Feature.TAG)
        memory = array._memory(array.nbytes, False)
        return self._sent(lambda ep: ep.send(memory, number(tag)), ucx_api.tag_send_nb, array, number(tag))

    def _sent(self, post: Callable[[Any], Any], before: Callable[..., Any], array: Array, *more: Any) -> UCXRequest:
        """Post an operation of Weft. Before there is a connection `ucp` does it, and sees to it that closing waits for the
        send."""
        inner, worker = self._inner, self._worker
        if inner._connecting is not None and not inner._connecting.done():
            state = State(self._by_address)
            return worker._post(state, False, before, inner, array, array.nbytes, *more, cb_func=state.called)
        with worker:
            try:
                inner._usable()
                return worker._of(post(inner._endpoint), self._by_address)
            except (UCXBaseException, weft.WeftError, MemoryError) as error:
                state = State(self._by_address)
                state.finish(error)
                return UCXRequest(worker, state, False)

    def tag_recv(self, arr: Array, tag: TagLike, tag_mask: MaskLike = UCXXTagMaskFull) -> UCXRequest:
        """Receive a message with this tag, of whichever peer. It ends when this endpoint does."""
        return self._worker._received(self._array(arr, Feature.TAG), tag, tag_mask, self)

    def tag_recv_with_handle(self, arr: Array, probe_result: TagProbeResult) -> UCXRequest:
        """Receive the message that UCXWorker.tag_probe(remove=True) found."""
        return self._worker.tag_recv_with_handle(arr, probe_result)

    def tag_send_multi(self, arrays: tuple[Array, ...] | list[Array], tag: TagLike) -> UCXBufferRequests:
        """Send several buffers, which the peer gets from one tag_recv_multi()."""
        for arr in arrays:
            if not isinstance(arr, Array):
                raise ValueError("All elements of the `arrays` should be of `Array` type")
        return send(self, [self._array(arr, Feature.TAG) for arr in arrays], number(tag))

    def tag_recv_multi(self, tag: TagLike, tag_mask: MaskLike = UCXXTagMaskFull) -> UCXBufferRequests:
        """Receive what a tag_send_multi() of the peer sent, into memory that is made for it."""
        self._worker._need(Feature.TAG)
        return receive(self, number(tag), number(tag_mask))

    # --- the stream, and active messages

    def stream_send(self, arr: Array) -> UCXRequest:
        """Send bytes to the peer's stream. Over when the memory may be used again."""
        return self._stream(arr, ucx_api.stream_send_nb, False)

    def stream_recv(self, arr: Array) -> UCXRequest:
        """Receive as many bytes of the peer's stream as the array has."""
        return self._stream(arr, ucx_api.stream_recv_nb, True)

    def _stream(self, arr: Array, function: Callable[..., Any], receives: bool) -> UCXRequest:
        array, state = self._array(arr, Feature.STREAM), State(self._by_address)
        if not array.nbytes:
            raise RuntimeError("a stream has no messages, so nothing of 0 bytes can be sent or received")
        with self._worker:
            request = self._worker._post(state, receives, function, self._inner, array, array.nbytes, cb_func=state.called)
            if receives and not state.done and not self.alive:
                request._end_early()  # nothing more can come
                state.finish(self._inner._status or UCXCloseError("Endpoint closed"))
        return request

    def am_probe(self) -> bool:
        """True if an active message waits here."""
        self._worker._need(Feature.AM)
        return bool(self._inner._messages)

    def am_send(self, arr: Array) -> UCXRequest:
        """Send an active message. Over when the memory may be used again."""
        array = self._array(arr, Feature.AM)
        memory, head = array._memory(array.nbytes, False), bytes([AllocatorType.CUDA if array.cuda else AllocatorType.HOST])
        return self._sent(lambda ep: ep.am_send(AM_ID, memory, head), ucx_api.am_send_nbx, array)

    def am_recv(self) -> UCXRequest:
        """Receive the next active message; `recv_buffer` of the request has it."""
        self._worker._need(Feature.AM)
        state = State(self._by_address, True)
        return self._worker._post(state, True, ucx_api.am_recv_nb, self._inner, cb_func=state.gave)

    def _array(self, arr: Array, feature: Feature) -> Array:
        self._worker._need(feature)
        array = asarray(arr)
        if array.cuda and not self._worker._context.cuda_support:
            raise ValueError("memory on a GPU cannot be sent or received here: there is no driver for it, or UCX_TLS excludes it")
        return array


def _watch(inner: ucx_api.UCXEndpoint, ref: weakref.ref[UCXEndpoint]) -> None:
    """Have the receives of an endpoint without error handling end when its connection does, or when it never comes about."""
    wep, before = inner._endpoint, inner._endpoint.on_close

    def lost(_: Any = None) -> None:
        ep = ref()
        if ep is not None:
            ep._end_waiting()

    def closed(gone: Any) -> None:
        if before is not None:
            before(gone)
        lost()
    wep.on_close = closed
    if inner._connecting is not None:
        inner._connecting.add_done_callback(lambda op: lost() if op.cancelled() or op.exception() is not None else None)


def _ended(ref: weakref.ref[UCXEndpoint]) -> None:
    """Its connection is closed or lost."""
    ep = ref()
    if ep is None:
        return
    ep._end_waiting()
    function, ep._on_close = ep._on_close, None
    if function is not None:
        ep._worker._later(function)


class UCXListener:
    """Calls a function for each peer that connects, by whoever drives the worker. It stops when nobody holds it."""

    def __init__(self) -> None:
        raise TypeError("UCXListener cannot be instantiated directly.")

    _worker: UCXWorker
    _inner: ucx_api.UCXListener
    _number: int

    @classmethod
    def create(cls, worker: UCXWorker, port: int, cb_func: Callable[..., object], cb_args: tuple[Any, ...] | None = None,
               cb_kwargs: dict[str, Any] | None = None, deliver_endpoint: bool = False) -> UCXListener:
        """Listen on a port; 0 picks one. cb_func(conn_request, *cb_args, **cb_kwargs) is called for each peer, and
        create_endpoint_from_conn_request() takes it; with `deliver_endpoint` the function gets the endpoint."""
        if not callable(cb_func):
            raise TypeError(f"cb_func is a function, and not {cb_func!r}")
        self = cls.__new__(cls)
        self._worker = worker
        self._number = next(_numbers)
        own, ref = weakref.ref(worker), weakref.ref(self)

        def came(conn_request: ucx_api.UCXConnRequest) -> None:
            ours = own()
            if ours is not None:
                ours._later(_hand_over, ref, conn_request, deliver_endpoint, cb_func, cb_args or (), cb_kwargs or {})
        self._inner = worker._locked(ucx_api.UCXListener, worker._inner, port, came)
        return self

    @property
    def ucxx_ptr(self) -> int:
        """Its number: that of no other object of this process, ever."""
        return self._number

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._inner.port

    @property
    def ip(self) -> str:
        """The address it listens on; 0.0.0.0 is every one."""
        return self._inner.ip

    @property
    def enable_python_future(self) -> bool:
        """What its worker was made with."""
        return self._worker.enable_python_future

    def create_endpoint_from_conn_request(self, conn_request: ucx_api.UCXConnRequest,
                                          endpoint_error_handling: bool) -> UCXEndpoint:
        """Take a peer that has connected; once."""
        return UCXEndpoint.create_from_conn_request(self, conn_request, endpoint_error_handling)

    def __del__(self) -> None:
        inner = getattr(self, "_inner", None)
        if inner is None or not inner.initialized:
            return
        try:
            self._worker._locked(inner.close)
        except Exception:  # the interpreter ends, or a loop of another thread drives the worker, which then closes it
            pass


def _hand_over(ref: weakref.ref[UCXListener], conn_request: ucx_api.UCXConnRequest, deliver_endpoint: bool,
               cb_func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    listener = ref()
    if listener is None:
        return
    first: Any = listener.create_endpoint_from_conn_request(conn_request, True) if deliver_endpoint else conn_request
    del listener
    cb_func(first, *args, **kwargs)

