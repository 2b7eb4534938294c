"""numpy arrays over an element's memory that fetch what is read, keep it, and write back what was written.

    with trans.remote_array("f8", (1000, 1000)) as matrix:
        matrix[7] *= 2              # reads 8000 bytes, and writes 8000 when it is closed
        total = matrix[:, 3].sum()  # reads 1000 times 8 bytes in one operation, except what is here

An index gives a copy, an assignment changes what is here. Only elements that were assigned to are written back, by flush() and
close(): others of the same array may be written by somebody else meanwhile. What was fetched stays as it was until refresh().

    NEW -> OPEN -> CLOSED   close(), `with`

Bytes move by the transport's read_many() and write_many(), so that an array is wherever its transport leads: on one element or on
replicas, and after a loss on whatever is there again.

Promise: what a fetch that failed was to bring is not here; what a flush that failed was to write stays dirty, and so it is
written by the next one. tests/python/test_disagg_arrays.py and test_disagg_array_faults.py hold us to it.
"""
from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from weft.array import RemoteArray, _numpy

if TYPE_CHECKING:
    import numpy

    from weft._core import BlockingTransport

__all__ = ["ElementArray"]

BATCH = 4096


class ElementArray:
    """An array in the memory of an element, in C order. Indices are numbers, slices, `...` and None, as numpy's are; no lists and
    no masks.

    `timeout` is for how many seconds a fetch or a flush may take, and may be set at any time; None: the durl's timeout_ms, if it
    has one.
    """

    def __init__(self, trans: BlockingTransport, dtype: Any, shape: int | tuple[int, ...], offset: int = 0, *, timeout: float
                 | None = None) -> None:
        np = _numpy()
        self._closed = True  # until __init__ has finished
        self._trans = trans
        self.timeout = timeout
        self._array = RemoteArray(cast(Any, trans), dtype, shape, offset)  # computes what an index touches; moves nothing
        self._here = np.empty(self._array.shape, self._array.dtype)
        self._have = np.zeros(self._array.shape, bool)   # fetched, or written
        self._dirty = np.zeros(self._array.shape, bool)  # written here, not yet flushed
        self._bytes = memoryview(self._here.reshape(-1).view(np.uint8)) if self._here.size else memoryview(b"")
        self._closed = False

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The type of its elements."""
        return self._array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements it has in each dimension."""
        return self._array.shape

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self._array.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._array.nbytes

    @property
    def fetched(self) -> int:
        """How many elements are here."""
        return int(self._have.sum())

    @property
    def dirty(self) -> int:
        """How many elements were written and are not yet in the element's memory."""
        return int(self._dirty.sum())

    @property
    def closed(self) -> bool:
        """True once it is closed."""
        return self._closed

    def __len__(self) -> int:
        return len(self._array)

    def __repr__(self) -> str:
        return f"<disagg.ElementArray of {self.dtype}, {self.shape}{', closed' if self._closed else ''}>"

    # --- reading and writing

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the array is closed")

    def _runs(self, positions: Any) -> list[tuple[int, memoryview]]:
        """Elements at rising positions as (place in the element's memory, bytes here), those side by side in one."""
        np, item = _numpy(), self._array.itemsize
        cuts = np.flatnonzero(np.diff(positions) != 1) + 1
        firsts = positions[np.concatenate(([0], cuts))].tolist()
        lasts = positions[np.concatenate((cuts - 1, [len(positions) - 1]))].tolist()
        return [(self._array.offset + a * item, self._bytes[a * item:(b + 1) * item]) for a, b in zip(firsts, lasts)]

    def _move(self, many: Callable[..., None], positions: Any, moved: Callable[[Any], None]) -> None:
        """Elements at rising positions, in operations of bounded length within the time for all; `moved` hears of those that
        are done."""
        until = None if self.timeout is None else time.monotonic() + self.timeout
        pieces = self._runs(positions)
        done = 0
        for at in range(0, len(pieces), BATCH):
            some = pieces[at:at + BATCH]
            many(some, timeout=None if until is None else max(until - time.monotonic(), 1e-9))
            first, done = done, done + sum(len(piece) for _, piece in some) // self._array.itemsize
            moved(positions[first:done])

    def _fetch(self, key: Any) -> None:
        """Have what `key` touches."""
        np = _numpy()
        if self._have[key].all():
            return
        starts, shape, _ = self._array._touched(key)
        count = int(np.prod(shape, dtype=np.int64))
        run = count // len(starts)  # contiguous elements
        positions = (((starts - self._array.offset) // self._array.itemsize)[:, None] + np.arange(run)).reshape(-1)
        positions = np.unique(positions[~self._have.reshape(-1)[positions]])
        self._move(self._trans.read_many, positions, self._mark(self._have, True))

    @staticmethod
    def _mark(marks: Any, value: bool) -> Callable[[Any], None]:
        flat = marks.reshape(-1)  # a view, because marks is in C order

        def mark(positions: Any) -> None:
            flat[positions] = value
        return mark

    def __getitem__(self, key: Any) -> Any:
        self._check()
        self._array._touched(key)  # raises for a wrong index
        self._fetch(key)
        found = self._here[key]
        return found.copy() if isinstance(found, _numpy().ndarray) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check()
        self._array._touched(key)
        self._here[key] = value
        self._have[key] = True
        self._dirty[key] = True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("an array in another process cannot be had without a copy")
        out = self[...]
        return out if dtype is None else out.astype(dtype, copy=False)

    def flush(self) -> None:
        """Write back what was written. What it raises leaves the rest to be written by the next one."""
        np = _numpy()
        self._check()
        positions = np.flatnonzero(self._dirty.reshape(-1))
        if not len(positions):
            return
        self._move(self._trans.write_many, positions, self._mark(self._dirty, False))

    def refresh(self) -> None:
        """Forget what was fetched, so that it is fetched again; what was written and not yet flushed stays."""
        self._check()
        self._have[...] = self._dirty

    def close(self) -> None:
        """Write back what was written, and end it. If that fails it stays open."""
        if not self._closed:
            self.flush()
            self._closed = True

    def __enter__(self) -> ElementArray:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._closed = True  # an exception: do not write a half-made change

    def __del__(self) -> None:
        # not numpy's sum(): it imports a module, which fails when the interpreter ends
        lost = 0 if self._closed else self._dirty.tobytes().count(1)
        if lost:
            warnings.warn(f"{self!r} was not closed: {lost} elements that were written are lost", ResourceWarning, source=self)
