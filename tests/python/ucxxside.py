"""What the tests of ucxx share: a fresh context for each, two endpoints that are each other's peer, and waiting for what happens."""
import asyncio
import collections
import time

import pytest

import ucpside
import ucxx
from conftest import BOUND

Pair = collections.namedtuple("Pair", "a b listener")
MODES = ["thread", "blocking", "thread-polling", "polling"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No context before and none after; what a test left behind is taken away."""
    for name in ("UCXPY_PROGRESS_MODE", "UCXPY_ENABLE_DELAYED_SUBMISSION", "UCXPY_ENABLE_PYTHON_FUTURE", "UCXPY_CONNECT_TIMEOUT",
                 "UCXPY_IFNAME", "UCX_TLS"):
        monkeypatch.delenv(name, raising=False)
    forget()
    yield
    forget()


def forget():
    ctx, ucxx.core._ctx = ucxx.core._ctx, None
    if ctx is not None:
        for ep in tuple(ctx._endpoints):
            ep.abort()
        for listener in tuple(ctx._listeners):
            listener.close()
        ctx.close()


async def connected(**options):
    """Two endpoints; the listener lives as long as they are held."""
    accepted = asyncio.get_running_loop().create_future()

    async def accept(ep):
        accepted.set_result(ep)
    listener = ucxx.create_listener(accept, **options)
    a = await ucxx.create_endpoint("127.0.0.1", listener.port, **options)
    return Pair(a, await accepted, listener)


@pytest.fixture(params=[f"{tls}-{mode}" for mode in MODES for tls in ("shm", "tcp") if tls == "shm" or "polling" not in mode])
def pair(request, run):
    """Run an async function with two connected endpoints, over this transport and in this mode of progress."""
    tls, mode = request.param.split("-", 1)

    def go(function):
        async def inner():
            p = await connected()
            assert p.a._ep._inner._endpoint.info["transport"] == tls
            await function(p)
            p.a.abort()
            p.b.abort()
            p.listener.close()
        ucxx.init({"TLS": tls}, progress_mode=mode)
        run(inner())
        ucxx.reset()
    return go


async def until(condition, what="what was waited for"):
    """Wait for something to happen, within the bound of every test."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, f"{what} has not happened"
        await asyncio.sleep(0.002)


def spin_until(condition, worker=None, what="what was waited for"):
    """The same without a loop; a worker is driven meanwhile."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, f"{what} has not happened"
        if worker is not None:
            worker.progress()
        else:
            time.sleep(0.001)


def server(child, handler, setup=""):
    """A process that serves with this body of a coroutine of `ep`; (the process, its port)."""
    return ucpside.server(child, handler, setup, package="ucxx")
