"""What has memory to send from and receive into, for type checkers: the buffer protocol, DLPack, or __cuda_array_interface__."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Union


class SupportsDLPack(Protocol):
    """An array or tensor of another package, on the host or on a GPU."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArray(Protocol):
    """An array of another package on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeAlias

    AnyBuffer: TypeAlias = Union[Buffer, SupportsDLPack, SupportsCudaArray]
