"""What runs inside a call: numbers, buffers, loops, destructors and signals that close, abort or call again. An exception,
never a crash."""
# ctest: long
import asyncio
import gc
import os
import signal
import threading
import time

import pytest

import weft
import weft.blocking
from conftest import BOUND, connected
from weft import _core


class Number:
    """One that does something when it is asked for."""
    def __init__(self, act):
        self.act = act

    def __index__(self):
        self.act()
        return 1

    def __float__(self):
        self.act()
        return 1.0

    def __bool__(self):
        self.act()
        return True


CALLS = {
    "send": lambda ep, evil: ep.send(b"x", evil),
    "recv": lambda ep, evil: ep.recv(evil),
    "recv mask": lambda ep, evil: ep.recv(1, evil),
    "recv timeout": lambda ep, evil: ep.recv(1, timeout=evil),
    "recv_into": lambda ep, evil: ep.recv_into(bytearray(1), evil),
    "am_send": lambda ep, evil: ep.am_send(evil, b"x", b"head"),
    "am_send confirm": lambda ep, evil: ep.am_send(1, b"x", b"head", confirm=evil),
    "am_recv": lambda ep, evil: ep.am_recv(evil),
    "am_recv timeout": lambda ep, evil: ep.am_recv(timeout=evil),
    "probe": lambda ep, evil: ep.probe(evil),
    "send_many": lambda ep, evil: ep.send_many([b"x"], evil),
    "recv_many": lambda ep, evil: ep.recv_many([bytearray(1)], evil),
}
RUNTIME_CALLS = {
    "recv_any": lambda ep, evil: ep.runtime.recv_any(evil),
    "recv_any_into": lambda ep, evil: ep.runtime.recv_any_into(bytearray(1), evil),
    "probe_any": lambda ep, evil: ep.runtime.probe_any(evil),
}
CASES = [(call, closes) for closes in ("runtime", "endpoint") for call in CALLS] + [(call, "runtime") for call in RUNTIME_CALLS]
CALLS |= RUNTIME_CALLS


@pytest.mark.parametrize("call, closes", CASES)
def test_a_number_that_closes_what_is_being_called(run, call, closes):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            with pytest.raises(weft.ClosedError):
                CALLS[call](p.a, Number(left._close if closes == "runtime" else p.a.abort))
            assert p.a.closed
    run(body())


@pytest.mark.parametrize("call, closes", [case for case in CASES if "many" not in case[0]])
def test_a_number_that_closes_what_is_being_called_without_a_loop(call, closes):
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        ep = left.connect(listener.uri, timeout=BOUND)
        with pytest.raises(weft.ClosedError):
            CALLS[call](ep, Number(left._close if closes == "runtime" else ep.abort))
        assert ep.closed


def test_a_listener_and_a_message_whose_arguments_close_them(run):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            with pytest.raises(weft.ClosedError):
                p.listener.accept(timeout=Number(p.listener.close))
            await p.a.am_send(1, b"payload")
            m = await p.b.am_recv(1)
            with pytest.raises(weft.StateError, match="released"):
                m.read(timeout=Number(m.release))
            await p.a.am_send(1, b"payload")
            m = await p.b.am_recv(1)
            with pytest.raises(weft.StateError, match="released"):
                m.reject(Number(m.release))
            with pytest.raises(weft.ClosedError):
                right._listen("tcp://127.0.0.1:0", backlog=Number(right._close))
            with pytest.raises(weft.ClosedError):
                left._connect("tcp://127.0.0.1:1", shared=Number(left._close))
    run(body())


def test_a_runtime_that_was_never_opened(run):
    async def body():
        bare = _core.Runtime.__new__(_core.Runtime)
        assert bare.closed and bare.name == "" and bare.endpoints() == [] and "closed" in repr(bare)
        for act in (bare.stats, lambda: bare._connect("tcp://127.0.0.1:1"), lambda: bare._listen("tcp://127.0.0.1:0"),
                    lambda: bare._am_handle(1, print)):
            with pytest.raises(weft.ClosedError):
                act()
        bare._turn()
        bare._timer()
        bare._close()
    run(body())


def test_a_runtime_is_opened_once(run):
    async def body():
        bare = _core.Runtime.__new__(_core.Runtime)
        with pytest.raises(weft.StateError):
            bare.__init__(heartbeat=Number(bare.__init__))
        files = len(os.listdir("/proc/self/fd"))
        with pytest.raises(weft.StateError):
            bare.__init__()
        assert len(os.listdir("/proc/self/fd")) == files
        bare._close()
        with pytest.raises(weft.StateError):
            bare.__init__()
        half = _core.Runtime.__new__(_core.Runtime)
        with pytest.raises(AttributeError):
            half.__init__(loop=object())
        assert half.closed
        with pytest.raises(weft.ClosedError):
            half.stats()
    run(body())


