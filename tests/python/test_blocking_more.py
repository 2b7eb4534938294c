"""The rest of what blocking endpoints do: many messages in one call, functions for active messages, on_close, IPv6, closing
within a time."""
import os
import signal
import socket
import threading
import time

import pytest

import weft
import weft.blocking
from conftest import BOUND


@pytest.fixture(params=["thread", "caller"])
def progress(request):
    return request.param


@pytest.fixture(params=["shm", "tcp"])
def sides(request, progress):
    with weft.blocking.Runtime(progress=progress, transports=request.param, heartbeat=120) as left, \
            weft.blocking.Runtime(progress=progress, transports=request.param, heartbeat=120) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        got = []
        thread = threading.Thread(target=lambda: got.append(listener.accept(timeout=BOUND)))
        thread.start()
        a = left.connect(listener.uri, timeout=BOUND)
        thread.join()
        yield a, got[0]
        a.abort()
        got[0].abort()


def beside(function, *args):
    result = []

    def run():
        try:
            result.append((function(*args), None))
        except BaseException as error:
            result.append((None, error))
    thread = threading.Thread(target=run)
    thread.start()

    def wait():
        thread.join(BOUND)
        assert result, "the thread hangs"
        if result[0][1]:
            raise result[0][1]
        return result[0][0]
    return wait


def until(condition):
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def test_many_in_one_call(sides):
    a, b = sides
    data = [b"%d" % i for i in range(1000)] + [b"x" * 500_000, b""]
    wait = beside(a.send_many, data, 1)
    buffers = [bytearray(len(d) + 1) for d in data]
    assert b.recv_many(buffers, 1, timeout=BOUND) == [len(d) for d in data]
    assert wait() is None
    assert all(bytes(buffer[:len(d)]) == d for buffer, d in zip(buffers, data))
    assert a.send_many([]) is None and b.recv_many(()) == []
    for buffer in buffers:
        buffer.append(0)  # nobody holds them any more


def test_many_that_fail(sides):
    a, b = sides
    buffers = [bytearray(2) for _ in range(3)]
    with pytest.raises(weft.TimeoutError):
        b.recv_many(buffers, 1, timeout=0.05)
    for buffer in buffers:
        buffer.append(0)
    with pytest.raises(TypeError):
        a.send_many([b"x", 7])
    with pytest.raises(weft.InvalidError):
        b.recv_many([bytearray(1), b"const"])
    wait = beside(b.recv_many, [bytearray(8) for _ in range(100)], 1)
    time.sleep(0.05)
    a.send(b"one", 1)
    b.runtime._close()
    with pytest.raises(weft.ClosedError):
        wait()


def test_what_many_say_is_of_the_first_that_failed(sides):
    a, b = sides
    with pytest.raises(weft.TimeoutError) as one:
        b.recv_into(bytearray(8), 1, timeout=0.02)
    with pytest.raises(weft.TimeoutError) as many:
        b.recv_many([bytearray(8), bytearray(8)], 1, timeout=0.02)
    assert str(many.value) == str(one.value)
    def send():  # where callers drive, the second may leave with the progress of the receive
        a.send_many([b"1", b"123456789"], 1)
        a.recv_into(bytearray(1), 2, timeout=BOUND)
    wait = beside(send)
    with pytest.raises(weft.TruncatedError, match="9 bytes"):
        b.recv_many([bytearray(4), bytearray(4)], 1, timeout=BOUND)
    b.send(b"x", 2)
    wait()


def test_ctrl_c_ends_many(sides):
    _, b = sides
    buffers = [bytearray(8) for _ in range(1000)]
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        b.recv_many(buffers, 1, timeout=BOUND)
    timer.join()
    for buffer in buffers:
        buffer.append(0)


def test_functions_for_active_messages(sides):
    a, b = sides
    seen, other = [], []

    def handler(message):
        seen.append((message.id, message.header, message.read()))
        message.endpoint.am_send(6, header=message.header)  # it may wait and send, like any thread
    b.runtime.am_handler(5, handler)
    b.runtime.am_handler(7, lambda message: other.append(message.read()))
    for i in range(50):
        a.am_send(5, b"x" * (i * 1000), header=b"%d" % i, timeout=BOUND)
    for i in range(50):
        assert a.am_recv(6, timeout=BOUND).header == b"%d" % i
    assert seen == [(5, b"%d" % i, b"x" * (i * 1000)) for i in range(50)]
    a.am_send(7, b"other", confirm=True, timeout=BOUND)  # waiting drives it, where nobody else does
    until(lambda: other)
    with pytest.raises(weft.StateError, match="take it away"):
        b.runtime.am_handler(5, print)
    b.runtime.am_handler(5, None)
    late = beside(lambda: a.am_send(5, b"late", confirm=True, timeout=BOUND))
    message = b.am_recv(5, timeout=BOUND)
    assert message.read(timeout=BOUND) == b"late"
    message.release()
    late()
    b.runtime.am_handler(5, None)
    for bad in (-1, 2**32):
        with pytest.raises(OverflowError):
            b.runtime.am_handler(bad, print)
    with pytest.raises(TypeError):
        b.runtime.am_handler(9, 7)


