"""Remote memory: regions of ours, remotes of others', in event loops and in threads; and what hostile keys and lost peers
come to."""
import asyncio
import gc
import os
import random
import signal
import weakref

import numpy
import pytest

import weft
import weft.blocking

OWNER = """
import asyncio, sys, weft
async def main():
    rt = weft.Runtime(transports=sys.argv[1], heartbeat=0.3)
    listener = rt.listen("tcp://127.0.0.1:0")
    region = rt.region(64 << 20, name="memory", mapped=sys.argv[2] == "mapped")
    print(listener.uri, flush=True)
    ep = await listener.accept()
    await asyncio.sleep(120)
asyncio.run(main())
"""


@pytest.fixture(params=[True, False], ids=["mapped", "checked"])
def mapped(request):
    return request.param


# --- reading and writing


def test_what_is_written_is_in_the_region(pair, mapped):
    async def body(p):
        with p.right.region(1 << 20, mapped=mapped) as region:
            here = numpy.frombuffer(region, "u1")
            async with await p.a.attach(region.key()) as remote:
                assert (len(remote), remote.nbytes, remote.rights, remote.closed) == (1 << 20, 1 << 20, "rwa", False)
                shm = p.a.info["transport"] == "shm"
                assert remote.path == remote.info["path"] == ("mapped" if mapped and shm else "checked")
                assert remote.endpoint is p.a and not remote.blocking
                await remote.write(b"hello", 10)
                assert bytes(here[8:16]) == b"\0\0hello\0"
                here[:4] = 1, 2, 3, 4
                assert await remote.read(0, 4) == b"\1\2\3\4" and await remote.read(n=0) == b""
                assert await remote.read(offset=(1 << 20) - 2) == b"\0\0"
                into = numpy.zeros(3, "u2")
                assert await remote.read_into(into, 9) == 6 and bytes(into) == b"\0hello"
                data = os.urandom(1 << 20)
                await remote.write(data)
                assert bytes(here) == data == await remote.read()
                assert remote.info["bytes_written"] == 5 + len(data)
            assert remote.closed and len(remote) == 0 and remote.endpoint is None
        assert region.closed
    pair(body)


def test_pieces_and_batches(pair, mapped):
    async def body(p):
        region = p.right.region(10_000, mapped=mapped)
        remote = await p.a.attach(region.key())
        await remote.writev([b"one", numpy.frombuffer(b"two!", "u1"), b"", b"three"], 5)
        assert bytes(memoryview(region)[5:17]) == b"onetwo!three"
        parts = [bytearray(3), bytearray(4), bytearray(5)]
        assert await remote.readv(parts, offset=5) == 12
        assert parts == [b"one", b"two!", b"three"]
        await remote.write_many([(i * 10, bytes([i])) for i in range(256)] + [(3, b"")])
        got = [bytearray(1) for _ in range(256)]
        await remote.read_many((i * 10, got[i]) for i in range(256))
        assert [g[0] for g in got] == list(range(256))
        await remote.read_many([])
        with pytest.raises(weft.RangeError):
            await remote.write_many([(0, b"x"), (9_999, b"xy"), (1, b"y")])
        assert bytes(memoryview(region)[:2]) == b"xy"  # the others are done all the same
        with pytest.raises(weft.LimitError, match="at most 1024"):
            remote.readv([bytearray(1)] * 1025)
        with pytest.raises(weft.LimitError, match="at most 65536"):
            remote.read_many([(0, bytearray(1))] * 65537)
        for bad in ([b"x"], [(1,)], [(1, 2, 3)], [[0, b"x"]], 7):
            with pytest.raises(TypeError):
                remote.write_many(bad)
        with pytest.raises(OverflowError, match="offset"):
            remote.write_many([(-1, b"x")])
    pair(body)


