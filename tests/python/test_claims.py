"""Messages taken out of the matching, to be received by a handle."""
import asyncio
import gc

import pytest

import weft
import weft.blocking

BIG = bytes(range(256)) * 4096


async def claim(ep, tag, mask=None):
    """The message is on its way."""
    while (got := ep.claim(tag, mask)) is None:
        await asyncio.sleep(0.001)
    return got


@pytest.mark.parametrize("data", [b"", b"small", BIG], ids=["empty", "small", "big"])
def test_only_the_handle_receives_it(pair, data):
    async def body(p):
        assert p.b.claim(1) is None
        first, second = p.a.send(data, tag=1), p.a.send(b"second", tag=1)
        c = await claim(p.b, 1)
        assert (c.tag, c.nbytes) == (1, len(data)) and c.sender is p.b and "tag 1" in repr(c)
        assert await p.b.recv(tag=1) == b"second"  # which comes after it
        buffer = bytearray(len(data))
        assert await c.recv_into(buffer) == len(data) and buffer == data
        await first
        await second
        with pytest.raises(weft.StateError, match="received or dropped"):
            c.recv()
        assert "received" in repr(c)
        c.drop()
        sending = p.a.send(data, tag=2)
        assert await (await claim(p.b, 2)).recv() == data
        await sending
    pair(body)


def test_claims_of_whichever_endpoint_by_mask(pair):
    async def body(p):
        await p.a.send(b"x", tag=0x1234)
        while (c := p.right.claim_any(0x34, 0xff)) is None:
            await asyncio.sleep(0.001)
        assert c.tag == 0x1234 and c.sender is p.b and await c.recv() == b"x"
    pair(body)


def test_a_claim_that_is_dropped_forgotten_or_too_short(pair):
    async def body(p):
        sending = p.a.send(BIG, tag=1)
        (await claim(p.b, 1)).drop()
        await asyncio.wait([asyncio.ensure_future(ended(sending))], timeout=30)
        assert sending.done()
        sending = p.a.send(BIG, tag=1)
        await claim(p.b, 1)
        gc.collect()
        await asyncio.wait([asyncio.ensure_future(ended(sending))], timeout=30)
        assert sending.done()
        await p.a.send(b"12345", tag=1)
        with pytest.raises(weft.TruncatedError):
            await (await claim(p.b, 1)).recv_into(bytearray(2))
        await p.a.send(b"after", tag=1)
        assert await p.b.recv(tag=1) == b"after"

    async def ended(op):
        try:
            await op
        except weft.WeftError:
            pass
    pair(body)


def test_a_claim_outlives_its_endpoint_and_its_runtime(pair):
    kept = []

    async def body(p):
        await p.a.send(b"small", tag=1)
        c = await claim(p.b, 1)
        await p.b.abort()
        assert await c.recv() == b"small" and c.sender is None
        q = await again(p)
        await q[0].send(b"small", tag=1)
        kept.append(await claim(q[1], 1))

    async def again(p):
        accepting = p.listener.accept()
        a = await p.left.connect(p.listener.uri)
        return a, await accepting
    pair(body)
    c = kept[0]
    assert c.nbytes == 5
    with pytest.raises(weft.StateError):
        c.recv()
    c.drop()


def test_arguments_that_drop_the_claim(pair):
    class Number:
        def __init__(self, act):
            self.act = act

        def __float__(self):
            self.act()
            return 1.0

        __index__ = lambda self: int(float(self))  # noqa: E731

    async def body(p):
        await p.a.send(b"x", tag=1)
        c = await claim(p.b, 1)
        with pytest.raises(weft.StateError):
            c.recv(timeout=Number(c.drop))
        with pytest.raises(weft.ClosedError):
            p.b.claim(Number(p.b.abort))
    pair(body)


def test_blocking():
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a, b = left.connect(listener.uri), listener.accept()
        for data in (b"small", b"another"):
            a.send(data, tag=1)
        while (c := b.claim(1)) is None:
            pass
        assert c.nbytes == 5 and b.recv(tag=1) == b"another"
        assert c.recv(timeout=30) == b"small"
        a.send(b"left", tag=1)
        while (c := right.claim_any(1)) is None:
            pass
    with pytest.raises(weft.StateError):
        c.recv()
