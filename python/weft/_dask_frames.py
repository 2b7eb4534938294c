"""The frames of a message of Dask's as messages of ours: the head, which says how many there are, how long each is and whether it
is on a GPU, and has the small ones in it; and those that follow it.

Every byte of a head comes from the peer: it is checked before it is a length. tests/python/test_dask_comm.py and test_dask_gpu.py
hold us to it.
"""
from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _dask_gpu as gpu

if TYPE_CHECKING:
    host_array: Any
    ensure_memoryview: Any
else:
    from distributed.protocol.utils import host_array
    from distributed.utils import ensure_memoryview

_MAGIC = b"WDK1"
_HEAD = struct.Struct("<4sI")
_INLINE = 4096          # a frame up to this long goes into the head: a copy is cheaper than another message
_INLINE_ALL = 1 << 20   # the most bytes of frames in one head
_ON_GPU = 1 << 63       # in the size of a frame


def pack(frames: Sequence[Any], gpus: bool = False) -> tuple[bytes, list[Any], int]:
    """The head of a message, the frames that follow it, and how many bytes all of it is. gpus: the peer takes frames of a GPU.

    The head: four bytes that say what it is, the number of frames, for each its length times two, plus one if it is in the head,
    and plus 2**63 if it is on a GPU; and those in the head. A frame of a GPU is in the head only if it has no bytes.
    """
    sizes, inline = [], []
    rest: list[Any] = []
    together, total = 0, 0
    for frame in frames:
        there = gpu.nbytes(frame) if gpus else None
        if there is not None:
            total += there
            sizes.append(2 * there + _ON_GPU if there else _ON_GPU + 1)
            if there:
                rest.append(frame)
            continue
        view = ensure_memoryview(frame)
        n = view.nbytes
        total += n
        if n <= _INLINE and together + n <= _INLINE_ALL:
            together += n
            sizes.append(2 * n + 1)
            inline.append(view)
        else:
            sizes.append(2 * n)
            rest.append(view)
    head = b"".join([_HEAD.pack(_MAGIC, len(sizes)), struct.pack(f"<{len(sizes)}Q", *sizes), *inline])
    return head, rest, total + _HEAD.size + 8 * len(sizes)


def unpack(head: bytes, device: Callable[[int], Any] | None = None) -> tuple[list[Any], list[Any]]:
    """The frames of a message from its head, and those among them that have yet to be received into; ValueError if it is none
    of ours. device: what makes memory of a GPU, if frames of a GPU are taken."""
    if len(head) < _HEAD.size:
        raise ValueError(f"a head of {len(head)} bytes is too short")
    magic, n = _HEAD.unpack_from(head)
    at = _HEAD.size + 8 * n
    if magic != _MAGIC or at > len(head):
        raise ValueError("what came is not a message of Dask's over Weft: is the peer's version of it another?")
    view = memoryview(head)
    frames: list[Any] = []
    rest: list[Any] = []
    for size in struct.unpack_from(f"<{n}Q", head, _HEAD.size):
        if size & _ON_GPU:
            if device is None:
                raise ValueError("a frame is said to be on a GPU, and such frames are not taken here")
            length = (size - _ON_GPU) >> 1
            if bool(length) == bool(size & 1):
                raise ValueError("a frame of a GPU is in the head if it has no bytes, and only then")
            frames.append(device(length))
            if length:
                rest.append(frames[-1])
        elif size & 1:
            end = at + (size >> 1)
            if end > len(head):
                raise ValueError("a frame is said to be in the head, and is not all there")
            frames.append(view[at:end])
            at = end
        else:
            frames.append(host_array(size >> 1))
            rest.append(frames[-1])
    if at != len(head):
        raise ValueError("there is more in the head than it says")
    return frames, rest
