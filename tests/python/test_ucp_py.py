"""`ucp_py`, the first generation of UCX-Py: connecting, objects, futures and requests, and peers that go."""
import asyncio
import os
import signal
import sys
import time

import pytest

import ucp_py
import weft
from ucp_py import _types

np = pytest.importorskip("numpy")

# answers every message with the same object, and ends when its peer does
ECHO = """
import sys, ucp_py, weft
def talk(ep):
    try:
        while True:
            obj = ucp_py.get_obj_from_msg(ep.recv_future().result())
            ep.send_msg(obj, sys.getsizeof(obj)).result()
    except weft.WeftError:
        ucp_py.stop_listener()
ucp_py.init()
listener = ucp_py.start_listener(talk, 0)
print(listener.port, flush=True)
listener.result()
ucp_py.fin()
"""


@pytest.fixture(autouse=True)
def initialised():
    assert ucp_py.init() == 0
    yield
    assert ucp_py.fin() == 0


@pytest.fixture
def echo(child):
    return int(child(ECHO).stdout.readline())


OBJECTS = [b"", b"bytes", bytearray(b"array"), "text", "\N{SNOWMAN}\ud800", 0, -1, 255, -256, 1 << 200, -(1 << 200), 0.0, -1.5,
           float("inf"), True, False, None,
           b"x" * 3_000_000, bytearray(2_000_000)]
ARRAYS = [np.arange(12, dtype="f8").reshape(3, 4), np.asfortranarray(np.arange(12, dtype="i4").reshape(3, 4)), np.zeros((0, 3)),
          np.array(7.5), np.array(["ab", "c"]),
          np.array([b"x", b"yz"]), np.array([True, False]), np.array([1 + 2j]), np.arange(5, dtype=">u2"),
          np.array(["2024-01-01"], dtype="M8[ns]"), np.int16(-3),
          np.random.rand(1000, 500)]


