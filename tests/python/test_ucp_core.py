"""ucp as its users know it: listeners, endpoints, messages, workers by address, loops one after the other, and what a fork
gets."""
import asyncio
import gc
import multiprocessing
import os
import threading
import time

import numpy
import pytest

import ucp
from ucp.exceptions import UCXBaseException, UCXCloseError, UCXError, UCXMsgTruncated
from ucpside import connected, forget, fresh, pair, server  # noqa: F401


@pytest.mark.parametrize("size", [1, 8, 8192, 100_000, 3_000_000])
def test_bytes_arrive_as_they_were_sent(pair, size):  # noqa: F811
    async def body(p):
        data = (numpy.arange(size) % 251).astype("u1")
        for one, other in ((p.a, p.b), (p.b, p.a)):
            into = numpy.zeros_like(data)
            sending = asyncio.ensure_future(one.send(data))
            await other.recv(into)
            await sending
            assert (into == data).all()
    pair(body)


@pytest.mark.parametrize("make", [bytearray, numpy.zeros, lambda n: memoryview(bytearray(n)),
                                  lambda n: ucp._libs.arr.Array(bytearray(n))])
def test_any_buffer_will_do(run, make):
    async def body():
        p = await connected()
        into = make(16)
        size = into.nbytes if hasattr(into, "nbytes") else len(into)
        await p.a.send(b"\x01" * size)
        await p.b.recv(into)
        assert bytes(memoryview(getattr(into, "obj", into)).cast("B")) == b"\x01" * size
        await p.a.send(memoryview(b"0123456789")[3:7])
        four = bytearray(4)
        await p.b.recv(memoryview(four))
        assert four == b"3456"
        await p.a.send(ucp._libs.arr.Array(memoryview(b"0123456789")[3:7]))
        await p.b.recv(four)
        assert four == b"3456"
    run(body())


