"""ucp.comm: futures over the lower level."""
import asyncio

import pytest

import ucp
from ucp import comm
from ucp._libs.arr import Array
from ucp.exceptions import UCXBaseException, UCXMsgTruncated
from ucpside import connected, fresh, pair  # noqa: F401


def test_each_of_them_moves_bytes(pair):  # noqa: F811
    async def body(p):
        a, b = p.a._ep, p.b._ep
        for size in (8, 100_000):
            data, into = bytes(range(8)) * (size // 8), bytearray(size)
            for send, recv in ((lambda: comm.tag_send(a, Array(data), size, 5), lambda: comm.tag_recv(b, Array(into), size, 5)),
                               (lambda: comm.tag_send(a, Array(data), size, 6),
                                lambda: comm.tag_recv(b.worker, Array(into), size, 6)),
                               (lambda: comm.stream_send(a, Array(data), size), lambda: comm.stream_recv(b, Array(into), size))):
                into[:] = bytes(size)
                sending = send()
                assert isinstance(sending, asyncio.Future)
                assert await recv() is True
                assert await sending is True
                assert into == data
            sending = comm.am_send(a, Array(data), size)
            assert await comm.am_recv(b) == data
            await sending
        assert await comm.flush_ep(a) is True and await comm.flush_worker(a.worker) is True
    pair(body)


def test_a_stream_has_no_messages(run):
    async def body():
        p = await connected()
        await comm.stream_send(p.a._ep, Array(b"0123456789"), 10)
        for part in (b"012", b"3456", b"789"):
            into = bytearray(len(part))
            await comm.stream_recv(p.b._ep, Array(into), len(part))
            assert into == part
    run(body())


def test_a_failure_is_the_futures(run):
    async def body():
        p = await connected()
        await p.a.send(b"12345", tag=9, force_tag=True)
        with pytest.raises(UCXMsgTruncated):
            await comm.tag_recv(p.b._ep, Array(bytearray(3)), 3, 9)
        waiting = comm.tag_recv(p.b._ep, Array(bytearray(3)), 3, 10)
        p.a.abort()
        with pytest.raises(UCXBaseException):
            await waiting
    run(body())


def test_a_cancelled_future_takes_no_message(run):
    async def body():
        p = await connected()
        stolen = bytearray(4)
        future = comm.tag_recv(p.b._ep, Array(stolen), 4, 5)
        await asyncio.sleep(0)
        future.cancel()
        await asyncio.sleep(0.01)
        await p.a.send(b"mine", tag=5, force_tag=True)
        into = bytearray(4)
        await comm.tag_recv(p.b._ep, Array(into), 4, 5)
        assert into == b"mine" and stolen == bytes(4)
    run(body())


def test_the_loop_may_be_given(run):
    async def body():
        p = await connected()
        loop = asyncio.get_running_loop()
        future = comm.tag_send(p.a._ep, Array(b"1"), 1, 3, event_loop=loop, name="mine")
        assert future.get_loop() is loop
        await future
        await ucp.recv(bytearray(1), 3)
    run(body())
