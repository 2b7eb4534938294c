"""numpy arrays over remote memory: an index reads the bytes it touches, an assignment writes them, and nothing else goes over the
network.

    matrix = weft.RemoteArray(remote, "f8", (1000, 1000))
    row = await matrix.get(7)                 # 8000 bytes, in one read
    await matrix.put((slice(0, 3), 5), 1.0)   # three times 8 bytes, in one batch
    block = matrix[10:20, :100]               # in a blocking runtime an index is enough

Bytes that lie side by side are one access, however many dimensions they span; the others go in batches of bounded size, a few of
them under way at a time. Others may see a part of what is written until all of it is.
"""
from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

    from ._core import BlockingRemote, Remote

__all__ = ["RemoteArray"]

BATCH = 4096       # accesses in one operation
UNDER_WAY = 4      # operations at a time


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("weft.RemoteArray makes numpy arrays, and numpy is not installed: pip install numpy") from error
    return numpy


def _whole(value: Any, what: str) -> int:
    """A number without a fraction, as int: 2.5 bytes on is another place than 2."""
    if hasattr(value, "__index__"):
        return operator.index(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise TypeError(f"{what} is {value!r}, which is not a whole number")


class RemoteArray:
    """An array in the memory of a peer, in C order, from `offset` bytes of a remote on.

    Indices are numbers, slices, `...` and None, as numpy's are; lists and masks are not taken. Elements are as the owner's memory
    has them: say the byte order in the dtype ("<f8") where machines differ.
    """

    def __init__(self, remote: Remote | BlockingRemote, dtype: Any, shape: int | tuple[int, ...], offset: int = 0) -> None:
        np = _numpy()
        self._remote = remote
        self._dtype: numpy.dtype[Any] = np.dtype(dtype)
        self._shape = tuple(_whole(n, "a length in shape") for n in ((shape,) if not isinstance(shape, (tuple, list)) else shape))
        self._offset = _whole(offset, "offset")
        if self._dtype.hasobject:
            raise ValueError(f"dtype is {self._dtype}: elements that are objects of Python mean nothing in another process")
        if self._dtype.itemsize == 0:
            raise ValueError(f"dtype is {self._dtype}, whose elements have no bytes")
        if self._offset < 0 or any(n < 0 for n in self._shape):
            raise ValueError(f"shape is {self._shape} and offset {offset}: neither may be negative")
        size = 1
        for n in self._shape:
            size *= n
        self._size = size
        if self._offset + self.nbytes > remote.nbytes:
            whose = getattr(remote, "name", None)
            raise ValueError(f"{self.nbytes} bytes from {offset} on are not within the {remote.nbytes} of the "
                             f"{'remote' if whose is None else f'transport {whose}'}")
        # An array with our strides, without memory of its own: numpy computes indices with it, and nobody reads its content.
        strides, step = [], self._dtype.itemsize
        for n in reversed(self._shape):
            strides.append(step)
            step *= max(n, 1)
        self._strides = tuple(reversed(strides))
        self._paper = np.lib.stride_tricks.as_strided(np.empty(1, self._dtype), self._shape, self._strides)

    # --- what it is

    @property
    def remote(self) -> Remote | BlockingRemote:
        """The remote it lies in."""
        return self._remote

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The type of its elements."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements it has in each dimension."""
        return self._shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next in each dimension."""
        return self._strides

    @property
    def offset(self) -> int:
        """Where it begins in the remote, in bytes."""
        return self._offset

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self._size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self._dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._size * self.itemsize

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("an array of no dimensions has no length")
        return self._shape[0]

    def __repr__(self) -> str:
        return f"<weft.RemoteArray of {self._dtype}, {self._shape}>"

    # --- which bytes an index touches

    def _touched(self, key: Any) -> tuple[Any, tuple[int, ...], bool]:
        """Where the runs of bytes begin that lie side by side, the shape, and whether it is one element."""
        np = _numpy()
        keys = key if isinstance(key, tuple) else (key,)
        for one in keys:
            if not (one is None or one is Ellipsis or isinstance(one, slice)
                    or (hasattr(one, "__index__") and not isinstance(one, (bool, np.bool_)) and getattr(one, "ndim", 0) == 0)):
                raise TypeError(f"an index of a RemoteArray is made of numbers, slices, ... and None, and {one!r} is none: "
                                "read what is around it, and index that")
        dots = any(one is Ellipsis for one in keys)
        view = self._paper[keys if dots else (*keys, Ellipsis)]  # with an Ellipsis, numpy always returns a view, never an element
        first = view.__array_interface__["data"][0] - self._paper.__array_interface__["data"][0]
        alone = view.ndim == 0 and not dots
        run, axis = self.itemsize, view.ndim
        while axis and (view.shape[axis - 1] == 1 or view.strides[axis - 1] == run):
            axis -= 1
            run *= view.shape[axis]
        starts = np.array(self._offset + first, dtype=np.int64)
        for n, step in zip(view.shape[:axis], view.strides[:axis]):
            starts = starts[..., None] + np.arange(n, dtype=np.int64) * step
        return starts.reshape(-1), view.shape, alone

    @staticmethod
    def _batches(starts: Any, flat: Any) -> Iterator[list[tuple[int, memoryview]]]:
        """(offset, piece) of at most BATCH accesses at a time."""
        bytes_of = memoryview(flat)
        run = len(bytes_of) // len(starts)
        for at in range(0, len(starts), BATCH):
            some = starts[at:at + BATCH].tolist()
            yield [(start, bytes_of[(at + i) * run:(at + i + 1) * run]) for i, start in enumerate(some)]

    def _do(self, operation: Any, starts: Any, flat: Any, timeout: float | None) -> Any:
        """All of it: done when this returns in a blocking runtime, else a coroutine."""
        many = self._batches(starts, flat) if flat.size else iter(())
        until = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if until is None else max(until - time.monotonic(), 1e-9)

        if self._remote.blocking:
            for batch in many:
                operation(batch, timeout=left())
            return None

        async def all_of_it() -> None:
            under_way: list[Any] = []
            try:
                for batch in many:
                    if len(under_way) == UNDER_WAY:
                        await under_way.pop(0)
                    under_way.append(operation(batch, timeout=left()))
                while under_way:
                    await under_way.pop(0)
            finally:
                for op in under_way:  # one failed, or we were cancelled: cancel the others too
                    op.cancel()
        return all_of_it()

    def get(self, key: Any = ..., *, timeout: float | None = None) -> Any:
        """What numpy would give for array[key], read from the peer: a new array, or one element. To be awaited in an event
        loop."""
        np = _numpy()
        starts, shape, alone = self._touched(key)
        out = np.empty(shape, self._dtype)
        doing = self._do(self._remote.read_many, starts, out.reshape(-1).view(np.uint8), timeout)
        if doing is None:
            return out[()] if alone else out

        async def finish() -> Any:
            await doing
            return out[()] if alone else out
        return finish()

    def put(self, key: Any, value: Any, *, timeout: float | None = None) -> Any:
        """What numpy does for array[key] = value, written to the peer. To be awaited in an event loop."""
        np = _numpy()
        starts, shape, _ = self._touched(key)
        values = np.empty(shape, self._dtype)
        values[...] = value
        return self._do(self._remote.write_many, starts, values.reshape(-1).view(np.uint8), timeout)

    # --- in a blocking runtime

    def _waits(self, instead: str) -> None:
        if not self._remote.blocking:
            raise TypeError(f"the remote belongs to an event loop, which an index cannot wait for: use {instead}")

    def __getitem__(self, key: Any) -> Any:
        self._waits("`await array.get(key)`")
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._waits("`await array.put(key, value)`")
        self.put(key, value)

    def __iter__(self) -> Iterator[Any]:
        self._waits("`await array.get()`")
        for i in range(len(self)):
            yield self.get(i)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._waits("`await array.get()`")
        if copy is False:
            raise ValueError("an array in another process cannot be had without a copy")
        out = self.get()
        return out if dtype is None else out.astype(dtype, copy=False)
