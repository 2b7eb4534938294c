"""Operations of runtimes that have a thread of their own, awaited in an event loop.

The extension asks begin() for a future of the running loop, and for the desk where the runtime's thread puts what is over: one per loop, which the
loop watches by its fd. A loop that is closed while operations are under way leaves its desk behind; the next new one empties it.

tests/python/test_disagg_async.py holds us to it.
"""
from __future__ import annotations

import asyncio
import weakref
from typing import Any

from ._core import _Desk, _Posted

__all__ = ["Later", "begin"]


class Later(asyncio.Future[Any]):
    """What such an operation comes to. Cancelling it asks the operation to end."""

    _posted: _Posted | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Whoever awaits it hears of that at once; the operation ends in its own time."""
        if not super().cancel(msg):
            return False
        if self._posted is not None:
            self._posted.cancel()
        return True


_desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = weakref.WeakKeyDictionary()
_all: list[tuple[weakref.ref[asyncio.AbstractEventLoop], _Desk]] = []


def _new(loop: asyncio.AbstractEventLoop) -> _Desk:
    for entry in tuple(_all):
        whose = entry[0]()
        if whose is None or whose.is_closed():
            entry[1].forget()
            if entry[1].under_way == 0:
                try:
                    _all.remove(entry)
                except ValueError:
                    pass  # a loop of another thread was faster
    desk = _Desk()
    loop.add_reader(desk.fd, desk.drain)
    _desks[loop] = desk
    _all.append((weakref.ref(loop), desk))
    return desk


def begin() -> tuple[Later, _Desk]:
    """A future of the running loop, and its desk."""
    loop = asyncio.get_running_loop()
    return Later(loop=loop), _desks.get(loop) or _new(loop)
