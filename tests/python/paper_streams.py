"""Operations that take their turn in streams of a GPU, with a CUDA driver made of paper: test_foreign.py runs this in a process
of its own.

A "kernel" of that driver writes its bytes late. Nothing here may wait for a GPU, and whatever becomes of an operation, the stream
that waits for it goes on.
"""
import asyncio
import gc
import threading

import pytest

import weft
import weft.blocking
from paper_cuda import DATA, Array, ByDLPack, driver, gpu  # noqa: F401: a fixture
from streamside import DELAY, ByProtocol, Cupy, Torch, cuda  # noqa: F401: a fixture

N = len(DATA)


def seconds(op):
    return asyncio.wait_for(op, 60)


# --- behind the streams of buffers --------------------------------------------------------------------------------------------


def where(cuda, how):
    """A stream, and what makes of memory a buffer that has to come behind it."""
    if how == "handle":
        stream = cuda.stream()
        return stream, lambda memory: Array(memory, stream=stream)
    if how == "thread":
        return 2, lambda memory: Array(memory, stream=2)
    return 1, {"legacy": lambda memory: Array(memory, stream=1), "unsaid": lambda memory: Array(memory, stream=KeyError),
               "old": lambda memory: Array(memory, version=2, stream=KeyError), "dlpack": ByDLPack}[how]


