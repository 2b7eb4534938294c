"""RemoteMemory and UCXIO: a peer's memory by its key, and the same as a file. tests/python/test_ucx_api_rma.py holds us to it."""
from __future__ import annotations

import io
import select
from collections.abc import Callable
from typing import Any

from ..exceptions import UCXBaseException, UCXError
from .arr import Array, asarray
from .objects import Callback
from .request import UCXRequest
from .rma import Args, Kwargs, UCXRkey, get_nb, get_nbi, put_nb, put_nbi

_SPINS = 100  # how often a UCXIO polls before it sleeps


class RemoteMemory:
    """A piece of the owner's memory: accesses by offsets into it, of a buffer or the first `size` bytes of one."""

    def __init__(self, rkey: UCXRkey, base: int, length: int) -> None:
        if not isinstance(rkey, UCXRkey):
            raise TypeError(f"{rkey!r} is no UCXRkey: unpack one with UCXEndpoint.unpack_rkey()")
        self._rkey = rkey
        self._base = base
        self._length = length

    @property
    def address(self) -> int:
        """Where it begins, at the owner."""
        return self._base

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return self._length

    def _where(self, memory: Any, size: int, offset: int) -> tuple[Array, int, int]:
        array = asarray(memory)
        n = size or array.nbytes
        if offset < 0 or n < 0 or offset + n > self._length:
            raise IndexError(f"{n} bytes at {offset} are not inside of the {self._length} of this remote memory")
        return array, n, self._base + offset

    def put_nb(self, memory: Any, cb_func: Callback | None, cb_args: Args = None, cb_kwargs: Kwargs = None, offset: int = 0,
               size: int = 0) -> UCXRequest | None:
        """Write a buffer to it: see put_nb()."""
        array, n, at = self._where(memory, size, offset)
        return put_nb(array, n, at, self._rkey, cb_func, cb_args, cb_kwargs)

    def get_nb(self, memory: Any, cb_func: Callback | None, cb_args: Args = None, cb_kwargs: Kwargs = None, offset: int = 0,
               size: int = 0) -> UCXRequest | None:
        """Read from it into a buffer: see get_nb()."""
        array, n, at = self._where(memory, size, offset)
        return get_nb(array, n, at, self._rkey, cb_func, cb_args, cb_kwargs)

    def put_nbi(self, memory: Any, size: int = 0, offset: int = 0) -> bool:
        """Write a buffer to it: see put_nbi()."""
        array, n, at = self._where(memory, size, offset)
        return put_nbi(array, n, at, self._rkey)

    def get_nbi(self, memory: Any, size: int = 0, offset: int = 0) -> bool:
        """Read from it into a buffer: see get_nbi()."""
        array, n, at = self._where(memory, size, offset)
        return get_nbi(array, n, at, self._rkey)


class UCXIO(io.RawIOBase):
    """Memory of another process as a file: reads and writes wait, and drive the worker meanwhile."""

    def __init__(self, dest: int, length: int, rkey: UCXRkey) -> None:
        super().__init__()
        self._memory = RemoteMemory(rkey, dest, length)
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Where to go on: from the start, from here, or from the end. Places before the first byte are the first, and places
        after the last are the end, as in UCX-Py."""
        self._open_or_raise()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence is {whence!r}, which is none of 0, 1, 2")
        at = offset + (0, self._at, self._memory.length)[whence]
        self._at = min(max(at, 0), self._memory.length)
        return self._at

    def tell(self) -> int:
        """Where it goes on."""
        self._open_or_raise()
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there is something; how many bytes that were."""
        self._open_or_raise()
        array = asarray(buffer)
        n = min(array.nbytes, max(self._memory.length - self._at, 0))
        if n:
            self._wait(lambda done: self._memory.get_nb(array, done, offset=self._at, size=n))
            self._at += n
        return n

    def write(self, data: Any) -> int:
        """Write as much of it as there is room for; how many bytes that were."""
        self._open_or_raise()
        array = asarray(data)
        n = min(array.nbytes, max(self._memory.length - self._at, 0))
        if n:
            self._wait(lambda done: self._memory.put_nb(array, done, offset=self._at, size=n))
            self._at += n
        return n

    def _open_or_raise(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def _wait(self, post: Callable[[Callback], UCXRequest | None]) -> None:
        worker = self._memory._rkey._ep._worker
        if not worker._by_hand:
            raise UCXError("a UCXIO waits, and an event loop drives its worker: use RemoteMemory there")
        ended: list[UCXBaseException | None] = []
        if post(lambda _, error: ended.append(error)) is None:
            return
        idle = 0
        while not ended:
            idle = 0 if worker.progress() else idle + 1
            if idle > _SPINS and worker.arm():
                select.select([worker.epoll_file_descriptor], [], [])
        if ended[0] is not None:
            raise ended[0]
