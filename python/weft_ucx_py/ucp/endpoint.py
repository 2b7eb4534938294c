"""One connection of ucp: its messages, how it is closed, and what whoever waits then gets.

Messages go straight to the extension: an await of send() or recv() is an await of one operation of weft.

    open -> closed    abort(), close(), the end of the last reference; the peer's close() once all it sent is received
    open -> no use    the peer aborted or is lost: closed() is True, and what had arrived can still be received

close() tells the peer how many messages were sent (a control message: an urgent active message, with the peer's control tag), so
that it closes once it has received them all. abort() tells it nothing. Both let go in the background: what was sent is flushed,
for as long as the library's close_timeout at most.

What whoever uses it then gets is what UCX-Py gives:

    recv(), am_recv() that wait       UCXCanceled, whoever ended it
    send(), am_send() that wait       UCXError, with the words of ucp._libs.exceptions; UCXCanceled if abort() was called here
    what is called afterwards         UCXConnectionReset if the peer closed or aborted, UCXError if it is gone and did not say so;
                                      am_send() UCXCloseError; everything UCXCloseError once it is closed here

A receive that is cancelled loses no message: one that had come already is kept for the next receive.

Promise: nothing that send() has returned for is lost by close() or abort(). tests/python/test_ucp_close.py, test_ucp_ends.py and
test_ucp_tags.py hold us to it.
"""
from __future__ import annotations

import array
import asyncio
import collections
import logging
import operator
import struct
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import weft

from . import comm
from ._buffers import copied, memory_of, nbytes_of, put, raw, type_of
from ._counting import Counting
from ._libs.arr import Array
from ._libs.exceptions import translated
from .exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXError, UCXMsgTruncated
from .utils import get_ucxpy_logger, hash64bits

if TYPE_CHECKING:
    from .core import ApplicationContext

logger = get_ucxpy_logger()
_DEBUG = logging.DEBUG

CTRL_ID = 0x75635043  # the id of our control messages: nobody else uses it on this worker
_CTRL = struct.Struct("<QQQ")  # opcode, the receiver's control tag, how many messages were sent
CTRL_SIZE = _CTRL.size
_SHUTDOWN = 1
_HASHES_KEPT = 4096
_OVER = (weft.PeerError, weft.ClosedError)


class UCXPYTags(NamedTuple):
    """The tags of an endpoint: those it sends with, and those it receives."""

    msg_send: int
    msg_recv: int
    ctrl_send: int
    ctrl_recv: int


def _wrong_length(name: str, got: int, expected: int) -> UCXMsgTruncated:
    return UCXMsgTruncated(f"<{name}>: length mismatch: {got} (got) != {expected} (expected)")


def _shut_early(ref: weakref.ref[Endpoint], header: bytes) -> None:
    ep = ref()
    if ep is not None:
        ep._peer_shuts_down(header)


