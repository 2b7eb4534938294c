"""Requests and answers over HTTP/1.1: as much of it as a runtime needs, with a bound on everything a stranger can make large or
slow.

One thread accepts, one more per connection, one request per connection: a connection that is kept open may be closed by one side
while the other begins to use it, and the one who invokes would take that for a failed activation.

Bounds: HEAD bytes and HEADERS lines within HEAD_TIME; a body of what its route allows within BODY_TIME; MOST connections, and
LARGE large bodies at a time. Whoever sends slowly is cut off by the time of the whole, and not of each piece. A body comes with
its Content-Length or in chunks; the same bounds hold for both. tests/python/test_openwhisk_hostile.py holds us to it.
"""
from __future__ import annotations

import json
import os
import select
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HEAD, HEADERS = 32 << 10, 100
HEAD_TIME, BODY_TIME, ANSWER_TIME, LINGER = 10.0, 60.0, 30.0, 2.0
MOST, LARGE, LARGE_FROM = 64, 2, 1 << 20
CHUNK_LINE = 4096

REASONS = {200: "OK", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
           408: "Request Timeout",
           409: "Conflict", 413: "Content Too Large", 431: "Request Header Fields Too Large",
           500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 505: "HTTP Version Not Supported"}
HEX = frozenset(b"0123456789abcdefABCDEF")
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class Refusal(Exception):
    """A request that is answered by an error: its status, and a sentence for people. `allow` names the methods that would
    have been right."""

    def __init__(self, status: int, sentence: str, allow: str = "") -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.allow = status, sentence, allow


class Gone(Exception):
    """The other side hung up: there is nobody to answer."""


class Request:
    """A request whose head has been read; the body follows."""

    def __init__(self, method: str, path: str, query: str, headers: dict[str, str]) -> None:
        self.method, self.path, self.query, self.headers = method, path, query, headers
        self.body = b""

    def json(self) -> dict[str, Any]:
        """The body, which has to be a JSON object."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError):
            raise Refusal(400, "the body is not JSON") from None
        if not isinstance(said, dict):
            raise Refusal(400, "the body is JSON, but not an object")
        return said


class Connection:
    """A socket and what of it has been read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""

    def more(self, until: float, what: str) -> bytes:
        """Some more bytes, by then."""
        left = until - time.monotonic()
        if left <= 0:
            raise Refusal(408, f"the {what} took too long to arrive")
        self.sock.settimeout(left)
        try:
            got = self.sock.recv(1 << 18)
        except TimeoutError:
            raise Refusal(408, f"the {what} took too long to arrive") from None
        except OSError:
            raise Gone from None
        if not got:
            raise Gone
        return got

    def head(self) -> Request:
        """The request up to its body."""
        until, got = time.monotonic() + HEAD_TIME, b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            if len(got) > HEAD:
                raise Refusal(431, f"the head of the request is longer than {HEAD} bytes")
            got += self.more(until, "head of the request")
        if end > HEAD:
            raise Refusal(431, f"the head of the request is longer than {HEAD} bytes")
        self.rest = got[end + 4:]
        first, *lines = got[:end].split(b"\r\n")
        if len(lines) > HEADERS:
            raise Refusal(431, f"the request has more than {HEADERS} headers")
        words = first.split(b" ")
        if len(words) != 3 or not words[1].startswith(b"/") or not words[1].isascii() or not set(words[0]) <= TOKEN:
            raise Refusal(400, "the first line is not that of a request: METHOD /PATH HTTP/1.1")
        if words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise Refusal(505 if words[2].startswith(b"HTTP/") else 400, "only HTTP/1.1 is spoken here")
        path, _, query = words[1].decode("ascii").partition("?")
        return Request(words[0].decode("ascii"), path, query, headers(lines))

    def body(self, request: Request, most: int, large: Callable[[], None]) -> bytes:
        """All of the body. large() is called before more than LARGE_FROM bytes of it are read, and may refuse them."""
        chunked = request.headers.get("transfer-encoding")
        text = request.headers.get("content-length", "0")
        if chunked is not None and (chunked.lower() != "chunked" or "content-length" in request.headers):
            raise Refusal(400, "a body comes with its Content-Length, or with Transfer-Encoding: chunked, and not with both")
        if not text.isdecimal() or not text.isascii() or len(text) > 15:
            raise Refusal(400, "Content-Length is not a number")
        length = int(text)
        if length > most:
            raise Refusal(413, f"the body has {length} bytes, and {most} are the most here")
        if length > LARGE_FROM:
            large()
        wanted = not self.rest if chunked else len(self.rest) < length
        if wanted and request.headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        until, got = time.monotonic() + BODY_TIME, bytearray(self.rest[:length])
        if chunked:
            return self.chunks(until, most, large)
        while len(got) < length:
            got += self.more(until, "body of the request")
        del got[length:]
        return bytes(got)

    def chunks(self, until: float, most: int, large: Callable[[], None]) -> bytes:
        """A body that says the size of each piece before it."""
        got, rest, asked = bytearray(), bytearray(self.rest), False
        while size := self.chunk_size(rest, until):
            if len(got) + size > most:
                raise Refusal(413, f"the body has more than {most} bytes, which are the most here")
            if not asked and len(got) + size > LARGE_FROM:
                large()
                asked = True
            while len(rest) < size + 2:
                rest += self.more(until, "body of the request")
            if rest[size:size + 2] != b"\r\n":
                raise Refusal(400, "a chunk of the body is longer than it says")
            got += memoryview(rest)[:size]
            del rest[:size + 2]
        for _ in range(HEADERS + 1):  # headers that follow the last chunk, which nobody needs here
            if not self.line(rest, until):
                return bytes(got)
        raise Refusal(431, f"more than {HEADERS} headers follow the body")

    def chunk_size(self, rest: bytearray, until: float) -> int:
        text = self.line(rest, until).partition(b";")[0].strip(b" \t")
        if not text or len(text) > 15 or not set(text) <= HEX:
            raise Refusal(400, "a chunk of the body does not begin with its size")
        return int(text, 16)

    def line(self, rest: bytearray, until: float) -> bytes:
        """A line between chunks, taken from `rest`."""
        while (end := rest.find(b"\r\n")) < 0 and len(rest) <= CHUNK_LINE:
            rest += self.more(until, "body of the request")
        if not 0 <= end <= CHUNK_LINE:
            raise Refusal(400, "a line between the chunks of the body is too long")
        found = bytes(rest[:end])
        del rest[:end + 2]
        return found

    def send(self, data: bytes) -> None:
        """All of it, within a bound."""
        self.sock.settimeout(ANSWER_TIME)
        try:
            self.sock.sendall(data)
        except OSError:
            raise Gone from None

    def close(self) -> None:
        """Hang up so that an answer still arrives at one who is sending."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LINGER
            while (left := until - time.monotonic()) > 0:
                self.sock.settimeout(left)
                if not self.sock.recv(1 << 18):
                    break
        except OSError:
            pass
        self.sock.close()


def headers(lines: list[bytes]) -> dict[str, str]:
    """Headers by their names in small letters."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or not set(name) <= TOKEN:
            raise Refusal(400, "a header of the request is none: NAME: VALUE")
        key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if key == "content-length" and found.get(key, text) != text:
            raise Refusal(400, "the request has two lengths")
        found[key] = text
    return found


