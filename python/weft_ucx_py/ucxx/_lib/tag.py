"""UCXXTag and UCXXTagMask: numbers of 64 bits, without sign, that are told from other numbers by their type."""
from __future__ import annotations

import operator
from typing import Any

_MOST = 2**64 - 1


class _Number:
    """A number of 64 bits, equal to others of its type and to plain numbers."""

    __slots__ = ("value",)

    value: int

    def __init__(self, value: int) -> None:
        number = operator.index(value)
        if not 0 <= number <= _MOST:
            raise OverflowError(f"{type(self).__name__} is {number}, which is not a number of 64 bits without sign")
        object.__setattr__(self, "value", number)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            return self.value == other.value
        if isinstance(other, int):
            return self.value == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return type(self), (self.value,)


class UCXXTag(_Number):
    """The tag of a message."""

    __slots__ = ()


class UCXXTagMask(_Number):
    """Which bits of a tag count."""

    __slots__ = ()


UCXXTagMaskFull = UCXXTagMask(_MOST)


def number(tag: UCXXTag | UCXXTagMask | int) -> int:
    """The number of a tag or mask; plain numbers are taken, too."""
    return tag.value if isinstance(tag, _Number) else UCXXTag(tag).value
