"""The runtime for OpenWhisk as Scad's invoker and launcher have it: exceptions as results, bodies in chunks, and requests about the
transports of an activation. Each test says what Scad's own does."""
import contextlib
import http.client
import json
import select
import socket

import pytest

from disagg import _size
from disagg.serve import code

from elementside import memory, until
from whiskside import BOUND, SENTINEL, Whisk

WRITES = """
    def main(params, action):
        trans = action.get_transport(params.get("trans", "mem"), "rdma")
        trans.reg(64)
        trans.buf[:5] = b"hello"
        print("waiting", flush=True)
        trans.write(5, 100)
        trans.read(5, 100, 32)
        return {"read": bytes(trans.buf[32:37]).decode(), "had": sorted(action.raw_transports)}
    """


@pytest.fixture
def whisk():
    made = []

    def start(**env):
        made.append(Whisk(**env))
        return made[-1]
    yield start
    for one in made:
        one.close()


# --- exceptions

def test_an_exception_of_main_is_a_result(whisk):
    # Scad's launcher: {"error": str(exception)}, status 200, and the traceback on stderr
    one = whisk().loaded("def main(params, action):\n    if params.get('k'): return params['nothing']\n    raise RuntimeError(params['text'])")
    assert one.run({"text": "no good"}) == (200, {"error": "no good"})
    assert one.run({"text": ""}) == (200, {"error": "RuntimeError"})  # Scad's: "", which says nothing
    assert one.run({"k": 1}) == (200, {"error": "'nothing'"})
    err = one.printed()[1]
    assert err.count("Traceback") == 3 == err.count(SENTINEL) and "RuntimeError: no good\n" in err and err.endswith(SENTINEL + "\n")


@pytest.mark.parametrize("program, says", [("import sys\ndef main(params): sys.exit(3)", "sys.exit(3)"),
                                        ("def main(params): return 5", "did not return a dictionary"),
                                        ("def main(params): return {'x': object()}", "not JSON"),
                                        ("import os\ndef main(params): os._exit(7)", "status 7")])
def test_what_is_no_exception_of_main_is_no_result(whisk, program, says):
    # Scad's: the launcher is gone, and every later /run is refused with 400 or 500
    one = whisk().loaded(program)
    status, said = one.run()
    assert status == 502 and says in said["error"], said
    assert one.run()[0] == 502  # and it is there for the next one


# --- bodies in chunks

def chunked(one, path, pieces, method="POST", ext=b"", trailers=b""):
    """Send a body in pieces, each with its size before it; the status and what the answer says."""
    with socket.create_connection(("127.0.0.1", one.port), BOUND) as s:
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n".encode())
        for piece in pieces:
            s.sendall(b"%x%s\r\n%s\r\n" % (len(piece), ext, piece))
        s.sendall(b"0\r\n" + trailers + b"\r\n")
        answer = http.client.HTTPResponse(s)
        answer.begin()
        return answer.status, json.loads(answer.read())


def test_bodies_may_come_in_chunks(whisk):
    # Scad's, in Go: both forms are read, without a bound
    one = whisk()
    text = json.dumps({"value": {"name": "it", "main": "main", "code": "def main(params): return {'n': len(params['x'])}", "binary": False}})
    assert chunked(one, "/init", [bytes([c]) for c in text.encode()]) == (200, {"ok": True})  # a byte at a time
    large = json.dumps({"value": {"x": "y" * (3 << 20)}}).encode()
    assert chunked(one, "/run", [large[i:i + 65536] for i in range(0, len(large), 65536)]) == (200, {"n": 3 << 20})
    assert chunked(one, "/run", [b'{"value": {"x": "abc"}}'], ext=b" ; name=value", trailers=b"A: b\r\nC: d\r\n") == (200, {"n": 3})
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=BOUND)  # as a library does it
    connection.request("POST", "/run", iter([b'{"value": ', b'{"x": "ab"}}']), {"Expect": "100-continue"}, encode_chunked=True)
    assert json.loads(connection.getresponse().read()) == {"n": 2}
    connection.close()


