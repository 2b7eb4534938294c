"""Memory elements as actions of OpenWhisk: they tell their durl, serve it, and end when nobody uses them, with their time, or
with their process."""
# ctest: long
import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import weft
from disagg.serve import memory as inside

from elementside import action
from whiskside import BOUND, SENTINEL, Whisk, in_ms

YAML = "type: memory\ncorunning: [it]\nlimits:\n  mem: 1 MB\n"


@pytest.fixture
def whisk():
    made = []

    def start(*args, **env):
        made.append(Whisk(*args, **env))
        return made[-1]
    yield start
    for one in made:
        one.close()


class Invoker:
    """Who invoked a memory element, and is told its durl."""

    def __init__(self):
        self.got, self.statuses, self.told = [], [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                outer.got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(outer.statuses.pop(0) if outer.statuses else 200)
                self.send_header("Location", f"http://127.0.0.1:{outer.server.server_port}/action/elsewhere/transport/x")
                self.send_header("Content-Length", "0")
                self.end_headers()
                outer.told.set()

            def log_message(self, *_):
                pass
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def about(self, name="more", **more):
        url = f"http://127.0.0.1:{self.server.server_port}/action/a%201/transport/{name}?key=s3cr3ts3cr3t"
        return {"__weft": {"name": name, "configure": url, **more}}

    def durl(self):
        assert self.told.wait(BOUND)
        return self.got[-1][1]["durl"]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(BOUND)


@pytest.fixture
def invoker():
    made = Invoker()
    yield made
    made.close()


def use(durl, name="more"):
    """Write and read once."""
    with action(durl) as made:
        trans = made.get_transport(name, "rdma")
        trans.reg(64)
        size = trans.wait_ready(BOUND)
        trans.read(32, 0, 32)
        assert bytes(trans.buf[32:]) == bytes(32)  # it is zero at first
        trans.buf[:5] = b"there"
        trans.write(32, 0)
        trans.read(32, 0, 32)
        assert bytes(trans.buf[32:37]) == b"there"
        return size


@pytest.mark.parametrize("code", [YAML, {"it.o.yaml": YAML}, {"it.o.yaml": YAML, "__init__.py": ""}],
                         ids=["text", "zip", "zip with more"])
def test_it_serves_until_nobody_uses_it(whisk, invoker, code):
    one = whisk().loaded(code)
    for _ in range(2):
        invoker.told.clear()
        with one.running(invoker.about(grace=0.2)) as answers:
            durl = invoker.durl()
            assert use(durl) == 1 << 20
        status, said = answers[0]
        assert status == 200 and said["name"] == "more" and said["ended"] == "unused", said
        assert said["stats"]["bytes"] == 1 << 20 and said["stats"]["accepted"] >= 1 and said["stats"]["connections"] == 0
        path, body = invoker.got[-1]
        assert path == "/action/a%201/transport/more?key=s3cr3ts3cr3t" and body["name"] == "more"
        assert "url,tcp://127.0.0.1:" in durl  # and not 0.0.0.0, where it listens
        with action(durl) as made, pytest.raises((weft.WeftError, ConnectionError)):
            made.get_transport("more", "rdma").wait_ready(0.5)
    out, err = one.printed()
    assert out == err == f"{SENTINEL}\n" * 2


def test_the_size_may_be_another_one(whisk, invoker):
    one = whisk().loaded(YAML)
    for size, wanted in ((8192, 8192), ("64K", 65536), (4096.0, 4096)):
        invoker.told.clear()
        with one.running(invoker.about(grace=0.1, size=size)) as answers:
            assert use(invoker.durl()) == wanted
        assert answers[0][0] == 200


def test_where_it_listens_can_be_said(whisk, invoker):
    one = whisk(WEFT_ELEMENT_URI="tcp://127.0.0.1:0").loaded(YAML)
    with one.running(invoker.about(grace=0.1)):
        assert use(invoker.durl()) == 1 << 20
    one = whisk("--address", "10.9.8.7").loaded(YAML)
    invoker.told.clear()
    with one.running(invoker.about(patience=0)):
        assert "url,tcp://10.9.8.7:" in invoker.durl()


def test_nobody_comes(whisk, invoker):
    one = whisk().loaded(YAML)
    status, said = one.run(invoker.about(patience=0.2))
    assert status == 200 and said["ended"] == "nobody came"


def test_its_time_is_over(whisk, invoker):
    one = whisk().loaded(YAML)
    with one.running(invoker.about(), deadline=in_ms(4)) as answers:
        with action(invoker.durl()) as made:
            trans = made.get_transport("more", "rdma")
            trans.reg(8)
            trans.write(8, 0)
            while not answers:
                time.sleep(0.01)
            with pytest.raises((ConnectionError, weft.WeftError)):  # it is given back, whoever uses it
                while True:
                    trans.read(8, 0, timeout=5)
    assert answers[0][0] == 200 and answers[0][1]["ended"] == "told to"


def test_the_runtime_is_told_to_end(whisk, invoker):
    one = whisk().loaded(YAML)
    with one.running(invoker.about()) as answers:
        invoker.durl()
        assert one.end() == 0
    assert answers[0][1]["ended"] == "told to"


def test_it_is_killed_while_it_is_read(whisk, invoker):
    one = whisk().loaded(YAML)
    with one.running(invoker.about()) as answers:
        with action(invoker.durl()) as made:
            trans = made.get_transport("more", "rdma")
            trans.reg(1 << 20)
            trans.read(1 << 20, 0)
            os.kill(one.worker(), signal.SIGKILL)
            with pytest.raises(ConnectionError):
                while True:
                    trans.read(1 << 20, 0, timeout=BOUND)
    status, said = answers[0]
    assert status == 502 and "signal 9" in said["error"]
    with one.running(invoker.about(patience=0)) as answers:
        pass
    assert answers[0][0] == 200


def test_the_one_who_invoked_is_slow_to_listen(whisk, invoker):
    invoker.statuses = [404, 503]
    one = whisk().loaded(YAML)
    assert one.run(invoker.about(patience=0))[0] == 200 and len(invoker.got) == 3


@pytest.mark.parametrize("answer", [403, 400, 307])
def test_the_one_who_invoked_refuses(whisk, invoker, answer):
    invoker.statuses = [answer] * 100
    one = whisk().loaded(YAML)
    status, said = one.run(invoker.about(), deadline=in_ms(3))
    assert status == 502 and f"it answered {answer}" in said["error"] and "127.0.0.1" in said["error"], said
    everything = said["error"] + "".join(one.printed())
    assert "s3cr3t" not in everything and "token," not in everything
    assert all(path.startswith("/action/a%201/") for path, _ in invoker.got)  # nobody is sent the durl but the one that was named


@pytest.mark.parametrize("about, says", [({}, "where its durl goes"), ({"__weft": {"name": "x"}}, "where its durl goes"),
                                         ({"__weft": 5}, "where its durl goes"),
                                         ({"configure": "ftp://h/action/a/transport/b"}, "not the URL"),
                                         ({"configure": "http://h/elsewhere"}, "not the URL"),
                                         ({"configure": "http://u:p@h/action/a/transport/b"}, "not the URL"),
                                         ({"configure": "http://h/action/a/transport/b\r\nX: y"}, "not the URL"),
                                         ({"configure": "http://h:x/action/a/transport/"}, "not the URL"),
                                         ({"size": -1}, "number of bytes"), ({"size": 1.5}, "number of bytes"),
                                         ({"size": "x"}, "number of bytes"),
                                         ({"size": True}, "number of bytes"), ({"size": 1 << 60}, "number of bytes"),
                                         ({"size": [1]}, "number of bytes"),
                                         ({"grace": "x"}, "seconds"), ({"patience": -1}, "seconds"),
                                         ({"name": "a;b"}, "InvalidError")])
def test_parameters_that_make_no_sense(whisk, invoker, about, says):
    one = whisk().loaded(YAML)
    params = about if "__weft" in about or not about else invoker.about(**{"patience": 0, **about})
    status, said = one.run(params)
    assert status == 502 and says in said["error"], said
    assert one.run(invoker.about(patience=0))[0] == 200


def test_nobody_listens_there(whisk, monkeypatch):
    one = whisk().loaded(YAML)
    begun = time.monotonic()
    status, said = one.run({"__weft": {"name": "m", "configure": "http://127.0.0.1:1/action/a/transport/m"}}, deadline=in_ms(2))
    assert status == 502 and "could not be told to 127.0.0.1 port 1" in said["error"] and time.monotonic() - begun < BOUND


def test_an_answer_that_never_ends_is_given_up():
    import socket
    with socket.create_server(("127.0.0.1", 0)) as server:
        def trickle():
            sock, _ = server.accept()
            with sock:
                try:
                    for _ in range(1000):
                        sock.sendall(b"x")
                        time.sleep(0.01)
                except OSError:
                    pass
        thread = threading.Thread(target=trickle)
        thread.start()
        with pytest.raises(TimeoutError):
            inside.put((False, "127.0.0.1", server.getsockname()[1], "/action/a/transport/b"), b"{}", time.monotonic() + 0.3)
        thread.join(BOUND)


def test_scads_controller_gives_it_a_server(whisk):
    one = whisk().loaded(YAML)
    status, said = one.run(transports=["mem;rdma_tcp_server;size,4096;url,tcp://127.0.0.1:0;"], deadline=in_ms(3))
    assert status == 200 and said["ended"] == "told to"


def test_the_address_in_a_durl():
    durl = "m;rdma_tcp;size,4096;url,tcp://0.0.0.0:77;"
    assert "url,tcp://10.1.2.3:77;" in inside.reachable(durl, "10.1.2.3")
    assert "url,tcp://[fd00::1]:77;" in inside.reachable("m;rdma_tcp;size,4096;url,tcp://[::]:77;", "fd00::1")
    assert "url,tcp://127.0.0.1:77;" in inside.reachable("m;rdma_tcp;size,4096;url,tcp://127.0.0.1:77;", "10.1.2.3")
