"""What a program gives to send() and recv(), as the extension takes it.

tests/python/test_ucp_core.py holds us to it.
"""
from __future__ import annotations

from typing import Any

from ._libs.arr import Array, _foreign


def memory_of(buffer: Any, writable: bool) -> Any:
    """What the extension takes, of what it does not take by itself: an Array, or an object that has __array_interface__ alone."""
    own = buffer if isinstance(buffer, Array) else Array(buffer)
    return own._memory(own.nbytes, writable)


def type_of(buffer: Any) -> type:
    return type(buffer.obj if isinstance(buffer, Array) else buffer)


def raw(buffer: Any) -> memoryview:
    """Its bytes as they lie, in whatever order its dimensions are."""
    own = buffer if isinstance(buffer, Array) else Array(buffer)
    own._memory(own.nbytes, True)  # raises if it is not contiguous or is read-only
    if own.cuda:
        raise ValueError("the memory is on a GPU")
    return memoryview(_foreign(own.ptr, own.nbytes, own)).cast("B")


def nbytes_of(buffer: Any) -> int:
    if type(buffer) in (bytes, bytearray):
        return len(buffer)
    try:
        return int(buffer.nbytes)
    except AttributeError:
        return Array(buffer).nbytes
