"""Both modes of progress: a loop that sleeps when there is nothing to do, and one that never does."""
import asyncio
import os
import time

import pytest

import ucp
from ucp.continuous_ucx_progress import BlockingMode, NonBlockingMode
from ucpside import connected, forget, fresh  # noqa: F401


def test_the_mode_is_what_was_asked_for(run, monkeypatch):
    async def task():
        ucp.continuous_ucx_progress()
        return ucp.core._get_ctx().progress_tasks[0]
    for blocking, kind in ((True, BlockingMode), (False, NonBlockingMode), (None, BlockingMode)):
        ucp.init(blocking_progress_mode=blocking)
        assert type(run(task())) is kind
        forget()
    monkeypatch.setenv("UCXPY_NON_BLOCKING_MODE", "1")
    assert type(run(task())) is NonBlockingMode
    forget()
    ucp.init(blocking_progress_mode=True)  # what a program says counts more
    assert type(run(task())) is BlockingMode


def test_one_task_for_a_loop(run):
    async def body():
        ctx = ucp.core._get_ctx()
        for _ in range(5):
            ucp.continuous_ucx_progress()
            ucp.continuous_ucx_progress(asyncio.get_running_loop())
        assert len(ctx.progress_tasks) == 1 and ctx.progress_tasks[0] == asyncio.get_running_loop()
        assert ctx.worker.runtime.loop is asyncio.get_running_loop()
    run(body())
    run(body())  # the next loop has it


def test_an_idle_loop_sleeps_or_does_not(run):
    """How often the worker is looked after while nothing happens: a few times in one mode, all the time in the other."""
    turns = {}
    for blocking in (True, False):
        async def body():
            p = await connected()
            waiting = asyncio.ensure_future(p.b.recv(bytearray(1)))
            await asyncio.sleep(0.2)
            runtime = ucp.core._get_ctx().worker.runtime
            before = runtime.stats()["turns"]
            await asyncio.sleep(1)
            turns[blocking] = runtime.stats()["turns"] - before
            await p.a.send(b"1")
            await waiting
        ucp.init(blocking_progress_mode=blocking)
        run(body())
        forget()
    assert turns[True] < 60 and turns[False] > 10 * turns[True] + 100, turns


@pytest.mark.parametrize("blocking", [True, False])
def test_a_message_wakes_a_loop_that_waits_for_nothing_else(run, child, blocking):
    from ucpside import server
    process, port = server(child, """
import asyncio
while True:
    await ep.recv(b := bytearray(1))
    await asyncio.sleep(0.05)
    await ep.send(b)
""")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        for _ in range(10):
            await ep.send(b"1")
            await ep.recv(bytearray(1))
    ucp.init(blocking_progress_mode=blocking)
    run(body())


def test_the_mode_stops_with_the_context(run):
    async def body():
        ucp.continuous_ucx_progress()
        task = ucp.core._get_ctx().progress_tasks[0]
        ucp.reset()
        until = time.monotonic() + 20  # it closes once the loop has come around a few times
        while task.worker() is not None and task.worker().initialized:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) < 1000
    ucp.init(blocking_progress_mode=False)
    run(body())