WAYS = ["handle", "thread", "legacy", "unsaid", "old", "dlpack"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("n", [100, N])
@pytest.mark.parametrize("context", [True, False])
def test_messages_begin_behind_the_streams_of_their_buffers(cuda, pair, how, n, context):
    async def body(p):
        stream, wrap = where(cuda, how)
        out, into = gpu(bytes(n)), gpu(bytes(n))
        cuda.kernel(stream, out, 9)
        cuda.kernel(stream, into, 7, 2 * DELAY)  # it still uses the buffer: what is received comes later
        if not context:
            cuda.leave()
        waits = cuda.waits
        receiving, sending = p.b.recv_into(wrap(into), tag=1), p.a.send(wrap(out), tag=1)
        assert not sending.done()
        assert await seconds(receiving) == n
        await seconds(sending)
        assert cuda.waits == waits
        if not context:
            cuda.enter()
        assert into.tobytes() == b"\t" * n
    pair(body)


def test_without_a_stream_an_operation_does_not_wait(cuda, pair):
    """So the other tests show something."""
    async def body(p):
        memory, stream = gpu(DATA[:100]), cuda.stream()
        cuda.hold(stream)
        cuda.kernel(stream, memory, 9)
        for thing in (memory, Array(memory, stream=None)):
            sending = p.a.send(thing, tag=1)
            assert await p.b.recv(tag=1) == DATA[:100]
            await sending
        cuda.release(stream)
        cuda.synchronize(stream)
        assert memory.tobytes() == b"\t" * 100
    pair(body)


async def am(p, wrap, out, into, first, then):
    sending = p.a.am_send(3, wrap(out), header=b"head", stream=first)
    message = await p.b.am_recv(3)
    await message.read_into(wrap(into), stream=then)
    await sending


async def any_endpoint(p, wrap, out, into, first, then):
    receiving = p.right.recv_any_into(wrap(into), tag=4, stream=then)
    await asyncio.gather(p.a.send(wrap(out), tag=4, stream=first), receiving)


async def many(p, wrap, out, into, first, then):
    receiving = p.b.recv_many([wrap(into)] * 2, tag=5, stream=then)
    sending = p.a.send_many([wrap(out)] * 2, tag=5, stream=first)
    assert await receiving == [out.nbytes] * 2
    await sending


async def remote(p, write, read):
    region = p.right.region(N)
    there = await p.a.attach(region.key())
    await write(there)
    await read(there)
    await region.free()


async def plain(p, wrap, out, into, first, then):
    await remote(p, lambda r: r.write(wrap(out), stream=first), lambda r: r.read_into(wrap(into), stream=then))


async def notify(p, wrap, out, into, first, then):
    await remote(p, lambda r: r.write_notify(wrap(out), value=1, stream=first), lambda r: r.read_into(wrap(into), stream=then))


async def vector(p, wrap, out, into, first, then):
    await remote(p, lambda r: r.writev([wrap(out)], stream=first), lambda r: r.readv([wrap(into)], stream=then))


async def batch(p, wrap, out, into, first, then):
    await remote(p, lambda r: r.write_many([(0, wrap(out))], stream=first), lambda r: r.read_many([(0, wrap(into))], stream=then))


OPERATIONS = [am, any_endpoint, many, plain, notify, vector, batch]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("n", [100, N])
def test_other_operations_do_too(cuda, pair, operation, n):
    async def body(p):
        stream, wrap = where(cuda, "handle")
        out, into = gpu(bytes(n)), gpu(bytes(n))
        cuda.kernel(stream, out, 9)
        waits = cuda.waits_for_programs
        await seconds(operation(p, wrap, out, into, None, None))
        assert cuda.waits_for_programs == waits and into.tobytes() == b"\t" * n
    pair(body)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_in_streams(cuda, pair, operation):
    """Whose memory has no stream of its own: the first begins behind the kernel, and what a stream is given after the last comes
    behind that."""
    async def body(p):
        n, first, then = 5000, cuda.stream(), cuda.stream()
        out, into, seen = gpu(bytes(n)), gpu(bytes(n)), weft.Memory(n, "pinned")
        cuda.kernel(first, out, 9)
        waits = cuda.waits_for_programs
        await seconds(operation(p, lambda memory: memory, out, into, first, then))
        cuda.copy(then, seen, into)
        assert cuda.waits_for_programs == waits
        cuda.synchronize(first)
        cuda.synchronize(then)
        assert seen.tobytes() == b"\t" * n
    pair(body)


@pytest.mark.parametrize("given", [False, True])
def test_several_streams(cuda, pair, given):
    """Kernels of five streams write the pieces of one operation, each later than the one before."""
    async def body(p):
        streams = [1, 2, cuda.stream(), cuda.stream(), cuda.stream()]
        pieces, into = [[gpu(bytes(1000)) for _ in streams] for _ in range(2)]
        arrays = [Array(piece, stream=stream) for stream, piece in zip(streams, pieces)]
        last = streams[-1] if given else None
        region = p.right.region(5000)
        there = await p.a.attach(region.key())
        rounds, live = 4, set()

        async def writev():
            await there.writev(arrays, stream=last)

        async def write_many():
            await there.write_many(list(zip(range(0, 5000, 1000), arrays)), stream=last)

        async def send_many():
            receiving = p.b.recv_many(into, tag=6)
            await p.a.send_many(arrays, tag=6, stream=last)
            await receiving
        for i in range(rounds):
            for send in (writev, write_many, send_many):
                for k, (stream, piece) in enumerate(zip(streams, pieces)):
                    piece.fill(0)
                    cuda.kernel(stream, piece, i + k + 1, (k + 1) * DELAY // 4)
                waits = cuda.waits_for_programs
                await seconds(send())
                assert cuda.waits_for_programs == waits
                got = bytes(region) if send is not send_many else b"".join(piece.tobytes() for piece in into)
                assert got == b"".join(bytes([i + k + 1]) * 1000 for k in range(5)), (send, i)
            gc.collect()
            live.add(cuda.paper.live_streams)
        assert len(live) == 1  # ours are gone
    pair(body)


def test_default_streams_of_the_device_that_the_buffer_is_on(cuda, pair):
    async def body(p):
        cuda.enter(1)
        memory = gpu(bytes(100))
        for wrap, stream in ((lambda m: Array(m, stream=1), 1), (lambda m: Array(m, stream=2), 2), (ByDLPack, 1)):
            cuda.kernel(stream, memory, 9)
            cuda.leave()
            waits = cuda.waits
            sending = p.a.send(wrap(memory), tag=1)
            assert await seconds(p.b.recv(tag=1)) == b"\t" * 100 and cuda.waits == waits
            await sending
            cuda.enter(1)
            memory.fill(0)
        cuda.leave()
    pair(body)


# --- stream= ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [int, Torch, Cupy, ByProtocol])
def test_a_stream_waits_for_an_operation(cuda, pair, kind):
    async def body(p):
        stream = cuda.stream()
        for into in (gpu(bytes(N)), weft.Memory(N, "pinned")):
            seen = weft.Memory(N, "pinned")
            receiving = p.b.recv_into(into, tag=1, stream=kind(stream))
            if into.kind == "cuda":
                cuda.copy(stream, seen, into)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert cuda.waits_back(stream)
            waits = cuda.waits
            sending = p.a.send(DATA, tag=1)
            assert await seconds(receiving) == N and cuda.waits == waits
            await sending
            cuda.synchronize(stream)
            assert (seen if into.kind == "cuda" else into).tobytes() == DATA
    pair(body)


@pytest.mark.parametrize("stream", [1, 2, Torch(0), Cupy(0), ByProtocol(0), Cupy(2), ByProtocol(1)])
def test_default_streams(cuda, pair, stream):
    async def body(p):
        number = {0: 1}.get(getattr(stream, "ptr", getattr(stream, "cuda_stream", getattr(stream, "handle", stream))))
        number = number or getattr(stream, "ptr", getattr(stream, "handle", stream))
        memory, tensor = gpu(bytes(100)), ByDLPack(gpu(bytes(100)))
        cuda.kernel(number, memory, 9)
        sending = p.a.send(memory, tag=1, stream=stream)
        assert await seconds(p.b.recv(tag=1)) == b"\t" * 100
        await sending
        receiving = p.b.recv_into(tensor, tag=2, stream=stream)
        assert tensor.calls == [{"max_version": (1, 0), "stream": number}] and cuda.waits_back(number)
        await asyncio.gather(p.a.send(DATA[:100], tag=2), seconds(receiving))
        cuda.synchronize(number)
    pair(body)


def test_a_stream_beside_that_of_the_buffer(cuda, pair):
    async def body(p):
        stream, other, memory = cuda.stream(), cuda.stream(), gpu(bytes(100))
        for slow, fast in ((stream, other), (other, stream)):
            cuda.hold(slow)
            cuda.kernel(fast, memory, 7, 0)
            cuda.kernel(slow, memory, 9, 0)
            waits = cuda.waits
            sending = p.a.send(Array(memory, stream=other), tag=1, stream=stream)
            await asyncio.sleep(0.02)
            assert not sending.done()
            cuda.release(slow)
            assert await seconds(p.b.recv(tag=1)) == b"\t" * 100 and cuda.waits == waits
            await sending
        tensor = ByDLPack(memory)
        await asyncio.gather(p.a.send(tensor, tag=1, stream=stream), p.b.recv(tag=1))
        assert tensor.calls[0]["stream"] == stream
    pair(body)


def test_operations_of_one_stream_take_turns(cuda, pair):
    async def body(p):
        stream, out, into = cuda.stream(), gpu(DATA[:1000]), gpu(bytes(1000))
        first = p.b.recv_into(into, tag=1, stream=stream)
        second = p.b.send(Array(into, stream=stream), tag=2, stream=stream)  # what the first received
        await p.a.send(out, tag=1)
        assert await seconds(p.a.recv(tag=2)) == DATA[:1000]
        await asyncio.gather(seconds(first), seconds(second))
        assert not cuda.waits_back(stream)
        await asyncio.gather(p.b.recv_many([bytearray(1) for _ in range(512)], tag=3, stream=stream),
                             p.a.send_many([b"x"] * 512, tag=3))
        for call in (p.a.send_many, p.b.recv_many):
            with pytest.raises(weft.LimitError, match="512"):
                call([bytearray(1)] * 513, stream=stream)
        assert await asyncio.gather(p.b.recv_many([], stream=stream), p.a.send_many([], stream=stream)) == [[], None]
        assert await p.a.am_send(1, header=b"no payload", stream=stream) is None
    pair(body)


def test_messages_of_one_call_do_not_take_turns(cuda, pair):
    async def body(p):
        out, into, stream = gpu(DATA), gpu(bytes(N)), cuda.stream()
        sending = p.a.send_many([out, out], tag=1, stream=stream)
        claims = []

        async def claim():
            while len(claims) < 2:  # both are announced before one of them is received
                claims.extend(c for c in [p.b.claim(tag=1)] if c)
                await asyncio.sleep(0.001)
        await seconds(claim())
        for claimed in claims:
            assert await claimed.recv_into(into) == N and into.tobytes() == DATA
        await sending
        cuda.synchronize(stream)
    pair(body)


@pytest.mark.parametrize("held", [False, True])
def test_cancelling_lets_the_stream_go_on(cuda, pair, held):
    """An operation that is under way, and one that has not begun because its stream has not come so far."""
    async def body(p):
        stream, other, memory, array = cuda.stream(), cuda.stream(), gpu(bytes(N)), None
        if held:
            cuda.hold(other)
            cuda.kernel(other, memory, 3)
            array = Array(memory, stream=other)

        async def receive():
            return await p.b.recv_into(array or memory, tag=1, stream=stream)
        task = asyncio.create_task(receive())
        await asyncio.sleep(0.01)
        assert cuda.waits_back(stream)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while p.right.under_way:
            await asyncio.sleep(0.001)
        cuda.synchronize(stream)
        sending = p.a.send(array or memory, tag=2, stream=stream)
        sending.cancel()
        while p.left.under_way:
            await asyncio.sleep(0.001)
        cuda.synchronize(stream)
        if held:
            cuda.release(other)
        with pytest.raises(weft.TimeoutError):
            await p.b.recv_into(memory, tag=1, stream=stream, timeout=0.01)
        cuda.synchronize(stream)
        closed = p.b.recv_into(memory, tag=1, stream=stream)
        p.b.abort()
        with pytest.raises(weft.WeftError):
            await seconds(closed)
        cuda.synchronize(stream)
    pair(body)


def test_without_a_loop(cuda):
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=30)
        b = listener.accept(timeout=30)
        stream, out, into, seen = cuda.stream(), gpu(bytes(N)), gpu(bytes(N)), weft.Memory(N, "pinned")
        cuda.kernel(stream, out, 9)
        got = []
        receiver = threading.Thread(target=lambda: got.append(b.recv_into(into, tag=1, timeout=30, stream=cuda.other)))
        cuda.other = cuda.stream()
        receiver.start()
        waits = cuda.waits
        a.send(out, tag=1, timeout=30, stream=stream)
        receiver.join()
        assert got == [N] and cuda.waits == waits
        cuda.copy(cuda.other, seen, into)
        cuda.synchronize(cuda.other)
        assert seen.tobytes() == b"\t" * N
        small = gpu(bytes(100))
        cuda.kernel(stream, small, 8)
        a.am_send(1, Array(small, stream=stream))
        assert b.am_recv(1).read_into(into, stream=stream) == 100 and into.tobytes(0, 100) == b"\b" * 100
        region = right.region(N)
        remote_memory = a.attach(region.key())
        cuda.kernel(stream, out, 7)
        remote_memory.write(out, stream=stream)
        cuda.kernel(stream, out, 6)
        remote_memory.write_many([(0, Array(out, stream=stream))])
        assert bytes(region) == b"\6" * N
        with pytest.raises(weft.TimeoutError):
            b.recv_into(into, tag=99, timeout=0.01, stream=stream)
        cuda.synchronize(stream)


class Raises:
    def __cuda_stream__(self):
        raise RuntimeError("trouble")


class Gives:
    def __init__(self, what):
        self.what = what

    def __cuda_stream__(self):
        return self.what


class Index:
    def __index__(self):
        raise ZeroDivisionError


WRONG = [(TypeError, True), (TypeError, False), (TypeError, "1"), (TypeError, 1.0), (TypeError, b"1"), (TypeError, object()),
         (TypeError, [1]), (TypeError, (0, 1)), (OverflowError, -1), (OverflowError, 2**64), (OverflowError, -2**70),
         (weft.InvalidError, 0), (ZeroDivisionError, Index()), (TypeError, Torch), (TypeError, Torch("x")),
         (TypeError, Torch(None)), (TypeError, Torch(True)), (OverflowError, Torch(-1)), (TypeError, Cupy(1.5)),
         (OverflowError, Cupy(2**64)), (RuntimeError, Raises()), (TypeError, Gives(None)), (TypeError, Gives(5)),
         (TypeError, Gives((0,))), (TypeError, Gives((0, 1, 2))), (TypeError, Gives((0, None))),
         (TypeError, Gives(("x", 1))), (OverflowError, Gives((-1, 1))), (weft.UnsupportedError, Gives((1, 1))),
         (OverflowError, Gives((0, -1))), (weft.InvalidError, 0xdeadbeef)]


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_what_is_no_stream_is_refused(cuda, pair, n):
    async def body(p):
        error, stream = WRONG[n]
        region = p.right.region(100)
        there = await p.a.attach(region.key())
        await p.a.am_send(1, bytes(100))
        message = await p.b.am_recv(1)
        memory = gpu(bytes(100))
        for call in (lambda: p.a.send(memory, stream=stream), lambda: p.a.am_send(1, memory, stream=stream),
                     lambda: p.b.recv_into(memory, stream=stream), lambda: p.right.recv_any_into(memory, stream=stream),
                     lambda: message.read_into(memory, stream=stream), lambda: there.write(memory, stream=stream),
                     lambda: there.read_into(memory, stream=stream), lambda: there.write_notify(memory, stream=stream),
                     lambda: there.readv([memory], stream=stream), lambda: there.writev([memory], stream=stream),
                     lambda: there.read_many([(0, memory)], stream=stream),
                     lambda: there.write_many([(0, memory)], stream=stream),
                     lambda: p.a.send_many([memory], stream=stream), lambda: p.b.recv_many([memory], stream=stream)):
            with pytest.raises(error):
                call()
        assert p.left.under_way == p.right.under_way == 0
        assert await message.read() == bytes(100)
    pair(body)


def test_memory_is_no_stream(cuda, pair):
    async def body(p):
        with pytest.raises(TypeError, match="should be a stream"):  # though it has a ptr
            p.a.send(b"x", stream=weft.Memory(10))
    pair(body)


def test_failures_of_the_driver(cuda, pair):
    async def body(p):
        streams = [cuda.stream(), cuda.stream()]
        buffers = [Array(gpu(bytes(10)), stream=stream) for stream in streams]
        left = cuda.paper.live_streams, cuda.paper.live_events
        for function in (b"cuEventCreate", b"cuEventRecord", b"cuStreamCreate", b"cuStreamWaitEvent", b"cuStreamGetCtx"):
            cuda.library.paper_fail(function, 0, 2, 1)
            with pytest.raises(weft.SystemFailureError, match="stream of a GPU"):
                p.a.send_many(buffers)
            cuda.library.paper_fail(function, 0, 0, 0)
            gc.collect()
            assert (cuda.paper.live_streams, cuda.paper.live_events) == left, function
        await asyncio.gather(p.a.send_many(buffers), p.b.recv_many([bytearray(10)] * 2))
    pair(body)
