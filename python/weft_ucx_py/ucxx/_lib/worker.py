"""UCXWorker: the worker of `ucp._libs`, behind a lock, so that threads may use it as they like; and the thread that drives it.

    by hand     progress(), progress_once() or progress_worker_event() drive it, in whichever thread
    by thread   start_progress_thread(): a thread drives it, and sleeps when there is nothing to do. Others that post or wait
                drive it, too, and need not wake it for that: driver.py
    by a loop   attach(): an asyncio loop drives it, and only its thread may use it

Functions of the program (of listeners, of endpoints that end) are called after the lock was let go, by whoever drives. So they
may use the worker, and wait for a thread that uses it.

Promise: no thread waits for another that waits for it, and a worker that nobody holds ends with its thread.
tests/python/test_ucxx_threads.py holds us to it.
"""
from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import weft
from ucp._libs import ucx_api
from ucp._libs.objects import AllocatorType, Feature, _numbers
from ucp.continuous_ucx_progress import BlockingMode, NonBlockingMode, ProgressTask
from ucp.exceptions import UCXBaseException

from ..exceptions import UCXError, made, translated
from . import memory
from .arr import Array, asarray
from .context import UCXAddress, UCXContext
from .driver import Driver
from .objects import MadeWith, Numbered
from .probe import TagProbeResult
from .request import OpState, State, UCXRequest
from .tag import UCXXTag, UCXXTagMask, UCXXTagMaskFull, number

if TYPE_CHECKING:
    from .endpoint import UCXEndpoint

logger = logging.getLogger("ucx")

T = TypeVar("T")
TagLike = UCXXTag | int
MaskLike = UCXXTagMask | int

_workers: weakref.WeakSet[UCXWorker] = weakref.WeakSet()


