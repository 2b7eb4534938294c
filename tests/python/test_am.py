"""Active messages: handlers that are functions or coroutines, receives, payloads that wait at their sender."""
import asyncio

import pytest

import weft


def test_a_function_gets_each_message_in_order(pair):
    async def body(p):
        seen = []
        p.right.am_handler(7, lambda m: seen.append((m.id, m.header, m.data, m.endpoint is p.b)))
        for i in range(300):
            await p.a.am_send(7, b"%d" % i, header=b"h%d" % i)
        while len(seen) < 300:
            await asyncio.sleep(0.001)
        assert seen == [(7, b"h%d" % i, b"%d" % i, True) for i in range(300)]
        p.right.am_handler(7, None)
        await p.a.am_send(7, b"now for a receive")
        m = await p.b.am_recv(7)
        assert m.data == b"now for a receive" and m.header == b"" and m.nbytes == 17
    pair(body)


def test_a_coroutine_answers(pair):
    async def body(p):
        async def answer(m):
            await m.endpoint.am_send(9, await m.read(), header=m.header)
        p.right.am_handler(8, answer)
        for size in (0, 10, 3_000_000):
            data = b"x" * size
            sending = p.a.am_send(8, data, header=b"q")
            m = await p.a.am_recv(9)
            assert m.nbytes == size and m.header == b"q" and await m.read() == data
            await sending
    pair(body)


def test_large_payloads_wait_until_they_are_read(pair):
    async def body(p):
        data = bytes(range(256)) * 20_000
        sending = p.a.am_send(1, data)
        m = await p.b.am_recv(1)
        assert m.data is None and m.nbytes == len(data) and not sending.done()
        with pytest.raises(weft.TruncatedError):
            await m.read_into(bytearray(10))
        buf = bytearray(len(data))
        assert await m.read_into(buf) == len(data) and buf == data
        await sending
        with pytest.raises(weft.StateError):
            await m.read()
    pair(body)


def test_a_rejection_reaches_the_sender_with_its_reason(pair):
    async def body(p):
        sending = p.a.am_send(1, b"small", confirm=True)
        m = await p.b.am_recv()
        m.reject(42)
        with pytest.raises(weft.RejectedError) as error:
            await sending
        assert error.value.reason == 42
        sending = p.a.am_send(1, bytes(1 << 20))
        m = await p.b.am_recv(1)
        m.release()
        with pytest.raises(weft.RejectedError):
            await sending
        with pytest.raises(weft.StateError, match="released"):
            m.read()
        m.release()
        assert "released" in repr(m)
    pair(body)


def test_a_handler_that_fails_is_reported_and_the_next_message_comes(pair):
    async def body(p):
        seen, reported = [], []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

        async def later(m):
            await asyncio.sleep(0)
            seen.append(m.data)
            raise KeyError(m.data)

        def now(m):
            seen.append(m.data)
            raise ValueError(m.data)
        p.right.am_handler(1, now)
        p.right.am_handler(2, later)
        for i in (1, 2, 1, 2):
            await p.a.am_send(i, b"%d" % i)
        while len(reported) < 4:
            await asyncio.sleep(0.001)
        assert sorted(seen) == [b"1", b"1", b"2", b"2"]
        assert sorted(type(e).__name__ for e in reported) == ["KeyError", "KeyError", "ValueError", "ValueError"]
    pair(body)


def test_messages_outlive_their_runtime_without_harm(pair):
    kept = []

    async def body(p):
        await p.a.am_send(1, b"x" * 100, header=b"head")
        kept.append(await p.b.am_recv())
    pair(body)
    m = kept[0]
    assert m.header == b"head" and m.nbytes == 100 and m.endpoint is None
    with pytest.raises(weft.StateError):
        m.data
    with pytest.raises(weft.StateError):
        m.read()


def test_what_cannot_be_called_is_refused_at_once(run):
    async def body():
        async with weft.Runtime() as own:
            for call in (lambda: weft.am_handler(1, 5), lambda: own.am_handler(1, "print"),
                         lambda: own.listen("tcp://127.0.0.1:0", 5)):
                with pytest.raises(TypeError, match="cannot be called"):
                    call()
            own.am_handler(1, print)  # nothing was left of the refused one
    run(body())


def test_a_second_handler_is_refused(pair):
    async def body(p):
        first = []
        p.right.am_handler(1, first.append)
        with pytest.raises(weft.StateError):
            p.right.am_handler(1, print)
        await p.a.am_send(1, b"x")
        while not first:
            await asyncio.sleep(0.001)
    pair(body)


def test_a_header_that_is_too_long(pair):
    async def body(p):
        with pytest.raises(weft.LimitError):
            p.a.am_send(1, b"", header=bytes(weft._core.AM_HEADER_MAX + 1))
        assert p.left.under_way == 0
    pair(body)
