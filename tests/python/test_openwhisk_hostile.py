"""Strangers at the port of the OpenWhisk runtime: bytes that are no HTTP, slow ones, large ones, many; and code that lies
about itself."""
# ctest: long
import base64
import json
import socket
import time

import pytest

from disagg.serve import code, web
from disagg.serve.output import Secrets

from whiskside import BOUND, SENTINEL, Whisk, zipped

LEAST = "def main(params): return {}"


@pytest.fixture(scope="module")
def one():
    made = Whisk().loaded(LEAST)
    yield made
    assert made.run() == (200, {})  # whatever was done to it, it is there
    made.close()
    assert made.process.returncode == 0


@pytest.fixture
def fresh():
    made = Whisk()
    yield made
    made.close()


def raw(one, data, timeout=BOUND):
    """All that comes back for some bytes."""
    with socket.create_connection(("127.0.0.1", one.port), timeout) as s:
        try:
            s.sendall(data)
        except OSError:
            pass
        got = b""
        try:
            while more := s.recv(65536):
                got += more
        except ConnectionError:
            pass
        return got


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def body(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])


POST = b"POST /run HTTP/1.1\r\nHost: x\r\n"
HEADS = {
    "no request": (b"hello\r\n\r\n", 400),
    "two words": (b"GET /run\r\n\r\n", 400),
    "four words": (b"POST /run a HTTP/1.1\r\n\r\n", 400),
    "no path": (b"POST run HTTP/1.1\r\n\r\n", 400),
    "whole url": (b"POST http://x/run HTTP/1.1\r\n\r\n", 400),
    "strange method": (b"P\x00ST /run HTTP/1.1\r\n\r\n", 400),
    "version 2": (b"POST /run HTTP/2.0\r\n\r\n", 505),
    "no version": (b"POST /run FTP/1.1\r\n\r\n", 400),
    "bytes": (b"POST /\xff HTTP/1.1\r\n\r\n", 400),
    "header without a colon": (POST + b"nonsense\r\n\r\n", 400),
    "header that goes on": (POST + b"A: b\r\n c\r\n\r\n", 400),
    "space in a name": (POST + b"A b: c\r\n\r\n", 400),
    "no length": (POST + b"Content-Length: x\r\n\r\n", 400),
    "negative": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "plus": (POST + b"Content-Length: +5\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    "chunks and a length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    "packed": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    "chunks of nothing": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk without a size": (POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n{}\r\n", 400),
    "a chunk of minus one": (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n", 400),
    "a chunk of 0x2": (POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", 400),
    "a chunk longer than it says": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}  0\r\n\r\n", 400),
    "a chunk that is too large": (POST + b"Transfer-Encoding: chunked\r\n\r\nfffffff0\r\n{", 413),
    "a chunk that is much too large": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 16 + b"\r\n{", 400),
    "a line without end": (POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 5000, 400),
    "many headers behind": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    "too large": (POST + b"Content-Length: 99999999999\r\n\r\n", 413),
    "much too large": (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
    "many headers": (POST + b"A: b\r\n" * 200 + b"\r\n", 431),
    "long header": (POST + b"A: " + b"b" * 60000 + b"\r\n\r\n", 431),
    "no end": (b"A" * 100000, 431),
    "empty body": (POST + b"\r\n", 400),
    "no json": (POST + b"Content-Length: 3\r\n\r\nabc", 400),
    "no object": (POST + b"Content-Length: 2\r\n\r\n[]", 400),
    "no text": (POST + b"Content-Length: 2\r\n\r\n\xff\xfe", 400),
    "deep": (POST + b"Content-Length: 200000\r\n\r\n" + b"[" * 200000, 400),
    "unknown": (b"GET / HTTP/1.1\r\n\r\n", 404),
    "up": (b"POST /../init HTTP/1.1\r\n\r\n", 404),
    "wrong method": (b"GET /run HTTP/1.1\r\n\r\n", 405),
    "wrong method of init": (b"PUT /init HTTP/1.1\r\n\r\n", 405),
    "wrong method of a transport": (b"POST /action/a/transport/b HTTP/1.1\r\n\r\n", 405),
    "half a transport": (b"PUT /action/a/transport/ HTTP/1.1\r\n\r\n", 404),
    "more than a transport": (b"PUT /action/a/transport/b/c HTTP/1.1\r\n\r\n", 404),
}


@pytest.mark.parametrize("name", HEADS)
def test_requests_that_are_none(one, name):
    data, wanted = HEADS[name]
    answer = raw(one, data)
    assert status(answer) == wanted, answer[:200]
    said = body(answer)
    assert list(said) == ["error"] and len(said["error"]) > 10
    assert (b"\r\nAllow: " in answer) == (wanted == 405)


def test_old_clients_and_those_that_ask_first(one):
    text = b'{"value": {}}'
    assert status(raw(one, b"POST /run HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))) == 200
    with socket.create_connection(("127.0.0.1", one.port), BOUND) as s:
        s.sendall(POST + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(text))
        assert s.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(text)
        assert s.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("path, most", [("/init", 48 << 20), ("/run", 64 << 20), ("/action/a/transport/b", 64 << 10)])
def test_bodies_are_bounded_before_they_are_read(one, path, most):
    method = b"PUT" if "action" in path else b"POST"
    answer = raw(one, b"%s %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (method, path.encode(), most + 1))
    assert status(answer) == 413 and str(most) in body(answer)["error"]


def test_one_who_is_still_sending_gets_the_answer(one):
    answer = raw(one, POST + b"Content-Length: 90000000\r\n\r\n" + b"x" * (4 << 20))
    assert status(answer) == 413


def test_who_hangs_up(one):
    for data in (b"", b"POST /r", POST + b"Content-Length: 100\r\n\r\nabc"):
        with socket.create_connection(("127.0.0.1", one.port), BOUND) as s:
            s.sendall(data)
    assert one.run() == (200, {})


def test_who_is_slow_is_given_up(monkeypatch):
    """By the time of the whole: a byte now and then does not help."""
    import threading
    monkeypatch.setattr(web, "HEAD_TIME", 0.4)
    monkeypatch.setattr(web, "BODY_TIME", 0.4)
    server = web.Server("127.0.0.1", 0, lambda request: 1000, lambda request: (200, {}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for head in (b"", b"POST /run HTTP/1.1\r\nContent-Length: 900\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), BOUND) as s:
                s.sendall(head)
                s.settimeout(0.02)
                got, end = b"", time.monotonic() + BOUND
                while time.monotonic() < end:
                    try:
                        s.sendall(b"x")
                        more = s.recv(4096)
                        got += more
                        if not more:
                            break
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        break
                assert status(got) == 408, got
    finally:
        server.stop()
        thread.join(BOUND)
        server.finish(BOUND)
    assert not thread.is_alive()


def test_many_who_say_nothing_do_not_keep_others_out(one):
    idle = [socket.create_connection(("127.0.0.1", one.port), BOUND) for _ in range(web.MOST - 8)]
    try:
        assert one.run() == (200, {})
        # more than are served: the last are hung up on
        idle += [socket.create_connection(("127.0.0.1", one.port), BOUND) for _ in range(40)]
    finally:
        for s in idle:
            s.close()
    end = time.monotonic() + BOUND
    while True:
        try:
            assert one.run() == (200, {})
            break
        except (ConnectionError, OSError):
            assert time.monotonic() < end
            time.sleep(0.05)


# --- zips

def bomb(name, size):
    return base64.b64encode(zipped({"__main__.py": LEAST, name: bytes(size)})).decode()


def test_bombs(fresh, monkeypatch, tmp_path):
    said = fresh.init(bomb("zeros", code.BYTES + 1), binary=True)
    assert said[0] == 502 and "more than" in said[1]["error"]
    many = {f"f{i}": "" for i in range(code.FILES + 1)}
    said = fresh.init({"__main__.py": LEAST, **many})
    assert said[0] == 502 and "are the most" in said[1]["error"]
    assert fresh.loaded(LEAST).run() == (200, {})


def test_sizes_in_a_zip_are_not_believed(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "BYTES", 10000)
    data = bytearray(zipped({"__main__.py": b"x" * 20000}))
    for at in [i for i in range(len(data)) if data[i:i + 4] == (20000).to_bytes(4, "little")]:
        data[at:at + 4] = (10).to_bytes(4, "little")  # it says that it has ten bytes
    with pytest.raises(code.Unusable):
        code.unzip(base64.b64encode(bytes(data)).decode(), str(tmp_path))
    assert sum(p.stat().st_size for p in tmp_path.rglob("*")) <= 10000


# --- code that lies

LIES = """
    import gc, json, os, time
    from disagg._lines import Lines
    def main(params):
        line_out = next(one for one in gc.get_objects() if isinstance(one, Lines)).fd_out
        for line in params["lines"]:
            os.write(line_out, (line if isinstance(line, str) else json.dumps(line)).encode() + b"\\n")
        if params.get("flood"):
            try:
                while True:
                    os.write(line_out, b"x" * 1000000)
            except OSError:
                pass
        return {"true": 1}
    """


def test_lines_that_the_code_says_in_the_name_of_its_process(fresh):
    fresh.loaded(LIES)
    junk = ["", "nonsense", "[]", "5", "[" * 10000, {"did": "result", "run": 99, "value": {}}, {"did": "config", "ask": "x"},
            {"did": "config", "ask": 77}, {"did": "loaded"}, {"did": "error", "run": None}, {"did": ["result"]}, {"run": 1}]
    assert fresh.run({"lines": junk}) == (200, {"true": 1})
    for said in ({"value": 5}, {}, {"value": None}):
        got = fresh.run({"lines": [{"did": "result", "run": fresh.runs + 1, **said}]})
        assert got == (502, {"error": "the action's result is not one"})
    assert fresh.run({"lines": []})[0] == 200
    assert fresh.run({"lines": [{"did": "error", "run": fresh.runs + 1, "error": {"a": 1}, "traceback": 5}]})[0] == 502
    assert fresh.run({"lines": []}) == (200, {"true": 1})
    out, err = fresh.printed()
    assert out.count(SENTINEL) == err.count(SENTINEL) == fresh.runs


def test_a_line_without_an_end(fresh):
    fresh.loaded(LIES)
    status_, said = fresh.run({"lines": [], "flood": True})
    assert status_ == 502 and "which is no result" in said["error"]
    assert fresh.run({"lines": []}) == (200, {"true": 1})


def test_results_that_are_too_large(fresh):
    fresh.loaded("def main(params): return {'x': 'y' * params['n']}")
    status_, said = fresh.run({"n": 100 << 20})
    assert status_ == 502 and "MiB" in said["error"]
    assert fresh.run({"n": 1}) == (200, {"x": "y"})


def test_texts_that_no_encoding_has(fresh):
    fresh.loaded("def main(params):\n    if params.get('raise'): raise ValueError('\\ud800')\n    return {'x': '\\ud800', 'y': "
                 "params['y']}")
    answer = raw(fresh, POST + b"Content-Length: 28\r\n\r\n" + b'{"value": {"y": "\\ud800 \\""}}'[:28])
    assert status(answer) in (200, 400)
    assert fresh.run({"raise": 1}) == (200, {"error": "\ud800"})
    assert fresh.run({"y": "\ud800"})[0] == 200


def test_secrets():
    secrets = Secrets()
    secrets.add("short")
    secrets.add("long enough")
    secrets.add(5)
    secrets.add_durl("m;rdma_tcp;token,00112233445566;")
    assert secrets.clean("short long enough 00112233445566") == "short (secret) (secret)"
    assert secrets.clean_bytes(b"xlong enoughx") == b"x(secret)x"
    for i in range(1000):
        secrets.add(f"secret number {i}")
    assert secrets.clean("secret number 999") == "(secret)" and secrets.clean("secret number 1.") == "secret number 1."