def test_a_function_that_fails_is_reported_and_the_next_message_comes(sides, monkeypatch):
    a, b = sides
    reported, seen = [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))

    def handler(message):
        seen.append(message.read())
        message.release()  # what is reported has it in its traceback
        raise KeyError(len(seen))
    b.runtime.am_handler(5, handler)
    for i in range(3):
        a.am_send(5, b"%d" % i, confirm=True, timeout=BOUND)
    until(lambda: len(reported) == 3)
    assert seen == [b"0", b"1", b"2"] and [e.args[0] for e in reported] == [1, 2, 3]


def test_a_function_may_close_the_runtime(progress):
    with weft.blocking.Runtime(progress=progress) as left, weft.blocking.Runtime(progress=progress) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        wait = beside(lambda: listener.accept(timeout=BOUND))
        a = left.connect(listener.uri, timeout=BOUND)
        kept = wait()
        right.am_handler(1, lambda message: right._close())
        try:
            a.am_send(1, b"end", confirm=True, timeout=BOUND)
        except weft.WeftError:
            pass  # it was told, or the end was sooner
        until(lambda: right.closed)
        assert kept.closed
        a.abort()


@pytest.mark.parametrize("how", ["own", "abort", "peer", "runtime"])
def test_on_close(sides, how):
    a, b = sides
    told = []
    a.on_close = told.append
    assert a.on_close == told.append
    with pytest.raises(TypeError):
        a.on_close = 7
    helper = beside(lambda: b.recv(tag=1, timeout=5)) if how != "peer" else None  # drives the other side, where nobody else does
    if how == "own":
        a.close()
    elif how == "abort":
        a.abort()
    elif how == "peer":
        helper = beside(lambda: a.recv(tag=1, timeout=5))
        b.close()
    else:
        a.runtime._close()
    until(lambda: told)
    assert told == [a] and a.on_close is None and a.closed
    with pytest.raises(weft.WeftError):
        helper()
    time.sleep(0.01)
    assert len(told) == 1


PEER = """
import sys, weft.blocking
ep = weft.blocking.connect(sys.argv[1])
ep.send(b"here", tag=1)
ep.recv(tag=2)
"""


def test_on_close_of_a_peer_that_is_killed(child):
    with weft.blocking.Runtime(heartbeat=1) as runtime:
        listener = runtime.listen("tcp://127.0.0.1:0")
        process = child(PEER, listener.uri)
        ep = listener.accept(timeout=BOUND)
        told = []
        ep.on_close = told.append
        assert ep.recv(tag=1, timeout=BOUND) == b"here"
        process.send_signal(signal.SIGKILL)
        until(lambda: told)
        assert ep.state == "failed"


def test_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        pytest.skip("there is no IPv6 loopback here")
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://[::1]:0")
        a = left.connect(f"tcp://[::1]:{listener.port}", timeout=BOUND, source="[::1]:0")
        b = listener.accept(timeout=BOUND)
        a.send(b"six")
        assert b.recv(timeout=BOUND) == b"six" and "[::1]" in b.info["peer_address"]


def test_close_within_a_time(sides):
    a, b = sides
    # which nobody receives: a graceful close has to wait for it
    sending = beside(lambda: a.send(bytes(8 << 20), 1, timeout=BOUND))
    time.sleep(0.05)
    with pytest.raises(weft.TimeoutError):
        a.close(timeout=0.2)
    assert a.closed
    with pytest.raises(weft.WeftError):
        sending()


def test_its_threads_end_with_the_runtime():
    def ours():
        return [t.name for t in threading.enumerate() if t.name in ("weft-am-1", "weft-on-close")]
    with weft.blocking.Runtime() as right, weft.blocking.Runtime() as left:
        listener = right.listen("tcp://127.0.0.1:0")
        left.am_handler(1, print)
        ep = left.connect(listener.uri)
        ep.on_close = lambda ep: None
        assert sorted(ours()) == ["weft-am-1", "weft-on-close"]
    until(lambda: not ours())
