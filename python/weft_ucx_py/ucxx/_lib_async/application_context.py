"""ApplicationContext: what a program has of UCX: a context and one worker, how it is driven, and how long connecting may take.

    thread modes    the worker's own thread drives it; every loop of every thread may use it
    loop modes      the loop that asks drives it, and it moves when another one asks: several asyncio.run(), one after the other

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ucp._connecting import CONNECT_TIMEOUT, timeout_of
from ucxx._lib.arr import asarray
from ucxx._lib.libucxx import TagProbeResult, UCXAddress, UCXContext, UCXEndpoint, UCXListener, UCXWorker
from ucxx._lib.objects import MadeWith
from ucxx.exceptions import UCXError, UCXMessageTruncatedError
from ucxx.types import Tag

from .continuous_ucx_progress import MODES, BlockingMode, PollingMode, ProgressTask, ThreadMode
from .endpoint import Endpoint
from .exchange_peer_info import exchange_peer_info
from .listener import ActiveClients, Listener, _listener_handler
from .utils import get_event_loop, hash64bits

logger = logging.getLogger("ucx")


def _mode(given: str | None) -> str:
    mode = os.environ.get("UCXPY_PROGRESS_MODE", "thread") if given is None else given
    if mode not in MODES:
        raise ValueError(f"Unknown progress mode '{mode}', valid modes are: 'blocking', 'polling', 'thread' or 'thread-polling'")
    return mode


def _switch(given: bool | None, variable: str, default: bool) -> bool:
    if given is not None:
        return bool(given)
    return os.environ[variable] != "0" if variable in os.environ else default


class ApplicationContext(MadeWith):
    """Options of UCX without UCX_ before them; the others are as of ucxx.init()."""

    def __init__(self, config_dict: dict[str, Any] = {}, progress_mode: str | None = None, enable_delayed_submission: bool
                 | None = None,
                 enable_python_future: bool | None = None, connect_timeout: float | None = None) -> None:
        self._progress_mode = _mode(progress_mode)
        threads = self._progress_mode.startswith("thread")
        self._delayed = _switch(enable_delayed_submission, "UCXPY_ENABLE_DELAYED_SUBMISSION", threads)
        if self._delayed and not threads:
            raise ValueError(f"Delayed submission requested, but '{self._progress_mode}' does not support it, 'thread' or "
                             "'thread-polling' progress mode required.")
        self._futures = _switch(enable_python_future, "UCXPY_ENABLE_PYTHON_FUTURE", False)
        if self._futures and not threads:
            logger.warning("Notifier thread requested, but '%s' does not support it, using Python wait_yield().",
                           self._progress_mode)
            self._futures = False
        self.connect_timeout = timeout_of(connect_timeout)
        self._listener_active_clients = ActiveClients()
        self._next_listener_id = 0
        self._endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()  # those that are open
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._task: ProgressTask | None = None
        self._thread = 0
        self.context = UCXContext(config_dict)
        self.worker = UCXWorker(self.context, enable_delayed_submission=self._delayed, enable_python_future=self._futures)
        if threads:
            self.continuous_ucx_progress()

    # --- asking

    @property
    def progress_mode(self) -> str:
        """How the worker is driven."""
        return self._progress_mode

    @property
    def config(self) -> dict[str, str]:
        """Every option and its value."""
        return self.context.config

    @property
    def ucp_context_info(self) -> str:
        """What is known of the context, in lines."""
        return self.context.info

    @property
    def ucp_worker_info(self) -> str:
        """What is known of the worker, in lines."""
        return self.worker.info

    @property
    def ucp_worker(self) -> int:
        """The number of the worker."""
        return self.worker.handle

    @property
    def ucxx_worker(self) -> int:
        """Another number of the worker."""
        return self.worker.ucxx_ptr

    @property
    def worker_address(self) -> UCXAddress:
        """The address by which others reach this worker."""
        return self.worker.address

    # --- driving

    def continuous_ucx_progress(self, event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """See to it that the worker is driven: by its thread, or by an event loop: the one that runs, unless another is given."""
        if self._progress_mode.startswith("thread"):
            if self._task is None:
                logger.info("Starting progress in '%s' mode", self._progress_mode)
                self._task = ThreadMode(self.worker, polling_mode=self._progress_mode == "thread-polling")
            return
        loop = event_loop or asyncio._get_running_loop() or get_event_loop()
        old = self._task
        if old is not None and old.event_loop is loop:
            return
        driven = old.event_loop if old is not None else None
        if driven is not None and driven.is_running() and self._thread != threading.get_ident():
            raise UCXError("ucxx's worker is driven by the event loop of another thread, which is running: use ucxx in that "
                           "thread, or "
                           "init(progress_mode=\"thread\")")
        logger.info("Starting progress in '%s' mode", self._progress_mode)
        self._task = (BlockingMode if self._progress_mode == "blocking" else PollingMode)(self.worker, loop)
        self._thread = threading.get_ident()

    def close(self) -> None:
        """End the worker: what was sent gets some seconds to reach the peers."""
        self.worker._close()

    def start_notifier_thread(self) -> None:
        """Nothing: who awaits is woken without it."""

    def stop_notifier_thread(self) -> None:
        """Nothing: there is none."""
        logger.debug("Notifier thread not running")

    # --- listening and connecting

    def create_listener(self, callback_func: Callable[[Endpoint], Any], port: int | None = 0,
                        endpoint_error_handling: bool = True,
                        connect_timeout: float = CONNECT_TIMEOUT) -> Listener:
        """Listen on `port`, or on one that is picked; `callback_func`, a function or coroutine function, is called with each new
        endpoint, in the loop that runs now. A peer has `connect_timeout` seconds to introduce itself."""
        if not callable(callback_func):
            raise TypeError(f"callback_func is a function or coroutine function of one endpoint, and not {callback_func!r}")
        self.continuous_ucx_progress()
        logger.info("create_listener() - Start listening on port %d", port or 0)
        ident, self._next_listener_id = self._next_listener_id, self._next_listener_id + 1
        clients = self._listener_active_clients
        inner = UCXListener.create(worker=self.worker, port=port or 0, cb_func=_listener_handler, deliver_endpoint=True,
                                   cb_args=(get_event_loop(), callback_func, weakref.ref(self), endpoint_error_handling,
                                            connect_timeout,
                                            ident, clients))
        listener = Listener(inner, ident, clients, self)
        self._listeners.add(listener)
        return listener

    async def create_endpoint(self, ip_address: str, port: int, endpoint_error_handling: bool = True,
                              connect_timeout: float = CONNECT_TIMEOUT) -> Endpoint:
        """Connect to a listener. TimeoutError if that takes longer than `connect_timeout` seconds."""
        self.continuous_ucx_progress()
        ucx_ep = UCXEndpoint.create(self.worker, ip_address, port, endpoint_error_handling)
        msg_tag = hash64bits("msg_tag", os.urandom(16), ucx_ep.handle)
        try:
            peer = await exchange_peer_info(endpoint=ucx_ep, msg_tag=msg_tag, listener=False, connect_timeout=connect_timeout)
        except UCXMessageTruncatedError:
            ucx_ep.raise_on_error()  # why the peer closed says more
            raise
        tags = {"msg_send": peer["msg_tag"], "msg_recv": msg_tag}
        logger.debug("create_endpoint() client: %#x, error handling: %s, msg-tag-send: %#x, msg-tag-recv: %#x", ucx_ep.handle,
                     endpoint_error_handling, tags["msg_send"], tags["msg_recv"])
        return Endpoint(endpoint=ucx_ep, ctx=self, tags=tags)

    async def create_endpoint_from_worker_address(self, address: UCXAddress, endpoint_error_handling: bool = True) -> Endpoint:
        """Connect to a worker by its address. Such an endpoint has no tag of its own: give one, with force_tag=True."""
        self.continuous_ucx_progress()
        ucx_ep = UCXEndpoint.create_from_worker_address(self.worker, address, endpoint_error_handling)
        logger.debug("create_endpoint() client: %#x, error handling: %s", ucx_ep.handle, endpoint_error_handling)
        return Endpoint(endpoint=ucx_ep, ctx=self, tags=None)

    # --- messages of the whole worker

    def tag_probe(self, tag: Tag | int, remove: bool = False) -> TagProbeResult:
        """Whether a message with this tag has arrived that nobody has received. With `remove` it is taken out of the matching,
        for recv_with_handle()."""
        self.continuous_ucx_progress()
        return self.worker.tag_probe(tag, remove=remove)

    async def recv(self, buffer: Any, tag: Tag | int) -> None:
        """Receive a message with this tag from whichever peer, into `buffer`."""
        self.continuous_ucx_progress()
        data, number = asarray(buffer), tag if isinstance(tag, Tag) else Tag(tag)
        logger.debug("[Worker Recv] worker: %#x, tag: %#x, nbytes: %d, type: %s", self.worker.handle, number.value, data.nbytes,
                     type(data.obj))
        await self.worker.tag_recv(data, number).wait()

    async def recv_with_handle(self, buffer: Any, probe_result: TagProbeResult) -> None:
        """Receive the message that tag_probe(remove=True) found, into an object of its length or more."""
        self.continuous_ucx_progress()
        data = asarray(buffer)
        logger.debug("[Worker Recv With Handle] worker: %#x, nbytes: %d, type: %s", self.worker.handle, data.nbytes,
                     type(data.obj))
        await self.worker.tag_recv_with_handle(data, probe_result).wait()
