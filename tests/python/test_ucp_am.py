"""Active messages of ucp: received without a buffer, into what the allocator gives; and failures, which are never data."""
import asyncio

import numpy
import pytest

import ucp
from ucp.exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXConnectionReset, UCXError
from ucpside import connected, fresh, pair  # noqa: F401


@pytest.mark.parametrize("size", [1, 8, 8192, 100_000, 3_000_000])
def test_they_arrive_as_they_were_sent(pair, size):  # noqa: F811
    async def body(p):
        data = (numpy.arange(size) % 251).astype("u1")
        for one, other in ((p.a, p.b), (p.b, p.a)):
            sending = asyncio.ensure_future(one.am_send(data))
            got = await other.am_recv()
            await sending
            assert isinstance(got, bytearray) and bytes(got) == data.tobytes()
    pair(body)


def test_the_allocator_is_used(run):
    async def body():
        p = await connected()
        made = []

        def allocator(n):
            made.append(numpy.empty(n, dtype="u1"))
            return made[-1]
        ucp.register_am_allocator(allocator, "host")
        await p.a.am_send(b"\x05" * 1000)
        got = await p.b.am_recv()
        assert got is made[0] and (got == 5).all()
    run(body())


def test_what_kind_of_memory_there_is():
    with pytest.raises(UCXError, match="host"):
        ucp.register_am_allocator(bytearray, "disk")
    with pytest.raises(TypeError):
        ucp.register_am_allocator("no function", "host")


def test_they_wait_and_keep_their_order(run):
    async def body():
        p = await connected()
        waiting = [asyncio.ensure_future(p.b.am_recv()) for _ in range(5)]
        await asyncio.sleep(0.005)
        for i in range(10):
            await p.a.am_send(b"%d" % i)
        got = await asyncio.gather(*waiting)
        got += [await p.b.am_recv() for _ in range(5)]
        assert got == [b"%d" % i for i in range(10)]
    run(body())


def test_the_end_is_an_exception_and_never_data(run):
    async def body():
        for end in ("close", "abort"):
            p = await connected()
            await p.a.am_send(b"before")
            waiting = [asyncio.ensure_future(p.b.am_recv()) for _ in range(2)]
            await asyncio.sleep(0.005)
            if end == "close":
                await p.a.close()
            else:
                p.a.abort()
            assert await waiting[0] == b"before"
            with pytest.raises(UCXCanceled, match="am_recv"):
                await waiting[1]
            with pytest.raises((UCXConnectionReset, UCXCloseError)):
                await p.b.am_recv()
    run(body())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_large_one_whose_peer_closes_first(pair, end):  # noqa: F811
    """It waits at the sender for the peer's am_recv(). Its send says what a send() with a tag says then, in the words of UCX."""
    async def body(p):
        sending = asyncio.ensure_future(p.a.am_send(bytes(16 << 20)))
        async with asyncio.timeout(60):
            while not p.b._ep.am_probe():
                await asyncio.sleep(0.005)
        if end == "close":
            await p.b.close()
        else:
            p.b.abort()
        with pytest.raises(UCXError, match=r"^<\[AM Send #000\] .*>: Connection reset by remote peer \(") as error:
            async with asyncio.timeout(60):
                await sending
        assert type(error.value) is UCXError and "reject" not in str(error.value)
    pair(body)


def test_a_large_one_that_its_sender_cancels(pair):  # noqa: F811
    """Its receive says so, and the endpoint goes on."""
    async def body(p):
        sending = asyncio.ensure_future(p.a.am_send(bytes(16 << 20)))
        async with asyncio.timeout(60):
            while not p.b._ep.am_probe():
                await asyncio.sleep(0.005)
            sending.cancel()
            await asyncio.wait({sending})
            await p.a.send(b"after")
            await p.b.recv(bytearray(5))
            with pytest.raises(UCXCanceled, match=r"^<\[AM Recv #001\] .*>: the peer took the message back"):
                await p.b.am_recv()
            await p.a.am_send(b"good")
            assert await p.b.am_recv() == b"good"
    pair(body)


def test_the_sender_hears_of_an_allocator_that_fails(pair):  # noqa: F811
    async def body(p):
        ucp.register_am_allocator(lambda n: 1 // 0, "host")
        sending = asyncio.ensure_future(p.a.am_send(bytes(16 << 20)))
        with pytest.raises(UCXBaseException):
            await p.b.am_recv()
        with pytest.raises(UCXError, match="the peer did not receive the message: its allocator failed"):
            async with asyncio.timeout(60):
                await sending
        ucp.register_am_allocator(bytearray, "host")
        await p.a.am_send(b"good")
        assert await p.b.am_recv() == b"good"
    pair(body)


def test_they_count_for_close(run):
    async def body():
        p = await connected()
        for i in range(5):
            await p.a.am_send(b"%d" % i)
            await p.a.send(b"%d" % i)
        await p.a.close()
        for i in range(5):
            await p.b.recv(into := bytearray(1))
            assert into == b"%d" % i == await p.b.am_recv()
        assert p.b.closed()
    run(body())


def test_one_too_many_is_refused(run):
    async def body():
        p = await connected()
        with pytest.raises((TypeError, ValueError)):
            await p.a.am_send(7)
        with pytest.raises(ValueError):
            await p.a.am_send(numpy.zeros((4, 4))[:, 1])
        p.a.abort()
        with pytest.raises(UCXBaseException):
            await p.a.am_send(b"1")
    run(body())
