"""The byte stream of an endpoint: what was sent, in order and without borders.

Bytes travel as active messages of an id of their own (0x55435802), at most PIECE each, so that of a send of which a receive wants
only a part no more than that is held here; what nobody has asked for waits in the window of its sender, and then at the sender. A
receive is over when its buffer is full.

Promise: every byte once, in order, whatever the sizes on either side. tests/python/test_ucx_streams.py holds us to it.
"""
from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import weft

from ..exceptions import UCXBaseException, UCXCanceled, UCXError
from .arr import Array
from .request import UCXRequest, failure

if TYPE_CHECKING:
    from .endpoint import UCXEndpoint

PIECE = 256 * 1024


class Want(UCXRequest):
    """A receive: how much of its buffer is still to be filled."""

    __slots__ = ("_filled", "_into", "_nbytes")

    _into: memoryview | Array  # an Array if it is on a GPU
    _nbytes: int
    _filled: int

    def _place(self, n: int) -> Any:
        """Where the next bytes belong."""
        at = self._filled
        return self._into[at:at + n] if isinstance(self._into, memoryview) else self._into._part(at, n)

    def _put(self, data: memoryview) -> None:
        """The next bytes are here, on the host."""
        if isinstance(self._into, memoryview):
            self._into[self._filled:self._filled + len(data)] = data
        else:
            memory = weft.Memory(len(data))
            memory.copy_from(data)
            memory.copy_to(self._place(len(data)))
        self._filled += len(data)

    def _end(self, why: str) -> bool:
        """Taken out of the queue, unless bytes are on their way into it."""
        stream = self._ep._stream if self._ep is not None else None
        if not self._pending or stream is None or self not in stream._wants or (stream._busy and stream._wants[0] is self):
            return False
        stream._wants.remove(self)
        self._finish(UCXCanceled(f"<{self._name}>: {why}"))
        return True


class Stream:
    """The receiving side."""

    def __init__(self, ep: UCXEndpoint) -> None:
        self._ep = ep
        self._messages: deque[weft.Message] = deque()
        self._rest = memoryview(b"")  # the rest of a message that was received in part
        self._wants: deque[Want] = deque()
        self._busy = False  # a payload is being fetched
        self._why: UCXBaseException | None = None

    def take(self, message: weft.Message) -> None:
        """Bytes have come, or wait at the sender."""
        self._messages.append(message)
        self._pump()

    def want(self, want: Want) -> None:
        """Somebody wants bytes."""
        self._wants.append(want)
        self._pump()

    def lost(self, why: UCXBaseException) -> None:
        """No more will come; what is here can still be had."""
        self._why = why
        if isinstance(why, UCXCanceled):
            self._messages.clear()
            self._rest = memoryview(b"")
        self._pump()

    def _pump(self) -> None:
        """Bring bytes and those who want them together until one of the two is at its end."""
        while self._wants and not self._busy:
            want = self._wants[0]
            missing = want._nbytes - want._filled
            if not missing:
                self._wants.popleft()
                want._finish(None)
            elif self._rest:
                n = min(missing, len(self._rest))
                try:
                    want._put(self._rest[:n])
                except weft.WeftError as error:  # of the GPU
                    self._broken(error)
                    continue
                self._rest = self._rest[n:]
            elif self._messages:
                self._fetch(want, self._messages.popleft(), missing)
            elif self._why is not None:
                self._wants.popleft()
                want._finish(self._why)
            else:
                return

    def _fetch(self, want: Want, message: weft.Message, missing: int) -> None:
        """The payload of a message: straight into the buffer, if it fits."""
        n = message.nbytes
        direct = n <= missing
        if not direct and n > PIECE:  # do not allocate a length that a stranger sent
            message.release()
            self._broken(UCXError(f"the peer's stream has a piece of {n} bytes, and they have {PIECE} at most"))
            return
        try:
            into = want._place(n) if direct else memoryview(bytearray(n))
            op = message.read_into(into)
        except (weft.WeftError, MemoryError) as error:
            self._broken(error)
            return

        def here(done: Any) -> None:
            self._busy = False
            error = failure(done, "stream_recv")
            message.release()
            if error is not None:
                self._broken(error)
            elif direct:
                want._filled += n
            else:
                self._rest = into
        if op.done():
            here(op)
            return
        self._busy = True

        def later(done: Any) -> None:
            here(done)
            self._pump()
        op.add_done_callback(later)

    def _broken(self, error: BaseException) -> None:
        """A stream with a hole in it is of no use: everyone hears of it."""
        from .exceptions import translated
        self._why = self._why or translated(error, "stream_recv")
        self._messages.clear()
        self._rest = memoryview(b"")
