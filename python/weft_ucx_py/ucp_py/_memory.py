"""Memory that messages are sent from and received into: buffer_region, and ucp_msg, which is a region with a message in it.

    empty -> host | cuda | object     alloc_host(), alloc_cuda(), populate_ptr(); or a receive without memory, which makes its own
    any -> empty                      free_host(), free_cuda(), free_mem(); what is still under way keeps the memory until its end

tests/python/test_ucp_py_memory.py holds us to it.
"""
from __future__ import annotations

from typing import Any

import weft

from . import _cuda, _types


def _char(c: Any) -> int:
    if isinstance(c, (bytes, bytearray, str)) and len(c) == 1:
        c = ord(c)
    if isinstance(c, bool) or not isinstance(c, int) or not -128 <= c <= 255:
        raise weft.InvalidError(f"{c!r} is no character: give one of bytes or text, or a number up to 255")
    return c & 255


def _length(n: Any, what: str = "len") -> int:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{what} is {n!r}, and has to be a number of bytes")
    if n < 0:
        raise weft.InvalidError(f"{what} is {n}, and there is no such number of bytes")
    return n


class buffer_region:
    """Memory of a message: allocated here, or that of an object."""

    def __init__(self) -> None:
        self._memory: Any = None     # an object with the buffer protocol, or GPU memory
        self._capacity = 0           # its size in bytes
        self._nbytes = 0             # how many of these bytes were received
        self._note = b"raw"          # the type of the received bytes
        self._object: Any = None     # the object that owns the memory, or that was made from it
        self._cuda = False
        self._own = True             # the memory belongs to no object

    @property
    def is_cuda(self) -> bool:
        """True while its memory is a GPU's."""
        return self._cuda

    def _set(self, memory: Any, note: bytes, nbytes: int, obj: Any = None, cuda: bool = False) -> None:
        self._memory, self._note, self._nbytes, self._capacity, self._object, self._cuda = memory, note, nbytes, nbytes, obj, cuda
        self._own = obj is None

    def _received(self, note: bytes, nbytes: int) -> None:
        """A message has been put into its memory."""
        self._note, self._nbytes = note, nbytes
        if self._own:
            self._object = None

    def _raw(self) -> None:
        """Its memory is nothing but memory, all of it."""
        if self._own:
            self._note, self._nbytes, self._object = b"raw", self._capacity, None

    def alloc_host(self, len: int) -> None:
        """Allocate that many bytes of ordinary memory, all of them zero; what it had is let go of. weft.NoMemoryError where
        there are not so many."""
        n = _length(len)
        try:
            memory = bytearray(n)
        except (MemoryError, OverflowError):
            raise weft.NoMemoryError(f"there is no memory for {n} bytes") from None
        self._set(memory, b"raw", n)

    def alloc_cuda(self, len: int) -> None:
        """Allocate that many bytes on the GPU; weft.UnsupportedError where there is none."""
        n = _length(len)
        self._set(_cuda.alloc(n), b"raw", n, cuda=True)

    def free_host(self) -> None:
        """Let go of the memory that alloc_host() gave."""
        if self._cuda:
            raise weft.StateError("the memory is a GPU's: free_cuda() frees it")
        self._set(None, b"raw", 0)

    def free_cuda(self) -> None:
        """Let go of the memory that alloc_cuda() gave."""
        if self._memory is not None and not self._cuda:
            raise weft.StateError("the memory is not a GPU's: free_host() frees it")
        self._set(None, b"raw", 0)

    def populate_ptr(self, pyobj: Any) -> None:
        """Use the memory of an object: bytes, bytearray, str, int, float, an array, or whatever else has the buffer protocol and
        lies in one
        piece."""
        note, data, n = _types.encode(pyobj)
        self._set(data, note, n, pyobj, hasattr(data, "__cuda_array_interface__"))

    def return_obj(self) -> Any:
        """The object whose memory it is, or that was received into it; memory of a GPU is a weft.Memory, which arrays can be
        made of."""
        if self._object is None and self._memory is not None:
            if self._cuda:
                return self._memory
            memory = self._memory
            if self._nbytes < self._capacity:
                memory = bytearray(memoryview(memory).cast("B")[:self._nbytes])
            self._object = _types.decode(self._note, memory)
        return self._object

    # --- for trying things out

    def _host(self, n: int) -> memoryview:
        if self._memory is None or self._cuda:
            raise weft.StateError("there is no ordinary memory here: call alloc_host() first")
        view = memoryview(self._memory).cast("B")
        if n > view.nbytes:
            raise weft.InvalidError(f"len is {n}, and the memory has {view.nbytes} bytes")
        return view[:n]

    def _device(self, n: int) -> Any:
        if not self._cuda:
            raise weft.StateError("there is no memory of a GPU here: call alloc_cuda() first")
        if n > self._capacity:
            raise weft.InvalidError(f"len is {n}, and the memory has {self._capacity} bytes")
        return self._memory

    def set_host_buffer(self, c: Any, len: int) -> None:
        """Fill the first bytes with a character."""
        n = _length(len)
        view = self._host(n)
        if view.readonly:
            raise weft.InvalidError("the memory belongs to an object that cannot be written to")
        view[:] = bytes([_char(c)]) * n
        self._raw()

    def check_host_buffer(self, c: Any, len: int) -> int:
        """How many of the first bytes are not that character."""
        n = _length(len)
        return n - bytes(self._host(n)).count(_char(c))

    def set_cuda_buffer(self, c: Any, len: int) -> None:
        """Fill the first bytes on the GPU with a character."""
        n = _length(len)
        _cuda.fill(self._device(n), _char(c), n)
        self._raw()

    def check_cuda_buffer(self, c: Any, len: int) -> int:
        """How many of the first bytes on the GPU are not that character."""
        n = _length(len)
        return n - _cuda.read(self._device(n), n).count(_char(c))


