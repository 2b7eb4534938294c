"""How endpoints of ucp end: close, abort, the peer's of both, its death, its silence; and cancelled receives, which lose
nothing."""
# ctest: long
import asyncio
import gc
import signal

import numpy
import pytest

import ucp
from ucp.exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXConnectionReset, UCXError
from ucpside import connected, fresh, pair, server  # noqa: F401


async def until(true, seconds=20):
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)


def test_close_lets_the_peer_receive_everything_first(pair):  # noqa: F811
    async def body(p):
        n = 40
        for i in range(n):
            await p.a.send(b"%04d" % i)
        await p.a.close()
        assert p.a.closed()
        await asyncio.sleep(0.05)
        for i in range(n):
            await p.b.recv(into := bytearray(4))
            assert into == b"%04d" % i
        with pytest.raises(UCXCloseError):
            await p.b.recv(bytearray(4))
        assert p.b.closed() and p.b._ctx is None  # closed by the control message's count, not by us
    pair(body)


def test_close_finishes_what_is_being_sent(pair):  # noqa: F811
    async def body(p):
        data = bytes(range(250)) * 20_000
        sending = asyncio.ensure_future(p.a.send(data))
        await asyncio.sleep(0)
        await p.a.close()
        await p.b.recv(into := bytearray(len(data)))
        assert into == data
        await sending
    pair(body)


def test_a_receive_under_way_when_the_peer_closes(pair):  # noqa: F811
    async def body(p):
        receiving = asyncio.ensure_future(p.b.recv(bytearray(10)))
        await asyncio.sleep(0.01)
        await p.a.close()
        with pytest.raises(UCXCanceled):
            await receiving
        assert p.b.closed()
        with pytest.raises(UCXCloseError):
            await p.b.send(b"1")
        with pytest.raises(UCXCloseError):
            await p.b.recv(bytearray(1))
    pair(body)


def test_a_receive_under_way_when_the_peer_closes_and_other_messages_wait(pair):  # noqa: F811
    async def body(p):
        await p.a.send(b"waits", tag="other")
        receiving = asyncio.ensure_future(p.b.recv(bytearray(10)))
        await asyncio.sleep(0.01)
        await p.a.close()
        with pytest.raises(UCXCanceled):
            await receiving
        await until(p.b.closed)
        with pytest.raises(UCXConnectionReset):
            await p.b.recv(bytearray(10))
        await p.b.recv(into := bytearray(5), tag="other")
        assert into == b"waits" and p.b._ctx is None  # that was the last
    pair(body)


def test_a_receive_under_way_when_we_close(run):
    async def body():
        for end in ("close", "abort"):
            p = await connected()
            receiving = asyncio.ensure_future(p.a.recv(bytearray(10)))
            await asyncio.sleep(0.01)
            if end == "close":
                await p.a.close()
            else:
                p.a.abort()
            with pytest.raises(UCXCanceled):
                await receiving
            for use in (p.a.send(b"1"), p.a.recv(bytearray(1)), p.a.am_send(b"1"), p.a.am_recv(), p.a.flush()):
                with pytest.raises(UCXCloseError):
                    await use
            await p.a.close()  # again, and nothing happens
            p.a.abort()
    run(body())


def test_abort_ends_a_send_that_nobody_takes(run):
    async def body():
        p = await connected()
        sending = asyncio.ensure_future(p.a.send(bytes(50_000_000)))
        await asyncio.sleep(0.05)
        assert not sending.done()
        p.a.abort()
        async with asyncio.timeout(5):  # and not when the library gives closing up
            with pytest.raises(UCXCanceled):
                await sending
    run(body())


def test_abort_flushes_what_was_sent_and_tells_nobody(pair):  # noqa: F811
    async def body(p):
        for i in range(100):
            await p.a.send(b"%08d" % i)
        p.a.abort()
        for i in range(100):
            await p.b.recv(into := bytearray(8))
            assert into == b"%08d" % i
        with pytest.raises((UCXCanceled, UCXConnectionReset)):  # by whether the end is known when it begins
            await p.b.recv(bytearray(8))
        await until(p.b.closed)
        with pytest.raises(UCXConnectionReset):
            await p.b.recv(bytearray(8))
    pair(body)


