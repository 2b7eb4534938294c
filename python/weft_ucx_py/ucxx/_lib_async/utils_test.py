"""What tests of programs that use `ucxx` share: capturing a log, time limits, frames of Dask, and waiting for a listener's
handlers.

It needs pytest and numpy, which nothing else here does.
"""
from __future__ import annotations

import asyncio
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ucxx
from ucxx._lib import memory
from ucxx._lib_async.pytest_stash_keys import ASYNCIO_PLUGIN_TIMEOUT_STASH_KEY
from ucxx.exceptions import UCXCanceledError, UCXCloseError

normal_env = {"UCX_RNDV_SCHEME": "put_zcopy", "UCX_MEMTYPE_CACHE": "n", "UCX_TLS": "rc,cuda_copy,cuda_ipc",
              "CUDA_VISIBLE_DEVICES": "0"}


def set_env() -> None:
    """Set variables as for InfiniBand and CUDA."""
    os.environ.update(normal_env)


def get_num_gpus() -> int:
    """How many GPUs the driver knows."""
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def get_cuda_devices() -> list[Any]:
    """Their names or numbers, as CUDA_VISIBLE_DEVICES has them, or all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(range(get_num_gpus())) if named is None else named.split(",")


def compute_timeouts(pytestconfig: pytest.Config) -> tuple[float, float]:
    """Two limits within that of the test: for what it awaits, and for processes it waits for. So the inner one ends first."""
    try:
        whole = pytestconfig.stash[ASYNCIO_PLUGIN_TIMEOUT_STASH_KEY]
    except KeyError:
        raise RuntimeError("compute_timeouts() needs the time limit of the test in "
                           "config.stash[ASYNCIO_PLUGIN_TIMEOUT_STASH_KEY]: set it in "
                           "pytest_runtest_setup()") from None
    return max(whole * 0.8, whole - 10), max(whole * 0.9, whole - 5)


@contextmanager
def captured_logger(logger: logging.Logger | str, level: int = logging.INFO, propagate: bool
                    | None = None) -> Iterator[io.StringIO]:
    """What a logger writes meanwhile."""
    own = logging.getLogger(logger) if isinstance(logger, str) else logger
    before = own.level, own.handlers[:], own.propagate
    text = io.StringIO()
    own.handlers[:] = [logging.StreamHandler(text)]
    own.setLevel(level)
    if propagate is not None:
        own.propagate = propagate
    try:
        yield text
    finally:
        own.setLevel(before[0])
        own.handlers[:], own.propagate = before[1], before[2]


def cuda_array(size: int) -> Any:
    """Memory on a GPU."""
    return memory.cuda(size)


async def send(ep: Any, frames: list[Any]) -> None:
    """Send frames of Dask: how many, which lie on a GPU, their lengths, and those that are not empty."""
    nbytes = pytest.importorskip("distributed").utils.nbytes
    await ep.send(np.array([len(frames)], dtype=np.uint64))
    await ep.send(np.array([hasattr(f, "__cuda_array_interface__") for f in frames], dtype=bool))
    await ep.send(np.array([nbytes(f) for f in frames], dtype=np.uint64))
    for frame in frames:
        if nbytes(frame) > 0:
            await ep.send(frame)


async def recv(ep: Any) -> tuple[list[Any], Any]:
    """Receive what send() sent: the frames, and what Dask makes of them."""
    from_frames = pytest.importorskip("distributed.comm.utils").from_frames
    n = np.empty(1, dtype=np.uint64)
    await ep.recv(n)
    on_gpu, sizes = np.empty(int(n[0]), dtype=bool), np.empty(int(n[0]), dtype=np.uint64)
    await ep.recv(on_gpu)
    await ep.recv(sizes)
    frames: list[Any] = []
    for cuda, size in zip(on_gpu.tolist(), sizes.tolist()):
        frame: Any = cuda_array(size) if cuda else np.empty(size, dtype=np.uint8) if size else b""
        if size:
            await ep.recv(frame)
        frames.append(frame)
    return frames, await from_frames(frames)


async def am_send(ep: Any, frames: list[Any]) -> None:
    """Send frames as active messages."""
    await ep.am_send(np.array([len(frames)], dtype=np.uint64))
    for frame in frames:
        await ep.am_send(frame)


async def am_recv(ep: Any) -> tuple[list[Any], Any]:
    """Receive what am_send() sent."""
    from_frames = pytest.importorskip("distributed.comm.utils").from_frames
    n = (await ep.am_recv()).view(np.uint64)
    frames = [await ep.am_recv() for _ in range(int(n[0]))]
    return frames, await from_frames(frames)


async def wait_listener_client_handlers(listener: Any) -> None:
    """Wait until no handler of a listener is at work."""
    while listener.active_clients > 0:
        await asyncio.sleep(0.0005)
        if not ucxx.core._get_ctx().progress_mode.startswith("thread"):
            ucxx.progress()


__all__ = ["UCXCanceledError", "UCXCloseError", "am_recv", "am_send", "captured_logger", "compute_timeouts", "cuda_array",
           "get_cuda_devices", "get_num_gpus", "normal_env", "recv", "send", "set_env", "wait_listener_client_handlers"]