class OnlyAnInterface:
    """An array of a library that knows numpy's interface and not the buffer protocol."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


def test_what_has_only_an_array_interface(run):
    async def body():
        p = await connected()
        into = numpy.zeros(4)
        await p.a.send(OnlyAnInterface(numpy.arange(4.0)))
        await p.b.recv(OnlyAnInterface(into))
        assert (into == numpy.arange(4.0)).all()
    run(body())


def test_what_is_no_memory_is_refused_with_a_sentence(run):
    async def body():
        p = await connected()
        for bad in (7, None, "text", [1]):
            with pytest.raises((TypeError, ValueError)):
                await p.a.send(bad)
            with pytest.raises((TypeError, ValueError)):
                await p.b.recv(bad)
        with pytest.raises(ValueError, match="contiguous"):
            await p.a.send(numpy.zeros((8, 8))[:, 1])
        with pytest.raises(ValueError, match="read-only"):
            await p.b.recv(b"constant")
        await p.a.send(b"ok")
        into = bytearray(2)
        await p.b.recv(into)
        assert into == b"ok"
    run(body())


def test_objects_of_unknown_length(pair):  # noqa: F811
    async def body(p):
        for obj in (b"", b"x", bytearray(b"hello, world"), numpy.arange(100_000)):
            sending = asyncio.ensure_future(p.a.send_obj(obj))
            got = await p.b.recv_obj()
            await sending
            assert type(got) is bytearray and bytes(got) == bytes(memoryview(obj).cast("B"))
        sending = asyncio.ensure_future(p.b.send_obj(numpy.arange(10), tag="numbers"))
        got = await p.a.recv_obj(tag="numbers", allocator=lambda n: numpy.empty(n // 8, dtype=int))
        await sending
        assert (got == numpy.arange(10)).all()
    pair(body)


def test_a_length_that_nobody_has_memory_for(run):
    async def body():
        p = await connected()
        await p.a.send(b"\xff" * 8)
        with pytest.raises(UCXError, match="no memory"):
            await p.b.recv_obj()
    run(body())


@pytest.mark.parametrize("sent,asked", [(5, 10), (10, 5), (100_000, 10)])
def test_a_message_of_another_length_is_said_so(run, sent, asked):
    async def body():
        p = await connected()
        sending = asyncio.ensure_future(p.a.send(bytes(sent)))
        with pytest.raises(UCXMsgTruncated):
            await p.b.recv(bytearray(asked))
        await asyncio.wait([sending], timeout=30)
        await p.a.send(b"next")
        await p.b.recv(into := bytearray(4))
        assert into == b"next"
    run(body())


def test_a_listener_takes_functions_and_coroutines(run):
    async def body():
        loop = asyncio.get_running_loop()
        for kind in ("function", "coroutine"):
            got = loop.create_future()

            def function(ep):
                got.set_result(ep)

            async def coroutine(ep):
                got.set_result(ep)
            listener = ucp.create_listener(function if kind == "function" else coroutine)
            a = await ucp.create_endpoint("127.0.0.1", listener.port)
            b = await got
            await a.send(b"1")
            await b.recv(bytearray(1))
            assert listener.port > 0 and listener.ip and not listener.closed()
            listener.close()
            assert listener.closed()
            await b.send(b"1")  # endpoints live on
            await a.recv(bytearray(1))
    run(body())


def test_a_handler_that_fails_is_told_of(run):
    async def body():
        told = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.done() or told.set_result(context))

        async def handler(ep):
            raise ValueError("mine")
        listener = ucp.create_listener(handler)
        await ucp.create_endpoint("127.0.0.1", listener.port)
        context = await told
        assert repr(context["exception"]) == "ValueError('mine')" and "listener" in context["message"]
    run(body())


def test_dropping_the_last_reference_stops_the_listener(run):
    async def body():
        ucp.init(connect_timeout=2)
        listener = ucp.create_listener(lambda ep: None)
        port = listener.port
        await ucp.create_endpoint("127.0.0.1", port)
        del listener
        gc.collect()
        with pytest.raises((UCXBaseException, TimeoutError)):
            await ucp.create_endpoint("127.0.0.1", port)
    run(body())


def test_a_port_that_is_taken(run):
    async def body():
        listener = ucp.create_listener(lambda ep: None)
        with pytest.raises((UCXBaseException, OSError)):
            ucp.create_listener(lambda ep: None, port=listener.port)
        assert ucp.create_listener(lambda ep: None, port=None).port not in (0, listener.port)
    run(body())


@pytest.mark.parametrize("bad", [None, 7, "echo"])
def test_a_listener_wants_a_function(run, bad):
    async def body():
        with pytest.raises(TypeError, match="function"):
            ucp.create_listener(bad)
    run(body())


def test_nobody_listens(run):
    async def body():
        listener = ucp.create_listener(lambda ep: None)
        port = listener.port
        listener.close()
        with pytest.raises((UCXBaseException, TimeoutError)):
            await ucp.create_endpoint("127.0.0.1", port)
    run(body())


def test_who_connects_in_vain_gets_a_timeout(run):
    import socket
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()

        async def body():
            ucp.init(connect_timeout=0.3)
            with pytest.raises(TimeoutError):
                await ucp.create_endpoint("127.0.0.1", silent.getsockname()[1])
        run(body())


def test_connect_timeout_comes_from_the_environment(run, monkeypatch):
    monkeypatch.setenv("UCXPY_CONNECT_TIMEOUT", "0.25")
    assert ucp.core._get_ctx().connect_timeout == 0.25
    forget()
    monkeypatch.setenv("UCXPY_CONNECT_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="UCXPY_CONNECT_TIMEOUT"):
        ucp.core._get_ctx()


# --- workers by address ------------------------------------------------------------------------------------------------


def test_a_worker_is_reached_by_its_address(run, child):
    process = child("""
import asyncio, sys, ucp
async def main():
    print(bytes(ucp.get_worker_address()).hex(), flush=True)
    peer = ucp.get_ucx_address_from_buffer(bytes.fromhex(sys.stdin.readline()))
    ep = await ucp.create_endpoint_from_worker_address(peer)
    into = bytearray(5)
    await ucp.recv(into, tag=7)
    await ep.send(into[::-1], tag=8, force_tag=True)
    await ep.recv(into, tag=9, force_tag=True)
    print(into.decode(), flush=True)
    await ep.close()
