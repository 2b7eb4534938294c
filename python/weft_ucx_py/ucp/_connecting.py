"""Connecting: two endpoints tell each other their tags, and a listener hands endpoints to a function.

tests/python/test_ucp_core.py holds us to it.
"""
from __future__ import annotations

import asyncio
import os
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import weft

from . import comm
from ._libs import ucx_api
from ._libs.arr import Array
from .endpoint import Endpoint, UCXPYTags
from .exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXConnectionReset, UCXError
from .utils import get_ucxpy_logger, hash64bits, within

if TYPE_CHECKING:
    from .core import ApplicationContext

logger = get_ucxpy_logger()

EndpointHandler = Callable[[Endpoint], Awaitable[None] | None]

CONNECT_TIMEOUT = 5.0  # seconds

_PEER_INFO = struct.Struct("<QQQ")  # message tag, control tag, and their hash


def timeout_of(value: float | None) -> float:
    """The seconds that connecting may take: what was given, or what the environment says, or the default."""
    text: Any = os.environ.get("UCXPY_CONNECT_TIMEOUT", CONNECT_TIMEOUT) if value is None else value
    try:
        seconds = float(text)
        if seconds > 0:
            return seconds
    except (TypeError, ValueError):
        pass
    raise ValueError(f"connect_timeout (or UCXPY_CONNECT_TIMEOUT) is {text!r}: give a number of seconds greater than 0")


async def exchange_peer_info(endpoint: Any, msg_tag: int, ctrl_tag: int, listener: bool, stream_timeout: float
                             | None = CONNECT_TIMEOUT ) -> dict[str, int]:
    """Tell the peer our tags and learn its own: {"msg_tag": ..., "ctrl_tag": ...}. TimeoutError if it takes longer than
    `stream_timeout`."""
    mine = _PEER_INFO.pack(msg_tag, ctrl_tag, hash64bits(msg_tag, ctrl_tag))
    theirs = bytearray(_PEER_INFO.size)

    async def exchange() -> None:
        await comm.stream_send(endpoint, Array(mine), len(mine), name="exchange_peer_info")
        await comm.stream_recv(endpoint, Array(theirs), len(theirs), name="exchange_peer_info")
    await within(stream_timeout, exchange())
    peer_msg, peer_ctrl, check = _PEER_INFO.unpack(theirs)
    if check != hash64bits(peer_msg, peer_ctrl):
        raise UCXError("the peer did not introduce itself as ucp does: it speaks another protocol" if listener else
                       "the listener did not introduce itself as ucp does: it speaks another protocol, or is of another version")
    return {"msg_tag": peer_msg, "ctrl_tag": peer_ctrl}


def _new_tags(handle: int) -> tuple[int, int]:
    seed = os.urandom(16)
    return hash64bits("msg_tag", seed, handle), hash64bits("ctrl_tag", seed, handle)


async def _introduced(ctx: ApplicationContext, ucx_ep: Any, listener: bool, error_handling: bool) -> Endpoint:
    """The endpoint, once both sides know the tags; closed again if they never do."""
    try:
        msg_tag, ctrl_tag = _new_tags(ucx_ep.handle)
        peer = await exchange_peer_info(ucx_ep, msg_tag, ctrl_tag, listener, ctx.connect_timeout)
    except BaseException:
        if ucx_ep._connecting is None or ucx_ep._connecting.done():
            ucx_ep.close()
        else:
            ucx_ep.abort()  # nobody waits for it any more
        raise
    tags = UCXPYTags(msg_send=peer["msg_tag"], msg_recv=msg_tag, ctrl_send=peer["ctrl_tag"], ctrl_recv=ctrl_tag)
    ep = Endpoint(ucx_ep, ctx, tags)
    logger.debug("%s: %s, error handling: %s, msg-tag-send: %s, msg-tag-recv: %s, ctrl-tag-send: %s, ctrl-tag-recv: %s",
                 "_listener_handler() server" if listener else "create_endpoint() client", hex(ep.uid), error_handling,
                 hex(tags.msg_send), hex(tags.msg_recv), hex(tags.ctrl_send), hex(tags.ctrl_recv))
    return ep


async def _listener_handler_coroutine(conn_request: Any, ctx: ApplicationContext, func: EndpointHandler,
                                      error_handling: bool) -> None:
    try:
        ucx_ep = ucx_api.UCXEndpoint.create_from_conn_request(ctx.worker, conn_request, error_handling)
        ep = await _introduced(ctx, ucx_ep, True, error_handling)
    except (UCXBaseException, TimeoutError) as error:
        logger.info("a peer connected and went away again, or did not introduce itself: %s: %s", type(error).__name__, error)
        return
    del ctx, ucx_ep, conn_request  # drop our references: only `func` decides how long they live
    result = func(ep)
    del ep
    if result is not None and hasattr(result, "__await__"):
        await result


def _listener_handler(conn_request: Any, callback_func: EndpointHandler, ref: weakref.ref[ApplicationContext],
                      error_handling: bool) -> None:
    ctx = ref()
    if ctx is None:
        return
    if ctx._loop is None or ctx._loop.is_closed():  # it came in progress(), without a loop: the next loop takes it
        ctx._callers.append((conn_request, callback_func, error_handling))
        return
    task = ctx._loop.create_task(_listener_handler_coroutine(conn_request, ctx, callback_func, error_handling))
    ctx._handlers.add(task)
    task.add_done_callback(_handler_ended(weakref.ref(ctx), callback_func))


def _handler_ended(ref: weakref.ref[ApplicationContext], func: EndpointHandler) -> Callable[[asyncio.Task[None]], None]:
    def ended(task: asyncio.Task[None]) -> None:
        ctx = ref()
        if ctx is not None:
            ctx._handlers.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, (UCXCloseError, UCXCanceled, UCXConnectionReset)) or isinstance(
                getattr(error, "__cause__", None), (weft.PeerError, weft.ClosedError)):  # a normal end: the peer is gone
            logger.debug("the listener's function %r ended: %s: %s", func, type(error).__name__, error)
        elif error is not None:
            task.get_loop().call_exception_handler({"message": f"ucp: the listener's function {func!r} failed",
                                                    "exception": error, "task": task})
    return ended


class Listener:
    """Where peers come in. It stops when it is closed, or when the last reference to it is dropped."""

    def __init__(self, backend: Any, ctx: ApplicationContext | None = None) -> None:
        self._b, self._ctx = backend, ctx

    def closed(self) -> bool:
        """True once it does not listen any more."""
        return self._b is None or not self._b.initialized

    @property
    def ip(self) -> str:
        """The address it listens on."""
        return str(self._b.ip)

    @property
    def port(self) -> int:
        """The port it listens on: the one that was picked, if none was asked for."""
        return int(self._b.port)

    def close(self) -> None:
        """Stop listening. Endpoints that came this way live on."""
        if not self.closed():
            self._b.close()
        self._ctx = None

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter ends, or another thread's loop owns it: the worker closes it
            pass
