"""Operations of runtimes that have a thread of their own, awaited in an event loop.

The extension calls begin() for a future of the running loop, and for the loop's completion fd: the runtime's thread writes to it
when an operation is complete, and the loop watches it. A loop that is closed while operations are under way leaves its completion
fd behind; the next loop that needs one drops what is on it.

tests/python/test_disagg_async.py holds us to it.
"""
from __future__ import annotations

import asyncio
import weakref
from typing import Any

from ._core import _Awaited, _CompletionFd

__all__ = ["AwaitedFuture", "begin"]


class AwaitedFuture(asyncio.Future[Any]):
    """The result of such an operation. Cancelling it asks the operation to end."""

    _awaited: _Awaited | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Whoever awaits it learns of that at once; the operation ends in its own time."""
        if not super().cancel(msg):
            return False
        if self._awaited is not None:
            self._awaited.cancel()
        return True


_fds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _CompletionFd] = weakref.WeakKeyDictionary()
_all: list[tuple[weakref.ref[asyncio.AbstractEventLoop], _CompletionFd]] = []


def _new(loop: asyncio.AbstractEventLoop) -> _CompletionFd:
    for entry in tuple(_all):
        whose = entry[0]()
        if whose is None or whose.is_closed():
            entry[1].forget()
            if entry[1].under_way == 0:
                try:
                    _all.remove(entry)
                except ValueError:
                    pass  # a loop of another thread has removed it
    made = _CompletionFd()
    loop.add_reader(made.fd, made.drain)
    _fds[loop] = made
    _all.append((weakref.ref(loop), made))
    return made


def begin() -> tuple[AwaitedFuture, _CompletionFd]:
    """A future of the running loop, and the loop's completion fd."""
    loop = asyncio.get_running_loop()
    return AwaitedFuture(loop=loop), _fds.get(loop) or _new(loop)