class Endpoint(Counting):
    """One connection to one peer. create_endpoint() and listeners make them."""

    def __init__(self, endpoint: Any, ctx: ApplicationContext, tags: UCXPYTags | None = None) -> None:
        self._ep, self._weft = endpoint, endpoint.endpoint
        self._ctx: Any = ctx
        self._uid = int(endpoint.handle)
        self._tags = tags
        self._msg_send = tags.msg_send if tags else None
        self._msg_recv = tags.msg_recv if tags else None
        self._send_count = self._recv_count = self._finished_recv_count = 0
        self._close_after_n_recv: int | None = None
        self._shutting_down_peer = False  # we told it
        self._peer_shut = False  # it told us
        self._sends: set[Any] = set()  # under way, for abort()
        self._kept: dict[int, collections.deque[Any]] = {}  # messages that matched a receive before it was cancelled
        self._hashes: dict[Any, int] = {}
        ctx._endpoints[self._weft.id] = self
        early = ctx._early_shutdowns.pop(self._weft, None)
        if early is not None:  # whoever made the endpoint begins to use it first
            asyncio.get_running_loop().call_soon(_shut_early, weakref.ref(self), early)

    # --- asking ----------------------------------------------------------------------------------------------------------

    @property
    def uid(self) -> int:
        """Its number: of no other endpoint of this process at the same time."""
        return self._uid

    def closed(self) -> bool:
        """True once it is closed, by either side, or the peer is lost; without error handling, once it is closed here."""
        return self._weft is None or not self._ep.is_alive()

    def is_alive(self) -> bool:
        """The contrary of closed()."""
        return not self.closed()

    def cuda_support(self) -> bool:
        """True if memory of a GPU can be sent and received."""
        return bool(self._open()._ctx.context.cuda_support)

    def get_ucp_worker(self) -> int:
        """The handle of the worker: a number."""
        return int(self._open()._ctx.worker.handle)

    def get_ucp_endpoint(self) -> int:
        """The handle of the endpoint: a number."""
        return int(self._open()._ep.handle)

    def ucx_info(self) -> str:
        """What is known of the connection, in lines; also once it is closed, since the peer may close it at any moment."""
        return f"# UCP endpoint {self._uid:#x}\n# closed\n" if self._ep is None else str(self._ep.info())

    def __repr__(self) -> str:
        return f"<ucp.Endpoint {self._uid:#x}{' closed' if self.closed() else ''}>"

    def _open(self) -> Endpoint:
        if self._weft is None:
            raise UCXCloseError("Endpoint closed")
        return self

    # --- tags --------------------------------------------------------------------------------------------------------------

    def _tag(self, own: int | None, tag: Any, force: bool) -> int:
        if force and tag is not None:
            return operator.index(tag)  # not int(): a fraction would be another tag
        if own is None:
            raise UCXError("an endpoint made of a worker's address has no tags of its own: give a tag, a number below 2**64, "
                           "and force_tag=True")
        if tag is None:
            return own
        if isinstance(tag, (bytearray, memoryview)):
            tag = bytes(tag)
        try:
            known = self._hashes.get((own, tag))
        except TypeError:  # it has no hash, so it cannot be a tag
            return hash64bits(own, tag)
        if known is None:
            known = hash64bits(own, tag)
            if len(self._hashes) >= _HASHES_KEPT:
                self._hashes.clear()
            self._hashes[own, tag] = known
        return known

    # --- messages ------------------------------------------------------------------------------------------------------------

    async def send(self, buffer: Any, tag: Any = None, force_tag: bool = False) -> bool:
        """Send a message. Returns when the buffer may be used again; the message arrives even if the endpoint is then closed.

        tag: what the receiver asks for, a number, string, bytes, or a tuple of those; with force_tag a number that is used as it
        is, so that any receive of the peer's worker may ask for it.
        """
        endpoint = self._weft
        if endpoint is None:
            raise UCXCloseError("Endpoint closed")
        wire = self._msg_send if tag is None and self._msg_send is not None else self._tag(self._msg_send, tag, force_tag)
        if not self._ctx._is_running() or self._ctx._thread != get_ident():
            self._ctx.continuous_ucx_progress()
        if logger.level <= _DEBUG:
            logger.debug(self._name("Send", self._send_count, wire, buffer))
        count = self._send_count
        try:
            try:
                op = endpoint.send(buffer, wire)
            except TypeError:
                op = endpoint.send(memory_of(buffer, False), wire)
            self._send_count = count + 1
            if not op.done():
                return await self._sent(op, count, wire, buffer)
            await op
        except weft.WeftError as error:
            raise self._send_failure(error, False, self._name("Send", count, wire, buffer)) from None
        return True

    async def _sent(self, op: Any, count: int, wire: int, buffer: Any) -> bool:
        self._sends.add(op)
        try:
            await op
        except weft.WeftError as error:
            raise self._send_failure(error, True, self._name("Send", count, wire, buffer)) from None
        finally:
            self._sends.discard(op)
        return True

    def _name(self, what: str, count: int, wire: int, buffer: Any) -> str:
        """What is being done, as the log and exceptions have it."""
        return f"[{what} #{count:03d}] ep: {self._uid:#x}, tag: {wire:#x}, nbytes: {nbytes_of(buffer)}, type: {type_of(buffer)}"

    async def recv(self, buffer: Any, tag: Any = None, force_tag: bool = False) -> bool:
        """Receive a message, which must be as long as the buffer is, else UCXMsgTruncated.

        tag: that of the sender; with force_tag a number, and then from whichever peer of this process.
        """
        own = self._msg_recv
        wire = own if tag is None and own is not None else self._tag(own, tag, force_tag)
        size = nbytes_of(buffer)
        if self._kept and (kept := self._kept.get(wire)):
            self._again(kept, buffer, wire)
            return True
        endpoint = self._weft
        if endpoint is None:
            raise UCXCloseError("Endpoint closed")
        if not self._ctx._is_running() or self._ctx._thread != get_ident():
            self._ctx.continuous_ucx_progress()
        if logger.level <= _DEBUG:
            logger.debug(self._name("Recv", self._recv_count, wire, buffer))
        count, memory = self._recv_count, buffer
        self._recv_count = count + 1
        if force_tag or own is None:
            name, array_ = self._name("Recv", count, wire, buffer), buffer if isinstance(buffer, Array) else Array(buffer)
            probe = self._ctx.worker.tag_probe
            if self._ep._status is not None and not probe(wire):
                await self._raise_late(name, there=lambda: probe(wire))
            await comm.tag_recv(self._ep, array_, size, wire, name=name)
        else:
            late = self._ep._status is not None
            try:
                try:
                    op = endpoint.recv_into(buffer, wire)
                except TypeError:
                    memory = memory_of(buffer, True)
                    op = endpoint.recv_into(memory, wire)
                got = await op
            except asyncio.CancelledError:  # raised by the await, never by the post
                self._keep(op, memory, wire)
                raise
            except weft.WeftError as error:
                if isinstance(error, (weft.InvalidError, weft.NoMemoryError)):
                    raise  # a ValueError or a MemoryError: an error of the caller
                name = self._name("Recv", count, wire, buffer)
                if not isinstance(error, _OVER):
                    raise translated(error, name) from None
                if late:
                    await self._raise_late(name)
                raise UCXCanceled(f"<{name}>: {self._why(error)}") from None
            if got != size:
                self._received()
                raise _wrong_length(self._name("Recv", count, wire, buffer), got, size)
        self._received()
        return True

    def _keep(self, op: Any, memory: Any, wire: int) -> None:
        """A receive was cancelled. If its message had come already, it is the next receive's."""
        if op.done() and not op.cancelled() and op.exception() is None:
            try:
                data = copied(memory, op.result())
            except (ValueError, MemoryError) as error:
                logger.warning("[Recv] ep: %s, tag: %s: a message came as its receive was cancelled, and is lost: %s",
                               hex(self._uid), hex(wire), error)
                return
            self._kept.setdefault(wire, collections.deque()).append(data)

    def _again(self, kept: collections.deque[Any], buffer: Any, wire: int) -> None:
        view, size = raw(buffer), nbytes_of(buffer)
        data = kept.popleft()
        if not kept:
            del self._kept[wire]
        count = self._recv_count
        self._recv_count += 1
        self._received()
        if len(data) != size:
            raise _wrong_length(self._name("Recv", count, wire, buffer), len(data), size)
        put(data, view)

    async def send_obj(self, obj: Any, tag: Any = None) -> None:
        """Send a buffer whose length the receiver does not know: its length in 8 bytes, and then itself. recv_obj() receives
        both."""
        await self.send(struct.pack("<Q", nbytes_of(obj)), tag=tag)
        await self.send(obj, tag=tag)

    async def recv_obj(self, tag: Any = None, allocator: Callable[[int], Any] = bytearray) -> Any:
        """Receive what send_obj() sent, into what `allocator(length)` gives, and return that."""
        length = array.array("Q", [0])
        await self.recv(length, tag=tag)
        try:
            made = allocator(length[0])
        except (MemoryError, OverflowError):
            raise UCXError(f"the peer announces {length[0]} bytes, for which there is no memory") from None
        await self.recv(made, tag=tag)
        return made

    # --- active messages -------------------------------------------------------------------------------------------------------

    async def am_send(self, buffer: Any) -> bool:
        """Send a message that needs neither a tag nor a buffer at the receiver: its am_recv() gives it."""
        self._open()
        if self._ep._status is not None and self._ep._error_handling:
            raise UCXCloseError("Endpoint closed")
        if not self._ctx._is_running() or self._ctx._thread != get_ident():
            self._ctx.continuous_ucx_progress()
        own = buffer if isinstance(buffer, Array) else Array(buffer)
        name = f"[AM Send #{self._send_count:03d}] ep: {self._uid:#x}, nbytes: {own.nbytes}, type: {type(own.obj)}"
        logger.debug(name)
        self._send_count += 1
        return await comm.am_send(self._ep, own, own.nbytes, name=name)

    async def am_recv(self) -> Any:
        """Receive what the peer's am_send() sent, in memory of the allocator that is registered, which is bytearray."""
        self._open()
        if not self._ctx._is_running() or self._ctx._thread != get_ident():
            self._ctx.continuous_ucx_progress()
        name = f"[AM Recv #{self._recv_count:03d}] ep: {self._uid:#x}"
        if self._ep._status is not None and not self._ep.am_probe():
            await self._raise_late(name, "While waiting for am_recv the endpoint was closed", self._ep.am_probe)
        logger.debug(name)
        self._recv_count += 1
        received = await comm.am_recv(self._ep, name=name)
        logger.debug("[AM Recv Completed #%03d] ep: %s, nbytes: %d, type: %s", self._finished_recv_count, hex(self._uid),
                     nbytes_of(received), type(received))
        self._received()
        return received

    # --- failure ---------------------------------------------------------------------------------------------------------------

    def _why(self, error: weft.WeftError) -> str:
        """How it ended, for people."""
        if self._weft is None:
            return "the endpoint was closed"
        return "the peer closed the endpoint" if isinstance(error, weft.ClosedError) else "the peer is gone"

    def _send_failure(self, error: weft.WeftError, waited: bool, name: str) -> Exception:
        """The exception of ucp for one of weft's; waited: the endpoint was of use when the send began."""
        if isinstance(error, (weft.InvalidError, weft.NoMemoryError)):
            return error  # a ValueError or a MemoryError: an error of the caller
        if self._weft is None or isinstance(error, weft.CancelledError):
            return UCXCanceled(f"<{name}>: the endpoint was closed")
        if not waited and isinstance(error, _OVER):
            try:
                self._ep.raise_on_error()
            except UCXBaseException as known:
                return known
        return translated(error, name, by_address=self._ep._by_address)

    async def _raise_late(self, name: str, text: str = "the peer closed the endpoint",
                          there: Callable[[], bool] = lambda: False) -> None:
        """Raise what a receive gets that begins after the peer is gone, and for which nothing has come; return if it has come
        now."""
        if not self._peer_shut:
            # let the loop handle what came before the end: a message, or the control message, which the peer sends first
            await asyncio.sleep(0)
            if self._weft is not None and there():
                return
            if self._peer_shut or self._weft is None:
                raise UCXCanceled(f"<{name}>: {text}")
        if self._weft is None:
            raise UCXCloseError("Endpoint closed")
        self._ep.raise_on_error()
        raise UCXCanceled(f"<{name}>: {text}")  # without error handling

    # --- closing ---------------------------------------------------------------------------------------------------------------

    def set_close_callback(self, callback_func: Callable[[], Any]) -> None:
        """Have a function called once, without arguments, when the endpoint is closed, by either side, or its peer is lost."""
        if not callable(callback_func):
            raise TypeError(f"the callback is a function without arguments, and not {callback_func!r}")
        self._open()._ep.set_close_callback(callback_func)

    def _peer_shuts_down(self, header: bytes) -> None:
        """The control message. It is the peer's: every byte of it is checked."""
        if self._weft is None or self._tags is None or len(header) != _CTRL.size:
            return
        opcode, tag, count = _CTRL.unpack(header)
        if opcode != _SHUTDOWN or tag != self._tags.ctrl_recv or self._peer_shut:
            logger.debug("[Recv shutdown] ep: %s, not understood: opcode %d, tag: %s", hex(self._uid), opcode, hex(tag))
            return
        logger.debug("[Recv shutdown] ep: %s, tag: %s, close_after_n_recv: %d", hex(self._uid), hex(tag), count)
        self._peer_shut = True
        if count <= self._finished_recv_count:
            self.abort()
        elif self._close_after_n_recv is None or count < self._close_after_n_recv:
            self._close_after_n_recv = count

    async def close(self) -> None:
        """Close it, so that the peer receives everything that was sent, and then closes too. Messages that are being sent are
        finished."""
        if self._weft is None or self._shutting_down_peer:
            return
        if self.closed():
            self.abort()
            return
        self._shutting_down_peer = True
        if not self._ctx._is_running() or self._ctx._thread != get_ident():
            self._ctx.continuous_ucx_progress()
        try:
            if self._weft.closed:
                await asyncio.sleep(0)  # let the loop handle the control message, which the peer sends before it closes
            if self._weft is not None and self._tags is not None and not self._peer_shut:
                self._tell_peer(self._tags.ctrl_send)
            await asyncio.sleep(0)  # let waiting tasks run
        finally:
            self._shut(finish_sends=True)

    def _tell_peer(self, tag: int) -> None:
        """Send the control message. It is not waited for: closing finishes it, and a peer that reads nothing must not delay
        us."""
        name = f"[Send shutdown] ep: {self._uid:#x}, tag: {tag:#x}, close_after_n_recv: {self._send_count}"
        logger.debug(name)
        error: BaseException | None = None
        try:
            op = self._weft.am_send(CTRL_ID, header=_CTRL.pack(_SHUTDOWN, tag, self._send_count), urgent=True)
            error = op.exception() if op.done() else None
        except weft.WeftError as known:
            error = known
        if error is not None:  # the endpoint has no error handling: else close() knows, and does not send
            logging.warning("UCX failed closing worker %s (probably already closed): %r", hex(self._uid), translated(error, name))

    def abort(self) -> None:
        """Close it now, without telling the peer. What was sent is flushed; what is being sent or received ends with
        UCXCanceled."""
        self._shut(finish_sends=False)

    def _shut(self, finish_sends: bool) -> None:
        ep, ctx = self._ep, self._ctx
        if self._weft is None:
            return
        logger.debug("Endpoint.abort(): %s", hex(self._uid))
        if self._tags is not None and not self._peer_shut:
            logger.debug("Future cancelling: [Recv shutdown] ep: %s, tag: %s", hex(self._uid), hex(self._tags.ctrl_recv))
        ctx._endpoints.pop(self._weft.id, None)
        self._ep = self._weft = self._ctx = None
        if not finish_sends:
            for op in tuple(self._sends):
                op._end()  # it ends with weft.CancelledError when nobody reads the buffer any more
        ep.close()

    async def flush(self) -> None:
        """Wait until everything that was sent before is in the hands of the network or of the peer: its buffers may be used
        again."""
        self._open()
        if not self._ctx._is_running() or self._ctx._thread != get_ident():
            self._ctx.continuous_ucx_progress()
        if self._sends:
            await asyncio.wait(set(self._sends))
        if self._ep is not None:
            await comm.flush_ep(self._ep)

    def __del__(self) -> None:
        try:
            self.abort()
        except Exception:  # the interpreter ends, or another thread owns it: the worker closes it
            pass


__all__ = ["CTRL_ID", "CTRL_SIZE", "Endpoint", "UCXPYTags"]