def test_a_program_that_aborts_and_ends_has_sent_everything(run, child):
    plain = "loop = asyncio.new_event_loop(); loop.run_until_complete(main())"
    for how, end in (("ep.abort()", ""), ("await ep.close()", ""), ("pass", ""), ("ep.abort()", plain),
                     ("await ep.close()", plain), ("pass", plain)):
        client = child("""
import asyncio, sys, ucp
async def main():
    global ep
    ep = await ucp.create_endpoint("127.0.0.1", int(sys.stdin.readline()))
    for i in range(200):
        await ep.send(b"%%08d" %% i)
    %s
%s
""" % (how, end or "asyncio.run(main())"))

        async def body():
            accepted = asyncio.get_running_loop().create_future()
            listener = ucp.create_listener(accepted.set_result)
            print(listener.port, file=client.stdin, flush=True)
            ep = await accepted
            await asyncio.to_thread(client.wait, 60)
            for i in range(200):
                await ep.recv(into := bytearray(8))
                assert into == b"%08d" % i
            with pytest.raises(UCXBaseException):
                await ep.recv(bytearray(8))
        run(body())
        assert client.returncode == 0


def test_a_peer_that_is_killed(run, child):
    process, port = server(child, "await ep.send(b'up')\nawait ep.recv(bytearray(100))")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        other = await ucp.create_endpoint("127.0.0.1", port)
        called = []
        ep.set_close_callback(lambda: called.append(1))
        await ep.recv(bytearray(2))
        receiving = asyncio.ensure_future(ep.recv(bytearray(10)))
        sending = asyncio.ensure_future(other.send(bytes(50_000_000), tag="nobody receives"))
        active = asyncio.ensure_future(other.am_recv())
        await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        for lost in (receiving, active):
            with pytest.raises(UCXCanceled):
                await lost
        with pytest.raises(UCXError, match=r"<\[Send #000\] ep: .*>: Endpoint timeout"):
            await sending
        await until(ep.closed)
        await until(lambda: called)
        for use in (ep.recv(bytearray(10)), ep.send(b"1"), ep.am_recv()):
            with pytest.raises(UCXError, match="error: Endpoint timeout"):
                await use
        with pytest.raises(UCXCloseError):
            await ep.am_send(b"1")
        await ep.close()
        ep.abort()
        await asyncio.sleep(0.05)
        assert called == [1]
    run(body())


def test_what_arrived_before_the_peer_died_can_be_received(run, child):
    process, port = server(child, """
for i in range(10):
    await ep.send(b'%04d' % i)
await ep.flush()
print('sent', flush=True)
await ep.recv(bytearray(1))
""")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        assert await asyncio.to_thread(process.stdout.readline) == "sent\n"
        await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        await until(ep.closed)
        for i in range(10):
            await ep.recv(into := bytearray(4))
            assert into == b"%04d" % i
        with pytest.raises(UCXError, match="Endpoint timeout"):
            await ep.recv(bytearray(4))
    run(body())


def test_close_does_not_wait_for_a_peer_that_is_stopped(run, child):
    process, port = server(child, "await ep.recv(bytearray(1))")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(5):
            await ep.close()
        assert ep.closed()
    run(body())
    process.send_signal(signal.SIGCONT)


def test_both_close_at_once(pair):  # noqa: F811
    async def body(p):
        await p.a.send(b"1")
        await p.b.recv(bytearray(1))
        await asyncio.gather(p.a.close(), p.b.close())
        assert p.a.closed() and p.b.closed()
    pair(body)


def test_the_close_callback_is_called_once_by_whatever_ends_it(run):
    async def body():
        for end in ("close", "abort", "peer closes", "peer aborts", "dropped"):
            p = await connected()
            called = []
            p.a.set_close_callback(lambda: called.append(end))
            if end == "close":
                await p.a.close()
            elif end == "abort":
                p.a.abort()
            elif end == "peer closes":
                await p.b.close()
            elif end == "peer aborts":
                p.b.abort()
            else:
                p = p._replace(a=None)
                gc.collect()
            await until(lambda: called)
            if p.a is not None:
                await p.a.close()
            await asyncio.sleep(0.02)
            assert called == [end]
        with pytest.raises(TypeError):
            (await connected()).a.set_close_callback("no function")
    run(body())


def test_an_endpoint_that_nobody_holds_is_closed(run):
    async def body():
        p = await connected()
        a = p.a
        await a.send(b"last")
        p = p._replace(a=None)
        del a
        gc.collect()
        await p.b.recv(into := bytearray(4))
        assert into == b"last"
        await until(p.b.closed)
    run(body())


