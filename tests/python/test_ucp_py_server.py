"""`ucp_py`: servers and listeners, with functions and coroutine functions, and what becomes of them."""
import asyncio
import functools
import gc
import inspect
import logging
import os
import re
import subprocess
import threading
import time

import pytest

import ports
import ucp_py
import weft

CLIENT = """
import sys, ucp_py
ucp_py.init()
for i in range(int(sys.argv[2])):
    ep = ucp_py.get_endpoint(b"127.0.0.1", int(sys.argv[1]))
    ep.send_msg(f"hello {i}").result()
    print(ucp_py.get_obj_from_msg(ep.recv_msg().result()), flush=True)
    ucp_py.destroy_ep(ep)
ucp_py.fin()
"""


@pytest.fixture(autouse=True)
def initialised():
    ucp_py.init()
    yield
    ucp_py.fin()


def until(condition, drive=True):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        if drive:
            ucp_py.progress()


def lines(process, n):
    return [process.stdout.readline().strip() for _ in range(n)]


def answer(ep):
    ep.send_msg(ep.recv_future().result().get_obj() + "!").result()


async def answer_later(ep):
    msg = await ep.recv_future()
    await asyncio.sleep(0.01)
    await ep.send_obj(ucp_py.get_obj_from_msg(msg) + "!")


def test_a_function_is_called_by_progress(child):
    called = []

    def talk(ep):
        assert isinstance(ep, ucp_py.ucp_py_ep)
        called.append(threading.get_ident())
        answer(ep)
    assert ucp_py.start_server(talk, 0) == 0
    port = ucp_py._core._own.servers[0].port
    process = child(CLIENT, str(port), "3")
    until(lambda: len(called) == 3)
    assert lines(process, 3) == ["hello 0!", "hello 1!", "hello 2!"]
    assert set(called) == {threading.get_ident()}
    assert ucp_py.stop_server() == 0
    with pytest.raises(weft.RefusedError):
        ucp_py.get_endpoint(b"127.0.0.1", port)


@pytest.mark.parametrize("says", [True, False])
def test_a_coroutine_function_is_seen_by_itself(run, child, says):
    served = []

    async def talk(ep):
        await answer_later(ep)
        served.append(1)
        if len(served) == 4:
            ucp_py.stop_server()
    coroutine = ucp_py.start_server(talk, server_port=0, is_coroutine=says)
    assert inspect.iscoroutine(coroutine)
    processes = [child(CLIENT, str(ucp_py._core._own.servers[0].port), "2") for _ in range(2)]
    run(coroutine)
    assert len(served) == 4
    for process in processes:
        assert lines(process, 2) == ["hello 0!", "hello 1!"]


class Callable:
    async def __call__(self, ep):
        await answer_later(ep)


@pytest.mark.parametrize("function", [Callable(), functools.partial(answer_later), lambda ep: answer_later(ep)])
def test_other_things_that_are_coroutine_functions(run, child, function):
    async def body():
        listener = ucp_py.start_listener(function, 0, is_coroutine=not isinstance(function, (Callable, functools.partial)))
        serving = asyncio.ensure_future(listener.coroutine)
        process = child(CLIENT, str(listener.port), "1")
        assert await asyncio.to_thread(lines, process, 1) == ["hello 0!"]
        ucp_py.stop_listener(listener)
        await serving
    run(body())


def test_a_function_in_a_loop_of_asyncio(run, child):
    async def body():
        called = []
        assert ucp_py.start_server(lambda ep: (called.append(ep), answer(ep)), 0) == 0
        process = child(CLIENT, str(ucp_py._core._own.servers[0].port), "1")
        assert await asyncio.to_thread(lines, process, 1) == ["hello 0!"]
        assert len(called) == 1
    run(body())


