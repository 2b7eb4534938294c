"""Every RangeError of a transport has its name, what was to be done, and all of the numbers: whichever call it was, on one element and
on replicas, at once and awaited."""
import asyncio
import re

import pytest

import weft

from elementside import KINDS, action, memory, ready

SIZE = 4096
BUFFER = 100
MEMORY = f"is outside of the element's memory, which has {SIZE} bytes"
REGISTERED = f"is outside of the registered buffer, which has {BUFFER} bytes"


@pytest.fixture(params=KINDS)
def trans(request, child):
    """A transport of this kind that is ready, with a buffer."""
    with ready(request.param, child, SIZE) as got:
        got.reg(BUFFER)
        yield got


CALLS = {
    "read": [((50, 7, 90), f"a read of 50 bytes at addr 7 and offset 90 {REGISTERED}"),
             ((50, 4090, 3), f"a read of 50 bytes at addr 4090 and offset 3 {MEMORY}"),
             ((8, (1 << 64) - 4), f"a read of 8 bytes at addr {(1 << 64) - 4} and offset 0 {MEMORY}"),
             ((1 << 40, 0), f"a read of {1 << 40} bytes at addr 0 and offset 0 {REGISTERED}")],
    "write": [((BUFFER + 1, 0), f"a write of 101 bytes at addr 0 and offset 0 {REGISTERED}"),
              ((1, SIZE, 99), f"a write of 1 bytes at addr 4096 and offset 99 {MEMORY}")],
    "batch": [(([("read", 8, 0), ("write", 8, 4090, 5), ("read", 8, 5000)],),
               f"item 1 of 3, a write of 8 bytes at addr 4090 and offset 5 {MEMORY}"),
              (([("read", 8, 0), ("write", 8, 0, 99)],), f"item 1 of 2, a write of 8 bytes at addr 0 and offset 99 {REGISTERED}")],
    "readv": [(([(8, 0), (64, 4090)],), f"item 1 of 2, a read of 64 bytes at addr 4090 and offset 8 {MEMORY}"),
              (([(64, 0), (64, 8)],), f"item 1 of 2, a read of 64 bytes at addr 8 and offset 64 {REGISTERED}")],
    "writev": [(([(8, 0), (64, 4090)], 3), f"item 1 of 2, a write of 64 bytes at addr 4090 and offset 11 {MEMORY}"),
               (([(64, 0), (64, 8)],), f"item 1 of 2, a write of 64 bytes at addr 8 and offset 64 {REGISTERED}")],
    "read_many": [(([(0, bytearray(8)), (4000, bytearray(200))],), f"item 1 of 2, a read of 200 bytes at addr 4000 {MEMORY}")],
    "write_many": [(([(5000, b"x"), (0, b"x")],), f"item 0 of 2, a write of 1 bytes at addr 5000 {MEMORY}")],
    "fetch_add": [((SIZE,), f"an atomic of 8 bytes at addr 4096 {MEMORY}")],
    "compare_swap": [((8192, 0, 1), f"an atomic of 8 bytes at addr 8192 {MEMORY}")],
}


@pytest.mark.parametrize("call", CALLS)
def test_it_has_the_numbers_and_the_name(trans, call):
    if trans.stats()["replicas"] and call in ("fetch_add", "compare_swap"):
        pytest.skip("replicas have no atomics")

    async def awaited(given):
        await getattr(trans, call + "_async")(*given)

    for given, text in CALLS[call]:
        with pytest.raises(weft.RangeError, match=re.escape(f"transport mem: {text}") + "$"):
            getattr(trans, call)(*given)
        with pytest.raises(weft.RangeError, match=re.escape(f"transport mem: {text}") + "$"):
            asyncio.run(awaited(given))


def test_arrays_and_shared_buffers_name_theirs(trans):
    pytest.importorskip("numpy")
    with pytest.raises(ValueError, match=f"^4800 bytes from 0 on are not within the {SIZE} of the transport mem$"):
        trans.remote_array("f8", 600)
    with action("one;rdma_local;size,4096;", "two;rdma_local;size,4096;") as made:
        one, two = made.get_transport("one", "rdma"), made.get_transport("two", "rdma")
        one.reg(BUFFER)
        with pytest.raises(weft.RangeError, match=f"the buffer of one has {BUFFER} bytes, and two is to have 200"):
            two.reg(200, one)


def test_one_that_waits_is_told_as_well():
    """Where the element is becomes known only afterwards."""
    with action("late;rdma_local;") as made:
        trans = made.get_transport("late", "rdma")
        trans.reg(BUFFER)

        async def main():
            reading = asyncio.ensure_future(trans.read_async(50, 4090, 3))
            await asyncio.sleep(0.01)
            assert trans.state == "waiting"
            made.config_transport("late", f"size,{SIZE};")
            await reading
        with pytest.raises(weft.RangeError, match=re.escape(f"transport late: a read of 50 bytes at addr 4090 and offset 3 {MEMORY}") + "$"):
            asyncio.run(main())


def test_a_durl_that_says_too_much_is_told():
    with memory(SIZE) as element, action(element.durl.replace(f"size,{SIZE};", "size,8192;")) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        for _ in range(2):  # one that waits, and one that comes later
            with pytest.raises(weft.RangeError, match=f"^transport mem: the element's memory has {SIZE} bytes, and the durl says 8192$"):
                trans.read(8, 0)
