"""Array: the memory of an object, on the host or on a GPU, described in one way.

An object has memory if it has `__cuda_array_interface__`, the buffer protocol, or `__array_interface__`. The description is taken
once; the memory is held as long as the Array is.

tests/python/test_ucp_libs.py holds us to it.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

__all__ = ["Array", "asarray"]

_FULL_RO = 0x011C  # strides and format, read-only is enough


class _Buffer(ctypes.Structure):
    """Py_buffer, as the stable ABI has it."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_Buffer)]
_release.restype = None


def _address(view: memoryview) -> int:
    """Where its first item is: ctypes itself tells only of what can be written."""
    buffer = _Buffer()
    _get(view, ctypes.byref(buffer), _FULL_RO)
    try:
        return buffer.buf or 0
    finally:
        _release(ctypes.byref(buffer))


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """In the order of C; dimensions of one item have no say."""
    if 0 in shape:
        return True
    step = itemsize
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


def _itemsize(typestr: object) -> int:
    if not isinstance(typestr, str) or len(typestr) < 3 or not typestr[2:].isdigit():
        raise ValueError(f"the array's typestr is {typestr!r}, which is not a kind and a number of bytes")
    return int(typestr[2:])


class Array:
    """What lies where: `ptr`, `nbytes`, `shape`, `strides`, ... of an object's memory. `obj` is its owner."""

    __slots__ = ("_exposed", "_format", "_whole", "cuda", "itemsize", "nbytes", "ndim", "obj", "ptr", "readonly", "shape",
                 "strides")

    ptr: int
    readonly: bool
    obj: Any
    itemsize: int
    ndim: int
    cuda: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int

    def __init__(self, obj: Any) -> None:
        interface = None
        self._whole: Any = None  # the result of _memory() for the whole array
        if not isinstance(obj, (bytes, bytearray, memoryview)):
            try:
                interface = getattr(obj, "__cuda_array_interface__", None)
            except AttributeError:
                pass
        self.cuda = interface is not None
        if interface is None:
            try:
                view = memoryview(obj)
            except TypeError:
                interface = getattr(obj, "__array_interface__", None)
                if interface is None:
                    raise ValueError(f"{type(obj)!r} has no memory: it has neither the buffer protocol, nor "
                                     f"__array_interface__, nor "
                                     "__cuda_array_interface__") from None
            else:
                self.obj = view.obj
                self.itemsize, self.ndim, self.nbytes = view.itemsize, view.ndim, view.nbytes
                self.shape, self.strides = tuple(view.shape or ()), tuple(view.strides or ())
                self.readonly = view.readonly
                self.ptr = _address(view)
                self._exposed: Any = view
                self._format: str | None = view.format
                return
        self._from_interface(obj, interface)

    def _from_interface(self, obj: Any, interface: Any) -> None:
        try:
            shape, typestr, data = tuple(int(n) for n in interface["shape"]), interface["typestr"], interface["data"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the array interface of {type(obj)!r} is not whole: {error!r}") from error
        if any(n < 0 for n in shape):
            raise ValueError(f"the array interface of {type(obj)!r} has the shape {shape}")
        self.obj = obj
        self.itemsize = _itemsize(typestr)
        self.shape, self.ndim = shape, len(shape)
        strides = interface.get("strides")
        self.strides = _c_strides(shape, self.itemsize) if strides is None else tuple(int(n) for n in strides)
        if len(self.strides) != self.ndim:
            raise ValueError(f"the array interface of {type(obj)!r} has {self.ndim} dimensions and {len(self.strides)} strides")
        self.nbytes = self.itemsize
        for n in shape:
            self.nbytes *= n
        if not isinstance(data, tuple) or len(data) != 2:
            raise ValueError(f"the array interface of {type(obj)!r} does not say where the data is")
        self.ptr, self.readonly = int(data[0] or 0), bool(data[1])
        if not self.ptr and self.nbytes:
            raise ValueError(f"the array interface of {type(obj)!r} points nowhere")
        self._format = None
        self._exposed = obj if self.cuda else _foreign(self.ptr, self.nbytes, obj)

    @property
    def c_contiguous(self) -> bool:
        """True if it lies in one piece, the last dimension first."""
        return _is_contiguous(self.shape, self.strides, self.itemsize)

    @property
    def f_contiguous(self) -> bool:
        """True if it lies in one piece, the first dimension first."""
        return _is_contiguous(self.shape[::-1], self.strides[::-1], self.itemsize)

    @property
    def contiguous(self) -> bool:
        """True if it lies in one piece, in either order."""
        return self.c_contiguous or self.f_contiguous

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For numpy and others; not for memory on a GPU."""
        if self.cuda:
            raise AttributeError("the memory is on a GPU")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For what works on GPUs; not for memory of the host."""
        if not self.cuda:
            raise AttributeError("the memory is not on a GPU")
        return self._interface()

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        if self.cuda:
            raise BufferError("the memory is on a GPU")
        return memoryview(self._exposed)

    def _interface(self) -> dict[str, Any]:
        if self.obj is not self and self._format is None:
            own = getattr(self.obj, "__cuda_array_interface__" if self.cuda else "__array_interface__")
            return dict(own)
        told = {"shape": self.shape, "strides": self.strides, "typestr": _typestr(self._format or "B", self.itemsize),
                "data": (self.ptr, self.readonly), "version": 3}
        own = getattr(self.obj, "__array_interface__", None)  # of numpy, which can say more than a format does
        if isinstance(own, dict) and _itemsize(own.get("typestr", "")) == self.itemsize:
            told.update({name: own[name] for name in ("typestr", "descr") if name in own})
        return told

    def _memory(self, nbytes: int, writable: bool) -> Any:
        """Its first bytes, as what Weft takes. What it cannot be is said here."""
        if nbytes == self.nbytes and self._whole is not None and not (writable and self.readonly):
            return self._whole
        if not self.contiguous:
            raise ValueError("the array is not contiguous: copy it first, or use a view of whole rows")
        if writable and self.readonly:
            raise ValueError("the array is read-only: receive into one that can be written")
        if nbytes == self.nbytes:
            self._whole = self._exposed
            return self._exposed
        if not 0 <= nbytes < self.nbytes:
            raise ValueError(f"nbytes is {nbytes}, and the array has {self.nbytes}")
        if self.cuda:
            return _Part(self, 0, nbytes)
        return self._flat(nbytes)

    def _part(self, at: int, nbytes: int) -> Any:
        """Some of its bytes as they lie; on a GPU."""
        return _Part(self, at, nbytes)

    def _flat(self, nbytes: int) -> memoryview:
        """The first bytes as they lie, whatever they are; on the host."""
        if self._format == "B" and self.ndim == 1 and self.strides == (1,):
            return memoryview(self._exposed)[:nbytes]
        return memoryview(_foreign(self.ptr, nbytes, self)).cast("B")

    def _pieces(self, nbytes: int, most: int) -> Iterator[Any]:
        """The first bytes again, in pieces."""
        self._memory(nbytes, False)
        view = None if self.cuda else self._flat(nbytes)
        for at in range(0, nbytes, most):
            n = min(most, nbytes - at)
            yield _Part(self, at, n) if view is None else view[at:at + n]

    def __repr__(self) -> str:
        return f"<ucp Array of {self.nbytes} bytes{' on a GPU' if self.cuda else ''}>"


class _Part:
    """Some bytes of memory on a GPU."""

    def __init__(self, whole: Array, at: int, nbytes: int) -> None:
        self.whole = whole
        told = {"shape": (nbytes,), "strides": None, "typestr": "|u1", "data": (whole.ptr + at, whole.readonly), "version": 3}
        own = getattr(whole.obj, "__cuda_array_interface__", {})
        if "stream" in own:  # absent: the default stream is waited for; None: there is nothing to wait for
            told["stream"] = own["stream"]
        self.__cuda_array_interface__ = told


KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQNP", "u"), **dict.fromkeys("efd", "f"), "c": "S",
         "s": "S", "p": "S"}


def _typestr(form: str, itemsize: int) -> str:
    """The items of a buffer's format, as array interfaces have it. What has no word there is bytes without a meaning."""
    order = ">" if form[:1] in (">", "!") else "<"
    word = form.lstrip("@=<>!")
    kind = "c" if word in ("Zf", "Zd") else KINDS.get(word[-1:], "V") if word.lstrip("0123456789") == word[-1:] else "V"
    if word[:-1].isdigit() and kind != "S":
        kind = "V"  # several items in one
    return f"{'|' if itemsize == 1 or kind in 'SV' else order}{kind}{itemsize}"


def _foreign(ptr: int, nbytes: int, owner: Any) -> Any:
    """Memory at an address, which its owner keeps."""
    if not nbytes:
        return bytearray()
    made = (ctypes.c_ubyte * nbytes).from_address(ptr)
    made._owner = owner  # type: ignore[attr-defined]
    return made


def asarray(obj: Any) -> Array:
    """The Array of an object; an Array is its own."""
    return obj if isinstance(obj, Array) else Array(obj)
