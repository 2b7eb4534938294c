"""The functions of `ucxx`: they use the one context of the program, and make it where there is none.

    no context -> a context    init(), or the first call that needs one
    a context -> none          reset(), or the end of the program

A process that was forked gets UCXError from what its parent made; after reset() it may make its own.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
from collections.abc import Callable
from typing import Any

from ucp._libs.options import over_environment

from ._lib import libucxx as ucx_api
from ._lib.libucxx import UCXAddress, UCXError
from ._lib_async import ApplicationContext, Endpoint, Listener

logger = logging.getLogger("ucx")

_ctx: ApplicationContext | None = None
_forked: list[ApplicationContext] = []  # what a child has of its parent: nothing of it may be touched, or freed


def _after_fork() -> None:
    global _ctx
    if _ctx is not None:
        _forked.append(_ctx)


os.register_at_fork(after_in_child=_after_fork)


def _get_ctx() -> ApplicationContext:
    """The context of the program, made now if there is none."""
    global _ctx
    if _ctx is not None and any(_ctx is left for left in _forked):
        raise UCXError("this process was forked after ucxx was used: what the parent made is of no use here. Start processes "
                       "by spawn "
                       "(multiprocessing.get_context(\"spawn\")), or call ucxx.reset() first, which gives the child a context "
                       "of its own")
    if _ctx is None:
        _ctx = ApplicationContext()
    return _ctx


def init(options: dict[str, Any] = {}, env_takes_precedence: bool = False, progress_mode: str | None = None,
         enable_delayed_submission: bool | None = None, enable_python_future: bool | None = None,
         connect_timeout: float | None = None) -> None:
    """Make the context with options of UCX, such as {"TLS": "tcp"}. Called once; everything else calls it without options if
    nobody has.

    UCX_* variables of the same name count more than `options` if env_takes_precedence, and less if not. progress_mode: "thread"
    (or UCXPY_PROGRESS_MODE), "thread-polling", "blocking" or "polling". enable_delayed_submission and enable_python_future are
    accepted: what they are for works without them. connect_timeout: seconds.
    """
    global _ctx
    if _ctx is not None:
        _get_ctx()
        raise RuntimeError("UCX is already initiated: call ucxx.reset() before ucxx.init() with other options")
    options = over_environment(options, env_takes_precedence, "Ignoring option %s=%s; using environment %s=%s",
                               "Ignoring environment %s=%s; using option %s=%s")
    _ctx = ApplicationContext(options, progress_mode=progress_mode, enable_delayed_submission=enable_delayed_submission,
                              enable_python_future=enable_python_future, connect_timeout=connect_timeout)


def reset() -> None:
    """Shut everything down: the next call makes a new context. UCXError if endpoints or listeners are still open; they go on
    with the old one."""
    global _ctx
    ctx, _ctx = _ctx, None
    if ctx is None or any(ctx is left for left in _forked):
        return
    gc.collect()  # objects that only reference cycles hold do not count
    left = [*ctx._endpoints, *(listener for listener in ctx._listeners if not listener.closed)]
    if left:
        raise UCXError("Trying to reset UCX but not all Endpoints and/or Listeners are closed(). The following objects are "
                       "still referencing "
                       "ApplicationContext: " + "".join(f"\n  {what!r}" for what in left))
    ctx.close()


def _at_exit() -> None:
    global _ctx
    ctx, _ctx = _ctx, None
    if ctx is not None and not any(ctx is left for left in _forked):
        try:
            for ep in tuple(ctx._endpoints):
                ep.abort()
            ctx.close()
        except Exception as error:  # the program ends, and can do nothing about it
            logger.debug("at the end: %s: %s", type(error).__name__, error)


atexit.register(_at_exit)


def stop_notifier_thread() -> None:
    """Nothing: there is none. For programs that call it at their end."""
    logger.debug("Notifier thread not running")


def get_ucx_version() -> tuple[int, int, int]:
    """The version of the UCX that Weft has under it; zeros where there is none."""
    return ucx_api.get_ucx_version()


def progress() -> None:
    """Drive the worker by hand. Not needed: its thread or the loop does."""
    _get_ctx().worker.progress()


def get_config() -> dict[str, str]:
    """Every option of UCX and its value: of the context if there is one, else what it would have."""
    return ucx_api.get_current_options() if _ctx is None else _get_ctx().config


def create_listener(callback_func: Callable[[Endpoint], Any], port: int | None = None, endpoint_error_handling: bool = True,
                    connect_timeout: float = 5.0) -> Listener:
    """Listen on `port`, or on one that is picked; `callback_func`, a function or coroutine function, is called with each new
    endpoint.

    Keep the listener: it stops when nobody has it any more.
    """
    return _get_ctx().create_listener(callback_func, port, endpoint_error_handling=endpoint_error_handling,
                                      connect_timeout=connect_timeout)


async def create_endpoint(ip_address: str, port: int, endpoint_error_handling: bool = True,
                          connect_timeout: float = 5.0) -> Endpoint:
    """Connect to a listener. TimeoutError if that takes longer than `connect_timeout` seconds."""
    return await _get_ctx().create_endpoint(ip_address, port, endpoint_error_handling=endpoint_error_handling,
                                            connect_timeout=connect_timeout)


async def create_endpoint_from_worker_address(address: UCXAddress, endpoint_error_handling: bool = True) -> Endpoint:
    """Connect to a worker by its address. Such an endpoint has no tag of its own: give one, with force_tag=True."""
    return await _get_ctx().create_endpoint_from_worker_address(address, endpoint_error_handling=endpoint_error_handling)


def get_ucp_context_info() -> str:
    """What is known of the context, in lines."""
    return _get_ctx().ucp_context_info


def get_ucp_worker_info() -> str:
    """What is known of the worker, in lines."""
    return _get_ctx().ucp_worker_info


def get_active_transports() -> set[str]:
    """The transports that connections may use, by UCX's names: shared memory is "posix"."""
    words = [word.strip().lower() for word in _get_ctx().config["TLS"].split(",")]
    every = {"self", "tcp", "posix"} | ({"cuda_copy"} if _get_ctx().context.cuda_support else set())
    if words[0].startswith("^"):
        return every - {_name(word.lstrip("^")) for word in words}
    return every if "all" in words else {_name(word) for word in words}