class UCXWorker(Numbered, MadeWith):
    """Made from a context. Any thread may use it, unless an event loop drives it."""

    _inner: ucx_api.UCXWorker

    def __init__(self, context: UCXContext, enable_delayed_submission: bool = False, enable_python_future: bool = False) -> None:
        if not isinstance(context, UCXContext):
            raise TypeError(f"a UCXWorker is made from a UCXContext, and this is {context!r}")
        try:
            self._inner = ucx_api.UCXWorker(context._inner)
        except UCXBaseException as error:
            raise translated(error) from error
        self._context = context
        self._delayed = bool(enable_delayed_submission)
        self._futures = bool(enable_python_future)
        self._number = next(_numbers)
        self._lock = threading.RLock()
        self._depth = 0  # how often the thread that has the lock has it
        self._pending: weakref.WeakSet[UCXRequest] = weakref.WeakSet()  # operations of Weft that were not complete at once
        self._later_calls: deque[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = deque()
        self._calling = threading.local()
        self._thread: Driver | None = None
        self._on_start: Callable[[], object] | None = None
        self._mode: ProgressTask | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inner.register_am_allocator(memory.host, AllocatorType.HOST)
        self._inner.register_am_allocator(memory.cuda_from(context.config["RNDV_THRESH"]), AllocatorType.CUDA)
        _workers.add(self)

    # --- asking

    @property
    def info(self) -> str:
        """What there is to say about it, for people."""
        return str(self._locked(self._inner.info))

    @property
    def address(self) -> UCXAddress:
        """By which peers connect to it without knowing of a listener."""
        return UCXAddress(bytes(self._locked(self._inner.get_address)))

    @property
    def cuda_buffer_type(self) -> str:
        """What is received on a GPU is given as: "cccl", as UCXX calls an object with __cuda_array_interface__, or "none"."""
        return "cccl" if self._context.cuda_support else "none"

    @property
    def epoll_file_descriptor(self) -> int:
        """Readable when there is something to progress(), if it was armed."""
        return int(self._inner.epoll_file_descriptor)

    # --- driving it

    def progress(self) -> None:
        """Drive it."""
        self.progress_once()

    def progress_once(self) -> bool:
        """Drive it; True if something happened."""
        n = self._locked(self._inner.progress)
        self._call_later()
        return bool(n)

    def progress_worker_event(self, epoll_timeout: int = -1) -> None:
        """Drive it; if nothing happens, sleep until something does, for so many milliseconds at most, and drive it again."""
        fd = -1
        with self:
            if not self._guarded(self._inner.progress) and self._inner.arm():
                fd = self._inner.epoll_file_descriptor
        if fd >= 0 and not self._later_calls:
            sleep = select.poll()
            sleep.register(fd, select.POLLIN)
            sleep.poll(None if epoll_timeout < 0 else epoll_timeout)
            self._locked(self._inner.progress)
        self._call_later()

    def arm(self) -> bool:
        """Prepare to sleep until `epoll_file_descriptor` is readable; False if there is something to progress() first."""
        return bool(self._locked(self._inner.arm))

    def init_blocking_progress_mode(self) -> None:
        """Have a descriptor to sleep on, and arm."""
        self._locked(self._inner.init_blocking_progress_mode)

    def set_progress_thread_start_callback(self, cb_func: Callable[..., object], cb_args: tuple[Any, ...] | None = None,
                                           cb_kwargs: dict[str, Any] | None = None) -> None:
        """Have a function called in the progress thread when it starts."""
        if not callable(cb_func):
            raise TypeError(f"the callback is a function, and not {cb_func!r}")
        self._on_start = lambda: cb_func(*(cb_args or ()), **(cb_kwargs or {}))

    def start_progress_thread(self, polling_mode: bool = False, epoll_timeout: int = -1) -> None:
        """Have a thread drive it, which sleeps when there is nothing to do; with `polling_mode`, never. Once: more does
        nothing."""
        with self:
            if self._loop is not None:
                raise made(UCXError, "an event loop drives this worker already: it cannot have a progress thread, too")
            if self._thread is None:
                self._thread = Driver(self, polling_mode, self._on_start)

    def is_progress_thread_running(self) -> bool:
        """True while a thread drives it."""
        return self._thread is not None

    def stop_progress_thread(self) -> None:
        """End that thread. Not from inside a function that the thread calls: then it ends when the function returns."""
        with self:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def attach(self, loop: asyncio.AbstractEventLoop, polling_mode: bool = False) -> None:
        """Have an event loop drive it from now on, that of this thread; with `polling_mode` the loop never sleeps."""
        if self._loop is loop:
            return
        if self._mode is not None:
            self._mode.cancel()
        self._mode = self._locked(NonBlockingMode if polling_mode else BlockingMode, self._inner, loop)
        self._loop = loop
        self._call_later()

    # --- messages of the whole worker

    def tag_probe(self, tag: TagLike, tag_mask: MaskLike = UCXXTagMaskFull, remove: bool = False) -> TagProbeResult:
        """Whether a message with this tag has arrived that nobody has received. With `remove` it is taken out of the matching,
        for tag_recv_with_handle()."""
        self._need(Feature.TAG)
        runtime, numbers = self._inner.runtime, (number(tag), number(tag_mask))
        if self._loop is None:
            self.progress_once()
        if remove:
            claim = self._locked(runtime.claim_any, *numbers)
            return TagProbeResult(None if claim is None else (claim.tag, claim.nbytes), claim)
        found = self._locked(runtime.probe_any, *numbers)
        return TagProbeResult(None if found is None else (found[0], found[1]))

    def tag_recv(self, arr: Array, tag: TagLike, tag_mask: MaskLike = UCXXTagMaskFull) -> UCXRequest:
        """Receive a message with this tag from whichever peer. A message of another length is UCXMessageTruncatedError."""
        self._need(Feature.TAG)
        return self._received(arr, tag, tag_mask, None)

    def _received(self, arr: Array, tag: TagLike, tag_mask: MaskLike, ep: UCXEndpoint | None) -> UCXRequest:
        array = asarray(arr)
        into, nbytes, by_address = array._memory(array.nbytes, True), array.nbytes, ep is not None and ep._by_address
        with self:
            self._guarded(self._inner._ready)
            op = self._guarded(self._inner.runtime.recv_any_into, into, number(tag), number(tag_mask))
            request = self._of(op, by_address, nbytes)
            if ep is not None and not op.done():
                ep._waiting.add(request)
                if not ep.alive:
                    ep._end_waiting()
            if self._inner._unread:
                self._inner._keep_unread()
        return request

    def tag_recv_with_handle(self, arr: Array, probe_result: TagProbeResult) -> UCXRequest:
        """Receive the message that tag_probe(remove=True) found, once, into memory of its length or more."""
        self._need(Feature.TAG)
        if not probe_result.matched:
            raise ValueError("TagProbeResult must be matched")
        claim, probe_result._claim = probe_result._claim, None
        if claim is None:
            raise ValueError("the TagProbeResult has no message to receive: probe with remove=True, and receive it once")
        try:
            into = asarray(arr)._memory(probe_result.length, True)
        except ValueError:
            probe_result._claim = claim  # it can be received into other memory
            raise
        with self:
            return self._of(self._guarded(claim.recv_into, into), False, probe_result.length)

    def cancel_inflight_requests(self, period: int = 0, max_attempts: int = 1) -> int:
        """Have every request of the worker end early; how many that were."""
        with self:
            pending = [request for request in tuple(self._pending) if not request._state.done]
            for request in pending:
                request._cancel()
            others = [request for request in tuple(self._inner._requests) if request._pending]
            for other in others:
                self._guarded(self._inner.request_cancel, other)
            return len(pending) + len(others)

    # --- connecting

    def create_endpoint_from_hostname(self, ip_address: str, port: int, endpoint_error_handling: bool) -> UCXEndpoint:
        """See UCXEndpoint.create()."""
        from .endpoint import UCXEndpoint
        return UCXEndpoint.create(self, ip_address, port, endpoint_error_handling)

    def create_endpoint_from_worker_address(self, address: UCXAddress, endpoint_error_handling: bool) -> UCXEndpoint:
        """See UCXEndpoint.create_from_worker_address()."""
        from .endpoint import UCXEndpoint
        return UCXEndpoint.create_from_worker_address(self, address, endpoint_error_handling)

    # --- of the library

    def _need(self, feature: Feature) -> None:
        self._inner._context._need(feature)

    def _guarded(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call it; what `ucp` and Weft raise becomes an exception of `ucxx`."""
        try:
            return function(*args, **kwargs)
        except (UCXBaseException, weft.WeftError) as error:
            raise translated(error) from error

    def __enter__(self) -> None:
        """Have the worker to oneself. A thread that sleeps on it is not woken by what happens now: it looks again soon."""
        self._lock.acquire()
        self._depth += 1
        if self._loop is not None and self._loop.is_closed():
            self._leave_loop()
        thread = self._thread
        if thread is not None and self._depth == 1:
            thread.used()
            self._inner._hand._sleeping = False

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._lock.release()

    def _leave_loop(self) -> None:
        """The loop has ended: it is driven by hand, until another one asks for it."""
        self._loop = None
        if self._mode is not None:
            self._mode.cancel()
            self._mode = None
        if self._inner.initialized:
            self._guarded(self._inner.detach)

    def _hand_over(self) -> None:
        """This thread will sleep: the other one is woken by what comes."""
        thread = self._thread
        if thread is None:
            return
        with self:
            if self._thread is thread and self._inner.initialized and self._inner.arm():
                thread.handed_over()
                return
        thread.wake()

    def _locked(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The same, with the worker to oneself."""
        with self:
            return self._guarded(function, *args, **kwargs)

    def _post(self, state: State, receives: bool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> UCXRequest:
        """A request of what a function of `ucx_api` posts: None is complete. What is known to fail is complete, too."""
        request = UCXRequest(self, state, receives)
        with self:
            try:
                inner = function(*args, **kwargs)
            except (UCXBaseException, weft.WeftError, MemoryError) as error:
                state.finish(error)
            else:
                if inner is None:
                    state.finish(None)
                else:
                    request._end = lambda: inner._worker.request_cancel(inner)
        return request

    def _of(self, op: Any, by_address: bool = False, expected: int = -1) -> UCXRequest:
        """A request of an operation of Weft; `expected`: it receives a message of so many bytes."""
        request = UCXRequest(self, OpState(op, by_address, expected), expected >= 0)
        if not op.done():
            self._pending.add(request)
        return request

    def _spin(self, state: State, seconds: float) -> None:
        """Drive it until a request is over, for so long at most, unless another thread drives it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with self:
                until = time.perf_counter() + seconds
                while not state.done and self._inner.initialized:
                    self._guarded(self._inner.progress)
                    if time.perf_counter() >= until:
                        break
        finally:
            self._lock.release()
        self._call_later()

    def _later(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Have a function of the program called by whoever drives, once it has let go of the lock."""
        self._later_calls.append((function, args, kwargs))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._call_later)

    def _call_later(self) -> None:
        if getattr(self._calling, "now", False):
            return  # inside of such a function: the next one has to wait for its end
        self._calling.now = True
        try:
            while self._later_calls:
                try:
                    function, args, kwargs = self._later_calls.popleft()
                except IndexError:  # another thread took it
                    return
                try:
                    function(*args, **kwargs)
                except Exception as error:
                    logger.error("%s when calling %r: %s", type(error), function, error)
        finally:
            self._calling.now = False

    def _close(self) -> None:
        """End it: what was sent gets some seconds to reach the peers."""
        self.stop_progress_thread()
        if self._mode is not None:
            self._mode.cancel()
            self._mode = None
        with self:
            if self._inner.initialized:
                self._guarded(self._inner.progress)  # the one who drove it last is the one who may close it
            self._guarded(self._inner.close)
        self._call_later()

    def __del__(self) -> None:
        if getattr(self, "_calling", None) is None or self._inner._pid != os.getpid():
            return
        try:
            self._close()
        except Exception:  # nobody is left to report it to
            pass


def _stop_all() -> None:
    """At the end of the interpreter, before ucp closes its workers."""
    for worker in tuple(_workers):
        try:
            worker.stop_progress_thread()
        except Exception:  # the program ends, and can do nothing about it
            pass


atexit.register(_stop_all)
