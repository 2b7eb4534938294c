"""Nothing is left behind: the same work again and again, and the same number of objects and bytes afterwards."""
import asyncio
import ctypes
import gc
import sys
import tracemalloc
import weakref

import pytest

import weft
import weft.blocking
from conftest import connected

ROUNDS = 5
KINDS = (weft.Runtime, weft.Endpoint, weft.Listener)


async def everything(p, n):
    """One of each, n times; ends with nothing under way."""
    for i in range(n):
        buf = bytearray(64)
        await p.a.send(b"x" * (i % 50), tag=1)
        await p.b.recv_into(buf, tag=1)
        waiting = p.b.recv(tag=2)
        await asyncio.sleep(0)
        await p.a.send(b"late", tag=2)
        await waiting
        await p.a.send_many([b"1", b"2", b"3"], tag=3)
        await p.b.recv_many([bytearray(4) for _ in range(3)], tag=3)
        await p.a.am_send(4, b"payload", header=b"head")
        message = await p.b.am_recv(4)
        assert await message.read() == b"payload"
        cancelled = p.b.recv_into(buf, tag=5)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(weft.TruncatedError):
            await p.a.send(b"12345", tag=6)
            await p.b.recv_into(bytearray(1), tag=6)
        for bad in (lambda: p.a.send(7), lambda: p.a.send(b"", -1), lambda: p.b.recv_into(b"const"),
                    lambda: p.a.send(b"", nope=1)):
            with pytest.raises((TypeError, OverflowError, weft.InvalidError)):
                bad()
    while p.left.under_way or p.right.under_way:
        await asyncio.sleep(0.001)


def settle():
    for _ in range(3):
        gc.collect()


def test_operations_leave_nothing(pair):
    async def body(p):
        await everything(p, 100)
        await p.a.send(b"shared", tag=9)
        data, none = await p.b.recv(tag=9), sys.getrefcount(None)
        objects, sizes = [], []
        tracemalloc.start()
        for _ in range(ROUNDS):
            await everything(p, 100)
            settle()
            objects.append(len(gc.get_objects()))
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert objects[-1] - objects[1] < 50, objects
        assert sizes[-1] - sizes[1] < 20_000, sizes
        assert abs(sys.getrefcount(None) - none) < 500
        assert sys.getrefcount(data) == 2 and sys.getrefcount(p.a) < 10
    pair(body)


def test_connections_and_runtimes_leave_nothing(run):
    async def one():
        async with weft.Runtime() as left, weft.Runtime() as right:
            served = asyncio.Event()

            async def handler(ep):
                await ep.recv()
                served.set()
            listener = right.listen("tcp://127.0.0.1:0", handler)
            right.am_handler(1, lambda m: None)
            ep = await left.connect(listener.uri)
            ep.on_close = lambda ep: None
            await ep.am_send(1, b"x")
            await ep.send(b"x")
            await served.wait()

    async def body():
        counts = []
        for _ in range(ROUNDS + 1):
            for _ in range(10):
                await one()
            await asyncio.sleep(0)  # the loop still has the last turn of a closed runtime among its next things
            settle()
            counts.append((sum(isinstance(o, KINDS) for o in gc.get_objects()), len(gc.get_objects())))
        assert counts[-1][0] == 0, counts
        assert counts[-1][1] - counts[1][1] < 100, counts
    run(body())


def test_a_handler_that_keeps_its_messages_does_not_keep_the_runtime(pair):
    gone = []

    async def body(p):
        messages = []
        p.right.am_handler(1, messages.append)
        await p.a.am_send(1, b"x")
        while not messages:
            await asyncio.sleep(0.001)
        gone.append(weakref.ref(p.right))
    pair(body)
    settle()
    assert gone[0]() is None


def test_a_runtime_nobody_closed_goes_with_its_loop():
    async def body():
        weft.Runtime()

    with pytest.warns(ResourceWarning, match="unclosed"):
        asyncio.run(body())
        settle()
    settle()
    assert not [o for o in gc.get_objects() if isinstance(o, weft.Runtime) and not o.closed]


class Bad:
    """Fails wherever it is asked."""
    def _fail(self, *args):
        raise RuntimeError("no")
    __index__ = __float__ = __bool__ = __len__ = __iter__ = __bytes__ = _fail


def arguments():
    """What every entry point is given: good and bad, each an object of its own, so that its references can be counted."""
    return [int("1" * 12), b"".join([b"some", b"bytes"]), bytearray(64), "".join(["tcp://127", ".0.0.1:0"]),
            "".join(["te", "xt"]), float("2.5"),
            Bad(), [bytearray(8), b"x" * 9], {"a": object()}, (lambda *a: None), object(), memoryview(bytearray(32))[::2],
            -int("9" * 30)]


