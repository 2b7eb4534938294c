"""One request to an HTTP server that may be slow, broken or hostile, and its answer: for openwhisk.py, invoker.py, _monitor.py
and on/openwhisk_api.py.

    NAME -> CONNECTED -> ASKED -> ANSWERED   every step within one deadline, also against a server that trickles

A redirect is an answer like any other: it is never followed. What goes wrong is a Problem with a sentence, and with what is known
of the request: one that was never sent cannot have been carried out. The Authorization header is in no exception, nor in the
variables of the frames that one keeps.

tests/python/test_openwhisk_api.py holds us to it.
"""
from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Answer", "Problem", "Secret", "Server"]

BODY_MOST = 1 << 20


class Problem(Exception):
    """There is no answer. `asked`: the request was sent, at least in part, and may have been carried out."""

    def __init__(self, said: str, asked: bool) -> None:
        super().__init__(said)
        self.asked = asked


class Secret:
    """A text that does not show itself."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "(secret)"


class Answer:
    """What came back: a status, headers by their lower-case names, and the body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


def left(until: float) -> float:
    """Seconds that are left; TimeoutError: none."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


class Timed(io.RawIOBase):
    """A socket whose reads and writes all end by one deadline; as much of a socket as http.client wants."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(left(self._until))
        return self._sock.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        """All of it; as a socket's, but that of TLS begins to count anew with every piece."""
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(left(self._until))
            rest = rest[self._sock.send(rest):]

    def makefile(self, mode: str) -> io.BufferedReader:
        """For http.client, which reads its answer from there."""
        return io.BufferedReader(self)

    def close(self) -> None:
        """http.client closes what it read from before all is read; whoever opened the socket closes that."""


def addresses(host: str, port: int, until: float) -> list[Any]:
    """Those of a host, by the deadline: a resolver has none of its own, so that it is asked in a thread."""
    found: list[Any] = []
    wrong: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            wrong.append(error)
        except UnicodeError:
            wrong.append(socket.gaierror(socket.EAI_NONAME, "this is no name of a host"))
    thread = threading.Thread(target=ask, name="disagg-resolve", daemon=True)
    thread.start()
    thread.join(left(until))
    if wrong:
        raise wrong[0]
    if not found:
        raise socket.gaierror(socket.EAI_AGAIN, "the resolver does not answer")
    return found


def connected(host: str, port: int, until: float) -> socket.socket:
    """A socket to the first of its addresses that takes one."""
    last: OSError = TimeoutError("timed out")
    all_of_them = addresses(host, port, until)
    for n, (family, kind, proto, _, address) in enumerate(all_of_them):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(left(until) / (len(all_of_them) - n))  # a silent address must leave time for the others
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise last


class Server:
    """Where requests go. `tls` says whether by https; `check` whether its certificate has to be good; `most` how many bytes an
    answer may have; `here` what we are, in sentences."""

    def __init__(self, host: str, port: int, tls: bool, check: bool = True, most: int = BODY_MOST,
                 here: str = "container") -> None:
        self.host, self.port, self.tls, self.check, self.most, self.here = host, port, tls, check, most, here

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"

    def ask(self, method: str, path: str, body: Secret | None, authorization: Secret | None, until: float,
            kind: str = "application/json") -> Answer:
        """Send a request and read the answer to its end, by `until` on the monotonic clock. Problem: there is none."""
        began = time.monotonic()
        asked: list[bool] = []
        said = ""
        try:
            return self._ask(method, path, body, authorization, until, asked, kind)
        except Problem as problem:
            said = str(problem)
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = self._sentence(error, bool(asked), max(until - began, 0))
        # Raise it outside of the handlers: it would otherwise keep the earlier exception, and with that the frames that have
        # the header.
        raise Problem(said, bool(asked))

    def _ask(self, method: str, path: str, body: Secret | None, authorization: Secret | None, until: float, asked: list[bool],
             kind: str) -> Answer:
        with connected(self.host, self.port, until) as plain:
            if not self.tls:
                return self._exchange(plain, method, path, body, authorization, until, asked, kind)
            context = ssl.create_default_context()
            if not self.check:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            plain.settimeout(left(until))
            with context.wrap_socket(plain, server_hostname=self.host) as sock:
                return self._exchange(sock, method, path, body, authorization, until, asked, kind)

    def _exchange(self, sock: socket.socket, method: str, path: str, body: Secret | None, authorization: Secret | None,
                  until: float, asked: list[bool], kind: str) -> Answer:
        connection: Any = http.client.HTTPConnection(self.host, self.port)
        connection.default_port = 443 if self.tls else 80
        connection.auto_open = 0
        connection.sock = Timed(sock, until)
        headers = {"Accept": "application/json", "Connection": "close", "User-Agent": "weft"}
        if body is not None:
            headers["Content-Type"] = kind
        asked.append(True)
        try:
            connection.request(method, path, body and body.text.encode(),
                               {**headers, **({"Authorization": authorization.text} if authorization else {})})
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may have answered and closed before it read everything
        answer = connection.getresponse()
        got = bytearray()
        while more := answer.read(1 << 16):
            got += more
            if len(got) > self.most:
                raise Problem(f"{self} answered with more than {self.most} bytes, which none of its answers should have", True)
        if answer.length:
            raise http.client.IncompleteRead(b"")
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, bytes(got))

    def _sentence(self, error: Exception, asked: bool, seconds: float) -> str:
        if isinstance(error, socket.gaierror):
            return (f"the name of the host of {self} cannot be resolved ({error.strerror}): is it right, and does the "
                    f"{self.here}'s DNS know it?")
        if isinstance(error, ssl.SSLCertVerificationError):
            return (f"the certificate of {self} is not to be trusted ({error.verify_message}): name a file with that of its "
                    f"authority in "
                    "SSL_CERT_FILE, or, where nobody can listen in between, set __OW_IGNORE_CERTS=true")
        if isinstance(error, TimeoutError):
            if asked:
                return f"{self} did not answer within {seconds:.3g} s"
            return f"{self} could not be reached within {seconds:.3g} s: may this {self.here} connect to it?"
        if isinstance(error, ssl.SSLError) and not asked:
            return f"{self} does not speak TLS ({error.reason or error}): should the host begin with http:// ?"
        if isinstance(error, ConnectionRefusedError):
            return f"nothing listens at {self}: is the address right, and is the one who should listen there up?"
        if isinstance(error, (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError, ssl.SSLError)):
            return f"{self} hung up before its answer was whole"
        if isinstance(error, (http.client.HTTPException, ValueError)):
            return f"what answered at {self} does not speak HTTP" + ("" if self.tls
                                                                     else ": should the host begin with https:// ?")
        return f"{self} cannot be reached ({error.strerror if isinstance(error, OSError) else type(error).__name__})"