def _name(word: str) -> str:
    return "posix" if word in ("sm", "shm", "mm", "sysv") else "cuda_copy" if word == "cuda" else word


def continuous_ucx_progress(event_loop: asyncio.AbstractEventLoop | None = None) -> None:
    """See to it that the worker is driven. Whatever needs it calls it."""
    _get_ctx().continuous_ucx_progress(event_loop=event_loop)


def get_ucp_worker() -> int:
    """The number of the worker."""
    return _get_ctx().ucp_worker


def get_ucxx_worker() -> int:
    """Another number of the worker."""
    return _get_ctx().ucxx_worker


def get_worker_address() -> UCXAddress:
    """The address by which others reach this process's worker, to be sent to them as bytes."""
    return _get_ctx().worker_address


def get_ucx_address_from_buffer(buffer: Any) -> UCXAddress:
    """The address in bytes that came from another process's get_worker_address()."""
    return UCXAddress.create_from_buffer(buffer)


async def recv(buffer: Any, tag: Any) -> None:
    """Receive a message with this tag from whichever peer, into `buffer`."""
    await _get_ctx().recv(buffer, tag=tag)


__all__ = ["continuous_ucx_progress", "create_endpoint", "create_endpoint_from_worker_address", "create_listener",
           "get_active_transports",
           "get_config", "get_ucp_context_info", "get_ucp_worker", "get_ucp_worker_info", "get_ucx_address_from_buffer",
           "get_ucx_version",
           "get_ucxx_worker", "get_worker_address", "init", "progress", "recv", "reset", "stop_notifier_thread"]