def answer(status: int, said: object, allow: str = "") -> bytes:
    """An answer as bytes."""
    body = (said if isinstance(said, str) else json.dumps(said)).encode("utf-8", "surrogatepass") + b"\n"
    more = f"Allow: {allow}\r\n" if allow else ""
    head = (f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"{more}Connection: close\r\n\r\n")
    return head.encode("ascii") + body


class Server:
    """Listens, and lets `route` say what is allowed, and `handle` what the answer is: a status, and an object or JSON as text.

    route(request) -> the most bytes its body may have; both may raise Refusal. run() until stop(), which a signal handler may
    call.
    """

    def __init__(self, host: str, port: int, route: Callable[[Request], int],
                 handle: Callable[[Request], tuple[int, object]]) -> None:
        self.route, self.handle = route, handle
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind((host, port))
            self._sock.listen(128)
        except BaseException:
            self._sock.close()
            raise
        self.port: int = self._sock.getsockname()[1]
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self._large = threading.BoundedSemaphore(LARGE)
        self._idle = threading.Condition()
        self._n = 0

    def stop(self) -> None:
        """Accept no more."""
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    def run(self) -> None:
        """Accept until stop()."""
        watched: list[Any] = [self._sock, self._wake_r]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._wake_r in ready:
                break
            try:
                sock, _ = self._sock.accept()
            except OSError:  # the client hung up, or there are no descriptors for now
                time.sleep(0.01)
                continue
            with self._idle:
                full = self._n >= MOST
                if not full:
                    self._n += 1
            if full:
                sock.close()
            else:
                try:
                    threading.Thread(target=self._serve, args=(sock,), daemon=True).start()
                except RuntimeError:  # no more threads can be started now
                    sock.close()
                    with self._idle:
                        self._n -= 1
        self._sock.close()

    def finish(self, seconds: float) -> None:
        """Wait until those who are being answered have their answers."""
        with self._idle:
            self._idle.wait_for(lambda: self._n == 0, seconds)

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        try:
            connection.send(self._one(connection))
        except Gone:
            pass
        finally:
            connection.close()
            with self._idle:
                self._n -= 1
                self._idle.notify_all()

    def _one(self, connection: Connection) -> bytes:
        taken: list[bool] = []

        def large() -> None:
            if not self._large.acquire(blocking=False):
                raise Refusal(503, "others are sending large requests; try again in a moment")
            taken.append(True)
        try:
            request = connection.head()
            most = self.route(request)
            try:
                request.body = connection.body(request, most, large)
            finally:
                if taken:
                    self._large.release()
            return answer(*self.handle(request))
        except Refusal as no:
            return answer(no.status, {"error": no.sentence}, no.allow)
        except Gone:
            raise
        except Exception as error:  # an error in our code: the client still gets an answer
            return answer(500, {"error": f"the runtime itself failed: {type(error).__name__}"})
