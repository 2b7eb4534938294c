"""Messages that have arrived and that nobody has received: what tag_probe() tells of them, and the connections that hold them.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

from typing import Any

import weft
from ucp._libs.objects import _numbers

from .tag import UCXXTag


class Came(set[Any]):
    """Connections that peers made by the worker's address. One that its peer has closed is kept while messages of it wait: they
    go with it."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: list[Any] = []

    def discard(self, wep: Any) -> None:
        """Its peer has closed it."""
        super().discard(wep)
        if _has_messages(wep):
            self._ended.append(wep)

    def forget(self) -> None:
        """Let go of those whose messages were all received."""
        if self._ended:
            self._ended = [wep for wep in self._ended if _has_messages(wep)]


def _has_messages(wep: Any) -> bool:
    try:
        return wep.probe(0, mask=0) is not None
    except weft.WeftError:
        return False


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
