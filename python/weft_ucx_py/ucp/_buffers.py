"""What a program gives to send() and recv(), as the extension takes it.

tests/python/test_ucp_core.py and cuda_ucp.py hold us to it.
"""
from __future__ import annotations

from typing import Any

import weft

from ._libs.arr import Array, _foreign


def memory_of(buffer: Any, writable: bool) -> Any:
    """What the extension takes, of what it does not take by itself: an Array, or an object that has __array_interface__ alone."""
    own = buffer if isinstance(buffer, Array) else Array(buffer)
    return own._memory(own.nbytes, writable)


def type_of(buffer: Any) -> type:
    return type(buffer.obj if isinstance(buffer, Array) else buffer)


def raw(buffer: Any) -> Any:
    """Its bytes as they lie, in whatever order its dimensions are: a memoryview, or, on a GPU, what has an interface of CUDA."""
    own = buffer if isinstance(buffer, Array) else Array(buffer)
    own._memory(own.nbytes, True)  # raises if it is not contiguous or is read-only
    if own.cuda:
        return own._part(0, own.nbytes)
    return memoryview(_foreign(own.ptr, own.nbytes, own)).cast("B")


def copied(buffer: Any, nbytes: int) -> Any:
    """A copy of its first bytes, where it is: bytes, or memory of a GPU."""
    view = raw(buffer)
    if isinstance(view, memoryview):
        return bytes(view[:nbytes])
    copy = weft.Memory(nbytes, "cuda")
    if nbytes:
        copy.copy_from(view.whole._part(0, nbytes))
    return copy


def put(data: Any, view: Any) -> None:
    """Fill what raw() gave with what copied() gave, which is as long, wherever the two are."""
    if isinstance(data, bytes) and isinstance(view, memoryview):
        view[:] = data
        return
    if isinstance(data, bytes):
        memory = weft.Memory(len(data))
        memory.copy_from(data)
        data = memory
    if len(data):
        data.copy_to(view)


def nbytes_of(buffer: Any) -> int:
    if type(buffer) in (bytes, bytearray):
        return len(buffer)
    try:
        return int(buffer.nbytes)
    except AttributeError:
        return Array(buffer).nbytes
