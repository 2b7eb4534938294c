"""What bridges share: the lines between the launcher and its bridge, over the socket that is standard input and output.

    opening -> open     the launcher has said `open`, the files of the program, and more
    open -> closed      the launcher said `close`, or is gone: the bridge cleans up, and ends its lines by ending itself

A bridge answers pings by itself, so its loop must not be held up for seconds. tests/python/test_on_dask.py holds us to it.
"""
from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

__all__ = ["Failed", "Launcher", "find_weft"]

LINE_MOST = 1 << 28


class Failed(Exception):
    """The run cannot go on; the sentence is for people."""


class Launcher:
    """The launcher's end of the lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.opening: dict[str, Any] = {}

    @classmethod
    async def connect(cls) -> Launcher:
        """Over the descriptor that this process was started with. What is printed goes to standard error from now on."""
        sock = socket.socket(fileno=os.dup(0))
        os.dup2(2, 1)
        return cls(*await asyncio.open_connection(sock=sock, limit=LINE_MOST))

    def say(self, **what: Any) -> None:
        """A line to the launcher."""
        self.pass_on(json.dumps(what))

    def pass_on(self, line: str) -> None:
        """A line that is one already."""
        self._writer.write(line.encode() + b"\n")

    async def lines(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What the launcher says, as text and as what it means; it ends with `close`, or with the launcher."""
        while True:
            try:
                raw = await self._reader.readline()
            except (OSError, ValueError):  # ValueError: a line that is too long
                return
            if not raw.endswith(b"\n"):
                return
            text = raw[:-1].decode()
            said = json.loads(text)
            if said.get("do") == "ping":
                self.say(did="pong")
            elif said.get("do") == "close":
                return
            else:
                yield text, said

    async def drained(self) -> None:
        """Everything said is on its way: the launcher may read slowly."""
        await self._writer.drain()

    async def close(self) -> None:
        """All is said."""
        try:
            await asyncio.wait_for(self._writer.drain(), 5)
        except (OSError, asyncio.TimeoutError):
            pass  # it is gone


def sentence(error: BaseException) -> str:
    """An exception in a line."""
    said = str(error).strip() or type(error).__name__
    return said if isinstance(error, Failed) else f"{type(error).__name__}: {said.splitlines()[0]}"


async def quietly(awaitable: Any) -> None:
    """What comes of it is of no interest."""
    try:
        await awaitable
    except Exception:
        pass


def warn(text: str) -> None:
    """To whoever runs the launcher."""
    print(text, file=sys.stderr, flush=True)


def find_weft(command: str) -> str:
    """The weft command of this machine. FileNotFoundError: there is none."""
    if command:
        return command
    beside = os.path.join(os.path.dirname(sys.executable), "weft")
    found = beside if os.access(beside, os.X_OK) else shutil.which("weft")
    if not found:
        raise FileNotFoundError(f"the command weft is neither beside {sys.executable} nor in PATH")
    return found
