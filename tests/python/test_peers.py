"""Peers that are killed or stopped in the middle, thousands of awaits, storms of cancellations: every operation ends, and no
byte comes late."""
# ctest: long computes
import asyncio
import os
import random
import signal
import threading
import time

import pytest

import weft
import weft.blocking
from conftest import BOUND

MIB = 1 << 20
# a death needs no heartbeat to be noticed; and nobody is taken for silent who only has to wait for a processor
HEARTBEAT = {signal.SIGKILL: 1000, signal.SIGSTOP: 2}
PEER = """
import asyncio, sys, weft
size = int(sys.argv[2])
async def main():
    async with weft.Runtime(transports=sys.argv[3], heartbeat=float(sys.argv[4])) as runtime:
        ep = await runtime.connect(sys.argv[1])
        await ep.send(b"here", tag=1)
        buffer, out = bytearray(size), bytes(size)
        async def forever(act):
            while True:
                await act()
        async def am():
            message = await ep.am_recv(1)
            await message.read_into(buffer)
        await asyncio.gather(forever(lambda: ep.recv_into(buffer, tag=2)), forever(lambda: ep.send(out, tag=3)), forever(am),
                             forever(lambda: ep.am_send(2, out)))
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("size", [8, 64 * MIB], ids=["8B", "64MiB"])
@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_in_the_middle_of_everything(run, child, how, size, transports):
    async def body():
        async with weft.Runtime(transports=transports, heartbeat=HEARTBEAT[how]) as runtime:
            listener = runtime.listen("tcp://127.0.0.1:0")
            process = child(PEER, listener.uri, str(size), transports, str(HEARTBEAT[how]))
            ep = await listener.accept(timeout=BOUND)
            assert await ep.recv(tag=1) == b"here"
            out, moved = bytes(size), 0
            buffers = [bytearray(size), bytearray(size)]

            async def forever(act):
                nonlocal moved
                while True:
                    await act()
                    moved += 1

            async def take():
                await (await ep.am_recv(2)).read_into(buffers[1])
            tasks = [asyncio.create_task(forever(act)) for act in (lambda: ep.send(out, tag=2),
                                                                   lambda: ep.recv_into(buffers[0], tag=3),
                                                                   lambda: ep.am_send(1, out), take)]
            while moved < 8:
                await asyncio.sleep(0.01)
            process.send_signal(how)
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), BOUND / 2)
            assert all(isinstance(error, weft.WeftError) for error in results), results
            assert ep.closed and runtime.under_way == 0
            for buffer in buffers:
                buffer.append(0)  # nobody holds them
    run(body())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("size", [8, 64 * MIB], ids=["8B", "64MiB"])
def test_in_the_middle_of_everything_without_a_loop(child, how, size):
    with weft.blocking.Runtime(heartbeat=HEARTBEAT[how]) as runtime:
        listener = runtime.listen("tcp://127.0.0.1:0")
        process = child(PEER, listener.uri, str(size), "all", str(HEARTBEAT[how]))
        ep = listener.accept(timeout=BOUND)
        assert ep.recv(tag=1, timeout=BOUND) == b"here"
        out, buffer, moved, ended = bytes(size), bytearray(size), [0] * 4, []

        def forever(i, act):
            try:
                while True:
                    act()
                    moved[i] += 1
            except weft.WeftError as error:
                ended.append(error)
        acts = (lambda: ep.send(out, tag=2), lambda: ep.recv_into(buffer, tag=3), lambda: ep.am_send(1, out),
                lambda: ep.am_recv(2).read())
        threads = [threading.Thread(target=forever, args=pair) for pair in enumerate(acts)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + BOUND
        while sum(moved) < 8 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(how)
        for thread in threads:
            thread.join(BOUND / 2)
        assert len(ended) == 4 and sum(moved) >= 8
        buffer.append(0)


def test_ten_thousand_awaits(pair):
    async def body(p):
        n = 10_000

        async def one(tag):
            return await p.b.recv(tag=tag)
        tasks = [asyncio.create_task(one(i)) for i in range(n)]
        await asyncio.sleep(0)
        order = list(range(n))
        random.Random(1).shuffle(order)
        for at in range(0, n, 500):
            await asyncio.gather(*(p.a.send(b"%d" % i, tag=i) for i in order[at:at + 500]))
        assert await asyncio.gather(*tasks) == [b"%d" % i for i in range(n)]
    pair(body)


def test_a_storm_of_cancellations_loses_no_message_and_writes_nowhere_late(pair):
    async def body(p):
        rng, n, got = random.Random(7), 3000, []
        sent = 0
        given_up = []
        while len(got) < n:
            buffers = [bytearray(8) for _ in range(20)]
            ops = [p.b.recv_into(buffer, tag=1) for buffer in buffers]
            for _ in range(min(rng.randrange(25), n - sent)):
                await p.a.send(b"%08d" % sent, tag=1)
                sent += 1
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            for op in ops:
                op.cancel()
            for op, buffer in zip(ops, buffers):
                try:
                    await op
                    got.append(bytes(buffer))
                except asyncio.CancelledError:
                    given_up.append(buffer)
            while p.right.under_way:
                await asyncio.sleep(0)
            for buffer in given_up:  # let go of: it can be resized, and holds one message or nothing
                if bytes(buffer) != bytes(8):
                    got.append(bytes(buffer))
                buffer[:] = b"mine"
            kept, given_up = given_up, []
            await asyncio.sleep(0)
            assert all(buffer == b"mine" for buffer in kept)
            if sent == n:
                while p.b.probe(1):
                    got.append(await p.b.recv(tag=1))
        assert sorted(got) == [b"%08d" % i for i in range(n)]
    pair(body)


def test_timeouts_by_asyncio(pair):
    async def body(p):
        for i in range(100):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0005):
                    await p.b.recv(tag=1)
        while p.right.under_way:
            await asyncio.sleep(0.001)
        await p.a.send(b"x", tag=1)
        async with asyncio.timeout(BOUND / 2):
            assert await p.b.recv(tag=1) == b"x"
    pair(body)


def test_the_interpreter_ends_with_everything_open(child):
    program = """
