"""Lines between the bridge to OpenWhisk and activations: containers call here, and prove that they are those that were invoked.

    CALLED -> JOINED     both sides have shown that they know the key that came with the invocation, without saying it
    CALLED -> CLOSED     a stranger, or one that is not wanted any more: it is told to leave
    JOINED -> ENDED      the other side hung up, or close()

    bridge         {"nonce": "..."}
    activation     {"n": 7, "proof": HMAC(key, "activation " + nonce), "nonce": "...", "activation": "..."}
    bridge         {"proof": HMAC(key, "launcher " + nonce)}, with "leave": true if it is not wanted; then lines for its agent

A stranger can hold a connection for PROVING seconds, and WAITING of them at a time. tests/python/test_on_openwhisk_line.py holds
us to it.
"""
from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import os
import socket
import time

from .bridge import LINE_MOST, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

PROVING = 10.0
WAITING = 256
HELLO = 4096


class Line:
    """To an activation that has joined."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, activation: str) -> None:
        self._reader, self._writer, self.activation = reader, writer, activation
        self.heard_at = time.monotonic()
        self.ended = self.held = False  # held: what it said waits for the launcher, and it is not read on

    def say(self, *lines: str) -> None:
        """For its agent."""
        if not self.ended:
            self._writer.write("".join(line + "\n" for line in lines).encode())

    async def lines(self) -> AsyncIterator[str]:
        """What it says, to its end."""
        rest = bytearray()
        try:
            while more := await self._reader.read(1 << 16):
                self.heard_at = time.monotonic()
                rest += more
                at = rest.rfind(b"\n", len(rest) - len(more)) + 1
                if at:
                    whole = bytes(rest[:at - 1])
                    del rest[:at]
                    for line in whole.split(b"\n"):
                        yield line.decode("utf-8", "replace")
                elif len(rest) > LINE_MOST:
                    return
        except OSError:
            pass

    def close(self) -> None:
        """Hang up, after what was said."""
        self.ended = True
        self._writer.close()


class Listener:
    """Where activations call. `wanted(n)` says whether one is, `joined(n, line)` takes its line, and returns what reads it."""

    def __init__(self, wanted: Callable[[int], bool], joined: Callable[[int, Line], Coroutine[Any, Any, None]]) -> None:
        self._wanted, self._joined = wanted, joined
        self._secret = os.urandom(32)
        self._server: asyncio.Server | None = None
        self._calling = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.place = ""

    def key(self, number: int) -> str:
        """What the activation of that process has to know."""
        return hmac.new(self._secret, str(number).encode(), "sha256").hexdigest()

    async def open(self, said: str, towards: tuple[str, int]) -> None:
        """Listen. `said` is HOST[:PORT], by which containers reach us; "": the address that leads to OpenWhisk. Failed."""
        host, port = parsed(said)
        host = host or await asyncio.to_thread(own_address, *towards)
        last: OSError | None = None
        for at in (host, None):  # the address itself, if it is one of ours; else all: it may be of something that forwards to us
            try:
                self._server = await asyncio.start_server(self._called, at, port, limit=1 << 17, family=socket.AF_UNSPEC if at
                                                          else socket.AF_INET)
                break
            except OSError as error:
                last = error
                if error.errno == 98:
                    break
        if self._server is None:
            raise Failed(f"port {port} of {host} cannot be listened on ({last and last.strerror}): --address HOST:PORT names "
                         "another")
        port = self._server.sockets[0].getsockname()[1]
        self.place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Take no more calls."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._calling >= WAITING:
            writer.close()
            return
        self._tasks.add(task)
        self._calling += 1
        reads = None
        try:
            reads = await asyncio.wait_for(self._prove(reader, writer), PROVING)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, asyncio.TimeoutError):
            pass
        finally:
            self._calling -= 1
            if reads is None:
                writer.close()
            self._tasks.discard(task)
        if reads is not None:
            await reads

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Coroutine[Any, Any, None] | None:
        """Who is it? What reads its lines from now on; None: nothing does."""
        nonce = os.urandom(16).hex()
        writer.write(json.dumps({"nonce": nonce}).encode() + b"\n")
        raw = b""
        while not raw.endswith(b"\n"):
            more = await reader.read(HELLO)
            raw += more
            if not more or len(raw) > HELLO:
                return None
        hello = json.loads(raw)
        number, theirs = hello["n"], hello["nonce"]
        if not isinstance(number, int) or not isinstance(theirs, str) or len(theirs) > 128:
            return None
        key = self.key(number).encode()
        wanted = hmac.new(key, f"activation {nonce}".encode(), "sha256").hexdigest()
        if not hmac.compare_digest(str(hello["proof"]).encode("utf-8", "replace"), wanted.encode()):
            return None
        answer: dict[str, Any] = {"proof": hmac.new(key, f"launcher {theirs}".encode("utf-8", "replace"), "sha256").hexdigest()}
        line = Line(reader, writer, str(hello.get("activation", ""))[:256])
        sock = writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # from here on nothing waits: what joined() says is the first that follows the answer
        wanted_here = self._wanted(number)
        writer.write(json.dumps(answer if wanted_here else {**answer, "leave": True}).encode() + b"\n")
        return self._joined(number, line) if wanted_here else None


def parsed(said: str) -> tuple[str, int]:
    """HOST[:PORT], [HOST]:PORT or an IPv6 address. Failed: it is none."""
    host, port = said, "0"
    if said.startswith("[") and "]" in said:
        host, _, rest = said[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else "0" if not rest else "x"
    elif said.count(":") == 1:
        host, _, port = said.partition(":")
    good = not any(c <= " " or c in "/@" for c in said) and "[" not in host
    good = good and port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536
    if not good or (said and not host):
        raise Failed(f"--address {said} is not HOST or HOST:PORT, by which containers reach this machine, nor none")
    return host, int(port)


def own_address(host: str, port: int) -> str:
    """The address that leads to OpenWhisk; if that is this machine, the one that leads out, since containers have a loopback of
    their own. Nothing is sent to find it."""
    found = ""
    try:
        every = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        every = []
    for family, kind, proto, _, address in [*every, (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("192.0.2.1", 9))]:
        try:
            with socket.socket(family, kind, proto) as s:
                s.connect(address)
                here: str = s.getsockname()[0]
        except OSError:
            continue
        found = found or here
        if not ipaddress.ip_address(here.partition("%")[0]).is_loopback:
            return here
    return found or "127.0.0.1"
