"""Streams of calls: received, sent, both; backpressure, leaving early, failures, servers that die, and closing under them."""
import asyncio
import gc
import signal
import sys
import threading

import numpy
import pytest

import weft
import weft.blocking
from callside import PROGRAM, TYPES, Process, calc, environment, serve, types  # noqa: F401


async def until(condition):
    while not await condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_what_a_server_gives_comes_in_order_and_whole(run, types, transports):
    async def main():
        async with weft.Runtime(transports=transports) as rt, rt.client(types.uri) as client:
            for n in (0, 1, 64, 65, 3000):
                assert [w async for w in client.words(n)] == [f"word {i}" for i in range(n)]
            seen = []
            async for block in client.blocks(20, 200000):  # more than the stream holds at a time
                seen.append(numpy.asarray(block))
            assert len(seen) == 20 and all((b == i).all() and b.size == 200000 for i, b in enumerate(seen))
    run(main())


def test_of_a_function_of_which_only_the_name_is_known(run, types):
    async def main():
        client = weft.client(types.uri)
        assert [w async for w in client.words(3)] == ["word 0", "word 1", "word 2"]
        stream = await client.blocks(2, 5)
        assert isinstance(stream, weft.Stream) and [bytes(b) async for b in stream] == [b"\0" * 5, b"\1" * 5]
        with pytest.raises(weft.StateError, match="is not known yet"):
            client.join.stream("-")
        stream = await client.join("-")
        await stream.send("a")
        await stream.end()
        assert await stream.result() == "a"
        with pytest.raises(TypeError, match="gave int"):
            async for _ in client.run():
                pass
        with pytest.raises(weft.CallError, match="UNIMPLEMENTED"):
            async for _ in client.nothing():
                pass
        await client.close()
    run(main())


def test_sending_and_the_result(run, types, calc):
    async def main():
        async with weft.client(types.uri) as client:
            stream = client.join.stream(", ")
            for word in ("warp", "and", "weft"):
                await stream.send(word)
            await stream.end()
            assert await stream.result() == "warp, and, weft" == await stream.result()
            with pytest.raises(weft.WeftError):
                await stream.send("late")
            stream = client.join.stream(sep="", timeout=50)
            sends = [stream.send(str(i)) for i in range(1000)]  # several may be on their way: they keep their order
            ended = stream.end()
            await asyncio.gather(*sends, ended)
            assert await stream.result() == "".join(map(str, range(1000)))
            with pytest.raises(TypeError, match="join: the value is 5, where string is wanted"):
                client.join.stream("").send(5)
        async with weft.client(calc.uri) as client:
            async with client.total() as stream:
                for i in range(2000):
                    await stream.send(i)
                await stream.end()
                assert await stream.result() == sum(range(2000))
    run(main())


def test_both_ways_at_once(run, types):
    async def main():
        async with weft.client(types.uri) as client:
            async with client.doubles.stream() as stream:
                async def feed():
                    for i in range(1000):
                        await stream.send(i)
                    await stream.end()
                feeding = asyncio.create_task(feed())
                assert [x async for x in stream] == [2.0 * i for i in range(1000)]
                await feeding
                assert await stream.result() is None
    run(main())


def test_a_sender_waits_for_a_receiver(run, types):
    async def main():
        async with weft.client(types.uri) as client:
            stream = client.doubles.stream()
            sends = [stream.send(1.0) for _ in range(400)]  # what it gives is not taken: the stream holds 64 in each direction
            await asyncio.sleep(0.3)
            done = sum(op.done() for op in sends)
            assert 64 <= done < 400
            got = 0
            while got < 400:
                assert await anext(stream) == 2.0
                got += 1
            await asyncio.gather(*sends)
            await stream.end()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
    run(main())


@pytest.mark.parametrize("how", ["break", "close", "with", "cancel", "named"])
def test_who_leaves_early_cancels_the_call(run, types, how):
    async def main():
        client = weft.client(types.uri)
        if how != "named":
            await client
        before = (await client.state())[1]

        async def read():
            async for i in client.endless():
                if i == 100 and how != "cancel":
                    break
        if how in ("break", "named"):
            await read()
        elif how == "close":
            stream = client.endless()
            assert await anext(stream) == 0
            stream.close()
            stream.close()
            with pytest.raises(weft.ClosedError):
                await anext(stream)
        elif how == "with":
            async with client.endless() as stream:
                assert await anext(stream) == 0
        else:
            task = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task

        async def over():
            gc.collect()
            held, cancelled, _ = await client.state()
            return held == 0 and cancelled == before + 1
        await until(over)
        await client.close()
    run(main())


