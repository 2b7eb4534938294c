"""read_many and write_many: pieces of an element's memory and memory of the program's own, on one element and on replicas,
whatever is registered."""
import array
import asyncio

import pytest

import weft
from weft import _core

from elementside import BOUND, KINDS, action, elsewhere, go_on, memory, pair, ready, stop, until

SIZE = 65536


@pytest.fixture(params=KINDS)
def trans(request, child):
    """A transport of this kind that is ready, without a buffer."""
    with ready(request.param, child, SIZE) as got:
        yield got


def test_pieces_go_and_come_without_a_buffer(trans):
    text = bytes(range(256)) * 8
    assert trans.write_many([(0, text), (4000, memoryview(text)[100:110]), (SIZE - 4, array.array("I", [7]))],
                            timeout=BOUND) is None
    whole, part, end = bytearray(2048), bytearray(10), array.array("I", [0])
    assert trans.read_many([(0, whole), (4000, part), (SIZE - 4.0, end)]) is None
    assert whole == text and part == text[100:110] and end[0] == 7
    assert trans.read_many([]) is None and trans.write_many(iter([])) is None
    trans.read_many([(SIZE, bytearray())])
    with pytest.raises(MemoryError):
        trans.read(4, 0)  # there is none still
    stats = trans.stats()
    assert stats["bytes_written"] == 2048 + 10 + 4 and stats["bytes_read"] == 2048 + 10 + 4


def test_what_is_registered_stays_as_it_is(trans):
    trans.reg(64)
    view = trans.buf
    view[:] = b"m" * 64
    mine = bytearray(64)
    trans.write_many([(100, b"x" * 64)])
    trans.read_many([(100, mine)])
    assert mine == b"x" * 64 and bytes(view) == b"m" * 64 and trans.buf == view
    trans.reg(32)
    trans.read_many([(100, mine)])
    trans.read(4, 100)
    assert bytes(trans.buf) == b"xxxx" + b"m" * 28


def test_many_more_pieces_than_are_under_way_at_once(trans):
    values = array.array("Q", range(4000))
    there, here = memoryview(values).cast("B"), bytearray(32000)
    view = memoryview(here)
    trans.write_many([(16 * i, there[8 * i:8 * i + 8]) for i in range(4000)])
    trans.read_many([(16 * i, view[8 * i:8 * i + 8]) for i in reversed(range(4000))])
    assert here == there
    gaps = bytearray(SIZE)
    trans.read_many([(0, gaps)])
    assert not any(any(gaps[16 * i + 8:16 * i + 16]) for i in range(4000))


def test_what_is_out_of_range_is_named(trans):
    kept, good = bytearray(b"k" * 8), bytearray(8)
    with pytest.raises(weft.RangeError, match=f"item 1 of 2, a read of 8 bytes at addr {SIZE - 4}"):
        trans.read_many([(0, good), (SIZE - 4, kept)])
    with pytest.raises(weft.RangeError, match="a write of 8 bytes"):
        trans.write_many([((1 << 64) - 1, kept)])
    assert kept == b"k" * 8
    kept += b"."  # nothing holds it any more
    good += b"."


def test_what_are_no_pieces(trans):
    class Closes:
        """Runs code of its own where its memory is asked for."""
        def __buffer__(self, flags):
            raise ZeroDivisionError
        @property
        def __dlpack__(self):
            raise ZeroDivisionError

    for bad in ([5], [(1,)], [(1, 2, 3)], [[0, bytearray(8)]], [(0, 5)], [(None, bytearray(8))], [("0", bytearray(8))],
                [(0, "text")], 5, None, [(0, Closes())]):
        with pytest.raises((TypeError, ZeroDivisionError)):
            trans.read_many(bad)
        with pytest.raises((TypeError, ZeroDivisionError)):
            trans.write_many(bad)
    for bad in ([(-1, bytearray(8))], [(1 << 64, bytearray(8))], [(1.5, bytearray(8))]):
        with pytest.raises((ValueError, OverflowError)):
            trans.read_many(bad)
    with pytest.raises(ValueError):
        trans.read_many([(0, b"readonly")])
    with pytest.raises(ValueError):
        trans.write_many([(0, memoryview(bytearray(16))[::2])])
    with pytest.raises(weft.LimitError):
        trans.read_many([(0, bytearray(1))] * 65537)
    held = bytearray(8)
    with pytest.raises(TypeError):
        trans.read_many([(0, held), None])
    held += b"."


