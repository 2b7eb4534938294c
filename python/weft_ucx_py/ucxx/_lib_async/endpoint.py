"""Endpoint: one connection, for asyncio. Messages travel with a tag that both sides agreed on, so that no endpoint receives
what is meant for another.

    alive -> closed    close() or abort() here; or the peer closed, died, or is silent for too long

A receive that waits when the endpoint ends raises UCXCanceledError; what is called later raises UCXConnectionResetError if the
peer ended it, and UCXCloseError if this side did. Messages that had arrived before are still received.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import array
import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucp._counting import Counting
from ucxx._lib.arr import Array, asarray
from ucxx._lib.libucxx import TagProbeResult, UCXEndpoint
from ucxx.exceptions import UCXCloseError, UCXError
from ucxx.types import Tag, TagMaskFull

from .utils import hash64bits

if TYPE_CHECKING:
    from .application_context import ApplicationContext

logger = logging.getLogger("ucx")


class Endpoint(Counting):
    """Made by create_endpoint(), or given to the function of a listener."""

    _refusal = UCXError

    def __init__(self, endpoint: UCXEndpoint, ctx: ApplicationContext, tags: dict[str, int] | None = None) -> None:
        from .application_context import ApplicationContext
        if not isinstance(endpoint, UCXEndpoint):
            raise ValueError("endpoint must be an instance of UCXEndpoint")
        if not isinstance(ctx, ApplicationContext):
            raise ValueError("ctx must be an instance of ApplicationContext")
        self._ep: UCXEndpoint | None = endpoint
        self._ctx: ApplicationContext | None = ctx
        self._uid = endpoint.handle
        self._tags = tags
        self._send_count = 0
        self._recv_count = 0
        self._finished_recv_count = 0
        self._close_after_n_recv: int | None = None
        ctx._endpoints.add(self)

    # --- asking

    @property
    def alive(self) -> bool:
        """True until it is closed by either side, or lost."""
        return self._ep is not None and self._ep.alive

    @property
    def closed(self) -> bool:
        """True once it is not alive."""
        return not self.alive

    @property
    def uid(self) -> int:
        """Its number: that of no other object of this process, ever."""
        return self._uid

    @property
    def ucp_endpoint(self) -> int:
        """The same number."""
        return self._uid

    @property
    def ucp_worker(self) -> int:
        """The number of the worker."""
        return self._open()[1].ucp_worker

    @property
    def ucxx_endpoint(self) -> int:
        """Another number of its own."""
        return self._open()[0].ucxx_ptr

    @property
    def ucxx_worker(self) -> int:
        """Another number of the worker."""
        return self._open()[1].ucxx_worker

    # --- sending

    async def send(self, buffer: Any, tag: Any = None, force_tag: bool = False) -> None:
        """Send the bytes of an object to the peer's recv() with the same tag. Done when the memory may be used again.

        `tag` is a number, a string or the like, of this endpoint; with `force_tag` it is a number of the worker's, as it is.
        """
        ep, data = self._usable(), asarray(buffer)
        number = self._tag("msg_send", tag, force_tag)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[Send #%03d] ep: %#x, tag: %#x, nbytes: %d, type: %s", self._send_count, self._uid, number.value,
                         data.nbytes,
                         type(data.obj))
        self._send_count += 1
        await ep.tag_send(data, number).wait()

    async def send_multi(self, buffers: Any, tag: Any = None, force_tag: bool = False) -> None:
        """Send a list or tuple of buffers, which the peer gets from one recv_multi()."""
        ep = self._usable()
        if not isinstance(buffers, (list, tuple)):
            raise ValueError("The `buffers` argument must be a `list` or `tuple`")
        data = tuple(asarray(buffer) for buffer in buffers)
        number = self._tag("msg_send", tag, force_tag)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[Send Multi #%03d] ep: %#x, tag: %#x, nbytes: %s, type: %s", self._send_count, self._uid, number.value,
                         tuple(d.nbytes for d in data), tuple(type(d.obj) for d in data))
        self._send_count += 1
        await ep.tag_send_multi(data, number).wait()

    async def send_obj(self, obj: Any, tag: Any = None) -> None:
        """Send an object to the peer's recv_obj(): its length first, then its bytes."""
        data = asarray(obj)
        await self.send(array.array("Q", [data.nbytes]), tag=tag)
        await self.send(data, tag=tag)

    async def am_send(self, buffer: Any) -> None:
        """Send an active message to the peer's am_recv(). Done when the memory may be used again."""
        ep, data = self._usable(), asarray(buffer)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[AM Send #%03d] ep: %#x, nbytes: %d, type: %s", self._send_count, self._uid, data.nbytes,
                         type(data.obj))
        self._send_count += 1
        await ep.am_send(data).wait()

    # --- receiving

    async def recv(self, buffer: Any, tag: Any = None, force_tag: bool = False) -> None:
        """Receive a message with this tag into an object. A message of another length raises UCXMessageTruncatedError."""
        ep, ctx = self._open()
        data, number = asarray(buffer), self._tag("msg_recv", tag, force_tag)
        self._receivable(ep, ctx, number)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[Recv #%03d] ep: %#x, tag: %#x, nbytes: %d, type: %s", self._recv_count, self._uid, number.value,
                         data.nbytes,
                         type(data.obj))
        self._recv_count += 1
        await ep.tag_recv(data, number).wait()
        self._received()

    async def recv_multi(self, tag: Any = None, force_tag: bool = False) -> list[Any]:
        """Receive what the peer's send_multi() sent: a list of arrays, made for it."""
        ep, ctx = self._open()
        number = self._tag("msg_recv", tag, force_tag)
        self._receivable(ep, ctx, number)
        logger.debug("[Recv Multi #%03d] ep: %#x, tag: %#x", self._recv_count, self._uid, number.value)
        self._recv_count += 1
        requests = ep.tag_recv_multi(number, TagMaskFull)
        await requests.wait()
        self._received()
        return requests.py_buffers

    async def recv_obj(self, tag: Any = None, allocator: Callable[[int], Any] = bytearray) -> Any:
        """Receive what the peer's send_obj() sent, into what `allocator(nbytes)` gives. As much memory is made as the peer
        announces."""
        nbytes = array.array("Q", [0])
        await self.recv(nbytes, tag=tag)
        made = allocator(nbytes[0])
        await self.recv(made, tag=tag)
        return made

    async def am_recv(self) -> Any:
        """Receive the next active message: an array of bytes, made for it."""
        ep, _ = self._open()
        if not ep.am_probe():
            self._usable()
        logger.debug("[AM Recv #%03d] ep: %#x", self._recv_count, self._uid)
        self._recv_count += 1
        request = ep.am_recv()
        await request.wait()
        received = request.recv_buffer
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[AM Recv Completed #%03d] ep: %#x, nbytes: %d, type: %s", self._finished_recv_count, self._uid,
                         asarray(received).nbytes, type(received))
        self._received()
        return received

    def tag_probe(self, tag: Any = None, force_tag: bool = False, remove: bool = False) -> TagProbeResult:
        """Whether a message with this tag has arrived that nobody has received. With `remove` it is taken out of the matching,
        for recv_with_handle()."""
        return self._open()[1].tag_probe(self._tag("msg_recv", tag, force_tag), remove=remove)

    async def recv_with_handle(self, buffer: Any, probe_result: TagProbeResult) -> None:
        """Receive the message that tag_probe(remove=True) found, into an object of its length or more."""
        _, ctx = self._open()
        data = asarray(buffer)
        logger.debug("[Recv With Handle #%03d] ep: %#x, nbytes: %d, type: %s", self._recv_count, self._uid, data.nbytes,
                     type(data.obj))
        self._recv_count += 1
        await ctx.worker.tag_recv_with_handle(data, probe_result).wait()
        self._received()

    # --- closing

    async def close(self, period: int = 10**10, max_attempts: int = 1) -> None:
        """Close it: what was sent gets to the peer. `period` and `max_attempts` say how long UCXX waits; this does not have
        to."""
        if self._ep is not None and self.alive:
            await asyncio.sleep(0)  # let tasks run that were about to send
        self.abort(period, max_attempts)

    def abort(self, period: int = 10**10, max_attempts: int = 1) -> None:
        """Close it at once. What was sent still gets to the peer; receives that wait end with UCXCanceledError."""
        ep, ctx, self._ep, self._ctx = self._ep, self._ctx, None, None
        if ctx is not None:
            ctx._endpoints.discard(self)
        if ep is not None:
            logger.debug("Endpoint.abort(): %#x", self._uid)
            ep.close_blocking(period=period, max_attempts=max_attempts)

    def set_close_callback(self, callback_func: Callable[..., object], cb_args: tuple[Any, ...] | None = None,
                           cb_kwargs: dict[str, Any] | None = None) -> None:
        """Have a function called once, when the endpoint is closed by either side, or lost: by whoever drives the worker, which
        may be another thread."""
        self._open()[0].set_close_callback(callback_func, cb_args, cb_kwargs)

    # --- of the library

    def _open(self) -> tuple[UCXEndpoint, ApplicationContext]:
        if self._ep is None or self._ctx is None:
            raise UCXCloseError("Endpoint closed")
        self._ctx.continuous_ucx_progress()
        return self._ep, self._ctx

    def _usable(self) -> UCXEndpoint:
        ep, _ = self._open()
        ep.raise_on_error()
        if not ep.alive:
            raise UCXCloseError("Endpoint closed")
        return ep

    def _receivable(self, ep: UCXEndpoint, ctx: ApplicationContext, tag: Tag) -> None:
        """Its peer may send yet, or has sent."""
        if not ep._hears and not ctx.worker.tag_probe(tag).matched:
            self._usable()

    def _tag(self, side: str, tag: Any, force_tag: bool) -> Tag:
        if tag is not None and force_tag:
            return tag if isinstance(tag, Tag) else Tag(tag)
        if self._tags is None:
            raise ValueError("an endpoint that was made from the address of a worker has no tag of its own: give one, with "
                             "force_tag=True")
        own = self._tags[side]
        return Tag(own if tag is None else hash64bits(own, tag.value if isinstance(tag, Tag) else tag))

    def __repr__(self) -> str:
        return f"<ucxx Endpoint {self._uid:#x} {'alive' if self.alive else 'closed' if self._ep is None else 'lost'}>"

    def __del__(self) -> None:
        try:
            self.abort()
        except Exception:  # the interpreter ends
            pass


__all__ = ["Array", "Endpoint"]
