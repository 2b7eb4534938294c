"""Messages that have arrived and that nobody has received: what tag_probe() tells of them.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

from typing import Any

from ucp._libs.objects import _numbers

from .tag import UCXXTag


class TagProbeResult:
    """What tag_probe() found: False if nothing."""

    __slots__ = ("_claim", "_found", "_number")

    def __init__(self, found: tuple[int, int] | None, claim: Any = None) -> None:
        self._found = found
        self._claim = claim
        self._number = next(_numbers)

    @property
    def matched(self) -> bool:
        """True if a message is there."""
        return self._found is not None

    @property
    def sender_tag(self) -> UCXXTag:
        """Its tag."""
        return UCXXTag(self._message()[0])

    @property
    def length(self) -> int:
        """Its length in bytes."""
        return self._message()[1]

    @property
    def handle(self) -> int | None:
        """A number, if the message was taken out of the matching (`remove`), else None."""
        self._message()
        return self._number if self._claim is not None else None

    def _message(self) -> tuple[int, int]:
        if self._found is None:
            raise AttributeError("No message was matched")
        return self._found

    def __bool__(self) -> bool:
        return self.matched

    def __repr__(self) -> str:
        if self._found is None:
            return "TagProbeResult(matched=False)"
        handle = f", handle={self.handle}" if self._claim is not None else ""
        return f"TagProbeResult(matched=True, sender_tag={self.sender_tag}, length={self.length}{handle})"
