"""Listener: where peers come in, and how many of their handlers are at work.

A handler is a task of the loop in which the listener was made: it learns the tags of its peer, and calls the program's function.
What goes wrong in it is logged, as text: a log record that holds a traceback would hold the context, too.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucxx._lib.libucxx import UCXListener
from ucxx.exceptions import UCXMessageTruncatedError

from .endpoint import Endpoint
from .exchange_peer_info import exchange_peer_info
from .utils import hash64bits

if TYPE_CHECKING:
    from .application_context import ApplicationContext

logger = logging.getLogger("ucx")


class ActiveClients:
    """How many handlers each listener has at work, by the listener's number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: dict[int, int] = {}

    def add_listener(self, ident: int) -> None:
        """A new one."""
        with self._lock:
            if ident in self._active:
                raise ValueError(f"Listener {ident} is already registered in ActiveClients.")
            self._active[ident] = 0

    def remove_listener(self, ident: int) -> None:
        """It goes. RuntimeError if handlers of it are at work."""
        with self._lock:
            if self._active[ident] > 0:
                raise RuntimeError(f"Listener {ident} is being removed from ActiveClients, but {self._active[ident]} active "
                                   f"client(s) "
                                   "is(are) still accounted for.")
            del self._active[ident]

    def inc(self, ident: int) -> None:
        """A handler begins."""
        with self._lock:
            self._active[ident] = self._active.get(ident, 0) + 1

    def dec(self, ident: int) -> None:
        """A handler ends."""
        with self._lock:
            if self._active.get(ident, 0) == 0:
                raise ValueError(f"There are no active clients for listener {ident}")
            self._active[ident] -= 1

    def get_active(self, ident: int) -> int:
        """How many are at work."""
        return self._active[ident]


def _gone(ident: int, active_clients: ActiveClients) -> None:
    try:
        active_clients.remove_listener(ident)
    except RuntimeError:
        logger.warning("Listener object is being destroyed, but %d client handler(s) is(are) still alive. This usually "
                       "indicates the "
                       "Listener was prematurely destroyed.", active_clients.get_active(ident))


class Listener:
    """Made by create_listener(). It listens until it is closed, or nobody holds it any more."""

    def __init__(self, listener: UCXListener, ident: int, active_clients: ActiveClients, ctx: ApplicationContext
                 | None = None) -> None:
        if not isinstance(listener, UCXListener):
            raise ValueError("listener must be an instance of UCXListener")
        self._listener: UCXListener | None = listener
        self._ctx = ctx
        active_clients.add_listener(ident)
        self._ident = ident
        self._active_clients = active_clients
        weakref.finalize(self, _gone, ident, active_clients)

    @property
    def closed(self) -> bool:
        """True once it does not listen any more."""
        return self._listener is None

    @property
    def ip(self) -> str:
        """The address it listens on."""
        return self._open().ip

    @property
    def port(self) -> int:
        """The port it listens on: the one that was picked, if none was asked for."""
        return self._open().port

    @property
    def active_clients(self) -> int:
        """How many of its handlers are at work."""
        return self._active_clients.get_active(self._ident)

    def close(self) -> None:
        """Stop listening. Endpoints that came this way live on."""
        self._listener = self._ctx = None

    def __repr__(self) -> str:
        return f"<ucxx Listener {'closed' if self._listener is None else f'on port {self._listener.port}'}>"

    def _open(self) -> UCXListener:
        if self._listener is None:
            raise ValueError("the listener is closed")
        return self._listener


def _log_exception(message: str) -> None:
    logger.error("%s\n%s", message, traceback.format_exc().rstrip(), stacklevel=2)


async def _listener_handler_coroutine(conn_request: Any, ctx: Any, func: Callable[[Any], Any], endpoint_error_handling: bool,
                                      connect_timeout: float, ident: int, active_clients: Any) -> None:
    active_clients.inc(ident)
    endpoint: Any = conn_request
    ep: Any = None
    try:
        msg_tag = hash64bits("msg_tag", os.urandom(16), endpoint.handle)
        try:
            peer_info = await exchange_peer_info(endpoint=endpoint, msg_tag=msg_tag, listener=True,
                                                 connect_timeout=connect_timeout)
        except UCXMessageTruncatedError:
            endpoint.raise_on_error()  # the peer closed before it told its tag: why it did says more
            return
        ep = Endpoint(endpoint=endpoint, ctx=ctx, tags={"msg_send": peer_info["msg_tag"], "msg_recv": msg_tag})
        logger.debug("_listener_handler() server: %#x, error handling: %s, msg-tag-send: %#x, msg-tag-recv: %#x", endpoint.handle,
                     endpoint_error_handling, ep._tags["msg_send"], ep._tags["msg_recv"])
        if inspect.iscoroutinefunction(func):
            try:
                await func(ep)
            except Exception:
                _log_exception("Uncaught listener callback error")
        else:
            given = func(ep)
            if inspect.isawaitable(given):  # a partial of a coroutine function, for example
                await given
    except Exception:
        _log_exception("Unexpected error in listener handler coroutine")
    finally:
        ctx = None  # only the program decides how long they live
        endpoint = None
        conn_request = None
        ep = None
        active_clients.dec(ident)


def _listener_handler(conn_request: Any, event_loop: asyncio.AbstractEventLoop, callback_func: Callable[[Any], Any],
                      ctx: weakref.ref[ApplicationContext], endpoint_error_handling: bool, connect_timeout: float, ident: int,
                      active_clients: ActiveClients) -> None:
    """Called by whoever drives the worker, in any thread."""
    own = ctx()
    if own is None or event_loop.is_closed():
        return
    asyncio.run_coroutine_threadsafe(_listener_handler_coroutine(conn_request, own, callback_func, endpoint_error_handling,
                                                                 connect_timeout, ident, active_clients), event_loop)
