"""Reads and writes that an event loop awaits, beside threads that wait: results, failures, cancelling, many at once, loops
that end too soon."""
import asyncio
import gc
import os
import random
import select
import subprocess
import threading
import weakref

import pytest

import weft
from weft import _core, _awaited

from elementside import BOUND, action, memory, pair, until
from program import PYTHON, environment


@pytest.fixture(params=["mapped", "tcp"])
def trans(request):
    """A transport of this kind that is ready."""
    with pair(65536, 8192, "tcp" if request.param == "tcp" else "all") as made:
        assert (made.stats()["path"] == "mapped") == (request.param == "mapped")
        yield made


def test_every_call_can_be_awaited(run, trans):
    async def use():
        trans.buf[:8] = b"abcdefgh"
        assert await trans.write_async(4, 100) == 0
        assert await trans.read_async(2, addr=101, offset=50, timeout=BOUND) == 0
        assert bytes(trans.buf[50:52]) == b"bc"
        assert await trans.batch_async([("write", 4, 0, 4), ("read", 4, 100, 60)]) == 2
        assert bytes(trans.buf[60:64]) == b"abcd"
        assert await trans.writev_async([(1, 200), (1, 300)]) == 2
        assert await trans.readv_async([(1, 300), (1, 200)], 70) == 2
        assert bytes(trans.buf[70:72]) == b"ba"
        assert await trans.fetch_add_async(8, 5) == 0 and await trans.compare_swap_async(8, 5, 6) == 5
        assert await trans.flush_async() is None
        assert await trans.wait_ready_async() == 65536
        trans.read(8, 8)  # waiting works beside it
        assert trans.buf[0] == 6
    run(use())


def test_failures_are_raised_where_it_is_awaited(run, trans):
    async def use():
        with pytest.raises(weft.RangeError):
            await trans.read_async(8, 65530)
        with pytest.raises(weft.RangeError):
            await trans.batch_async([("read", 8, 0), ("read", 8, 65530)])
        with pytest.raises(TypeError):
            trans.read_async()
        done = await asyncio.gather(trans.read_async(8, 0), trans.batch_async([("read", 8, 1 << 40)]), return_exceptions=True)
        assert done[0] == 0 and isinstance(done[1], weft.RangeError)
    run(use())


def test_without_a_loop_nothing_is_awaited(trans):
    before = trans.stats()["reads"]
    with pytest.raises(RuntimeError):
        trans.read_async(8, 0)
    assert trans.stats()["reads"] == before


def test_it_is_a_future(run, trans):
    async def use():
        one = trans.read_async(8, 0)
        assert asyncio.isfuture(one)
        done, _ = await asyncio.wait([one, asyncio.ensure_future(trans.write_async(8, 0))], timeout=BOUND)
        assert len(done) == 2 and one.result() == 0
        called = []
        two = trans.read_async(8, 0)
        two.add_done_callback(called.append)
        await two
        await asyncio.sleep(0)
        assert called == [two]
        async with asyncio.timeout(BOUND):
            await trans.read_async(8, 0)
    run(use())


def test_many_under_way_at_once_arrive_each_at_its_place(run, trans):
    async def use():
        for i in range(1024):
            trans.buf[i * 8:i * 8 + 8] = i.to_bytes(8, "little")
        trans.write(8192, 0)
        trans.buf[:] = bytes(8192)
        await asyncio.gather(*[trans.read_async(8, (1023 - i) * 8, i * 8) for i in range(1024)])
        assert [int.from_bytes(trans.buf[i * 8:i * 8 + 8], "little") for i in range(1024)] == list(range(1023, -1, -1))
    run(use())


def test_it_waits_until_the_transport_is_configured(run):
    async def use():
        with memory(4096) as element, action("mem;rdma_tcp;") as made:
            trans = made.get_transport("mem", "rdma")
            with pytest.raises(MemoryError):
                trans.read_async(4, 0)
            trans.reg(8)
            under_way = [trans.write_async(4, 0), trans.read_async(4, 0), trans.wait_ready_async()]
            await asyncio.sleep(0.02)
            assert not any(f.done() for f in under_way)
            threading.Thread(target=made.config_transport, args=("mem", element.durl)).start()
            assert await asyncio.gather(*under_way) == [0, 0, 4096]
    run(use())


def test_deadlines_and_cancelling(run):
    async def use():
        with action("mem;rdma_tcp;") as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(8)
            with pytest.raises(TimeoutError):
                await trans.read_async(4, 0, timeout=0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await trans.read_async(4, 0)
            one = trans.read_async(4, 0)
            assert one.cancel("enough") and not one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
            task = asyncio.ensure_future(asyncio.wait_for(trans.write_async(4, 0), BOUND))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            end = asyncio.get_running_loop().time() + BOUND
            while trans.stats()["failed"] < 4:  # the operations themselves end, too
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.001)
            await trans.flush_async()
    run(use())


def test_terminate_release_and_close_end_what_is_awaited(run):
    async def use():
        with action("a;rdma_tcp;", "b;rdma_tcp;", "c;rdma_tcp;") as made:
            waits = {}
            for name in "abc":
                trans = made.get_transport(name, "rdma")
                trans.reg(8)
                waits[name] = trans.read_async(4, 0)
            made.release_transport("a")
            with pytest.raises(weft.ClosedError):
                await waits["a"]
            made.terminate()
            with pytest.raises(weft.CancelledError):
                await waits["b"]
            made.close()
            with pytest.raises(weft.WeftError):
                await waits["c"]
        with action("a;rdma_tcp;") as made:
            trans = made.get_transport("a", "rdma")
            trans.reg(8)
            wait = trans.read_async(4, 0)
            made._runtime._close()
            with pytest.raises(weft.WeftError):
                await wait
    run(use())