def test_atomics_of_both_widths(pair, mapped):
    async def body(p):
        region = p.right.region(64, mapped=mapped)
        for width, most, kind in ((4, 2**32 - 1, "u4"), (8, 2**64 - 1, "u8")):
            here = numpy.frombuffer(region, kind)
            here[:] = 0
            remote = await p.a.attach(region.key("a"))
            assert remote.rights == "a"
            assert await remote.atomic_add(8, 5, width=width) == 0
            assert await remote.atomic_add(8, -6, width=width) == 5 and here[8 // width] == most
            assert await remote.atomic_swap(8, 0b1100, width=width) == most
            assert await remote.atomic_and(8, 0b0110, width=width) == 0b1100
            assert await remote.atomic_or(8, 0b0011, width=width) == 0b0100
            assert await remote.atomic_xor(8, 0b0101, width=width) == 0b0111
            assert await remote.atomic_cas(8, 1, 9, width=width) == 0b0010 and here[8 // width] == 2
            assert await remote.atomic_cas(8, 2, most, width=width) == 2 and here[8 // width] == most
            for bad in (most + 1, -most):
                with pytest.raises(OverflowError, match="value"):
                    remote.atomic_add(8, bad, width=width)
            with pytest.raises(weft.InvalidError):
                await remote.atomic_add(9, 1, width=width)
        with pytest.raises(weft.InvalidError):
            await remote.atomic_add(8, 1, width=3)
    pair(body)


def test_concurrent_adds_are_all_there(pair, mapped):
    async def body(p):
        region = p.right.region(8, mapped=mapped)
        remotes = [await p.a.attach(region.key()) for _ in range(4)]
        before = await asyncio.gather(*[remotes[i % 4].atomic_add(0, 1) for i in range(1000)])
        assert sorted(before) == list(range(1000)) and numpy.frombuffer(region, "u8")[0] == 1000
    pair(body)


def test_notifications_come_in_order_after_their_bytes(pair, mapped):
    async def body(p):
        told, done = [], asyncio.Event()

        async def notify(n):
            told.append((n.offset, n.nbytes, n.value, bytes(memoryview(n.region)[n.offset:n.offset + n.nbytes])))
            assert n.endpoint is p.b and n.region is region
            if n.value == 99:
                done.set()
        region = p.right.region(100, mapped=mapped, notify=notify)
        remote = await p.a.attach(region.key())
        for i in range(10):
            await remote.write_notify(bytes([i + 1]) * 2, offset=2 * i, value=i)
        await remote.write_notify(b"", value=99)
        await done.wait()
        assert told == [(2 * i, 2, i, bytes([i + 1]) * 2) for i in range(10)] + [(0, 0, 99, b"")]
        with pytest.raises(TypeError, match="notify"):
            p.right.region(1, notify=7)
        later = remote.write_notify(b"x", value=1)
        region = None
        gc.collect()  # freed while one is under way
        await asyncio.wait([later])
    pair(body)


def test_flush_and_fence(pair, mapped):
    async def body(p):
        region = p.right.region(8 << 20, mapped=mapped)
        remote = await p.a.attach(region.key())
        writes = [remote.write(bytes([i]) * (1 << 20), i << 20) for i in range(8)]
        remote.fence()
        await remote.flush(timeout=30)
        assert all(w.done() for w in writes)
        assert bytes(memoryview(region)[::1 << 20]) == bytes(range(8))
    pair(body)


# --- what may not be done


def test_rights_ranges_and_times(pair, mapped):
    async def body(p):
        region = p.right.region(100, mapped=mapped, rights="rw", name="some name", name_rights="r", max_len=200)
        memoryview(region)[:] = bytes(range(100))
        reader = await p.a.find("some name")
        assert reader.rights == "r" and await reader.read(7, 1) == b"\7"
        for call in (lambda: reader.write(b"x"), lambda: reader.atomic_add(0, 1)):
            with pytest.raises(weft.RightsError):
                await call()
        part = await p.a.attach(region.key("w", offset=10, n=20))
        assert len(part) == 20
        await part.write(b"!", 19)
        assert region and memoryview(region)[29] == ord("!")
        for offset, what in ((20, b"x"), (19, b"xx"), (2**64 - 1, b"x"), (2**63, b"x")):
            with pytest.raises(weft.RangeError):
                await part.write(what, offset)
        with pytest.raises(weft.RightsError):
            await part.read_into(bytearray(1))
        with pytest.raises(weft.RangeError, match="2 bytes from 99 on are not within the 100"):
            reader.read(99, 2)
        with pytest.raises(weft.RangeError):
            reader.read(0, 2**62)
        for bad in ({"rights": "rwa"}, {"offset": 101}, {"n": 101}):
            with pytest.raises((weft.RightsError, weft.RangeError)):
                region.key(**bad)
        for bad in ("", "x", "rx", 7, b"r"):
            with pytest.raises(weft.InvalidError, match="letters"):
                region.key(bad)
        with pytest.raises(weft.InvalidError, match="one byte"):
            region.key(n=0)
        region.extend(150)
        assert len(region) == 150 and len(memoryview(region)) == 150 and len(reader) == 100
        assert len(await p.a.find("some name")) == 150
        for bad in (149, 201, 2**63 - 1):
            with pytest.raises(weft.RangeError):
                region.extend(bad)
        short = region.key(lifetime=0.02)
        await asyncio.sleep(0.1)
        with pytest.raises(weft.StaleError):
            await p.a.attach(short)
        with pytest.raises(weft.NotFoundError):
            await p.a.find("another name")
        with pytest.raises(weft.StateError):
            p.right.region(1, name="some name")
        assert region.info["refused"] >= 0 and region.name == "some name"
    pair(body)


def test_revoked_and_freed(pair, mapped):
    async def body(p):
        region = p.right.region(100, mapped=mapped)
        key = region.key()
        remote = await p.a.attach(key)
        await remote.write(b"x")
        await region.revoke(timeout=30)
        with pytest.raises(weft.StaleError):
            await remote.read(0, 1)
        with pytest.raises(weft.StaleError):
            await p.a.attach(key)
        assert remote.info["state"] == "WEFT_ERR_STALE" and region.info["generation"] == 2
        again = await p.a.attach(region.key())
        assert await again.read(0, 1) == b"x"
        await region.free()
        await region.free()  # once is enough, and twice no harm
        with pytest.raises(weft.StaleError):
            await again.read(0, 1)
        for call in (region.key, region.revoke, lambda: region.extend(7), lambda: region.info):
            with pytest.raises(weft.ClosedError, match="the region is closed"):
                call()
        with pytest.raises(BufferError, match="closed"):
            memoryview(region)
        again.drop()
        with pytest.raises(weft.ClosedError, match="the remote is closed"):
            again.read()
        again.drop()
    pair(body)


def test_paths_can_be_insisted_on(pair):
    async def body(p):
        region = p.right.region(100)
        key = region.key()
        if p.a.info["transport"] == "shm":
            assert (await p.a.attach(key, path="mapped")).path == "mapped"
        assert (await p.a.attach(key, path="checked")).path == "checked"
        closed = p.right.region(100, mapped=False)
        with pytest.raises(weft.UnsupportedError):
            await p.a.attach(closed.key(), path="mapped")
        for bad in ("any", "", 7):
            with pytest.raises(weft.InvalidError, match="none of mapped, checked, native"):
                p.a.attach(key, path=bad)
    pair(body)


def test_hostile_keys_are_refused(pair):
    async def body(p):
        rng = random.Random(20240229)
        region = p.right.region(1000)
        good = region.key("r", offset=10, n=10)
        for _ in range(300):
            bad = bytearray(good)
            for _ in range(rng.choice((1, 1, 3))):
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            with pytest.raises(weft.WeftError):
                assert len(await p.a.attach(bad)) < 0
        for bad in (b"", b"x", good[:-1], good + b"x", bytes(1024), bytes(1025), os.urandom(100)):
            with pytest.raises(weft.WeftError):
                await p.a.attach(bad)
        for bad in (None, 7, "text", [1]):
            with pytest.raises(TypeError):
                p.a.attach(bad)
        for bad in ("", "x" * 256):
            with pytest.raises(weft.InvalidError):
                p.a.find(bad)
        for bad in ("\0", "a\0b"):
            with pytest.raises(weft.InvalidError):
                p.right.region(1, name=bad)
        assert len(await p.a.attach(good)) == 10 and p.b.state == "up"
    pair(body)


def test_bad_regions_are_refused(pair):
    async def body(p):
        for bad in (0, -1, 2**64, b""):
            with pytest.raises((weft.InvalidError, OverflowError)):
                p.right.region(bad)
        with pytest.raises(weft.NoMemoryError):
            p.right.region(2**63 - 1)
        with pytest.raises(weft.InvalidError, match="cannot grow"):
            p.right.region(bytearray(10), max_len=20)
        with pytest.raises(weft.InvalidError, match="read-only"):
            p.right.region(b"const", rights="rw")
        with pytest.raises(weft.InvalidError, match="not contiguous"):
            p.right.region(numpy.zeros((4, 4))[:, 1])
        with pytest.raises(TypeError, match="buffer protocol"):
            p.right.region("text")
        assert len(p.right.region(numpy.int64(100))) == 100
        with pytest.raises(weft.InvalidError, match="rights"):
            p.right.region(1, rights="r", name="n", name_rights="w")
    pair(body)


# --- buffers, views, and their ends


def test_a_buffer_is_exposed_where_it_is_and_held(pair):
    async def body(p):
        memory = bytearray(1000)
        region = p.right.region(memory)
        remote = await p.a.attach(region.key())
        await remote.write(b"hello", 5)
        assert memory[5:10] == b"hello" and remote.path == "checked"
        with pytest.raises(BufferError):
            memory.extend(b"x")
        await region.free()
        memory.extend(b"x")
        array = numpy.arange(100, dtype="i4")
        async with p.right.region(array) as region:
            assert await (await p.a.attach(region.key())).read(4, 4) == b"\1\0\0\0"
        const = p.right.region(b"only to read", name="const")
        remote = await p.a.find("const")
        assert remote.rights == "r" and await remote.read() == b"only to read"
        assert memoryview(const).readonly
        gone = weakref.ref(array)
        del region, array
        while gone():  # held until the library is done with it
            await asyncio.sleep(0.001)
    pair(body)


def test_views_outlive_the_region_and_the_runtime(run, mapped):
    async def body():
        views = []
        for way in ("free", "forget", "close", "with"):
            async with weft.Runtime() as rt:
                region = rt.region(1 << 20, mapped=mapped)
                view = numpy.frombuffer(region, "u1")
                view[:] = 7
                if way == "free":
                    await region.free()
                elif way == "with":
                    with region:
                        pass
                if way != "close":
                    del region
                gc.collect()
                view[0] = 8
            view[1] += 1
            region = None
            gc.collect()
            views.append(view)
        assert all(int(v.sum()) == 7 * (1 << 20) + 2 for v in views)
    run(body())


def test_cancelling_holds_the_buffer_until_nothing_can_come_into_it(pair):
    async def body(p):
        region = p.right.region(16 << 20, mapped=False)
        memoryview(region)[:] = b"\1" * (16 << 20)
        remote = await p.a.attach(region.key())
        for _ in range(5):
            into = bytearray(16 << 20)
            op = remote.read_into(into)
            op.cancel()
            with pytest.raises(asyncio.CancelledError):
                await op
            while True:  # refused for as long as it is held
                try:
                    into.append(0)
                    break
                except BufferError:
                    await asyncio.sleep(0)
            copy = bytes(into)
            await remote.flush()
            assert copy == into
    pair(body)


def test_nobody_asks_for_what_was_attached(pair):
    async def body(p):
        region = p.right.region(100, name="x")
        for _ in range(20):
            p.a.find("x")
        waiting = p.a.find("x")
        await p.a.find("x")
        assert waiting.done()
        gc.collect()
        while region.info["attached"] > 1:  # the last, which nobody has asked
            await asyncio.sleep(0.001)
        late = p.a.find("x")
        await asyncio.sleep(0.05)
        await p.left.close()
        with pytest.raises(weft.ClosedError):
            late.result()
        with pytest.raises(weft.ClosedError):
            waiting.result()
    pair(body)


def test_everything_ends_with_its_runtime(pair):
    async def body(p):
        region = p.right.region(1 << 20, mapped=False)
        remote = await p.a.attach(region.key())
        under_way = [remote.read() for _ in range(50)]
        await p.left.close()
        for op in under_way:
            try:
                assert len(await op) == 1 << 20
            except weft.WeftError:
                pass
        with pytest.raises(weft.ClosedError):
            remote.read()
        assert remote.closed
    pair(body)


# --- peers that are lost


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP])
def test_an_owner_that_is_lost_ends_everything_under_way(run, child, transport, kill, mapped):
    owner = child(OWNER, transport, "mapped" if mapped else "checked")
    uri = owner.stdout.readline().strip()

    async def body():
        async with weft.Runtime(transports=transport, heartbeat=0.3, close_timeout=1) as rt:
            ep = await rt.connect(uri)
            remote = await ep.find("memory")
            into = [bytearray(4 << 20) for _ in range(4)]
            count = 0

            async def work(i):
                nonlocal count
                while True:
                    await (remote.read_into(into[i], i << 22) if i % 2 else remote.write(into[i], i << 22))
                    count += 1
                    await asyncio.sleep(0)
            working = [asyncio.ensure_future(work(i)) for i in range(4)]
            while count < 8:
                await asyncio.sleep(0.001)
            owner.send_signal(kill)
            done, late = await asyncio.wait(working, timeout=30)
            assert not late
            for task in done:
                assert isinstance(task.exception(), (weft.PeerError, weft.ClosedError)), task.exception()
            with pytest.raises((weft.PeerError, weft.ClosedError)):
                await remote.atomic_add(0, 1)
            for b in into:
                b.append(0)  # nobody holds them
    run(body())


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_owner_that_stops_lets_operations_run_out_of_time(run, child, transport):
    owner = child(OWNER.replace("0.3", "60"), transport, "checked")
    uri = owner.stdout.readline().strip()

    async def body():
        async with weft.Runtime(transports=transport, heartbeat=60, close_timeout=0.2) as rt:
            ep = await rt.connect(uri)
            remote = await ep.find("memory")
            owner.send_signal(signal.SIGSTOP)
            into = bytearray(1 << 20)
            for call in (lambda t: remote.read(n=100, timeout=t), lambda t: remote.read_into(into, timeout=t),
                         lambda t: remote.write(b"few", timeout=t), lambda t: remote.atomic_add(0, 1, timeout=t),
                         lambda t: remote.readv([into], timeout=t), lambda t: remote.write_many([(0, b"few")], timeout=t),
                         lambda t: ep.find("memory", timeout=t)):
                with pytest.raises(weft.TimeoutError):
                    await call(0.05)
            into.append(0)
            owner.send_signal(signal.SIGCONT)
            assert len(await ep.find("memory")) == 64 << 20
    run(body())


# --- without an event loop


@pytest.fixture(params=["shm", "tcp"])
def sides(request):
    with weft.blocking.Runtime(transports=request.param) as left, weft.blocking.Runtime(transports=request.param) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=30)
        yield a, listener.accept(timeout=30)


