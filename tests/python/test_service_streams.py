"""Streams of services: generators of both kinds, streams of callers, backpressure, and ends of all kinds; in loops and in
threads."""
import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import numpy
import pytest

import weft
import weft.blocking
from test_service import reported, served  # noqa: F401  (a fixture)


def make():
    """A service with streams of every kind; what its functions left behind."""
    service, left = weft.Service("streams"), []

    @service.function
    async def count(n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                yield i
        finally:
            left.append("count")

    @service.function
    def words(n: int) -> Iterator[str]:
        try:
            for i in range(n):
                yield f"word {i}"
        finally:
            left.append("words")

    @service.function
    async def total(start: float, values: AsyncIterator[float]) -> float:
        async for value in values:
            start += value
        return start

    @service.function
    def joined(values: Iterator[str]) -> str:
        return ",".join(values)

    @service.function
    async def running(values: AsyncIterator[int]) -> AsyncIterator[int]:
        total = 0
        async for value in values:
            total += value
            yield total

    @service.function
    def upper(values: Iterator[str]) -> Iterator[str]:
        for value in values:
            yield value.upper()

    @service.function
    async def arrays(values: AsyncIterator[numpy.ndarray]) -> AsyncIterator[numpy.ndarray]:
        async for value in values:
            assert type(value) is numpy.ndarray
            yield value * 2

    @service.function
    async def lists(values: AsyncIterator[list[int]]) -> AsyncIterator[list[int]]:
        async for value in values:
            assert type(value) is list
            yield value[::-1]

    @service.function
    async def fails(after: int, how: str) -> AsyncIterator[int]:
        for i in range(after):
            yield i
        if how == "code":
            raise weft.codes.OutOfRange("enough")
        if how == "type":
            yield "no number"
        raise KeyError("oh")

    @service.function
    async def first(values: AsyncIterator[int]) -> int:
        async for value in values:
            return value
        return -1
    return service, left


async def collect(stream):
    return [value async for value in stream]


async def settled(server):
    while server.stats()["under_way"]:
        await asyncio.sleep(0.001)


def test_generators_give_streams(served):
    service, left = make()

    async def body(client, server):
        for n in (0, 1, 1000):
            assert await collect(client.count(n)) == list(range(n))
            assert await collect(client.words(n)) == [f"word {i}" for i in range(n)]
        assert left == ["count", "words"] * 3
    served(service, body)


def test_streams_of_callers(served):
    service, _ = make()

    async def body(client, server):
        for n in (0, 1, 500):
            stream = client.total.stream(0.5)
            for i in range(n):
                await stream.send(float(i))
            await stream.end()
            assert await stream.result() == 0.5 + sum(range(n))
            stream = client.joined.stream()
            for i in range(n):
                await stream.send(str(i))
            await stream.end()
            assert await stream.result() == ",".join(map(str, range(n)))
    served(service, body)


@pytest.mark.parametrize("name, sent, got", [
    ("running", [1, 2, 3], [1, 3, 6]), ("upper", ["a", "b"], ["A", "B"]), ("lists", [[1, 2], [], [3]], [[2, 1], [], [3]])])
def test_both_ways(served, name, sent, got):
    service, _ = make()

    async def body(client, server):
        stream = getattr(client, name).stream()
        received = []
        for value in sent:
            await stream.send(value)
            received.append(await anext(stream))
        await stream.end()
        assert [list(v) if name == "lists" else v for v in received] == got
        assert await collect(stream) == []
    served(service, body)


def test_arrays_in_streams(served):
    service, _ = make()

    async def body(client, server):
        stream = client.arrays.stream()
        for size in (1, 1000, 400_000):
            array = numpy.arange(size, dtype=numpy.float64)
            await stream.send(array)
            assert numpy.array_equal(numpy.asarray(await anext(stream)), array * 2)
        await stream.end()
    served(service, body)


def test_failures_end_the_stream_after_what_came_before(served):
    service, _ = make()

    async def body(client, server):
        seen = reported(asyncio.get_running_loop())
        for how, code in (("code", "OUT_OF_RANGE"), ("type", "INTERNAL"), ("", "UNKNOWN")):
            got = []
            with pytest.raises(weft.CallError) as error:
                async for value in client.fails(5, how):
                    got.append(value)
            assert got == [0, 1, 2, 3, 4] and error.value.code_name == code
        assert [type(e).__name__ for e in seen] == ["WrongResult", "KeyError"]
    served(service, body)


def test_who_has_enough_ends_the_generator(served):
    service, left = make()

    async def body(client, server):
        for function in (client.count, client.words):
            left.clear()
            stream = function(10**9)
            got = [await anext(stream) for _ in range(3)]
            assert len(got) == 3
            stream.close()
            while not left:
                await asyncio.sleep(0.001)
            await settled(server)
    served(service, body)


def test_a_generator_waits_for_a_caller_that_is_behind(served):
    service, made = weft.Service("behind"), []

    @service.function
    async def large() -> AsyncIterator[bytes]:
        for i in range(200):
            made.append(i)
            yield bytes(100_000)

    async def body(client, server):
        stream = client.large()
        await anext(stream)
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert len(made) < 40  # 1 MiB, and what is on its way
        assert len(await collect(stream)) == 199
    served(service, body)


def test_an_answer_before_the_end_of_the_stream(served):
    service, _ = make()

    async def body(client, server):
        stream = client.first.stream()
        await stream.send(7)
        assert await stream.result() == 7
        with pytest.raises(weft.WeftError):
            for _ in range(200):
                await stream.send(8)
        await settled(server)
    served(service, body)


def test_plain_functions_with_streams_leave_the_loop_alone(served):
    """They wait, in threads: others are served meanwhile."""
    service, _ = make()

    async def body(client, server):
        waiting = [client.joined.stream() for _ in range(3)]
        assert await collect(client.count(10)) == list(range(10))
        for stream in waiting:
            await stream.send("x")
            await stream.end()
            assert await stream.result() == "x"
    served(service, body)


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_the_same_in_threads(transports):
    service, left = make()
    with weft.blocking.Runtime(transports=transports) as here, weft.blocking.Runtime(transports=transports) as there, \
            service.serve(runtime=there, threads=3) as server, here.client(server.uri) as client:
        assert list(client.count(300)) == list(range(300)) and list(client.words(3)) == ["word 0", "word 1", "word 2"]
        for name, sent, got in (("total", [1.0, 2.0], 3.5), ("joined", ["a", "b"], "a,b")):
            stream = getattr(client, name).stream(*([0.5] if name == "total" else []))
            for value in sent:
                stream.send(value)
            stream.end()
            assert stream.result() == got
        for name, sent, got in (("running", [1, 2, 3], [1, 3, 6]), ("upper", ["a", "b"], ["A", "B"])):
            stream = getattr(client, name).stream()
            received = []
            for value in sent:
                stream.send(value)
                received.append(next(stream))
            stream.end()
            assert received == got and list(stream) == []
        left.clear()
        stream = client.words(10**9)
        assert next(stream) == "word 0"
        stream.close()
        over = threading.Event()
        for _ in range(20_000):
            if left and not server.stats()["under_way"]:
                break
            over.wait(0.001)
        assert left == ["words"] and server.stats()["under_way"] == 0
        with pytest.raises(weft.CallError, match="OUT_OF_RANGE"):
            list(client.fails(3, "code"))
