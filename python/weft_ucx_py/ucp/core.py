"""The context of a program: one worker, what it listens on and connects to, and the functions that use it without being given
one.

The worker's runtime is attached to the event loop that runs, and moves when another one asks: several asyncio.run() one after the
other may use what the first of them made. Two threads cannot use it at one time.

    no context -> a context    init(), or the first call that needs one
    a context -> none          reset(), or the end of the program: what was sent is flushed, for some seconds at most

Endpoints come about in the same way on both sides: connect, make two tags of random numbers, and tell them to the peer over the
endpoint's stream. Messages travel with these tags, so that no endpoint receives what is meant for another.

A process that was forked gets UCXError from what its parent made; after reset() it may make its own.

tests/python/test_ucp_core.py and test_ucp_config.py hold us to it.
"""
from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

import weft

from . import comm
# noqa: F401
from ._connecting import (EndpointHandler, Listener, _handler_ended, _introduced, _listener_handler, _listener_handler_coroutine,
                          _new_tags, exchange_peer_info, timeout_of)
from ._libs import ucx_api
from ._libs.arr import Array
from ._libs.options import over_environment
from .continuous_ucx_progress import BlockingMode, NonBlockingMode, ProgressTask
from .endpoint import CTRL_ID, CTRL_SIZE, Endpoint
from .exceptions import UCXError
from .utils import get_address, get_event_loop, get_ucxpy_logger, hash64bits  # noqa: F401

logger = get_ucxpy_logger()

FLUSH_BOUND = 5.0  # seconds that the end of a loop waits for sends

# --- one program, one context ------------------------------------------------------------------------------------------

_ctx: ApplicationContext | None = None
_forked = False
_finishing: set[asyncio.Task[None]] = set()  # contexts that were reset in a loop


def _after_fork() -> None:
    global _forked
    _forked = _ctx is not None


os.register_at_fork(after_in_child=_after_fork)


def _get_ctx() -> ApplicationContext:
    """The context of the program, made now if there is none."""
    global _ctx
    if _forked:
        raise UCXError("this process was forked after ucp was used: what the parent made is of no use here. Start processes by "
                       "spawn "
                       "(multiprocessing.get_context(\"spawn\")), or call ucp.reset() first, which gives the child a context of "
                       "its own")
    if _ctx is None:
        _ctx = ApplicationContext()
    return _ctx


# --- the context -------------------------------------------------------------------------------------------------------


async def _keeper(ref: weakref.ref[ApplicationContext]) -> AsyncGenerator[None, None]:
    """Suspended until its loop shuts its asynchronous generators down, which asyncio.run() does at its end: the one moment to
    flush."""
    try:
        yield
    finally:
        ctx = ref()
        if ctx is not None:
            await ctx._loop_ends()


