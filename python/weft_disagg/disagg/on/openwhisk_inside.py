"""The part of a run that is in a container of OpenWhisk: an activation, in which an agent starts one process of the run.

The zip of the action has the program of the run, as the launcher's lines in a file, and a __main__.py that calls run() here. The
parameter "__weft" says what to do: {"n": 7, "open": {...}, "line": "10.0.0.5:4711", "key": "..."} or, where containers cannot
reach the launcher, {"n": 7, "open": {...}, "lines": [...]}. The agent is `weft run --agent`.

    with a line       CALLING -> JOINED     the bridge and we have shown each other that we know the key; its lines are for the
                                            agent, and the agent's for it
                      JOINED -> OVER        the agent ended, the line did, or the time of the activation is over
    without one       the lines that came are all there are; what the agent says is the activation's result, and what it prints
                      its log

The agent is in a session of its own and ends with its input: also if this process is killed, as OpenWhisk does at the deadline.
tests/python/test_on_openwhisk.py and test_on_openwhisk_line.py hold us to it.
"""
from __future__ import annotations

import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time

from .bridge import find_weft

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..action import LibdAction

CALLING = 20.0   # seconds until the launcher has to be reached
PROVING = 10.0
PING = 5.0       # to an agent that nobody else pings
CLOSING = 5.0
HANGING = 60.0   # seconds in which a launcher that does not read just now can read the rest
LATE = 5.0       # told to end so many seconds before its deadline, or later: because of it
LINE_MOST = 1 << 28
HIDDEN = ("__OW_API_HOST", "__OW_API_KEY", "WEFT_ELEMENT_CALLBACK", "WEFT_ELEMENT_CALLBACK_KEY", "WEFT_LAUNCHER")


def left() -> float:
    """Seconds until the deadline of the activation."""
    deadline = os.environ.get("__OW_DEADLINE", "")
    if not (deadline.isascii() and deadline.isdecimal() and len(deadline) < 16):
        return float("inf")
    return int(deadline) / 1000 - time.time()


class Unable(Exception):
    """The process of the run cannot be started here; the sentence is for people."""


def run(action: LibdAction, program: str) -> dict[str, Any]:
    """All of an activation; its result."""
    said = action.kw.get("weft")
    if not isinstance(said, dict) or not isinstance(said.get("n"), int) or not isinstance(said.get("open"), dict):
        return {"error": "this action belongs to a run of `weft run --on openwhisk`, which invokes it itself"}
    try:
        if "line" in said:
            return Joined(action, said, program).run()
        return Alone(action, said, program).run()
    except Unable as error:
        return {"error": str(error)}


def own_address() -> str:
    """The address by which others reach this container: `weft element serve` knows it."""
    from urllib.parse import urlsplit
    return urlsplit(os.environ.get("WEFT_ELEMENT_CALLBACK", "")).hostname or "127.0.0.1"


