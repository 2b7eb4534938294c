"""Runtimes in event loops: one per loop, several loops, threads, sleeping, closing, forking."""
import asyncio
import os
import threading
import time

import pytest

import weft
from conftest import connected


def test_a_loop_has_one_runtime_which_ends_with_it(run):
    seen = []

    async def body():
        own = weft.runtime()
        assert own is weft.runtime() and own.loop is asyncio.get_running_loop() and not own.closed
        seen.append(own)
    run(body())
    run(body())
    assert seen[0] is not seen[1] and all(r.closed for r in seen)


def test_without_a_loop_there_is_a_sentence():
    for call in (lambda: weft.connect("tcp://127.0.0.1:1"), lambda: weft.listen("tcp://127.0.0.1:0"), weft.runtime, weft.Runtime):
        with pytest.raises(RuntimeError, match="no running event loop.*weft.blocking"):
            call()


def test_closing_wakes_everyone(run):
    async def body():
        async with weft.Runtime() as right, weft.Runtime() as left:
            listener = right.listen("tcp://127.0.0.1:0")
            accepting = listener.accept()
            ep = await left.connect(listener.uri)
            await accepting
            tasks = [asyncio.ensure_future(wait(ep, i)) for i in range(50)]
            await asyncio.sleep(0.01)
            await left.close()
            assert await asyncio.gather(*tasks) == [True] * 50
            with pytest.raises(weft.ClosedError):
                ep.send(b"")
            with pytest.raises(weft.ClosedError):
                left.connect(listener.uri)
            await left.close()

    async def wait(ep, i):
        with pytest.raises(weft.ClosedError):
            await ep.recv(tag=i)
        return True
    run(body())


def test_another_thread_gets_a_sentence(pair):
    async def body(p):
        said = []

        def other():
            for act in (lambda: p.a.send(b"x"), lambda: p.a.recv(), lambda: p.left.connect("tcp://127.0.0.1:1"), p.a.close,
                        p.left._close):
                with pytest.raises(weft.StateError, match="another thread"):
                    act()
            said.append(True)
        thread = threading.Thread(target=other)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert said == [True]
        await p.a.send(b"x")
        assert await p.b.recv() == b"x"
    pair(body)


def test_several_loops_in_threads_talk_to_each_other(run):
    n, uris, ready = 4, {}, threading.Barrier(4, timeout=60)
    failures = []

    async def side(me):
        async def echo(ep):
            try:
                while True:
                    await ep.send(await ep.recv(tag=1), tag=2)
            except weft.WeftError:
                pass
        listener = weft.listen("tcp://127.0.0.1:0", echo)
        uris[me] = listener.uri
        await asyncio.to_thread(ready.wait)
        eps = [await weft.connect(uris[(me + k) % n]) for k in range(1, n)]
        for i in range(200):
            for ep in eps:
                await ep.send(b"%d" % i, tag=1)
            assert [await ep.recv(tag=2) for ep in eps] == [b"%d" % i] * (n - 1)
        await asyncio.to_thread(ready.wait)

    def thread(me):
        try:
            run(side(me))
        except BaseException as error:
            failures.append(error)
            ready.abort()
    threads = [threading.Thread(target=thread, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not failures


def test_a_sleeping_loop_is_woken(pair):
    """Each message comes when both runtimes have been asleep for a while, and a task waits in the loop; no timer of the
    library helps."""
    async def body(p):
        async def receive(i):
            assert await p.b.recv(tag=1) == b"%d" % i
        for i in range(20):
            task = asyncio.create_task(receive(i))
            await asyncio.sleep(0.02)
            await p.a.send(b"%d" % i, tag=1)
            await task
        assert p.right.stats()["rescued_wakeups"] == 0
    pair(body, heartbeat=1000)


def test_an_idle_loop_uses_no_processor(pair):
    async def body(p):
        waiting = p.b.recv(tag=1)
        await asyncio.sleep(0.2)
        before, turns = time.process_time(), p.right.stats()["turns"]
        await asyncio.sleep(1)
        # a bound that a loop which spins misses by far, and that a busy machine does not
        assert time.process_time() - before < 0.2
        assert p.right.stats()["turns"] - turns < 100
        await p.a.send(b"", tag=1)
        await waiting
    pair(body)


def test_the_loop_hears_once_per_batch(pair):
    async def body(p):
        n = 1000
        ops = [asyncio.ensure_future(consume(p.b, i)) for i in range(n)]
        await asyncio.sleep(0.05)
        turns = p.right.stats()["turns"]
        await p.a.send_many([b"x"] * n, tag=1)
        await asyncio.gather(*ops)
        assert p.right.stats()["turns"] - turns < n / 4

    async def consume(ep, i):
        await ep.recv(tag=1)
    pair(body)


def test_a_forked_child_is_told(pair):
    async def body(p):
        op = p.b.recv(tag=1)
        pid = os.fork()
        if not pid:
            try:
                p.a.send(b"x", tag=1)
            except weft.ForkedError:
                os._exit(42)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
        await p.a.send(b"x", tag=1)
        assert await op == b"x"
    pair(body)


def test_the_options_are_checked(run):
    async def body():
        for bad in ({"progress": "sometimes"}, {"transports": "pigeon"}, {"key": b"short"}):
            with pytest.raises(weft.InvalidError):
                weft.Runtime(**bad)
        with pytest.raises(TypeError):
            weft.Runtime(colour="blue")
        with pytest.raises(ValueError):
            weft.Runtime(heartbeat=-1)
    run(body())


def test_keyboard_interrupt_goes_through_the_turn(run):
    async def body():
        def handler(ep):
            raise KeyboardInterrupt
        listener = weft.listen("tcp://127.0.0.1:0", handler)
        await weft.connect(listener.uri)
        await asyncio.sleep(10)
    with pytest.raises(KeyboardInterrupt):
        run(body())


def test_counters_are_asked_for_in_the_loops_thread(run):
    async def body():
        async with weft.Runtime() as rt:
            assert rt.stats()["endpoints"] == 0
            with pytest.raises(weft.StateError, match="another thread"):
                await asyncio.to_thread(rt.stats)
        with pytest.raises(weft.ClosedError):
            rt.stats()
    run(body())


def test_counters_that_the_library_refuses_are_refused(run):
    seen = []

    class Curious(bytearray):
        def __del__(self):  # inside the progress of the runtime that received into it
            try:
                seen.append(self.other.stats())
            except weft.StateError as error:
                seen.append(str(error))

    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            buf = Curious(8)
            buf.other = left
            op = p.b.recv_into(buf, tag=1)
            del buf
            await p.a.send(b"x", tag=1)
            await op
            assert "inside a callback" in seen[0]
    run(body())
