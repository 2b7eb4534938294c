"""`ucp_py`: what programs of 2019 do with what is under way: await requests, and have futures call a function."""
import asyncio

import pytest

import ucp_py
import weft
from test_ucp_py import echo, initialised  # noqa: F401


def test_a_request_can_be_awaited(run, echo):  # noqa: F811
    """UCX-Py's ucp_comm_request has __await__, and four of eight programs of that time await what send_msg() gives."""
    async def body():
        ep = ucp_py.get_endpoint(b"127.0.0.1", echo)
        for obj in (b"small", bytes(2_000_000)):
            got = ep.recv_msg(None, 0)
            assert isinstance(await ep.send_msg(obj, len(obj)), ucp_py.ucp_msg)
            assert ucp_py.get_obj_from_msg(await got) == obj
            assert got.done() and await got is got.result()  # again, once it is over
        waiting = ep.recv_fast(ucp_py.ucp_msg(None), 0)
        ucp_py.destroy_ep(ep)
        with pytest.raises(weft.ClosedError):
            await waiting
    run(body())


def test_a_future_calls_a_function(echo):  # noqa: F811
    """In UCX-Py it is a concurrent.futures.Future: each function is called once, with the future."""
    ep, called = ucp_py.get_endpoint(b"127.0.0.1", echo), []
    got, sent = ep.recv_obj(None, 0), ep.send_obj(bytes(2_000_000))
    for future, name in ((got, "got"), (sent, "sent")):
        assert future.running() and not future.cancelled()
        future.add_done_callback(lambda done, name=name: called.append((name, done)))
        future.add_done_callback(lambda done, name=name: called.append((name, done)))
    assert not called
    while len(called) < 4:  # progress() alone does it
        ucp_py.progress()
    assert sorted(name for name, _ in called) == ["got", "got", "sent", "sent"]
    assert all(done is {"got": got, "sent": sent}[name] and done.done() for name, done in called)
    assert got.exception() is None and not got.running() and len(ucp_py.get_obj_from_msg(got)) == 2_000_000
    got.add_done_callback(lambda done: called.append("late"))  # at once
    assert called[-1] == "late" and len(called) == 5
    with pytest.raises(TypeError):
        got.add_done_callback("no function")


def test_a_future_calls_a_function_in_asyncio(run, echo):  # noqa: F811
    async def body():
        ep, over = ucp_py.get_endpoint(b"127.0.0.1", echo), asyncio.get_running_loop().create_future()
        ep.recv_obj(None, 0).add_done_callback(over.set_result)
        ep.send_obj("text").add_done_callback(lambda done: None)
        assert ucp_py.get_obj_from_msg(await over) == "text"
        ucp_py.destroy_ep(ep)
    run(body())


def test_functions_of_what_fails_and_functions_that_fail(echo, caplog):  # noqa: F811
    ep, called = ucp_py.get_endpoint(b"127.0.0.1", echo), []
    cancelled, lost = ep.recv_obj(None, 0), ep.recv_obj(None, 0)

    def bad(done):
        raise ValueError("mine")
    for future in (cancelled, lost):
        future.add_done_callback(bad)
        future.add_done_callback(called.append)
    assert cancelled.cancel()
    while len(called) < 1:
        ucp_py.progress()
    assert cancelled.cancelled() and called == [cancelled]
    ucp_py.destroy_ep(ep)
    while len(called) < 2:
        ucp_py.progress()
    assert called[1] is lost and isinstance(lost.exception(), weft.ClosedError) and not lost.cancelled()
    assert caplog.text.count("mine") >= 2


def test_a_server_calls_a_function_when_it_is_stopped():
    called = []
    listener = ucp_py.start_listener(lambda ep: None, 0)
    listener.add_done_callback(called.append)
    assert not called
    ucp_py.stop_listener(listener)
    assert called == [listener]
    listener.add_done_callback(called.append)
    assert called == [listener, listener]
    with pytest.raises(TypeError):
        listener.add_done_callback(None)
