"""numpy over remote memory: every index gives what numpy gives, and touches no other byte."""
import asyncio
import random
import signal
import subprocess
import sys

import numpy
import pytest

import weft
import weft.blocking
from weft import array as module

SHAPE = (6, 5, 4)
INDICES = [..., (), 0, -1, 3, slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(4, 1, -2), slice(2, 2),
           (1, 2, 3), (-1, -1, -1),
           (slice(None), 2), (slice(1, 4), slice(2, 4)), (..., 1), (0, ..., slice(1, 3)), (None, 2), (slice(None), None, 1),
           (2, slice(None), slice(None)),
           (slice(None), slice(None), slice(0, 1)), (slice(1, 2), slice(None), slice(None, None, -1)), numpy.int64(2),
           (numpy.uint8(1), True.__int__()),
           (slice(10, 20),), (1, 2, 3, ...), (..., slice(0, 0))]


@pytest.mark.parametrize("dtype", ["u1", "<f8", ">i4", "M8[us]", "S3", [("a", "u1"), ("b", "<f4")]])
def test_indices_give_what_numpy_gives(pair, dtype):
    async def body(p):
        size = numpy.dtype(dtype).itemsize * 120
        region = p.right.region(size + 100)
        here = numpy.frombuffer(region, dtype, 120, offset=10).reshape(SHAPE)
        memoryview(region)[:] = bytes(random.Random(1).choices(range(100), k=size + 100))
        remote = weft.RemoteArray(await p.a.attach(region.key()), dtype, SHAPE, offset=10)
        assert (remote.shape, remote.ndim, remote.size, remote.nbytes, len(remote)) == (SHAPE, 3, 120, size, 6)
        assert remote.dtype == numpy.dtype(dtype) and remote.strides == here.strides and remote.itemsize == here.itemsize
        for key in INDICES:
            got, want = await remote.get(key), here[key]
            assert type(got) is type(want) and numpy.shape(got) == numpy.shape(want), key
            assert numpy.asarray(got).tobytes() == numpy.asarray(want).tobytes(), key
    pair(body)


def test_assignments_do_what_numpy_does(pair):
    async def body(p):
        region = p.right.region(120 * 8 + 16)
        here = numpy.frombuffer(region, "f8", 122)
        want = numpy.zeros(122)
        remote = weft.RemoteArray(await p.a.attach(region.key()), "f8", SHAPE, offset=8)
        mine = want[1:121].reshape(SHAPE)
        for i, key in enumerate(INDICES):
            value = numpy.random.default_rng(i).random(numpy.shape(mine[key]))
            mine[key] = value
            await remote.put(key, value)
            assert (here == want).all(), key
            mine[key] = i
            await remote.put(key, i)
            assert (here == want).all(), key
        await remote.put(2, [1, 2, 3, 4])
        mine[2] = [1, 2, 3, 4]
        assert (here == want).all()
        with pytest.raises(ValueError):
            await remote.put(0, [1, 2, 3])
        with pytest.raises(ValueError):
            await remote.put(0, "text")
    pair(body)


def test_only_what_is_touched_goes_over_the_network(pair):
    async def body(p):
        region = p.right.region(1 << 20, mapped=False)
        remote = await p.a.attach(region.key())
        array = weft.RemoteArray(remote, "u1", (1024, 1024))

        async def costs(key):
            before = remote.info
            await array.get(key)
            return remote.info["reads"] - before["reads"], remote.info["bytes_read"] - before["bytes_read"]
        assert await costs((7, 9)) == (1, 1)
        assert await costs(7) == (1, 1024)
        assert await costs(slice(3, 10)) == (1, 7 * 1024)
        assert await costs((slice(None), slice(5, 8))) == (1024, 3 * 1024)
        assert await costs(...) == (1, 1 << 20)
        assert await costs((slice(0, 1), slice(0, 500))) == (1, 500)
        assert await costs((5, slice(None, None, 2))) == (512, 512)
        assert await costs(slice(0, 0)) == (0, 0)
    pair(body)


def test_large_ones_go_in_bounded_batches(pair, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 100)

    async def body(p):
        region = p.right.region(8 * 5000)
        here = numpy.frombuffer(region, "i8")
        remote = await p.a.attach(region.key())
        array = weft.RemoteArray(remote, "i8", 5000)
        await array.put(slice(None, None, 2), numpy.arange(2500))
        assert (here[::2] == numpy.arange(2500)).all() and not here[1::2].any()
        assert (await array.get(slice(None, None, -2)) == here[::-2]).all()
    pair(body)


