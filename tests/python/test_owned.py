"""recv(copy=False): a message in the library's memory, as an object with the buffer protocol."""
import asyncio
import gc

import pytest

import weft
import weft.blocking


def test_a_message_without_a_copy(pair):
    async def body(p):
        for data in (b"", b"small", bytes(range(256)) * 40_000):
            sending = p.a.send(data, tag=1)
            got = await p.b.recv(tag=1, copy=False)
            await sending
            assert isinstance(got, weft.OwnedBuffer) and got.nbytes == len(got) == len(data)
            assert bytes(got) == data and memoryview(got) == data and str(len(data)) in repr(got)
            if data:
                memoryview(got)[0] = 77  # nobody else's
                assert bytes(got)[0] == 77
            sending = p.b.send(got, tag=2)  # and good for sending
            assert len(await p.a.recv(tag=2)) == len(data)
            await sending
        sending = p.a.send(b"any", tag=3)
        assert bytes(await p.right.recv_any(tag=3, copy=False)) == b"any"
        await sending
    pair(body)


def test_numpy_reads_it_in_place(pair):
    numpy = pytest.importorskip("numpy")

    async def body(p):
        await p.a.send(numpy.arange(100, dtype="i4"))
        got = await p.b.recv(copy=False)
        array = numpy.frombuffer(got, dtype="i4")
        del got
        gc.collect()
        assert (array == numpy.arange(100)).all()
    pair(body)


def test_views_hold_the_memory(pair):
    async def body(p):
        await p.a.send(b"data")
        got = await p.b.recv(copy=False)
        view = memoryview(got)
        with pytest.raises(BufferError, match="1 views"):
            got.release()
        view.release()
        with got:
            assert bytes(got) == b"data"
        assert len(got) == 0 and "released" in repr(got)
        with pytest.raises(BufferError, match="released"):
            memoryview(got)
        got.release()
        with pytest.raises(TypeError):
            weft.OwnedBuffer()
    pair(body)


def test_it_outlives_everything(pair):
    kept = []

    async def body(p):
        await p.a.send(b"x" * 1000)
        kept.append(await p.b.recv(copy=False))
        await p.a.send(b"nobody asks", tag=1)
        op = p.b.recv(tag=1, copy=False)
        while not op.done():
            await asyncio.sleep(0)
        del op
    pair(body)
    gc.collect()
    assert bytes(kept[0]) == b"x" * 1000


def test_blocking():
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a, b = left.connect(listener.uri), listener.accept()
        a.send(b"data")
        assert bytes(b.recv(copy=False)) == b"data"
        with pytest.raises(weft.TimeoutError):
            b.recv(copy=False, timeout=0.01)