class Loop:
    """As little of a loop as a runtime asks for; does something when it is asked."""
    def __init__(self):
        self.act = lambda: None

    def call_soon(self, *args, **kw):
        self.act()

    def call_later(self, *args):
        self.act()

    def add_reader(self, *args):
        self.act()

    def remove_reader(self, *args):
        pass

    def is_closed(self):
        return False

    @property
    def _ready(self):
        return self

    def __len__(self):
        self.act()
        return 0


def test_a_loop_that_closes_the_runtime_when_it_is_asked():
    for calls in range(6):
        loop = Loop()
        runtime = _core.Runtime(loop=loop)
        left = [calls]

        def act():
            left[0] -= 1
            if left[0] < 0:
                runtime._close()
        loop.act = act
        for act in (runtime._turn, runtime._turn, lambda: runtime._listen("tcp://127.0.0.1:0"),
                    lambda: runtime._connect("tcp://127.0.0.1:1"),
                    lambda: next(runtime._connect("tcp://127.0.0.1:1")), runtime._timer, runtime._turn):
            try:
                act()
            except (weft.WeftError, StopIteration):
                pass
        runtime._close()


def test_a_loop_of_another_thread_is_refused(run):
    async def body():
        loop = asyncio.get_running_loop()

        def other():
            with pytest.raises(weft.StateError, match="another thread"):
                _core.Runtime(loop=loop)
            return True
        assert await asyncio.to_thread(other)
    run(body())


def test_a_destructor_inside_progress_cannot_close_the_runtime(pair):
    """It is told so, and nothing was undone: the loop is still woken by what comes later."""
    async def body(p):
        said = []

        class Buffer(bytearray):
            def __del__(self):
                try:
                    p.right._close()
                except weft.StateError as error:
                    said.append(str(error))
        op = p.b.recv_into(Buffer(8), tag=1)
        await p.a.send(b"x", tag=1)
        await op
        del op
        gc.collect()
        assert len(said) == 1 and "progress" in said[0]

        async def receive():
            return await p.b.recv(tag=2)
        task = asyncio.create_task(receive())
        await asyncio.sleep(0.1)
        await p.a.send(b"y", tag=2)
        assert await asyncio.wait_for(task, BOUND / 2) == b"y"
    pair(body, heartbeat=1000)


def test_a_listener_that_goes_in_another_thread(run):
    """The collector runs where it likes: connections that come meanwhile find a handler or nothing, never freed memory."""
    async def body():
        async with weft.Runtime() as right, weft.Runtime(connect_timeout=2) as left:
            for _ in range(30):
                holder = [right.listen("tcp://127.0.0.1:0", lambda ep: None)]
                uri = holder[0].uri
                connecting = [left.connect(uri) for _ in range(3)]
                thread = threading.Thread(target=holder.clear)
                thread.start()
                await asyncio.gather(*connecting, return_exceptions=True)
                thread.join()
                assert not holder
    run(body())


def test_on_close_is_called_whoever_closes(pair):
    async def body(p):
        for how in ("own", "abort", "peer", "runtime"):
            left = weft.Runtime()
            q = await connected(left, p.right)
            told, done = [], asyncio.Event()

            def tell(ep):
                told.append(ep)
                done.set()
            q.a.on_close = tell
            if how == "own":
                await q.a.close()
            elif how == "abort":
                await q.a.abort()
            elif how == "peer":
                await q.b.close()
            else:
                left._close()
            await asyncio.wait_for(done.wait(), BOUND / 2)
            assert told == [q.a] and q.a.on_close is None, how
            left._close()
            await asyncio.sleep(0)
            assert len(told) == 1, how
    pair(body)


def test_a_child_that_closes_takes_nothing_from_its_parents_loop(pair):
    async def body(p):
        pid = os.fork()
        if not pid:
            try:
                p.left._close()
                p.right._close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

        async def receive():
            return await p.b.recv(tag=1)
        task = asyncio.create_task(receive())
        await asyncio.sleep(0.1)  # asleep: only the fd can wake it
        await p.a.send(b"x", tag=1)
        assert await asyncio.wait_for(task, BOUND / 2) == b"x"
    pair(body, heartbeat=1000)


def blocking_pair():
    left, right = weft.blocking.Runtime(), weft.blocking.Runtime()
    listener = right.listen("tcp://127.0.0.1:0")
    got = []
    thread = threading.Thread(target=lambda: got.append(listener.accept(timeout=BOUND)))
    thread.start()
    a = left.connect(listener.uri, timeout=BOUND)
    thread.join()
    return left, right, a, got[0]


