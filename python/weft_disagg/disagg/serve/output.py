"""What an action prints on its way out of the container, and the line that ends an activation in it.

The action's process and all that it starts have the write ends of two pipes as their stdout and stderr; a thread for each passes
on what comes, by lines, without secrets. Because pipes keep order, everything written before the result was said is in the pipe
when the result is read: mark() passes on exactly that, ends a line that was left open, and writes the sentinel.
tests/python/test_openwhisk_run.py holds us to it.
"""
from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
from collections import deque

SENTINEL = b"XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX\n"
HELD = 64 << 10   # the most bytes of an unfinished line
KEPT = 16 << 10   # bytes of it that may begin a secret: longer than any secret
SHORTEST = 8      # a shorter secret could also be part of ordinary words
SECRETS = 256


class Secrets:
    """Texts that nobody shall read in a log or an error: the latest SECRETS of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, bytes] = {}

    def add(self, text: object) -> None:
        """A secret."""
        if isinstance(text, str) and len(text) >= SHORTEST:
            with self._lock:
                after = {key: value for key, value in self._all.items() if key != text}
                after[text] = text.encode("utf-8", "surrogatepass")
                while len(after) > SECRETS:
                    del after[next(iter(after))]
                self._all = after  # a new object, because another thread may still read the old one

    def add_durl(self, durl: object) -> None:
        """The token of a durl, which is the key of its memory."""
        if isinstance(durl, str):
            for part in durl.split(";"):
                if part.startswith("token,"):
                    self.add(part[6:])

    def clean(self, text: str) -> str:
        """Without them."""
        for secret in self._all:
            text = text.replace(secret, "(secret)")
        return text

    def clean_bytes(self, data: bytes) -> bytes:
        """Without them."""
        for secret in self._all.values():
            data = data.replace(secret, b"(secret)")
        return data


class Output:
    """One stream: `fd` is where it goes, `write_fd` what the action's process is given."""

    def __init__(self, fd: int, secrets: Secrets) -> None:
        self.fd, self.secrets = fd, secrets
        self._read_fd, self.write_fd = os.pipe()
        self._wake_r, self._wake_w = os.pipe()
        self._marks: deque[tuple[str, bool, threading.Event]] = deque()
        self._held = b""
        self._fresh = True  # the last write ended a line
        threading.Thread(target=self._pump, name=f"output-{fd}", daemon=True).start()

    def mark(self, text: str = "", sentinel: bool = True) -> threading.Event:
        """Pass on what is there, then `text`, then the sentinel on a line of its own. What is returned is set when that is
        done."""
        done = threading.Event()
        self._marks.append((text, sentinel, done))
        os.write(self._wake_w, b"x")
        return done

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        poll.register(self._wake_r, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake_r in ready:
                os.read(self._wake_r, 1)
                text, sentinel, done = self._marks.popleft()
                self._drain()
                self._end_line()
                self._write(self.secrets.clean(text).encode("utf-8", "backslashreplace"))
                if sentinel:
                    self._end_line()
                    self._write(SENTINEL)
                done.set()
            elif self._read_fd in ready:
                self._feed(os.read(self._read_fd, 1 << 16))

    def _drain(self) -> None:
        """What is in the pipe now, and no more: a process that was left behind may write for ever."""
        left: int = struct.unpack("i", fcntl.ioctl(self._read_fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        while left > 0:
            got = os.read(self._read_fd, left)
            left -= len(got)
            self._feed(got)

    def _feed(self, data: bytes) -> None:
        self._held += data
        cut = self._held.rfind(b"\n") + 1
        if len(self._held) - cut > HELD:
            self._held = self.secrets.clean_bytes(self._held)
            cut = max(len(self._held) - KEPT, 0)
        if cut:
            ready, self._held = self._held[:cut], self._held[cut:]
            self._write(self.secrets.clean_bytes(ready))

    def _end_line(self) -> None:
        held, self._held = self._held, b""
        self._write(self.secrets.clean_bytes(held))
        if not self._fresh:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        if data:
            self._fresh = data.endswith(b"\n")
        while left:
            try:
                left = left[os.write(self.fd, left):]
            except BlockingIOError:
                select.select([], [self.fd], [])
            except OSError:
                return  # nobody reads the output any more
