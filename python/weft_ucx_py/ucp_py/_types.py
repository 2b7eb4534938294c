"""What objects are on their way: bytes, and a note of their type. No pickle, and nothing of the interpreter's own memory.

The note is ASCII, in the header of the message: `raw`, `bytes`, `bytearray`, `str`, `int`, `float`, `bool`, `none`, or `array`
with numpy's name of the type, the order and the shape, such as `array <f8 C 3,4`. What came is believed only as far as it fits
the bytes beside it. tests/python/test_ucp_py.py holds us to it.
"""
from __future__ import annotations

import re
import struct
from typing import Any

import weft

from ._cuda import part

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

NOTE_MOST = 1024
_PLAIN = frozenset((b"raw", b"bytes", b"bytearray", b"str", b"int", b"float", b"bool", b"none"))
_ARRAY = re.compile(rb"array ([<>|][biufcSUVmM?]\d{1,9}(?:\[\d{0,4}[a-zA-Z]{1,2}\])?) ([CF]) ((?:\d{1,18}(?:,\d{1,18}){0,31})?)")


def _refuse(obj: Any) -> weft.InvalidError:
    return weft.InvalidError(f"a {type(obj).__name__} cannot be sent: bytes, bytearray, str, int, float and arrays can. "
                             "Make bytes of it first, in a way that "
                             "the receiver can check")


def _array_note(typestr: str, fortran: bool, shape: Any) -> bytes:
    note = f"array {typestr} {'F' if fortran else 'C'} {','.join(map(str, shape))}".encode()
    if not _ARRAY.fullmatch(note) or typestr[1] == "V":
        raise weft.InvalidError(f"an array of {typestr} cannot be sent: numbers, dates and strings of a fixed length can")
    return note


def encode(obj: Any) -> tuple[bytes, Any, int]:
    """The note of an object, an object with the memory of its bytes, and how many those are."""
    if obj is None:
        return b"none", b"", 0
    if isinstance(obj, bool):
        return b"bool", b"\1" if obj else b"\0", 1
    if isinstance(obj, str):
        data = obj.encode("utf-8", "surrogatepass")
        return b"str", data, len(data)
    if isinstance(obj, int):
        data = obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)
        return b"int", data, len(data)
    if isinstance(obj, float):
        return b"float", struct.pack("<d", obj), 8
    if isinstance(obj, bytes):
        return b"bytes", obj, len(obj)
    if isinstance(obj, bytearray):
        return b"bytearray", obj, len(obj)
    if numpy is not None and isinstance(obj, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(obj)
        if array.dtype.hasobject or array.dtype.names:
            raise weft.InvalidError(f"an array of {array.dtype} cannot be sent: numbers, dates and strings of a fixed length can")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise weft.InvalidError("the array is not contiguous: copy it first, with numpy.ascontiguousarray()")
        return _array_note(array.dtype.str, not array.flags.c_contiguous,
                           array.shape), array.reshape(-1, order="A").view("u1"), array.nbytes
    interface = getattr(obj, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        shape, typestr, strides = tuple(interface["shape"]), str(interface["typestr"]), interface.get("strides")
        nbytes = int(typestr[2:])
        for i, n in reversed(tuple(enumerate(shape))):
            if strides is not None and n > 1 and strides[i] != nbytes and 0 not in shape:
                raise weft.InvalidError("the array on the GPU is not contiguous: copy it first")
            nbytes *= int(n)
        return _array_note(typestr, False, shape), obj, nbytes
    try:
        view = memoryview(obj)
    except TypeError:
        raise _refuse(obj) from None
    if not view.contiguous:
        raise weft.InvalidError(f"the memory of a {type(obj).__name__} is not contiguous: copy it first")
    return b"raw", obj, view.nbytes


def cut(note: bytes, data: Any, nbytes: int, most: int, cuda: bool) -> tuple[Any, int]:
    """The first `most` bytes, where an object can be cut; of others a part would be no object, and they go whole.

    (Programs give sys.getsizeof(), which is less than the bytes of an array that is a view.)
    """
    if note in (b"raw", b"bytes", b"bytearray"):
        nbytes = min(nbytes, most)
    elif not cuda and isinstance(data, bytes) and len(data) == nbytes:
        return data, nbytes
    return part(data, nbytes) if cuda else memoryview(data).cast("B")[:nbytes], nbytes


def check(note: bytes, nbytes: int) -> None:
    """ValueError if this is no note, or none of an object of that many bytes."""
    if note in _PLAIN:
        most = {b"float": 8, b"bool": 1, b"none": 0}.get(note)
        if (most is not None and nbytes != most) or (note == b"int" and nbytes == 0):
            raise ValueError(f"{nbytes} bytes are no {note.decode()}")
        return
    match = _ARRAY.fullmatch(note) if len(note) <= NOTE_MOST else None
    if not match or match[1][1:2] == b"V":
        raise ValueError("the message has a note that is none of ours: is the peer's version of it another?")
    size = int(re.match(rb"\d+", match[1][2:])[0]) * (4 if match[1][1:2] == b"U" else 1)  # type: ignore[index]
    for n in match[3].split(b",") if match[3] else ():
        size *= int(n)
    if size != nbytes:
        raise ValueError(f"{nbytes} bytes are not the array that the message says they are")
    if numpy is not None:
        try:
            known = numpy.dtype(match[1].decode()).itemsize > 0
        except TypeError:
            known = False
        if not known:
            raise ValueError(f"the message is an array of {match[1].decode()}, which numpy does not know")


def decode(note: bytes, memory: Any) -> Any:
    """The object of a note that was checked, and of its bytes."""
    if note == b"raw" or note == b"bytearray":
        return memory
    if note == b"bytes":
        return memory if isinstance(memory, bytes) else bytes(memory)
    if note == b"none":
        return None
    if note == b"bool":
        return bytes(memory) != b"\0"
    if note == b"str":
        return str(memory, "utf-8", "surrogatepass")
    if note == b"int":
        return int.from_bytes(memory, "little", signed=True)
    if note == b"float":
        return struct.unpack("<d", memory)[0]
    match = _ARRAY.fullmatch(note)
    if numpy is None or match is None:
        return memory
    shape = tuple(map(int, match[3].split(b","))) if match[3] else ()
    return numpy.frombuffer(memory, dtype=numpy.dtype(match[1].decode())).reshape(shape, order="F" if match[2] == b"F" else "C")


def memory_for(note: bytes, nbytes: int) -> Any:
    """Memory to receive an object into; None where bytes serve best."""
    if note in (b"bytes", b"str", b"int", b"float", b"bool", b"none"):
        return None
    if numpy is not None and note.startswith(b"array"):
        return numpy.empty(nbytes, dtype="u1")
    return bytearray(nbytes)
