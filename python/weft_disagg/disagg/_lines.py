"""Lines between an element and its launcher: over a socket that the process inherits, whose number is in WEFT_ELEMENT_FD, or from
stdin and to the descriptor after --out.

The socket gets a high number, and what is there is looked at before each use: what a program closes and opens must not get lines
that are for the launcher. A process that the program forked says nothing. Nothing is loaded that an element does not need.
tests/python/test_disagg_element.py and tests/python/test_disagg_hostile.py hold us to it.
"""
from __future__ import annotations

import os
import sys

from ._text import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE_MOST = 1 << 28
HIGH = 100  # the first descriptor that the socket may have: programs use the low ones
TEXT_MOST = 64 << 10  # letters of an error, and of a traceback


class Refused(Exception):
    """What the element was told, or what it returned, makes no sense; the sentence is for people."""


class Lost(OSError):
    """The descriptor of the socket is closed, or is something else now; the sentence is for people."""


def which(fd: int) -> tuple[int, int]:
    """What a descriptor leads to."""
    try:
        is_now = os.fstat(fd)
    except OSError:
        return 0, 0
    return is_now.st_dev, is_now.st_ino


class Lines:
    """Lines from and to a launcher."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self.fd_in, self.fd_out = fd_in, fd_out
        self._were = {fd: which(fd) for fd in (fd_in, fd_out)}
        self._pid = os.getpid()
        self._rest = bytearray()
        self._secrets: set[str] = set()

    def read(self) -> bytes | None:
        """The next line; None: there is no more."""
        looked = 0
        while True:
            at = self._rest.find(b"\n", looked)
            if at >= 0:
                line = bytes(self._rest[:at])
                del self._rest[:at + 1]
                return line
            looked = len(self._rest)
            if looked > LINE_MOST:
                raise Refused(f"a line of more than {LINE_MOST} bytes came from the launcher")
            more = os.read(self._same(self.fd_in), 1 << 16)
            if not more:
                return None
            self._rest += more

    def _same(self, fd: int) -> int:
        if which(fd) != self._were[fd]:
            raise Lost(f"the program closed descriptor {fd}, which is its connection to the launcher, or put another file in its "
                       "place; a program closes only what it has opened")
        return fd

    @property
    def forked(self) -> bool:
        """Whether this is not the process that the launcher started, but a copy that the program made."""
        return os.getpid() != self._pid

    def know(self, durl: object) -> None:
        """A durl whose token, the key of the memory, nobody shall see."""
        if isinstance(durl, str):
            self._secrets.update(part[6:] for part in durl.split(";") if part.startswith("token,") and len(part) > 6)

    def clean(self, text: str) -> str:
        """Without the tokens of durls."""
        for secret in self._secrets:
            text = text.replace(secret, "(token)")
        return text

    def told(self, text: str) -> str:
        """An error or a traceback for people: of bounded length, without tokens and without zeros, which end texts elsewhere."""
        text = self.clean(text)
        if len(text) > TEXT_MOST:
            half, left_out = TEXT_MOST // 2, len(text) - TEXT_MOST
            text = f"{text[:half]}\n... ({left_out} letters are left out here) ...\n{text[-half:]}"
        return text.replace("\0", "\\0")

    def say(self, line: str) -> None:
        """Write a line, all of it. A forked copy says nothing. Lost: there is nothing left to write to."""
        if self.forked:
            return
        left = memoryview(line.encode() + b"\n")
        self._same(self.fd_out)
        while left:
            left = left[os.write(self.fd_out, left):]


def message(line: bytes) -> dict[str, Any]:
    """What a line of the launcher says."""
    try:
        said = loads(line)
    except (ValueError, RecursionError):
        raise Refused("what came from the launcher is no JSON") from None
    if not isinstance(said, dict):
        raise Refused("what came from the launcher is no JSON object")
    return said


WANTED = {"str": "a text", "dict": "an object", "list": "a list of texts", "int": "a number"}


def field(said: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A member of the launcher's line, if it is of the right kind."""
    value = said.get(name, default)
    if not isinstance(value, kind) or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
        wanted = WANTED[kind.__name__]
        raise Refused(f"the launcher said {name!r}: {dumps(value)[:80]}, which should be {wanted}")
    return value


def descriptors(argv: list[str]) -> tuple[int, int]:
    """Where lines come from and go to."""
    text = os.environ.pop("WEFT_ELEMENT_FD", None)
    if text is None and argv[:1] == ["--out"] and len(argv) == 2:
        text = argv[1]
    if text is None or not text.isdecimal() or not text.isascii() or len(text) > 9:
        sys.exit("disagg.element: this is what launchers run, with a socket in WEFT_ELEMENT_FD, or --out FD and lines on stdin; "
                 "a directory of elements is run by `weft run DIR`")
    fd = int(text)
    try:
        os.set_inheritable(fd, False)  # processes that the program starts must not inherit it
        fd = lifted(fd)
    except OSError as error:
        sys.exit(f"disagg.element: descriptor {fd} cannot be used: {error.strerror}")
    return (0 if argv else fd), fd


def lifted(fd: int) -> int:
    """The same socket with a high number: some programs close the low ones, and open files that then have their numbers."""
    high = HIGH
    while which(high) != (0, 0):
        high += 1
    try:
        os.dup2(fd, high, inheritable=False)
    except OSError:  # the limit is lower
        return fd
    os.close(fd)
    return high