def test_functions_of_two_arguments_get_the_listener(run, child):
    async def talk(ep, listener):
        await answer_later(ep)
        ucp_py.destroy_ep(ep)
        ucp_py.stop_listener(listener)

    async def body():
        listener = ucp_py.start_listener(talk, listener_port=0, is_coroutine=True)
        assert isinstance(listener, ucp_py.ListenerFuture) and isinstance(listener, ucp_py.ServerFuture) and listener.port
        process = child(CLIENT, str(listener.port), "1")
        assert not listener.done()
        await listener
        assert listener.done() and listener.port == 0
        assert await asyncio.to_thread(lines, process, 1) == ["hello 0!"]
    run(body())


def test_many_at_once_are_served_concurrently(run):
    async def body():
        arrived = asyncio.Event()
        count = 0

        async def talk(ep):
            nonlocal count
            count += 1
            if count == 10:
                arrived.set()
            await arrived.wait()  # nobody gets on before all are here
            await ep.send_obj(await_obj := (await ep.recv_future()).get_obj())
            assert await_obj
        listener = ucp_py.start_listener(talk, 0)
        serving = asyncio.ensure_future(listener.coroutine)
        await asyncio.sleep(0)
        eps = [ucp_py.get_endpoint(b"127.0.0.1", listener.port) for _ in range(10)]  # to ourselves, synchronously
        for i, ep in enumerate(eps):
            ep.send_obj(i + 1)
        assert [(await ep.recv_obj()).get_obj() for ep in eps] == list(range(1, 11))
        ucp_py.stop_listener(listener)
        await serving
    run(body())


def test_a_server_and_its_client_in_one_process_without_a_loop():
    def talk(ep):
        answer(ep)
    listener = ucp_py.start_listener(talk, 0)
    ep = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
    ep.send_msg("self")
    assert ep.recv_msg().result().get_obj() == "self!"
    listener.stop()


def test_stopping_leaves_endpoints_and_what_is_under_way(child):
    held = []

    def talk(ep):
        held.append((ep, ep.recv_future()))
    listener = ucp_py.start_listener(talk, 0)
    client = child("""
import sys, ucp_py
ucp_py.init()
ep = ucp_py.get_endpoint(b"127.0.0.1", int(sys.argv[1]))
print("connected", flush=True)
sys.stdin.readline()
ep.send_msg("after all").result()
print(ep.recv_msg().result().get_obj(), flush=True)
""", str(listener.port))
    until(lambda: held)
    assert listener.result.__doc__ and client.stdout.readline() == "connected\n"
    ucp_py.stop_listener(listener)
    client.stdin.write("go\n")
    client.stdin.flush()
    ep, receive = held[0]
    assert receive.result().get_obj() == "after all"
    ep.send_msg("answered").result()
    assert client.stdout.readline() == "answered\n"


def test_endpoints_live_until_they_are_destroyed(child):
    """The function need not keep them."""
    def talk(ep):
        ep.send_msg("from the function")
    listener = ucp_py.start_listener(talk, 0)
    ep = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
    assert ep.recv_msg().result().get_obj() == "from the function"
    gc.collect()
    under_way = ep.recv_future()
    for _ in range(100):
        assert not under_way.done()
    listener.stop()


def test_a_function_that_fails_is_logged_and_its_peer_let_go(caplog, run):
    def talk(ep):
        raise RuntimeError("on purpose")
    listener = ucp_py.start_listener(talk, 0)
    ep = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
    with caplog.at_level(logging.ERROR, "ucp_py"), pytest.raises(weft.ClosedError):
        ep.recv_msg().result()
    assert "on purpose" in caplog.text
    listener.stop()
    caplog.clear()

    async def fail(ep):
        raise RuntimeError("in a task")

    async def body():
        listener = ucp_py.start_listener(fail, 0)
        serving = asyncio.ensure_future(listener.coroutine)
        await asyncio.sleep(0)
        ep = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
        with pytest.raises(weft.ClosedError):
            await ep.recv_future()
        listener.stop()
        await serving
    with caplog.at_level(logging.ERROR, "ucp_py"):
        run(body())
    assert "in a task" in caplog.text


