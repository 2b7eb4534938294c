"""What UCX-Py did wrong, and ucp on Weft must not: one test for each fault that is known."""
import asyncio
import subprocess

import numpy
import pytest

import ucp
from program import PYTHON, environment
from ucpside import connected, fresh, server  # noqa: F401

ECHO = """
while True:
    n = bytearray(8)
    await ep.recv(n)
    b = bytearray(int.from_bytes(n, 'little'))
    await ep.recv(b)
    await ep.send(b)
"""


def test_endpoints_use_shared_memory_by_default(run, child):
    process, port = server(child, "await ep.recv(bytearray(1))")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        assert ep._weft.info["transport"] == "shm" and "shm" in ep.ucx_info()
        await ep.send(b"1")
    run(body())


@pytest.mark.parametrize("tls", ["shm", "tcp"])
def test_no_wake_up_is_lost_in_blocking_mode(run, child, tls):
    process, port = server(child, ECHO, setup=f"ucp.init({{'TLS': '{tls}'}}, blocking_progress_mode=True)")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        for i in range(300):
            size = (8192, 1, 65536)[i % 3]
            data, into = numpy.full(size, i % 251, "u1"), numpy.empty(size, "u1")
            await ep.send(size.to_bytes(8, "little"))
            await ep.send(data)
            if i % 10 == 0:
                await asyncio.sleep(0.002)  # both sides are asleep by now
            await ep.recv(into)
            assert (into == data).all()
    ucp.init({"TLS": tls}, blocking_progress_mode=True)
    run(body())


def test_posting_from_a_task_while_the_worker_sleeps(run):
    async def body():
        p = await connected()
        for _ in range(50):
            receiving = asyncio.ensure_future(p.b.recv(into := bytearray(8192)))
            await asyncio.sleep(0.003)
            await p.a.send(b"\x07" * 8192)
            await receiving
            assert into == b"\x07" * 8192
    run(body())


def test_string_tags_match_across_processes(run, child):
    process, port = server(child, "await ep.recv(b := bytearray(1), tag='to')\nawait ep.send(b, tag='fro')\nawait ep.recv(b)")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        await ep.send(b"1", tag="to")
        await ep.recv(bytearray(1), tag="fro")
    run(body())


def test_uvloop():
    pytest.importorskip("uvloop")
    program = """
import asyncio, ucp, uvloop
async def main():
    async def echo(ep):
        await ep.send_obj(await ep.recv_obj())
    listener = ucp.create_listener(echo)
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    await ep.send_obj(b"uv")
    assert await ep.recv_obj() == b"uv"
    await ep.close()
    listener.close()
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(asyncio.wait_for(main(), 30))
"""
    for mode in ({}, {"UCXPY_NON_BLOCKING_MODE": "1"}):
        done = subprocess.run([*PYTHON, "-c", program], capture_output=True, text=True, timeout=60, env=environment(**mode))
        assert (done.returncode, done.stderr) == (0, "")


def test_the_listener_binds_what_it_is_told_to(run, monkeypatch):
    """UCXPY_IFNAME names the one interface; another address of this machine then answers nobody."""
    import socket
    monkeypatch.setenv("UCXPY_IFNAME", "lo")

    async def body():
        listener = ucp.create_listener(lambda ep: None)
        assert listener.ip == "127.0.0.1"
        with socket.socket() as s:
            s.bind(("127.0.0.2", listener.port))  # taken, were it bound to every interface
        await ucp.create_endpoint("127.0.0.1", listener.port)
    run(body())


def test_there_is_no_forced_threshold(run):
    """8 KiB over TCP leave at once, as 4 KiB do: they do not wait until their receiver has asked for them."""
    async def body():
        p = await connected()
        for size in (1024, 4096, 8191, 8192):
            async with asyncio.timeout(20):
                await p.a.send(bytes(size))  # returns, and nobody has asked for it yet
            await p.b.recv(bytearray(size))
    ucp.init({"TLS": "tcp"})
    assert ucp.get_config()["RNDV_THRESH"] == "auto"
    run(body())


def test_close_works_on_endpoints_from_a_workers_address(run):
    async def body():
        ep = await ucp.create_endpoint_from_worker_address(ucp.get_worker_address())
        await ep.send(b"1", tag=1, force_tag=True)
        await ucp.recv(bytearray(1), 1)
        await ep.close()
        assert ep.closed()
        await ep.close()
    run(body())
