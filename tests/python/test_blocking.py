"""The same without an event loop: calls that wait, from threads."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import weft
import weft.blocking


@pytest.fixture(params=["thread", "caller"])
def progress(request):
    return request.param


@pytest.fixture(params=["shm", "tcp"])
def transports(request):
    return request.param


@pytest.fixture
def sides(progress, transports):
    """Two endpoints of two runtimes; caller-driven ones are driven by the calls that wait, so each side has its thread."""
    # on a busy machine a caller may not come to drive it for long
    options = {"progress": progress, "transports": transports, "heartbeat": 120}
    with weft.blocking.Runtime(**options) as left, weft.blocking.Runtime(**options) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        got = []
        thread = threading.Thread(target=lambda: got.append(listener.accept(timeout=30)))
        thread.start()
        a = left.connect(listener.uri, timeout=30)
        thread.join(60)
        yield a, got[0]
        if progress == "caller":  # nobody drives the other side of a graceful close
            a.abort()
            got[0].abort()


def beside(function):
    """Run in another thread; returns what waits for it and raises what it raised."""
    result = []

    def run():
        try:
            result.append((function(), None))
        except BaseException as error:
            result.append((None, error))
    thread = threading.Thread(target=run)
    thread.start()

    def wait():
        thread.join(60)
        assert result, "the thread hangs"
        if result[0][1]:
            raise result[0][1]
        return result[0][0]
    return wait


def test_there_and_back(sides):
    a, b = sides

    def echo():
        for _ in range(500):
            b.send(b.recv(tag=1), tag=2)
        buf = bytearray(2_000_000)
        n = b.recv_into(buf, tag=1)
        b.send(buf[:n], tag=2)
    wait = beside(echo)
    for i in range(500):
        a.send(b"%d" % i, tag=1)
        assert a.recv(tag=2) == b"%d" % i
    data = os.urandom(1_000_000)
    a.send(data, tag=1)
    assert a.recv(tag=2) == data
    wait()


def test_a_message_leaves_though_nobody_drives():
    """The first one after a call that waited, of a program that then does something else, on a machine that is busy."""
    options = {"progress": "caller", "transports": "tcp", "heartbeat": 120}
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.callback(lambda p: (p.kill(), p.wait()), subprocess.Popen([sys.executable, "-IS", "-c", "while True: pass"]))
        first_messages(options)


def first_messages(options):
    for _ in range(60):
        with weft.blocking.Runtime(**options) as left, weft.blocking.Runtime(**options) as right:
            listener = right.listen("tcp://127.0.0.1:0")
            accepted = beside(lambda listener=listener: listener.accept(timeout=30))
            a = left.connect(listener.uri, timeout=30)
            b = accepted()
            wait = beside(lambda b=b: b.recv(tag=1, timeout=30))
            start = time.monotonic()
            while time.monotonic() - start < 0.02:
                pass  # the other one gets the processor now and then
            a.send(b"x", tag=1)
            assert wait() == b"x"
            a.abort()
            b.abort()


def test_others_run_while_one_waits(sides):
    a, b = sides
    wait = beside(lambda: b.recv(tag=1, timeout=60))
    start = time.monotonic()
    while time.monotonic() - start < 0.2:
        pass  # with the lock, most of the time
    a.send(b"x", tag=1)
    assert wait() == b"x"


def test_deadlines(sides):
    a, b = sides
    with pytest.raises(weft.TimeoutError):
        a.recv(tag=1, timeout=0.05)
    with pytest.raises(TimeoutError):
        a.recv_into(bytearray(3), 1, timeout=0.05)
    with pytest.raises(weft.TimeoutError):
        a.am_recv(timeout=0.05)


def test_active_messages(sides):
    a, b = sides

    def other():
        m = b.am_recv(5)
        assert m.header == b"head" and m.nbytes == 1_000_000
        b.am_send(6, m.read())
    wait = beside(other)
    a.am_send(5, b"y" * 1_000_000, header=b"head")
    m = a.am_recv(6)
    assert m.read() == b"y" * 1_000_000
    wait()


def test_ctrl_c_ends_a_wait(sides):
    a, _ = sides
    buf = bytearray(8)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        a.recv_into(buf, tag=1)
    timer.join()
    buf.append(0)


def test_closing_ends_what_others_wait_for(progress):
    with weft.blocking.Runtime(progress=progress) as runtime:
        listener = runtime.listen("tcp://127.0.0.1:0")
        wait = beside(listener.accept)
        time.sleep(0.05)
        listener.close()
        with pytest.raises(weft.ClosedError):
            wait()


def test_a_runtime_can_be_closed_while_threads_wait(progress):
    for _ in range(20):
        runtime = weft.blocking.Runtime(progress=progress)
        listener = runtime.listen("tcp://127.0.0.1:0")
        waits = [beside(listener.accept) for _ in range(4)]
        time.sleep(0.005)
        runtime._close()
        for wait in waits:
            with pytest.raises(weft.ClosedError):
                wait()
        with pytest.raises(weft.ClosedError):
            runtime.listen("tcp://127.0.0.1:0")


def test_the_default_runtime_and_with():
    with weft.blocking.listen("tcp://127.0.0.1:0") as listener:
        wait = beside(listener.accept)
        with weft.blocking.connect(listener.uri) as ep, wait() as peer:
            ep.send(b"x")
            assert peer.recv() == b"x"
        with pytest.raises(weft.ClosedError):
            ep.send(b"x")
    assert listener.closed and weft.blocking.runtime() is weft.blocking.runtime()


def test_what_has_no_loop_has_no_handlers():
    runtime = weft.blocking.runtime()
    with pytest.raises(weft.StateError):
        runtime._listen("tcp://127.0.0.1:0", print)
    with pytest.raises(weft.StateError):
        runtime._am_handle(1, print)
    with pytest.raises(ValueError):
        weft.blocking.Runtime(progress="loop")


def test_after_a_fork_there_is_a_sentence_and_a_new_runtime():
    runtime = weft.blocking.runtime()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            runtime.listen("tcp://127.0.0.1:0")
        except weft.ForkedError:
            fresh = weft.blocking.runtime()
            code = 42 if fresh is not runtime and fresh.listen("tcp://127.0.0.1:0").port else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


def test_a_lost_peer(child, progress, transports):
    with weft.blocking.Runtime(progress=progress, transports=transports, heartbeat=1) as runtime:
        listener = runtime.listen("tcp://127.0.0.1:0")
        process = child("import sys, weft.blocking as w\nep = w.connect(sys.argv[1])\nep.send(b'here')\nep.recv(tag=9)",
                        listener.uri)
        ep = listener.accept(timeout=30)
        assert ep.recv() == b"here"
        process.kill()
        with pytest.raises(weft.PeerError):
            ep.recv(timeout=30)
