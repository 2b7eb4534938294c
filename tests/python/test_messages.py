"""Tag messages between two endpoints, over both transports and in both kinds of loops."""
import asyncio

import pytest

import weft


def test_bytes_arrive_as_they_were_sent(pair):
    async def body(p):
        for size in (0, 1, 8, 4096, 100_000, 3_000_000):
            data = bytes(i * 7 % 251 for i in range(min(size, 5000))) * (size // 5000 + 1)
            data = data[:size]
            sending = p.a.send(data, tag=5)
            op = p.b.recv(tag=5)
            assert await op == data
            assert op.tag == 5 and op.nbytes == size and op.sender is p.b
            assert await sending is None
    pair(body)


def test_recv_into_gives_the_length_and_leaves_the_rest_alone(pair):
    async def body(p):
        buf = bytearray(b"." * 10)
        await p.a.send(b"hello", 1)
        assert await p.b.recv_into(buf, 1) == 5
        assert buf == b"hello....."
        buf.append(0)  # it is not held any more
    pair(body)


def test_a_buffer_is_held_while_it_is_received_into(pair):
    async def body(p):
        buf = bytearray(8)
        op = p.b.recv_into(buf, tag=1)
        with pytest.raises(BufferError):
            buf.append(0)
        await p.a.send(b"12345678", tag=1)
        assert await op == 8
        buf.append(0)
    pair(body)


def test_tags_and_masks_choose(pair):
    async def body(p):
        await p.a.send(b"one", tag=0x101)
        await p.a.send(b"two", tag=0x202)
        assert await p.b.recv(tag=0x202) == b"two"
        op = p.b.recv(tag=0x1, mask=0xff)
        assert await op == b"one" and op.tag == 0x101
        await p.a.send(b"any", tag=2**64 - 1)
        assert await p.b.recv(mask=0) == b"any"
    pair(body)


def test_messages_of_one_tag_keep_their_order(pair):
    async def body(p):
        n = 2000
        async def receive():
            return [int(await p.b.recv(tag=1)) for _ in range(n)]
        task = asyncio.ensure_future(receive())
        for i in range(n):
            await p.a.send(b"%d" % i, tag=1)
        assert await task == list(range(n))
    pair(body)


def test_a_message_that_is_too_long_is_refused_with_its_length(pair):
    async def body(p):
        await p.a.send(b"12345678", tag=1)
        with pytest.raises(weft.TruncatedError, match="8 bytes"):
            await p.b.recv_into(bytearray(4), tag=1)
        await p.a.send(b"12345678", tag=1)
        with pytest.raises(weft.TruncatedError):
            await p.b.recv(tag=1, max_len=4)
        await p.a.send(b"1234", tag=1)
        assert await p.b.recv(tag=1, max_len=4) == b"1234"
    pair(body)


def test_probe_sees_what_waits_and_leaves_it(pair):
    async def body(p):
        assert p.b.probe(tag=3) is None
        await p.a.send(b"abc", tag=3)
        for _ in range(1000):
            if found := p.b.probe(tag=3):
                break
            await asyncio.sleep(0.001)
        assert found == (3, 3)
        assert await p.b.recv(tag=3) == b"abc"
        assert p.b.probe(mask=0) is None
    pair(body)


@pytest.mark.parametrize("size", [8, 200_000])
def test_many_at_once(pair, size):
    async def body(p):
        n = 100
        out = [bytes([i]) * (size + i) for i in range(n)]
        into = [bytearray(size + n) for _ in range(n)]
        receiving = p.b.recv_many(into, tag=4)
        assert await p.a.send_many(out, tag=4) is None
        assert await receiving == [size + i for i in range(n)]
        assert all(into[i][:size + i] == out[i] for i in range(n))
        assert await p.a.send_many([], tag=4) is None
        assert await p.b.recv_many([]) == []
    pair(body)


def test_many_let_go_of_their_buffers_when_they_are_cancelled(pair):
    async def body(p):
        into = [bytearray(8) for _ in range(10)]
        op = p.b.recv_many(into, tag=4)
        await p.a.send(b"one", tag=4)
        await asyncio.sleep(0.01)
        op.cancel()
        with pytest.raises(asyncio.CancelledError):
            await op
        while p.right.under_way:
            await asyncio.sleep(0.001)
        for buf in into:
            buf.append(0)
    pair(body)


def test_one_of_many_that_is_no_buffer_starts_none(pair):
    async def body(p):
        with pytest.raises(TypeError):
            p.b.recv_many([bytearray(8), 7], tag=1)
        assert p.right.under_way == 0
    pair(body)


def test_what_many_say_is_of_the_first_that_failed(pair):
    async def body(p):
        with pytest.raises(weft.WeftError, match="connect"):  # what its Op leaves is used again
            await p.left.connect("tcp://127.0.0.1:1", retry=False)
        with pytest.raises(weft.TimeoutError) as one:
            await p.b.recv_into(bytearray(8), tag=1, timeout=0.02)
        with pytest.raises(weft.WeftError, match="connect"):
            await p.left.connect("tcp://127.0.0.1:1", retry=False)
        op = p.b.recv_many([bytearray(8), bytearray(8)], tag=1, timeout=0.02)
        with pytest.raises(weft.TimeoutError) as many:
            await op
        assert str(many.value) == str(one.value)
        assert str(op.exception()) == str(one.value)  # as often as it is asked
        await p.a.send_many([b"1", b"123456789"], tag=1)
        with pytest.raises(weft.TruncatedError, match="9 bytes"):
            await p.b.recv_many([bytearray(4), bytearray(4)], tag=1)
    pair(body)


def test_thousands_of_awaits(pair):
    async def body(p):
        n = 5000
        async def one(i):
            await p.a.send(b"%d" % i, tag=i)
        async def other(i):
            assert await p.b.recv(tag=i) == b"%d" % i
        await asyncio.gather(*(other(i) for i in range(n)), *(one(i) for i in range(n)))
    pair(body)


def test_a_deadline_is_the_librarys(pair):
    async def body(p):
        with pytest.raises(weft.TimeoutError):
            await p.b.recv(tag=1, timeout=0.02)
        with pytest.raises(TimeoutError):
            await p.b.recv(tag=1, timeout=0)
        await p.a.send(b"x", tag=1)
        assert await p.b.recv(tag=1, timeout=30) == b"x"
    pair(body)
