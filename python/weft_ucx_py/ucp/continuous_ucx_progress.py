"""Who drives the worker: an event loop that sleeps on it, or one that never sleeps.

The worker's runtime is attached to the loop, which then drives it by itself: completions wake the tasks that await them. That is
all of BlockingMode, UCX-Py's name for the mode in which an idle program uses no CPU. NonBlockingMode also keeps the loop from
ever sleeping, which costs a core, and saves the time that waking takes.

A task of progress belongs to one loop, and ends with the worker, with the loop, or when another loop asks for the worker.

tests/python/test_ucp_modes.py holds us to it.
"""
from __future__ import annotations

import asyncio
import weakref
from typing import Any


class ProgressTask:
    """What makes a worker progress in an event loop."""

    def __init__(self, worker: Any, event_loop: asyncio.AbstractEventLoop) -> None:
        self.worker: weakref.ref[Any] = weakref.ref(worker)
        self.event_loop = event_loop
        worker.attach(event_loop)

    def cancel(self) -> None:
        """Stop. What the runtime itself has with the loop ends when it is attached to another, or closed."""

    def __eq__(self, other: object) -> bool:
        """Two of them are equal if they are of one loop; so is one and the loop."""
        return self.event_loop is (other.event_loop if isinstance(other, ProgressTask) else other)

    def __hash__(self) -> int:
        return hash(self.event_loop)


class BlockingMode(ProgressTask):
    """The loop sleeps when there is nothing to do, and the worker's file descriptor wakes it."""


class NonBlockingMode(ProgressTask):
    """The loop never sleeps: it looks after the worker each time it comes around."""

    def __init__(self, worker: Any, event_loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(worker, event_loop)
        self._stopped = False
        # not call_soon(): a callback that is always ready would keep every await from spinning
        self._handle: asyncio.Handle = event_loop.call_later(0, self._look)

    def _look(self) -> None:
        worker = self.worker()
        if self._stopped or worker is None or not worker.initialized:
            return
        worker.runtime._turn()
        self._handle = self.event_loop.call_later(0, self._look)

    def cancel(self) -> None:
        self._stopped = True
        self._handle.cancel()
