"""The thread that drives a worker. It holds the worker only while it drives, so that one that nobody else holds can go.

    drives -> sleeps    when there is nothing to do: the worker is armed, and its descriptor becomes readable when something comes
    sleeps -> drives    something came
    sleeps -> watches   somebody else used the worker, which disarms it, and wakes this thread
    watches -> sleeps   who used it is going to wait, and has armed it (UCXWorker._hand_over())
    watches -> drives   who used it has not used it again for a TICK: it wanted it to go on
    any -> ended        stop(), the worker was closed, or nobody holds it

Threads that post or wait drive the worker themselves. To drive it here, too, for each of their messages would cost more than a
message takes: they would wait for each other.

tests/python/test_ucxx_threads.py holds us to it.
"""
from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .worker import UCXWorker

logger = logging.getLogger("ucx")

_JOIN = 10.0  # seconds that stopping the thread may take
TICK = 1      # milliseconds between two looks at who uses the worker


class Driver:
    """Started when it is made."""

    def __init__(self, worker: UCXWorker, polling: bool, on_start: Callable[[], object] | None) -> None:
        self._stop = False
        self.armed = False  # nobody has used the worker since it was armed
        self._sleeps = False  # it sleeps, or is about to: who uses the worker wakes it
        self._uses = 0      # how often others used it
        self._asked = False  # it is to drive, whatever it sees
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, args=(weakref.ref(worker), polling, on_start), daemon=True,
                                        name="ucxx progress")
        self._thread.start()

    def _run(self, ref: weakref.ref[UCXWorker], polling: bool, on_start: Callable[[], object] | None) -> None:
        try:
            if on_start is not None:
                on_start()
        except Exception as error:
            logger.error("%s when calling the progress thread's start callback: %s", type(error), error)
        while not self._stop:
            fd = self._turn(ref, polling)
            if fd is None:
                return
            if fd < 0:
                time.sleep(0)  # others want the lock, and the interpreter
            else:
                self._sleep(fd)

    def _sleep(self, fd: int) -> None:
        """Sleep or watch until there is something to do."""
        sleeping, watching = select.poll(), select.poll()
        sleeping.register(fd, select.POLLIN)
        for each in (sleeping, watching):
            each.register(self._event, select.POLLIN)
        while not self._stop:
            self._sleeps = True  # before the look: a use from here on writes the event
            if self.armed:
                ready = sleeping.poll()
                self._sleeps = False
                if self.armed and any(one == fd for one, _ in ready):
                    return
            else:
                self._sleeps = False
                uses = self._uses
                ready = watching.poll(TICK)
                if not ready and not self.armed and self._uses == uses:
                    return
            if any(one == self._event for one, _ in ready):
                os.eventfd_read(self._event)
                if self._asked:
                    self._asked = False
                    return

    def _turn(self, ref: weakref.ref[UCXWorker], polling: bool) -> int | None:
        """Drive it once. The descriptor to sleep on; less than 0: do not sleep; None: it has ended."""
        worker = ref()
        if worker is None or self._stop:
            return None
        try:
            with worker:
                inner = worker._inner
                if self._stop or not inner.initialized:
                    return None
                busy = inner.progress()
                self.armed = not (busy or polling) and bool(inner.arm())
                fd = int(inner.epoll_file_descriptor) if self.armed else -1
            worker._call_later()
            return fd
        except Exception as error:
            logger.error("the progress thread ends: %s: %s", type(error).__name__, error)
            return None

    def used(self) -> None:
        """Somebody uses the worker, and has the lock: it may not be armed after that."""
        if not self.is_this():
            self._uses += 1
            self.armed = False
            if self._sleeps:
                # what is over as soon as it is posted makes no descriptor readable
                self._sleeps = False
                os.eventfd_write(self._event, 1)

    def handed_over(self) -> None:
        """Who used it has armed it, and is going to wait."""
        self.armed = True
        os.eventfd_write(self._event, 1)

    def is_this(self) -> bool:
        """Does it call this?"""
        return threading.get_ident() == self._thread.ident

    def wake(self) -> None:
        """Have it drive."""
        self._asked = True
        os.eventfd_write(self._event, 1)

    def stop(self) -> None:
        """End it, and wait for that, unless it is this thread."""
        self._stop = True
        self.wake()
        if not self.is_this():
            self._thread.join(_JOIN)
            if self._thread.is_alive():
                logger.error("the progress thread has not ended within %d s: a function that it calls does not return", _JOIN)

    def __del__(self) -> None:
        os.close(self._event)