def test_loops_of_threads_use_one_transport(trans):
    failed = []

    def work(i):
        async def use():
            for _ in range(50):
                await asyncio.gather(*[trans.read_async(64, 0, i * 64) for _ in range(8)])
                trans.write(8, 1000 + 8 * i, 1000 + 8 * i)
        try:
            asyncio.run(use())
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert not failed and trans.stats()["reads"] >= 1600


def test_loops_that_begin_at_once_clear_up_after_those_before(monkeypatch):
    """Another thread may come between any two steps: here it does, where a completion fd is emptied."""
    class Fd:
        under_way = 0

        def forget(self):
            for entry in tuple(_awaited._all):
                if entry[1] is self:
                    _awaited._all.remove(entry)

    monkeypatch.setattr(_awaited, "_all", [(lambda: None, Fd())])
    with pair() as trans:
        async def use():
            await trans.read_async(8, 0)
        asyncio.run(use())


def test_an_action_that_is_closed_while_its_future_is_made(run, monkeypatch):
    async def use():
        for size in (64, 8192):
            with memory(65536) as element, action(element.durl) as made:
                trans = made.get_transport("mem", "rdma")
                trans.reg(8192)
                trans.wait_ready(BOUND)

                class Closes(_awaited.AwaitedFuture):
                    def __setattr__(self, name, value):
                        made.close()
                        super().__setattr__(name, value)
                monkeypatch.setattr(_awaited, "AwaitedFuture", Closes)
                with pytest.raises(weft.ClosedError):
                    await trans.read_async(size, 0)
                monkeypatch.undo()
    run(use())


def test_a_loop_that_ends_too_soon_leaves_nothing(run):
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        kept = []

        async def leave():
            future = trans.read_async(4, 0)
            kept.append(weakref.ref(future))
        for _ in range(3):
            run(leave())
        made.terminate()  # they end with nobody there

        async def more():
            with pytest.raises(weft.CancelledError):
                await trans.read_async(4, 0)
        until(lambda: trans.stats()["failed"] >= 3)
        run(more())  # a new loop clears up after the others
        run(more())
        gc.collect()
        assert not [r for r in kept if r() is not None]
        assert sum(fd.under_way for _, fd in _awaited._all) == 0 and len(_awaited._all) <= 2


def test_a_completion_fd_is_there_until_the_thread_that_writes_to_it_is_done():
    late = os.path.join(os.path.dirname(_core.__file__), "..", "..", "tests", "late", "liblate.so")
    if not os.path.exists(late):
        pytest.skip("the eventfd_write() that takes its time is not built")
    preload = " ".join(filter(None, (os.environ.get("LD_PRELOAD"), os.path.abspath(late))))
    here = os.path.dirname(os.path.abspath(__file__))
    child = subprocess.run([*PYTHON, os.path.join(here, "late_completion_fd.py"), "5"],
                           env=environment(LD_PRELOAD=preload, LATE_MS="200"), timeout=BOUND,
                           text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert child.returncode == 0, child.stdout


def test_a_forked_child_leaves_the_completion_fds_of_its_parent_alone(run):
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)

        async def leave():
            trans.read_async(4, 0)
        run(leave())  # whose loop ends too soon
        fd = _awaited._all[-1][1]
        made.terminate()
        until(lambda: select.select([fd.fd], [], [], 0)[0], "the end of the operation")
        pid = os.fork()
        if not pid:
            wrong = 1
            try:
                wrong = 2 * bool(fd.drain()) + 4 * bool(fd.forget()) + 8 * bool(fd.under_way)
            finally:
                os._exit(wrong)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert select.select([fd.fd], [], [], 0)[0], "the child has read what was the parent's"
        assert fd.under_way == 1 and fd.forget() == 1


def test_completion_fds_come_and_go_while_threads_write_to_them():
    """Loops that end with operations under way, in several threads, while others end them: for the sanitizer."""
    failed, over = [], threading.Event()

    def storm(seed):
        chance = random.Random(seed)
        try:
            for _ in range(20):
                with action("mem;rdma_tcp;") as made:
                    trans = made.get_transport("mem", "rdma")
                    trans.reg(8)

                    async def leave():
                        waits = [trans.read_async(4, 0) for _ in range(chance.randrange(1, 6))]
                        waits[0].cancel()
                        if chance.random() < 0.5:
                            made.terminate()
                        if chance.random() < 0.5:
                            await asyncio.sleep(0)
                    asyncio.run(leave())
                    made.terminate()
        except BaseException as error:
            failed.append(error)

    def sweep():
        async def begin():
            _awaited.begin()
        while not over.is_set():
            asyncio.run(begin())
    threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(3)]
    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    over.set()
    sweeper.join(BOUND)
    assert not failed and not any(thread.is_alive() for thread in (*threads, sweeper))


def test_futures_and_what_they_hold_are_freed(run):
    with pair() as trans:
        async def use():
            refs = []
            for _ in range(50):
                future = trans.read_async(64, 0)
                await future
                refs.append(weakref.ref(future))
            del future
            gc.collect()
            assert not [r for r in refs if r() is not None]
        run(use())


def test_a_runtime_that_nobody_drives_is_refused(run):
    async def use():
        own = _core.Runtime(progress="caller")
        try:
            made = _core.Action(own, "x")
            made.add("mem;rdma_local;size,64;")
            trans = _core.Transport(made, "mem")
            trans.reg(8)
            trans.read(8, 0)
            with pytest.raises(weft.StateError, match="thread"):
                trans.read_async(8, 0)
        finally:
            own._close()
    run(use())
