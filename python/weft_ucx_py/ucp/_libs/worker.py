"""UCXWorker: one runtime of Weft with its endpoints, listeners and requests, driven by hand or by an event loop.

By hand, which is how it begins: progress() drives it and calls what there is to call, callbacks included; arm() and a wait on
`epoll_file_descriptor` put a program to sleep. attach() gives it to an asyncio loop, which then drives it: operations of its
runtime can be awaited, and progress() only helps. detach() takes it back.

What arrives for nobody yet is kept within the window that its sender has: active messages and bytes of streams that come before
the endpoint is made from its request. Connections that come by the worker's address are kept until their peer closes them; their
messages are received at the worker, like all others, and their active messages and streams at the endpoint that was made to the
same peer.

Promise: callbacks are called in progress() (or by the loop), never inside a post. tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import atexit
import os
import select
import time
import weakref
from typing import TYPE_CHECKING, Any

import weft
from weft import _core

from ..exceptions import UCXError
from .address import UCXAddress
from .context import UCXContext
from .exceptions import translated
from .objects import AllocatorType, Callback, Feature, UCXObject
from .request import Flush, UCXRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from .endpoint import UCXEndpoint

AM_ID = 0x5543_5801      # active messages of am_send_nbx()
STREAM_ID = 0x5543_5802  # bytes of stream_send_nb()
_LEAVE = 5.0             # seconds that closing waits for peers to take what was sent

_workers: weakref.WeakSet[UCXWorker] = weakref.WeakSet()


class UCXWorker(UCXObject):
    """Made from a context. Several threads may use it in turn, not at once."""

    def __init__(self, context: UCXContext) -> None:
        super().__init__()
        if not isinstance(context, UCXContext):
            raise TypeError(f"a UCXWorker is made from a UCXContext, and this is {context!r}")
        context._check()
        self._context = context
        driven = context._taken()
        self._hand, self._runtime = driven.hand, driven.runtime
        self._by_hand = True
        self._pid = os.getpid()
        self._requests: set[UCXRequest] = set()
        self._eps: weakref.WeakValueDictionary[int, UCXEndpoint] = weakref.WeakValueDictionary()  # by the id of Weft's endpoint
        self._by_peer: weakref.WeakValueDictionary[str, UCXEndpoint] = weakref.WeakValueDictionary()  # made to an address
        self._came: set[weft.Endpoint] = set()  # endpoints that connected by the worker's address
        self._unread: set[weft.Endpoint] = set()  # of those, the closed ones whose messages nobody has received yet
        self._early: weakref.WeakKeyDictionary[weft.Endpoint, list[weft.Message]] = weakref.WeakKeyDictionary()
        self._leaving: set[Any] = set()  # closings under way
        self._later: dict[Any, weft.Endpoint] = {}  # closings that wait for a connection
        self._cancelled = 0  # receives of endpoints that were lost, since somebody asked
        self._address: UCXAddress | None = None
        self._allocators: dict[AllocatorType, Callable[[int], Any]] = {AllocatorType.HOST: bytearray}
        for feature, number in ((Feature.AM, AM_ID), (Feature.STREAM, STREAM_ID)):
            if feature in context._features:
                self._runtime._am_handle(number, _arrived(self))
        context._children.add(self)
        _workers.add(self)

    # --- driving it

    def progress(self) -> int:
        """Drive it: callbacks are called here. How much happened."""
        self._ready()
        try:
            n = self._runtime._progress()
        except weft.WeftError as error:
            raise translated(error) from error
        return n + self._hand.run() if self._by_hand else n

    def arm(self) -> bool:
        """Prepare to sleep until `epoll_file_descriptor` is readable; False if there is something to progress() first."""
        self._check()
        if not self._by_hand:
            return True  # the event loop does that
        # check the queue first: arming the runtime puts its timer into it
        if self._hand._calls or not self._runtime._arm():
            return False
        return self._hand.asleep()

    def init_blocking_progress_mode(self) -> int:
        """Have a descriptor to sleep on, and arm. The descriptor."""
        self._check()
        self._context._need(Feature.WAKEUP)
        fd = self._hand.fileno()
        self.arm()
        return fd

    @property
    def epoll_file_descriptor(self) -> int:
        """Readable when there is something to progress(), if it was armed."""
        self._check()
        return self._hand.fileno()

    epoll_fd = epoll_file_descriptor

    def attach(self, loop: Any) -> None:
        """Have an event loop drive it from now on: the one of this thread."""
        self._check()
        if self._by_hand or self._runtime.loop is not loop:
            try:
                self._runtime._attach(loop)
            except weft.WeftError as error:
                raise translated(error) from error
            self._by_hand = False
            self._hand.awake()
            for handle in tuple(self._hand._calls):
                if handle.function is not None:
                    loop.call_soon(handle.call)
            self._hand._calls.clear()

    def detach(self) -> None:
        """Take it back from the event loop: progress() drives it."""
        self._check()
        if not self._by_hand:
            try:
                self._runtime._attach(self._hand)
            except weft.WeftError as error:
                raise translated(error) from error
            self._by_hand = True

    # --- messages of the whole worker

    def tag_probe(self, tag: int) -> bool:
        """True if a message with this tag has arrived that nobody has received."""
        self._check()
        self._context._need(Feature.TAG)
        return self._runtime.probe_any(tag & 0xFFFF_FFFF_FFFF_FFFF) is not None

    def request_cancel(self, req: UCXRequest) -> None:
        """Have a request end early: its callback gets UCXCanceled, unless it was complete before."""
        self._check()
        if not isinstance(req, UCXRequest):
            raise TypeError(f"{req!r} is no UCXRequest")
        if req._worker is not self:
            raise ValueError("the request is another worker's")
        req._end("cancelled")

    def cancel_inflight_messages(self) -> int:
        """How many receives were cancelled since the last call because their endpoint was lost. Those of endpoints that are
        alive go on: as in UCX-Py, whose programs call this each time they make progress. There it also does the cancelling; here
        that is done when the loss is noticed."""
        self._check()
        n, self._cancelled = self._cancelled, 0
        return n

    def flush(self, cb_func: Callback | None, cb_args: tuple[Any, ...] | None = None,
              cb_kwargs: dict[str, Any] | None = None) -> UCXRequest | None:
        """Know when everything that was sent or written so far is out of our hands. None: it is."""
        self._check()
        return flush(self, None, cb_func, cb_args, cb_kwargs)

    def fence(self) -> None:
        """No access to remote memory that is posted later takes effect before one that was posted earlier."""
        self._check()
        for ep in tuple(self._eps.values()):
            for rkey in tuple(ep._rkeys):
                rkey._fence()

    def register_am_allocator(self, allocator: Callable[[int], Any], mem_type: AllocatorType) -> None:
        """Receive active messages into what `allocator(nbytes)` gives; those that lie on a GPU at their sender into what
        CUDA's gives."""
        self._check()
        if mem_type not in (AllocatorType.HOST, AllocatorType.CUDA):
            raise UCXError("the memory type of an allocator is AllocatorType.HOST or AllocatorType.CUDA")
        if not callable(allocator):
            raise TypeError("an allocator is a function of a number of bytes")
        self._allocators[AllocatorType(mem_type)] = allocator

    # --- asking

    def get_address(self) -> UCXAddress:
        """By which peers connect to it without knowing of a listener. From then on it can be reached, over every interface
        the context allows."""
        self._check()
        if self._address is None:
            try:
                self._address = UCXAddress(self._runtime._address(_came(self)))
            except weft.WeftError as error:
                raise translated(error) from error
        return self._address

    def info(self) -> str:
        """What there is to say about it, for people."""
        self._check()
        stats = self._runtime.stats()
        lines = [f"# UCP worker {hex(self._number)} \"{self._runtime.name}\"",
                 f"# endpoints: {stats['endpoints']}, lost: {stats['endpoints_failed']}",
                 f"# messages: {stats['msgs_sent']} sent, {stats['msgs_received']} received",
                 f"# bytes: {stats['bytes_sent']} sent, {stats['bytes_received']} received",
                 f"# requests under way: {len(self._requests)}, driven by {'hand' if self._by_hand else 'an event loop'}"]
        return "\n".join(lines) + "\n"

    @property
    def context(self) -> UCXContext:
        """Its context."""
        return self._context

    @property
    def runtime(self) -> _core.Runtime:
        """Weft's, whose operations can be awaited while an event loop drives it."""
        return self._runtime

    # --- of the library

    def _ready(self) -> None:
        """It is open, and has a loop that is."""
        self._check()
        if not self._by_hand and self._runtime.loop.is_closed():
            self.detach()

    def _deliver(self, message: weft.Message) -> None:
        """An active message, or bytes of a stream."""
        wep = message.endpoint
        if wep is None:
            message.release()
            return
        ep = self._eps.get(wep.id)
        if ep is None and wep in self._came:
            ep = self._by_peer.get(wep.info["peer_name"])
        if ep is not None:
            ep._take(message)
        else:
            self._early.setdefault(wep, []).append(message)

    def _keep_unread(self, *ended: weft.Endpoint) -> None:
        """What a peer sent before it closed can still be received, as from UCX: messages go with Weft's endpoint, so that it is
        kept. Those that have been read meanwhile go."""
        self._unread = {wep for wep in (*self._unread, *ended) if _has_messages(wep)}

    def _adopt(self, ep: UCXEndpoint, wep: weft.Endpoint) -> None:
        """What came for an endpoint before it was made."""
        for message in self._early.pop(wep, ()):
            ep._take(message)

    def _leave(self, op: Any) -> None:
        """A closing is under way: the worker is not closed before it is over, or has had its time."""
        if not op.done():
            self._leaving.add(op)
            op.add_done_callback(self._leaving.discard)

    def _leave_later(self, endpoint: weft.Endpoint, op: Any) -> None:
        """Close an endpoint once it is connected, so that what was sent gets there."""
        self._later[op] = endpoint
        op.add_done_callback(self._connected)

    def _connected(self, op: Any) -> None:
        endpoint = self._later.pop(op, None)
        if endpoint is not None and not self._runtime.closed and op.exception() is None:
            self._leave(endpoint.close())

    def _close(self) -> None:
        for request in tuple(self._requests):
            if not request._out:  # sends still have time to finish
                request._end("the worker was closed")
        try:
            if not self._by_hand and self._runtime.loop.is_closed():
                self._runtime._attach(self._hand)
                self._by_hand = True
            until = time.monotonic() + _LEAVE
            self._wait_for_peers(until)
            # now, and not before: their end cancels receives of the peer, and what we sent by our own connections comes first
            for wep in tuple(self._came):
                self._leave(wep.close())
            self._came.clear()
            self._unread.clear()
            self._wait_for_peers(until)
            self._runtime._close()
        except weft.WeftError as error:
            raise translated(error) from error
        finally:
            self._hand.run()
            self._hand.close()

    def _wait_for_peers(self, until: float) -> None:
        """Until what is closing has closed. Peers that are workers of this process are driven meanwhile, and call nobody."""
        while time.monotonic() < until and (self._later or not all(op.done() for op in self._leaving)):
            for op in [op for op in self._later if op.done()]:
                self._connected(op)
            # inside a callback, only _drive() has an effect
            busy = self._runtime._progress() + self._runtime._drive() + self._hand.run()
            for other in tuple(_workers):
                if other is not self and other._open:
                    busy += other._runtime._drive()
            if not self._by_hand:
                time.sleep(0 if busy else 0.0005)
            elif not busy and self._runtime._arm() and self._hand.asleep():
                select.select([self._hand.fileno()], [], [], 0.002)
                self._hand.awake()

    def __del__(self) -> None:
        _forget(self)


