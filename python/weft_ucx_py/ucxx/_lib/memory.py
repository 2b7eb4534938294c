"""Memory that is made for what arrives: arrays of numpy on the host, and memory of Weft on a GPU.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft
from ucp.utils import parse_bytes

try:
    import numpy
except ImportError:  # then a memoryview is given in place of an array
    numpy = None  # type: ignore[assignment]


def host(nbytes: int) -> Any:
    """An array of bytes: of numpy, or, without numpy, a memoryview."""
    return numpy.empty(nbytes, "u1") if numpy is not None else memoryview(bytearray(nbytes))


class CudaBuffer:
    """Bytes on a GPU, for what knows __cuda_array_interface__."""

    def __init__(self, nbytes: int) -> None:
        self._memory = weft.Memory(nbytes, "cuda")
        self.nbytes = nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._memory.__cuda_array_interface__, "shape": (self.nbytes,), "typestr": "|u1", "version": 2}

    def copy_to_host(self, ary: Any = None) -> Any:
        """Its bytes, in an array of the host: a new one, or `ary`."""
        into = host(self.nbytes) if ary is None else ary
        if memoryview(into).nbytes < self.nbytes:
            raise ValueError(f"Argument `ary` is too small. Need space for {self.nbytes} bytes.")
        self._memory.copy_to(memoryview(into).cast("B")[:self.nbytes])
        return into

    def __len__(self) -> int:
        return self.nbytes


def cuda(nbytes: int) -> Any:
    """Memory on the GPU, or on the host where there is none, or nothing to put there."""
    return CudaBuffer(nbytes) if nbytes and "cuda" in weft.memory_kinds() else host(nbytes)


EAGER = 8192  # an active message that is shorter is received on the host, wherever it lay: UCXX's own threshold


def cuda_from(threshold: str) -> Callable[[int], Any]:
    """What makes memory for active messages that lie on a GPU: on the GPU from so many bytes on, as UCXX has it."""
    try:
        least = int(parse_bytes(threshold))
    except ValueError:  # "auto", and lists by memory type
        least = EAGER
    return lambda nbytes: cuda(nbytes) if nbytes >= least else host(nbytes)