def test_the_same_without_a_loop(sides, mapped):
    a, b = sides
    with b.runtime.region(1 << 20, mapped=mapped, name="x") as region:
        here = numpy.frombuffer(region, "u1")
        with a.find("x", timeout=30) as remote:
            assert remote.blocking and remote.endpoint is a
            remote.write(b"hello", 3)
            assert bytes(here[3:8]) == b"hello" == remote.read(3, 5)
            assert remote.atomic_add(0, 0) == int.from_bytes(here[:8].tobytes(), "little")
            big = bytearray(1 << 20)
            assert remote.read_into(big) == 1 << 20 and bytes(big) == bytes(here)
            assert remote.writev([b"a", b"b"]) is None and remote.readv([bytearray(2)]) == 2
            remote.write_many([(0, b"x")])
            remote.write_notify(b"y", 1, value=7)
            remote.read_many([])
            remote.fence()
            remote.flush()
            with pytest.raises(weft.RangeError):
                remote.write(b"x", 1 << 20)
            region.revoke()
            with pytest.raises(weft.StaleError):
                remote.read()
        with pytest.raises(weft.StateError, match="loop"):
            b.runtime._region(1, notify=print)
    assert region.closed and here[3] == ord("h")
    memory = bytearray(10)
    region = b.runtime.region(memory)
    a.attach(region.key()).write(b"0123456789")
    del region
    assert memory == b"0123456789"
    memory.append(1)


def test_a_buffer_and_a_view_when_a_blocking_runtime_is_closed(mapped):
    memory = bytearray(10)
    with weft.blocking.Runtime() as rt:
        held = rt.region(memory)
        view = numpy.frombuffer(rt.region(1000, mapped=mapped), "u1")
        view[:] = 1
    assert held.closed
    memory.append(1)
    assert view.sum() == 1000


def test_the_default_runtimes_have_regions_too(run):
    async def body():
        async with weft.region(100) as region:
            assert len(region) == 100
    run(body())
    with weft.blocking.region(100) as region:
        assert len(region) == 100
