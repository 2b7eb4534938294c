"""alloc_async: more memory at an element, awaited; cancelled at every moment, with elements that stop and die, and nothing is
left at them."""
# ctest: long
import asyncio
import gc
import random

import pytest

import weft
from weft import _core

from elementside import BOUND, action, elsewhere, go_on, memory, mirrored, stop, until

SPARE = 1 << 20


@pytest.fixture(params=["mapped", "tcp"])
def place(request):
    """A transport that is ready, and the element, which has memory to spare."""
    paths = "tcp" if request.param == "tcp" else "all"
    with memory(4096, transports=paths, spare=SPARE) as element, action(element.durl, transports=paths) as made:
        trans = made.get_transport("mem", "rdma")
        trans.wait_ready(BOUND)
        yield trans, element


def used(element):
    """Of the spare."""
    return element.stats()["used_bytes"] - 4096


def test_it_is_awaited_with_the_same_arguments(run, place):
    trans, element = place

    async def use():
        future = trans.alloc_async(1000, lease=20, timeout=BOUND)
        assert asyncio.isfuture(future)
        block = await future
        assert block.nbytes == 1000 and block.store is None and type(block) is type(trans.alloc(10))
        block.remote.write(b"hello", 100)
        assert block.remote.read(98, 9) == bytes(2) + b"hello" + bytes(2)
        several = await asyncio.gather(*[trans.alloc_async(100.0, lease=i % 3 + 1) for i in range(30)])
        assert len({bytes(one.key()) for one in several}) == 30
        for one in [block, *several]:
            one.free()
        with pytest.raises(weft.LimitError):
            await trans.alloc_async(1 << 40)
        for bad in (lambda: trans.alloc_async(), lambda: trans.alloc_async(None), lambda: trans.alloc_async(8, 5)):
            with pytest.raises(TypeError):
                bad()
        for bad in (lambda: trans.alloc_async(1.5), lambda: trans.alloc_async(8, lease=-1)):
            with pytest.raises(ValueError):
                bad()
    run(use())
    until(lambda: used(element) == 0)
    with pytest.raises(RuntimeError):
        trans.alloc_async(8)  # there is no loop
    assert used(element) == 0


def test_what_is_cancelled_is_freed_at_the_element_whenever_that_is(run, place):
    trans, element = place
    rng = random.Random(4)

    async def use():
        seen = {"cancelled": 0, "came": 0}
        for _ in range(150):
            futures = [trans.alloc_async(1000, lease=rng.choice([None, 5])) for _ in range(4)]
            await asyncio.sleep(rng.choice([0, 0, 0.0002, 0.001, 0.003]))
            for future in futures:
                if future.cancel():
                    seen["cancelled"] += 1
                else:
                    seen["came"] += 1
                    future.result().free()
            del future, futures
            await asyncio.sleep(0)
        assert seen["cancelled"]
        await trans.flush_async()  # the loop has been told of all of them
    run(use())
    until(lambda: used(element) == 0, "what was allocated for nobody being freed")
    trans.alloc(SPARE - 65536, timeout=BOUND).free()


def test_a_task_that_is_cancelled_when_it_was_all_but_there(run):
    """The future has the block already, and the task that would be woken with it is cancelled: asyncio drops what it had."""
    async def use(element):
        with action("mem;rdma_tcp;") as made:
            trans = made.get_transport("mem", "rdma")
            future = trans.alloc_async(1000)
            task = None
            future.add_done_callback(lambda _: task.cancel())  # before the task is told

            async def wait():
                await future
            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            made.config_transport("mem", element.durl)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert future.done() and not future.cancelled() and used(element) > 0
            del future, wait, task
            gc.collect()
            await trans.flush_async()
            end = asyncio.get_running_loop().time() + BOUND
            while used(element):
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.002)
    with memory(4096, spare=SPARE) as element:
        run(use(element))


def test_a_block_that_others_may_know_of_stays(place):
    trans, element = place
    block = trans.alloc(1000)
    key = block.key()
    del block
    gc.collect()
    trans.flush()
    assert key and used(element) >= 1000  # whoever has the key uses it
    kept = trans.alloc(1000)
    kept.remote.write(b"x", 0)
    kept.drop()
    before = used(element)
    trans.alloc(100)
    until(lambda: used(element) == before)  # that one nobody knows


