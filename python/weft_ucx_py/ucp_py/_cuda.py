"""Memory of a GPU: what of `ucp_py` needs one. Where there is none, weft.UnsupportedError says so, and nothing else of `ucp_py`
needs it.

tests/python/test_ucp_py_memory.py holds us to it.
"""
from __future__ import annotations

import ctypes
from typing import Any, NoReturn

import weft


def _none() -> NoReturn:
    raise weft.UnsupportedError("there is no GPU that could be used here: alloc_host() has ordinary memory")


def use_device(dev: int) -> None:
    """Have this thread use that GPU: its context becomes the thread's, in the place of the one it had. Nothing is left half
    done."""
    if isinstance(dev, bool) or not isinstance(dev, int):
        raise TypeError(f"dev is {dev!r}, and has to be the number of a GPU, from 0 on")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        _none()
    count, device, context, old = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        _none()
    if not 0 <= dev < count.value:
        raise weft.InvalidError(f"dev is {dev}, and there is no such GPU: they are numbered from 0 to {count.value - 1}")
    if cuda.cuDeviceGet(ctypes.byref(device), dev) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        raise weft.SystemFailureError(f"GPU {dev} cannot be used by this process")
    if cuda.cuCtxGetCurrent(ctypes.byref(old)) == 0 and old.value:
        if old.value == context.value:
            return
        cuda.cuCtxPopCurrent_v2(ctypes.byref(old))
    if cuda.cuCtxPushCurrent_v2(context):
        raise weft.SystemFailureError(f"GPU {dev} cannot be used by this thread")


def alloc(n: int) -> Any:
    """That many bytes of the GPU that this thread uses."""
    try:
        return weft.Memory(n, kind="cuda")
    except weft.UnsupportedError:
        _none()


class _Part:
    """The first bytes of memory of a GPU, for whoever takes such memory; what it is a part of lives as long."""

    def __init__(self, whole: Any, n: int) -> None:
        interface = whole.__cuda_array_interface__
        self._whole = whole
        told = {"data": tuple(interface["data"]), "shape": (n,), "typestr": "|u1", "strides": None, "version": 3}
        if "stream" in interface:  # absent: the default stream is waited for; None: there is nothing to wait for
            told["stream"] = interface["stream"]
        self.__cuda_array_interface__ = told


def part(memory: Any, n: int) -> Any:
    """Its first bytes."""
    return _Part(memory, n)


def fill(memory: Any, value: int, n: int) -> None:
    """Set its first bytes to a value."""
    if isinstance(memory, weft.Memory):
        memory.fill(value, 0, n)
    elif n:
        filled = weft.Memory(n, "cuda")
        filled.fill(value)
        filled.copy_to(part(memory, n))


def read(memory: Any, n: int) -> bytes:
    """Its first bytes, copied."""
    copy = weft.Memory(n)
    if n:
        copy.copy_from(part(memory, n))
    return copy.tobytes()