def _forget(worker: UCXWorker) -> None:
    """Close one that nobody holds any more, or that is open when the interpreter ends."""
    if getattr(worker, "_pid", 0) == os.getpid() and worker._open and not worker._runtime.closed:
        try:
            worker.close()
        except Exception:  # nobody is left to report it to
            pass


def _forget_all() -> None:
    for worker in tuple(_workers):
        _forget(worker)


atexit.register(_forget_all)


def flush(worker: UCXWorker, ep: UCXEndpoint | None, function: Callback | None, args: tuple[Any, ...] | None,
          kwargs: dict[str, Any] | None) -> UCXRequest | None:
    """Over when everything that goes out is, of a worker or of one endpoint; and when that is connected."""
    out = [r for r in (worker._requests if ep is None else ep._requests) if r._out and r._pending]
    connecting = ep._connecting if ep is not None and not (ep._connecting is None or ep._connecting.done()) else None
    if not out and connecting is None:
        return None
    return Flush(worker, ep, function, args, kwargs, "flush", False)._of(out, connecting)


def _has_messages(wep: weft.Endpoint) -> bool:
    try:
        return wep.probe(0, 0) is not None
    except weft.WeftError:  # it is gone with its runtime
        return False


# The runtime holds the functions that it calls. They must not hold the worker.

def _arrived(worker: UCXWorker) -> Callable[[weft.Message], None]:
    ref = weakref.ref(worker)

    def arrived(message: weft.Message) -> None:
        own = ref()
        if own is not None and own._open:
            own._deliver(message)
        else:
            message.release()
    return arrived


def _came(worker: UCXWorker) -> Callable[[weft.Endpoint], None]:
    ref = weakref.ref(worker)

    def came(wep: weft.Endpoint) -> None:
        own = ref()
        if own is not None and own._open and not wep.closed:
            own._came.add(wep)
            wep.on_close = gone

    def gone(wep: weft.Endpoint) -> None:
        own = ref()
        if own is not None:
            own._came.discard(wep)
            own._keep_unread(wep)
    return came
