"""What calls take for buffers and for streams of a GPU, for type checkers: the buffer protocol, DLPack, __cuda_array_interface__,
and streams of other packages."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, Union


class SupportsDLPack(Protocol):
    """An array or tensor of another package, on the host or on a GPU."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArray(Protocol):
    """An array of another package on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaStream(Protocol):
    """A stream of a GPU: its version of this protocol, and its handle."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class TorchStream(Protocol):
    """A stream of PyTorch's."""

    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    """A stream of CuPy's."""

    @property
    def ptr(self) -> int: ...


if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeAlias

    AnyBuffer: TypeAlias = Union[Buffer, SupportsDLPack, SupportsCudaArray]
    AnyStream: TypeAlias = Union[SupportsIndex, SupportsCudaStream, TorchStream, CupyStream]