def test_large_bodies_in_chunks_have_the_same_bounds(whisk):
    one = whisk().loaded("def main(params): return {}")
    with contextlib.ExitStack() as stack:
        def hold():
            """One that takes the place of a large body and keeps it, if there is a place."""
            s = stack.enter_context(socket.create_connection(("127.0.0.1", one.port), BOUND))
            s.sendall(b"POST /run HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s" % (2 << 20, b" " * (2 << 20)))
            return s
        held, said = [hold(), hold()], []

        def full():  # they are read by threads: one that came after our question is answered, and has no place
            said.append(chunked(one, "/run", [b"{}", b" " * (1 << 20)]))
            for s in select.select(held, [], [], 0)[0]:
                held[held.index(s)] = hold()
                said[-1] = (0, None)
            return said[-1][0] not in (0, 200)
        until(full, "both have their places")
        assert said[-1][0] == 503 and "large" in said[-1][1]["error"]
        assert chunked(one, "/run", [b'{"value": {}}']) == (200, {})  # a small one does not wait
        for s in held:
            s.sendall(b"\r\n2\r\n{}\r\n0\r\n\r\n")
            assert s.recv(65536).startswith(b"HTTP/1.1 200")
    assert chunked(one, "/run", [b"{}", b" " * (1 << 20)]) == (200, {})


# --- what the invoker asks

def test_an_action_can_be_described_before_it_runs(whisk):
    # Scad: POST /action/AID {"server_url", "name", "transports"}; the run of that id then has those transports
    one = whisk().loaded(WRITES)
    with memory(4096, "mem") as mem:
        assert one.ask("POST", "/action/a1", {"server_url": "", "name": "it", "transports": [mem.durl, "other;rdma_tcp;"]}) == (202, {"ok": True})
        assert one.run(activation_id="a1") == (200, {"read": "hello", "had": ["mem", "other"]})
        status, said = one.run(activation_id="a2")  # it was for the other one
        assert status == 200 and "there is no transport 'mem'" in said["error"]
        # what /run says of a transport holds; where it does not know where it leads, what was said before helps
        assert one.ask("POST", "/action/a3", {"transports": ["mem;rdma_tcp;url,tcp://127.0.0.1:1;"]})[0] == 202
        assert one.run(activation_id="a3", transports=[mem.durl])[1]["read"] == "hello"
        assert one.ask("POST", "/action/a4", {"transports": [mem.durl]})[0] == 202
        assert one.run(activation_id="a4", transports=["mem;rdma_tcp;"])[1]["read"] == "hello"
        assert one.ask("POST", "/action/a5/transport", {"durl": "mem;rdma_tcp;"})[0] == 202  # and it is configured before it runs
        assert one.put("a5", "mem", mem.durl)[0] == 202
        assert one.run(activation_id="a5")[1]["read"] == "hello"
    assert one.ask("POST", "/action/a1", {"transports": []})[0] == 404  # it is over
    for bad in ({"transports": 5}, {"transports": [5]}, {"transports": "mem;rdma_tcp;"}):
        assert one.ask("POST", "/action/a9", bad)[0] == 400
    assert one.ask("POST", "/action/a9", {})[0] == 202


def test_transports_are_added_before_and_during_an_activation(whisk):
    # Scad: POST /action/AID/transport; its invoker says {"transport": durl}, its launcher reads {"durl": durl}
    one = whisk().loaded("""
        import time
        def main(params, action):
            print("begun", flush=True)
            end = time.monotonic() + 60
            while True:
                try:
                    trans = action.get_transport("late", "rdma")
                    break
                except MemoryError:
                    assert time.monotonic() < end
                    time.sleep(0.005)
            trans.reg(8)
            print("there", flush=True)
            trans.write(8, 0)
            return {"had": sorted(action.raw_transports)}
        """)
    with memory(4096, "late") as late:
        assert one.ask("POST", "/action/x/transport", {"durl": "before;rdma_tcp;"}) == (202, {"ok": True})
        with one.running(activation_id="x") as answers:
            one.until_printed("begun")
            assert one.ask("POST", "/action/x/transport", {"transport": "late;rdma_uverbs_proxy;"}) == (200, {"ok": True})
            one.until_printed("there")
            status, said = one.ask("POST", "/action/x/transport", {"transport": late.durl})
            assert status == 409 and "already" in said["error"]
            assert one.ask("POST", "/action/x", {"transports": ["late;rdma_tcp;", "more;rdma_tcp;"]}) == (200, {"ok": True})  # what is there stays
            for bad in ({}, {"transport": 5}, {"transport": ""}, {"durl": ["x"]}, {"transport": "junk"}):
                assert one.ask("POST", "/action/x/transport", bad)[0] == 400, bad
            assert one.ask("POST", "/action/y/transport", {"durl": "z;rdma_tcp;"})[0] == 404
            assert not answers
            # and is configured by its keys alone, and without a key of ours
            assert one.put("x", "late", late.durl.partition(";rdma_tcp;")[2]) == (200, {"ok": True})
        assert answers == [(200, {"had": ["before", "late", "more"]})]
    assert "token" not in "".join(one.printed())