class ucp_msg:
    """A message: memory to send from or receive into, that of a buffer_region, or its own with None."""

    def __init__(self, buffer_reg: buffer_region | None = None) -> None:
        if buffer_reg is not None and not isinstance(buffer_reg, buffer_region):
            raise TypeError(f"a ucp_msg is made of a buffer_region or of None, and not of a {type(buffer_reg).__name__}: "
                            "see buffer_region.populate_ptr()")
        self._region = buffer_region() if buffer_reg is None else buffer_reg
        self._length = 0
        self._request: Any = None  # the last communication

    @property
    def is_cuda(self) -> bool:
        """True while its memory is a GPU's."""
        return self._region.is_cuda

    def alloc_host(self, len: int) -> None:
        """Allocate that many bytes of ordinary memory."""
        self._region.alloc_host(len)

    def alloc_cuda(self, len: int) -> None:
        """Allocate that many bytes on the GPU; weft.UnsupportedError where there is none."""
        self._region.alloc_cuda(len)

    def set_mem(self, c: Any, len: int) -> None:
        """Fill the first bytes with a character, wherever they are."""
        (self._region.set_cuda_buffer if self.is_cuda else self._region.set_host_buffer)(c, len)

    def check_mem(self, c: Any, len: int) -> int:
        """How many of the first bytes are not that character, wherever they are."""
        return (self._region.check_cuda_buffer if self.is_cuda else self._region.check_host_buffer)(c, len)

    def free_host(self) -> None:
        """Let go of ordinary memory."""
        self._region.free_host()

    def free_cuda(self) -> None:
        """Let go of memory of a GPU."""
        self._region.free_cuda()

    def free_mem(self) -> None:
        """Let go of its memory, wherever it is."""
        (self._region.free_cuda if self.is_cuda else self._region.free_host)()

    def get_comm_len(self) -> int:
        """How many bytes were sent or received last."""
        return self._length

    def get_obj(self) -> Any:
        """The object that was received, or that is to be sent."""
        return self._region.return_obj()

    def query(self) -> int:
        """1 if nothing is under way with it any more, 0 while something is. Drives everything once."""
        return 1 if self._request is None or self._request.done() else 0