def test_something_to_await_without_a_loop_is_said(caplog):
    listener = ucp_py.start_listener(lambda ep: answer_later(ep), 0)
    with caplog.at_level(logging.ERROR, "ucp_py"):
        ep = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
        with pytest.raises(weft.ClosedError):
            ep.recv_msg().result()
    assert "is_coroutine=True" in caplog.text
    with pytest.raises(weft.StateError, match="await"):
        ucp_py.start_listener(answer_later, 0).result()


def test_the_port_of_old_and_one_in_use():
    try:
        listener = ucp_py.start_listener(answer)
    except weft.AddressError:
        pytest.skip("somebody has port 13337")
    assert listener.port == 13337
    with pytest.raises(weft.AddressError, match="13337"):
        ucp_py.start_server(answer, -1)
    listener.stop()
    for bad in (-2, "x", 1 << 20, 1.5):
        with pytest.raises((weft.WeftError, TypeError)):
            ucp_py.start_server(answer, bad)


def test_where_it_listens_can_be_said(monkeypatch):
    every = ucp_py.start_listener(answer, 0)
    assert every._door.uri == f"tcp://0.0.0.0:{every.port}"
    monkeypatch.setenv("UCXPY_IFNAME", "lo")
    local = ucp_py.start_listener(answer, 0)
    assert "127.0.0.1" in local._door.uri and "0.0.0.0" not in local._door.uri
    assert ucp_py.get_endpoint(b"127.0.0.1", local.port).close() == 0
    monkeypatch.setenv("UCXPY_IFNAME", "no-such-device")
    with pytest.raises(weft.AddressError, match="no-such-device"):
        ucp_py.start_server(answer, 0)


def test_fin_stops_servers(child):
    listener = ucp_py.start_listener(answer, 0)
    port = listener.port
    ucp_py.fin()
    assert listener.done() and listener.port == 0
    ucp_py.init()
    with pytest.raises(weft.RefusedError):
        ucp_py.get_endpoint(b"127.0.0.1", port)


def test_the_programs_of_old(child):
    """As examples of the time have it: a coroutine given to the loop, on both sides."""
    server = child("""
import asyncio, ucp_py as ucp
async def talk_to_client(ep):
    msg = await ep.recv_future()
    print(ucp.get_obj_from_msg(msg), flush=True)
    await ep.send_obj("reply", 5)
    ucp.destroy_ep(ep)
    ucp.stop_server()
ucp.init()
coro = ucp.start_server(talk_to_client, server_port=0, is_coroutine=True)
print(ucp._core._own.servers[0].port, flush=True)
asyncio.run(coro)
ucp.fin()
""", stderr=subprocess.STDOUT)
    client = child("""
import asyncio, sys, ucp_py as ucp
async def talk_to_server(ip, port):
    ep = ucp.get_endpoint(ip, port)
    await ep.send_obj(b"hi", sys.getsizeof(b"hi"))
    print(ucp.get_obj_from_msg(await ep.recv_future()), flush=True)
    ucp.destroy_ep(ep)
ucp.init()
asyncio.run(talk_to_server(b"127.0.0.1", int(sys.argv[1])))
ucp.fin()
""", server.stdout.readline().strip(), stderr=subprocess.STDOUT)
    assert client.communicate(timeout=60)[0] == "reply\n" and server.communicate(timeout=60)[0] == "b'hi'\n"
    assert client.returncode == server.returncode == 0


def test_the_programs_of_the_guide(child):
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "coming-from-ucp-py.md"),
              encoding="utf-8") as f:
        server, client = re.findall(r"```python\n(.*?)```", f.read(), re.S)
    port = str(ports.take())
    serving = child(server.replace("13337", port), stderr=subprocess.STDOUT)
    asking, end = None, time.monotonic() + 60
    while asking is None or (asking.returncode and time.monotonic() < end):  # the server may not be there yet
        asking = child(client.replace("13337", port), stderr=subprocess.STDOUT)
        said = asking.communicate(timeout=60)[0]
    assert (asking.returncode, said) == (0, "HELLO\n")
    assert (serving.communicate(timeout=60)[0], serving.returncode) == ("", 0)