def test_the_name_in_the_body_is_that_in_the_path(whisk):
    # Scad: the name in the body is not looked at
    one = whisk()
    status, said = one.ask("PUT", "/action/a/transport/one", {"name": "two", "durl": "one;rdma_tcp;url,tcp://127.0.0.1:1;"})
    assert status == 400 and "'one'" in said["error"] and "'two'" in said["error"]
    assert one.ask("PUT", "/action/a/transport/one", {"durl": "one;rdma_tcp;url,tcp://127.0.0.1:1;"})[0] == 202


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_messages_of_transports(whisk, method):
    # Scad: {"ok": true, "messages": {NAME: text}} with those that have one; asked by POST, and by GET in its scripts. For an id
    # that it does not know it does not answer
    one = whisk().loaded("""
        def main(params, action):
            server = action.get_transport("board", "rdma_server")
            server.wait_ready(60)
            print("serves", flush=True)
            mem = action.get_transport("mem", "rdma")
            mem.reg(8)
            mem.read(8, 0)
            return {}
        """)
    with memory(4096, "mem") as mem, one.running(activation_id="x", transports=["board;rdma_tcp_server;size,4096;", "mem;rdma_tcp;"]) as answers:
        one.until_printed("serves")
        status, said = one.ask(method, "/action/x/messages", None if method == "GET" else {})
        assert status == 200 and said["ok"] is True and list(said["messages"]) == ["board"]
        assert said["messages"]["board"].startswith("board;rdma_tcp;")
        assert one.ask(method, "/action/nobody/messages", None)[0] == 404
        one.put("x", "mem", mem.durl)
    assert answers == [(200, {})]
    assert one.ask(method, "/action/x/messages", None)[0] == 404


@pytest.mark.parametrize("method, path, status", [("GET", "/action/a/transport/t", 405), ("PUT", "/action/a", 405), ("POST", "/action/", 404),
                                                  ("POST", "/action/a/", 404), ("PUT", "/action/a/transport/", 404), ("DELETE", "/action/a", 405),
                                                  ("POST", "/action/a/messages/b", 404), ("POST", "/action/a/colours", 404),
                                                  ("PUT", "/action/a/transport/t/u", 404), ("POST", "/action", 404)])
def test_paths_that_are_none(whisk, method, path, status):
    assert whisk().ask(method, path, {})[0] == status


def test_the_id_has_scads_name_too(whisk):
    # Scad's launcher: __OW_AID; OpenWhisk's: __OW_ACTIVATION_ID
    one = whisk().loaded("import os\ndef main(params, action): return {'aid': os.environ['__OW_AID'], 'name': action.kw['name']}")
    assert one.run(activation_id="abc", action_name="/guest/app/part", name="abc") == (200, {"aid": "abc", "name": "app/part"})


# --- memory

MEMORY = "type: memory\nlimits:\n  mem: {mem}\n"


def test_memory_that_is_given_no_server_does_not_serve_nothing(whisk):
    # Scad: main of a memory element asks for the server, and raises
    one = whisk().loaded(MEMORY.format(mem="1 MB"))
    status, said = one.run(transports=["mem;rdma_tcp;"])
    assert status == 502 and "none of them is a server" in said["error"]
    status, said = one.run({"__weft": {"name": "x", "configure": "http://127.0.0.1:1/action/a/transport/x", "sise": 5}})
    assert status == 502 and "did you mean 'size'" in said["error"]


def test_a_size_without_a_unit_is_megabytes(whisk):
    # Scad: MB
    whisk().loaded(MEMORY.format(mem="2"))
    assert code.memory_of(MEMORY.format(mem="2"), "m", "m.o.yaml") == {"name": "m", "size": 2 << 20}
    assert _size.of_limit(" 2 ") == 2 << 20 and _size.of_limit("2k") == 2048
    for bad in ("", "0", "x", None, "2.5", "-1", "\u0662"):
        with pytest.raises(ValueError):
            _size.of_limit(bad)


def test_a_zip_with_two_elements_of_one_name_is_refused(whisk):
    one = whisk()
    status, said = one.init({"it.o.py": "def main(params): return {}", "it.o.yaml": MEMORY.format(mem="1M")})
    assert status == 502 and "both it.o.py and it.o.yaml" in said["error"]
    assert one.init({"it.o.py": "def main(params): return {}"})[0] == 200