class Part:
    """An agent, and the one process that it has. What is said by and to it differs: Joined and Alone."""

    def __init__(self, action: LibdAction, said: dict[str, Any], program: str) -> None:
        self.action, self.said, self.program = action, said, program
        self.number: int = said["n"]
        self.agent: subprocess.Popen[bytes] | None = None
        self.status: int | None = None
        self.ended = False
        self._writing = threading.Lock()
        assert action.cv is not None
        self.cv = action.cv

    # --- the agent

    def begin(self) -> None:
        """Start the agent, and give it the program."""
        opening = self.said["open"]
        try:
            command = [find_weft(str(opening.get("weft") or "")), "run", "--agent", "--address", own_address(), "--python",
                       sys.executable]
            env = {name: value for name, value in os.environ.items() if name not in HIDDEN}
            self.agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                                          start_new_session=True)
        except OSError as error:
            raise Unable(f"the image cannot run elements: {error.strerror or error}. docker/openwhisk/Dockerfile of Weft makes "
                         "one that can") from None
        threading.Thread(target=self._hear, args=(self.agent.stdout,), name="weft-agent", daemon=True).start()
        threading.Thread(target=self._complain, args=(self.agent.stderr,), name="weft-agent-errors", daemon=True).start()
        self.write(json.dumps(opening))
        for line in self._program():
            self.write(line)
        self.write('{"do": "begin"}')

    def _program(self) -> Iterator[str]:
        with open(self.program, encoding="utf-8") as f:
            for line in f:
                yield line.rstrip("\n")

    def write(self, *lines: str) -> None:
        """For the agent."""
        agent = self.agent
        if agent is None or agent.stdin is None:
            return
        try:
            with self._writing:
                for line in lines:
                    agent.stdin.write(line.encode() + b"\n")
                agent.stdin.flush()
        except (OSError, ValueError):
            pass  # it has ended: its output says so

    def _hear(self, stream: Any) -> None:
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if said.get("did") == "over" and said.get("n") == self.number:
                self.status = said.get("status")
            self.heard(line, said)
            if self.status is not None:
                break
        self.end()

    def _complain(self, stream: Any) -> None:
        for raw in stream:
            text = raw.decode("utf-8", "replace").rstrip("\n")
            self.heard(json.dumps({"did": "note", "text": text}), {"did": "note", "text": text})

    def end(self) -> None:
        """Nothing more is to be waited for."""
        with self.cv:
            self.ended = True
            self.cv.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it has ended, or the activation has to."""
        with self.cv:
            return self.cv.wait_for(lambda: self.ended or self.action.terminated, seconds)

    def gone(self) -> dict[str, Any]:
        """Why there is an end without the process's own: a line for the bridge."""
        if not self.action.terminated:
            return {"did": "gone", "why": "its agent ended"}
        return {"did": "gone", "why": "its container was told to end", "late": left() < LATE}

    def close(self) -> None:
        """End the agent with all that it has started, and wait for that."""
        agent = self.agent
        if agent is None:
            return
        try:
            with self._writing:
                agent.stdin.close()  # type: ignore[union-attr]  # it takes that for `close`
        except OSError:
            pass
        try:
            agent.wait(CLOSING)
        except subprocess.TimeoutExpired:
            agent.kill()  # its guard cleans up
            agent.wait()

    # --- what differs

    def heard(self, line: str, said: dict[str, Any]) -> None:
        """A line of the agent, in one of its two threads."""
        raise NotImplementedError


