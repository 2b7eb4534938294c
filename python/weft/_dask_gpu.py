"""What of Dask's messages is on a GPU: which frames are, what memory such frames are received into, and which arrays become such
frames.

Dask's family of serializers "cuda" makes frames with `__cuda_array_interface__`, of arrays of CuPy and Numba, of RMM and cuDF. It
has none for tensors of PyTorch, and those for CuPy need RMM or Numba to be installed; register() adds what is missing.

tests/python/test_dask_gpu.py holds us to it.
"""
from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._core import Memory, memory_kinds

if TYPE_CHECKING:
    cuda_deserialize: Any
    cuda_serialize: Any
    dask_deserialize: Any
    dask_serialize: Any
else:
    from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

_HOST = (bytes, bytearray, memoryview)


def nbytes(frame: Any) -> int | None:
    """How long a frame is that is on a GPU; None for any other."""
    if isinstance(frame, _HOST):
        return None
    interface = getattr(frame, "__cuda_array_interface__", None)
    if interface is None:
        return None
    n = int(interface["typestr"][2:])
    for extent in interface["shape"]:
        n *= int(extent)
    return n


# --- memory that is received into ----------------------------------------------------------------------------------------------

def _rmm(n: int) -> Any:
    return importlib.import_module("rmm").DeviceBuffer(size=n)


def _cupy(n: int) -> Any:
    return importlib.import_module("cupy").empty(n, dtype="u1")


def _weft(n: int) -> Any:
    return Memory(n, "cuda")


_MAKERS: dict[str, Callable[[int], Any]] = {"rmm": _rmm, "cupy": _cupy, "weft": _weft}
CHOICES = ("auto", *_MAKERS, "none")
_ARRAYS = ("rmm", "cupy", "numba", "torch")  # without one of them no array can be made of a frame


class Allocator:
    """Makes memory of a GPU, of the first of these packages that can be imported; the import is done when memory is wanted."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = list(names)

    def __call__(self, n: int) -> Any:
        while True:
            try:
                return _MAKERS[self._names[0]](n)
            except ImportError:
                if len(self._names) == 1:
                    raise
                del self._names[0]


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def allocator(choice: str) -> Allocator | None:
    """What makes memory for frames of a GPU, as the configuration has it; None where there is no GPU, or none is wanted."""
    if choice not in CHOICES:
        raise ValueError(f"distributed.comm.weft.gpu-memory is {choice!r} in Dask's configuration, which is none of "
                         f"{', '.join(CHOICES)}")
    # a process that looks for a GPU cannot be forked and use it in the child: no look without a reason
    if choice == "none" or (choice == "auto" and not any(map(_installed, _ARRAYS))) or "cuda" not in memory_kinds():
        return None
    there = tuple(name for name in _MAKERS if choice in ("auto", name) and (name == "weft" or _installed(name)))
    if not there:
        raise ValueError(f"distributed.comm.weft.gpu-memory is {choice!r} in Dask's configuration, and {choice} is not installed")
    return Allocator(there)


# --- arrays that become frames of a GPU ----------------------------------------------------------------------------------------

def register() -> None:
    """Have Dask's serializers know what they lack. Nothing is imported before there is an array of that package."""
    for name, function in (("cupy", _register_cupy), ("cupyx", _register_cupy), ("torch", _register_torch)):
        for dispatch in (cuda_serialize, cuda_deserialize, dask_serialize, dask_deserialize):
            dispatch.register_lazy(name, function)


@functools.cache
def _register_cupy() -> None:
    try:
        importlib.import_module("distributed.protocol.cupy")
        return
    except ImportError:  # neither RMM nor Numba is there
        pass
    cupy, numpy = importlib.import_module("cupy"), importlib.import_module("numpy")

    def to_gpu_frames(x: Any) -> tuple[dict[str, Any], list[Any]]:
        if not (x.flags.c_contiguous or x.flags.f_contiguous):
            x = cupy.ascontiguousarray(x)
        header = {"shape": x.shape, "typestr": x.dtype.str, "strides": tuple(x.strides)}
        return header, [cupy.ndarray((x.nbytes,), dtype="u1", memptr=x.data, strides=(1,))]

    def from_gpu_frames(header: dict[str, Any], frames: list[Any]) -> Any:
        (frame,) = frames
        return cupy.ndarray(header["shape"], dtype=header["typestr"], memptr=cupy.asarray(frame).data, strides=header["strides"])

    def to_host_frames(x: Any) -> tuple[dict[str, Any], list[Any]]:
        header, frames = to_gpu_frames(x)
        return header, [memoryview(cupy.asnumpy(frame)) for frame in frames]

    def from_host_frames(header: dict[str, Any], frames: list[Any]) -> Any:
        return from_gpu_frames(header, [cupy.asarray(numpy.asarray(memoryview(frame)).view("u1")) for frame in frames])

    for dispatch, made in ((cuda_serialize, to_gpu_frames), (cuda_deserialize, from_gpu_frames), (dask_serialize, to_host_frames),
                           (dask_deserialize, from_host_frames)):
        dispatch.register(cupy.ndarray, made)


@functools.cache
def _register_torch() -> None:
    importlib.import_module("distributed.protocol.torch")  # Dask's own, for tensors of the host
    torch = importlib.import_module("torch")
    kinds = (torch.Tensor, torch.nn.Parameter)

    def is_plain(t: Any) -> bool:
        return type(t) in kinds and bool(t.is_cuda) and t.layout is torch.strided and not t.is_quantized

    def to_gpu_frames(t: Any) -> tuple[dict[str, Any], list[Any]]:
        whole = [t, t.grad] if t.is_leaf and t.grad is not None else [t]
        if not all(map(is_plain, whole)):
            raise NotImplementedError(f"a {type(t).__name__} that is not dense, or not on a GPU")
        header = {"tensors": [(str(x.dtype).removeprefix("torch."), tuple(x.shape)) for x in whole],
                  "requires_grad": t.requires_grad, "parameter": type(t) is torch.nn.Parameter}
        plain = [x.detach().resolve_conj().resolve_neg().contiguous() for x in whole]
        return header, [x.reshape(-1).view(torch.uint8) for x in plain]

    def from_gpu_frames(header: dict[str, Any], frames: list[Any]) -> Any:
        made = []
        for (name, shape), frame in zip(header["tensors"], frames):
            raw = torch.as_tensor(frame, device="cuda") if nbytes(frame) else torch.empty(0, dtype=torch.uint8, device="cuda")
            made.append(raw.view(getattr(torch, name)).reshape(shape))
        t = made[0]
        t = torch.nn.Parameter(t, requires_grad=header["requires_grad"]) if header["parameter"] else t.requires_grad_(
            header["requires_grad"])
        if len(made) > 1:
            t.grad = made[1]
        return t

    of_dask = {kind: dask_serialize.dispatch(kind) for kind in kinds}

    def to_host_frames(t: Any) -> Any:
        if t.is_cuda:
            raise NotImplementedError("Dask's own serializer is for tensors of the host: this one is pickled")
        return next(of_dask[kind] for kind in type(t).__mro__ if kind in of_dask)(t)

    cuda_serialize.register(kinds, to_gpu_frames)
    cuda_deserialize.register(kinds, from_gpu_frames)
    dask_serialize.register(kinds, to_host_frames)