import asyncio, sys, threading, weft, weft.blocking
kept = []
async def main():
    runtime = weft.Runtime()
    listener = runtime.listen("tcp://127.0.0.1:0")
    accepting = listener.accept()
    a = await runtime.connect(listener.uri)
    b = await accepting
    await a.am_send(1, b"x" * 100)
    kept.extend([runtime, listener, a, b, await b.am_recv(), b.recv(tag=1), a.send(bytes(10_000_000), tag=2), runtime.connect(listener.uri)])
    asyncio.create_task(asyncio.sleep(1000))
asyncio.run(main())
runtime = weft.blocking.Runtime()
listener = runtime.listen("tcp://127.0.0.1:0")
ep = runtime.connect(listener.uri)
peer = listener.accept()
runtime.am_handler(1, print)
ep.on_close = print
for act in (lambda: peer.recv(tag=1), lambda: peer.recv_into(bytearray(10), tag=2), listener.accept):
    threading.Thread(target=act, daemon=True).start()
print("end", flush=True)
"""
    for _ in range(5):
        process = child(program)
        assert process.stdout.readline() == "end\n"
        assert process.wait(BOUND) == 0


def test_subinterpreters():
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        pytest.skip("this Python has no such module")
    program = """
import asyncio, weft
async def main():
    async with weft.Runtime() as runtime:
        listener = runtime.listen("tcp://127.0.0.1:0")
        accepting = listener.accept()
        a = await runtime.connect(listener.uri)
        b = await accepting
        await a.send(b"x")
        assert await b.recv() == b"x"
asyncio.run(main())
"""
    path = f"import sys; sys.path[:] = {[os.path.dirname(os.path.dirname(weft.__file__))] + __import__('sys').path!r}\n"
    for _ in range(3):
        interpreter = interpreters.create()
        try:
            interpreters.run_string(interpreter, path + program)
        except interpreters.RunFailedError as error:
            assert "subinterpreter" in str(error), error  # a sentence will do as well
        finally:
            interpreters.destroy(interpreter)