class Joined(Part):
    """With a line to the launcher."""

    def run(self) -> dict[str, Any]:
        """All of it."""
        sock = self._join()
        if sock is None:
            return {"left": "the launcher did not want it any more"}
        self.sock = sock
        self._sending = threading.Lock()
        try:
            self.begin()
            threading.Thread(target=self._listen, name="weft-line", daemon=True).start()
            self.wait()
            if self.status is None:
                self._tell(json.dumps(self.gone()))
            self.close()
        except Unable as error:
            self._tell(json.dumps({"did": "gone", "why": str(error), "unable": True}))
            raise
        finally:
            self._hang_up()
        if self.status is None:
            return {"error": "the process had not ended when the activation did"}
        return {"status": 0} if self.status == 0 else {"error": f"the process ended with status {self.status}"}

    def _hang_up(self) -> None:
        """So that all that was said arrives: the launcher hangs up when it has read it. A ping that reaches a closed socket would
        throw away what it has not read."""
        until = time.monotonic() + (1.0 if self.action.terminated else max(1.0, min(HANGING, left() - LATE)))
        try:
            self.sock.shutdown(socket.SHUT_WR)
            while (seconds := until - time.monotonic()) > 0:
                self.sock.settimeout(seconds)
                if not self.sock.recv(1 << 16):
                    break
        except OSError:
            pass
        self.sock.close()

    def _join(self) -> socket.socket | None:
        """Call the launcher. None: it does not want this process any more."""
        host, _, port = str(self.said["line"]).rpartition(":")
        until, pause, why = time.monotonic() + CALLING, 0.1, ""
        while not self.action.terminated:
            try:
                sock = socket.create_connection((host.strip("[]"), int(port)), max(until - time.monotonic(), 0.1))
                return self._prove(sock)
            except (OSError, ValueError) as error:
                why = "it did not answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
            if time.monotonic() + pause >= until:
                break
            self.wait(pause)
            pause = min(2 * pause, 2.0)
        raise Unable(f"this container could not reach the launcher at {self.said['line']} "
                     f"({why or 'the activation was ended'}): `--address HOST:PORT` of weft run names an address that "
                     "containers reach it by; `--address none` runs programs without memory elements where there is none")

    def _prove(self, sock: socket.socket) -> socket.socket | None:
        """Show each other that both know the key, which stays here. ValueError: it is not the launcher."""
        try:
            sock.settimeout(PROVING)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            key, ours = str(self.said["key"]).encode(), os.urandom(16).hex()
            theirs = json.loads(read_line(sock))["nonce"]
            proof = hmac.new(key, f"activation {theirs}".encode(), "sha256").hexdigest()
            hello = {"n": self.number, "proof": proof, "nonce": ours, "activation": os.environ.get("__OW_ACTIVATION_ID", "")}
            sock.sendall(json.dumps(hello).encode() + b"\n")
            answer = json.loads(read_line(sock))
            wanted = hmac.new(key, f"launcher {ours}".encode(), "sha256").hexdigest()
            if not hmac.compare_digest(str(answer.get("proof", "")), wanted):
                raise ValueError("what answers there is not the launcher")
            if answer.get("leave"):
                sock.close()
                return None
            sock.settimeout(None)
            return sock
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            sock.close()
            if isinstance(error, OSError):
                raise
            raise ValueError("what answers there is not the launcher") from None

    def _tell(self, line: str) -> None:
        try:
            with self._sending:
                self.sock.sendall(line.encode() + b"\n")
        except OSError:
            self.end()  # the launcher is gone

    def heard(self, line: str, said: dict[str, Any]) -> None:
        """A line of the agent."""
        self._tell(line)

    def _listen(self) -> None:
        """What the launcher says."""
        rest = bytearray()
        try:
            while more := self.sock.recv(1 << 16):
                rest += more
                at = rest.rfind(b"\n", len(rest) - len(more)) + 1
                if at:
                    self.write(*bytes(rest[:at - 1]).decode().split("\n"))
                    del rest[:at]
                elif len(rest) > LINE_MOST:
                    break
        except (OSError, ValueError):
            pass
        self.end()


class Alone(Part):
    """Without a line: for compute elements that use no memory and invoke nothing."""

    def __init__(self, action: LibdAction, said: dict[str, Any], program: str) -> None:
        super().__init__(action, said, program)
        self.told: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """All of it."""
        self.begin()
        self.write(*(json.dumps(line) for line in self.said.get("lines") or []))
        while not self.wait(PING):
            self.write('{"do": "ping"}')
        if self.status is None:
            self.told.append(self.gone())
        self.close()
        told = {"said": self.told}
        return told if self.status == 0 else {"error": told}

    def heard(self, line: str, said: dict[str, Any]) -> None:
        """A line of the agent."""
        did = said.get("did")
        if did == "printed":
            stream = sys.stderr if said.get("stream") == 2 else sys.stdout
            try:
                print(text_of(said), file=stream, flush=True)
            except UnicodeEncodeError:  # a half of a letter, which is no text
                print(text_of(said).encode("utf-8", "replace").decode(), file=stream, flush=True)
        elif did == "asked":
            no = {"ok": False, "error": "nothing can be invoked: the run was started with --address none, and has no line to "
                                        "its launcher"}
            self.write(json.dumps({"do": "answer", "n": self.number, "question": said.get("question"),
                                   "line": json.dumps(no) + "\n"}))
        elif did != "pong":
            self.told.append(said)


def text_of(said: dict[str, Any]) -> str:
    """What an element printed. An agent gives bytes that are no text in another form: OpenWhisk's logs are text."""
    if "base64" in said:
        from base64 import b64decode
        return b64decode(str(said["base64"])).decode("utf-8", "replace")
    return str(said.get("line", ""))


def read_line(sock: socket.socket, most: int = 4096) -> bytes:
    """One short line, and nothing after it. ValueError: it is longer."""
    got = b""
    while not got.endswith(b"\n"):
        more = sock.recv(1)  # what follows is not ours to read yet
        if not more:
            raise ConnectionResetError(104, "it hung up")
        got += more
        if len(got) > most:
            raise ValueError("a line that is too long")
    return got
