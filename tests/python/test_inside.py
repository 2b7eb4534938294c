"""Calls that wait, made where nobody may wait: inside the progress of an event loop's runtime, by destructors of buffers. They
are refused, or done
without waiting, and nothing of them is left behind."""
import asyncio
import gc
import os
import threading

import pytest

import weft
import weft.blocking
from conftest import BOUND, connected


class Act(bytearray):
    """Does something when it is let go of, once."""
    act = None

    def __del__(self):
        act, self.act = self.act, None
        if act:
            act()


def inside(run, act):
    """Call act() inside progress: the runtime lets go of a buffer when its operation is complete. Gives what it gave or
    raised."""
    came = []

    def caught():
        try:
            came.append(act())
        except Exception as error:
            came.append(error)

    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            buffer = Act(100)
            op = p.b.recv_into(buffer, tag=1)
            buffer.act = caught
            del buffer
            await p.a.send(b"x", tag=1)
            await op
            while not came:
                await asyncio.sleep(0)
    run(body())
    return came[0]


@pytest.fixture(params=["thread", "caller"])
def sides(request):
    """Two blocking endpoints, of which the second has a runtime of this kind."""
    with weft.blocking.Runtime() as left, weft.blocking.Runtime(progress=request.param, close_timeout=1) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        got = []
        thread = threading.Thread(target=lambda: got.append(listener.accept(timeout=BOUND)))
        thread.start()
        a = left.connect(listener.uri, timeout=BOUND)
        thread.join(BOUND)
        yield a, got[0], listener
        a.abort()


CALLS = {
    "recv": lambda b, listener: b.recv(tag=1, timeout=5),
    "recv_into": lambda b, listener: b.recv_into(bytearray(10), tag=1, timeout=5),
    "recv_many": lambda b, listener: b.recv_many([bytearray(10), bytearray(10)], tag=1, timeout=5),
    "send": lambda b, listener: b.send(bytes(5_000_000), timeout=5),
    "am_recv": lambda b, listener: b.am_recv(1, timeout=5),
    "accept": lambda b, listener: listener.accept(timeout=5),
    "connect": lambda b, listener: b.runtime.connect(listener.uri, timeout=5),
    "recv_any": lambda b, listener: b.runtime.recv_any(tag=1, timeout=5),
    "close": lambda b, listener: b.close(timeout=5),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_waits_is_refused_inside_progress(run, sides, name):
    a, b, listener = sides
    error = inside(run, lambda: CALLS[name](b, listener))
    assert isinstance(error, weft.StateError) and "inside the progress" in str(error), error
    for i in range(3):  # nothing was posted that would take it
        a.send(b"%d" % i, tag=1)
        assert b.recv(tag=1, timeout=BOUND) == b"%d" % i


def test_what_need_not_wait_is_done_inside_progress(run, sides):
    a, b, listener = sides
    assert isinstance(inside(run, lambda: b.probe(tag=1)), weft.StateError)  # it would have to ask another runtime
    assert inside(run, b.abort) is None
    with pytest.raises(weft.ClosedError):
        b.recv(timeout=1)


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_a_blocking_runtime_can_be_closed_inside_progress(run, progress):
    runtime = weft.blocking.Runtime(progress=progress, close_timeout=1)
    listener = runtime.listen("tcp://127.0.0.1:0")
    ended = []

    def waits():
        try:
            listener.accept(timeout=BOUND)
        except weft.ClosedError as error:
            ended.append(error)
    thread = threading.Thread(target=waits)
    thread.start()
    assert inside(run, runtime._close) is None
    assert runtime.closed
    thread.join(BOUND)
    assert ended
    with pytest.raises(weft.ClosedError):
        runtime.listen("tcp://127.0.0.1:0")


def test_a_blocking_runtime_can_be_collected_inside_progress(run):
    held = [weft.blocking.Runtime(close_timeout=1)]
    held[0].listen("tcp://127.0.0.1:0")
    with pytest.warns(ResourceWarning, match="unclosed"):
        assert inside(run, lambda: (held.clear(), gc.collect())[0]) is None


def test_a_runtime_of_a_loop_stays_open_inside_the_progress_of_another(run):
    came = []

    def close(other):
        try:
            other._close()
        except weft.StateError as error:
            came.append(str(error))

    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right, weft.Runtime() as other:
            p = await connected(left, right)
            buffer = Act(100)
            buffer.act = lambda: close(other)
            op = p.b.recv_into(buffer, tag=1)
            del buffer
            await p.a.send(b"x", tag=1)
            await op
            assert "progress" in came[0] and not other.closed
            q = await connected(left, other)  # it is as it was
            await q.a.send(b"y", tag=1)
            assert await q.b.recv(tag=1) == b"y"
    run(body())


def test_a_runtime_of_a_loop_that_is_collected_inside_progress_is_closed_after_it(run):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            before = len(os.listdir("/proc/self/fd"))
            loop = asyncio.new_event_loop()
            held = [weft.Runtime(loop=loop)]
            loop.close()  # which has held it
            assert len(os.listdir("/proc/self/fd")) > before
            buffer = Act(100)
            buffer.act = lambda: (held.clear(), gc.collect())
            op = p.b.recv_into(buffer, tag=1)
            del buffer
            with pytest.warns(ResourceWarning, match="unclosed"):
                await p.a.send(b"x", tag=1)
                await op
            while len(os.listdir("/proc/self/fd")) > before:  # one that is lost keeps what it has
                await asyncio.sleep(0.01)
    run(body())


def test_a_region_let_go_of_inside_progress_leaves_its_memory_alone(run):
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=BOUND)
        memory = bytearray(b"0" * 4096)
        held = [right.region(memory, rights="rw")]
        remote = a.attach(held[0].key(), timeout=BOUND)
        assert remote.read(n=4, timeout=BOUND) == b"0000"
        assert inside(run, held.clear) is None
        with pytest.raises(weft.WeftError):
            remote.read(n=4, timeout=BOUND)
        with pytest.raises(BufferError):
            memory.clear()  # it is held until the runtime is closed
    memory.clear()


def test_regions_let_go_of_while_another_thread_closes(run):
    """The one waits for the end of the region's memory, the other must not close the runtime under it."""
    for _ in range(30):
        runtime = weft.blocking.Runtime(close_timeout=1)
        regions = [runtime.region(bytearray(4096), name=f"r{i}") for i in range(20)]
        go = threading.Barrier(2)

        def drop(regions=regions, go=go):
            go.wait(BOUND)
            while regions:
                del regions[-1]
        thread = threading.Thread(target=drop)
        thread.start()
        go.wait(BOUND)
        runtime._close()
        thread.join(BOUND)
        assert not thread.is_alive() and runtime.closed
