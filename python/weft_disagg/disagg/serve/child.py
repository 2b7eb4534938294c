"""The process that runs an action's code, seen from the one that speaks HTTP.

    STARTED --load()--> LOADED --run()--> LOADED ...        any --it dies, or kill()--> OVER

A socket to it carries lines (worker.py has them). A thread of ours reads them; nothing that comes is believed to be more than
bytes: a line that makes no sense is dropped, one that is too long ends the process. It is the leader of a process group, which
goes with it.

Promise: whoever waits for an answer gets one or Lost, by the time they named. tests/python/test_openwhisk_run.py and
test_openwhisk_hostile.py hold us to it.
"""
from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from _queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE = 80 << 20   # the most bytes of an answer
SOCKET = 3        # its number in the child


class Lost(Exception):
    """The process is over; the sentence says how it ended."""


class Late(Exception):
    """The time is over."""


def reap_others(own: int) -> None:
    """As the first process of a container: what the action left behind and has ended."""
    while os.getpid() == 1:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == own:
                return
            os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return


class Child:
    """A process and the lines to and from it. `out` and `err` are descriptors for its stdout and stderr."""

    def __init__(self, out: int, err: int) -> None:
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        self.inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._asks: dict[int, SimpleQueue[dict[str, Any] | None]] = {}
        self._asked = 0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._status: int | None = None
        self.loaded = False
        self._flooded = False
        every = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable, [sys.executable, "-P", "-m", "disagg.serve.worker"],
                                      {**os.environ, "WEFT_ELEMENT_FD": str(SOCKET)},
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, out, 1),
                              (os.POSIX_SPAWN_DUP2, err, 2), (os.POSIX_SPAWN_DUP2, theirs.fileno(), SOCKET)],
                setpgroup=0, setsigmask=[], setsigdef=every)
        self._reader = threading.Thread(target=self._read, name="disagg-child", daemon=True)
        self._reader.start()

    # --- lines

    def _read(self) -> None:
        rest = bytearray()
        while True:
            looked = len(rest)
            try:
                select.select([self._sock], [], [])
                more = self._sock.recv(1 << 18)
            except BlockingIOError:
                continue
            except (OSError, ValueError):
                break
            if not more:
                break
            rest += more
            if b"\n" not in more:
                if len(rest) > LINE:
                    self._flooded = True
                    self.kill()
                    break
                continue
            at = rest.rfind(b"\n", looked) + 1
            lines, rest = bytes(rest[:at]).split(b"\n"), rest[at:]
            for line in lines:
                self._take(line)
        with self._lock:
            asks, self._asks = self._asks, {}
        for one in asks.values():
            one.put(None)
        self.inbox.put(None)

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(said, dict) and said.get("did") in ("config", "add", "messages"):
            ask = said.get("ask")
            with self._lock:
                waiting = self._asks.pop(ask, None) if isinstance(ask, int) else None
            if waiting is not None:
                waiting.put(said)
        elif isinstance(said, dict):
            self.inbox.put(said)

    def send(self, said: dict[str, Any], until: float | None) -> None:
        """A line for it. Late: it does not read. Lost: it is over."""
        left = memoryview(json.dumps(said).encode() + b"\n")
        if not self._sending.acquire(timeout=-1 if until is None else max(until - time.monotonic(), 0)):
            raise Late
        try:
            begun = False
            while left:
                try:
                    left = left[self._sock.send(left):]
                    begun = True
                except BlockingIOError:
                    wait = None if until is None else until - time.monotonic()
                    if wait is not None and wait <= 0:
                        if begun:
                            self.kill()  # the child has half a line, and would misread the next one
                        raise Late from None
                    select.select([], [self._sock], [], wait)
                except (OSError, ValueError):
                    raise Lost(self.how()) from None
        finally:
            self._sending.release()

    def answer(self, until: float | None) -> dict[str, Any]:
        """The next line from it. Late, Lost."""
        try:
            said = self.inbox.get(timeout=None if until is None else max(until - time.monotonic(), 0))
        except Empty:
            raise Late from None
        if said is None:
            self.inbox.put(None)  # the next caller must see the end too
            raise Lost(self.how())
        return said

    def ask(self, said: dict[str, Any], seconds: float) -> dict[str, Any]:
        """A line that is answered by itself while an activation runs. Late, Lost."""
        until = time.monotonic() + seconds
        waiting: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        with self._lock:
            self._asked += 1
            number = self._asked
            self._asks[number] = waiting
        try:
            self.send({**said, "ask": number}, until)
            got = waiting.get(timeout=max(until - time.monotonic(), 0))
        except Empty:
            raise Late from None
        finally:
            with self._lock:
                self._asks.pop(number, None)
        if got is None:
            raise Lost(self.how())
        return got

    # --- its end

    def kill(self) -> None:
        """End it with all that it started, and wait for that."""
        with self._lock:
            if self._status is not None:
                return
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                try:
                    os.kill(self.pid, signal.SIGKILL)  # its group is not made yet
                except ProcessLookupError:
                    pass
            try:
                self._status = os.waitpid(self.pid, 0)[1]
            except ChildProcessError:
                self._status = 0

    def close(self) -> None:
        """Kill it, and forget its socket."""
        self.kill()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # our reader wakes up
        except OSError:
            pass
        self._reader.join(1.0)
        self._sock.close()

    def how(self) -> str:
        """How it ended, for people. It has closed its socket, so it is ending, or its code closed the socket: then it is
        ended."""
        until = time.monotonic() + 1.0
        while self._status is None and time.monotonic() < until:
            with self._lock:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG) if self._status is None else (0, 0)
                except ChildProcessError:
                    pid, status = self.pid, 0
                if pid:
                    self._status = status
                    try:
                        os.killpg(self.pid, signal.SIGKILL)  # processes that it left behind
                    except (ProcessLookupError, PermissionError):
                        pass
            time.sleep(0.002)
        if self._flooded:
            return f"the action's process said a line of more than {LINE >> 20} MiB, which is no result"
        if self._status is None:
            self.kill()
            return "the action's code closed a descriptor that was not its own, and its process was ended"
        code = os.waitstatus_to_exitcode(self._status)
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "signal"
            hint = ": was there too little memory for it?" if -code == signal.SIGKILL else ""
            return f"the action's process was ended by signal {-code} ({name}){hint}"
        return f"the action's process ended itself with status {code}"
