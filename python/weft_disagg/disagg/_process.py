"""The runtime of this process for elements: one progress engine with a thread of its own, made when a transport first needs it.

Closed when the interpreter ends: threads that wait in it get a ClosedError. A forked child makes another.
"""
from __future__ import annotations

import atexit
import os
import threading

from weft import _core

__all__ = ["runtime"]

_lock = threading.Lock()
_own: _core.Runtime | None = None
_pid = 0


@atexit.register
def _end() -> None:
    if _own is not None and _pid == os.getpid():
        _own._close()


def runtime() -> _core.Runtime:
    """The one there is, or a new one."""
    global _own, _pid
    with _lock:
        if _own is None or _own.closed or _pid != os.getpid():
            _own, _pid = _core.Runtime(progress="thread", shards=1), os.getpid()
        return _own
