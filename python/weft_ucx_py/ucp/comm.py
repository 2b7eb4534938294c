"""Communication as asyncio futures, over the callbacks of ucp._libs.ucx_api.

Each function posts one operation and returns a future of `event_loop`, or of the loop that runs: True, what was received by
am_recv(), or the exception. A future that is cancelled cancels its request, and the memory is held until the library has let go
of it.

tests/python/test_ucp_comm.py holds us to it.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ._libs import ucx_api
from ._libs.arr import Array
from .utils import get_event_loop


def _post(event_loop: asyncio.AbstractEventLoop | None, worker: Any, function: Callable[..., Any], *args: Any,
          **kwargs: Any) -> asyncio.Future[Any]:
    """A future of what function(*args, cb_func=...) comes to."""
    loop = event_loop or get_event_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def complete(request: Any, exception: BaseException | None, *_: Any) -> None:
        if future.done() or loop.is_closed():
            return
        if exception is not None:
            future.set_exception(exception)
        else:
            future.set_result(True)

    request = function(*args, cb_func=complete, **kwargs)
    if request is None:  # it is complete, and no callback comes
        if not future.done():
            future.set_result(True)
    else:
        def ended(future: asyncio.Future[Any]) -> None:
            if future.cancelled() and not request.closed():
                worker.request_cancel(request)
        future.add_done_callback(ended)
    return future


def tag_send(ep: ucx_api.UCXEndpoint, buffer: Any, nbytes: int, tag: int, name: str = "tag_send",
             event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Send a message with a tag."""
    return _post(event_loop, ep.worker, ucx_api.tag_send_nb, ep, buffer, nbytes, tag, name=name)


def tag_recv(obj: Any, buffer: Any, nbytes: int, tag: int, name: str = "tag_recv",
             event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Receive a message with a tag, by a worker, or by the worker of an endpoint: then it ends when the endpoint does."""
    ep = obj if isinstance(obj, ucx_api.UCXEndpoint) else None
    worker = obj if ep is None else ep.worker
    return _post(event_loop, worker, ucx_api.tag_recv_nb, worker, buffer, nbytes, tag, name=name, ep=ep)


def stream_send(ep: ucx_api.UCXEndpoint, buffer: Any, nbytes: int, name: str = "stream_send",
                event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Send bytes of the endpoint's stream."""
    return _post(event_loop, ep.worker, ucx_api.stream_send_nb, ep, buffer, nbytes, name=name)


def stream_recv(ep: ucx_api.UCXEndpoint, buffer: Any, nbytes: int, name: str = "stream_recv",
                event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Receive exactly `nbytes` of the endpoint's stream."""
    return _post(event_loop, ep.worker, ucx_api.stream_recv_nb, ep, buffer, nbytes, name=name)


def am_send(ep: ucx_api.UCXEndpoint, buffer: Any, nbytes: int, name: str = "am_send",
            event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Send an active message."""
    return _post(event_loop, ep.worker, ucx_api.am_send_nbx, ep, buffer, nbytes, name=name)


def am_recv(ep: ucx_api.UCXEndpoint, name: str = "am_recv", event_loop: asyncio.AbstractEventLoop
            | None = None) -> asyncio.Future[Any]:
    """Receive an active message, into memory of the allocator that is registered."""
    loop = event_loop or get_event_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def complete(received: Any, exception: BaseException | None, *_: Any) -> None:
        if future.done() or loop.is_closed():
            return
        if exception is not None:
            future.set_exception(exception)
        else:
            future.set_result(received)

    ucx_api.am_recv_nb(ep, cb_func=complete, name=name)
    return future


def flush_worker(worker: ucx_api.UCXWorker, event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Complete when everything that was sent through the worker is in the hands of the network."""
    return _post(event_loop, worker, worker.flush)


def flush_ep(ep: ucx_api.UCXEndpoint, event_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[bool]:
    """Complete when everything that was sent through the endpoint is in the hands of the network."""
    return _post(event_loop, ep.worker, ep.flush)


__all__ = ["Array", "am_recv", "am_send", "flush_ep", "flush_worker", "stream_recv", "stream_send", "tag_recv", "tag_send"]