asyncio.run(main())
""")

    async def body():
        peer = ucp.get_ucx_address_from_buffer(bytes.fromhex(process.stdout.readline()))
        print(bytes(ucp.get_worker_address()).hex(), file=process.stdin, flush=True)
        ep = await ucp.create_endpoint_from_worker_address(peer)
        await ep.send(b"hello", tag=7, force_tag=True)
        into = bytearray(5)
        await ep.recv(into, tag=8, force_tag=True)
        assert into == b"olleh"
        await ep.send(b"third", tag=9, force_tag=True)
        with pytest.raises(UCXError, match="force_tag"):
            await ep.send(b"x")
        with pytest.raises(UCXError, match="force_tag"):
            await ep.recv(into, tag=3)
        await ep.close()
        assert ep.closed()
    run(body())
    assert process.stdout.readline() == "third\n"
    assert process.wait(60) == 0


@pytest.mark.parametrize("bad", [b"", b"x", bytes(4096), os.urandom(200)])
def test_bytes_that_are_no_address(bad):
    with pytest.raises((UCXBaseException, ValueError)):
        ucp.get_ucx_address_from_buffer(bad)


def test_a_worker_receives_from_whoever_sends(run):
    async def body():
        p = await connected()
        q = await connected()
        for ep in (p.a, q.a):
            await ep.send(b"to any", tag=5, force_tag=True)
            into = bytearray(6)
            await ucp.recv(into, 5)
            assert into == b"to any"
        with pytest.raises(UCXMsgTruncated):
            await p.a.send(b"1234", tag=6, force_tag=True)
            await ucp.recv(bytearray(3), 6)
    run(body())


# --- loops, threads, forks ---------------------------------------------------------------------------------------------


def test_endpoints_move_from_loop_to_loop(run):
    kept = []

    async def first():
        kept.append(await connected())
        await kept[0].a.send(b"from the first")
    run(first())

    async def second():
        p = kept[0]
        into = bytearray(14)
        await p.b.recv(into)
        assert into == b"from the first"
        waiting = asyncio.ensure_future(p.a.recv(into))
        await asyncio.sleep(0.01)
        await p.b.send(b"in the second.")
        await waiting
        assert into == b"in the second."
        q = await connected()
        await q.a.send(b"1")
        await q.b.recv(bytearray(1))
        await p.a.close()
    run(second())
    run(second_of_many())


async def second_of_many():
    p = await connected()
    await p.a.send_obj(b"again")
    assert await p.b.recv_obj() == b"again"


def test_loops_that_take_turns(run):
    loops = [asyncio.new_event_loop() for _ in range(2)]
    try:
        p = loops[0].run_until_complete(asyncio.wait_for(connected(), 30))

        async def talk(i):
            receiving = asyncio.ensure_future(p.b.recv(into := bytearray(4)))
            await asyncio.sleep(0.001)
            await p.a.send(b"%04d" % i)
            await receiving
            assert into == b"%04d" % i and ucp.core._get_ctx().worker.runtime.loop is asyncio.get_running_loop()
        for i in range(6):
            loops[i % 2].run_until_complete(asyncio.wait_for(talk(i), 30))
        loops[1].close()
        loops[0].run_until_complete(asyncio.wait_for(talk(9), 30))
    finally:
        for loop in loops:
            loop.close()


def test_a_listener_outlives_its_loop(run):
    kept = []

    async def handler(ep):
        await ep.send_obj(await ep.recv_obj())

    async def first():
        kept.append(ucp.create_listener(handler))
    run(first())

    async def second():
        ep = await ucp.create_endpoint("127.0.0.1", kept[0].port)
        await ep.send_obj(b"still")
        assert await ep.recv_obj() == b"still"
    run(second())


def test_who_connects_while_no_loop_runs_is_served_by_the_next(run, child):
    kept = []

    async def handler(ep):
        await ep.send_obj(await ep.recv_obj())

    async def first():
        kept.append(ucp.create_listener(handler))
    run(first())
    client = child("""
import asyncio, sys, ucp
async def main():
    ucp.init(connect_timeout=40)
    ep = await ucp.create_endpoint("127.0.0.1", int(sys.argv[1]))
    await ep.send_obj(b"patient")
    print(bytes(await ep.recv_obj()), flush=True)
