"""A runtime as a whole: receives from whichever endpoint, addresses, and moving from one event loop to another."""
import asyncio
import threading

import pytest

import weft
import weft.blocking
from weft import _core


def test_a_receive_of_the_runtime_takes_from_any_endpoint(run):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            listener = right.listen("tcp://127.0.0.1:0")
            eps = [await left.connect(listener.uri) for _ in range(3)]
            peers = [await listener.accept() for _ in range(3)]
            waiting = [right.recv_any_into(bytearray(8), tag=7) for _ in range(3)]
            for i, ep in enumerate(eps):
                await ep.send(bytes([i]) * (i + 1), tag=7)
            assert sorted([await op for op in waiting]) == [1, 2, 3]
            assert {op.sender for op in waiting} == set(peers)
            assert right.probe_any(9) is None
            await eps[1].send(b"probed", tag=9)
            while (found := right.probe_any(9, 0xff)) is None:
                await asyncio.sleep(0)
            tag, length, sender = found
            assert (tag, length) == (9, 6) and sender in peers
            assert await right.recv_any(9) == b"probed" and right.probe_any(9) is None
    run(body())


def test_a_lost_peer_does_not_end_it(run):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            listener = right.listen("tcp://127.0.0.1:0")
            a, b = await left.connect(listener.uri), await left.connect(listener.uri)
            peers = [await listener.accept() for _ in range(2)]
            waiting = right.recv_any(5)
            await a.abort()
            await b.send(b"still", tag=5)
            assert await waiting == b"still"
            with pytest.raises(weft.TimeoutError):
                await right.recv_any(5, timeout=0.01)
            assert peers
    run(body())


def test_blocking_runtimes_have_it_too():
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        ep = left.connect(listener.uri)
        peer = listener.accept(timeout=20)
        ep.send(b"abc", tag=1)
        buffer = bytearray(3)
        assert right.recv_any_into(buffer, 1, timeout=20) == 3 and buffer == b"abc"
        ep.send(b"abc", tag=1)
        assert right.recv_any(1, timeout=20) == b"abc" and right.probe_any(1) is None and peer
        with pytest.raises(weft.StateError):
            right._address(print)


def test_addresses(run):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            came = []
            address = right._address(came.append)
            assert isinstance(address, bytes) and right._address(came.append) == address
            ep = await left._connect(address=address)
            await ep.send(b"found you", tag=1)
            assert await right.recv_any(1) == b"found you"
            while not came:
                await asyncio.sleep(0.001)
            await came[0].send(b"and you", tag=2)
            assert await ep.recv(tag=2) == b"and you"
            for bad in (b"", b"x" * 80, address[:-1], address + b"y", bytearray(address), 7):
                with pytest.raises((weft.InvalidError, TypeError)):
                    await left._connect(address=bad)
            for both in ({}, {"uri": "tcp://127.0.0.1:1", "address": address}):
                with pytest.raises(TypeError):
                    left._connect(**both)
    run(body())


def test_a_runtime_moves_from_loop_to_loop(run):
    first = asyncio.new_event_loop()
    left, right = weft.Runtime(loop=first), weft.Runtime(loop=first)

    async def begin():
        listener = right.listen("tcp://127.0.0.1:0")
        a = await left.connect(listener.uri)
        return a, await listener.accept()
    a, b = first.run_until_complete(begin())
    told = []
    early = b.recv(tag=1)
    early.add_done_callback(told.append)

    async def body():
        loop = asyncio.get_running_loop()
        left._attach(loop)
        right._attach(loop)
        assert left.loop is right.loop is loop
        await a.send(b"one", tag=1)
        while not told:
            await asyncio.sleep(0.001)
        assert told == [early] and early.result() == b"one"
        for i in range(100):
            op = b.recv(tag=i)
            await a.send(b"x", tag=i)
            assert await op == b"x"
        sleeping = b.recv(tag=500)
        loop.call_later(0.05, a.send, b"late", 500)
        assert await sleeping == b"late"
        await left.close()
        await right.close()
    run(body())
    first.close()


def test_it_does_not_leave_a_loop_that_runs_elsewhere(run):
    async def body():
        async with weft.Runtime() as runtime:
            other = asyncio.new_event_loop()
            errors = []

            def take():
                try:
                    runtime._attach(other)
                except weft.StateError as error:
                    errors.append(str(error))
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
            assert errors and "another thread" in errors[0]
            with pytest.raises(AttributeError):
                runtime._attach(object())
            assert runtime.loop is asyncio.get_running_loop()
            await asyncio.sleep(0)
            listener = runtime.listen("tcp://127.0.0.1:0")
            await asyncio.gather(runtime.connect(listener.uri), listener.accept())
            with pytest.raises(weft.StateError):
                runtime._arm()
            other.close()
        with pytest.raises(weft.ClosedError):
            runtime._attach(other)
    run(body())


def test_a_task_may_move_the_runtime_whose_turn_steps_it(run):
    async def body():
        loop, hand = asyncio.get_running_loop(), asyncio.new_event_loop()
        async with weft.Runtime() as left, weft.Runtime() as right:
            listener = right.listen("tcp://127.0.0.1:0")
            a, b = await asyncio.gather(left.connect(listener.uri), listener.accept())
            for i in range(20):
                op = b.recv(tag=i)
                loop.call_soon(a.send, b"x", i)
                await op  # stepped by a turn of `right`
                right._attach(hand)
                right._attach(loop)
        hand.close()
    run(body())


def test_a_blocking_runtime_has_no_loop_to_leave():
    with weft.blocking.Runtime() as runtime, pytest.raises(weft.StateError):
        runtime._attach(object())


def test_the_clock_refuses_what_is_no_time():
    import os
    fd = _core._timerfd()
    try:
        for bad in (-1, float("nan"), 1e300):
            with pytest.raises(ValueError):
                _core._timerfd_set(fd, bad)
        with pytest.raises(OSError):
            _core._timerfd_set(-1, 1)
        _core._timerfd_set(fd, 1e-12)
        import select
        assert select.select([fd], [], [], 20)[0]
    finally:
        os.close(fd)