def test_what_is_refused(pair):
    async def body(p):
        region = p.right.region(100)
        remote = await p.a.attach(region.key("r"))
        array = weft.RemoteArray(remote, "u1", (10, 10))
        for bad in ([1, 2], (0, [1]), numpy.array([1, 2]), numpy.zeros((10, 10), bool), True, "field", 1.5, numpy.bool_(True),
                    object()):
            with pytest.raises(TypeError, match="numbers, slices"):
                array.get(bad)
        for bad in (10, -11, (0, 10), (0, 0, 0), (..., ...), (2**70,)):
            with pytest.raises(IndexError):
                array.get(bad)
        for bad in (lambda: weft.RemoteArray(remote, "u1", 101), lambda: weft.RemoteArray(remote, "u1", 100, 1),
                    lambda: weft.RemoteArray(remote, "u1", (-1, -1)),
                    lambda: weft.RemoteArray(remote, "O", 1), lambda: weft.RemoteArray(remote, "u1", 1, -1),
                    lambda: weft.RemoteArray(remote, "u1", (2**62, 2**62)),
                    lambda: weft.RemoteArray(remote, "V0", 1)):
            with pytest.raises(ValueError):
                bad()
        for bad in ("nonsense", 7):
            with pytest.raises(TypeError):
                weft.RemoteArray(remote, bad, 1)
        for shape, offset in ((2.5, 0), ((1, 2.5), 0), (1, 2.5), (1, "1"), ("1", 0), (float("nan"), 0), (1, None)):
            with pytest.raises(TypeError, match="whole number"):
                weft.RemoteArray(remote, "u1", shape, offset)
        assert weft.RemoteArray(remote, "u1", (4.0, numpy.int64(2)), 8.0).shape == (4, 2)
        for call in (lambda: array[0], lambda: numpy.asarray(array), lambda: list(array), lambda: array.__setitem__(0, 1)):
            with pytest.raises(TypeError, match="await"):
                call()
        with pytest.raises(weft.RightsError):
            await array.put(0, 1)
        await region.revoke()
        with pytest.raises(weft.StaleError):
            await array.get(0)
        assert len(weft.RemoteArray(remote, "u1", (0, 5))) == 0
        with pytest.raises(TypeError):
            len(weft.RemoteArray(remote, "u1", ()))
    pair(body)


def test_cancelled_and_failed_ones_leave_nothing_under_way(pair, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 10)

    async def body(p):
        region = p.right.region(1 << 20, mapped=False)
        array = weft.RemoteArray(await p.a.attach(region.key()), "u1", (1024, 1024))
        task = asyncio.ensure_future(array.get((slice(None), slice(0, 500))))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.ensure_future(array.get((slice(None), slice(0, 500))))
        await asyncio.sleep(0)
        await region.revoke()
        with pytest.raises(weft.StaleError):
            await task
        while p.left.under_way:
            await asyncio.sleep(0.001)
    pair(body)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_without_a_loop_an_index_is_enough(transport):
    with weft.blocking.Runtime(transports=transport) as left, weft.blocking.Runtime(transports=transport) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        ep = left.connect(listener.uri, timeout=30)
        _other = listener.accept(timeout=30)
        region = right.region(8000)
        here = numpy.frombuffer(region, "f8").reshape(10, 100)
        array = weft.RemoteArray(ep.attach(region.key()), "f8", (10, 100))
        array[3:5, ::7] = 2.5
        assert here.sum() == 2 * 15 * 2.5 and array[3, 7] == 2.5 and array[-1].sum() == 0
        assert (numpy.asarray(array) == here).all() and numpy.asarray(array, "f4").dtype == "f4"
        assert sum(row.sum() for row in array) == here.sum() and numpy.sum(array) == here.sum()
        array.put(0, 7.0, timeout=30)
        assert (array.get(0, timeout=30) == 7).all()
        with pytest.raises(ValueError, match="without a copy"):
            array.__array__(copy=False)
        with pytest.raises(IndexError):
            array[10]


def test_an_owner_that_is_killed_in_the_middle(run, child):
    owner = child("""
import asyncio, weft
async def main():
    rt = weft.Runtime(heartbeat=0.3)
    listener = rt.listen("tcp://127.0.0.1:0")
    region = rt.region(16 << 20, name="memory", mapped=False)
    print(listener.uri, flush=True)
    await asyncio.sleep(120)
asyncio.run(main())
""")
    uri = owner.stdout.readline().strip()

    async def body():
        async with weft.Runtime(heartbeat=0.3, close_timeout=1) as rt:
            ep = await rt.connect(uri)
            array = weft.RemoteArray(await ep.find("memory"), "u1", (4096, 4096))
            task = asyncio.ensure_future(array.get((slice(None), slice(0, 4095))))
            await asyncio.sleep(0.005)
            owner.send_signal(signal.SIGKILL)
            with pytest.raises((weft.PeerError, weft.ClosedError)):
                while True:
                    await task
                    task = asyncio.ensure_future(array.get((slice(None), slice(0, 4095))))
    run(body())


def test_without_numpy_it_says_so():
    said = subprocess.run([sys.executable, "-c", "import sys; sys.modules['numpy'] = None\nimport weft\nweft.RemoteArray(None, "
                                                 "'u1', 1)"],
                          stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert "numpy is not installed" in said
