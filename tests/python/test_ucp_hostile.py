"""ucp with arguments that are none, and with peers that are none: exceptions, never a crash, and the others go on."""
# ctest: long
import asyncio
import os
import random
import socket

import pytest

import ucp
import weft
from ucp._libs.worker import STREAM_ID
from ucpside import connected, fresh  # noqa: F401

ODD = [None, 0, -1, 1, 2**64, 2**70, 1.5, float("nan"), "", "text", "\0", b"", b"bytes", bytearray(3), memoryview(b"view"), [],
       {}, (), object(), lambda *a: None, Ellipsis, range(3), Exception, "127.0.0.1", 65536, True]


def odd(rng):
    return [rng.choice(ODD) for _ in range(rng.randrange(4))]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_arguments(run, seed):
    rng = random.Random(seed)

    async def one(function, args):
        try:
            result = function(*args)
            if asyncio.iscoroutine(result):
                async with asyncio.timeout(0.02):
                    result = await result
            if isinstance(result, (ucp.Listener, ucp.Endpoint)):
                getattr(result, "abort", getattr(result, "close"))()
        except Exception:  # and nothing that is none
            pass

    async def body():
        ucp.init(connect_timeout=30)
        p = await connected()
        functions = [ucp.create_listener, ucp.create_endpoint, ucp.create_endpoint_from_worker_address,
                     ucp.get_ucx_address_from_buffer, ucp.recv,
                     ucp.continuous_ucx_progress, ucp.register_am_allocator, ucp.get_address, ucp.init, ucp.progress, ucp.fence,
                     ucp.flush,
                     ucp.get_worker_address, ucp.get_config, ucp.utils.hash64bits, ucp.utils.hmean, ucp.core.ApplicationContext]
        functions += [ucp.comm.tag_send, ucp.comm.tag_recv, ucp.comm.am_send, ucp.comm.am_recv, ucp.comm.stream_send,
                      ucp.comm.stream_recv, ucp.comm.flush_ep, ucp.comm.flush_worker]
        for _ in range(400):
            functions_of_p = [p.a.send, p.a.recv, p.a.am_send, p.a.am_recv, p.a.send_obj, p.a.recv_obj, p.a.close_after_n_recv,
                              p.a.set_close_callback, p.b.send, p.b.recv, p.a.flush, p.b.close_after_n_recv]
            await one(rng.choice(functions + functions_of_p), odd(rng))
            if p.a.closed() or p.b.closed():
                p = await connected()
        q = await connected()
        await q.a.send_obj(b"after all")
        assert await q.b.recv_obj() == b"after all"
    run(body())


def test_strangers_at_the_port(run):
    async def body():
        served = []

        async def handler(ep):
            served.append(ep)
            await ep.send_obj(await ep.recv_obj())
        listener = ucp.create_listener(handler)
        rng = random.Random(1)
        for i in range(30):
            with socket.create_connection(("127.0.0.1", listener.port)) as s:
                s.sendall(rng.randbytes(rng.choice((0, 1, 16, 300, 5000))) if i % 3 else b"GET / HTTP/1.1\r\n\r\n")
                await asyncio.sleep(0.001)
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        await ep.send_obj(b"friend")
        assert await ep.recv_obj() == b"friend" and len(served) == 1
    run(body())


@pytest.mark.parametrize("says", [b"", b"short", os.urandom(24), bytes(24), os.urandom(100_000), None],
                         ids=lambda b: "nothing" if b is None else str(len(b)))
def test_a_peer_that_does_not_introduce_itself_gets_no_endpoint(run, says):
    async def body():
        ucp.init(connect_timeout=2)
        served = []
        listener = ucp.create_listener(served.append)
        async with weft.Runtime() as other:
            peer = await other.connect(f"tcp://127.0.0.1:{listener.port}")
            if says is not None:
                sending = peer.am_send(STREAM_ID, says)
                await asyncio.wait([sending], timeout=1)
            while not peer.closed:  # for as long as `run` lets us
                await asyncio.sleep(0.01)
            assert not served
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        assert not ep.closed()
    run(body())


def test_a_listener_that_does_not_introduce_itself(run):
    async def body():
        ucp.init(connect_timeout=3)
        async with weft.Runtime() as other:
            async def wrong(ep):
                await ep.am_send(STREAM_ID, bytes(24))
                await asyncio.sleep(5)
            silent, talker = other.listen("tcp://127.0.0.1:0", lambda ep: kept.append(ep)), other.listen("tcp://127.0.0.1:0",
                                                                                                         wrong)
            kept = []
            with pytest.raises(TimeoutError):
                await ucp.create_endpoint("127.0.0.1", silent.port)
            with pytest.raises(ucp.exceptions.UCXError, match="protocol"):
                await ucp.create_endpoint("127.0.0.1", talker.port)
    run(body())