def test_they_are_awaited(run, trans):
    async def use():
        assert await trans.write_many_async([(8 * i, bytes([i]) * 8) for i in range(100)]) is None
        pieces = [bytearray(8) for _ in range(100)]
        await asyncio.gather(*[trans.read_many_async([(8 * i, pieces[i]), (8 * i, pieces[i])], timeout=BOUND)
                               for i in range(100)])
        assert all(piece == bytes([i]) * 8 for i, piece in enumerate(pieces))
        assert await trans.read_many_async([]) is None
        with pytest.raises(weft.RangeError, match="item 0 of 1"):
            await trans.read_many_async([(SIZE, bytearray(1))])
        with pytest.raises(TypeError):
            trans.read_many_async([(0, 0)])
    run(use())


def test_memory_is_held_until_it_is_over_and_no_longer(run, child):
    """A bytearray cannot be made longer while somebody holds it."""
    process, durl = elsewhere(child, SIZE, transports="tcp")

    async def use():
        with action(durl, transports="tcp", heartbeat=1) as made:
            trans = made.get_transport("mem", "rdma")
            await trans.wait_ready_async(BOUND)
            here = bytearray(SIZE)
            stop(process)
            try:
                future = trans.read_many_async([(0, here)])
                await asyncio.sleep(0.01)
                with pytest.raises(BufferError):
                    here.append(1)
                future.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await future
                end = asyncio.get_running_loop().time() + BOUND
                while True:  # it ends in its own time, and the element need not wake up for that
                    try:
                        here.append(1)
                        break
                    except BufferError:
                        assert asyncio.get_running_loop().time() < end
                        await asyncio.sleep(0.01)
            finally:
                go_on(process)
    run(use())


def test_it_waits_until_the_transport_is_configured_and_ends_with_it():
    with memory(SIZE) as element, action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        here = bytearray(8)
        with pytest.raises(weft.TimeoutError):
            trans.read_many([(0, here)], timeout=0.01)
        made.config_transport("mem", element.durl)
        trans.read_many([(0, here)], timeout=BOUND)
        made.release_transport("mem")
        for call in (trans.read_many, trans.write_many):
            with pytest.raises(weft.ClosedError):
                call([(0, here)])
        made.close()
        with pytest.raises(weft.ClosedError):
            trans.read_many([(0, here)])
        here += b"."


def test_in_the_runtime_of_a_loop_they_are_operations(run):
    async def use():
        with memory(SIZE) as element:
            async with weft.Runtime() as runtime:
                own = _core.Action(runtime, "loop")
                own.add(element.durl)
                trans = _core.Transport(own, "mem")
                here = bytearray(8)
                for write, read in ((trans.write_many, trans.read_many), (trans.write_many_async, trans.read_many_async)):
                    await write([(8, b"12345678")])
                    op = read([(8, here)])
                    await op
                    here += b"."  # the operation is still there, and holds nothing
                    assert here == b"12345678."
                    del here[8:]
                with pytest.raises(weft.RangeError, match="item 0 of 1"):
                    await trans.read_many([(SIZE, here)])
                await own.close()
    run(use())


def test_a_killed_element_ends_it(child):
    process, durl = elsewhere(child, SIZE, transports="tcp")
    with action(durl, transports="tcp", heartbeat=1) as made:
        trans = made.get_transport("mem", "rdma")
        trans.wait_ready(BOUND)
        here = bytearray(SIZE)
        process.kill()
        with pytest.raises((ConnectionError, TimeoutError)):
            while True:
                trans.read_many([(0, here)], timeout=BOUND)
        until(lambda: trans.state == "lost")
        here += b"."


def test_pieces_are_a_pair_of_transports_apart():
    with pair(SIZE) as trans:
        trans.write_many([(0, trans.buf)])  # its own buffer is memory like any other
        trans.read_many([(0, trans.buf)])
