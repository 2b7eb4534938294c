"""Operations as futures: awaited, gathered, waited for, cancelled, forgotten."""
import asyncio
import contextvars
import gc
import weakref

import pytest

import weft


def test_asyncio_takes_them_for_futures(pair):
    async def body(p):
        op = p.b.recv(tag=1)
        assert asyncio.isfuture(op) and asyncio.ensure_future(op) is op
        assert op.get_loop() is asyncio.get_running_loop()
        assert not op.done() and not op.cancelled()
        with pytest.raises(asyncio.InvalidStateError):
            op.result()
        await p.a.send(b"x", tag=1)
        assert await op == b"x" and op.done() and op.result() == b"x" and op.exception() is None
        assert await op == b"x"  # as often as one likes
        assert op.cancel() is False
    pair(body)


def test_gather_wait_and_wait_for(pair):
    async def body(p):
        ops = [p.b.recv(tag=i) for i in range(5)]
        for i in range(5):
            await p.a.send(b"%d" % i, tag=i)
        assert await asyncio.gather(*ops) == [b"0", b"1", b"2", b"3", b"4"]
        first, never = p.b.recv(tag=1), p.b.recv(tag=2)
        await p.a.send(b"x", tag=1)
        done, pending = await asyncio.wait([first, never], return_when=asyncio.FIRST_COMPLETED)
        assert done == {first} and pending == {never}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(never, 0.01)
        assert never.cancelled()
        await p.a.send(b"y", tag=3)
        assert await asyncio.wait_for(p.b.recv(tag=3), 10) == b"y"
    pair(body)


def test_failures_are_raised_each_time(pair):
    async def body(p):
        op = p.b.recv(tag=1, timeout=0.01)
        for _ in range(2):
            with pytest.raises(weft.TimeoutError):
                await op
        assert isinstance(op.exception(), weft.TimeoutError)
        results = await asyncio.gather(p.b.recv(tag=1, timeout=0.01), return_exceptions=True)
        assert isinstance(results[0], weft.TimeoutError)
    pair(body)


def test_done_callbacks_run_once_in_their_context(pair):
    async def body(p):
        var = contextvars.ContextVar("var", default=0)
        seen = []
        op = p.b.recv(tag=1)
        context = contextvars.copy_context()
        context.run(var.set, 7)
        op.add_done_callback(lambda o: seen.append((o is op, var.get())), context=context)
        op.add_done_callback(seen.append)
        removed = lambda o: seen.append("never")  # noqa: E731
        op.add_done_callback(removed)
        op.add_done_callback(removed)
        assert op.remove_done_callback(removed) == 2 and op.remove_done_callback(removed) == 0
        await p.a.send(b"x", tag=1)
        await op
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == [(True, 7), op]
        op.add_done_callback(seen.append)
        await asyncio.sleep(0)
        assert seen == [(True, 7), op, op]
    pair(body)


def test_a_task_keeps_its_context_and_its_identity(pair):
    async def body(p):
        var = contextvars.ContextVar("var")

        async def one(i):
            var.set(i)
            me = asyncio.current_task()
            for _ in range(50):
                await p.b.recv(tag=i)
                assert var.get() == i and asyncio.current_task() is me
        tasks = [asyncio.create_task(one(i)) for i in range(10)]
        for _ in range(50):
            for i in range(10):
                await p.a.send(b"", tag=i)
        await asyncio.gather(*tasks)
    pair(body)


def test_cancelling_the_task_cancels_the_receive_and_lets_go_of_its_buffer(pair):
    async def body(p):
        buf = bytearray(8)
        task = asyncio.create_task(asyncio.wait_for(p.b.recv_into(buf, tag=1), None))
        await asyncio.sleep(0.01)
        task.cancel("words")
        with pytest.raises(asyncio.CancelledError):
            await task
        while p.right.under_way:
            await asyncio.sleep(0.001)
        buf.append(0)
        # and it has not taken the next message with it
        await p.a.send(b"later", tag=1)
        assert await p.b.recv(tag=1) == b"later"
    pair(body)


def test_asyncio_timeout(pair):
    async def body(p):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await p.b.recv(tag=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await p.a.send(bytes(64 << 20), tag=77)  # nobody receives it
        while p.left.under_way or p.right.under_way:
            await asyncio.sleep(0.001)
        await p.a.send(b"still", tag=1)
        assert await p.b.recv(tag=1) == b"still"
    pair(body)


def test_cancelled_at_once_while_the_buffer_is_held(pair):
    async def body(p):
        op = p.b.recv(tag=1)
        assert op.cancel("why") and not op.cancel() and op.cancelled() and op.done()
        with pytest.raises(asyncio.CancelledError, match="why"):
            await op
        with pytest.raises(asyncio.CancelledError):
            op.result()
    pair(body)


def test_operations_that_were_forgotten_still_end(pair):
    async def body(p):
        class Array(bytearray):
            pass
        buf = Array(8)
        alive = weakref.ref(buf)
        p.b.recv_into(buf, tag=1)
        p.b.recv(tag=2)
        del buf
        gc.collect()
        assert alive() is not None and p.right.under_way == 2
        await p.a.send(b"x", tag=1)
        await p.a.send(b"x", tag=2)
        while p.right.under_way:
            await asyncio.sleep(0.001)
        assert alive() is None
    pair(body)


def test_loops_of_complete_operations_leave_room_for_others(pair):
    """A task whose awaits are always complete must not starve a timer or another task."""
    async def body(p):
        ticks = 0

        async def ticker():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1
        other = asyncio.create_task(ticker())
        for _ in range(20_000):
            await p.a.send(b"x", tag=1)
            await p.b.recv(tag=1)
        other.cancel()
        assert ticks >= 20
    pair(body)


def test_a_coroutine_that_is_closed_while_it_waits(pair):
    async def body(p):
        async def wait():
            await p.b.recv(tag=1)
        coroutine = wait()
        coroutine.send(None)
        coroutine.close()
        await p.a.send(b"x", tag=1)
    pair(body)


def test_it_is_an_iterator_for_those_who_ask(pair):
    async def body(p):
        await p.a.send(b"x", tag=1)
        op = p.b.recv(tag=1)
        await op
        with pytest.raises(StopIteration) as stop:
            next(iter(op))
        assert stop.value.value == b"x"
        assert "WEFT_OK" in repr(op)
    pair(body)


def test_gather_takes_what_was_cancelled(pair):
    async def body(p):
        ops = [p.a.recv(tag=9) for _ in range(3)]
        ops[0].cancel("why")
        results = asyncio.gather(*ops, return_exceptions=True)
        ops[1].cancel()
        await p.b.send(b"x", tag=9)
        results = await results
        assert [type(r) for r in results] == [asyncio.CancelledError, asyncio.CancelledError,
                                              bytes] and results[0].args == ("why",)
        op = p.a.recv(tag=9)
        both = asyncio.gather(op)
        op.cancel("why")
        with pytest.raises(asyncio.CancelledError):
            await both
    pair(body)


def test_who_goes_through_one_that_is_under_way_is_told(pair):
    """list() would never end, nor let others run meanwhile."""
    async def body(p):
        op = p.a.recv(tag=9)
        with pytest.raises(RuntimeError, match="await it"):
            list(op)
        with pytest.raises(RuntimeError, match="await it"):
            p.a.send_many(op)
        await p.b.send(b"x", tag=9)
        assert await op == b"x"
    pair(body)
