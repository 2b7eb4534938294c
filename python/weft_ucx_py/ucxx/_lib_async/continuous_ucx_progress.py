"""The ways in which a worker of asyncio is driven: by a thread of its own, or by the event loop.

    thread           a thread drives it, and sleeps when there is nothing to do: messages move while the loop is busy
    thread-polling   the same, and it never sleeps
    blocking         the event loop drives it, and sleeps when there is nothing to do
    polling          the same, and it never sleeps

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import asyncio

from ucxx._lib.libucxx import UCXWorker

MODES = ("blocking", "polling", "thread", "thread-polling")


class ProgressTask:
    """What drives a worker, in one event loop or for all."""

    polling_mode = False

    def __init__(self, worker: UCXWorker, event_loop: asyncio.AbstractEventLoop | None) -> None:
        self.event_loop = event_loop
        self._start(worker)

    def _start(self, worker: UCXWorker) -> None:
        assert self.event_loop is not None
        worker.attach(self.event_loop, polling_mode=self.polling_mode)


class BlockingMode(ProgressTask):
    """The loop sleeps when there is nothing to do."""


class PollingMode(ProgressTask):
    """The loop never sleeps."""

    polling_mode = True


class ThreadMode(ProgressTask):
    """A thread of the worker's own, whichever loops there are."""

    def __init__(self, worker: UCXWorker, event_loop: asyncio.AbstractEventLoop | None = None,
                 polling_mode: bool = False) -> None:
        self.polling_mode = polling_mode
        super().__init__(worker, event_loop)

    def _start(self, worker: UCXWorker) -> None:
        worker.start_progress_thread(polling_mode=self.polling_mode)