def test_a_child_closes_while_a_thread_of_its_parent_waits():
    left, right, a, b = blocking_pair()
    thread = threading.Thread(target=lambda: b.recv(tag=1, timeout=BOUND))
    thread.start()
    time.sleep(0.1)
    pid = os.fork()
    if not pid:
        try:
            right.close()
            os._exit(42 if right.closed else 1)
        finally:
            os._exit(2)
    until = time.monotonic() + BOUND / 2
    ended = (0, 0)
    while not ended[0] and time.monotonic() < until:
        ended = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    if not ended[0]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    a.send(b"x", tag=1)
    thread.join()
    right.close()
    left.close()
    assert ended[0] and os.waitstatus_to_exitcode(ended[1]) == 42


def test_a_signal_handler_that_closes_what_its_thread_waits_in():
    left, right, a, b = blocking_pair()
    before = signal.signal(signal.SIGALRM, lambda *_: right._close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(weft.StateError, match="signal handler"):
            b.recv(tag=1, timeout=BOUND)
    finally:
        signal.signal(signal.SIGALRM, before)
    a.send(b"x", tag=2)
    assert b.recv(tag=2, timeout=BOUND) == b"x"  # it is still open
    left.close()
    right.close()


def test_messages_that_come_while_the_runtime_is_closed():
    for _ in range(50):
        left, right, a, b = blocking_pair()
        got = []

        def take():
            try:
                while True:
                    got.append(b.am_recv(timeout=BOUND))
            except weft.WeftError:
                pass
        thread = threading.Thread(target=take)
        thread.start()
        for _ in range(10):
            a.am_send(1, b"x" * 50)
        right._close()
        thread.join()
        for m in got:
            with pytest.raises(weft.StateError):
                m.read()
        got.clear()
        left._close()


def test_arrays_of_objects_are_refused(pair):
    numpy = pytest.importorskip("numpy")

    async def body(p):
        for dtype in (object, [("Ordinal", "i4"), ("x", "O")], [("t", "M8[s]"), ("x", "O")]):
            array = numpy.empty(4, dtype=dtype)
            with pytest.raises(weft.InvalidError, match="Python objects"):
                p.b.recv_into(array)
            with pytest.raises(weft.InvalidError, match="Python objects"):
                p.a.send(array)
        for dtype in ([("Ordinal", "i4")], "M8[s]", "c16", "U3"):
            array, into = numpy.ones(4, dtype=dtype), numpy.zeros(4, dtype=dtype)
            await p.a.send(array)
            assert await p.b.recv_into(into) == array.nbytes
            assert (array == into).all()
    pair(body)


def test_text_with_a_nul_or_cut_in_the_middle(run):
    async def body():
        with pytest.raises(ValueError, match="NUL"):
            weft.connect("tcp://127.0.0.1:1\0x")
        with pytest.raises(ValueError, match="NUL"):
            weft.listen("tcp://127.0.0.1:0\0x")
        with pytest.raises(TypeError, match="uri is a .* should be a str"):
            weft.connect(b"tcp://127.0.0.1:1")
        for n in range(100, 300):
            with pytest.raises(weft.WeftError):
                await weft.connect("x" * (n % 2) + "é" * n + "://")
        with pytest.raises(OverflowError, match="tag is not between"):
            ep = await one()
            ep.send(b"", 10**5000)

    async def one():
        listener = weft.listen("tcp://127.0.0.1:0")
        accepting = listener.accept()
        await weft.connect(listener.uri)
        return await accepting
    run(body())


def test_types_stay_what_they_are(pair):
    async def body(p):
        with pytest.raises(TypeError):
            p.a.__class__ = _core.BlockingEndpoint
        with pytest.raises(TypeError):
            _core.Endpoint.send = None
    pair(body)


def test_a_loop_that_is_run_in_another_thread_than_its_runtime_was_made_in():
    loop = asyncio.new_event_loop()
    runtime, got = weft.Runtime(loop=loop), []

    async def body():
        await asyncio.sleep(0.01)  # a turn, which is the loop's word that this thread is its
        async with runtime:
            p = await connected(runtime, runtime)
            await p.a.send(b"x")
            got.append(await p.b.recv())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait_for(body(), BOUND)))
    thread.start()
    thread.join()
    loop.close()
    assert got == [b"x"]


def test_turns_are_the_loops(pair):
    async def body(p):
        def other():
            for turn in (p.left._turn, p.left._timer):
                with pytest.raises(weft.StateError, match="another thread"):
                    turn()
        await asyncio.to_thread(other)
        await p.a.send(b"x")
        assert await p.b.recv() == b"x"
        with weft.blocking.Runtime() as runtime:
            assert runtime._turn() is None and runtime._timer() is None
    pair(body)


def test_a_registry_that_is_closed_under_its_watch(run):
    async def body():
        async with weft.Runtime() as runtime:
            registry = runtime.registry("memory://watched")
            watches = [registry.watch("service") for _ in range(3)]
            await registry.close()
            assert [change async for change in watches[0]] == []
            del watches[1]
            gc.collect()
        assert watches
    run(body())
