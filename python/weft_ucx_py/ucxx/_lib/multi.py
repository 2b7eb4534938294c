"""Several buffers in one go: a header says how many, how long and where they lie, and then they come, each as a message.

All of them have one tag, and the messages of one peer keep their order. So the receives of one endpoint with one tag take turns:
the next one begins when the one before has its last buffer.

    header   "<IIB3x" magic, number of buffers in this header, 1 if another header follows, then SLOTS times "<QB7x" length and 1
             if it lies on a GPU

Every byte of a header comes from the peer: it is checked before it is a length. tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..exceptions import UCXCanceledError, UCXError, UCXIOError, UCXNoMemoryError, made
from . import memory
from .arr import Array
from .request import State, UCXRequest

if TYPE_CHECKING:
    from .endpoint import UCXEndpoint

MAGIC = 0x584D5543
SLOTS = 100  # buffers in one header
_HEAD = struct.Struct("<IIB3x")
_SLOT = struct.Struct("<QB7x")
HEADER = _HEAD.size + SLOTS * _SLOT.size


class Receives:
    """Who receives several buffers of an endpoint, by tag: the first of each is at it."""

    def __init__(self) -> None:
        self._by_tag: dict[tuple[int, int], deque[Callable[[], None]]] = {}

    def begin(self, key: tuple[int, int], start: Callable[[], None]) -> None:
        """Call `start` now, or when those before it have ended."""
        queue = self._by_tag.setdefault(key, deque())
        queue.append(start)
        if len(queue) == 1:
            start()

    def ended(self, key: tuple[int, int], start: Callable[[], None]) -> None:
        """It has ended, or will not begin."""
        queue = self._by_tag.get(key)
        if not queue or start not in queue:
            return
        first = queue[0] == start
        queue.remove(start)
        if not first:
            return
        if queue:
            queue[0]()
        else:
            self._by_tag.pop(key, None)


class UCXBufferRequest:
    """One message of several: a buffer, or a header, which has none."""

    def __init__(self, request: UCXRequest, buffer: Any) -> None:
        self._request = request
        self._buffer = buffer

    @property
    def request(self) -> UCXRequest:
        """Its request."""
        return self._request

    @property
    def py_buffer(self) -> Any:
        """The memory it was received into; None for a header, and for what was sent."""
        return self._buffer


class UCXBufferRequests(UCXRequest):
    """The requests of several buffers, as one: over when all of them are."""

    def __init__(self, endpoint: UCXEndpoint, receives: bool) -> None:
        super().__init__(endpoint._worker, State(), receives)
        self._parts: list[UCXBufferRequest] = []
        self._leave: Callable[[], None] = lambda: None  # the queue of those that receive

    @property
    def all_completed(self) -> bool:
        """True once all of them are over."""
        return self.completed

    @property
    def requests(self) -> tuple[UCXRequest, ...]:
        """Those that were posted so far."""
        return tuple(part.request for part in self._parts)

    @property
    def py_buffers(self) -> list[Any]:
        """What was received, without the headers."""
        if not self.completed:
            raise RuntimeError("Some requests are not completed yet")
        return [part.py_buffer for part in self._parts if part.py_buffer is not None]

    def _end_early(self) -> None:
        if not self._parts:
            self._leave()
        for part in list(self._parts):
            part.request._cancel()


def _headers(arrays: list[Array]) -> list[bytes]:
    made_of = []
    for at in range(0, max(len(arrays), 1), SLOTS):
        some = arrays[at:at + SLOTS]
        head = _HEAD.pack(MAGIC, len(some), at + SLOTS < len(arrays))
        slots = b"".join(_SLOT.pack(array.nbytes, array.cuda) for array in some)
        made_of.append((head + slots).ljust(HEADER, b"\0"))
    return made_of


def _parsed(header: bytes) -> tuple[list[tuple[int, bool]], bool]:
    magic, n, more = _HEAD.unpack_from(header)
    if magic != MAGIC or n > SLOTS or more > 1 or (more and n != SLOTS):
        raise made(UCXIOError, "the message is no header of several buffers: the peer sends with this tag by another call than "
                               "send_multi()")
    slots = (_SLOT.unpack_from(header, _HEAD.size + i * _SLOT.size) for i in range(n))
    return [(nbytes, bool(cuda)) for nbytes, cuda in slots], bool(more)


def send(endpoint: UCXEndpoint, arrays: list[Array], tag: int) -> UCXBufferRequests:
    """Post headers and buffers, in their order."""
    whole = UCXBufferRequests(endpoint, False)
    with endpoint._worker:
        for array in [*(Array(header) for header in _headers(arrays)), *arrays]:
            whole._parts.append(UCXBufferRequest(endpoint.tag_send(array, tag), None))
        _follow(whole._state, [part.request._state for part in whole._parts], lambda: None)
    return whole


def _follow(state: State, parts: list[State], then: Callable[[], None]) -> None:
    """`state` is over when all parts are, with the first error of them; `then` comes before."""
    left = len(parts)

    def one(_: State) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            error = next((part.error for part in parts if part.error is not None), None)
            then()
            state.finish(error)
    for part in parts:
        part.when_done(one)


def receive(endpoint: UCXEndpoint, tag: int, mask: int) -> UCXBufferRequests:
    """Receive headers, make memory for what they announce, and receive that."""
    whole = UCXBufferRequests(endpoint, True)
    turns, key, worker = endpoint._multi, (tag, mask), endpoint._worker
    parts, state = whole._parts, whole._state  # the functions below do not hold the request: nobody may want it any more
    sizes: list[tuple[int, bool]] = []

    def posted(array: Array, buffer: Any) -> State:
        request = worker._received(array, tag, mask, endpoint)
        parts.append(UCXBufferRequest(request, buffer))
        return request._state

    def next_header() -> None:
        header = bytearray(HEADER)
        posted(Array(header), None).when_done(lambda one: got_header(header, one.error))

    def got_header(header: bytearray, error: UCXError | None) -> None:
        more, buffers = False, []
        try:
            if error is None:
                some, more = _parsed(bytes(header))
                sizes.extend(some)
                if not more:
                    buffers = [memory.cuda(nbytes) if cuda else memory.host(nbytes) for nbytes, cuda in sizes]
        except UCXError as wrong:
            error = wrong
        except (MemoryError, ValueError, OverflowError) as failed:
            error = made(UCXNoMemoryError, f"the peer announced {sum(n for n, _ in sizes)} bytes: {failed}")
        if more and error is None:
            next_header()
        elif buffers and error is None:
            _follow(state, [posted(Array(buffer), buffer) for buffer in buffers], lambda: turns.ended(key, next_header))
        else:
            turns.ended(key, next_header)
            state.finish(error)

    def leave() -> None:
        turns.ended(key, next_header)
        state.finish(made(UCXCanceledError, "the receive was cancelled before its turn"))

    whole._leave = leave
    with worker:
        turns.begin(key, next_header)
    return whole