def test_the_element_is_stopped_and_it_is_cancelled(run, child):
    process, durl = elsewhere(child, 4096, transports="tcp", spare=SPARE, lease=1)

    async def use():
        with action(durl, transports="tcp", heartbeat=5) as made:
            trans = made.get_transport("mem", "rdma")
            await trans.wait_ready_async(BOUND)
            (await trans.alloc_async(10)).free()
            stop(process)
            try:
                future = trans.alloc_async(SPARE - 65536)
                await asyncio.sleep(0.05)
                assert not future.done()
                future.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await future
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await trans.alloc_async(SPARE - 65536)
            finally:
                go_on(process)
            end = asyncio.get_running_loop().time() + BOUND
            while True:  # there is room for one, as soon as those before have gone
                try:
                    (await trans.alloc_async(SPARE - 65536, timeout=BOUND)).free()
                    return
                except (weft.LimitError, ConnectionError):
                    assert asyncio.get_running_loop().time() < end
                    await asyncio.sleep(0.05)
    run(use())


@pytest.mark.parametrize("replicas", [False, True])
def test_the_element_dies_in_the_middle(run, child, replicas):
    if replicas:
        processes, durl = mirrored(child, 2, 4096, spare=SPARE)
    else:
        process, durl = elsewhere(child, 4096, transports="tcp", spare=SPARE)
        processes = [process]

    async def use():
        with action(durl, transports="all" if replicas else "tcp", heartbeat=1) as made:
            trans = made.get_transport("mem", "rdma")
            await trans.wait_ready_async(BOUND)
            block = await trans.alloc_async(100)
            block.remote.write(b"x", 0)
            for process in processes:
                stop(process)
            futures = [trans.alloc_async(1000), trans.alloc_async(1000, lease=3), trans.alloc_async(1000, timeout=BOUND)]
            await asyncio.sleep(0.02)
            for process in processes:
                process.kill()
            for error in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(error, (ConnectionError, TimeoutError)), error
            with pytest.raises((ConnectionError, TimeoutError)):
                await trans.alloc_async(1000, timeout=BOUND)
    run(use())


def test_waiting_deadlines_release_and_closing(run):
    async def use():
        with memory(4096, spare=SPARE) as element, action("mem;rdma_tcp;", "gone;rdma_tcp;") as made:
            trans = made.get_transport("mem", "rdma")
            with pytest.raises(weft.TimeoutError):
                await trans.alloc_async(10, timeout=0.01)
            waits = trans.alloc_async(10)
            await asyncio.sleep(0.01)
            assert not waits.done()
            made.config_transport("mem", element.durl)
            block = await waits
            assert block.nbytes == 10
            gone = made.get_transport("gone", "rdma")
            waits = gone.alloc_async(10)
            made.release_transport("gone")
            with pytest.raises(weft.ClosedError):
                await waits
            with pytest.raises(weft.ClosedError):
                await gone.alloc_async(10)
            made.release_transport("mem")
            with pytest.raises(weft.ClosedError):
                block.remote
    run(use())


def test_a_runtime_that_closes_meanwhile_leaves_nothing(run):
    async def use():
        with memory(4096, spare=SPARE) as element:
            for i in range(30):
                with action(element.durl) as made:
                    trans = made.get_transport("mem", "rdma")
                    if i % 2:
                        await trans.wait_ready_async(BOUND)
                    futures = [trans.alloc_async(100) for _ in range(8)]
                    await asyncio.sleep(0.0005 * (i % 5))
                    made._runtime._close()
                    for done in await asyncio.gather(*futures, return_exceptions=True):
                        assert isinstance(done, (weft.WeftError, weft._core.Block))
                    del futures, done
            until(lambda: used(element) == 0)
    run(use())


def test_a_loop_that_ends_too_soon(run, place):
    trans, element = place

    async def leave():
        for _ in range(5):
            trans.alloc_async(1000)
    for _ in range(3):
        run(leave())

    async def more():
        (await trans.alloc_async(1000)).free()
    run(more())  # a new loop clears up after the others
    until(lambda: _cleared(run, element))


def _cleared(run, element):
    """What came to a loop that had ended is on the list of its completion fd until there is a new one."""
    async def nothing():
        with action("x;rdma_tcp;") as made, pytest.raises(weft.TimeoutError):
            await made.get_transport("x", "rdma").wait_ready_async(0.001)
    run(nothing())
    return used(element) == 0


def test_in_the_runtime_of_a_loop_it_is_the_same_as_alloc(run):
    async def use():
        with memory(4096, spare=SPARE) as element:
            async with weft.Runtime() as runtime:
                own = _core.Action(runtime, "loop")
                own.add(element.durl)
                trans = _core.Transport(own, "mem")
                block = await trans.alloc_async(100, lease=5)
                await block.remote.write(b"x", 0)
                await block.free()
                op = trans.alloc_async(100)
                op.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await op
                del op
                await own.close()
            until(lambda: used(element) == 0)
    run(use())