asyncio.run(main())
""", str(kept[0].port))
    ctx, until = ucp.core._get_ctx(), time.monotonic() + 30
    while not ctx._callers and time.monotonic() < until:
        ucp.progress()

    async def second():
        ucp.continuous_ucx_progress()
        assert await asyncio.to_thread(client.stdout.readline) == "b'patient'\n"
    run(second())


def test_before_any_loop_runs():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        async def handler(ep):
            await ep.send_obj(await ep.recv_obj())
        listener = ucp.create_listener(handler)

        async def body():
            ep = await ucp.create_endpoint("127.0.0.1", listener.port)
            await ep.send_obj(b"early")
            return await ep.recv_obj()
        assert loop.run_until_complete(asyncio.wait_for(body(), 30)) == b"early"
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_the_loop_of_another_thread_is_told_so(run):
    async def body():
        await connected()
        errors = []

        def other():
            async def use():
                try:
                    ucp.create_listener(lambda ep: None)
                except UCXError as error:
                    errors.append(str(error))
            asyncio.run(use())
        thread = threading.Thread(target=other)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        assert len(errors) == 1 and "another thread" in errors[0]
    run(body())


def _in_child(pipe, ep):
    words = []
    for use in (lambda: ucp.create_listener(lambda ep: None), ucp.get_worker_address, ucp.progress, ucp.init):
        try:
            use()
            words.append("nothing")
        except UCXError as error:
            words.append(str(error))

    async def send():
        await ep.send(b"1")
    try:
        asyncio.run(send())
        words.append("nothing")
    except Exception as error:
        words.append(f"{type(error).__name__} fork {error}" if isinstance(error, UCXBaseException) else repr(error))
    ucp.reset()

    async def own():
        p = await connected()
        await p.a.send_obj(b"own")
        return bytes(await p.b.recv_obj())
    words.append(asyncio.run(asyncio.wait_for(own(), 30)).decode())
    pipe.send(words)
    pipe.close()
    os._exit(0)


def test_a_forked_process_is_told_and_can_start_anew(run):
    async def body():
        p = await connected()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_in_child, args=(theirs, p.a))
        process.start()
        theirs.close()
        try:
            assert await asyncio.to_thread(ours.poll, 50)
            words = ours.recv()
        finally:
            process.kill()
            process.join()
        assert all("fork" in word for word in words[:-1]), words
        assert words[-1] == "own"
        await p.a.send_obj(b"the parent goes on")
        assert await p.b.recv_obj() == b"the parent goes on"
    run(body())


# --- asking ------------------------------------------------------------------------------------------------------------


def test_what_an_endpoint_tells(run):
    async def body():
        p = await connected()
        assert p.a.uid != p.b.uid and p.a.get_ucp_endpoint() and p.a.get_ucp_worker() == ucp.get_ucp_worker()
        assert p.a.is_alive() and not p.a.closed() and p.a.cuda_support() in (True, False)
        assert len(p.a.ucx_info()) > 10
        p.a.abort()
        assert p.a.closed() and not p.a.is_alive()
        assert "closed" in p.a.ucx_info()
        for ask in (p.a.get_ucp_endpoint, p.a.cuda_support):
            with pytest.raises(UCXCloseError):
                ask()
    run(body())


def test_flush_and_fence(run):
    async def body():
        p = await connected()
        for i in range(50):
            await p.a.send(bytes(1000))
        ucp.fence()
        await p.a.flush()
        await ucp.flush()
        for i in range(50):
            await p.b.recv(bytearray(1000))
    run(body())


def test_flush_waits_for_what_is_being_sent(run):
    async def body():
        p = await connected()
        for flush in (p.a.flush, ucp.flush):
            sending = asyncio.ensure_future(p.a.send(bytes(5_000_000)))
            await asyncio.sleep(0)
            flushing = asyncio.ensure_future(flush())
            await asyncio.sleep(0.02)
            assert not sending.done() and not flushing.done()
            await p.b.recv(bytearray(5_000_000))
            await flushing
            await sending
    run(body())


def test_progress_by_hand_completes_what_the_loop_then_tells(run):
    async def body():
        p = await connected()
        into = bytearray(4)
        waiting = asyncio.ensure_future(p.b.recv(into))
        await asyncio.sleep(0)
        await p.a.send(b"hand")
        for _ in range(100_000):
            ucp.progress()
            if into == b"hand":
                break
        assert into == b"hand"
        await waiting
    run(body())


def test_hundreds_at_once(pair):  # noqa: F811
    async def body(p):
        n = 300
        into = [bytearray(8) for _ in range(n)]
        receiving = [asyncio.ensure_future(p.b.recv(into[i], tag=i)) for i in range(n)]
        await asyncio.gather(*(p.a.send(b"%08d" % i, tag=i) for i in reversed(range(n))))
        await asyncio.gather(*receiving)
        assert into == [b"%08d" % i for i in range(n)]
    pair(body)


def test_a_server_in_another_process(run, child):
    process, port = server(child, "while True:\n    await ep.send_obj(await ep.recv_obj())")

    async def body():
        eps = [await ucp.create_endpoint("127.0.0.1", port) for _ in range(3)]
        for i, ep in enumerate(eps):
            data = bytes([i]) * 200_000
            sending = asyncio.ensure_future(ep.send_obj(data))
            assert await ep.recv_obj() == data
            await sending
            await ep.close()
    run(body())