class ApplicationContext:
    """What a program has of UCX: a context and one worker, its event loop, and how long connecting may take.

    config_dict: options of UCX, without UCX_ before them. blocking_progress_mode: True lets the loop sleep, False never does; the
    default is True, and False if UCXPY_NON_BLOCKING_MODE is set. connect_timeout: seconds; the default is UCXPY_CONNECT_TIMEOUT,
    or 5.
    """

    def __init__(self, config_dict: dict[str, Any] = {}, blocking_progress_mode: bool | None = None, connect_timeout: float
                 | None = None) -> None:
        self.connect_timeout = timeout_of(connect_timeout)
        if blocking_progress_mode is None:
            blocking_progress_mode = "UCXPY_NON_BLOCKING_MODE" not in os.environ
        self.blocking_progress_mode = bool(blocking_progress_mode)
        self.progress_tasks: list[ProgressTask] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running: Callable[[], bool] = lambda: False  # is_running() of its loop
        self._thread = 0
        self._keepers: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._handlers: set[asyncio.Task[None]] = set()
        self._callers: list[tuple[Any, EndpointHandler, bool]] = []  # peers that connected while there was no loop
        self._endpoints: weakref.WeakValueDictionary[int, Endpoint] = weakref.WeakValueDictionary()
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        # control messages of peers that closed before the endpoint here was made
        self._early_shutdowns: weakref.WeakKeyDictionary[weft.Endpoint, bytes] = weakref.WeakKeyDictionary()
        self.context = ucx_api.UCXContext(dict(config_dict))
        self.worker = ucx_api.UCXWorker(self.context)
        self.worker.runtime._am_handle(CTRL_ID, _shutdown_handler(weakref.ref(self)))

    # -- its loop

    def continuous_ucx_progress(self, event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Have the worker driven by an event loop: the one that runs, unless another is given. It is left by the loop it had."""
        loop = event_loop or get_event_loop()
        if self._loop is not loop:
            self._move(loop)
        if loop not in self._keepers and asyncio._get_running_loop() is loop:
            keeper = _keeper(weakref.ref(self))
            try:
                keeper.__anext__().send(None)
            except StopIteration:
                pass
            self._keepers = {own: its for own, its in self._keepers.items() if not own.is_closed()} | {loop: keeper}

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._loop.is_running() and self._thread != threading.get_ident():
            raise UCXError("ucp's worker is driven by the event loop of another thread, which is running: use ucp in that "
                           "thread, or weft.Runtime, "
                           "of which every loop may have its own")
        for task in self.progress_tasks:
            task.cancel()
        mode = BlockingMode if self.blocking_progress_mode else NonBlockingMode
        self.progress_tasks = [mode(self.worker, loop)]
        self._loop, self._is_running, self._thread = loop, loop.is_running, threading.get_ident()
        callers, self._callers = self._callers, []
        for caller, function, error_handling in callers:
            _listener_handler(caller, function, weakref.ref(self), error_handling)

    async def _loop_ends(self) -> None:
        loop = asyncio.get_running_loop()
        self._keepers.pop(loop, None)
        if self._loop is not loop:
            return
        await self._flushed()
        if self._loop is loop:
            self._leave_loop()

    async def _flushed(self) -> None:
        if self.worker.initialized and self.worker._leaving:
            await asyncio.wait(set(self.worker._leaving), timeout=FLUSH_BOUND)
        await asyncio.sleep(0)  # leave the runtime's progress first: it cannot change its loop there

    def _leave_loop(self) -> None:
        """Driven by nobody but who calls progress(), until a loop asks for it."""
        for task in self.progress_tasks:
            task.cancel()
        self.progress_tasks = []
        self._loop, self._is_running = None, lambda: False
        if self.worker.initialized:
            self.worker.detach()

    def _idle(self) -> bool:
        """True if closing it waits for nobody; then it has left its loop."""
        worker = self.worker
        if worker._leaving or worker._later or worker._came:
            return False
        try:
            self._leave_loop()
        except UCXError:  # we are inside of the runtime's progress, where it cannot change its loop
            return False
        return True

    def _finish_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Flush and close, and let the loop go on meanwhile."""
        async def finish() -> None:
            try:
                await self._flushed()
            finally:
                loop.call_soon(ended)

        def ended() -> None:
            _finishing.discard(task)
            self._finish()
        task = loop.create_task(finish())
        _finishing.add(task)

    def _finish(self) -> None:
        """Flush and close, now."""
        for ep in list(self._endpoints.values()):
            ep.abort()
        for listener in list(self._listeners):
            listener.close()
        self._leave_loop()
        self.worker.close()  # close() drives it until all sends are flushed, or their time is over
        self.context.close()

    # -- listening and connecting

    def create_listener(self, callback_func: EndpointHandler, port: int | None = None,
                        endpoint_error_handling: bool = True) -> Listener:
        """Listen on `port`, or on one that is picked; `callback_func`, a function or coroutine function, is called with each
        new endpoint."""
        if not callable(callback_func):
            raise TypeError(f"callback_func is a function or coroutine function of one endpoint, and not {callback_func!r}")
        self.continuous_ucx_progress()
        logger.info("create_listener() - Start listening on port %d", port or 0)
        listener = Listener(ucx_api.UCXListener(worker=self.worker, port=port or 0, cb_func=_listener_handler,
                                                cb_args=(callback_func, weakref.ref(self), endpoint_error_handling)), self)
        self._listeners.add(listener)
        return listener

    async def create_endpoint(self, ip_address: str, port: int, endpoint_error_handling: bool = True) -> Endpoint:
        """Connect to a listener. TimeoutError if that takes longer than connect_timeout."""
        self.continuous_ucx_progress()
        ucx_ep = ucx_api.UCXEndpoint.create(self.worker, ip_address, port, endpoint_error_handling)
        return await _introduced(self, ucx_ep, False, endpoint_error_handling)

    async def create_endpoint_from_worker_address(self, address: Any, endpoint_error_handling: bool = True) -> Endpoint:
        """Connect to a worker by its address. Such an endpoint has no tags of its own: give one, with force_tag=True."""
        self.continuous_ucx_progress()
        ucx_ep = ucx_api.UCXEndpoint.create_from_worker_address(self.worker, address, endpoint_error_handling)
        ep = Endpoint(ucx_ep, self, None)
        logger.debug("create_endpoint_from_worker_address() client: %s, error handling: %s", hex(ep.uid), endpoint_error_handling)
        return ep

    async def recv(self, buffer: Any, tag: int) -> Any:
        """Receive a message with this tag from whichever peer, into `buffer`."""
        self.continuous_ucx_progress()
        array = buffer if isinstance(buffer, Array) else Array(buffer)
        name = "[Worker Recv] worker: %s, tag: %s, nbytes: %d, type: %s" % (hex(self.worker.handle), hex(tag), array.nbytes,
                                                                            type(array.obj))
        logger.debug(name)
        return await comm.tag_recv(self.worker, array, array.nbytes, tag, name=name)

    def get_worker_address(self) -> Any:
        """The address by which others reach this worker."""
        return self.worker.get_address()

    def register_am_allocator(self, allocator: Callable[[int], Any], allocator_type: str) -> None:
        """Have active messages for memory of a type, "host" or "cuda", received into what `allocator(nbytes)` gives."""
        types = {"host": ucx_api.AllocatorType.HOST, "cuda": ucx_api.AllocatorType.CUDA}
        if allocator_type not in types:
            raise UCXError(f'allocator_type is {allocator_type!r}, which is neither "host" nor "cuda"')
        self.worker.register_am_allocator(allocator, types[allocator_type])

    # -- asking, and the worker's own

    def get_ucp_worker(self) -> int:
        """The handle of the worker: a number."""
        return int(self.worker.handle)

    def get_config(self) -> dict[str, str]:
        """Every option and its value."""
        return dict(self.context.get_config())

    def ucp_context_info(self) -> str:
        """What is known of the context, in lines."""
        return str(self.context.info())

    def ucp_worker_info(self) -> str:
        """What is known of the worker, in lines."""
        return str(self.worker.info())

    def fence(self) -> None:
        """What is sent after it arrives after what was sent before."""
        self.worker.fence()

    async def flush(self) -> None:
        """Wait until everything that was sent before is in the hands of the network or of its peers."""
        self.continuous_ucx_progress()
        sends = {op for ep in list(self._endpoints.values()) for op in ep._sends}
        if sends:
            await asyncio.wait(sends)
        await comm.flush_worker(self.worker)


def _shutdown_handler(ref: weakref.ref[ApplicationContext]) -> Callable[[Any], None]:
    def handle(message: Any) -> None:
        ctx, sender = ref(), message.endpoint
        ep = ctx._endpoints.get(sender.id) if ctx is not None and sender is not None else None
        header = message.header
        message.release()
        if ep is not None:
            ep._peer_shuts_down(header)
        elif ctx is not None and sender is not None and len(header) == CTRL_SIZE:
            ctx._early_shutdowns.setdefault(sender, header)
    return handle


# --- functions of the program's context -----------------------------------------------------------------------------------


def init(options: dict[str, Any] = {}, env_takes_precedence: bool = False, blocking_progress_mode: bool | None = None,
         connect_timeout: float | None = None) -> None:
    """Make the context with options of UCX, such as {"TLS": "tcp"}. Called once; everything else calls it without options if
    nobody has.

    UCX_* variables of the same name count more than `options` if env_takes_precedence, and less if not. blocking_progress_mode:
    False has the event loop never sleep. connect_timeout: seconds.
    """
    global _ctx
    if _ctx is not None and not _forked:
        raise RuntimeError("UCX is already initiated. Call reset() before init() with other options")
    if _forked:
        _get_ctx()
    options = over_environment(options, env_takes_precedence, "the option %s=%s gives way to %s=%s of the environment",
                               "%s=%s of the environment gives way to the option %s=%s")
    _ctx = ApplicationContext(options, blocking_progress_mode=blocking_progress_mode, connect_timeout=connect_timeout)


def reset() -> None:
    """Shut everything down: the next call makes a new context. UCXError if endpoints or listeners are still open; they go on
    with the old one."""
    global _ctx, _forked
    ctx, _ctx = _ctx, None
    if _forked or ctx is None:
        _forked = False
        return
    gc.collect()  # objects that only reference cycles hold do not count
    left = [f"Endpoint {ep.uid:#x}" for ep in list(ctx._endpoints.values())]
    left += [f"Listener on port {listener.port}" for listener in list(ctx._listeners) if not listener.closed()]
    if left:
        raise UCXError("Trying to reset UCX but not all Endpoints and/or Listeners are closed(): call close() or abort(), and "
                       "drop, " + ", ".join(sorted(left)))
    running = asyncio._get_running_loop()
    if running is not None and running is ctx._loop and not ctx._idle():
        ctx._finish_in(running)
    else:
        ctx._finish()


def _at_exit() -> None:
    global _ctx
    ctx, _ctx = _ctx, None
    if ctx is not None and not _forked:
        try:
            ctx._finish()
        except Exception as error:  # the program ends and can do nothing about it
            logger.debug("at the end: %s: %s", type(error).__name__, error)


atexit.register(_at_exit)


def get_ucx_version() -> tuple[int, int, int]:
    """The version of UCX, as three numbers."""
    return tuple(ucx_api.get_ucx_version())  # type: ignore[return-value]


def progress() -> None:
    """Make progress by hand: for programs without an event loop. Tasks that wait are woken by the loop."""
    ctx = _get_ctx()
    if logger.isEnabledFor(logging.DEBUG - 1):
        logger.log(logging.DEBUG - 1, "progress()")
    ctx.worker.progress()


def get_config() -> dict[str, str]:
    """Every option of UCX and its value: of the context if there is one, else what it would have."""
    if _ctx is None:
        return dict(ucx_api.get_current_options())
    return _get_ctx().get_config()


def get_ucp_context_info() -> str:
    """What is known of the context, in lines."""
    return _get_ctx().ucp_context_info()


def get_ucp_worker_info() -> str:
    """What is known of the worker, in lines."""
    return _get_ctx().ucp_worker_info()


def get_ucp_worker() -> int:
    """The handle of the worker: a number."""
    return _get_ctx().get_ucp_worker()


def get_active_transports() -> set[str]:
    """The transports that connections may use, by UCX's names: shared memory is posix."""
    allowed = (_get_ctx().context._transports or "all").split(",")
    here = set(weft.info().get("transports", "").partition(";")[0].split())
    active = here if "all" in allowed else set(allowed)
    return {"posix" if t == "shm" else t for t in active}


def register_am_allocator(allocator: Callable[[int], Any], allocator_type: str) -> None:
    """Have active messages for memory of a type, "host" or "cuda", received into what `allocator(nbytes)` gives."""
    _get_ctx().register_am_allocator(allocator, allocator_type)


def create_listener(callback_func: EndpointHandler, port: int | None = None, endpoint_error_handling: bool = True) -> Listener:
    """Listen on `port`, or on one that is picked; `callback_func`, a function or coroutine function, is called with each new
    endpoint.

    Keep the listener: it stops when nobody has it any more.
    """
    return _get_ctx().create_listener(callback_func, port, endpoint_error_handling)


async def create_endpoint(ip_address: str, port: int, endpoint_error_handling: bool = True) -> Endpoint:
    """Connect to a listener. TimeoutError if that takes longer than connect_timeout."""
    return await _get_ctx().create_endpoint(ip_address, port, endpoint_error_handling)


async def create_endpoint_from_worker_address(address: Any, endpoint_error_handling: bool = True) -> Endpoint:
    """Connect to a worker by its address. Such an endpoint has no tags of its own: give one, with force_tag=True."""
    return await _get_ctx().create_endpoint_from_worker_address(address, endpoint_error_handling)


def get_worker_address() -> Any:
    """The address by which others reach this process's worker, to be sent to them as bytes."""
    return _get_ctx().get_worker_address()


def get_ucx_address_from_buffer(buffer: Any) -> Any:
    """The address in bytes that came from another process's get_worker_address()."""
    return ucx_api.UCXAddress.from_buffer(buffer)


async def recv(buffer: Any, tag: int) -> Any:
    """Receive a message with this tag from whichever peer, into `buffer`."""
    return await _get_ctx().recv(buffer, tag)


def continuous_ucx_progress(event_loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Have an event loop drive the worker: the one that runs, unless another is given. Whatever needs it calls it."""
    _get_ctx().continuous_ucx_progress(event_loop)


def fence() -> None:
    """What is sent after it arrives after what was sent before."""
    _get_ctx().fence()


async def flush() -> None:
    """Wait until everything that was sent before is in the hands of the network or of its peers."""
    await _get_ctx().flush()


__all__ = ["ApplicationContext", "Endpoint", "Listener", "continuous_ucx_progress", "create_endpoint",
           "create_endpoint_from_worker_address", "create_listener", "fence", "flush", "get_active_transports", "get_address",
           "get_config",
           "get_ucp_context_info", "get_ucp_worker", "get_ucp_worker_info", "get_ucx_address_from_buffer", "get_ucx_version",
           "get_worker_address", "init", "progress", "recv", "register_am_allocator", "reset"]