def test_close_after_n_recv(run):
    async def body():
        for from_creation in (False, True):
            p = await connected()
            for _ in range(12):
                await p.a.send(b"1")
            for _ in range(2):
                await p.b.recv(bytearray(1))
            p.b.close_after_n_recv(12 if from_creation else 10, count_from_ep_creation=from_creation)
            with pytest.raises(UCXError, match=r"close_after_n_recv has already been set to: 12 \(abs\)"):
                p.b.close_after_n_recv(1)
            for i in range(10):
                assert not p.b.closed()
                await p.b.recv(bytearray(1))
            assert p.b.closed()
        p = await connected()
        await p.a.send(b"1")
        await p.b.recv(bytearray(1))
        with pytest.raises(UCXError, match=r"`n` cannot be less than current recv_count: 0 \(abs\) < 1 \(abs\)"):
            p.b.close_after_n_recv(0, count_from_ep_creation=True)
        p.b.close_after_n_recv(0)
        assert p.b.closed()
    run(body())


def test_what_the_control_message_may_not_do(run):
    async def body():
        p = await connected()
        forged = ucp.endpoint._CTRL.pack(1, 12345, 0)
        for header in (b"", b"x" * 24, forged, b"x" * 4000):
            await p.a._weft.am_send(ucp.endpoint.CTRL_ID, header=header)
        await p.a.send(b"1")
        await p.b.recv(bytearray(1))
        await asyncio.sleep(0.02)
        assert not p.b.closed()
        # a count that is never reached does no harm, and the end of the connection still comes
        await p.a._weft.am_send(ucp.endpoint.CTRL_ID, header=ucp.endpoint._CTRL.pack(1, p.b._tags.ctrl_recv, 2**64 - 1))
        await asyncio.sleep(0.02)
        p.a.abort()
        with pytest.raises(UCXBaseException):
            await p.b.recv(bytearray(1))
    run(body())


# --- cancellation -------------------------------------------------------------------------------------------------------


def test_a_cancelled_receive_takes_no_message(pair):  # noqa: F811
    async def body(p):
        for i in range(50):
            stolen = bytearray(8)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0005):
                    await p.b.recv(stolen)
            await p.a.send(b"%08d" % i)
            await p.b.recv(into := bytearray(8))
            assert into == b"%08d" % i and stolen == bytes(8)
    pair(body)


def test_a_receive_cancelled_after_its_message_came_gives_it_to_the_next(run):
    async def body():
        p = await connected()
        for i in range(20):
            first, into = (bytearray(8), bytearray(8)) if i % 2 else (numpy.zeros((4, 2), "u1", order="F"),
                                                                      numpy.zeros((2, 4), "u1", order="F"))
            receiving = asyncio.ensure_future(p.b.recv(first))
            await asyncio.sleep(0)
            op = p.a._weft.send(b"%08d" % i, p.a._tags.msg_send)
            for _ in range(100_000):
                ucp.progress()  # completes it, and the loop has not told the task yet
                if memoryview(first).tobytes("A") != bytes(8):
                    break
            assert memoryview(first).tobytes("A") == b"%08d" % i
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            await op
            await p.b.recv(into)
            assert memoryview(into).tobytes("A") == b"%08d" % i
        assert not p.b._kept
    run(body())


def test_cancelling_at_any_moment_loses_nothing(run):
    async def body():
        p = await connected()
        n, got, tries = 400, [], 0

        async def send():
            for i in range(n):
                await p.a.send(b"%08d" % i)
                if i % 7 == 0:
                    await asyncio.sleep(0.0002)
        sending = asyncio.ensure_future(send())
        while len(got) < n and tries < 100_000:
            into = bytearray(8)
            receiving = asyncio.ensure_future(p.b.recv(into))
            for _ in range(tries % 5):
                await asyncio.sleep(0)
            receiving.cancel()
            tries += 1
            await asyncio.wait([receiving])
            if not receiving.cancelled():
                assert receiving.result() is True
                got.append(int(into))
        await sending
        assert got == list(range(n))
    run(body())


def test_a_cancelled_send_and_a_cancelled_connect(run):
    async def body():
        p = await connected()
        sending = asyncio.ensure_future(p.a.send(bytes(50_000_000)))
        await asyncio.sleep(0.02)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        connecting = asyncio.ensure_future(ucp.create_endpoint("127.0.0.1", p.listener.port))
        await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    run(body())
