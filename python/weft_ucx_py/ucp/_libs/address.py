"""UCXAddress: the bytes by which a worker is found. They come from other processes, so they are checked before they are one.

tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ..exceptions import UCXError

if TYPE_CHECKING:
    from .worker import UCXWorker

_HEAD = struct.Struct("<4sHH16s16s")  # magic, version, length of the text; id of the runtime; id of the machine
_MAGIC, _VERSION, _MOST = b"WFAD", 1, 4096


class UCXAddress(bytes):
    """Opaque bytes: they can be compared, hashed, pickled, and sent as they are."""

    def __new__(cls, data: bytes) -> UCXAddress:
        if not _HEAD.size < len(data) <= _MOST:
            raise UCXError(f"{len(data)} bytes are no address of a worker: give what UCXWorker.get_address() gave")
        magic, version, length, _, _ = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION or len(data) != _HEAD.size + length:
            raise UCXError("these bytes are no address of a worker, or not the whole of it: give what UCXWorker.get_address() "
                           "gave")
        return super().__new__(cls, data)

    @classmethod
    def from_buffer(cls, buffer: Any) -> UCXAddress:
        """From bytes that came from another process."""
        try:
            view = memoryview(getattr(buffer, "_exposed", buffer))  # an Array has _exposed
        except TypeError:
            raise TypeError(f"an address is made from bytes, and this is {buffer!r}") from None
        if view.nbytes > _MOST:
            raise UCXError(f"{view.nbytes} bytes are no address of a worker: give what UCXWorker.get_address() gave")
        return cls(bytes(view))

    @classmethod
    def from_worker(cls, worker: UCXWorker) -> UCXAddress:
        """That of a worker."""
        return worker.get_address()

    @property
    def buffer(self) -> bytes:
        """The bytes."""
        return bytes(self)

    @property
    def length(self) -> int:
        """How many there are."""
        return len(self)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return UCXAddress.from_buffer, (bytes(self),)

    def __repr__(self) -> str:
        return f"<ucp UCXAddress {self[8:14].hex()}>"
