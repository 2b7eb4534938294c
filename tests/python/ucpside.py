"""What the tests of ucp share: a fresh context for each, and two endpoints that are each other's peer."""
import asyncio
import collections

import pytest

import ucp

Pair = collections.namedtuple("Pair", "a b listener")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No context before and none after; what a test left behind is taken away."""
    for name in ("UCXPY_NON_BLOCKING_MODE", "UCXPY_CONNECT_TIMEOUT", "UCXPY_IFNAME", "UCX_TLS"):
        monkeypatch.delenv(name, raising=False)
    forget()
    yield
    forget()


def forget():
    ctx, ucp.core._ctx = ucp.core._ctx, None
    if ctx is not None:
        ctx._finish()


async def connected(handler=None, **options):
    """Two endpoints; the listener lives as long as they are held."""
    accepted = asyncio.get_running_loop().create_future()

    async def accept(ep):
        accepted.set_result(ep)
    listener = ucp.create_listener(accept, **options)
    a = await ucp.create_endpoint("127.0.0.1", listener.port,
                                  **({k: v for k, v in options.items() if k == "endpoint_error_handling"}))
    return Pair(a, await accepted, listener)


@pytest.fixture(params=["shm-blocking", "tcp-blocking", "shm-non-blocking", "tcp-non-blocking"])
def pair(request, run):
    """Run an async function with two connected endpoints, over this transport and in this mode of progress."""
    tls, mode = request.param.split("-", 1)

    def go(function):
        async def inner():
            p = await connected()
            info = p.a.ucx_info()
            assert tls in info, info
            await function(p)
            p.a.abort()
            p.b.abort()
            p.listener.close()
        ucp.init({"TLS": tls}, blocking_progress_mode=mode == "blocking")
        run(inner())
        ucp.reset()
    return go


SERVER = """
import asyncio, sys, {package}
{setup}
async def handler(ep):
{handler}
async def main():
    listener = {package}.create_listener(handler)
    print(listener.port, flush=True)
    await asyncio.wait_for(asyncio.Event().wait(), 300)
asyncio.run(main())
"""


def server(child, handler, setup="", stderr=None, package="ucp"):
    """A process that serves with this body of a coroutine of `ep`; (the process, its port)."""
    body = "\n".join("    " + line for line in handler.strip().splitlines())
    process = child(SERVER.format(handler=body, setup=setup, package=package), stderr=stderr)
    return process, int(process.stdout.readline())
