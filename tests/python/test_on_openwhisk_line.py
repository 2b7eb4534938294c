"""The line between a container and the launcher of `weft run --on openwhisk`: strangers, and both sides of a call."""
import asyncio
import hmac
import json
import socket
import threading
import time
import types

import pytest

from controllerside import until
from disagg.on import openwhisk_inside, openwhisk_line
from disagg.on.bridge import Failed
from disagg.on.openwhisk_inside import Joined, Unable
from disagg.on.openwhisk_line import Listener, own_address, parsed

BOUND = 60


class Side:
    """A listener in a thread. Number 7 is wanted, once; what joins says goes to `heard`."""

    def __init__(self):
        self.heard, self.line, self.taken = [], None, False
        self.loop = asyncio.new_event_loop()
        self.listener = Listener(lambda n: n == 7 and not self.taken, self.joined)
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.do(self.listener.open("127.0.0.1", ("127.0.0.1", 1)))
        self.host, _, port = self.listener.place.rpartition(":")
        self.port = int(port)

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(BOUND)

    def joined(self, number, line):
        self.taken, self.line = True, line
        line.say('{"first": 1}')

        async def read():
            async for text in line.lines():
                self.heard.append(text)
            line.close()
            self.heard.append(None)
        return read()

    def connect(self):
        return socket.create_connection((self.host, self.port), BOUND)

    def close(self):
        self.do(self.listener.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(BOUND)
        self.loop.close()


@pytest.fixture
def side():
    one = Side()
    yield one
    one.close()


def line_of(sock):
    return json.loads(openwhisk_inside.read_line(sock))


def hello(side, sock, key=None, **more):
    nonce = line_of(sock)["nonce"]
    proof = hmac.new((key or side.listener.key(7)).encode(), f"activation {nonce}".encode(), "sha256").hexdigest()
    sock.sendall(json.dumps({"n": 7, "proof": proof, "nonce": "mine", **more}).encode() + b"\n")


def test_both_prove_that_they_know_the_key(side):
    with side.connect() as sock:
        hello(side, sock)
        key = side.listener.key(7).encode()
        assert line_of(sock) == {"proof": hmac.new(key, b"launcher mine", "sha256").hexdigest()}
        assert line_of(sock) == {"first": 1}
        sock.sendall(b'{"a": 1}\n{"b"')
        sock.sendall(b': 2}\n')
        until(lambda: len(side.heard) == 2, "both lines")
    until(lambda: side.heard[-1] is None, "the end")
    assert side.heard == ['{"a": 1}', '{"b": 2}', None]


def test_one_that_is_not_wanted_any_more_is_told_to_leave(side):
    with side.connect() as first, side.connect() as second:
        hello(side, first)
        assert "leave" not in line_of(first)
        hello(side, second)
        assert line_of(second)["leave"] is True
        assert second.recv(1) == b""


@pytest.mark.parametrize("says", [
    b"", b"\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"[]\n", b"7\n", b"null\n", b"{}\n", b'{"n": 7}\n',
    b'{"n": "7", "proof": "", "nonce": ""}\n', b'{"n": 7, "proof": 7, "nonce": "x"}\n',
    b'{"n": 7, "proof": "' + b"0" * 64 + b'", "nonce": "x"}\n', b'{"n": true, "proof": "x", "nonce": []}\n', b"\xff\xfe\n",
    b"x" * 100_000, b"[" * 4000 + b"\n", b'{"n": 8, "proof": "\xc3\xa9", "nonce": "x"}\n',
    b'{"n": 7, "proof": "\\ud800", "nonce": "\\ud800"}\n'])
def test_a_stranger_is_hung_up_on(side, says):
    with side.connect() as sock:
        line_of(sock)
        sock.sendall(says)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(BOUND)
        try:
            assert sock.recv(1) == b""
        except ConnectionResetError:
            pass
    assert not side.taken
    with side.connect() as sock:  # and others get on
        hello(side, sock)
        assert "proof" in line_of(sock)


def test_the_key_of_another_process_is_of_no_use(side):
    with side.connect() as sock:
        hello(side, sock, key=side.listener.key(8))
        assert sock.recv(1) == b"" and not side.taken


def test_strangers_that_say_nothing_do_not_keep_others_out(side, monkeypatch):
    monkeypatch.setattr(openwhisk_line, "PROVING", 1.0)
    monkeypatch.setattr(openwhisk_line, "WAITING", 20)
    silent = [side.connect() for _ in range(40)]
    try:
        def joined():
            with side.connect() as sock:
                try:
                    hello(side, sock)
                    return "proof" in line_of(sock)
                except (OSError, ValueError):
                    return False
        until(joined, "one that gets in")
    finally:
        for sock in silent:
            sock.close()


def test_a_line_without_an_end_is_the_end(side, monkeypatch):
    monkeypatch.setattr(openwhisk_line, "LINE_MOST", 1 << 20)
    with side.connect() as sock:
        hello(side, sock)
        line_of(sock)
        with pytest.raises(OSError):
            for _ in range(1000):
                sock.sendall(b"x" * (1 << 16))
                time.sleep(0.001)
    assert side.heard == [None]


# --- the other side -----------------------------------------------------------------------------------------------------------

def calls(place, key, seconds=None, monkeypatch=None):
    """What an activation does that calls there."""
    if monkeypatch:
        monkeypatch.setattr(openwhisk_inside, "CALLING", seconds)
    action = types.SimpleNamespace(cv=threading.Condition(), terminated=False, kw={})
    return Joined(action, {"n": 7, "line": place, "key": key, "open": {}}, "/nowhere")._join()


def test_an_activation_calls_and_joins(side):
    sock = calls(side.listener.place, side.listener.key(7))
    assert line_of(sock) == {"first": 1}
    sock.close()
    assert calls(side.listener.place, side.listener.key(7)) is None  # not wanted: it leaves


def test_an_activation_does_not_listen_to_another(side, monkeypatch):
    """What answers does not know the key: it may be of another run, or whatever listens there now."""
    with pytest.raises(Unable, match="could not reach the launcher at .* \\(it hung up\\)"):
        calls(side.listener.place, side.listener.key(8), 1.0, monkeypatch)
    assert not side.taken


@pytest.mark.parametrize("says", [b"", b"hello\n", b"[]\n", b'{"nonce": 7}\n{"proof": 7}\n', b'{"nonce": "x"}\n[]\n', b"x" * 5000,
                                  b'{"nonce": "x"}\n{"proof": "' + b"0" * 64 + b'"}\n'])
def test_an_activation_meets_something_else(says, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(says)
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(Unable, match="could not reach the launcher"):
            calls(f"127.0.0.1:{server.getsockname()[1]}", "k", 1.0, monkeypatch)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(BOUND)


def test_an_activation_finds_nobody(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Unable, match="Connection refused.*--address"):
        calls(f"127.0.0.1:{port}", "k", 1.0, monkeypatch)


# --- addresses ----------------------------------------------------------------------------------------------------------------

def test_addresses():
    assert parsed("") == ("", 0) and parsed("host") == ("host", 0) and parsed("10.0.0.5:4711") == ("10.0.0.5", 4711)
    assert parsed("[::1]:80") == ("::1", 80) and parsed("::1") == ("::1", 0) and parsed("[::1]") == ("::1", 0)
    for wrong in ("host:", "host:x", "host:70000", ":80", "a b", "http://host", "[::1", "[::1]80", "u@host"):
        with pytest.raises(Failed, match="--address"):
            parsed(wrong)


def test_the_address_of_this_machine_is_one_that_can_be_listened_on():
    for host in ("127.0.0.1", "no.such.host.invalid", "::1"):
        found = own_address(host, 443)
        socket.create_server((found, 0), family=socket.AF_INET6 if ":" in found else socket.AF_INET).close()


def test_an_address_that_is_taken_or_not_ours():
    async def go():
        one = Listener(lambda n: False, None)
        await one.open("127.0.0.1", ("127.0.0.1", 1))
        two = Listener(lambda n: False, None)
        try:
            with pytest.raises(Failed, match="cannot be listened on .*--address HOST:PORT names another"):
                await two.open(one.place, ("127.0.0.1", 1))
            await two.open("240.0.0.1", ("127.0.0.1", 1))  # not ours: something there forwards to us
            assert two.place.startswith("240.0.0.1:")
        finally:
            await one.close()
            await two.close()
    asyncio.run(go())


@pytest.mark.parametrize("hanging, left, terminated, least", [(1.4, 100, False, 1.4), (60, 0, False, 1.0), (60, 100, True, 1.0)])
def test_a_launcher_that_never_hangs_up_is_left_in_the_end(monkeypatch, hanging, left, terminated, least):
    """Its pings do not make that longer; the deadline of the activation and its end make it shorter."""
    monkeypatch.setattr(openwhisk_inside, "HANGING", hanging)
    monkeypatch.setattr(openwhisk_inside, "left", lambda: openwhisk_inside.LATE + left)
    part = Joined.__new__(Joined)
    part.action = types.SimpleNamespace(terminated=terminated)
    part.sock, launcher = socket.socketpair()
    over = threading.Event()

    def ping():
        while not over.wait(0.05):
            try:
                launcher.send(b'{"do": "ping"}\n')
            except OSError:
                return
    thread = threading.Thread(target=ping)
    thread.start()
    start = time.monotonic()
    part._hang_up()
    took = time.monotonic() - start
    over.set()
    thread.join()
    launcher.close()
    assert least <= took + 0.01 and took < 30, took