def test_failures_come_after_what_was_sent_before_them(run, types, calc):
    async def main():
        async with weft.client(types.uri) as client:
            seen = []
            with pytest.raises(weft.CallError) as caught:
                async for i in client.breaks(70):
                    seen.append(i)
            assert seen == list(range(70)) and (caught.value.code_name, caught.value.message,
                                                caught.value.ran) == ("DATA_LOSS", "it broke", "ran")
            stream = client.breaks(0)
            with pytest.raises(weft.CallError):
                await stream.result()
            with pytest.raises(TimeoutError):
                async for _ in client.endless(timeout=0.2):
                    pass
        async with weft.client(calc.uri) as client:
            for use, words in ((lambda: client.add.stream(1, 2), "has no stream: call it"),
                               (lambda: client.primes(10).send(1), "takes no stream"),
                               (lambda: client.primes(10).end(), "takes no stream"),
                               (lambda: client.total().__anext__(), "gives no stream")):
                with pytest.raises(weft.StateError, match=words):
                    use()
            for wrong in (lambda: client.primes(), lambda: client.primes("x"), lambda: client.primes(1, once=1, nothing=2)):
                with pytest.raises(TypeError):
                    wrong()
            with pytest.raises(weft.UnsupportedError):
                client.primes(10, once=True)
            with pytest.raises(TypeError, match="async for"):
                next(client.primes(10))
    run(main())


def test_a_server_that_is_killed_under_streams(run):
    async def main():
        service = Process([sys.executable, "-c", PROGRAM, " ".join(TYPES)], environment())
        try:
            async with weft.client(service.uri) as client:
                reading, writing = client.endless(), client.join.stream("")
                assert await anext(reading) == 0
                await writing.send("x")
                service.process.send_signal(signal.SIGKILL)
                with pytest.raises(ConnectionError) as caught:
                    async for _ in reading:
                        pass
                assert caught.value.ran == "may have run"
                with pytest.raises(ConnectionError):
                    while True:
                        await writing.send("x")
                with pytest.raises(ConnectionError):
                    await writing.result()
        finally:
            service.kill()
    run(main())


def test_closing_under_streams(run, types):
    async def main():
        async with weft.Runtime() as rt:
            client = await rt.client(types.uri)
            stream, item = client.endless(), None
            item = await anext(client.blocks(1, 5000))
            waiting = client.doubles.stream()
            receive = waiting.__anext__()
            await client.close()
            with pytest.raises(weft.ClosedError):
                await receive
            client = await rt.client(types.uri)
            other = client.doubles.stream()
            receive, result = other.__anext__(), other.result()
        for op in (receive, result):
            with pytest.raises(weft.WeftError):
                await op
        for s in (stream, waiting, other):
            assert s.closed
            for use in (s.__anext__, lambda: s.send(1.0)):
                with pytest.raises((weft.ClosedError, weft.StateError)):
                    use()
        assert (numpy.asarray(item) == 0).all() and item.nbytes == 5000
    run(main())


def test_nothing_is_left_behind_by_streams(run, types):
    async def main():
        async with weft.client(types.uri) as client:
            async def some():
                for _ in range(20):
                    assert len([w async for w in client.words(100)]) == 100
                    async for _ in client.endless():
                        break
                    stream = client.join.stream("")
                    await stream.send("x")
                    await stream.end()
                    await stream.result()
                    del stream
                gc.collect()
            await some()
            things = [client.words, client.endless, client.join, weft.Stream]
            before = [sys.getrefcount(t) for t in things]
            await some()
            after = [sys.getrefcount(t) for t in things]
            assert all(a <= b + 3 for a, b in zip(after, before)), (before, after)
        assert weft.runtime().under_way == 0
    run(main())


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_streams_that_wait(types, calc, progress):
    with weft.blocking.Runtime(progress=progress) as rt:
        with rt.client(types.uri, timeout=50) as client:
            assert list(client.words(200)) == [f"word {i}" for i in range(200)]
            with client.join.stream("-") as stream:
                stream.send("a")
                stream.send("b")
                stream.end()
                assert stream.result() == "a-b" == stream.result()
            assert sum(len(bytes(b)) for b in client.blocks(20, 100000)) == 2000000
            for i in client.endless():
                if i == 100:
                    break
            with pytest.raises(weft.CallError, match="DATA_LOSS"):
                list(client.breaks(5))
            with pytest.raises(TimeoutError):
                for _ in client.endless(timeout=0.2):
                    pass
            with pytest.raises(TypeError, match="`for`"):
                client.words(1).__anext__()
            left = client.endless()
            assert next(left) == 0
        with pytest.raises(weft.WeftError):
            for _ in left:
                pass
    with pytest.raises(weft.ClosedError):
        next(left)


def test_a_runtime_is_closed_while_a_thread_waits_for_a_value(types):
    rt, results = weft.blocking.Runtime(), []
    client = rt.client(types.uri)
    stream = client.doubles.stream()
    begun = threading.Event()

    def work():
        begun.set()
        try:
            next(stream)
        except weft.WeftError as error:
            results.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(50)
    rt.close()
    thread.join(60)
    assert len(results) == 1 and not thread.is_alive()
