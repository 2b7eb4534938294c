"""init, reset, options and what can be asked: of the program's context and of the package."""
import asyncio
import gc
import os
import re

import pytest

import ucp
import weft
from ucp.exceptions import UCXConfigError, UCXError
from ucpside import connected, forget, fresh  # noqa: F401


def test_versions():
    assert re.fullmatch(r"\d+\.\d+\.\d+", ucp.__version__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", ucp.__ucx_version__) and re.fullmatch(r"\d+\.\d+\.\d+", ucp.__ucx_min_version__)
    assert ucp.get_ucx_version() == tuple(map(int, ucp.__ucx_version__.split("."))) and len(ucp.get_ucx_version()) == 3
    assert ucp.__ucx_version__ == weft.info()["ucx_version"]


def test_every_name_of_the_contract_is_there():
    names = """init reset progress get_config get_ucx_version get_active_transports get_ucp_context_info get_ucp_worker_info get_ucp_worker
        create_listener create_endpoint create_endpoint_from_worker_address get_worker_address get_ucx_address_from_buffer recv
        continuous_ucx_progress register_am_allocator flush fence get_address get_ucxpy_logger __version__ __ucx_version__ __ucx_min_version__"""
    for name in names.split():
        assert hasattr(ucp, name), name
        assert getattr(ucp, name).__doc__, name
    for name in "closed ip port close".split():
        assert hasattr(ucp.Listener, name), name
    for name in """uid closed close abort send recv am_send am_recv send_obj recv_obj flush close_after_n_recv set_close_callback cuda_support
            get_ucp_worker get_ucp_endpoint ucx_info""".split():
        assert getattr(ucp.Endpoint, name).__doc__, name
    for module, members in (("core", "_ctx _get_ctx ApplicationContext Endpoint Listener"),
                            ("utils", "get_event_loop hash64bits hmean"),
                            ("comm", "tag_send tag_recv am_send am_recv stream_send stream_recv flush_worker flush_ep"),
                            ("exceptions", "UCXBaseException UCXError UCXConfigError UCXCloseError UCXCanceled "
                                           "UCXConnectionReset UCXMsgTruncated "
                                           "UCXNotConnected UCXUnreachable UCXWarning log_errors")):
        for name in members.split():
            assert hasattr(getattr(ucp, module), name), f"{module}.{name}"


def test_a_second_init_needs_a_reset():
    ucp.init()
    first = ucp.core._get_ctx()
    with pytest.raises(RuntimeError, match="reset"):
        ucp.init()
    assert ucp.core._get_ctx() is first
    ucp.reset()
    ucp.init({"TLS": "tcp"})
    assert ucp.core._get_ctx() is not first and ucp.get_config()["TLS"] == "tcp"
    ucp.reset()
    ucp.reset()  # nothing to do


def test_reset_frees_the_context(run):
    import weakref

    async def body():
        p = await connected()
        await p.a.send(b"1")
        await p.b.recv(bytearray(1))
        await p.a.close()
        await p.b.close()
        p.listener.close()
    run(body())
    ref = weakref.ref(ucp.core._get_ctx())
    worker = weakref.ref(ucp.core._get_ctx().worker)
    ucp.reset()
    gc.collect()
    assert ref() is None and worker() is None


def test_reset_says_what_is_still_open(run):
    async def body():
        p = await connected()
        with pytest.raises(UCXError) as said:
            ucp.reset()
        assert hex(p.a.uid) in str(said.value) and hex(p.b.uid) in str(said.value) and str(p.listener.port) in str(said.value)
        await p.a.send(b"goes on")
        await p.b.recv(bytearray(7))
        for end in (p.a.abort, p.b.abort, p.listener.close):
            end()
        ucp.reset()
        q = await connected()  # with a context of its own
        await q.a.send(b"1")
        await q.b.recv(bytearray(1))
    run(body())


def test_reset_inside_a_loop_and_on(run):
    async def body():
        for _ in range(3):
            p = await connected()
            await p.a.send_obj(b"round")
            assert await p.b.recv_obj() == b"round"
            await p.a.close()
            p.b.abort()
            p.listener.close()
            ucp.reset()
    run(body())


def test_options_and_the_environment(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert ucp.get_config()["TLS"] == "tcp"
    ucp.init({"TLS": "shm"})
    assert ucp.get_config()["TLS"] == "shm"
    ucp.reset()
    ucp.init({"TLS": "shm"}, env_takes_precedence=True)
    assert ucp.get_config()["TLS"] == "tcp"
    ucp.reset()
    given = {"TLS": "shm"}
    ucp.init(given, env_takes_precedence=True)
    assert given == {"TLS": "shm"}
    ucp.reset()
    with pytest.raises(UCXConfigError):
        ucp.init({"NO_SUCH_OPTION": "1"})
    assert ucp.core._ctx is None
    ucp.init()


@pytest.mark.parametrize("tls", ["tcp", "shm"])
def test_tls_chooses_the_transport(run, tls):
    async def body():
        p = await connected()
        assert p.a._weft.info["transport"] == tls
        assert ucp.get_active_transports() == {"posix" if tls == "shm" else tls}  # UCX's name for shared memory
    ucp.init({"TLS": tls})
    run(body())


def test_what_is_active_by_default():
    active = ucp.get_active_transports()
    assert {"tcp", "posix"} <= active and all(isinstance(t, str) for t in active)


def test_information_is_text(run):
    async def body():
        before = ucp.get_ucp_worker_info()
        p = await connected()
        await p.a.send(b"1")
        await p.b.recv(bytearray(1))
        assert len(ucp.get_ucp_context_info()) > 10 and ucp.get_ucp_worker_info() != before
        assert ucp.get_ucp_worker() == ucp.core._get_ctx().worker.handle > 0
    run(body())


@pytest.mark.parametrize("bad", [0, -1, "soon", float("nan"), []])
def test_a_connect_timeout_that_is_none(bad):
    with pytest.raises(ValueError, match="seconds"):
        ucp.init(connect_timeout=bad)


def test_get_address(monkeypatch):
    import socket
    names = [name for _, name in socket.if_nameindex()]
    assert ucp.get_address("lo") == "127.0.0.1" or "lo" not in names
    socket.inet_aton(ucp.get_address())
    monkeypatch.setenv("UCXPY_IFNAME", "lo")
    assert ucp.get_address() == "127.0.0.1"
    with pytest.raises((OSError, ValueError)):
        ucp.get_address("no-such-if0")


def test_get_event_loop_and_hmean():
    loop = ucp.utils.get_event_loop()
    try:
        assert ucp.utils.get_event_loop() is loop and not loop.is_closed()

        async def inside():
            return ucp.utils.get_event_loop() is asyncio.get_running_loop()
        assert loop.run_until_complete(inside())
    finally:
        loop.close()
    assert ucp.utils.get_event_loop() is not loop  # that one is closed
    ucp.utils.get_event_loop().close()
    asyncio.set_event_loop(None)
    assert ucp.utils.hmean([1, 4, 4]) == 2 and ucp.utils.hmean([5, 0]) == 0
    for bad in ([], [-1, 2]):
        with pytest.raises(ValueError):
            ucp.utils.hmean(bad)


def test_nothing_is_left_behind(run):
    async def once():
        p = await connected()
        for _ in range(20):
            await p.a.send_obj(b"x" * 100)
            await p.b.recv_obj()
            waiting = asyncio.ensure_future(p.b.recv(bytearray(4), tag="late"))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        await p.a.close()
        p.b.abort()
        p.listener.close()
        await asyncio.sleep(0.01)

    def settled():
        run(once())
        for _ in range(3):
            gc.collect()
        kinds = (ucp.Endpoint, ucp.Listener, weft.Endpoint, weft.Listener)
        return [sum(isinstance(o, kinds) for o in gc.get_objects()), len(os.listdir("/proc/self/fd"))]
    settled()
    first = settled()
    for _ in range(4):
        last = settled()
    assert last[0] <= first[0] and last[1] <= first[1] + 2, (first, last)
    forget()