def call_everything(things, values):
    """Each attribute of each thing: read, and called with none, one and two of the values, by place and by name."""
    for thing in things:
        for name in dir(type(thing)):
            if name.startswith("__") or name in ("close", "_close", "abort", "release", "drop", "_turn", "_timer", "_attach",
                                                 "_ended"):
                continue
            try:
                attribute = getattr(thing, name)
            except weft.WeftError:
                continue
            if not callable(attribute):
                continue
            for i, value in enumerate(values):
                other = values[(i + 1) % len(values)]
                for args, kw in (((), {}), ((value,), {}), ((value, other), {}), ((), {"tag": value, "timeout": other}),
                                 ((value,), {"nonsense": other})):
                    made = None
                    try:
                        made = attribute(*args, **kw)
                    except (Exception, asyncio.CancelledError):
                        pass
                    if isinstance(made, weft.Op):
                        made.cancel()
                    elif isinstance(made, weft.Listener):
                        made.close()
                    del made


def test_every_entry_point_lets_go_of_its_arguments(run):
    """Good and bad ones: as many references to each afterwards as before, and no memory that grows with the calls."""
    async def body():
        asyncio.get_running_loop().set_exception_handler(lambda *unused: None)
        async with weft.Runtime(connect_timeout=1, close_timeout=0.5) as left, weft.Runtime(close_timeout=0.5) as right:
            listener = right.listen("tcp://127.0.0.1:0")
            accepting = listener.accept()
            a = await left.connect(listener.uri, timeout=60)
            b = await accepting
            await a.am_send(1, b"payload", header=b"head")
            m = await b.am_recv()
            await a.send(b"claimed", tag=5)
            while (claimed := b.claim(5)) is None:
                await asyncio.sleep(0)
            done, waiting = b.recv(tag=1234), b.recv(tag=1235)
            done.cancel()
            await a.send(b"owned", tag=6)
            owned = await b.recv(tag=6, copy=False)
            values = arguments()
            things = [a, b, left, m, claimed, done, listener, owned]
            blocks = []

            async def rounds(n):
                for _ in range(n):
                    call_everything(things, values)
                    while left.under_way > 1 or right.under_way > 2:
                        await asyncio.sleep(0.001)
                    while b.probe(0, 0):  # what the calls have sent
                        await b.recv(0, 0)
                    await asyncio.sleep(0.01)
                settle()
                blocks.append(sys.getallocatedblocks())
            await rounds(2)
            before = [sys.getrefcount(value) for value in values]
            for _ in range(4):
                await rounds(2)
            after = [sys.getrefcount(value) for value in values]
            assert [(type(v).__name__, x, y) for v, x, y in zip(values, before, after) if x != y] == []
            # tens of thousands of calls lie between; the loop keeps timers that were cancelled for a while
            assert blocks[-1] - blocks[1] < 1500, blocks
            waiting.cancel()
    run(body())


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t)
                for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


def allocated():
    """Bytes that C has from malloc: what the library keeps is there, and nowhere in Python's count."""
    settle()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    return mallinfo().uordblks


def grown(run, one):
    """By how much a round of one() grows what is allocated, once the first ones have made what stays."""
    sizes = []
    for _ in range(ROUNDS + 2):
        run(one())
        sizes.append(allocated())
    return (sizes[-1] - sizes[1]) // ROUNDS


@pytest.mark.parametrize("asked", [False, True])
def test_active_messages_that_nobody_took_before_the_close_leave_nothing(run, asked):
    n, size = 40, 4000  # within the window

    async def one():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            ops = [p.b.am_recv(1) for _ in range(n)]
            for _ in range(n):
                await p.a.am_send(1, bytes(size))
            while right.under_way:
                await asyncio.sleep(0.001)
        for op in ops if asked else ():
            with pytest.raises(weft.ClosedError):
                op.result()
    assert grown(run, one) < n * size // 10


def test_requests_that_outlive_their_runtime_leave_nothing(run):
    n, size = 40, 3000
    service, kept = weft.Service("keeper"), []

    @service.function
    async def keep(data: bytes, request: weft.Request) -> int:
        kept.append(request)
        await asyncio.sleep(3600)

    async def one():
        async with weft.Runtime() as left:
            right = weft.Runtime()
            server = service.start(right)
            client = left.client(server.listen("tcp://127.0.0.1:0"))
            calls = [client.keep(bytes(size)) for _ in range(n)]
            while len(kept) < n:
                await asyncio.sleep(0.001)
            right._close()  # as nobody should: its services are not asked
            for call in calls:
                with pytest.raises(weft.WeftError):
                    await call
            await server.close()
            await client.close()
            tasks = tuple(server._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        kept.clear()
    assert grown(run, one) < n * size // 10


def test_a_request_may_be_let_go_of_long_after_its_runtime(run):
    """By then the memory of the runtime may be that of another one, as it is once 64 were closed after it."""
    service, kept = weft.Service("keeper"), []

    @service.function
    async def keep(request: weft.Request) -> int:
        kept.append(request)
        await asyncio.sleep(3600)

    async def body():
        async with weft.Runtime() as left:
            right = weft.Runtime()
            server = service.start(right)
            client = left.client(server.listen("tcp://127.0.0.1:0"))
            call = client.keep()
            while not kept:
                await asyncio.sleep(0.001)
            right._close()
            with pytest.raises(weft.WeftError):
                await call
            for _ in range(70):
                weft.Runtime()._close()
            later = [weft.Runtime() for _ in range(70)]
            kept.pop().release()
            tasks = tuple(server._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for rt in later:
                p = await connected(left, rt)
                await p.a.close()
                rt._close()
            await client.close()
    run(body())