def same(a, b):
    if isinstance(a, (np.ndarray, np.generic)):
        return isinstance(b,
                          np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and (np.asarray(a) == b).all() and b.flags.writeable
    return type(a) is type(b) and a == b


def test_objects_come_back_as_they_were(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    for obj in OBJECTS + ARRAYS:
        request = ep.send_msg(obj, sys.getsizeof(obj))
        assert isinstance(request, ucp_py.ucp_comm_request)
        got = ep.recv_msg(None, 0)
        assert isinstance(request.result(), ucp_py.ucp_msg)
        assert same(obj, ucp_py.get_obj_from_msg(got.result())), obj
        assert same(obj, ucp_py.get_obj_from_msg(got))
    assert ucp_py.destroy_ep(ep) == 0


@pytest.mark.parametrize("obj", [[1], {"a": 1}, object(), {1}, np.array([object()]), np.zeros(3, dtype=[("a", "i4")]),
                                 np.arange(10)[::2], memoryview(b"abcdef")[::2]])
def test_what_cannot_be_sent_says_so(echo, obj):
    ep = ucp_py.get_endpoint("127.0.0.1", echo)
    with pytest.raises(weft.InvalidError, match="cannot be sent|contiguous"):
        ep.send_msg(obj, 8)
    ep.send_msg(b"still good", 10).result()
    assert ucp_py.get_obj_from_msg(ep.recv_msg().result()) == b"still good"


def test_into_the_memory_of_an_object(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    array, into = np.arange(100_000, dtype="i8"), np.zeros(100_000, dtype="i8")
    receive = ep.recv_msg(into, into.nbytes)
    ep.send_msg(array, array.nbytes).result()
    msg = receive.result()
    assert (into == array).all() and ucp_py.get_obj_from_msg(msg) is into and msg.get_comm_len() == array.nbytes
    buffer = bytearray(10)
    ep.send_msg(b"seven b", 7)
    assert ep.recv_obj(buffer, sys.getsizeof(buffer)).result().get_comm_len() == 7
    assert buffer == b"seven b\0\0\0"
    template = bytes(5)  # cannot be written to: it only says what is expected
    ep.send_obj(b"other", sys.getsizeof(b"other")).result()
    assert ucp_py.get_obj_from_msg(ep.recv_obj(template, sys.getsizeof(template)).result()) == b"other"
    assert template == bytes(5)


def test_a_message_that_is_too_long_is_refused_and_the_next_is_received(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    for n in (100, 1_000_000):
        ep.send_msg(bytes(n), n)
        with pytest.raises(weft.TruncatedError, match=str(n)):
            ep.recv_msg(bytearray(10), 10).result()
        try:
            ep.send_msg("next", 4)
            assert ucp_py.get_obj_from_msg(ep.recv_msg().result()) == "next"
        except weft.WeftError:
            assert n > 100  # its sender heard that the large one was refused, and has ended
            return


def test_a_part_of_an_object(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    ep.send_msg(b"only this", 4).result()
    assert ucp_py.get_obj_from_msg(ep.recv_msg().result()) == b"only"
    for whole in ("text", 1 << 100, np.arange(100).reshape(10, 10)):
        ep.send_msg(whole, 2).result()
        assert same(whole, ep.recv_msg().result().get_obj())
    for bad in (-1, 1.5, "1", None, True):
        with pytest.raises((weft.InvalidError, TypeError)):
            ep.send(ucp_py.ucp_msg(None), bad)


def test_done_drives(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    receive = ep.recv_future()
    assert isinstance(receive, ucp_py.CommFuture) and not receive.done()
    ep.send_msg(bytes(1_000_000), 1_000_000)
    end = time.monotonic() + 30
    while not receive.done():
        assert time.monotonic() < end
    assert len(receive.result().get_obj()) == 1_000_000


def test_progress_drives(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    receive = ep.recv_future()
    ep.send_msg(b"x", 1)
    end, happened = time.monotonic() + 30, 0
    while not receive._under_way._over:  # which done() would drive
        happened += ucp_py.progress()
        assert time.monotonic() < end
    assert happened


def test_both_first_receive_and_then_send(echo, child):
    """Each waits for its own send alone, which ends when the other has taken it."""
    program = """
import sys, ucp_py, weft
ucp_py.init()
def talk(ep):
    receive = ep.recv_future()
    ep.send_msg(bytes(20_000_000), 20_000_000).result()
    print(len(receive.result().get_obj()), flush=True)
    ucp_py.stop_server()
listener = ucp_py.start_listener(talk, 0)
print(listener.port, flush=True)
listener.result()
ucp_py.fin()
"""
    server = child(program)
    ep = ucp_py.get_endpoint(b"127.0.0.1", int(server.stdout.readline()))
    receive = ep.recv_future()
    ep.send_msg(bytes(20_000_000), 20_000_000).result()
    assert len(receive.result().get_obj()) == 20_000_000
    assert server.stdout.readline() == "20000000\n"


def test_in_asyncio(run, echo):
    async def body():
        ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
        for obj in OBJECTS + ARRAYS:
            receive = ep.recv_future()
            await ep.send_obj(obj, sys.getsizeof(obj))
            msg = await receive
            assert same(obj, ucp_py.get_obj_from_msg(msg))
            assert await receive is msg
        # and synchronously, in a task that was just woken
        await asyncio.sleep(0.01)
        ep.send_msg(b"sync", 4).result()
        assert ep.recv_msg().result().get_obj() == b"sync"
        futures = [ep.recv_obj() for _ in range(100)]
        for i in range(100):
            ep.send_obj(i)
        assert [m.get_obj() for m in await asyncio.gather(*futures)] == list(range(100))
        ucp_py.destroy_ep(ep)
    run(body())


def test_one_loop_after_the_other_and_none(run, echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)

    async def body(obj):
        await ep.send_obj(obj)
        assert (await ep.recv_obj()).get_obj() == obj
    run(body("in a loop"))
    ep.send_msg("by hand").result()
    assert ep.recv_msg().result().get_obj() == "by hand"
    run(body("in another"))


def test_a_cancelled_await_takes_no_message(run, echo):
    async def body():
        ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
        receive = ep.recv_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive, 0.05)
        with pytest.raises(asyncio.CancelledError):
            receive.result()
        await ep.send_obj("for the next")
        assert (await ep.recv_future()).get_obj() == "for the next"
    run(body())


def test_cancel(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    receive = ep.recv_future()
    assert receive.cancel() and receive.done()
    with pytest.raises(asyncio.CancelledError):
        receive.result()
    assert not receive.cancel()


def test_connecting_takes_no_longer_than_it_may():
    with pytest.raises(weft.RefusedError):
        ucp_py.get_endpoint(b"127.0.0.1", 1)
    import socket
    silent = socket.create_server(("127.0.0.1", 0))
    try:
        with pytest.raises(weft.TimeoutError):
            ucp_py.get_endpoint(b"127.0.0.1", silent.getsockname()[1], max_timeout=0.2)
    finally:
        silent.close()
    for bad in ((b"127.0.0.1", -1), (b"127.0.0.1", "1"), (7, 1), (b"not a host\xff", 1), ("", 99999999)):
        with pytest.raises((weft.WeftError, TypeError)):
            ucp_py.get_endpoint(*bad, max_timeout=5)


def test_an_endpoint_that_is_made_first_and_connected_then(echo):
    ep = ucp_py.ucp_py_ep()
    with pytest.raises(weft.ClosedError):
        ep.send_msg(b"x")
    assert ep.connect(b"127.0.0.1", echo) == 0
    with pytest.raises(weft.StateError):
        ep.connect(b"127.0.0.1", echo)
    ep.send_msg(b"x").result()
    assert ep.recv_msg().result().get_obj() == b"x"
    assert ep.close() == 0 and ep.close() == 0
    with pytest.raises(weft.ClosedError):
        ep.recv_msg()


def test_closing_lets_everything_arrive_and_ends_receives(child):
    server = child("""
import ucp_py, weft
ucp_py.init()
def talk(ep):
    n = 0
    try:
        while True:
            n += len(ep.recv_future().result().get_obj())
    except weft.ClosedError:
        print(n, flush=True)
        ucp_py.stop_server()
listener = ucp_py.start_listener(talk, 0)
print(listener.port, flush=True)
listener.result()
ucp_py.fin()
""")
    ep = ucp_py.get_endpoint(b"127.0.0.1", int(server.stdout.readline()))
    receive = ep.recv_future()
    sends = [ep.send_msg(bytes(n), n) for n in (10, 1000, 500_000, 10)]
    ucp_py.destroy_ep(ep)
    with pytest.raises(weft.ClosedError):
        receive.result()
    for send in sends:
        send.result()
    assert server.stdout.readline() == "501020\n"
    assert server.wait(30) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_killed_or_stopped_ends_what_is_under_way(child, how, monkeypatch):
    ucp_py.fin()
    monkeypatch.setenv("WEFT_HEARTBEAT", "1s")
    ucp_py.init()
    server = child(ECHO)
    ep = ucp_py.get_endpoint(b"127.0.0.1", int(server.stdout.readline()))
    ep.send_msg("here?").result()
    assert ep.recv_msg().result().get_obj() == "here?"
    under_way = [ep.recv_future(), ep.recv_msg(bytearray(5)), ep.recv_future()]
    server.send_signal(how)
    for one in under_way:
        with pytest.raises(weft.PeerError):
            one.result()
        assert one.done()
    with pytest.raises(weft.WeftError):
        ep.send_msg(bytes(10_000_000)).result()


@pytest.mark.parametrize("note, payload", [(b"", b""), (b"pickle", b"cos\nsystem\n"), (b"float", b"1234567"), (b"int", b""),
                                           (b"bool", b""), (b"none", b"x"),
                                           (b"array <f8 C 3", b"x" * 23), (b"array <f8 C 99999999999,99999999999", b"x"),
                                           (b"array |O8 C 1", b"x" * 8),
                                           (b"array <f3 C 1", b"xxx"), (b"array <f8 C -1", b"x" * 8),
                                           (b"array <f8 C 3\n", b"x" * 24), (b"a" * 8000, b"")])
def test_a_note_that_is_none_is_refused(note, payload):
    with pytest.raises(ValueError):
        _types.check(note, len(payload))

    async def stranger(port):
        async with weft.Runtime() as runtime:
            ep = await runtime.connect(f"tcp://127.0.0.1:{port}")
            await ep.am_send(0x75637079, payload, note)
            await ep.am_send(0x75637079, b"good", b"bytes")
            await asyncio.wait([asyncio.ensure_future(_ended(ep))], timeout=30)

    async def _ended(ep):
        try:
            await ep.recv()
        except weft.WeftError:
            pass

    got = []

    def talk(ep):
        with pytest.raises(ValueError):
            ep.recv_future().result()
        got.append(ep.recv_future().result().get_obj())
        ucp_py.destroy_ep(ep)
        ucp_py.stop_server()
    import threading
    listener = ucp_py.start_listener(talk, 0)
    thread = threading.Thread(target=asyncio.run, args=(stranger(listener.port),))
    thread.start()
    listener.result()
    assert got == [b"good"]
    ucp_py.fin()
    thread.join(30)


def test_text_that_is_no_text_is_refused():
    with pytest.raises(ValueError):
        _types.decode(b"str", b"\xff\xfe")


def test_before_init_and_after_fin():
    ucp_py.fin()
    assert ucp_py.fin() == 0
    for call in (ucp_py.progress, ucp_py.stop_server, lambda: ucp_py.get_endpoint(b"127.0.0.1", 1),
                 lambda: ucp_py.start_server(print)):
        with pytest.raises(weft.StateError, match="init"):
            call()
    assert ucp_py.init() == 0 and ucp_py.init() == 0
    assert ucp_py.progress() >= 0


def test_what_was_under_way_at_the_end_says_so(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    receive = ep.recv_future()
    ucp_py.fin()
    assert receive.done()
    with pytest.raises(weft.ClosedError):
        receive.result()
    assert ep.close() == 0


def test_a_forked_child_is_told():
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        said = b"nothing"
        try:
            ucp_py.progress()
        except weft.ForkedError as error:
            said = str(error).encode()
        finally:
            os.write(w, said)
            os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        assert "init" in f.read()
    os.waitpid(pid, 0)


def test_wrong_arguments_are_said(echo):
    ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
    for call in (lambda: ep.send(b"x", 1), lambda: ep.recv(b"x", 1), lambda: ep.send_fast(None, 1), lambda: ep.recv_fast(3, 1),
                 lambda: ucp_py.destroy_ep(None),
                 lambda: ucp_py.get_obj_from_msg(b"x"), lambda: ucp_py.start_server(None), lambda: ucp_py.stop_listener(1),
                 lambda: ucp_py.ucp_msg(b"x")):
        with pytest.raises(TypeError):
            call()
